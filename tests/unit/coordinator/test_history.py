"""The history checker finds every kind of corruption that it promises to find, and nothing where nothing is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stoker.coordinator.database.history import Violation, check_job
from stoker.core.events import FleetKinds as Kinds
from stoker.core.frozen import changed
from stoker.core.leases import Budgets
from tests.unit.coordinator.histories import SHA, SIZE, Life


def found(life: Life, **asked: Any) -> set[str]:
    return {one.rule for one in _all(life, **asked)}


def _all(life: Life, **asked: Any) -> tuple[Violation, ...]:
    return check_job(life.history(), **({"has_object": {SHA: SIZE}.get} | asked))


def lived(*verbs: str, attempts: int = 1) -> Life:
    life = Life(attempts=attempts)
    for verb in verbs:
        getattr(life, verb)()
    return life


STORIES = {
    "waits": (),
    "held": ("grant",),
    "runs": ("grant", "start", "checkpoint"),
    "completes": ("grant", "start", "finish"),
    "fails": ("grant", "start", "fail"),
    "fails before it starts": ("grant", "fail"),
    "lost, then completes": ("grant", "start", "lose", "grant", "start", "finish"),
    "released and declined": ("grant", "decline", "grant", "start", "release", "grant", "decline"),
    "cancelled while it waits": ("cancel",),
    "cancelled while it runs": ("grant", "start", "cancel"),
    "requeued after each end": ("grant", "start", "finish", "requeue", "grant", "fail", "requeue", "cancel", "requeue"),
    "comes back after a partition": ("grant", "start", "lose", "come_back"),
    "goes on from a backup": ("grant", "start", "forgive", "grant", "start", "finish"),
}


@pytest.mark.parametrize("verbs", STORIES.values(), ids=STORIES.keys())
def test_what_the_queue_may_do_is_no_violation(verbs: tuple[str, ...]):
    assert _all(lived(*verbs)) == ()


def test_a_job_may_fail_as_often_as_its_order_says():
    assert found(lived("grant", "start", "retry", "grant", "start", "fail", attempts=2)) == set()


def _second_lease(life: Life) -> None:
    life.leases.append({**life.leases[0], "epoch": 7})


def _no_lease(life: Life) -> None:
    life.leases.clear()


def _lease_of_old_epoch(life: Life) -> None:
    life.leases[0]["epoch"] -= 1


def _granted_while_held(life: Life) -> None:
    event = {**life.events[-1], "id": 90, "kind": Kinds.JOB_GRANTED, "from_state": "pending", "to_state": "claimed"}
    life.events.append({**event, "epoch": life.job["epoch"] + 1, "attempt": life.job["attempt"] + 1})
    life.job |= {"epoch": life.job["epoch"] + 1, "attempt": life.job["attempt"] + 1}


def _overlap(life: Life) -> None:
    life.attempts[0]["ended_s"] = life.attempts[1]["granted_s"] + 1


def _first_never_ended(life: Life) -> None:
    life.attempts[0] |= {"ended_s": None, "ending": ""}


def _same_epoch_twice(life: Life) -> None:
    life.attempts[1]["epoch"] = life.attempts[0]["epoch"]
    for event in life.events:
        if event["attempt"] == 2:
            event["epoch"] = life.attempts[0]["epoch"]
    life.job["epoch"] = life.attempts[0]["epoch"]


def _row_forgot_epochs(life: Life) -> None:
    life.job["epoch"] = 1


def _old_generation(life: Life) -> None:
    life.events[-1]["generation"] -= 1


def _stale_finish(life: Life) -> None:
    life.events[-1]["epoch"] -= 1


def _finish_of_an_old_attempt(life: Life) -> None:
    life.events[-1]["attempt"] -= 1


def _finish_of_an_old_world(life: Life) -> None:
    life.events[-1]["generation"] += 1


def _finish_without_a_lease(life: Life) -> None:
    life.events[-1]["from_state"] = "pending"
    life.events[-2] |= {"kind": Kinds.JOB_RELEASED, "from_state": "claimed", "to_state": "pending"}


def _left_a_terminal_state(life: Life) -> None:
    life.tell(Kinds.JOB_RELEASED, "completed", "pending")
    life.job |= {"state": "pending", "is_ready": True}


def _stuck(life: Life) -> None:
    life.job["is_ready"] = False


def _waits_for_nobody(life: Life) -> None:
    life.job |= {"is_ready": False, "blockers": 2}


def _in_line_though_done(life: Life) -> None:
    life.job["is_ready"] = True


def _lost_an_event(life: Life) -> None:
    del life.events[2]


def _told_twice(life: Life) -> None:
    life.events.insert(3, {**life.events[2], "id": 91})


def _end_untold(life: Life) -> None:
    del life.events[-1]


def _row_moved_alone(life: Life) -> None:
    life.job["state"] = "failed"


def _another_ending(life: Life) -> None:
    life.attempts[-1]["ending"] = "released"


def _no_submission(life: Life) -> None:
    del life.events[0]


def _no_events(life: Life) -> None:
    life.events.clear()


def _wrong_kind(life: Life) -> None:
    life.events[-1]["kind"] = Kinds.JOB_DECLINED


def _an_attempt_is_missing(life: Life) -> None:
    del life.attempts[0]


def _time_went_back(life: Life) -> None:
    life.events[-1]["at_s"] = 1.0


def _result_not_in_index(life: Life) -> None:
    life.bundles.clear()


def _another_result(life: Life) -> None:
    life.bundles[-1]["tree"] = "c" * 64


DONE = ("grant", "start", "finish")
AGAIN = ("grant", "start", "lose", "grant", "start", "finish")
PLANTED: dict[str, tuple[tuple[str, ...], Callable[[Life], None], str]] = {
    "two leases": (("grant", "start"), _second_lease, "one_lease"),
    "live without a lease": (("grant", "start"), _no_lease, "one_lease"),
    "an old lease": (("grant", "start"), _lease_of_old_epoch, "no_stale_write"),
    "granted while held": (("grant", "start"), _granted_while_held, "one_lease"),
    "attempts overlap": (AGAIN, _overlap, "one_lease"),
    "an attempt never ended": (AGAIN, _first_never_ended, "one_lease"),
    "an epoch given twice": (AGAIN, _same_epoch_twice, "epochs_grow"),
    "the row forgot epochs": (AGAIN, _row_forgot_epochs, "epochs_grow"),
    "a generation returned": (DONE, _old_generation, "epochs_grow"),
    "finish under an old epoch": (DONE, _stale_finish, "no_stale_write"),
    "finish of an old attempt": (AGAIN, _finish_of_an_old_attempt, "no_stale_write"),
    "finish of an old generation": (DONE, _finish_of_an_old_world, "no_stale_write"),
    "finish without a lease": (DONE, _finish_without_a_lease, "no_stale_write"),
    "terminal left without requeue": (DONE, _left_a_terminal_state, "terminal_is_final"),
    "waits for nothing": ((), _stuck, "waits_with_reason"),
    "waits for nobody": ((), _waits_for_nobody, "waits_with_reason"),
    "in the line though it has ended": (DONE, _in_line_though_done, "waits_with_reason"),
    "an event is missing": (DONE, _lost_an_event, "events_replay"),
    "a move told twice": (DONE, _told_twice, "one_event_per_move"),
    "an end nobody tells": (DONE, _end_untold, "one_event_per_move"),
    "the row moved alone": (DONE, _row_moved_alone, "events_replay"),
    "an attempt says otherwise": (DONE, _another_ending, "events_replay"),
    "no submission": (DONE, _no_submission, "events_replay"),
    "no events at all": (DONE, _no_events, "events_replay"),
    "a kind that can't make the move": (DONE, _wrong_kind, "one_event_per_move"),
    "an attempt's row is missing": (AGAIN, _an_attempt_is_missing, "one_event_per_move"),
    "time went back": (DONE, _time_went_back, "time_goes_on"),
    "a result that no index has": (DONE, _result_not_in_index, "bundle_has_bytes"),
    "an index with another result": (DONE, _another_result, "bundle_has_bytes"),
}


@pytest.mark.parametrize(("verbs", "plant", "rule"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_corruption_is_found_and_shown(verbs: tuple[str, ...], plant: Callable[[Life], None], rule: str):
    life = lived(*verbs)
    assert found(life) == set()
    plant(life)
    shown = [one for one in _all(life) if one.rule == rule]
    assert shown, found(life)
    assert all(one.job == life.job["id"] and one.message and one.rows for one in shown)


def test_bytes_that_are_gone_or_cut_are_found_until_they_were_pruned():
    life = lived(*DONE)
    assert found(life, has_object=lambda _: None) == {"bundle_has_bytes"}
    assert found(life, has_object=lambda _: SIZE - 1) == {"bundle_has_bytes"}
    life.bundles[-1]["pruned_s"] = 2000.0
    assert found(life, has_object=lambda _: None) == set()
    assert found(lived("grant", "start", "checkpoint"), has_object=lambda _: None) == {"bundle_has_bytes"}


def test_nobody_looks_for_bytes_unless_told_where():
    assert found(lived(*DONE), has_object=None) == set()


@pytest.mark.parametrize(
    "verbs",
    [
        ("grant", "start", "retry", "grant"),
        ("grant", "lose", "grant", "lose", "grant", "lose", "grant"),
    ],
    ids=["one failure more", "one loss more"],
)
def test_a_grant_beyond_the_budget_is_found(verbs: tuple[str, ...]):
    assert found(lived(*verbs)) == {"within_budgets"}
    more = Budgets(user=2, lost=4)
    assert found(lived(*verbs), budgets=more) == set()


def test_a_grant_after_two_workers_went_down_is_found():
    life = Life()
    for machine in ("m1", "m2", "m3"):
        life.grant(machine)
        life.start()
        if machine != "m3":
            life.lose()
    assert found(life) == {"within_budgets"}


def test_a_requeue_gives_the_budget_back():
    assert found(lived("grant", "start", "fail", "requeue", "grant", "start", "fail")) == set()


def test_preemption_and_restores_cost_nothing():
    life = lived("grant", "start")
    life.retry("preempted")
    life.grant()
    life.forgive()
    life.grant()
    assert found(life) == set()


def test_blockers_are_held_against_the_jobs_it_comes_after():
    life = Life()
    life.job |= {"is_ready": False, "blockers": 1}
    assert check_job(changed(life.history(), before=("completed", "failed"))) == ()
    assert {one.rule for one in check_job(changed(life.history(), before=("completed",)))} == {"waits_with_reason"}


def forgetting(life: Life, *, left: int, told_from_s: float = 1e9) -> set[str]:
    """Check a job of which only so many of its newest events are left."""
    events = tuple(life.events[len(life.events) - left :])
    life.job["submitted_s"] = 1000.0
    history = changed(life.history(), events=events, told_from_s=told_from_s)
    return {one.rule for one in check_job(history, has_object={SHA: SIZE}.get)}


def test_a_story_that_was_dropped_whole_is_not_missed():
    assert forgetting(lived(*DONE), left=0) == set()
    assert forgetting(lived("grant", "start", "fail", "requeue", "grant", "start"), left=3) == set()


def test_a_story_that_was_not_dropped_is_missed():
    assert forgetting(lived(*DONE), left=0, told_from_s=0.0) >= {"events_replay"}, "nothing was ever dropped"
    assert forgetting(lived(*DONE), left=0, told_from_s=999.0) >= {"events_replay"}, "it is younger"
    assert forgetting(lived("grant", "start"), left=0) >= {"events_replay"}, "it has not ended"
    assert forgetting(lived(*DONE), left=2), "only a part is there"
    assert forgetting(lived("grant", "start", "fail", "requeue", "grant", "start"), left=2), "an end is missing"


def test_a_violation_is_told_without_the_whole_order():
    life = lived(*DONE)
    life.job["state"] = "failed"
    told = _all(life)[0].to_dict()
    assert told["rule"] == "events_replay"
    assert told["job"] == life.job["id"]
    assert "spec" not in told["rows"][0]
