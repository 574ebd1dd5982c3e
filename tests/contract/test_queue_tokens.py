"""Every part of a token counts by itself, and so does every fence behind it: each is tried with all others whole."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from sqlalchemy import select

from stoker.coordinator.database.backup import back_up, restore
from stoker.coordinator.database.database import open_database, snapshot
from stoker.coordinator.database.tables import ATTEMPTS
from stoker.coordinator.queue.commands import RequeueJobs, Write
from stoker.core.errors import DatabaseTrouble, InvalidTransition, NotFound, StaleLease
from stoker.core.jsontext import loads
from stoker.core.leases import FleetTimes
from stoker.protocol.lease_messages import (
    Claim,
    Grant,
    LeaseInstructionKind,
    LeaseReport,
    Renewal,
    RenewalResponse,
    WriteResponse,
)
from tests.contract.queue_driving import Driven, order
from tests.contract.queue_words import (
    WORDS,
    behind_its_back,
    finish,
    hello_anew,
    lose,
    started,
    state,
    sweep,
    token,
)

PARTS = ("attempt", "epoch", "generation")


def other(grant: Grant, part: str) -> Grant:
    """Return a grant that is another in one part."""
    return grant.model_copy(update={part: getattr(grant, part) + 1})


@pytest.mark.parametrize("part", PARTS)
def test_a_word_whose_token_is_wrong_in_one_part_is_stale(fleet: Driven, part: str) -> None:
    grant = started(fleet)
    wrong = other(grant, part)
    for word in WORDS.values():
        with pytest.raises(StaleLease):
            fleet.ask(Write(job=grant.job, said=word(wrong)))
    assert not fleet.queue.is_current(wrong.token())
    assert fleet.queue.is_current(grant.token())
    assert state(fleet) == "running"


@pytest.mark.parametrize("part", PARTS)
def test_a_heartbeat_whose_token_is_wrong_in_one_part_is_told_to_drop_the_job_and_renews_nothing(
    fleet: Driven, part: str
) -> None:
    grant = started(fleet)
    fleet.clock.advance(100.0)
    report = LeaseReport(job=grant.job, **token(other(grant, part)))
    answer = fleet.ask(Renewal(worker="m1", incarnation="incarnation-m1", leases=(report,)))
    assert isinstance(answer, RenewalResponse)
    assert [one.do for one in answer.orders] == [LeaseInstructionKind.DROP]
    fleet.clock.advance(30.0)
    assert sweep(fleet).expired == (grant.job,)


@pytest.mark.parametrize("word", ["finish", "release", "fail"])
def test_a_repeat_of_a_word_whose_token_is_wrong_in_one_part_is_stale(fleet: Driven, word: str) -> None:
    grant = started(fleet)
    fleet.ask(Write(job=grant.job, said=WORDS[word](grant)))
    for part in PARTS:
        with pytest.raises(StaleLease):
            fleet.ask(Write(job=grant.job, said=WORDS[word](other(grant, part))))


def test_a_result_that_comes_back_under_a_token_that_is_wrong_in_one_part_is_stale(fleet: Driven) -> None:
    grant = started(fleet, on_partition="keep")
    lose(fleet, grant)
    for part in PARTS:
        with pytest.raises(StaleLease):
            fleet.ask(finish(other(grant, part)))
    assert state(fleet) == "pending"


def test_a_result_that_comes_back_says_which_code_made_it_like_any_other(fleet: Driven) -> None:
    grant = started(fleet, on_partition="keep")
    lose(fleet, grant)
    fleet.ask(finish(grant, code={"train.py": "ab"}))
    assert state(fleet) == "completed"
    with snapshot(fleet.reader.database) as connection:
        facts = connection.execute(select(ATTEMPTS.c.facts)).scalars().all()
    assert [loads(one)["code"] for one in facts] == [{"train.py": "ab"}]


def test_a_result_that_comes_back_after_a_cancel_is_stale(fleet: Driven) -> None:
    grant = started(fleet, on_partition="keep")
    lose(fleet, grant)
    fleet.cancel(grant.job)
    with pytest.raises(StaleLease):
        fleet.ask(finish(grant))
    assert state(fleet) == "cancelled"


def test_a_result_that_comes_back_after_a_requeue_is_stale(fleet: Driven) -> None:
    grant = started(fleet, on_partition="keep")
    lose(fleet, grant)
    fleet.cancel(grant.job)
    fleet.ask(RequeueJobs(jobs=(grant.job,)))
    with pytest.raises(StaleLease):
        fleet.ask(finish(grant))
    assert state(fleet) == "pending"


def test_a_job_whose_state_somebody_else_changed_is_looked_at_again(fleet: Driven) -> None:
    grant = _claimed(fleet)
    behind_its_back(fleet, "UPDATE jobs SET state = 'running'")
    # In memory it is claimed, and what is claimed may be declined.
    with pytest.raises(InvalidTransition):
        fleet.ask(Write(job=grant.job, said=WORDS["decline"](grant)))
    assert state(fleet) == "running"
    behind_its_back(fleet, "UPDATE jobs SET state = 'claimed'")


def test_an_attempt_that_somebody_else_ended_is_not_ended_again(fleet: Driven) -> None:
    grant = started(fleet)
    behind_its_back(fleet, "UPDATE attempts SET ending = 'released', ended_s = 1")
    with pytest.raises(DatabaseTrouble):
        fleet.ask(finish(grant))
    assert state(fleet) == "running"
    behind_its_back(fleet, "UPDATE attempts SET ending = '', ended_s = NULL")


def test_a_late_result_from_before_a_restore_is_stale_though_nobody_else_has_the_job(
    fleet: Driven, tmp_path: Path
) -> None:
    grant = started(fleet, on_partition="keep")
    _restore(fleet, tmp_path)
    assert state(fleet) == "pending"
    with pytest.raises(StaleLease):
        fleet.ask(finish(grant))
    fleet.ask(hello_anew())
    (again,) = fleet.queue.ask(Claim(request_id="request-after", worker="m1", incarnation="incarnation-new")).grants  # type: ignore[union-attr]
    assert (again.attempt, again.epoch) == (grant.attempt + 1, grant.epoch + 1)
    assert again.generation > grant.generation


def test_an_epoch_that_a_restored_coordinator_gives_again_is_told_apart_by_its_generation(
    fleet: Driven, tmp_path: Path
) -> None:
    fleet.submit(order("one"))
    fleet.join("m1")
    back_up(fleet.database, str(tmp_path / "backup"), clock=fleet.clock)
    (old,) = fleet.claim()
    fleet.start(old)
    _restore(fleet, tmp_path, is_made=True)
    fleet.join("m1")
    (new,) = fleet.claim()
    assert (new.attempt, new.epoch) == (old.attempt, old.epoch)
    for word in WORDS.values():
        with pytest.raises(StaleLease):
            fleet.ask(Write(job=old.job, said=word(old)))
    assert not fleet.queue.is_current(old.token())
    assert isinstance(fleet.ask(finish(new)), WriteResponse)
    with pytest.raises(StaleLease):
        fleet.ask(finish(old))


def test_a_worker_that_was_started_after_the_backup_says_hello_again_and_works_on(
    fleet: Driven, tmp_path: Path
) -> None:
    fleet.submit(order("one"))
    fleet.join("m1")
    back_up(fleet.database, str(tmp_path / "backup"), clock=fleet.clock)
    fleet.ask(hello_anew())
    _restore(fleet, tmp_path, is_made=True)
    asked = Claim(request_id="request-after", worker="m1", incarnation="incarnation-new")
    # Not that somebody took its place: nobody knows who is the newest.
    with pytest.raises(NotFound):
        fleet.ask(asked)
    fleet.ask(hello_anew())
    assert len(fleet.ask(asked).grants) == 1  # type: ignore[union-attr]


@pytest.fixture
def large(fleet: Driven) -> Driven:
    """A fleet of which so few machines are many that leases last longer: 3,000 in earnest."""
    fleet.close()
    fleet.times = FleetTimes(heartbeat_s=0.005)
    fleet.open()
    return fleet


def test_nothing_expires_after_a_start_until_the_longer_leases_of_a_large_fleet_are_over(large: Driven) -> None:
    grant = started(large)
    large.join("m2", "m3")
    # How many there are is counted with every look.
    sweep(large)
    lease_s = large.queue.pace().lease_s
    assert lease_s > 2 * FleetTimes().lease_s
    large.close()
    large.open()
    large.clock.advance(lease_s - 10.0)
    assert sweep(large).expired == ()
    large.clock.advance(FleetTimes().grace_s + 10.0)
    assert sweep(large).expired == (grant.job,)


def _claimed(fleet: Driven) -> Grant:
    fleet.submit(order("one"))
    fleet.join("m1")
    (grant,) = fleet.claim()
    return grant


def _restore(fleet: Driven, folder: Path, *, is_made: bool = False) -> None:
    path = folder / "backup"
    if not is_made:
        back_up(fleet.database, str(path), clock=fleet.clock)
    fleet.close()
    database = open_database(fleet.url, clock=fleet.clock)
    restore(database, io.BytesIO(path.read_bytes()), "backup", clock=fleet.clock, may_replace=True)
    database.close()
    fleet.open()
