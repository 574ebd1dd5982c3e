from __future__ import annotations

import pytest

from stoker.core.device import GIB
from stoker.core.machine import DevicePreference, Gpu, Node, SchedulableJob
from stoker.scheduler.calls import ANSWER_S
from stoker.scheduler.leases import BackfillHold, HoldDecision, HoldReason, StartReason
from tests.unit.scheduler.policy_fleet import HOUR_S, Fleet, board, cpu, device, node


def busy(fleet: Fleet) -> Fleet:
    """Let something run somewhere, so that jobs may wait for a faster machine at all."""
    fleet.scheduler.work.running += 1
    return fleet


def small_gpu(name: str) -> Node:
    return Node(name=name, host=name, gpus=(Gpu(uuid=name, type="RTX 4090", vram_mb=8192),), cpu_cores=16)


def test_the_oldest_job_that_fits_starts_first() -> None:
    fleet = busy(Fleet([node("a", "RTX 4090")], device(8), device(9)))
    fleet.come(1)
    fleet.come(0, 50)
    assert fleet.ask("a") == (1, StartReason.OLDEST)


def test_a_job_that_does_not_fit_is_passed() -> None:
    fleet = busy(Fleet([node("a", "RTX 4090"), node("b", "A100", "A100")], device(8, device_count=2), device(9)))
    fleet.come(0)
    fleet.come(1, 50)
    assert fleet.ask("a") == (1, StartReason.OLDEST)


def test_a_higher_priority_starts_before_older_jobs() -> None:
    fleet = busy(Fleet([node("a", "RTX 4090")], device(8), device(9)))
    fleet.come(0, 50)
    fleet.come(1, 20, priority=3)
    assert fleet.ask("a") == (1, StartReason.OLDEST)


def test_a_large_machine_is_left_to_jobs_that_need_it() -> None:
    fleet = busy(Fleet([node("large", "RTX 4090"), *map(small_gpu, ("s0", "s1", "s2", "s3"))], device(4), device(20)))
    fleet.come(0, 10)
    fleet.come(1, 90)
    assert fleet.ask("large") == (1, StartReason.OLDEST)
    assert fleet.ask("s0") == (0, StartReason.OLDEST)


def test_a_large_machine_is_free_for_others_when_no_job_that_needs_it_is_ready() -> None:
    fleet = busy(Fleet([node("large", "RTX 4090"), small_gpu("s")], device(4), device(20)))
    fleet.come(0, 10)
    fleet.come(1, 90)
    assert fleet.ask("large") == (1, StartReason.OLDEST)
    while fleet.left(1):
        fleet.go(1)
    picked = fleet.ask("large")
    assert picked is not None
    assert picked[0] == 0


def test_a_slow_machine_does_not_start_what_would_outlast_the_rest() -> None:
    fleet = busy(Fleet([node("fast", "RTX 4090"), board()], device(8, hours=1)))
    fleet.come(0, 3)
    assert fleet.ask("board") is None
    hold = fleet.scheduler.choose("board", 0.0, tells=True)
    assert isinstance(hold, HoldDecision)
    assert hold.waiting == {HoldReason.FASTER: 3}
    fleet.come(0, 200)
    assert fleet.ask("board") == (0, StartReason.OLDEST)


def test_no_job_is_held_back_for_longer_than_twice_what_a_faster_machine_saves() -> None:
    fleet = busy(Fleet([node("fast", "RTX 4090"), board()], device(8, hours=1)))
    fleet.run(0, "fast")
    fleet.come(0, 3)
    assert fleet.ask("board") is None
    until_s = fleet.scheduler.next_call_s
    assert until_s is not None
    fast_s, board_s = sorted(next(iter(table.here_s.values())) for table in fleet.scheduler.tables.tables)
    assert until_s == pytest.approx(2 * (board_s - fast_s))
    fleet.now_s = until_s - 1
    assert fleet.ask("board") is None
    fleet.now_s = until_s
    assert fleet.called() == ["board"]
    assert fleet.ask("board") == (0, StartReason.OLDEST)


