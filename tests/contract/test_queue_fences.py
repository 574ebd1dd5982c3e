"""Only the newest token of a job counts: stale words, repeats, and rows that somebody else changed."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.coordinator.queue.commands import Write
from stoker.coordinator.queue.queue_state import LATE_S
from stoker.core.errors import Conflict, StaleLease
from stoker.protocol.lease_messages import CheckpointBody, LeaseInstructionKind, PointCheckpoint, Release, WriteResponse
from tests.contract.queue_driving import Driven, order
from tests.contract.queue_words import (
    TREE,
    WORDS,
    behind_its_back,
    change,
    finish,
    hello_anew,
    kinds,
    lose,
    renewed,
    say,
    started,
    state,
    token,
)


@pytest.mark.parametrize("word", WORDS)
def test_a_stale_epoch_can_say_nothing_about_a_job(fleet: Driven, word: str) -> None:
    old = started(fleet)
    lose(fleet, old)
    fleet.join("m2")
    (new,) = fleet.claim("m2")
    fleet.start(new)
    with pytest.raises(StaleLease):
        fleet.ask(Write(job=old.job, said=WORDS[word](old)))
    assert not fleet.queue.is_current(old.token())
    assert fleet.queue.is_current(new.token())
    assert state(fleet) == "running"
    fleet.ask(finish(new))


def test_a_late_result_is_refused_even_before_anybody_else_has_the_job(fleet: Driven) -> None:
    grant = started(fleet)
    lose(fleet, grant)
    with pytest.raises(StaleLease):
        fleet.ask(finish(grant))
    assert state(fleet) == "pending"


def test_a_late_result_of_a_job_that_keeps_on_counts_while_nobody_else_has_it(fleet: Driven) -> None:
    grant = started(fleet, on_partition="keep")
    lose(fleet, grant)
    assert renewed(fleet, grant).orders == ()
    assert fleet.ask(finish(grant)) == WriteResponse(job=grant.job, state="completed")
    assert fleet.claim("m1") == ()


def test_a_late_result_of_a_job_that_keeps_on_is_stale_once_somebody_else_has_it(fleet: Driven) -> None:
    grant = started(fleet, on_partition="keep")
    lose(fleet, grant)
    fleet.join("m2")
    fleet.claim("m2")
    assert [one.do for one in renewed(fleet, grant).orders] == [LeaseInstructionKind.DROP]
    with pytest.raises(StaleLease):
        fleet.ask(finish(grant))


def test_a_machine_that_lost_a_lease_may_send_for_an_hour_after_it_is_heard_again(fleet: Driven) -> None:
    grant = started(fleet)
    lose(fleet, grant)
    fleet.clock.advance(10 * LATE_S)
    assert fleet.queue.may_send("m1")
    fleet.join("m1")
    fleet.clock.advance(LATE_S - 10)
    assert fleet.queue.may_send("m1")
    # What it says of a lease that is not kept for it makes it no longer.
    assert [one.do for one in renewed(fleet, grant).orders] == [LeaseInstructionKind.DROP]
    fleet.clock.advance(10)
    assert not fleet.queue.may_send("m1")
    fleet.claim("m1")
    assert fleet.queue.may_send("m1")


def test_a_machine_may_send_for_as_long_as_it_speaks_of_a_result_that_may_come_late(fleet: Driven) -> None:
    grant = started(fleet, on_partition="keep")
    lose(fleet, grant)
    fleet.join("m2")
    for _ in range(5):
        assert renewed(fleet, grant).orders == ()
        # Another machine that speaks of it gets nothing by that.
        renewed(fleet, grant, "m2")
        fleet.clock.advance(LATE_S / 2)
        assert fleet.queue.may_send("m1")
        assert not fleet.queue.may_send("m2")
    fleet.clock.advance(LATE_S)
    assert not fleet.queue.may_send("m1")


def test_after_a_start_of_the_coordinator_a_machine_may_send_for_an_hour_from_its_first_word(fleet: Driven) -> None:
    fleet.join("m1")
    assert not fleet.queue.may_send("m1")
    fleet.close()
    fleet.open()
    assert fleet.queue.may_send("m1")
    fleet.claim("m1")
    fleet.clock.advance(LATE_S)
    fleet.claim("m1")
    assert not fleet.queue.may_send("m1")


def test_finishing_twice_with_one_result_is_a_repeat_and_with_another_a_conflict(fleet: Driven) -> None:
    grant = started(fleet)
    fleet.ask(finish(grant))
    assert fleet.ask(finish(grant)) == WriteResponse(job=grant.job, state="completed", is_repeat=True)
    with pytest.raises(Conflict):
        fleet.ask(finish(grant, tree="c" * 64))
    assert fleet.reader.story("one").job.result == TREE
    assert kinds(fleet)[-1] == "job_changed"


@pytest.mark.parametrize("wrong", [{"archive_sha256": "d" * 64}, {"size_bytes": 11}], ids=["missing", "other_size"])
def test_a_result_whose_bytes_are_not_here_is_refused(fleet: Driven, wrong: dict[str, Any]) -> None:
    grant = started(fleet)
    with pytest.raises(Conflict):
        fleet.ask(finish(grant, **wrong))
    assert state(fleet) == "running"


@pytest.mark.parametrize("word", ["start", "release", "fail"])
def test_the_same_word_again_is_answered_again_and_changes_nothing(fleet: Driven, word: str) -> None:
    grant = started(fleet, attempts=2)
    said = Write(job=grant.job, said=WORDS[word](grant))
    fleet.ask(said)
    told = kinds(fleet)
    again = fleet.ask(said)
    assert isinstance(again, WriteResponse)
    assert again.is_repeat
    assert kinds(fleet) == told


def test_a_checkpoint_whose_bytes_are_not_here_is_refused(fleet: Driven) -> None:
    grant = started(fleet)
    body = CheckpointBody(scratch="c" * 64, tree=TREE, archive_sha256="d" * 64, size_bytes=10)
    with pytest.raises(Conflict):
        say(fleet, grant, PointCheckpoint, checkpoint=body)


def test_a_new_start_of_a_worker_ends_what_the_old_one_held(fleet: Driven) -> None:
    grant = started(fleet)
    fleet.ask(hello_anew())
    assert state(fleet) == "pending"
    with pytest.raises(StaleLease):
        fleet.ask(finish(grant))
    with pytest.raises(StaleLease):
        fleet.claim("m1")


def test_a_late_hello_of_the_old_start_does_not_take_over_again(fleet: Driven) -> None:
    started(fleet)
    fleet.ask(hello_anew())
    with pytest.raises(StaleLease):
        fleet.join("m1")


def test_a_row_that_somebody_else_changed_is_not_overwritten(fleet: Driven) -> None:
    grant = started(fleet)
    behind_its_back(fleet, "UPDATE jobs SET epoch = epoch + 1")
    behind_its_back(fleet, "UPDATE leases SET epoch = epoch + 1")
    behind_its_back(fleet, "UPDATE attempts SET epoch = epoch + 1")
    with pytest.raises(StaleLease):
        fleet.ask(finish(grant))
    assert state(fleet) == "running"
    behind_its_back(fleet, "UPDATE jobs SET epoch = epoch - 1")
    behind_its_back(fleet, "UPDATE leases SET epoch = epoch - 1")
    behind_its_back(fleet, "UPDATE attempts SET epoch = epoch - 1")


def test_a_job_that_somebody_else_granted_is_not_granted_again(fleet: Driven) -> None:
    fleet.submit(order("one"), order("two"))
    fleet.join("m1")
    # Read into memory by a claim that then finds nothing wrong.
    (first,) = fleet.claim()
    assert first.spec.name == "one"
    behind_its_back(fleet, "UPDATE jobs SET epoch = 7 WHERE name = 'two'")
    (second,) = fleet.claim()
    assert second.epoch == 8
    behind_its_back(fleet, "UPDATE jobs SET epoch = 1 WHERE name = 'two'")
    behind_its_back(fleet, "UPDATE leases SET epoch = 1")
    behind_its_back(fleet, "UPDATE attempts SET epoch = 1")
    behind_its_back(fleet, "UPDATE events SET epoch = 1 WHERE epoch = 8")


def test_leases_from_before_a_restore_are_over(fleet: Driven) -> None:
    grant = started(fleet)
    fleet.close()
    change(fleet.url, "UPDATE meta SET value = '2' WHERE key = 'generation'")
    fleet.open()
    assert not fleet.queue.is_current(grant.token())
    with pytest.raises(StaleLease):
        fleet.ask(finish(grant))
    (again,) = fleet.claim()
    assert again.generation == 2
    assert fleet.reader.story("one").counts.get("lost", 0) == 0


@pytest.mark.parametrize("part", ["attempt", "epoch", "generation"])
def test_every_part_of_a_token_counts(fleet: Driven, part: str) -> None:
    grant = started(fleet)
    with pytest.raises(StaleLease):
        fleet.ask(finish(grant, **{part: token(grant)[part] + 1}))
    assert state(fleet) == "running"


def test_a_job_that_somebody_else_cancelled_is_not_granted(fleet: Driven) -> None:
    fleet.submit(order("one"), order("two"))
    fleet.join("m1")
    fleet.claim()
    behind_its_back(fleet, "UPDATE jobs SET state = 'cancelled', is_ready = false WHERE name = 'two'")
    assert fleet.claim() == ()
    behind_its_back(fleet, "UPDATE jobs SET state = 'pending', is_ready = true WHERE name = 'two'")


def test_a_late_result_is_stale_if_somebody_else_had_the_job_and_gave_it_back(fleet: Driven) -> None:
    grant = started(fleet, on_partition="keep")
    lose(fleet, grant)
    fleet.join("m2")
    (other,) = fleet.claim("m2")
    say(fleet, other, Release)
    assert state(fleet) == "pending"
    with pytest.raises(StaleLease):
        fleet.ask(finish(grant))
