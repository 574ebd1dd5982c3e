"""Whatever a job may live through is clean, and whatever is then done to its rows behind the queue's back is found."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.coordinator.database.history import check_job
from stoker.core.leases import Budgets
from tests.lengths import examples
from tests.unit.coordinator.histories import SHA, SIZE, Life

PLENTY = Budgets(user=100, lost=100, poisoned=100)
VERBS = {
    "pending": ("grant", "cancel"),
    "claimed": ("start", "fail", "retry", "lose", "release", "decline", "cancel", "forgive"),
    "running": ("finish", "fail", "retry", "lose", "release", "cancel", "forgive", "checkpoint"),
    "completed": ("requeue",),
    "failed": ("requeue",),
    "cancelled": ("requeue",),
}


@st.composite
def lives(draw: st.DrawFn) -> Life:
    life = Life()
    for _ in range(draw(st.integers(0, 14))):
        verbs = VERBS[life.state]
        if life.state == "pending" and life.attempts and life.events[-1]["kind"] == "job_expired":
            verbs = (*verbs, "come_back") if life.attempts[-1]["cause"] == "lost" else verbs
        getattr(life, draw(st.sampled_from(verbs)))()
    return life


def is_clean(life: Life) -> bool:
    return check_job(life.history(), budgets=PLENTY, has_object={SHA: SIZE}.get) == ()


@settings(max_examples=examples(32, 80), deadline=None)
@given(lives())
def test_every_legal_life_is_clean(life: Life):
    assert is_clean(life)


def _drop_event(life: Life, pick: Callable[[int], int]) -> bool:
    at = pick(len(life.events))
    # A checkpoint and the wish to cancel move nothing: that they are missing can't be seen, and nothing hangs on it.
    if life.events[at]["kind"] in ("job_checkpoint", "job_cancelling"):
        return False
    del life.events[at]
    return True


def _repeat_event(life: Life, pick: Callable[[int], int]) -> bool:
    at = pick(len(life.events))
    if life.events[at]["kind"] in ("job_checkpoint", "job_cancelling"):
        return False
    life.events.insert(at, dict(life.events[at]))
    return True


def _shift(life: Life, rows: list[dict[str, Any]], column: str, by: int, pick: Callable[[int], int]) -> bool:
    if not rows:
        return False
    row = rows[pick(len(rows))]
    if row[column] is None or row.get("kind") == "job_submitted":
        return False
    row[column] += by
    return True


def _drop(rows: list[dict[str, Any]], pick: Callable[[int], int]) -> bool:
    if rows:
        del rows[pick(len(rows))]
        return True
    return False


def _move(life: Life, pick: Callable[[int], int]) -> bool:
    others = [state for state in VERBS if state != life.state]
    life.job["state"] = others[pick(len(others))]
    return True


CORRUPTIONS: dict[str, Callable[[Life, Callable[[int], int]], bool]] = {
    "an event is dropped": _drop_event,
    "an event is repeated": _repeat_event,
    "an event has a higher epoch": lambda life, pick: _shift(life, life.events, "epoch", 1, pick),
    "an event has a lower epoch": lambda life, pick: _shift(life, life.events, "epoch", -1, pick),
    "an attempt has another epoch": lambda life, pick: _shift(life, life.attempts, "epoch", 1, pick),
    "an attempt has another generation": lambda life, pick: _shift(life, life.attempts, "generation", 1, pick),
    "a lease has another epoch": lambda life, pick: _shift(life, life.leases, "epoch", -1, pick),
    "the job's epoch is behind": lambda life, pick: _shift(life, [life.job], "epoch", -1, pick),
    "the job's epoch is ahead": lambda life, pick: _shift(life, [life.job], "epoch", 1, pick),
    "an attempt is dropped": lambda life, pick: _drop(life.attempts, pick),
    "a lease is dropped": lambda life, pick: _drop(life.leases, pick),
    "a bundle is dropped": lambda life, pick: life.state == "completed" and _drop(life.bundles, lambda n: n - 1),
    "the job is in another state": _move,
}


@settings(max_examples=examples(80, 200), deadline=None)
@given(lives(), st.sampled_from(sorted(CORRUPTIONS)), st.data())
def test_every_corruption_is_found(life: Life, name: str, data: st.DataObject):
    before = copy.deepcopy(life.history())

    def pick(count: int) -> int:
        return data.draw(st.integers(0, count - 1))

    if CORRUPTIONS[name](life, pick):
        assert not is_clean(life), (name, before)
