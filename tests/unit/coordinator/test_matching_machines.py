"""Machines as the queue offers them to the scheduler: what is measured, closed, listed, declined and leased there."""

from __future__ import annotations

import pytest

from stoker.coordinator.queue.machines import WorkerLimits
from stoker.core.device import GIB
from stoker.core.errors import InternalError
from stoker.core.frozen import changed
from stoker.core.machine import Gpu, Node
from stoker.protocol.job_messages import HostPolicy
from stoker.protocol.lease_messages import WorkerMeasurements
from stoker.scheduler.leases import HoldDecision, StartDecision
from stoker.scheduler.machine_index import LeaseAllocation
from stoker.scheduler.ready_queue import ReadyHead
from stoker.scheduler.scheduler import Scheduler
from tests.unit.coordinator.fleets import Driven, box, card, cpu_job, gpu_job, refused

TWO_CARDS = (card("GPU-1"), card("GPU-2"))


def test_priority_goes_before_age():
    fleet = Driven(box("desk"))
    fleet.wait(1, cpu_job(1))
    fleet.wait(2, cpu_job(2), priority=5)
    assert fleet.grant("desk").head.class_id == 2


def test_within_a_priority_the_oldest_goes_first():
    fleet = Driven(box("desk", ram_gib=64), box("lab"))
    for class_id in (3, 1, 2):
        fleet.wait(class_id, cpu_job(class_id))
    assert [fleet.grant("desk").head.class_id, fleet.grant("lab").head.class_id] == [3, 1]


def test_a_lower_job_does_not_take_a_device_that_a_higher_one_waits_for():
    fleet = Driven(box("desk", *TWO_CARDS))
    fleet.wait(1, gpu_job())
    assert fleet.grant("desk").allocation.devices == ("GPU-1",)
    fleet.wait(2, gpu_job(device_count=2), priority=5)
    fleet.wait(3, gpu_job(8))
    assert refused(fleet.ask("desk")).waiting == {"too_few_devices": 1, "kept": 1}


def test_a_job_that_would_not_fit_here_even_if_all_was_idle_keeps_nothing():
    fleet = Driven(box("desk", *TWO_CARDS))
    fleet.wait(1, gpu_job(30), priority=9)
    fleet.wait(2, gpu_job(6))
    assert fleet.grant("desk").head.class_id == 2


def test_a_closed_machine_gives_its_reason_and_nothing_else():
    fleet = Driven()
    fleet.put(box("desk"), closed="drained: new disk")
    fleet.wait(1, cpu_job())
    assert refused(fleet.ask("desk")) == HoldDecision(closed="drained: new disk")


def test_a_machine_that_says_itself_that_it_is_closed_gets_nothing_until_it_says_otherwise():
    fleet = Driven(box("desk"))
    fleet.wait(1, cpu_job())
    paused = WorkerMeasurements(closed={"": "its owner paused it"})
    assert refused(fleet.ask("desk", measured=paused)).closed == "its owner paused it"
    assert isinstance(fleet.ask("desk", measured=WorkerMeasurements()), StartDecision)


def test_closed_devices_are_passed_over_whoever_closed_them():
    fleet = Driven()
    fleet.put(box("desk", *TWO_CARDS), closed_devices={"GPU-1": "cordoned"})
    fleet.wait(1, gpu_job())
    found = fleet.ask("desk")
    assert isinstance(found, StartDecision)
    assert found.allocation.devices == ("GPU-2",)
    worn = WorkerMeasurements(closed={"GPU-2": "too hot"})
    assert refused(fleet.ask("desk", measured=worn)).waiting == {"closed": 1}


def test_a_machine_that_is_not_known_gets_nothing():
    assert "is not registered" in refused(Driven().ask("desk")).closed


def test_measured_memory_counts_beside_promises():
    fleet = Driven(box("desk", card("GPU-1")))
    fleet.wait(1, gpu_job(20))
    assert refused(fleet.ask("desk", measured=WorkerMeasurements(free_bytes={"GPU-1": 19 * GIB}))).waiting == {
        "too_small": 1
    }
    assert isinstance(fleet.ask("desk", measured=WorkerMeasurements(free_bytes={"GPU-1": 21 * GIB})), StartDecision)


