"""Explanations: both numbers, the nearest miss, what would change it, and never."""

from __future__ import annotations

from stoker.core.device import GIB
from stoker.core.frozen import changed
from stoker.core.machine import DevicePreference, SchedulableJob
from stoker.scheduler.changes import ChangeKind
from stoker.scheduler.explain import Explanation, PlacementRequest, PlannedPlacements, explain, plan_jobs
from stoker.scheduler.offers import NodeOffer, Sharing, offer_of
from tests.unit.scheduler.fleets import DESKTOP, SAMPLE, card, gpu_job, job, machine


def whys(told: Explanation, node: str) -> list[str]:
    (verdict,) = [one for one in told.nodes if one.node == node]
    return [one.why for one in verdict.obstacles]


def changes(told: Explanation) -> dict[ChangeKind, str]:
    return {one.what: one.text for one in told.changes}


def test_never_names_the_largest_device() -> None:
    told = explain(gpu_job(30 * 1024), [machine("a", card(gib=24)), machine("b", card(gib=8))])
    assert told.never == "needs 30.0 GiB, the largest device has 24.0 GiB"
    assert told.best is None
    assert told.nearest is not None
    assert told.nearest.text == "min_vram ≤ 24.0 GiB"


def test_a_desk_that_is_taken_could_be_shared_with_these_numbers() -> None:
    board_of_one = offer_of(changed(DESKTOP, name="desk", max_adapters=1))
    (running,) = plan_jobs([PlacementRequest(job=gpu_job(6 * 1024, "resnet/1"))], [board_of_one])
    assert running.waiting == 0
    (device,) = board_of_one.devices
    taken = changed(board_of_one, jobs=1, devices=(changed(device, is_held=True, jobs=1, promised_bytes=6 * GIB),))
    told = explain(gpu_job(6 * 1024, "resnet/3"), [taken])
    assert whys(told, "desk") == ["another job uses it exclusively (6.0 GiB promised)"]
    assert (
        changes(told)[ChangeKind.SHARE_NODE] == "jobs may share desk (needs 6.0 GiB, 14.4 GiB left of 20.4 GiB usable)"
    )
    assert told.waits_for == ("desk",)


def test_a_job_that_declared_nothing_is_not_proposed_to_share() -> None:
    taken = machine("a", card(is_held=True, jobs=1), jobs=1)
    assert ChangeKind.SHARE_NODE not in changes(explain(gpu_job(1000), [taken]))


def test_the_nearest_miss_is_the_smallest_part_of_what_is_asked_for() -> None:
    fleet = [
        machine("ram", card("1"), ram_bytes=8 * GIB),
        machine("vram", card("2", gib=20), ram_bytes=64 * GIB),
    ]
    told = explain(gpu_job(22 * 1024, ram_bytes=16 * GIB), fleet)
    assert told.nearest is not None
    assert (told.nearest.node, told.nearest.text) == ("vram", "min_vram ≤ 20.0 GiB")
    assert changes(told)[ChangeKind.RAM] == "min_ram ≤ 8.0 GiB"


def test_where_one_change_is_not_enough_all_amounts_are_told_at_once() -> None:
    told = explain(gpu_job(22 * 1024, ram_bytes=16 * GIB, cores=8), [machine("a", card(gib=8), ram_bytes=GIB, cores=4)])
    assert told.nearest is not None
    assert told.nearest.text == "min_ram ≤ 1.0 GiB and min_cores ≤ 4 and min_vram ≤ 8.0 GiB"


def test_who_could_join_a_device_in_use_is_not_told_of_slots() -> None:
    busy = machine("a", card(jobs=1, promised_bytes=GIB), jobs=1, ram_bytes=GIB)
    told = explain(gpu_job(1000, may_share=True, ram_bytes=2 * GIB), [busy])
    assert whys(told, "a") == ["needs 2.0 GiB RAM, 1.0 GiB left of 1.0 GiB"]


def test_numbers_that_look_alike_are_told_in_mib() -> None:
    (device,) = offer_of(DESKTOP).devices
    busy = changed(offer_of(DESKTOP), jobs=1, devices=(changed(device, jobs=1, promised_bytes=8000 * 1024**2),))
    told = explain(gpu_job(12880), [busy])
    assert whys(told, "desktop") == ["needs 12880 MiB, 12879 MiB left of 20879 MiB usable (7.8 GiB promised to 1 job)"]


