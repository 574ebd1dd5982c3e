"""What a keeper decides about its leases, without a process, a network or a clock."""

from __future__ import annotations

import pytest

from stoker.core.leases import FleetTimes, Partition
from stoker.host.identity import mine
from stoker.protocol.lease_messages import LeaseInstructionKind
from stoker.worker.assignment import AttemptEnd
from stoker.worker.state_machine import HURRY_S
from stoker.worker.worker_state import (
    AttemptEnded,
    AttemptNotStarted,
    AttemptPhase,
    AttemptStarted,
    AttemptStopped,
    CheckpointSent,
    ExitWorker,
    FinalReportAccepted,
    FinalReportKind,
    Forget,
    LeaseLost,
    Renew,
    ReportStart,
    SendResult,
    StartAttempt,
    StartRefusal,
    StopAttempt,
    WithdrawClaim,
    WorkerShutdownMode,
    WorkerStopRequested,
)
from tests.unit.worker.worker_on_paper import COMPLETED, FAILED, STOPPED, Told, grant, of_leases, order, running


def test_a_grant_is_begun_and_its_start_is_told_once_a_child_has_it():
    told = Told().join()
    one = grant()
    assert told.give(one) == [StartAttempt(token=one.token())]
    assert told.take(AttemptStarted(now_s=told.now_s, token=one.token(), child=mine(), run="r")) == [
        ReportStart(token=one.token())
    ]
    assert told.lease(one.token()).phase is AttemptPhase.RUNNING


def test_what_was_brought_for_a_job_is_told_at_once_and_not_with_the_next_heartbeat():
    told = Told().join()
    told.answer()
    one = grant()
    told.give(one)
    began = AttemptStarted(now_s=told.now_s, token=one.token(), child=mine(), run="r", has_brought=True)
    assert told.take(began) == [ReportStart(token=one.token()), Renew()]
    assert Renew() not in told.wait(1.0), "the one that tells it is on its way"
    told.answer()
    assert Renew() not in told.wait(1.0), "it is told once"


def test_what_was_brought_while_a_heartbeat_is_on_its_way_is_told_by_another():
    told = Told().join()
    assert told.keeping.is_renewing
    one = grant()
    told.give(one)
    refused = AttemptNotStarted(
        now_s=told.now_s, token=one.token(), refusal=StartRefusal(reason="data", message="gone"), has_brought=True
    )
    assert Renew() not in told.take(refused)
    assert Renew() in told.answer()


def test_a_grant_that_comes_twice_is_begun_once():
    told = Told(slots=2).join()
    one = grant()
    told.give(one)
    assert StartAttempt(token=one.token()) not in told.give(one)


def test_a_lease_counts_from_before_the_question_was_sent():
    told = Told().join()
    one = grant()
    told.give(one, asked_s=told.now_s - 50.0)
    assert told.lease(one.token()).ends_s == told.now_s + 40.0
    assert told.keeping.is_renewing, "after a long question it is renewed at once"


def test_a_grant_that_came_too_late_is_given_back_and_not_begun():
    told = Told().join()
    one = grant()
    (sent,) = [one for one in told.give(one, asked_s=told.now_s - 90.0) if not isinstance(one, Renew)]
    assert isinstance(sent, SendResult)
    assert sent.last.word is FinalReportKind.RELEASE


def test_what_is_declined_is_said_with_its_reason():
    told = Told().join()
    one = grant()
    told.give(one)
    (sent,) = told.take(
        AttemptNotStarted(now_s=told.now_s, token=one.token(), refusal=StartRefusal(reason="disk", message="full"))
    )
    assert (sent.last.word, sent.last.reason, sent.last.why) == (FinalReportKind.DECLINE, "disk", "full")


@pytest.mark.parametrize(
    ("end", "word"),
    [(COMPLETED, FinalReportKind.FINISH), (FAILED, FinalReportKind.FAIL), (STOPPED, FinalReportKind.FAIL)],
    ids=lambda one: str(one)[:20],
)
def test_an_end_is_sent_with_its_word(end: AttemptEnd, word: FinalReportKind):
    told, token = running()
    (sent,) = told.take(AttemptEnded(now_s=told.now_s, token=token, end=end))
    assert (sent.last.word, sent.end) == (word, end)
    assert told.lease(token).phase is AttemptPhase.SENDING


