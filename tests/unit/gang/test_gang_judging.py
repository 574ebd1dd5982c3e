"""The verdict on a gang as a pure property of what was seen."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.gang.gang_failures import (
    GangDeadlines,
    GangFailure,
    RankFailureMode,
    RankSnapshot,
    RanksPending,
    RanksReady,
    blame,
    judge,
)
from stoker.gang.mailbox import Phase, RankPage, RankState
from stoker.host.identity import ProcessExit

MS = 1_000_000
START_NS = 1_000_000 * MS
NOW_NS = START_NS + 1000 * MS
KILLED = ProcessExit(status=None, signal=signal.SIGKILL, max_rss_bytes=0, cpu_s=0.0)


def limits(deadline_ms: float | None = 120_000, collect_s: float = 0.05, **phases_s: float) -> GangDeadlines:
    return GangDeadlines(
        started_ns=START_NS,
        deadline_ns=None if deadline_ms is None else START_NS + round(deadline_ms * MS),
        phases_s={Phase[name]: limit for name, limit in phases_s.items()},
        collect_s=collect_s,
    )


def page(phase: Phase, at_ms: float = 0, **fields) -> RankPage:
    stamps = [0] * len(Phase)
    stamps[phase] = START_NS + round(at_ms * MS)
    return RankPage(state=RankState.STARTED, phase=phase, stamps_ns=tuple(stamps), **fields)


def pending(rank: int, phase: Phase = Phase.COMM, at_ms: float = 0) -> RankSnapshot:
    return RankSnapshot(rank=rank, device=f"device {rank}", page=page(phase, at_ms))


def ready(rank: int) -> RankSnapshot:
    return RankSnapshot(rank=rank, device=f"device {rank}", page=page(Phase.READY), is_done=True)


def raised(rank: int, at_ms: float, text: str = "no such column", phase: Phase = Phase.COMM) -> RankSnapshot:
    failed = RankPage(
        state=RankState.ERROR,
        phase=phase,
        failed_ns=START_NS + round(at_ms * MS),
        error_type="ValueError",
        error_text=text,
    )
    return RankSnapshot(rank=rank, device=f"device {rank}", page=failed)


def died(
    rank: int, at_ms: float, ended: ProcessExit | None = KILLED, phase: Phase = Phase.COMM, **more
) -> RankSnapshot:
    return RankSnapshot(
        rank=rank, device=f"device {rank}", page=page(phase), gone_ns=START_NS + round(at_ms * MS), exit=ended, **more
    )


def failed(*looks: RankSnapshot, now_ns: int = NOW_NS, **options) -> GangFailure:
    verdict = judge(looks, now_ns, limits(**options))
    assert isinstance(verdict, GangFailure)
    return verdict


def test_all_done_is_ready():
    assert judge([ready(0), ready(1)], NOW_NS, limits()) == RanksReady()


def test_as_long_as_one_is_pending_it_is_waited_until_the_deadline():
    assert judge([ready(0), pending(1)], NOW_NS, limits(deadline_ms=5000)) == RanksPending(
        until_ns=START_NS + 5000 * MS
    )
    assert judge([ready(0), pending(1)], NOW_NS, limits(deadline_ms=None)) == RanksPending(until_ns=None)


def test_the_earliest_by_the_ranks_own_time_is_the_cause_and_the_others_are_collateral():
    verdict = failed(raised(0, 30), raised(1, 10), ready(2), raised(3, 20), pending(4, Phase.STORE, at_ms=400))
    assert (verdict.cause.rank, verdict.cause.how, verdict.cause.phase) == (1, RankFailureMode.RAISED, Phase.COMM)
    assert (verdict.cause.type, verdict.cause.text, verdict.cause.after_s) == ("ValueError", "no such column", 0.01)
    assert [report.rank for report in verdict.collateral] == [3, 0]
    assert [(one.rank, one.phase, one.for_s) for one in verdict.pending] == [(4, Phase.STORE, 0.6)]
    assert verdict.ready == 1


def test_others_have_fifty_milliseconds_to_report_theirs():
    looks = [raised(0, 100), pending(1)]
    assert judge(looks, START_NS + 149 * MS, limits()) == RanksPending(until_ns=START_NS + 150 * MS)
    assert isinstance(judge(looks, START_NS + 150 * MS, limits()), GangFailure)


def test_nobody_is_waited_for_when_nobody_else_can_report():
    assert isinstance(judge([raised(0, 100), ready(1), raised(2, 100)], START_NS + 101 * MS, limits()), GangFailure)


def test_a_report_that_only_tells_of_a_lost_peer_is_never_the_cause_if_there_is_another():
    echo = "[pair.cc:553] Connection closed by peer [127.0.0.1]:8078"
    verdict = failed(raised(0, 10, echo), raised(1, 12), raised(2, 9, "Broken pipe"))
    assert verdict.cause.rank == 1
    assert [report.rank for report in verdict.collateral] == [2, 0]


def test_while_there_are_only_echoes_the_one_who_is_gone_has_two_seconds():
    looks = [raised(0, 100, "Connection closed by peer"), pending(1)]
    assert judge(looks, START_NS + 2099 * MS, limits()) == RanksPending(until_ns=START_NS + 2100 * MS)
    assert failed(*looks, now_ns=START_NS + 2100 * MS).cause.rank == 0
    assert failed(looks[0], died(1, 1500), now_ns=START_NS + 1501 * MS).cause.rank == 1


def test_a_death_is_seen_late_and_still_comes_before_its_echo():
    verdict = failed(raised(0, 10, "Connection reset by peer"), died(1, 14))
    assert (verdict.cause.rank, verdict.cause.how, verdict.cause.exit) == (1, RankFailureMode.ENDED, KILLED)


def test_an_error_of_its_own_comes_before_a_later_death():
    assert failed(raised(0, 10), died(1, 14)).cause.rank == 0


def test_how_a_process_ended_is_waited_for_a_moment():
    looks = [died(0, 100, ended=None), pending(1)]
    verdict = judge(looks, START_NS + 101 * MS, limits())
    assert isinstance(verdict, RanksPending)
    assert verdict.until_ns == START_NS + 103 * MS
    assert failed(*looks, now_ns=START_NS + 2100 * MS).cause.exit is None


def test_a_rank_that_died_over_its_report_is_told_so():
    assert failed(died(0, 1, is_torn=True)).cause.text == "in the middle of a report"


def test_an_end_after_what_was_waited_for_is_no_failure():
    assert judge([died(0, 1, is_done=True), ready(1)], NOW_NS, limits()) == RanksReady()


def test_when_the_time_is_over_the_one_that_got_the_least_far_is_named():
    verdict = failed(
        pending(0, Phase.COMM, 10), pending(1, Phase.COMM, 20), pending(2, Phase.STORE, 30), ready(3), deadline_ms=1000
    )
    assert (verdict.cause.rank, verdict.cause.how, verdict.cause.phase) == (2, RankFailureMode.SILENT, Phase.STORE)
    assert verdict.cause.after_s == 1.0
    assert verdict.ready == 1
    assert [one.rank for one in verdict.pending] == [0, 1]


def test_of_those_in_one_phase_the_one_that_is_there_longest_is_named():
    assert failed(pending(0, at_ms=20), pending(1, at_ms=10), deadline_ms=1000).cause.rank == 1


WAITS = 'Stack\n  File "/lib/torch/distributed/c10d.py", line 1 in barrier\n  File "train.py", line 2 in step\n'
WORKS = 'Stack\n  File "train.py", line 2 in step\n'


@pytest.mark.parametrize(
    ("where", "guilty"),
    [
        ({0: WAITS, 1: WORKS, 2: WAITS}, 1),
        ({0: WAITS, 1: WAITS}, 2),
        ({0: WAITS, 1: "", 2: WORKS}, 2),
        ({}, 0),
        ({0: WORKS, 1: WORKS, 2: WORKS}, 0),
        ({0: WAITS, 1: WAITS, 2: WAITS}, 0),
    ],
)
def test_of_silent_ranks_in_one_phase_the_one_that_waits_for_nobody_is_named(where, guilty):
    looks = [pending(0, at_ms=1), pending(1, at_ms=2), pending(2, at_ms=3), pending(3, Phase.WINDOW)]
    verdict = failed(*looks, deadline_ms=9)
    assert verdict.cause.rank == 0
    blamed = blame(verdict, where)
    assert blamed.cause.rank == guilty
    assert blamed.cause.device == f"device {guilty}"
    assert [one.rank for one in blamed.pending] == [rank for rank in range(4) if rank != guilty]


def test_a_limit_of_a_phase_holds_for_ranks_in_that_phase_only():
    looks = [pending(0, Phase.STORE, 100), pending(1, Phase.COMM, 0)]
    assert judge(looks, START_NS + 599 * MS, limits(STORE=0.5)) == RanksPending(until_ns=START_NS + 600 * MS)
    assert failed(*looks, now_ns=START_NS + 600 * MS, STORE=0.5).cause.rank == 0


def test_when_the_limit_of_joining_is_over_the_one_that_has_not_come_there_is_named():
    looks = [pending(0, Phase.COMM, 0), pending(1, Phase.DEVICE, 1), ready(2)]
    verdict = failed(*looks, now_ns=START_NS + 500 * MS, COMM=0.5)
    assert (verdict.cause.rank, verdict.cause.phase) == (1, Phase.DEVICE)
    assert [(one.rank, one.phase) for one in verdict.pending] == [(0, Phase.COMM)]


def test_one_that_is_late_in_a_phase_of_its_own_is_named_whoever_is_behind_it():
    looks = [pending(0, Phase.STORE, 0), pending(1, Phase.DEVICE, 1)]
    assert failed(*looks, now_ns=START_NS + 500 * MS, STORE=0.5).cause.rank == 0


@pytest.mark.parametrize("at_ms", [-500, 1e9, 1e12])
def test_a_phase_that_began_at_no_possible_time_is_limited_from_the_start(at_ms):
    assert failed(ready(0), pending(1, Phase.COMM, at_ms), COMM=0.9).cause.rank == 1


def test_of_a_silent_rank_it_is_told_that_its_page_is_none():
    looks = [RankSnapshot(rank=0, device="device 0", page=page(Phase.COMM), is_torn=True), ready(1)]
    assert failed(*looks, deadline_ms=900).cause.text == "what it wrote last is no page"


def test_a_failure_comes_before_the_end_of_the_time():
    assert (
        failed(pending(0), raised(1, 999), deadline_ms=1000, now_ns=START_NS + 2000 * MS).cause.how
        is RankFailureMode.RAISED
    )


@pytest.mark.parametrize("failed_ns", [0, 2**64 - 1])
def test_a_time_that_cannot_be_is_brought_to_one_that_can(failed_ns):
    nonsense = RankSnapshot(rank=0, device="device 0", page=RankPage(state=RankState.ERROR, failed_ns=failed_ns))
    report = failed(nonsense, now_ns=NOW_NS, collect_s=0.0).cause
    assert START_NS <= report.at_ns <= NOW_NS


@given(
    st.lists(
        st.one_of(
            st.builds(lambda at: ("raised", at), st.integers(0, 900)),
            st.builds(lambda at: ("echo", at), st.integers(0, 900)),
            st.builds(lambda at: ("died", at), st.integers(0, 900)),
            st.just(("ready", 0)),
            st.just(("pending", 0)),
        ),
        min_size=1,
        max_size=9,
    ),
    st.randoms(use_true_random=False),
)
def test_every_rank_is_told_once_and_the_order_of_looking_does_not_matter(kinds, chance):
    make: dict[str, Callable[[int, int], RankSnapshot]] = {
        "raised": raised,
        "echo": lambda rank, at: raised(rank, at, "Connection closed by peer"),
        "died": died,
        "ready": lambda rank, at: ready(rank),
        "pending": lambda rank, at: pending(rank),
    }
    looks = [make[kind](rank, at) for rank, (kind, at) in enumerate(kinds)]
    now_ns = START_NS + 3000 * MS
    verdict = judge(looks, now_ns, limits())
    shuffled = list(looks)
    chance.shuffle(shuffled)
    again = judge(shuffled, now_ns, limits())
    if not isinstance(verdict, GangFailure):
        assert verdict == again
        assert not {"raised", "echo", "died"} & {kind for kind, _ in kinds}
        return
    assert isinstance(again, GangFailure)
    assert (again.cause, again.collateral, again.ready) == (verdict.cause, verdict.collateral, verdict.ready)
    told = [verdict.cause.rank, *(r.rank for r in verdict.collateral), *(p.rank for p in verdict.pending)]
    assert len(told) == len(set(told)) == len(looks) - verdict.ready
    firsts = [(kind == "echo", at, rank) for rank, (kind, at) in enumerate(kinds) if kind not in {"ready", "pending"}]
    assert verdict.cause.rank == min(firsts)[2]
