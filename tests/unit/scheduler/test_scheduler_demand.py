"""Demand: ready jobs that no present machine has room for."""

from __future__ import annotations

import pytest

from stoker.core.device import GIB
from stoker.core.machine import DevicePreference, Requirements, SchedulableJob, UserPolicy
from stoker.scheduler import demand
from stoker.scheduler.leases import StartDecision
from stoker.scheduler.machine_index import MatchableMachine
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.scheduler import Scheduler

NOW_S = 100.0


def job(ram: int = 1, wish: DevicePreference = DevicePreference.NEVER) -> SchedulableJob:
    return SchedulableJob(name="", requirements=Requirements(ram_bytes=ram * GIB, wish=wish))


def machine(name: str = "desk", ram: int = 10, *, closed: str = "", ends_s: float | None = None) -> MatchableMachine:
    offer = NodeOffer(node=name, slots=8, cores=64, ram_bytes=ram * GIB, closed=closed)
    return MatchableMachine(offer, None, (), ends_s)


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler()


def ready(
    scheduler: Scheduler, class_id: int, count: int, wanted: SchedulableJob, *, priority: int = 0, **more: object
):
    scheduler.put_class(class_id, wanted, **{"user": "ada", **more})  # type: ignore[arg-type]  # by name
    scheduler.ready.set_head(class_id, priority, seq=100 * class_id + 1, count=count)


def found(scheduler: Scheduler) -> dict[int, tuple[int, int]]:
    return {one.head.class_id: (one.placed, one.count) for one in scheduler.unmet(NOW_S)}


def test_what_fits_is_no_demand_and_nothing_stays_taken(scheduler: Scheduler):
    scheduler.put_machine(machine(ram=10))
    ready(scheduler, 1, 12, job(ram=3))
    before = scheduler.offers()
    assert found(scheduler) == {1: (3, 9)}
    assert found(scheduler) == {1: (3, 9)}
    assert scheduler.offers() == before
    decision = scheduler.choose("desk", NOW_S)
    assert isinstance(decision, StartDecision)


def test_jobs_are_packed_in_the_order_of_the_queue(scheduler: Scheduler):
    scheduler.put_machine(machine(ram=10))
    ready(scheduler, 1, 1, job(ram=8))
    ready(scheduler, 2, 1, job(ram=9), priority=5)
    ready(scheduler, 3, 1, job(ram=1))
    assert found(scheduler) == {1: (0, 1)}
    assert [one.head.class_id for one in scheduler.unmet(NOW_S)] == [1]


def test_closed_machines_have_no_room(scheduler: Scheduler):
    scheduler.put_machine(machine(closed="drained"))
    ready(scheduler, 1, 2, job())
    assert found(scheduler) == {1: (0, 2)}


def test_a_machine_that_leaves_has_room_only_for_what_has_the_time(scheduler: Scheduler):
    scheduler.put_machine(machine(ends_s=NOW_S + 600.0))
    ready(scheduler, 1, 1, job(), expected_s=7200.0)
    ready(scheduler, 2, 1, job(), expected_s=60.0)
    # A claim brings the tables of durations up to date.
    scheduler.choose("desk", NOW_S)
    assert found(scheduler) == {1: (0, 1)}


def test_limits_of_users_bound_their_demand(scheduler: Scheduler):
    scheduler.set_policies({"ada": UserPolicy(most_jobs=3), "bob": UserPolicy(most_devices=2)})
    ready(scheduler, 1, 2, job(ram=1))
    ready(scheduler, 2, 5, job(ram=2))
    ready(scheduler, 3, 5, job(wish=DevicePreference.REQUIRE), user="bob")
    ready(scheduler, 4, 5, job(ram=4), user="eve")
    assert found(scheduler) == {1: (0, 2), 2: (0, 1), 3: (0, 2), 4: (0, 5)}


def test_with_very_much_free_room_only_what_fits_nowhere_is_demand(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(demand, "MOST_PLACED", 3)
    for number in range(4):
        scheduler.put_machine(machine(f"desk{number}"))
    ready(scheduler, 1, 1000, job(ram=3))
    ready(scheduler, 2, 7, job(ram=500))
    assert found(scheduler) == {2: (0, 7)}


def test_only_the_first_classes_are_examined(scheduler: Scheduler):
    for number in range(1, demand.MOST_CLASSES + 50):
        ready(scheduler, number, 1, job(ram=number))
    assert list(found(scheduler)) == list(range(1, demand.MOST_CLASSES + 1))