def test_nothing_waits_for_a_faster_machine_where_nothing_runs() -> None:
    fleet = Fleet([node("fast", "RTX 4090"), board()], device(8))
    fleet.come(0)
    assert fleet.ask("board") == (0, StartReason.OLDEST)


def test_a_job_without_an_estimate_is_not_held_back_for_a_faster_machine() -> None:
    fleet = busy(Fleet([node("fast", "RTX 4090"), board()], device(8, hours=None)))
    fleet.come(0, 3)
    assert fleet.ask("board") == (0, StartReason.OLDEST)


def test_a_job_over_several_devices_starts_early_where_it_fits() -> None:
    fleet = busy(Fleet([node("pair", "A100", "A100")], device(8), device(8, device_count=2)))
    fleet.come(0, 3)
    fleet.come(1)
    fleet.come(0, 96)
    assert fleet.ask("pair") == (1, StartReason.WIDE)


def test_an_adapter_starts_where_its_base_is() -> None:
    fleet = busy(
        Fleet(
            [node("shared", "RTX 4090", slots=9, shares=True)],
            device(6, may_share=True),
            device(6, may_share=True, base="llama", base_bytes=4 * GIB),
        )
    )
    fleet.run(1, "shared", is_shared=True)
    fleet.come(0, 3)
    fleet.come(1)
    fleet.come(0, 96)
    assert fleet.ask("shared") == (1, StartReason.RESIDENT)


def passed_too_often(*more: Node) -> Fleet:
    """Return a pair of devices, one in use, and a job for both that was passed by twenty others."""
    fleet = Fleet(
        [node("pair", "A100", "A100"), *more], device(8, hours=0.5), device(8, device_count=2), device(7, hours=0.01)
    )
    fleet.run(0, "pair")
    fleet.come(1)
    fleet.come(0, 100)
    for _ in range(20):
        fleet.go(0)
    fleet.now_s = HOUR_S / 2 / 1.2 - 60
    return fleet


def test_a_machine_is_kept_for_a_job_that_was_passed_too_often() -> None:
    fleet = passed_too_often()
    running = fleet.scheduler.machines.machines["pair"].leases[0].allocation
    assert fleet.ask("pair") is None
    assert fleet.scheduler.policy.reservations.times_kept == 1
    fleet.scheduler.release(running, fleet.now_s)
    assert fleet.ask("pair") == (1, StartReason.KEPT)


def test_a_kept_machine_starts_what_is_over_in_time() -> None:
    fleet = passed_too_often()
    fleet.come(2, 5)
    assert fleet.ask("pair") == (2, StartReason.OLDEST)
    assert fleet.scheduler.policy.reservations.times_kept == 1


def test_a_kept_machine_is_called_when_the_job_it_is_kept_for_is_gone() -> None:
    fleet = passed_too_often()
    assert fleet.ask("pair") is None
    fleet.called()
    fleet.go(1)
    assert fleet.called() == ["pair"]
    assert fleet.ask("pair") == (0, StartReason.OLDEST)


def test_a_kept_machine_starts_what_takes_nothing_that_the_job_needs() -> None:
    fleet = Fleet([node("pair", "A100", "A100")], device(8), device(8, device_count=2), cpu(hours=9))
    fleet.run(0, "pair")
    fleet.now_s = 60.0
    fleet.come(1, priority=5)
    fleet.come(0, 3)
    assert fleet.ask("pair") is None, "the free device is kept for the job of higher priority"
    fleet.come(2)
    picked = fleet.ask("pair")
    assert picked is not None
    assert picked[0] == 2


def test_a_job_for_the_cpu_is_no_reason_to_keep_a_device() -> None:
    fleet = Fleet([node("one", "RTX 4090")], device(8), cpu())
    fleet.run(0, "one")
    fleet.come(0)
    fleet.come(1, 100)
    assert fleet.ask("one") == (1, StartReason.OLDEST)
    assert fleet.scheduler.policy.reservations.times_kept == 0