def test_available_ram_counts_what_our_own_jobs_were_promised_once():
    fleet = Driven()
    fleet.put(box("desk"), slots=4)
    fleet.wait(1, cpu_job(8))
    fleet.grant("desk")
    fleet.wait(2, cpu_job(9))
    assert refused(fleet.ask("desk", measured=WorkerMeasurements(ram_available_bytes=8 * GIB))).waiting == {"ram": 1}
    assert isinstance(fleet.ask("desk", measured=WorkerMeasurements(ram_available_bytes=9 * GIB)), StartDecision)


def test_what_a_worker_would_admit_counts_before_what_is_free():
    fleet = Driven(box("desk", ram_gib=64))
    fleet.wait(1, cpu_job(50))
    free = WorkerMeasurements(ram_available_bytes=52 * GIB, ram_room_bytes=46 * GIB)
    assert refused(fleet.ask("desk", measured=free)).waiting == {"ram": 1}
    assert isinstance(
        fleet.ask("desk", measured=WorkerMeasurements(ram_available_bytes=56 * GIB, ram_room_bytes=50 * GIB)),
        StartDecision,
    )


def test_nonsense_that_was_measured_is_bounded():
    fleet = Driven(box("desk", card("GPU-1")))
    fleet.wait(1, gpu_job(6))
    bent = WorkerMeasurements(ram_available_bytes=-5, free_bytes={"GPU-1": 1 << 70, "GPU-9": -1})
    assert refused(fleet.ask("desk", measured=bent)).waiting == {"ram": 1}
    assert fleet.offers[0].devices[0].free_bytes == 24 * GIB


def test_the_allocation_says_whether_a_device_is_shared():
    fleet = Driven()
    fleet.put(box("desk", card("GPU-1")), slots=3)
    fleet.wait(1, gpu_job(6, may_share=True), count=2)
    first = fleet.grant("desk").allocation
    assert first == LeaseAllocation(machine="desk", class_id=1, devices=("GPU-1",), is_shared=True)
    fleet.wait(1, gpu_job(6, may_share=True))
    assert fleet.grant("desk").allocation == first
    fleet.wait(2, gpu_job(6))
    assert refused(fleet.ask("desk")).waiting == {"in_use": 1}
    fleet.scheduler.release(first, 0.0)
    fleet.scheduler.release(first, 0.0)
    assert fleet.grant("desk").allocation.is_shared is False


def test_of_two_leases_that_hold_the_same_the_one_that_ended_is_released():
    fleet = Driven()
    fleet.put(box("desk"), slots=3)
    allocations = []
    for now_s in (0.0, 100.0):
        fleet.wait(1, cpu_job())
        allocations.append(fleet.grant("desk", now_s).allocation)
    first, second = allocations
    assert first == second
    fleet.scheduler.release(second, 160.0)
    (left,) = fleet.scheduler.machines.leases()
    assert left.started_s == 0.0


def test_leases_stay_counted_when_their_machine_comes_back():
    fleet = Driven(box("desk", card("GPU-1")))
    fleet.wait(1, gpu_job())
    allocation = fleet.grant("desk").allocation
    fleet.scheduler.remove_machine("desk")
    fleet.put(box("desk", card("GPU-1")))
    fleet.wait(2, gpu_job(7))
    assert refused(fleet.ask("desk")).waiting == {"held_alone": 1}
    fleet.scheduler.release(allocation, 0.0)
    assert isinstance(fleet.ask("desk"), StartDecision)


def test_a_lease_that_was_restored_before_its_machine_was_known_runs_at_the_speed_of_its_device():
    fleet = Driven()
    fleet.scheduler.put_class(1, gpu_job(), expected_s=3600.0)
    allocation = LeaseAllocation("desk", 1, ("GPU-1",))
    fleet.scheduler.leases.restore(allocation, 1000.0, started_s=400.0)
    fleet.put(box("desk", card("GPU-1", name="NVIDIA H100")))
    (lease,) = fleet.scheduler.machines.leases()
    speed = fleet.offers[0].devices[0].speed
    assert speed != 1.0
    assert lease.work_rate == speed
    assert lease.until_s == pytest.approx(400.0 + lease.type.expected_s / speed)


