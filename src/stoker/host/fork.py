"""Both sides of a fork of ours: what the child does first, and how its parent signals and reaps it. Linux only."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from stoker.host import linux
from stoker.host.identity import ProcessExit, exit_from

HANDLED = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD})
"""A parent blocks these while it forks: one meant for the new child is neither taken for the parent's own nor lost in
handlers that the child has inherited."""


def become_independent(parent_pid: int) -> None:
    """Begin a session of our own that ends with our parent, with nothing left of its handlers.

    Blocked signals stay blocked until the child unblocks them (`let_signals_in`).
    """
    linux.die_with_parent(signal.SIGKILL)
    if os.getppid() != parent_pid:
        # It ended before we asked, so the signal never comes.
        os._exit(1)
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