def test_near_the_end_the_longest_job_starts_first() -> None:
    fleet = busy(Fleet([node("one", "RTX 4090")], device(8, hours=0.1), device(9, hours=5)))
    fleet.come(0, 2)
    fleet.come(1)
    assert fleet.ask("one") == (1, StartReason.LONGEST)


def test_jobs_that_ask_for_the_same_but_take_another_time_are_different_types() -> None:
    fleet = busy(Fleet([node("a", "RTX 4090")], device(8, hours=1), device(8, hours=2)))
    fleet.come(1)
    fleet.come(0, 50)
    assert fleet.ask("a") == (1, StartReason.OLDEST)


def test_of_two_idle_machines_the_fast_one_gets_the_job_whoever_asks_first() -> None:
    for hours in (1.0, None):
        fleet = Fleet([board("slow"), node("fast", "RTX 4090")], device(8, hours=hours))
        assert fleet.ask("slow") is None
        assert fleet.ask("fast") is None
        fleet.come(0)
        assert fleet.called() == ["fast"]
        assert fleet.ask("slow") is None, "the fast one is free"
        assert fleet.start("fast") is not None


def test_a_machine_that_is_called_and_does_not_ask_is_not_waited_for() -> None:
    fleet = Fleet([board("slow"), node("fast", "RTX 4090")], device(8, hours=None))
    assert fleet.ask("slow") is None
    assert fleet.ask("fast") is None
    fleet.come(0)
    assert fleet.called() == ["fast"]
    assert fleet.ask("slow") is None
    fleet.now_s = ANSWER_S
    assert fleet.called() == ["slow"]
    assert fleet.ask("slow") == (0, StartReason.OLDEST)


def test_the_user_with_the_smaller_share_goes_first() -> None:
    fleet = Fleet([node("a", "RTX 4090"), node("b", "RTX 4090")], device(8), users=("ada", "bob"))
    fleet.come(0, 5)
    fleet.come(1, 5)
    first = fleet.start("a")
    second = fleet.start("b")
    assert first is not None
    assert second is not None
    fleet.now_s = 60.0
    assert {first.class_id, second.class_id} == {0, 1}
    fleet.scheduler.release(second, 60.0)
    fleet.now_s = HOUR_S
    assert fleet.ask("b") == (second.class_id, StartReason.OLDEST), "the other one uses a machine all the time"


def test_a_job_prefers_devices_and_runs_on_the_cpu_only_where_that_is_not_too_slow() -> None:
    fleet = busy(
        Fleet([node("one", "RTX 4090"), node("none")], device(8, wish=DevicePreference.PREFER, hours=0.01), device(9))
    )
    fleet.come(0, 5)
    fleet.come(1, 200)
    assert fleet.ask("one") == (1, StartReason.OLDEST), "the CPU costs nothing here, the device does"
    assert fleet.ask("none") == (0, StartReason.OLDEST)


def test_a_job_type_that_is_new_does_not_disturb_queues_that_have_none_of_it() -> None:
    fleet = Fleet([node("a", "RTX 4090")], device(8))
    fleet.come(0)
    asked, expected_s = device(9)
    fleet.scheduler.put_class(7, SchedulableJob(name="job", requirements=asked), expected_s=expected_s)
    assert fleet.ask("a") == (0, StartReason.OLDEST)


def test_a_parked_machine_that_a_new_job_names_is_called_for_it() -> None:
    fleet = Fleet([node("a", "RTX 4090"), node("b", "RTX 4090")], device(8))
    assert fleet.ask("a") is fleet.ask("b") is None
    asked, expected_s = device(9)
    wanted = SchedulableJob(name="job", requirements=asked, allowed_hosts=("a", "b"), preferred_hosts=("b",))
    fleet.scheduler.put_class(7, wanted, expected_s=expected_s)
    fleet.come(7)
    assert fleet.called() == ["b"]
    assert fleet.ask("b") == (7, StartReason.OLDEST)
    fleet.scheduler.remove_machine("a")


