"""Hooks in rows: made, moved on, closed. A closed one is remembered for a month, for people."""

from __future__ import annotations

from typing import Any

from stoker.coordinator.database.tables import HOOKS
from stoker.coordinator.queue.commands import Done
from stoker.coordinator.queue.health_commands import AddHook, CloseHook, MoveHook
from stoker.coordinator.queue.moves import plain, telling
from stoker.coordinator.queue.operating import rows_of
from stoker.coordinator.queue.turn import Turn
from stoker.model.errors import NotFound, Refused
from stoker.model.fleet_events import FleetKinds
from stoker.model.json_text import dumps
from stoker.model.lifecycle import JobState

MOST_OPEN = 1000
"""Hooks at one time."""
KEPT_S = 30 * 24 * 3600.0
HOOK_FIELDS = tuple(HOOKS.columns.keys())


def add_hook(turn: Turn, asked: AddHook) -> Done:
    """Begin to tell somebody of events: of all that follow, or of how some jobs end."""
    hooks = _all(turn)
    if sum(row["closed_s"] is None for row in hooks) >= MOST_OPEN:
        raise Refused(f"{MOST_OPEN} hooks are open already", hint="`stoker admin notify rm ID` closes one")
    for row in hooks[:-1]:
        if row["closed_s"] is not None and row["closed_s"] < turn.now_s - KEPT_S:
            turn.write(turn.statements.drop_hook, at_id=row["id"])
    seqs, cursor = _jobs(turn, asked.jobs) if asked.jobs else ([], turn.book.event_id)
    number: int = hooks[-1]["id"] + 1 if hooks else 1
    fresh = {
        "id": number,
        "url": asked.url,
        "secret": asked.secret,
        "kinds": dumps(list(asked.kinds)) if asked.kinds else "",
        "jobs": dumps(seqs) if seqs else "",
        "cursor": cursor,
        "is_inner": asked.is_inner,
        "failures": 0,
        "failing_since_s": None,
        "not_before_s": 0.0,
        "last_error": "",
        "made_s": turn.now_s,
        "closed_s": None,
        "by": plain(asked.by),
    }
    turn.write(turn.statements.put_hook, **fresh)
    _tell(turn, FleetKinds.HOOK_MADE, number, by=asked.by)
    return Done(changed=(str(number),), data={"id": number})


def move_hook(turn: Turn, asked: MoveHook) -> Done:
    """Note how far one has come, and how it goes; of one that is closed nothing is noted."""
    row = _find(turn, asked.id)
    if row["closed_s"] is not None:
        return Done(notes=(f"hook {asked.id} is closed",))
    row |= {
        "cursor": max(row["cursor"], asked.cursor),
        "failures": asked.failures,
        "failing_since_s": asked.failing_since_s,
        "not_before_s": asked.not_before_s,
        "last_error": plain(asked.last_error),
    }
    turn.write(turn.statements.put_hook, **row)
    return Done(changed=(str(asked.id),))


def close_hook(turn: Turn, asked: CloseHook) -> Done:
    """Tell one nothing more; what signed its messages is forgotten."""
    row = _find(turn, asked.id)
    if row["closed_s"] is not None:
        return Done(notes=(f"hook {asked.id} is closed already",))
    turn.write(
        turn.statements.put_hook, **{**row, "closed_s": turn.now_s, "secret": "", "last_error": plain(asked.why)}
    )
    _tell(turn, FleetKinds.HOOK_CLOSED, asked.id, why=asked.why, by=asked.by)
    return Done(changed=(str(asked.id),))


def _jobs(turn: Turn, ids: tuple[str, ...]) -> tuple[list[int], int]:
    """Give the numbers of jobs, and behind which event a hook of theirs begins."""
    rows = rows_of(turn, ids)
    ended = [row.seq for row in rows if JobState(row.state).is_terminal]
    cursor = turn.book.event_id
    if ended:
        found = [id for _, id in turn.read(turn.queries.ends_of, seqs=turn.many(ended))]
        cursor = min([cursor, *(id - 1 for id in found)])
    return [row.seq for row in rows], cursor


def _all(turn: Turn) -> list[dict[str, Any]]:
    return [dict(zip(HOOK_FIELDS, row, strict=True)) for row in turn.read(turn.queries.hooks)]


def _find(turn: Turn, id: int) -> dict[str, Any]:
    for row in _all(turn):
        if row["id"] == id:
            return row
    raise NotFound(f"there is no hook {id}", hint="`stoker admin notify` lists them")


def _tell(turn: Turn, kind: str, id: int, *, why: str = "", by: str = "") -> None:
    fields = {"hook": id, "why": plain(why), "by": plain(by)}
    turn.tell(kind, fields=telling(fields))
