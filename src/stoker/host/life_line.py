"""The end of a process when its owner is gone: a pipe that nobody writes to, and whose other end only the owner holds.

On Linux the kernel itself kills the process the moment the other end closes, even if it is busy in native code.
Elsewhere a thread waits for it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def hold_on(fd: int) -> None:
    """Tie this process, which leads its own group, to the life line, with whatever it starts."""
    if sys.platform != "linux":
        threading.Thread(target=_wait, args=(fd,), name="stoker-life-line", daemon=True).start()
        return
    # Negative: the group.
    _arm(fd, -os.getpgid(0))


@contextmanager
def held(fd: int) -> Iterator[None]:
    """Tie this process alone to the life line for a while. Linux only."""
    _arm(fd, os.getpid())
    try:
        yield
    finally:
        _disarm(fd)


def _arm(fd: int, whom: int) -> None:
    import fcntl  # noqa: PLC0415 - not everywhere

    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETOWN, whom)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([fd], [], [], 0)[0]:
        # It closed before we asked, so the signal never comes.
        _end(whom)


def _disarm(fd: int) -> None:
    import fcntl  # noqa: PLC0415 - not everywhere

    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_ASYNC)


def _wait(fd: int) -> None:
    os.read(fd, 1)
    _end(-os.getpgid(0))


def _end(whom: int) -> None:
    os.kill(whom, signal.SIGKILL)
