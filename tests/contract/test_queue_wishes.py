"""What is wished of who holds a lease reaches who listens for it, and costs nobody else anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoker.coordinator.queue.commands import CloseMachine, MachineCloseMode
from stoker.protocol.lease_messages import Claim, ClaimResponse, Grant, LeaseInstructionKind
from tests.contract.queue_driving import Driven, order
from tests.contract.queue_words import started, sweep


def listened(fleet: Driven, number: int = 0, **more: Any) -> ClaimResponse:
    answer = fleet.ask(
        Claim(request_id=f"listening-{number}", worker="m1", incarnation="incarnation-m1", **{"most": 0, **more})
    )
    assert isinstance(answer, ClaimResponse)
    return answer


def called(fleet: Driven) -> list[Sequence[str]]:
    """Return a list that grows with every call of machines."""
    found: list[Sequence[str]] = []
    fleet.queue.on_wish(found.append)
    return found


def running(fleet: Driven) -> Grant:
    grant = started(fleet)
    assert listened(fleet).orders == ()
    return grant


def test_who_only_listens_is_given_no_work(fleet: Driven) -> None:
    fleet.join("m1")
    fleet.submit(order("one"))
    answer = listened(fleet)
    assert (answer.grants, answer.orders, answer.waiting) == ((), (), {})
    assert len(fleet.claim("m1")) == 1


def test_a_cancel_calls_its_machine_and_is_told_to_who_listens(fleet: Driven) -> None:
    grant, machines = running(fleet), called(fleet)
    fleet.cancel(grant.job)
    assert machines == [("m1",)]
    (told,) = listened(fleet, 1).orders
    assert (told.job, told.epoch, told.do) == (grant.job, grant.epoch, LeaseInstructionKind.CANCEL)
    assert listened(fleet, 1).orders == (told,), "an answer that was lost is given again"


def test_an_order_is_not_told_again_to_who_obeys_it_already(fleet: Driven) -> None:
    grant = running(fleet)
    fleet.cancel(grant.job)
    assert listened(fleet, 1, stopping=(grant.job,)).orders == ()


def test_an_order_goes_before_more_work(fleet: Driven) -> None:
    grant = running(fleet)
    fleet.submit(order("two"))
    fleet.cancel(grant.job)
    answer = listened(fleet, 1, most=1)
    assert (len(answer.orders), answer.grants) == (1, ())
    assert len(listened(fleet, 2, most=1, stopping=(grant.job,)).grants) == 1


def test_a_pause_asks_for_everything_back_and_a_drain_for_nothing(fleet: Driven) -> None:
    running(fleet)
    fleet.ask(CloseMachine(machine="m1", how=MachineCloseMode.DRAIN))
    assert listened(fleet, 1).orders == ()
    machines = called(fleet)
    fleet.ask(CloseMachine(machine="m1", how=MachineCloseMode.PAUSE, why="a game"))
    assert machines == [("m1",)]
    assert [(one.do, one.why) for one in listened(fleet, 2).orders] == [
        (LeaseInstructionKind.RELEASE, "paused: a game")
    ]


def test_nobody_is_called_for_a_job_that_nobody_has(fleet: Driven) -> None:
    (job,) = fleet.submit(order("one")).jobs
    machines = called(fleet)
    fleet.cancel(job.id)
    assert machines == []


def test_a_claim_that_gets_nothing_hears_when_a_job_that_was_put_off_may_be_had(fleet: Driven) -> None:
    grant = started(fleet, attempts=2)
    fleet.fail(grant)
    answer = listened(fleet, 1, most=1)
    assert answer.grants == ()
    assert answer.next_s is not None
    assert answer.next_s > 0
    fleet.clock.advance(answer.next_s + 1.0)
    sweep(fleet)
    assert len(listened(fleet, 2, most=1).grants) == 1
