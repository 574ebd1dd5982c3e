"""What a look at a backend means for the rows of a pool's allocations."""

from __future__ import annotations

import pytest

from stoker.core.frozen import changed
from stoker.core.pool import Allocation, AllocationCause, AllocationState
from stoker.launch.launchers import AllocationStatus
from stoker.launch.reconcile import JOIN_S, PLANNED_S, STRAY_S, LookMemory, Reconciliation, reconcile
from stoker.views.pool_lines import allocation_row, launch_event_line

NOW_S = 50_000.0
S = AllocationState
C = AllocationCause


def row(state: AllocationState, *, id: str = "aaaaaa", age_s: float = 100.0, **fields: object) -> Allocation:
    return Allocation(id=id, pool="p", state=state, planned_s=NOW_S - age_s, **fields)  # type: ignore[arg-type]


def seen(state: AllocationState, *, id: str = "aaaaaa", **fields: object) -> AllocationStatus:
    return AllocationStatus(id=id, backend_id=f"b-{id}", state=state, **fields)  # type: ignore[arg-type]


def looks(
    rows: list[Allocation],
    *statuses: list[AllocationStatus],
    cancelled: tuple[str, ...] = (),
    silent: tuple[str, ...] = ("aaaaaa",),
) -> Reconciliation:
    """Look several times, a minute apart; return what the last look means."""
    found = Reconciliation()
    for number, one in enumerate(statuses):
        at_s = NOW_S + 60.0 * number
        found = reconcile(rows, one, found.memory, now_s=at_s, cancelled=frozenset(cancelled), silent=frozenset(silent))
    return found


@pytest.mark.parametrize("state", [S.PLANNED, S.DOUBTFUL])
@pytest.mark.parametrize("there", [S.WAITING, S.STARTED])
def test_a_request_whose_answer_was_lost_is_adopted(state: AllocationState, there: AllocationState) -> None:
    (move,) = looks([row(state)], [seen(there, reason="Priority")]).moves
    assert (move.state, move.backend_id, move.reason) == (there, "b-aaaaaa", "Priority")


def test_a_request_that_two_looks_do_not_find_was_not_submitted() -> None:
    assert looks([row(S.DOUBTFUL)], []).moves == ()
    (move,) = looks([row(S.DOUBTFUL)], [], []).moves
    assert (move.state, move.cause) == (S.ENDED, C.NOT_SUBMITTED)


def test_a_planned_request_has_time_to_be_submitted() -> None:
    young = row(S.PLANNED, age_s=PLANNED_S - 70)
    assert looks([young], [], []).moves == ()
    assert len(looks([young], [], [], []).moves) == 1


def test_an_allocation_that_its_backend_no_longer_knows_is_over_and_was_preempted() -> None:
    for state in (S.SUBMITTED, S.WAITING, S.STARTED, S.SERVING):
        (move,) = looks([row(state)], [], []).moves
        assert (move.state, move.cause) == (S.ENDED, C.PREEMPTED)
    (move,) = looks([row(S.DRAINING)], [], []).moves
    assert move.cause is C.CANCELLED


@pytest.mark.parametrize("cause", [None, C.CANCELLED_THERE])
def test_a_worker_that_sends_heartbeats_is_not_lost_and_one_look_loses_nobody(cause: AllocationCause | None) -> None:
    lost = seen(S.ENDED, cause=cause, is_lost=True)
    for state in (S.SUBMITTED, S.WAITING, S.STARTED, S.SERVING, S.DRAINING):
        assert looks([row(state)], [lost]).moves == ()
        assert looks([row(state)], [lost], [], silent=()).moves == () or state is not S.SERVING
    serving = row(S.SERVING, serving_s=NOW_S - 5)
    assert looks([serving], *[[lost]] * 5, silent=()).moves == ()
    (move,) = looks([serving], [lost], [lost]).moves
    assert (move.state, move.cause) == (S.ENDED, cause or C.PREEMPTED), "its jobs are not charged"


def test_a_worker_that_serves_is_not_moved_back_to_started() -> None:
    serving = row(S.SERVING, backend_id="b-aaaaaa", ends_s=1.0)
    assert looks([serving], [seen(S.STARTED)]).moves == ()


def test_nothing_new_writes_nothing_and_a_new_reason_writes_the_row() -> None:
    waiting = row(S.WAITING, backend_id="b-aaaaaa", reason="Priority")
    assert looks([waiting], [seen(S.WAITING, reason="Priority")]).moves == ()
    (move,) = looks([waiting], [seen(S.WAITING, reason="Resources")]).moves
    assert (move.state, move.reason) == (S.WAITING, "Resources")


