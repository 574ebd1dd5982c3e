"""This process's own memory in large pages: a fork then copies a third of the tables, and so does the child's end.

With torch imported, a fork took 4.5 ms of processor time in small pages and 1.5 ms in large ones. Linux from 6.1; where
the kernel does not want to, everything stays as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from stoker.host import linux_calls

_LARGE_BYTES = 2 << 20
_STEP_BYTES = 8 << 20


def moves() -> Iterator[bool]:
    """Move our memory, a few milliseconds' worth each time the next item is asked for; it says whether that worked."""
    for start, end in list(_own_regions()):
        for at in range(start, end, _STEP_BYTES):
            yield linux_calls.use_large_pages(at, min(_STEP_BYTES, end - at))


def _own_regions() -> Iterator[tuple[int, int]]:
    """Give the regions that are ours alone to write, cut to borders of large pages."""
    if sys.platform != "linux":
        return
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            span, mode, *_ = line.split(maxsplit=2)
            start, end = (int(number, 16) for number in span.split("-"))
            start, end = -(-start // _LARGE_BYTES) * _LARGE_BYTES, end // _LARGE_BYTES * _LARGE_BYTES
            if mode == "rw-p" and start < end:
                yield start, end
