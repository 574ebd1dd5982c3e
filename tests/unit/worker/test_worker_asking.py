"""When a keeper asks for work, listens, takes none, and ends, without a process, a network or a clock."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.core.errors import Drained, NoCoordinator, NotFound, VersionSkew
from stoker.core.frozen import changed
from stoker.core.leases import AttemptToken
from stoker.protocol.lease_messages import ClaimResponse, LeaseInstruction, LeaseInstructionKind, RenewalResponse
from stoker.worker.worker_state import (
    AttemptEnded,
    AttemptNotStarted,
    AttemptPhase,
    AttemptStopped,
    ClaimAnswered,
    ClaimJobs,
    ExitWorker,
    FinalReportAccepted,
    FinalReportKind,
    Forget,
    MachineClosed,
    Renew,
    RenewalAnswered,
    RequestUnanswered,
    SendFinalReport,
    SendHello,
    StartAttempt,
    StartRefusal,
    StopAttempt,
    WithdrawClaim,
    WorkerRejected,
    WorkerStopRequested,
)
from tests.unit.worker.worker_on_paper import COMPLETED, FAILED, STOPPED, Told, grant, order, running


def test_nothing_is_asked_before_the_coordinator_knows_us():
    told = Told()
    assert told.wait(100.0) == []
    told.join()
    assert told.done == [Renew(), ClaimJobs(most=1)]


def test_work_is_asked_for_up_to_the_free_slots():
    told = Told(slots=3).join()
    assert ClaimJobs(most=3) in told.done
    assert ClaimJobs(most=2) in told.give(grant())


def test_the_coordinator_may_say_how_many_slots_there_are():
    assert ClaimJobs(most=4) in Told().join(slots=4).done


def test_beside_a_job_that_shares_its_device_more_is_asked_for_than_there_are_slots():
    told = Told(beside=8).join()
    assert ClaimJobs(most=8) in told.give(grant(devices=("GPU-1",), is_shared=True))
    assert ClaimJobs(most=8) in told.give(grant("b", devices=("GPU-1",), is_shared=True))


def test_nothing_is_asked_for_beside_a_job_that_has_its_device_alone():
    told = Told(beside=8).join()
    assert not [one for one in told.give(grant(devices=("GPU-1",))) if isinstance(one, ClaimJobs)]


def test_slots_that_the_coordinator_counted_are_not_exceeded():
    told = Told(beside=8).join(slots=2)
    assert ClaimJobs(most=1) in told.give(grant(devices=("GPU-1",), is_shared=True))


def test_a_full_worker_asks_for_nothing_and_listens_for_orders():
    told = Told().join()
    told.give(grant())
    assert told.listens
    assert not [one for one in told.wait(50.0) if isinstance(one, ClaimJobs)]
    told.give()
    assert not told.listens
    told.wait(1.0)
    assert told.listens


def test_who_has_nothing_and_wants_nothing_does_not_listen():
    told = Told().join()
    told.take(MachineClosed(now_s=told.now_s, by="disk", why="full"))
    told.give()
    told.wait(10.0)
    assert not told.listens


@pytest.mark.parametrize("do", [LeaseInstructionKind.CANCEL, LeaseInstructionKind.RELEASE], ids=str)
def test_an_order_comes_with_the_answer_to_an_open_question(do: LeaseInstructionKind):
    told, token = running()
    assert told.give(answer={"orders": (order(token, do, "asked by ann"),)}) == [StopAttempt(token=token, grace_s=10.0)]
    assert told.lease(token).last.why == "asked by ann"
    told.wait(1.0)
    assert told.listens
    assert told.give(answer={"orders": (order(token, do),)}) == []


def test_an_order_for_an_earlier_lease_is_not_for_this_one():
    told, token = running(epoch=5)
    assert (
        told.give(answer={"orders": (LeaseInstruction(job=token.job, epoch=4, do=LeaseInstructionKind.CANCEL),)}) == []
    )


def test_a_settled_lease_is_forgotten_and_its_slot_asked_for_again():
    told, token = running()
    told.take(AttemptEnded(now_s=told.now_s, token=token, end=COMPLETED))
    told.keeping = changed(told.keeping, ask_at_s=told.now_s + 100.0)
    assert told.keeping.is_listening
    assert told.take(FinalReportAccepted(now_s=told.now_s, token=token)) == [Forget(token=token), ClaimJobs(most=1)]
    assert told.wait(0.0) == [], "it is asked for once"
    told.give(grant("b"))
    assert told.keeping.is_listening
    assert not told.listens, "one that listens is open still"


def test_after_a_decline_the_same_is_not_asked_for_at_once():
    told = Told().join()
    one = grant()
    told.give(one)
    told.take(
        AttemptNotStarted(now_s=told.now_s, token=one.token(), refusal=StartRefusal(reason="disk", message="full"))
    )
    assert told.take(FinalReportAccepted(now_s=told.now_s, token=one.token())) == [Forget(token=one.token())]
    assert told.wait(0.9) == []
    assert ClaimJobs(most=1) in told.wait(0.1)


def test_an_answer_that_was_asked_for_in_time_renews_even_if_it_comes_late():
    told, token = running()
    asked_s = told.now_s + 80.0
    told.now_s += 100.0
    told.answer(asked_s=asked_s)
    assert told.lease(token).phase is AttemptPhase.RUNNING
    assert told.lease(token).ends_s == asked_s + 90.0


def test_silence_is_told_once_and_asked_again_later_each_time_but_in_time_for_the_lease():
    told, token = running()
    pauses = []
    for count in range(12):
        error = NoCoordinator("nobody answers")
        told.take(RequestUnanswered(now_s=told.now_s, error=error, was_claim=False, jitter=1.0))
        assert (told.told == ["away"]) is (count == 0)
        pauses.append(told.keeping.renew_at_s - told.now_s)
    assert pauses[:3] == [0.25, 0.5, 1.0]
    assert max(pauses) == 90.0 / 4
    told.answer()
    assert told.told == ["back"]
    assert token in told.keeping.leases


def test_a_question_that_nobody_answers_brings_the_next_heartbeat_forward():
    told = Told().join()
    told.answer()
    assert told.keeping.renew_at_s == told.now_s + 30.0
    told.take(RequestUnanswered(now_s=told.now_s, error=NoCoordinator("no"), was_claim=True, jitter=1.0))
    assert told.keeping.renew_at_s == told.keeping.ask_at_s == told.now_s + 0.25


def test_a_coordinator_that_wants_to_know_what_is_held_hears_at_once():
    told = Told().join()
    answer = RenewalResponse(lease_s=90, heartbeat_s=30, generation=1, server_s=0, wants_holdings=True)
    told.take(RenewalAnswered(now_s=told.now_s, asked_s=told.now_s, tokens=(), answer=answer))
    assert told.keeping.renew_at_s == told.now_s


def test_jitter_spreads_who_comes_back():
    told, _ = running()
    told.take(RequestUnanswered(now_s=told.now_s, error=NoCoordinator("no"), was_claim=True, jitter=0.0))
    assert told.keeping.ask_at_s == told.now_s + 0.125


def test_a_coordinator_that_forgot_us_is_greeted_again():
    told, _ = running()
    done = told.take(RequestUnanswered(now_s=told.now_s, error=NotFound("who?"), was_claim=False, jitter=0.5))
    assert done == [SendHello()]
    assert told.wait(60.0) == []
    assert Renew() in told.join().done


def test_another_version_ends_the_worker_with_its_code_once_nothing_runs():
    told, token = running()
    error = VersionSkew("it speaks 9")
    assert told.take(WorkerRejected(now_s=told.now_s, error=error)) == [StopAttempt(token=token, grace_s=10.0)]
    assert told.take(AttemptStopped(now_s=told.now_s, token=token, end=STOPPED)) == [
        Forget(token=token),
        ExitWorker(code=35),
    ]


def test_the_first_signal_gives_everything_back_and_the_worker_ends_when_that_was_heard():
    told, token = running()
    leave = WorkerStopRequested(now_s=told.now_s, exit_code=143, why="asked")
    assert told.take(leave) == [StopAttempt(token=token, grace_s=10.0)]
    (sent,) = told.take(AttemptStopped(now_s=told.now_s, token=token, end=STOPPED))
    assert sent.last.word is FinalReportKind.RELEASE
    assert told.take(FinalReportAccepted(now_s=told.now_s, token=token)) == [Forget(token=token), ExitWorker(code=143)]


def left_now() -> tuple[Told, AttemptToken]:
    """Return a worker that was told twice to end, and whose job has stopped."""
    told, token = running()
    leave = WorkerStopRequested(now_s=told.now_s, exit_code=143, why="asked")
    told.take(leave)
    assert told.take(leave) == [StopAttempt(token=token, grace_s=0.0)]
    (said,) = told.take(AttemptStopped(now_s=told.now_s, token=token, end=STOPPED))
    assert isinstance(said, SendFinalReport)
    assert said.last.word is FinalReportKind.RELEASE
    return told, token


def test_the_second_signal_ends_everything_now_and_the_coordinator_may_hear_it():
    told, token = left_now()
    assert told.take(FinalReportAccepted(now_s=told.now_s, token=token)) == [Forget(token=token), ExitWorker(code=143)]


def test_who_is_told_twice_waits_a_moment_and_no_longer_for_the_coordinator():
    told, token = left_now()
    assert told.wait(0.9) == []
    assert told.wait(0.2) == [Forget(token=token), ExitWorker(code=143)]
    assert told.told == ["dropped"]


def test_a_result_on_its_way_is_given_up_by_the_second_signal_and_its_job_given_back():
    told, token = running()
    told.take(AttemptEnded(now_s=told.now_s, token=token, end=COMPLETED))
    leave = WorkerStopRequested(now_s=told.now_s, exit_code=143, why="asked")
    assert told.take(leave) == []
    (said,) = told.take(leave)
    assert isinstance(said, SendFinalReport)
    assert said.last.word is FinalReportKind.RELEASE


def test_who_leaves_renews_what_it_still_holds_and_asks_for_nothing():
    told, _ = running()
    told.answer()
    told.take(WorkerStopRequested(now_s=told.now_s, exit_code=143, why="asked"))
    assert told.wait(30.0) == [Renew()]


def test_an_open_question_is_called_back_by_who_leaves_and_what_it_brought_is_given_back():
    told = Told().join()
    assert told.take(WorkerStopRequested(now_s=told.now_s, exit_code=143, why="asked")) == [WithdrawClaim()]
    (sent,) = told.give(grant())
    assert sent.last.word is FinalReportKind.RELEASE
    assert told.take(FinalReportAccepted(now_s=told.now_s, token=grant().token())) == [
        Forget(token=grant().token()),
        ExitWorker(code=143),
    ]


def test_a_pause_gives_back_what_runs_and_takes_no_more_until_it_is_over():
    told, token = running()
    told.answer()
    done = told.take(MachineClosed(now_s=told.now_s, by="owner", why="paused", gives_back=True))
    assert done == [StopAttempt(token=token, grace_s=10.0), Renew()]
    told.take(AttemptStopped(now_s=told.now_s, token=token, end=STOPPED))
    told.answer()
    assert not [
        one for one in told.take(FinalReportAccepted(now_s=told.now_s, token=token)) if isinstance(one, ClaimJobs)
    ]
    assert ClaimJobs(most=1) in told.take(MachineClosed(now_s=told.now_s, by="owner", why=""))


def test_a_full_disk_takes_no_more_work_and_lets_what_runs_go_on():
    told, _ = running()
    told.answer()
    assert told.take(MachineClosed(now_s=told.now_s, by="disk", why="full")) == [Renew()]


def test_a_closed_machine_says_so_with_its_next_heartbeat_and_calls_its_question_back():
    told = Told().join()
    told.answer()
    assert told.take(MachineClosed(now_s=told.now_s, by="disk", why="full")) == [WithdrawClaim(), Renew()]


def test_the_same_reason_twice_changes_nothing():
    told = Told().join()
    told.take(MachineClosed(now_s=told.now_s, by="disk", why="full"))
    assert told.take(MachineClosed(now_s=told.now_s, by="disk", why="full")) == []
    assert told.told == []


def test_a_drained_machine_goes_on_asking_so_that_it_hears_at_once_when_it_is_opened():
    told = Told().join(closed="drained by ann")
    assert told.done == [Renew(), ClaimJobs(most=1)]
    assert told.give(answer={"closed": "drained by ann"}) == []
    told.wait(1.0)
    one = grant()
    assert StartAttempt(token=one.token()) in told.give(one)
    assert told.told == ["open", "granted"]


def test_until_idle_ends_when_nothing_is_left():
    told = Told(until_idle=True).join()
    assert told.give() == [ExitWorker(code=0)]


def test_until_idle_stays_while_others_work_and_something_waits():
    told = Told(until_idle=True).join()
    assert told.give(others_work=True) == []
    assert ClaimJobs(most=1) in told.wait(1.0)


def test_until_idle_stays_while_a_job_was_put_off():
    told = Told(until_idle=True).join()
    assert told.give(answer={"next_s": 30.0}) == []
    assert ClaimJobs(most=1) in told.wait(1.0)
    assert told.give() == [ExitWorker(code=0)]


def test_until_idle_stays_while_a_job_of_its_own_runs():
    told = Told(slots=2, until_idle=True).join()
    token = told.run(grant())
    assert ExitWorker(code=0) not in told.give()
    told.take(AttemptEnded(now_s=told.now_s, token=token, end=COMPLETED))
    told.take(FinalReportAccepted(now_s=told.now_s, token=token))
    assert told.give() == [ExitWorker(code=0)]


def test_until_idle_on_a_closed_machine_ends_as_drained():
    told = Told(until_idle=True).join()
    told.answer()
    done = told.give(answer={"closed": "drained"})
    assert ExitWorker(code=Drained.exit_code) in [*done, *told.wait(1.0)]


def test_once_takes_one_job_and_ends_with_it():
    told = Told(slots=4, is_once=True).join()
    assert ClaimJobs(most=1) in told.done
    token = told.run(grant())
    assert not [one for one in told.wait(10.0) if isinstance(one, ClaimJobs)]
    told.take(AttemptEnded(now_s=told.now_s, token=token, end=FAILED))
    assert ExitWorker(code=0) in told.take(FinalReportAccepted(now_s=told.now_s, token=token))


def test_a_pause_that_the_owner_and_the_coordinator_tell_of_is_told_once():
    told = Told().join()
    told.answer(closed="paused: its owner needs it")
    assert told.told == ["closed"]
    told.take(MachineClosed(now_s=told.now_s, by="owner", why="paused by ann", gives_back=True))
    assert told.told == []
    told.take(MachineClosed(now_s=told.now_s, by="owner", why="", gives_back=True))
    assert told.told == []
    told.answer()
    assert told.told == ["open"]
    told.answer(closed="drained")
    told.take(MachineClosed(now_s=told.now_s, by="owner", why="paused by ann", gives_back=True))
    assert told.told == ["closed"], "another reason"


def test_a_coordinator_with_another_ca_is_told_once_more_to_who_thinks_that_it_is_away():
    told = Told().join()

    def unanswered(**data: Any) -> list[str]:
        error = NoCoordinator("can't be reached", hint="stoker join CODE@HOST --again", **data)
        told.take(RequestUnanswered(now_s=told.now_s, error=error, was_claim=False, jitter=0.0))
        return told.told

    assert unanswered() == ["away"]
    assert unanswered() == []
    assert unanswered(is_lasting=True) == ["away"]
    assert unanswered(is_lasting=True) == []
    told.answer()
    assert "back" in told.told
    assert unanswered() == ["away"]


def test_the_end_of_one_that_listens_leaves_the_claim_for_jobs_open():
    told, token = running()
    told.take(AttemptEnded(now_s=told.now_s, token=token, end=COMPLETED))
    told.take(FinalReportAccepted(now_s=told.now_s, token=token))
    assert told.keeping.asking == 1
    answer = ClaimResponse(generation=1)
    heard = ClaimAnswered(now_s=told.now_s, asked_s=told.now_s, answer=answer, was_listening=True)
    assert told.take(heard) == [], "the claim for jobs stays open"
    assert told.keeping.asking == 1
    assert not told.wait(10.0), "nothing runs that an order could be for"
    assert not told.listens


def test_one_that_listens_is_asked_again_without_touching_the_claim_for_jobs():
    told = Told().join()
    told.run(grant())
    lost = RequestUnanswered(
        now_s=told.now_s, error=NoCoordinator("no"), was_claim=True, jitter=1.0, was_listening=True
    )
    told.take(lost)
    assert not told.listens
    told.wait(2.0)
    assert told.listens