@pytest.mark.parametrize(
    ("known_s", "said_s", "stored"),
    [
        (None, 5000.0, (5000.0,)),
        (5000.0, 5059.0, ()),
        (5000.0, 5060.0, (5060.0,)),
        (5000.0, None, (None,)),
        (None, None, ()),
        (None, -1.0, ()),
    ],
)
def test_when_a_backend_expects_to_start_one_is_written_if_it_differs_by_a_minute(
    known_s: float | None, said_s: float | None, stored: tuple[float | None, ...]
) -> None:
    waiting = row(S.WAITING, backend_id="b-aaaaaa", reason="Priority", may_start_s=known_s)
    moves = looks([waiting], [seen(S.WAITING, reason="Priority", may_start_s=said_s)]).moves
    assert tuple(move.may_start_s for move in moves) == stored


@pytest.mark.parametrize("state", [S.STARTED, S.SERVING])
@pytest.mark.parametrize("cause", [C.CANCELLED_THERE, C.PREEMPTED])
def test_what_the_backend_is_ending_drains_and_its_cause_is_the_backends(
    state: AllocationState, cause: AllocationCause
) -> None:
    first = looks([row(state)], [seen(S.DRAINING, reason="COMPLETING")])
    (move,) = first.moves
    assert (move.state, move.cause, move.reason) == (S.DRAINING, None, "COMPLETING")
    draining = row(S.DRAINING, backend_id="b-aaaaaa", reason="COMPLETING")
    again = reconcile([draining], [seen(S.DRAINING, reason="COMPLETING")], first.memory, now_s=NOW_S)
    assert again.moves == ()
    (move,) = reconcile([draining], [seen(S.ENDED, cause=cause)], again.memory, now_s=NOW_S).moves
    assert (move.state, move.cause) == (S.ENDED, cause)


def test_what_we_drained_is_ours_also_while_the_backend_is_ending_it() -> None:
    found = looks([row(S.DRAINING)], [seen(S.DRAINING, reason="COMPLETING")], [seen(S.ENDED, cause=C.CANCELLED_THERE)])
    assert [move.cause for move in found.moves] == [C.CANCELLED]
    assert looks([], *[[seen(S.DRAINING)]] * 3).cancels == (), "a stray that ends needs no cancel"


@pytest.mark.parametrize(
    ("cancelled", "state", "cause"),
    [((), S.SERVING, C.CANCELLED_THERE), (("aaaaaa",), S.SERVING, C.CANCELLED), ((), S.DRAINING, C.CANCELLED)],
)
def test_a_cancellation_is_ours_or_not(
    cancelled: tuple[str, ...], state: AllocationState, cause: AllocationCause
) -> None:
    (move,) = looks([row(state)], [seen(S.ENDED, cause=C.CANCELLED_THERE)], cancelled=cancelled).moves
    assert (move.state, move.cause) == (S.ENDED, cause)


@pytest.mark.parametrize(("cancelled", "cause"), [((), C.CANCELLED_THERE), (("aaaaaa",), C.CANCELLED)])
def test_the_backend_tells_why_a_worker_said_goodbye(cancelled: tuple[str, ...], cause: AllocationCause) -> None:
    left = row(S.ENDED, cause=C.FINISHED)
    (move,) = looks([left], [seen(S.ENDED, cause=C.CANCELLED_THERE)], cancelled=cancelled).moves
    assert (move.state, move.cause) == (S.ENDED, cause)
    assert looks([left], [seen(S.ENDED, cause=C.FINISHED)]).moves == ()
    assert looks([changed(left, cause=cause)], [seen(S.ENDED, cause=C.CANCELLED_THERE)]).moves == ()


def test_a_waiting_request_that_is_gone_without_a_trace_was_cancelled_if_it_was_there_a_moment_ago() -> None:
    waiting = row(S.WAITING, backend_id="b-aaaaaa")
    lost = [seen(S.ENDED, is_lost=True)]
    (move,) = looks([waiting], [seen(S.WAITING)], lost, lost).moves
    assert move.cause is C.CANCELLED_THERE
    (move,) = looks([waiting], lost, lost).moves
    assert move.cause is C.PREEMPTED
    (move,) = looks([changed(waiting, state=S.DRAINING)], [seen(S.WAITING)], lost, lost).moves
    assert move.cause is C.CANCELLED, "by us"