def test_one_heartbeat_is_sent_at_a_time_and_the_next_a_beat_after_it_was_sent():
    told, _ = running()
    told.answer()
    assert told.wait(29.0) == []
    assert told.wait(1.0) == [Renew()]
    assert told.wait(30.0) == []
    told.answer(asked_s=told.now_s - 10.0)
    assert told.wait(19.0) == []
    assert told.wait(1.0) == [Renew()]


def test_an_answer_renews_from_before_it_was_asked():
    told, token = running()
    told.now_s += 60.0
    told.answer(asked_s=told.now_s - 20.0)
    assert told.lease(token).ends_s == told.now_s + 70.0


def test_a_lease_that_is_over_by_our_own_clock_stops_its_job_and_nothing_is_said():
    told, token = running()
    stop = [one for one in told.wait(90.0) if isinstance(one, StopAttempt)]
    assert stop == [StopAttempt(token=token, grace_s=10.0)]
    assert of_leases(told.take(AttemptStopped(now_s=told.now_s, token=token, end=COMPLETED))) == [Forget(token=token)]
    assert "dropped" in told.told


def test_a_renewal_that_comes_after_the_lease_was_over_does_not_bring_it_back():
    told, token = running()
    told.wait(90.0)
    told.answer()
    assert told.lease(token).is_over
    assert of_leases(told.take(AttemptStopped(now_s=told.now_s, token=token, end=COMPLETED))) == [Forget(token=token)]


def test_a_result_whose_lease_ends_while_it_is_sent_is_dropped():
    told, token = running()
    told.take(AttemptEnded(now_s=told.now_s, token=token, end=COMPLETED))
    assert Forget(token=token) in told.wait(90.0)


def test_who_was_suspended_past_its_lease_notices_before_it_does_anything_else():
    told, token = running()
    told.now_s += 3600.0
    done = told.take(AttemptEnded(now_s=told.now_s, token=token, end=COMPLETED))
    # Somebody else may have its job for long: it is asked to end, and ended.
    assert of_leases(done) == [StopAttempt(token=token, grace_s=10.0), StopAttempt(token=token, grace_s=0.0)]
    assert of_leases(told.take(AttemptStopped(now_s=told.now_s, token=token, end=COMPLETED))) == [Forget(token=token)]


def test_a_job_that_keeps_on_goes_on_and_offers_its_result_once_it_is_renewed():
    told, token = running(on_partition=Partition.KEEP)
    assert not [one for one in told.wait(90.0) if isinstance(one, StopAttempt)]
    assert told.lease(token).is_over
    told.take(AttemptEnded(now_s=told.now_s, token=token, end=COMPLETED))
    assert told.lease(token).last.word is FinalReportKind.FINISH
    told.answer()
    assert not told.lease(token).is_over


def test_a_job_that_keeps_on_and_is_still_prepared_when_its_lease_ends_is_let_go():
    told, one = Told().join(), grant(on_partition=Partition.KEEP)
    told.give(one)
    assert StopAttempt(token=one.token(), grace_s=10.0) in told.wait(90.0)


def test_a_job_that_keeps_on_is_dropped_if_somebody_else_has_it_now():
    told, token = running(on_partition=Partition.KEEP)
    told.wait(90.0)
    told.take(AttemptEnded(now_s=told.now_s, token=token, end=COMPLETED))
    assert Forget(token=token) in told.answer(order(token, LeaseInstructionKind.DROP))


def test_a_cancelled_job_is_stopped_and_confirmed_only_when_nothing_of_it_runs():
    told, token = running()
    assert told.answer(order(token, LeaseInstructionKind.CANCEL, "asked by ann")) == [
        StopAttempt(token=token, grace_s=10.0)
    ]
    assert told.answer(order(token, LeaseInstructionKind.CANCEL, "asked by ann")) == []
    assert told.take(AttemptEnded(now_s=told.now_s, token=token, end=STOPPED)) == []
    (sent,) = told.take(AttemptStopped(now_s=told.now_s, token=token, end=STOPPED))
    assert (sent.last.word, sent.last.why) == (FinalReportKind.CANCELLED, "asked by ann")


def test_cancel_beats_a_result_that_is_still_being_sent():
    told, token = running()
    told.take(AttemptEnded(now_s=told.now_s, token=token, end=COMPLETED))
    (sent,) = told.answer(order(token, LeaseInstructionKind.CANCEL))
    assert sent.last.word is FinalReportKind.CANCELLED


def test_a_last_word_that_may_have_been_heard_is_said_again_and_not_dropped():
    told, token = running()
    told.take(AttemptEnded(now_s=told.now_s, token=token, end=COMPLETED))
    assert told.answer(order(token, LeaseInstructionKind.DROP)) == []
    assert Forget(token=token) in told.wait(90.0)