def test_a_lease_outlives_its_device_and_its_machine():
    fleet = Driven(box("desk", card("GPU-1")))
    fleet.wait(1, gpu_job())
    allocation = fleet.grant("desk").allocation
    fleet.put(box("desk"))
    assert fleet.offers[0].jobs == 1
    fleet.scheduler.remove_machine("desk")
    fleet.scheduler.release(allocation, 0.0)
    assert fleet.offers == ()


def test_ending_a_lease_that_was_never_granted_is_a_bug_and_told():
    with pytest.raises(InternalError, match="desk"):
        Driven(box("desk")).scheduler.release(LeaseAllocation("desk", 1), 0.0)


def test_a_class_must_be_described_before_a_job_of_it_runs():
    with pytest.raises(InternalError, match="class 7"):
        Scheduler().leases.restore(LeaseAllocation("desk", 7), 0.0)


def test_allow_and_deny_lists_match_names_and_models():
    fleet = Driven()
    node = Node(name="desk", host="desk", deny_jobs=("gbt",))
    fleet.wait(1, cpu_job())
    fleet.put(box("desk"), node)
    assert refused(fleet.ask("desk")).waiting == {"denied": 1}
    fleet.put(box("desk"), changed(node, deny_jobs=(), allow_jobs=("resnet",)))
    assert refused(fleet.ask("desk")).waiting == {"not_on_allow_list": 1}
    fleet.put(box("desk"), changed(node, deny_jobs=(), allow_jobs=("tabular/gbt",)))
    assert isinstance(fleet.ask("desk"), StartDecision)


def test_a_manifests_policy_lies_over_what_was_found_and_declared():
    fleet = Driven()
    fleet.wait(1, gpu_job())
    fleet.put(box("desk", card("GPU-1")), policy=HostPolicy(name="desk", deny_jobs=("resnet",)))
    assert refused(fleet.ask("desk")).waiting == {"denied": 1}
    fleet.put(box("desk", card("GPU-1")), policy=HostPolicy(name="desk", priority=3))
    assert isinstance(fleet.ask("desk"), StartDecision)
    assert fleet.offers[0].priority == 3


def test_a_machine_that_is_unable_to_run_something_denies_it_by_its_word():
    fleet = Driven()
    fleet.wait(1, gpu_job())
    fleet.put(box("desk", card("GPU-1")), unable={"resnet": "no such environment"})
    assert refused(fleet.ask("desk")).waiting == {"denied": 1}
    assert fleet.offers[0].denied_for == (("resnet", "no such environment"),)


def test_the_smaller_of_declared_found_and_the_workers_word_counts():
    fleet = Driven()
    node = Node(
        name="desk",
        host="desk",
        gpus=(Gpu(uuid="GPU-1", type="rtx-4090", vram_mb=8192),),
        cpu_cores=64,
        ram_mb=16384,
    )
    limits = WorkerLimits(cores=2, ram_bytes=8 * GIB)
    drift = fleet.put(box("desk", card("GPU-1")), node, limits=limits)
    (offer,) = fleet.offers
    assert (offer.cores, offer.ram_bytes, offer.devices[0].total_bytes) == (2, 8 * GIB, 8 * GIB)
    assert any("64 cores" in one for one in drift)
    assert fleet.scheduler.drift() == {"desk": drift}


def test_choosing_takes_nothing():
    fleet = Driven(box("desk"))
    fleet.wait(1, cpu_job())
    assert fleet.ask("desk") == fleet.ask("desk")
    assert fleet.offers[0].jobs == 0


def test_what_is_not_told_costs_nothing():
    fleet = Driven(box("desk"))
    fleet.wait(1, gpu_job())
    assert fleet.scheduler.choose("desk", 0.0) == HoldDecision()


def instead_of(*barred: int, then: int | None = None):
    """Name another job in place of those that were declined."""

    def instead(head: ReadyHead) -> ReadyHead | None:
        if head.seq not in barred:
            return head
        return None if then is None else changed(head, seq=then)

    return instead


def test_in_place_of_a_job_that_a_machine_declined_it_gets_the_next_of_its_class():
    fleet = Driven(box("desk"))
    fleet.wait(1, cpu_job(), count=2)
    found = fleet.scheduler.choose("desk", 0.0, instead=instead_of(1, then=9))
    assert isinstance(found, StartDecision)
    assert found.head.seq == 9