def test_machines_that_were_parked_before_a_job_type_was_known_are_called_for_it() -> None:
    fleet = Fleet([node("a", "RTX 4090")], device(8))
    assert fleet.ask("a") is None
    asked, expected_s = device(9)
    fleet.scheduler.put_class(7, SchedulableJob(name="job", requirements=asked), expected_s=expected_s)
    fleet.come(7)
    assert fleet.called() == ["a"]


def test_when_one_of_two_classes_of_a_type_is_used_up_the_other_keeps_its_place() -> None:
    fleet = busy(Fleet([node("a", "RTX 4090")], device(8, hours=None), device(9, hours=None), device(9, hours=None)))
    fleet.come(1)
    fleet.come(0)
    fleet.come(2)
    fleet.go(1)
    assert fleet.ask("a") == (0, StartReason.OLDEST)


def test_a_class_that_comes_beside_an_older_one_of_its_type_does_not_take_its_place() -> None:
    fleet = busy(Fleet([node("a", "RTX 4090")], device(9, hours=None), device(9, hours=None)))
    fleet.come(1)
    fleet.come(0)
    assert fleet.ask("a") == (1, StartReason.OLDEST)


def test_a_job_that_prefers_devices_waits_for_one_of_this_machine_instead_of_taking_its_cpu() -> None:
    fleet = Fleet([node("desk", "RTX 4090")], device(8), device(8, wish=DevicePreference.PREFER))
    running = fleet.run(0, "desk")
    fleet.come(1)
    assert fleet.ask("desk") is None
    assert fleet.scheduler.choose("desk", fleet.now_s, tells=True) == HoldDecision(waiting={HoldReason.FASTER: 1})
    fleet.now_s += HOUR_S
    fleet.scheduler.release(running, fleet.now_s)
    assert fleet.called() == ["desk"]
    started = fleet.start("desk")
    assert started is not None
    assert started.devices == ("desk-0",)


def test_a_job_that_prefers_devices_does_not_take_the_cpu_of_a_machine_that_has_none() -> None:
    fleet = Fleet([node("desk", "RTX 4090", slots=1), node("box")], device(8), device(8, wish=DevicePreference.PREFER))
    fleet.run(0, "desk")
    fleet.come(1)
    assert fleet.ask("box") is None


def test_a_job_that_prefers_devices_takes_the_cpu_where_it_ends_sooner_there() -> None:
    fleet = Fleet([node("desk", "RTX 4090")], device(8, hours=500.0), device(8, wish=DevicePreference.PREFER))
    fleet.run(0, "desk")
    fleet.come(1)
    # On the CPU 100 hours, on the device 1 after 500: the CPU is sooner.
    started = fleet.start("desk")
    assert started is not None
    assert started.devices == ()


def test_a_job_that_prefers_devices_waits_for_a_preferred_host_instead_of_taking_the_cpu_of_another() -> None:
    fleet = Fleet(
        [node("desk", "RTX 4090", priority=1, slots=1), node("box", "RTX 4090")],
        device(8),
        device(8, wish=DevicePreference.PREFER),
    )
    fleet.run(0, "desk")
    fleet.run(0, "box")
    fleet.come(1)
    assert fleet.ask("box") is None


def test_a_machine_is_not_kept_for_a_low_priority_while_a_higher_one_of_its_type_waits_for_a_faster_machine() -> None:
    fleet = Fleet(
        [node("desk", "RTX 4090", slots=1), node("box", slots=2)],
        device(8),
        device(8, wish=DevicePreference.PREFER),
        cpu(),
    )
    fleet.run(0, "desk")
    fleet.come(1, 1, priority=5)
    fleet.come(1, 1000)
    box, policy = fleet.scheduler.machines.machines["box"], fleet.scheduler.policy
    assert fleet.ask("box") is None
    queue = fleet.scheduler.ready.levels[0][""]
    one = fleet.scheduler.ready.classes[1].type
    assert one.bits & box.table.worth_starting(fleet.scheduler.work.both_s(0.0)[0])
    kept = BackfillHold(queue, one, 0.0)
    assert not policy.reservations.still_wanted(box, kept, 0.0)
    fleet.go(1, priority=5)
    assert policy.reservations.still_wanted(box, kept, 0.0)