def test_reasons_come_in_system_a_s_order() -> None:
    full = machine("a", card(gib=4), ram_bytes=GIB, cores=2, jobs=1, cpu_jobs=1, is_slot_per_device=False, slots=1)
    told = explain(gpu_job(6 * 1024, ram_bytes=4 * GIB, cores=4), [full])
    assert whys(told, "a") == [
        "needs 6.0 GiB, has 4.0 GiB",
        "needs 4.0 GiB RAM, 1.0 GiB left of 1.0 GiB",
        "needs 4 cores, 2 left of 2",
        "its slot is taken (1 job)",
    ]


def test_policy_is_told_and_what_would_allow_it() -> None:
    fleet = [machine("a", card(), deny_jobs=("lora",)), machine("b", card(), allow_jobs=("gbt",))]
    told = explain(gpu_job(1000, "lora"), fleet)
    assert whys(told, "a") == ["denies lora"]
    assert whys(told, "b") == ["allows only gbt"]
    assert changes(told)[ChangeKind.LISTS] == "a does not deny lora"
    elsewhere = explain(gpu_job(1000, allowed_hosts=("z",)), fleet[1:])
    assert elsewhere.never == "none of its allowed hosts is on this fleet (z)"


def test_every_device_has_a_score_with_terms_or_a_reason() -> None:
    told = explain(gpu_job(8000), SAMPLE)
    desktop, edge, box = told.nodes
    assert told.best == "desktop"
    assert [term.name for term in desktop.terms] == ["room", "speed", "load"]
    assert desktop.devices[0].terms == desktop.terms
    assert edge.devices[0].obstacle is not None
    assert edge.devices[0].obstacle.missing == (8000 - 4915) * 1024**2
    assert [one.why for one in box.obstacles] == ["needs 1 cuda device, has none"]


def test_fewer_devices_and_the_cpu_are_proposed() -> None:
    told = explain(gpu_job(1000, device_count=2), [machine("a", card())])
    assert told.never == "needs 2 devices on one machine, none has more than 1"
    assert changes(told)[ChangeKind.DEVICES] == "it takes 1 device instead of 2"
    assert changes(told)[ChangeKind.CPU] == "it does not require a device (on the CPU of a)"


def test_memory_that_strangers_hold_is_told_as_measured() -> None:
    told = explain(gpu_job(20 * 1024), [machine("a", card(gib=24, free_bytes=10 * GIB))])
    assert whys(told, "a") == ["needs 20.0 GiB, 10.0 GiB of 24.0 GiB measured free"]
    assert told.never == ""
    assert told.waits_for == ("a",)


def test_the_cost_rule_s_word_is_shown_even_where_it_is_not_followed() -> None:
    wanted = job(wish=DevicePreference.PREFER, transfer_mb=1.0, mflop=100.0, vram_bytes=GIB)
    followed = explain(wanted, [machine("a", card())])
    ignored = explain(wanted, [machine("a", card())], cost=None)
    assert followed.advice == ignored.advice
    assert followed.advice.is_against
    assert (followed.is_advised_against, ignored.is_advised_against) == (True, False)
    assert followed.nodes[0].on == ()
    assert ignored.nodes[0].on == ("GPU-1",)


def planned(jobs: list[tuple[SchedulableJob, int]], fleet: list[NodeOffer]) -> tuple[PlannedPlacements, ...]:
    return plan_jobs([PlacementRequest(job=one, count=count) for one, count in jobs], fleet)


def test_the_higher_priority_is_placed_first_and_answers_come_in_the_order_of_the_file() -> None:
    low, high = planned([(gpu_job(1000, "low"), 1), (gpu_job(1000, "high", priority=5), 1)], [machine("a", card())])
    assert (low.waiting, high.waiting) == (1, 0)
    assert low.explanation is not None
    assert low.explanation.waits_for == ("a",)
    assert high.explanation is None


def test_a_sweep_s_trials_are_placed_until_one_has_to_wait() -> None:
    shared = machine("a", card(sharing=Sharing.ALWAYS), slots=3, is_slot_per_device=False)
    (sweep,) = planned([(gpu_job(2000, "sweep"), 1000)], [shared])
    assert (len(sweep.placed), sweep.waiting) == (3, 997)
    assert sweep.explanation is not None
    assert [one.why for one in sweep.explanation.nodes[0].obstacles] == ["all 3 slots are taken (3 jobs)"]
