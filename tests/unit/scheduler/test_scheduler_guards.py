"""Guards of the scheduler: limits, ends and bounds, each of which a test must miss when it is taken away."""

from __future__ import annotations

from stoker.core.device import GIB
from stoker.core.machine import SchedulableJob, UserPolicy
from stoker.protocol.lease_messages import WorkerMeasurements
from stoker.scheduler.machine_index import MatchableMachine
from stoker.scheduler.offers import offer_of
from tests.unit.scheduler.policy_fleet import HOUR_S, Fleet, board, device, node


def picked(fleet: Fleet, name: str) -> int | None:
    """Return which class a machine would get a job of."""
    found = fleet.ask(name)
    return None if found is None else found[0]


def test_a_machine_gets_no_job_that_would_outlast_it() -> None:
    fleet = Fleet([], device(8, hours=2), device(8, hours=0.5))
    fleet.scheduler.put_machine(MatchableMachine(offer_of(node("leaves", "RTX 4090")), ends_s=HOUR_S))
    fleet.come(0)
    assert picked(fleet, "leaves") is None
    fleet.come(1)
    assert picked(fleet, "leaves") == 1


def test_a_clock_that_is_set_back_leaves_machines_no_longer_than_they_stay() -> None:
    fleet = Fleet([], device(8, hours=2), device(8, hours=0.5))
    fleet.now_s = 1000 * HOUR_S
    fleet.scheduler.put_machine(MatchableMachine(offer_of(node("leaves", "RTX 4090")), ends_s=1001 * HOUR_S))
    fleet.come(0)
    assert picked(fleet, "leaves") is None
    fleet.now_s = HOUR_S
    assert picked(fleet, "leaves") is None
    fleet.come(1)
    assert picked(fleet, "leaves") == 1


def test_a_machine_is_there_for_as_long_as_it_says_last() -> None:
    fleet = Fleet([], device(8, hours=2))
    fleet.scheduler.put_machine(MatchableMachine(offer_of(node("leaves", "RTX 4090")), ends_s=3 * HOUR_S))
    fleet.come(0)
    assert picked(fleet, "leaves") == 0
    fleet.now_s = 1000 * HOUR_S
    assert picked(fleet, "leaves") is None
    fleet.scheduler.stay("leaves", 3 * HOUR_S, fleet.now_s)
    assert picked(fleet, "leaves") == 0
    fleet.scheduler.stay("leaves", HOUR_S, fleet.now_s)
    assert picked(fleet, "leaves") is None
    fleet.scheduler.stay("unknown", HOUR_S, fleet.now_s)


def test_a_clock_that_is_set_back_leaves_a_machine_kept_for_no_longer_than_it_was() -> None:
    fleet = Fleet([node("pair", "A100", "A100")], device(8, device_count=2), device(8), device(8, hours=100))
    fleet.now_s = 1000 * HOUR_S
    fleet.run(1, "pair")
    fleet.come(0)
    fleet.come(2, 50)
    machine = fleet.scheduler.machines.machines["pair"]
    queue = fleet.scheduler.ready.levels[0][""]
    assert fleet.scheduler.policy.reservations._keep(machine, queue, fleet.scheduler.ready.classes[0].type, fleet.now_s)
    assert picked(fleet, "pair") is None, "it takes 100 hours, and the other job is expected to start in one"
    fleet.now_s = HOUR_S
    assert picked(fleet, "pair") is None


def test_a_user_gets_no_more_jobs_at_once_than_allowed() -> None:
    fleet = Fleet([node("a", "RTX 4090"), node("b", "RTX 4090")], device(8), users=("ada", "bob"))
    fleet.scheduler.set_policies({"ada": UserPolicy(most_jobs=1)})
    fleet.come(0, 2)
    assert fleet.start("a") is not None
    assert picked(fleet, "b") is None
    fleet.come(1)
    assert picked(fleet, "b") == 1


def test_a_user_gets_no_more_devices_at_once_than_allowed() -> None:
    fleet = Fleet([node("pair", "A100", "A100")], device(8, device_count=2), device(8), users=("ada",))
    fleet.scheduler.set_policies({"ada": UserPolicy(most_devices=1)})
    fleet.come(0)
    assert picked(fleet, "pair") is None
    fleet.come(1)
    assert picked(fleet, "pair") == 1


def test_a_job_without_an_estimate_does_not_wait_for_a_preferred_machine() -> None:
    fleet = Fleet([node("wanted", "RTX 4090", priority=3), node("other", "RTX 4090")], device(8, hours=None))
    fleet.come(0)
    assert picked(fleet, "other") == 0


def test_a_machine_that_declined_something_lately_keeps_no_other_from_a_job() -> None:
    fleet = Fleet([board("slow"), node("fast", "RTX 4090")], device(8, hours=None))
    assert fleet.ask("slow") is None
    assert fleet.ask("fast") is None
    fleet.scheduler.doubt("fast", is_doubted=True)
    fleet.come(0)
    assert picked(fleet, "slow") == 0


def test_a_lower_priority_does_not_start_where_a_higher_one_would_not() -> None:
    fleet = Fleet([board("slow"), node("fast", "RTX 4090")], device(8, hours=1))
    fleet.run(0, "fast")
    fleet.come(0, 400)
    assert picked(fleet, "slow") == 0, "the line is long"
    fleet.come(0, priority=5)
    assert picked(fleet, "slow") is None


def test_a_wide_job_passes_few_older_ones() -> None:
    for older, first in ((3, 1), (50, 0)):
        fleet = Fleet([node("pair", "A100", "A100"), node("other", "A100")], device(8), device(8, device_count=2))
        fleet.run(0, "other")
        fleet.come(0, older)
        fleet.come(1)
        fleet.come(0, 99 - older)
        assert picked(fleet, "pair") == first


def test_a_machine_is_not_kept_for_a_job_that_does_not_fit_it_even_idle() -> None:
    fleet = Fleet([node("pair", "A100", "A100")], device(8))
    wide = device(8, device_count=2, ram_bytes=40 * GIB)[0]
    fleet.scheduler.put_class(5, SchedulableJob(name="job", requirements=wide))
    fleet.run(0, "pair")
    fleet.scheduler.measure("pair", WorkerMeasurements(ram_available_bytes=20 * GIB))
    fleet.now_s = 60.0
    fleet.come(5, priority=5)
    fleet.come(0, 3)
    assert picked(fleet, "pair") == 0
