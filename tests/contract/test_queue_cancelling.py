"""Cancel, requeue, and what people may ask of jobs that are there."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.coordinator.queue.commands import CancelJobs, RequeueJobs, Write
from stoker.core.errors import InvalidTransition, NotFound
from stoker.protocol.lease_messages import CancelConfirmed, Fail, LeaseInstructionKind, WriteResponse
from tests.contract.queue_driving import Driven, order
from tests.contract.queue_words import (
    WORDS,
    finish,
    kinds,
    lose,
    renewed,
    say,
    started,
    state,
)


def test_a_requeued_job_has_its_budgets_back(fleet: Driven) -> None:
    grant = started(fleet)
    say(fleet, grant, Fail, cause="user")
    fleet.requeue(grant.job)
    (again,) = fleet.claim()
    assert (again.attempt, again.epoch) == (2, 3)
    fleet.start(again)
    assert say(fleet, again, Fail, cause="lost").state == "pending"


def test_a_pending_job_is_cancelled_at_once(fleet: Driven) -> None:
    (job,) = fleet.submit(order("one")).jobs
    fleet.cancel(job.id)
    assert state(fleet) == "cancelled"
    fleet.join("m1")
    assert fleet.claim() == ()


def test_a_running_job_is_told_to_stop_and_is_cancelled_once_its_worker_confirms(fleet: Driven) -> None:
    grant = started(fleet)
    fleet.cancel(grant.job)
    assert fleet.reader.story("one").job.is_cancelling
    assert [one.do for one in renewed(fleet, grant).orders] == [LeaseInstructionKind.CANCEL]
    assert say(fleet, grant, CancelConfirmed).state == "cancelled"
    assert kinds(fleet)[-2:] == ["job_cancelling", "job_cancelled"]


def test_a_cancel_survives_a_restart(fleet: Driven) -> None:
    grant = started(fleet)
    fleet.cancel(grant.job)
    fleet.close()
    fleet.open()
    assert [one.do for one in renewed(fleet, grant).orders] == [LeaseInstructionKind.CANCEL]
    say(fleet, grant, CancelConfirmed)


def test_a_cancel_that_nobody_confirms_is_settled_when_the_lease_ends(fleet: Driven) -> None:
    grant = started(fleet)
    fleet.cancel(grant.job)
    lose(fleet, grant)
    job = fleet.reader.story("one").job
    assert job.state == "cancelled"
    assert "unconfirmed" in job.why


@pytest.mark.parametrize("word", ["release", "fail", "decline"])
def test_cancel_beats_every_way_back_into_the_line(fleet: Driven, word: str) -> None:
    fleet.submit(order("one", attempts=9))
    fleet.join("m1")
    (grant,) = fleet.claim()
    if word != "decline":
        fleet.start(grant)
    fleet.cancel(grant.job)
    answer = fleet.ask(Write(job=grant.job, said=WORDS[word](grant)))
    assert isinstance(answer, WriteResponse)
    assert answer.state == "cancelled"


def test_a_finish_that_came_first_stays(fleet: Driven) -> None:
    grant = started(fleet)
    fleet.ask(finish(grant))
    answer: Any = fleet.ask(CancelJobs(jobs=(grant.job,)))
    assert answer.changed == ()
    assert answer.notes == ("one is completed already",)
    assert state(fleet) == "completed"


def test_nobody_confirms_a_cancel_that_nobody_asked_for(fleet: Driven) -> None:
    with pytest.raises(InvalidTransition):
        say(fleet, started(fleet), CancelConfirmed)


def test_a_live_job_is_not_requeued_and_a_pending_one_is_left_alone(fleet: Driven) -> None:
    grant = started(fleet)
    (other,) = fleet.submit(order("two")).jobs
    with pytest.raises(InvalidTransition, match="running on m1"):
        fleet.ask(RequeueJobs(jobs=(other.id, grant.job)))
    answer: Any = fleet.ask(RequeueJobs(jobs=(other.id,)))
    assert answer.notes == ("two is pending already",)


def test_an_operators_command_about_an_unknown_job_changes_nothing(fleet: Driven) -> None:
    (job,) = fleet.submit(order("one")).jobs
    with pytest.raises(NotFound):
        fleet.cancel(job.id, "0" * 64)
    assert state(fleet) == "pending"


def test_who_cancelled_a_running_job_is_told_to_its_worker_and_stays_known(fleet: Driven) -> None:
    grant = started(fleet)
    fleet.ask(CancelJobs(jobs=(grant.job,), by="ann@desk"))
    assert [order.why for order in renewed(fleet, grant).orders] == ["cancelled by ann@desk"]
    fleet.close()
    fleet.open()
    assert [order.why for order in renewed(fleet, grant).orders] == ["cancelled by ann@desk"]
    say(fleet, grant, CancelConfirmed)
    assert fleet.reader.story(grant.job).job.why == "cancelled by ann@desk"
