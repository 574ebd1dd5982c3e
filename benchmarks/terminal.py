"""A terminal that nobody looks at, for programs that show more on one."""

from __future__ import annotations

import os
import pty
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def terminal() -> Iterator[int]:
    """The end that a program writes to; what it writes is read as it comes, and dropped."""
    near, far = pty.openpty()

    def drain() -> None:
        # reading fails once the last writer has closed its end
        with suppress(OSError):
            while os.read(near, 65536):
                pass

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    try:
        yield far
    finally:
        os.close(far)
        reader.join()
        os.close(near)