@pytest.mark.parametrize("cause", [C.FAILED, C.FINISHED, C.OUT_OF_MEMORY])
def test_a_worker_that_exits_before_it_joins_never_joined_and_its_log_is_read(cause: AllocationCause) -> None:
    found = looks([row(S.STARTED)], [seen(S.ENDED, cause=cause)])
    assert ([move.cause for move in found.moves], found.unjoined) == ([C.NEVER_JOINED], ("aaaaaa",))
    (move,) = looks([row(S.SERVING, serving_s=NOW_S - 5)], [seen(S.ENDED, cause=cause)]).moves
    assert move.cause is cause


def test_what_a_backend_says_is_cut_and_its_odd_times_are_left_out() -> None:
    (move,) = looks([row(S.WAITING)], [seen(S.STARTED, reason="x" * 5000, ends_s=1e300)]).moves
    assert (len(move.reason or ""), move.ends_s) == (500, None)


def test_a_worker_that_does_not_join_in_time_ends_and_is_cancelled() -> None:
    late = row(S.STARTED, backend_id="b-aaaaaa", started_s=NOW_S - JOIN_S - 1, ends_s=1.0)
    found = looks([late], [seen(S.STARTED)])
    assert [(move.state, move.cause) for move in found.moves] == [(S.ENDED, C.NEVER_JOINED)]
    assert (found.cancels, found.unjoined) == (("b-aaaaaa",), ("aaaaaa",))
    fresh = changed(late, started_s=NOW_S - 10)
    assert looks([fresh], [seen(S.STARTED)]).moves == ()


def test_a_stray_is_cancelled_after_a_grace_period() -> None:
    stray = seen(S.WAITING, id="bbbbbb")
    assert looks([], [stray]).cancels == ()
    assert looks([], [stray], [stray]).cancels == ("b-bbbbbb",)
    assert looks([row(S.ENDED, id="bbbbbb")], [stray], [stray]).cancels == ("b-bbbbbb",), "its row has ended"
    assert looks([row(S.WAITING, id="bbbbbb")], [stray], [stray]).cancels == ()
    assert looks([], [seen(S.ENDED, id="bbbbbb")], [seen(S.ENDED, id="bbbbbb")]).cancels == ()


def test_a_stray_that_is_gone_for_a_look_is_new_again() -> None:
    stray = [seen(S.WAITING, id="bbbbbb")]
    assert looks([], stray, [], stray).cancels == ()
    assert reconcile([], stray, LookMemory(strays={"b-bbbbbb": NOW_S - STRAY_S}), now_s=NOW_S).cancels == ("b-bbbbbb",)


def test_an_end_is_told_in_words_and_our_own_has_no_exit_status() -> None:
    killed = seen(S.ENDED, cause=C.PREEMPTED, reason="FAILED NonZeroExitCode 143:0")
    (ours,) = looks([row(S.DRAINING)], [killed]).moves
    (theirs,) = looks([row(S.SERVING, serving_s=NOW_S)], [killed]).moves
    assert (ours.cause, ours.message) == (C.CANCELLED, "")
    assert (theirs.cause, theirs.message) == (C.PREEMPTED, "FAILED NonZeroExitCode 143:0")
    (corrected,) = looks([row(S.ENDED, cause=C.FINISHED)], [killed], cancelled=("aaaaaa",)).moves
    assert (corrected.cause, corrected.message) == (C.CANCELLED, "")
    for cause, words in ((C.CANCELLED_THERE, "cancelled at the backend"), (C.NEVER_JOINED, "never joined")):
        ended = row(S.ENDED, cause=cause, reason="143:0", ended_s=NOW_S)
        assert allocation_row(ended, NOW_S)[1] == f"ended: {words}"
        fields = {"pool": "p", "allocation": "aaaaaa", "cause": str(cause)}
        assert launch_event_line("allocation_ended", fields) == f"p-aaaaaa ended ({words})"
    assert allocation_row(row(S.ENDED, cause=C.CANCELLED, reason="143:0", ended_s=NOW_S), NOW_S)[-1] == ""


def test_a_backends_words_do_not_colour_a_terminal():
    fields = {"pool": "p", "why": "\x1b[31mno account", "hint": "ask \x1b]0;title\x07"}
    line = r"p problem: \x1b[31mno account (hint: ask \x1b]0;title\x07)"
    assert launch_event_line("launch_problem", fields) == line
