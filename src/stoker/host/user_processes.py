"""Everybody who runs as a user: found, and ended for certain. For users that have nothing else to run than our jobs."""

from __future__ import annotations

import os
import signal
import sys

from stoker.host.containment.box import MARK
from stoker.host.process_table import ProcessRow, living_rows
from stoker.host.processes import signal_one
from stoker.model.clock import Clock
from stoker.model.errors import ProcessLost

_END_WAIT_S = 5.0
_PAUSE_S = 0.01


def processes_of(uid: int) -> tuple[ProcessRow, ...]:
    """Give everybody who acts for a user: in any of its ids."""
    if sys.platform != "linux":
        return ()
    from stoker.host.process_table import users_of  # noqa: PLC0415 - it is there on Linux only

    return tuple(row for row in living_rows() if row.pid != os.getpid() and uid in users_of(row.pid))


def end_everybody_of(uid: int, clock: Clock) -> int:
    """Kill everybody who runs as a user, and see them gone; give how many that were. Raises `ProcessLost`."""
    if uid == 0:
        message = "root's processes are not ours to end"
        raise ValueError(message)
    until_s = clock.monotonic_s() + _END_WAIT_S
    seen: set[int] = set()
    while left := processes_of(uid):
        seen.update(row.pid for row in left)
        for row in left:
            # Nobody forks while we go through the list.
            signal_one(row, signal.SIGSTOP)
        for row in left:
            signal_one(row, signal.SIGKILL)
        if clock.monotonic_s() >= until_s:
            pids = [row.pid for row in left]
            raise ProcessLost(f"still there after SIGKILL: {pids} of user {uid}", pids=pids)
        clock.sleep(_PAUSE_S)
    return len(seen)


def is_of_a_job(row: ProcessRow) -> bool:
    """Whether a process was started by us for a job, as far as its environment tells."""
    try:
        with open(f"/proc/{row.pid}/environ", "rb") as file:
            return any(one.startswith(f"{MARK}=".encode()) for one in file.read().split(b"\0"))
    except OSError:
        return False