def test_in_place_of_a_class_that_a_machine_declined_it_gets_another_of_the_same_type():
    fleet = Driven(box("desk"))
    fleet.wait(1, cpu_job())
    fleet.wait(2, cpu_job())
    found = fleet.scheduler.choose("desk", 0.0, instead=instead_of(1))
    assert isinstance(found, StartDecision)
    assert (found.head.class_id, found.allocation.class_id) == (2, 2)


def test_in_place_of_what_a_machine_declined_it_gets_the_same_type_of_a_lower_priority():
    fleet = Driven(box("desk"))
    fleet.wait(1, cpu_job(), priority=5)
    fleet.wait(2, cpu_job())
    found = fleet.scheduler.choose("desk", 0.0, instead=instead_of(1))
    assert isinstance(found, StartDecision)
    assert found.head.class_id == 2


def test_a_machine_that_declined_all_that_fits_is_told_so_and_others_do_not_wait_for_it():
    fleet = Driven(
        box("desk", card("GPU-1", name="NVIDIA H100")), box("lab", card("GPU-2", name="NVIDIA GeForce GTX 1080"))
    )
    fleet.ask("desk")
    fleet.wait(1, gpu_job())
    assert refused(fleet.ask("lab")).waiting == {"better_machine_free": 1}
    fleet.scheduler.doubt("desk", is_doubted=True)
    found = fleet.scheduler.choose("desk", 0.0, tells=True, instead=instead_of(1))
    assert refused(found).waiting == {"declined": 1}
    assert fleet.scheduler.calls(0.0) == ["lab"]
    assert isinstance(fleet.ask("lab"), StartDecision)


def test_a_machine_that_wants_nothing_now_is_not_waited_for():
    fleet = Driven(
        box("desk", card("GPU-1", name="NVIDIA H100")), box("lab", card("GPU-2", name="NVIDIA GeForce GTX 1080"))
    )
    fleet.ask("desk")
    fleet.wait(1, gpu_job())
    assert refused(fleet.ask("lab")).waiting == {"better_machine_free": 1}
    fleet.scheduler.withdraw("desk")
    assert isinstance(fleet.ask("lab"), StartDecision)


def test_a_job_is_measured_from_its_start_and_not_from_its_grant():
    fleet = Driven(box("desk"))
    for _ in range(3):
        fleet.wait(1, cpu_job())
        allocation = fleet.grant("desk").allocation
        fleet.scheduler.leases.started(allocation, 500.0)
        fleet.scheduler.release(allocation, 560.0, is_completed=True)
    assert fleet.scheduler.durations.expected_s(1) == pytest.approx(60.0)


def test_parts_of_the_fleet_are_found_again_when_it_grows():
    fleet = Driven(box("desk", card("GPU-1")))
    fleet.wait(1, gpu_job())
    fleet.grant("desk")
    (lease,) = fleet.scheduler.machines.leases()
    assert lease.usage_rate == 1.0
    for number in range(3):
        fleet.put(box(f"lab{number}", card(f"GPU-lab{number}")))
    fleet.ask("lab0", now_s=10.0)
    assert lease.usage_rate == pytest.approx(0.25)


def test_a_lease_counts_for_its_user_only_once_the_size_of_the_fleet_is_known():
    fleet = Driven()
    fleet.scheduler.put_class(1, cpu_job(), user="ada")
    fleet.scheduler.leases.restore(LeaseAllocation("desk", 1), 0.0)
    assert fleet.scheduler.shares.views(["ada"], 100.0)["ada"].usage_s == 0.0
    fleet.put(box("desk"))
    fleet.ask("desk", now_s=100.0)
    assert 0.0 < fleet.scheduler.shares.views(["ada"], 200.0)["ada"].usage_s < 700.0


def test_machines_that_differ_only_in_what_is_measured_are_of_one_node_type():
    fleet = Driven()
    for number, free_gib in enumerate((24, 23, 7)):
        ram_bytes = 32 * GIB - number * (1 << 20)
        fleet.put(box(f"m{number}", card(f"GPU-{number}", free_bytes=free_gib * GIB), ram_total_bytes=ram_bytes))
    fleet.put(box("m0", card("GPU-0", free_bytes=11 * GIB)), closed="drained")
    assert [table.count for table in fleet.scheduler.tables.tables] == [2]
