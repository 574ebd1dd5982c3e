"""Where a rank begins that is an interpreter of its own."""

from __future__ import annotations

import os

from stoker.core import jsontext
from stoker.host.entry_points import entry_point


def main(order_fd: int) -> None:
    """Read the order and do it."""
    size = os.fstat(order_fd).st_size
    order = jsontext.loads(os.pread(order_fd, size, 0))
    os.close(order_fd)
    entry_point(order["entry"])(order["request"])
