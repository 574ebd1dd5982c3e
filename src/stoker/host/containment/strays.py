"""Everybody who belongs to an attempt, where no control group keeps them together.

Found by group and session, by the mark in the environment they were started with (which a new session does not shed),
and by descent from any of these. Who sheds all three, with an empty environment, its own session and its parents gone,
is not found: only control groups know that one.
"""

from __future__ import annotations

import os
import signal

from stoker.host.containment.box import MARK
from stoker.host.identity import ProcessIdentity
from stoker.host.process_table import ProcessRow, living_rows, read_row
from stoker.host.processes import end_unseen, group_members, signal_one
from stoker.model.clock import Clock, SystemClock
from stoker.model.errors import ProcessLost

_END_WAIT_S = 5.0
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05


def find_strays(identity: ProcessIdentity | None, mark: str) -> tuple[ProcessRow, ...]:
    """Give everybody of an attempt who still runs."""
    everybody = list(living_rows())
    found = set() if identity is None else {row.pid for row in group_members(identity, everybody)}
    # Nobody of an attempt is older than its first process.
    oldest = 0 if identity is None else identity.start_ticks
    found |= {row.pid for row in everybody if mark and row.start_ticks >= oldest and _is_marked(row.pid, mark)}
    # Who asks is not meant, even if it carries the mark itself.
    found.discard(os.getpid())
    while more := {row.pid for row in everybody if row.parent_pid in found} - found:
        found |= more
    return tuple(row for row in everybody if row.pid in found)


def end_strays(identity: ProcessIdentity | None, mark: str, *, clock: Clock | None = None) -> None:
    """Kill everybody of an attempt and see them gone. Raises `ProcessLost`."""
    clock = clock or SystemClock()
    deadline_s = clock.monotonic_s() + _END_WAIT_S
    pause_s = _FIRST_PAUSE_S
    known: dict[int, ProcessRow] = {}
    while left := _still_there(known, identity, mark):
        # Some are known by their parents only, who are about to go.
        known.update(left)
        if identity is not None:
            # All of its group at once, so that nobody forks his way past us.
            end_unseen(identity)
        for row in left.values():
            signal_one(row, signal.SIGKILL)
        if clock.monotonic_s() >= deadline_s:
            raise ProcessLost(
                f"still there after SIGKILL: process {', '.join(map(str, sorted(left)))}",
                hint="it may belong to another user, or wait for a device or a network disk",
                pids=sorted(left),
            )
        clock.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
    if identity is not None:
        end_unseen(identity)


def _still_there(known: dict[int, ProcessRow], identity: ProcessIdentity | None, mark: str) -> dict[int, ProcessRow]:
    left = {row.pid: row for row in find_strays(identity, mark)}
    for pid, row in known.items():
        now = read_row(pid)
        if now is not None and now.start_ticks == row.start_ticks and not now.is_gone:
            left[pid] = now
    return left


def _is_marked(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{MARK}={mark}".encode() in file.read().split(b"\0")
    except OSError:
        return False
