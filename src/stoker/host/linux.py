"""Linux alone: system calls that Python does not wrap, and both sides of our forks. Loads ctypes: import it late."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress

from stoker.host.identity import ProcessExit, exit_from

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_SYNC_WRITE = 2
_MADV_COLLAPSE = 25
_TIMEX_BYTES = 512  # more than the structure has on any machine
_TIME_ERROR = 5

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(number: signal.Signals) -> None:
    """Have the kernel send us this signal when the thread that forked us ends. No effect if it already has."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_name(name: str) -> None:
    """Set the name that `top` shows, limited to 15 bytes."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]))


def start_write_back(descriptor: int, offset: int, size_bytes: int) -> None:
    """Have the kernel start write-back of these bytes of a file, without waiting. No guarantee."""
    _libc.sync_file_range(
        ctypes.c_int(descriptor), ctypes.c_int64(offset), ctypes.c_int64(size_bytes), ctypes.c_uint(_SYNC_WRITE)
    )


def use_large_pages(start: int, size_bytes: int) -> bool:
    """Have memory of ours moved into large pages now; return True if the kernel did."""
    return not _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size_bytes), ctypes.c_int(_MADV_COLLAPSE))


def is_clock_kept() -> bool:
    """Return True if the kernel's clock is synchronised. Raises `OSError`."""
    # All zero: a query.
    state = _libc.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    if state < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return bool(state != _TIME_ERROR)


def _prctl(option: int, argument: int | ctypes.c_char_p) -> None:
    value = argument if isinstance(argument, ctypes.c_char_p) else ctypes.c_ulong(argument)
    if _libc.prctl(ctypes.c_int(option), value, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


_LARGE_BYTES = 2 << 20
_STEP_BYTES = 8 << 20


def moves() -> Iterator[bool]:
    """Move our memory to large pages, a few milliseconds' worth per item; each item is True if that worked.

    With torch imported, a fork took 4.5 ms of processor time in small pages and 1.5 ms in large ones. Linux from 6.1;
    if the kernel refuses, everything stays as it is.
    """
    for start, end in list(_own_regions()):
        for at in range(start, end, _STEP_BYTES):
            yield use_large_pages(at, min(_STEP_BYTES, end - at))


def _own_regions() -> Iterator[tuple[int, int]]:
    """Return the regions that only we write, cut to borders of large pages."""
    if sys.platform != "linux":
        return
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            span, mode, *_ = line.split(maxsplit=2)
            start, end = (int(number, 16) for number in span.split("-"))
            start, end = -(-start // _LARGE_BYTES) * _LARGE_BYTES, end // _LARGE_BYTES * _LARGE_BYTES
            if mode == "rw-p" and start < end:
                yield start, end


# A fork: what the child does first, and how its parent signals and reaps it.


HANDLED = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD})
"""A parent blocks these while it forks: one meant for the new child is neither taken for the parent's own nor lost in
handlers that the child has inherited."""


def become_independent(parent_pid: int) -> None:
    """Begin a session of our own that ends with our parent, with nothing left of its handlers.

    Blocked signals stay blocked until the child unblocks them (`let_signals_in`).
    """
    die_with_parent(signal.SIGKILL)
    if os.getppid() != parent_pid:
        # It ended before we asked, so the signal never comes.
        os._exit(1)
    lead_session()


def lead_session() -> None:
    """Begin a session of our own, with nothing left of our parent's handlers. Blocked signals stay blocked."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in HANDLED:
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)


def let_signals_in() -> None:
    """Let a request to end, sent while we were being made, take effect from here on."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def signal_child(pid: int, number: int) -> None:
    """Signal a child that was not reaped yet and its group, which does not exist in the first moments of the child.

    Each once: a second interrupt would disturb what the first one began. Killing twice does no harm. A stopped process
    receives a request to end only when it continues, so it is continued.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
        if number == signal.SIGTERM:
            os.killpg(pid, signal.SIGCONT)
        if number != signal.SIGKILL:
            return
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def has_ended(pid: int) -> bool:
    """Return True if a child has ended; it is not reaped, so that its number stays its own."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def reap(pid: int) -> ProcessExit:
    """Return how a child ended; from here on its number may belong to another process."""
    _, status, usage = os.wait4(pid, 0)
    return exit_from(status, usage.ru_maxrss, usage.ru_utime + usage.ru_stime)
