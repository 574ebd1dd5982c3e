"""What the queue promises, on SQLite and on PostgreSQL: who is granted what, and in which order."""

from __future__ import annotations

import pytest

from stoker.coordinator.queue.commands import SetPriority
from stoker.core.errors import Conflict, NotFound
from stoker.protocol.lease_messages import Claim, ClaimResponse, WriteResponse
from tests.contract.queue_driving import Driven, order
from tests.contract.queue_words import (
    TREE,
    finish,
    kinds,
    started,
)


def test_a_job_goes_from_submission_to_completion_and_every_move_is_one_event(fleet: Driven) -> None:
    grant = started(fleet)
    assert fleet.ask(finish(grant)) == WriteResponse(job=grant.job, state="completed")
    assert kinds(fleet) == ["job_submitted", "job_granted", "job_started", "job_finished"]
    assert fleet.reader.counts()["completed"] == 1
    assert [bundle["tree"] for bundle in fleet.reader.bundles()] == [TREE]


def test_higher_priority_goes_first_and_then_the_oldest(fleet: Driven) -> None:
    fleet.submit(order("old"), order("urgent", priority=5), order("young"))
    fleet.join("m1")
    assert [grant.spec.name for grant in fleet.claim(most=3)] == ["urgent", "old", "young"]


def test_priority_is_strict_however_long_a_job_waits(fleet: Driven) -> None:
    fleet.submit(order("patient", priority=-5))
    fleet.clock.advance(25 * 3600.0)
    fleet.submit(order("urgent", priority=5))
    fleet.join("m1")
    assert [grant.spec.name for grant in fleet.claim(most=2)] == ["urgent", "patient"]


def test_another_priority_moves_a_job_in_the_line(fleet: Driven) -> None:
    first, second = fleet.submit(order("first"), order("second")).jobs
    fleet.ask(SetPriority(jobs=(second.id,), priority=3))
    fleet.join("m1")
    assert [grant.spec.name for grant in fleet.claim(most=2)] == ["second", "first"]
    assert first.state == "pending"


def test_a_repeated_claim_gets_the_same_grants(fleet: Driven) -> None:
    fleet.submit(*(order("sweep", number) for number in range(1, 4)))
    fleet.join("m1")
    asked = Claim(request_id="request-x", worker="m1", incarnation="incarnation-m1", most=2)
    first, again = fleet.ask(asked), fleet.ask(asked)
    assert isinstance(first, ClaimResponse)
    assert len(first.grants) == 2
    assert again == first
    assert fleet.reader.counts()["claimed"] == 2


def test_a_repeated_claim_gets_the_same_grants_from_a_coordinator_that_was_started_anew(fleet: Driven) -> None:
    fleet.submit(order("one"), order("two"))
    fleet.join("m1")
    asked = Claim(request_id="request-x", worker="m1", incarnation="incarnation-m1")
    first = fleet.ask(asked)
    fleet.close()
    fleet.open()
    assert fleet.ask(asked) == first


def test_a_request_id_belongs_to_one_worker(fleet: Driven) -> None:
    fleet.submit(order("one"))
    fleet.join("m1", "m2")
    fleet.ask(Claim(request_id="request-x", worker="m1", incarnation="incarnation-m1"))
    with pytest.raises(Conflict):
        fleet.ask(Claim(request_id="request-x", worker="m2", incarnation="incarnation-m2"))


def test_whoever_never_said_hello_gets_nothing(fleet: Driven) -> None:
    with pytest.raises(NotFound):
        fleet.claim("stranger")


def test_whoever_finishes_without_having_said_start_has_started(fleet: Driven) -> None:
    fleet.submit(order("one"))
    fleet.join("m1")
    (grant,) = fleet.claim()
    fleet.ask(finish(grant))
    moves = [(event.get("from"), event.get("to")) for event in fleet.reader.events(ref="one")]
    assert moves == [("", "pending"), ("pending", "claimed"), ("claimed", "running"), ("running", "completed")]
