"""Old events and classes that no job is of go by themselves, on both databases; nothing that is missed goes."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, text

from stoker.coordinator.database.database_check import check_database
from stoker.coordinator.http.fleet_routes import refuse_dropped
from stoker.coordinator.queue import expiry
from stoker.coordinator.queue.commands import Sweep
from stoker.core.errors import NotFound
from tests.contract.queue_driving import Driven, order

DAY_S = 24 * 3600.0


def rows(fleet: Driven, asked: str) -> list[int]:
    engine = create_engine(fleet.url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        found = [int(number) for (number,) in connection.execute(text(asked))]
    engine.dispose()
    return found


def ids(fleet: Driven) -> set[int]:
    return {event["seq"] for event in fleet.reader.events()}


def sweep(fleet: Driven, times: int = 1) -> None:
    for _ in range(times):
        fleet.ask(Sweep())


def lived(fleet: Driven) -> None:
    """Let one job end and one wait."""
    fleet.submit(order("ended"), order("waits", priority=-1))
    fleet.join("m1")
    (grant,) = fleet.claim()
    fleet.finish(grant)


def test_the_events_of_a_job_that_ended_long_ago_go_and_those_of_others_stay(fleet: Driven) -> None:
    lived(fleet)
    before = ids(fleet)
    fleet.clock.advance(89 * DAY_S)
    sweep(fleet)
    assert ids(fleet) >= before
    fleet.clock.advance(2 * DAY_S)
    sweep(fleet, 2)
    assert fleet.reader.events(ref="ended") == ()
    assert [event["kind"] for event in fleet.reader.events(ref="waits")] == ["job_submitted"]
    assert not [event for event in fleet.reader.events() if event["kind"] == "machine_joined"]
    assert fleet.reader.story("ended").job.state == "completed"
    assert list(check_database(fleet.database)) == []


def test_a_job_whose_story_is_gone_may_begin_another_one(fleet: Driven) -> None:
    lived(fleet)
    fleet.clock.advance(100 * DAY_S)
    sweep(fleet)
    job = fleet.reader.find("ended").id
    fleet.requeue(job)
    assert list(check_database(fleet.database)) == []
    fleet.close()
    fleet.open()
    fleet.join("m1")
    (grant,) = [grant for grant in fleet.claim(most=2) if grant.job == job]
    fleet.finish(grant)
    kinds = [event["kind"] for event in fleet.reader.events(ref="ended")]
    assert kinds == ["job_requeued", "job_granted", "job_started", "job_finished"]
    assert list(check_database(fleet.database)) == []


@pytest.mark.parametrize("is_of_a_machine", [True, False], ids=["machine", "job"])
def test_no_number_of_an_event_is_given_twice(fleet: Driven, is_of_a_machine: bool) -> None:
    fleet.submit(order("cancelled"))
    fleet.cancel(fleet.reader.find("cancelled").id)
    if is_of_a_machine:
        fleet.join("m1")
        fleet.sweep_late()
    newest = max(ids(fleet))
    fleet.clock.advance(100 * DAY_S)
    sweep(fleet, 3)
    assert newest in ids(fleet), "the newest stays"
    fleet.close()
    fleet.open()
    fleet.submit(order("later"))
    assert fleet.reader.newest_event() > newest


def test_only_some_go_with_each_commit(fleet: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "MOST_DROPPED_AT_ONCE", 2)
    for name in "abcd":
        fleet.submit(order(name))
        fleet.cancel(fleet.reader.find(name).id)
    fleet.submit(order("newest"))
    fleet.clock.advance(100 * DAY_S)
    sweep(fleet)
    assert len(ids(fleet)) == 7, "one job's"
    sweep(fleet, 4)
    assert len(ids(fleet)) == 1


def test_classes_that_no_job_is_of_go_and_may_come_again(fleet: Driven) -> None:
    small, large = {"ram_bytes": 0}, {"ram_bytes": 1 << 30}
    fleet.submit(order("one", requirements=small))
    (was,) = rows(fleet, "SELECT id FROM classes")
    fleet.submit(order("one", requirements=large))
    fleet.clock.advance(2 * 3600.0)
    sweep(fleet)
    assert was not in rows(fleet, "SELECT id FROM classes")
    assert rows(fleet, f"SELECT value FROM counters WHERE key = 'class:{was}'") == []
    fleet.submit(order("two", requirements=small))
    fleet.join("m1")
    assert {grant.spec.name for grant in fleet.claim(most=2)} == {"one", "two"}
    assert list(check_database(fleet.database)) == []


def test_what_was_dropped_is_said_to_whoever_goes_on_from_before(fleet: Driven) -> None:
    lived(fleet)
    refuse_dropped(1, fleet.reader.meta())
    fleet.clock.advance(100 * DAY_S)
    sweep(fleet)
    meta = fleet.reader.meta()
    dropped_to = int(meta["events_dropped_to"])
    with pytest.raises(NotFound, match="were deleted") as refused:
        refuse_dropped(dropped_to - 1, meta)
    assert refused.value.data["dropped_to"] == dropped_to
    refuse_dropped(dropped_to, meta)
