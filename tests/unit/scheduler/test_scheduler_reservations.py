"""Machines that are kept for a job: only while it may start there, and not longer."""

from __future__ import annotations

from stoker.core.machine import SchedulableJob, UserPolicy
from stoker.protocol.lease_messages import WorkerMeasurements
from stoker.scheduler.machine_index import LeaseAllocation, MatchableMachine
from stoker.scheduler.offers import offer_of
from stoker.scheduler.reservations import KEPT_PART
from tests.unit.scheduler.policy_fleet import Fleet, device, node

PAIR = node("pair", "A100", "A100")


def kept(priority: int = 5, user: str = "") -> tuple[Fleet, LeaseAllocation]:
    """Return a pair of devices that is kept for a job over both, and the job that runs on one of them."""
    fleet = Fleet([PAIR], device(8), device(7))
    fleet.scheduler.put_class(5, SchedulableJob(name="job", requirements=device(8, device_count=2)[0]), user=user)
    running = fleet.run(0, "pair")
    fleet.now_s = 60.0
    fleet.come(5, priority=priority)
    fleet.come(0, 3)
    assert fleet.ask("pair") is None
    assert fleet.scheduler.machines.machines["pair"].kept is not None
    return fleet, running


def picked(fleet: Fleet) -> int | None:
    """Return which class the pair would get a job of."""
    found = fleet.ask("pair")
    return None if found is None else found[0]


def test_a_machine_is_not_kept_for_a_job_whose_user_is_at_a_limit() -> None:
    fleet = Fleet([PAIR, node("other", "RTX 4090")], device(8))
    fleet.scheduler.put_class(5, SchedulableJob(name="job", requirements=device(8, device_count=2)[0]), user="eve")
    fleet.scheduler.put_class(6, SchedulableJob(name="job", requirements=device(8)[0]), user="eve")
    fleet.scheduler.set_policies({"eve": UserPolicy(most_jobs=1)})
    fleet.run(6, "other")
    fleet.run(0, "pair")
    fleet.now_s = 60.0
    fleet.come(5, priority=5)
    fleet.come(0, 3)
    assert picked(fleet) == 0


def test_a_kept_machine_does_not_start_a_job_beyond_the_limit_of_its_user() -> None:
    fleet, running = kept(user="eve")
    fleet.scheduler.set_policies({"eve": UserPolicy(most_jobs=0)})
    fleet.scheduler.release(running, fleet.now_s)
    assert picked(fleet) == 0


def test_a_machine_is_not_kept_for_a_job_that_would_not_be_over_before_it_ends() -> None:
    fleet = Fleet([], device(8, hours=0.1), device(8, hours=5))
    fleet.scheduler.put_machine(MatchableMachine(offer_of(PAIR), ends_s=7200.0))
    fleet.run(0, "pair")
    fleet.now_s = 60.0
    fleet.come(1, priority=5)
    fleet.come(0, 3)
    assert picked(fleet) == 0


def test_a_machine_is_kept_no_longer_for_a_job_that_no_longer_fits_it_even_idle() -> None:
    fleet, running = kept()
    fleet.scheduler.release(running, fleet.now_s)
    fleet.scheduler.measure("pair", WorkerMeasurements(closed={"pair-1": "broken"}))
    assert picked(fleet) == 0


def test_a_job_of_higher_priority_starts_on_a_machine_that_is_kept() -> None:
    fleet, _ = kept(priority=5)
    fleet.come(1, priority=9)
    assert picked(fleet) == 1


def test_a_machine_that_is_kept_may_be_put_again_when_its_job_is_gone() -> None:
    fleet, _ = kept()
    fleet.go(5, priority=5)
    fleet.scheduler.put_machine(MatchableMachine(offer_of(PAIR)))
    assert picked(fleet) == 0


def test_a_machine_that_is_kept_again_before_calls_are_answered_stays_so() -> None:
    fleet, _ = kept()
    fleet.go(5, priority=5)
    fleet.come(5, priority=5)
    assert fleet.ask("pair") is None
    fleet.called()
    machine = fleet.scheduler.machines.machines["pair"]
    (queue,) = fleet.scheduler.ready.levels[5].values()
    assert [machine.kept.queue] == [queue]
    assert list(queue.kept.values()) == [[machine]]


def test_of_a_kept_machine_the_devices_stay_open_that_the_job_does_not_need() -> None:
    fleet = Fleet([node("pair", "A100", "A100", shares=True, slots=8)], device(4, may_share=True), device(20))
    for uuid in ("pair-0", "pair-1"):
        fleet.scheduler.leases.restore(LeaseAllocation("pair", 0, (uuid,), True), 0.0)
    fleet.now_s = 60.0
    fleet.come(1, priority=5)
    fleet.come(0, 8)
    started = fleet.start("pair")
    assert fleet.scheduler.machines.machines["pair"].kept is not None
    assert started is not None
    again = fleet.start("pair")
    assert again is not None
    assert again.devices == started.devices


def test_few_machines_of_a_node_type_are_kept_for_jobs_that_were_passed() -> None:
    fleet = Fleet([node(f"n{at}", "A100", "A100") for at in range(16)], device(8))
    fleet.scheduler.put_class(5, SchedulableJob(name="job", requirements=device(8, device_count=2)[0]))
    for at in range(16):
        fleet.run(0, f"n{at}")
    fleet.now_s = 60.0
    fleet.come(5, 16)
    fleet.come(0, 400)
    for at in range(16):
        # What passes the jobs over both devices is far behind them.
        while fleet.left(0) > 40:
            fleet.go(0)
        fleet.start(f"n{at}")
    kept = [one.name for one in fleet.scheduler.machines.machines.values() if one.kept is not None]
    assert len(kept) == 16 // KEPT_PART


def test_the_devices_that_a_job_waits_for_are_not_changed_by_that() -> None:
    fleet, running = kept()
    assert picked(fleet) is None
    devices = fleet.scheduler.index.usage("pair").devices
    assert [(one.closed, one.jobs) for one in devices] == [("", 1), ("", 0)]
    fleet.scheduler.release(running, fleet.now_s)
    assert picked(fleet) == 5


def test_of_leases_that_are_alike_the_very_one_is_found_and_an_equal_allocation_finds_one_of_them() -> None:
    fleet = Fleet([PAIR], device(8))
    first, second = (LeaseAllocation("pair", 0, ("pair-0",), is_shared=True) for _ in range(2))
    fleet.scheduler.leases.restore(first, 0.0)
    fleet.scheduler.leases.restore(second, 30.0)
    find = fleet.scheduler.machines.find
    assert (find(first).started_s, find(second).started_s) == (0.0, 30.0)
    fleet.scheduler.release(second, 60.0)
    assert find(LeaseAllocation("pair", 0, ("pair-0",), is_shared=True)) is find(first)
