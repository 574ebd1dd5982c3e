"""The history checker's verdict on the newest part of a queue, while it is served: bounded in jobs, on one snapshot."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import func, select

from stoker.coordinator.database.checking import check_rows
from stoker.coordinator.database.opening import Database
from stoker.coordinator.database.snapshots import snapshot
from stoker.coordinator.database.tables import JOBS
from stoker.coordinator.history import HasObject, Violation
from stoker.model.frozen import frozen
from stoker.model.leases import Budgets

RULES = (
    "one_lease",
    "epochs_grow",
    "no_stale_write",
    "terminal_is_final",
    "waits_with_reason",
    "within_budgets",
    "bundle_has_bytes",
    "events_replay",
    "one_event_per_move",
    "time_goes_on",
    "counters",
)
"""The checker's own (`history`), and that counters say what rows do."""
_SHOWN = 50


@frozen
class Judged:
    """What was found."""

    jobs: int
    is_whole: bool
    """All jobs were looked at."""
    broken: dict[str, int]
    """Rule → how often."""
    violations: tuple[Violation, ...]
    """The first."""


def judge(database: Database, *, most: int, budgets: Budgets, has_object: HasObject | None) -> Judged:
    """Check the newest jobs, and what is about no single one."""
    with snapshot(database) as connection:
        total = int(connection.scalar(select(func.count()).select_from(JOBS)) or 0)
        behind = 0
        if total > most:
            newest = select(JOBS.c.seq).order_by(JOBS.c.seq.desc()).offset(most).limit(1)
            behind = int(connection.scalar(newest) or 0)
        broken: Counter[str] = Counter(dict.fromkeys(RULES, 0))
        shown: list[Violation] = []
        # What a whole file needs, `admin db check` does: here nobody waits for it.
        for violation in check_rows(connection, budgets=budgets, has_object=has_object, behind=behind, is_quick=True):
            broken[violation.rule] += 1
            if len(shown) < _SHOWN:
                shown.append(violation)
    return Judged(jobs=min(total, most), is_whole=total <= most, broken=dict(broken), violations=tuple(shown))