def test_a_release_does_not_stop_a_result_that_is_being_sent():
    told, token = running()
    told.take(AttemptEnded(now_s=told.now_s, token=token, end=COMPLETED))
    assert told.answer(order(token, LeaseInstructionKind.RELEASE)) == []


def test_a_drop_beats_a_cancel_and_a_cancel_beats_a_release():
    told, token = running()
    told.answer(order(token, LeaseInstructionKind.RELEASE))
    told.answer(order(token, LeaseInstructionKind.CANCEL))
    assert told.lease(token).last.word is FinalReportKind.CANCELLED
    told.answer(order(token, LeaseInstructionKind.DROP))
    told.answer(order(token, LeaseInstructionKind.RELEASE))
    assert of_leases(told.take(AttemptStopped(now_s=told.now_s, token=token, end=STOPPED))) == [Forget(token=token)]


def test_what_completed_while_it_was_to_be_released_is_finished():
    told, token = running()
    told.answer(order(token, LeaseInstructionKind.RELEASE))
    (sent,) = told.take(AttemptStopped(now_s=told.now_s, token=token, end=COMPLETED))
    assert sent.last.word is FinalReportKind.FINISH


def test_a_stale_lease_stops_its_job_and_drops_its_result():
    told, token = running()
    stale = LeaseLost(now_s=told.now_s, token=token, message="the epoch is 7")
    assert told.take(stale) == [StopAttempt(token=token, grace_s=10.0)]
    assert of_leases(told.take(AttemptStopped(now_s=told.now_s, token=token, end=COMPLETED))) == [Forget(token=token)]


def test_a_stale_finish_drops_the_result():
    told, token = running()
    told.take(AttemptEnded(now_s=told.now_s, token=token, end=COMPLETED))
    assert Forget(token=token) in told.take(LeaseLost(now_s=told.now_s, token=token, message="late"))
    assert told.told == ["dropped"]


def test_who_is_stopped_before_it_began_is_given_back_when_nothing_of_it_runs():
    told = Told().join()
    one = grant()
    told.give(one)
    told.take(WorkerStopRequested(now_s=told.now_s, exit_code=143, why="asked"))
    assert told.take(AttemptStarted(now_s=told.now_s, token=one.token(), child=mine(), run="r")) == []
    (sent,) = told.take(AttemptStopped(now_s=told.now_s, token=one.token(), end=STOPPED))
    assert sent.last.word is FinalReportKind.RELEASE
    assert told.keeping.leaving is WorkerShutdownMode.SOFTLY


def test_what_does_not_stop_when_its_lease_ends_is_ended_before_the_coordinator_gives_it_away():
    told, token = running()
    ends_s = told.lease(token).ends_s
    assert StopAttempt(token=token, grace_s=10.0) in told.wait(ends_s - told.now_s)
    assert StopAttempt(token=token, grace_s=0.0) not in told.wait(1.5)
    assert StopAttempt(token=token, grace_s=0.0) in told.wait(1.0)
    assert StopAttempt(token=token, grace_s=0.0) not in told.wait(1.0)
    assert FleetTimes().grace_s > HURRY_S


def test_a_worker_whose_time_is_over_gives_everything_back_and_ends_with_zero():
    told = Told(ends_s=1050.0).join()
    token = told.run(grant())
    told.wait(49.5)
    assert told.keeping.leaving is WorkerShutdownMode.NO
    assert StopAttempt(token=token, grace_s=10.0) in told.wait(0.5)
    assert (told.keeping.leaving, told.keeping.exit_code) == (WorkerShutdownMode.SOFTLY, 0)
    assert "leaving" in told.told
    assert StopAttempt(token=token, grace_s=0.0) not in told.wait(0.5), "its time is over once"
    (sent,) = told.take(AttemptStopped(now_s=told.now_s, token=token, end=STOPPED))
    assert sent.last.word is FinalReportKind.RELEASE


