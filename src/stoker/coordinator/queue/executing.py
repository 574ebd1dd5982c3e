"""Commands inside running jobs: where one would run, or why it can't; and that it was run, by whom. Never what it said.

The streams themselves are not the queue's: `service.exec_desk` has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.coordinator.queue.commands import Done
from stoker.coordinator.queue.exec_commands import BeginExec, EndExec
from stoker.coordinator.queue.moves import plain, telling
from stoker.coordinator.queue.operating import rows_of
from stoker.coordinator.queue.rows import JobRow
from stoker.coordinator.queue.turn import Turn
from stoker.model.errors import IllegalMove, Unavailable
from stoker.model.fleet_events import FleetKinds
from stoker.model.lifecycle import JobState

_LONGEST_WORD = 200
_SHOWN_ID = 8
_MISSED_BEATS = 2
"""So many heartbeats late, a machine is not waited for."""


def begin_exec(turn: Turn, asked: BeginExec) -> Done:
    """Say where a job runs, and write down who runs a command there. Refuses with where the job is instead."""
    row = rows_of(turn, (asked.job,))[0]
    live = turn.book.live.get(row.id)
    if live is None or live.state != JobState.RUNNING.value or live.is_cancelling:
        raise _not_running(row, live.machine if live is not None else "")
    machine = turn.book.machines.get(live.machine)
    silent_s = float("inf") if machine is None else turn.tick_s - machine.seen_tick_s
    if silent_s > _MISSED_BEATS * turn.pace.heartbeat_s:
        since = f" for {silent_s:.0f} s" if machine is not None else ""
        hint = f"stoker machines show {live.machine}; its jobs go elsewhere if it stays away"
        raise Unavailable(f"{live.machine}, where {row.shown} runs, has been silent{since}", hint=hint)
    fields = {
        "session": asked.session[:_SHOWN_ID],
        "program": plain(asked.program[:_LONGEST_WORD]),
        "by": plain(asked.by),
    }
    turn.tell(
        FleetKinds.EXEC_BEGUN,
        seq=row.seq,
        machine=live.machine,
        attempt=live.attempt,
        epoch=live.epoch,
        fields=telling(fields),
    )
    where = {
        "name": row.shown,
        "machine": live.machine,
        "attempt": live.attempt,
        "epoch": live.epoch,
        "generation": live.generation,
    }
    return Done(changed=(row.id,), data=where)


def end_exec(turn: Turn, asked: EndExec) -> Done:
    """Write down that a command has ended."""
    row = rows_of(turn, (asked.token.job,))[0]
    fields = {
        "session": asked.session[:_SHOWN_ID],
        "program": plain(asked.program[:_LONGEST_WORD]),
        "exit_code": asked.exit_code,
        "why": plain(asked.why),
        "by": plain(asked.by),
    }
    turn.tell(
        FleetKinds.EXEC_ENDED,
        seq=row.seq,
        machine=asked.machine,
        attempt=asked.token.attempt,
        epoch=asked.token.epoch,
        fields=telling(fields),
    )
    return Done(changed=(row.id,))


EXEC_VERBS: dict[type, Callable[[Turn, Any], Done]] = {BeginExec: begin_exec, EndExec: end_exec}


def _not_running(row: JobRow, machine: str) -> IllegalMove:
    name = row.shown
    if row.is_cancelling:
        what, hint = f"{name} is being cancelled on {machine}", f"stoker jobs show {name}"
    elif row.state == JobState.PENDING.value:
        what, hint = f"{name} waits in line: nothing of it runs", f"stoker explain {name} says why"
    elif row.state == JobState.CLAIMED.value:
        hint = f"stoker logs -f {name} shows how far it is"
        what = f"{name} is being prepared on {machine}: nothing of it runs yet"
    else:
        where = f" on {row.machine}" if row.machine else ""
        what, hint = f"{name} has ended ({row.state}{where})", f"stoker get {name}, or stoker logs {name}"
    return IllegalMove(what, hint=hint, state=row.state, move="exec", machine=machine or row.machine or "")