def test_a_worker_drains_before_its_end_and_longer_if_checkpoints_take_longer():
    told = Told(ends_s=1400.0, drain_s=20.0, most_drain_s=100.0, slots=2).join()
    assert told.keeping.stops_s == 1380.0
    one, two = told.run(grant("a")), told.run(grant("b"))
    for took_s, stops_s in ((0.0, 1380.0), (5.0, 1400.0 - 10.0 - 5.0 - 30.0), (500.0, 1300.0)):
        told.take(CheckpointSent(now_s=told.now_s, token=one, took_s=took_s))
        assert told.keeping.stops_s == stops_s
    told.take(CheckpointSent(now_s=told.now_s, token=one, took_s=15.0))
    told.take(CheckpointSent(now_s=told.now_s, token=two, took_s=25.0))
    assert told.keeping.stops_s == 1400.0 - 10.0 - 40.0 - 30.0, "both are sent over one line"
    told.wait(1319.0 - told.now_s)
    assert "leaving" not in told.told
    told.wait(1.5)
    assert "leaving" in told.told


def test_a_worker_whose_time_is_over_takes_no_grant_that_comes_late():
    told = Told(ends_s=1050.0).join()
    told.wait(50.0)
    one = grant()
    assert StartAttempt(token=one.token()) not in told.give(one)


def test_a_worker_that_is_told_to_end_after_its_time_ends_at_once():
    told = Told(ends_s=1010.0).join()
    told.run(grant())
    told.wait(10.0)
    assert "leaving" in told.told
    told.take(WorkerStopRequested(now_s=told.now_s, exit_code=143, why="asked"))
    assert told.keeping.leaving is WorkerShutdownMode.NOW


def test_a_worker_leaves_after_its_idle_time_without_a_lease():
    told = Told(idle_s=60.0).join()
    told.wait(59.0)
    assert told.keeping.leaving is WorkerShutdownMode.NO
    assert told.wait(1.0) == [WithdrawClaim()]
    assert (told.keeping.leaving, told.keeping.exit_code) == (WorkerShutdownMode.SOFTLY, 0)
    (line,) = [one for one in told.lines if one.kind == "leaving"]
    assert line.fields["why"] == "idle for 1m00s"
    assert told.give() == [ExitWorker(code=0)]


def test_a_grant_that_meets_an_idle_worker_on_its_way_out_goes_back_unstarted():
    told = Told(idle_s=60.0).join()
    told.wait(60.0)
    one = grant()
    (sent,) = told.give(one)
    assert isinstance(sent, SendResult)
    assert (sent.last.word, sent.last.why) == (FinalReportKind.RELEASE, "the worker is leaving")
    assert told.take(FinalReportAccepted(now_s=told.now_s, token=one.token()))[-1] == ExitWorker(code=0)


def test_idle_time_counts_from_the_end_of_the_last_lease():
    told = Told(idle_s=60.0).join()
    told.wait(50.0)
    token = told.run(grant())
    told.answer()
    told.wait(25.0)
    told.answer()
    told.wait(25.0)
    told.take(AttemptEnded(now_s=told.now_s, token=token, end=COMPLETED))
    told.answer()
    told.wait(20.0)
    assert told.keeping.leaving == "no", "its result is still being sent"
    told.take(FinalReportAccepted(now_s=told.now_s, token=token))
    told.wait(59.0)
    assert told.keeping.leaving == "no"
    told.wait(1.0)
    assert told.keeping.leaving == "softly"


def test_an_idle_worker_leaves_also_if_no_coordinator_has_ever_answered():
    told = Told(idle_s=60.0)
    told.wait(0.0)
    assert told.wait(60.0) == [ExitWorker(code=0)]


def test_idle_time_counts_anew_once_a_coordinator_answers():
    told = Told(idle_s=60.0)
    told.wait(0.0)
    told.wait(50.0)
    told.join()
    told.wait(59.0)
    assert told.keeping.leaving is WorkerShutdownMode.NO


def test_a_worker_without_an_idle_time_stays():
    told = Told().join()
    told.wait(1e6)
    assert told.keeping.leaving is WorkerShutdownMode.NO


def test_a_worker_of_its_pools_minimum_stays_while_the_coordinator_says_so():
    told = Told(idle_s=60.0).join()
    for _ in range(10):
        told.wait(30.0)
        told.answer(stays=True)
    assert not told.is_leaving()
    told.answer(stays=False)
    assert told.is_leaving()


def test_a_worker_of_its_pools_minimum_leaves_if_no_coordinator_answers():
    told = Told(idle_s=60.0).join()
    told.answer(stays=True)
    told.wait(89.0)
    assert not told.is_leaving()
    told.wait(1.0)
    assert told.is_leaving()


def test_of_idle_time_and_end_the_first_counts():
    told = Told(idle_s=60.0, ends_s=1030.0).join()
    told.wait(30.0)
    assert [one.fields["why"] for one in told.lines if one.kind == "leaving"] == ["time limit reached"]
