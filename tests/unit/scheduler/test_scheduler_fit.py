"""The rule: alone by default, sharing if somebody allows it, memory per device, lists, hosts, slots, RAM and cores."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.core.device import GIB, Backend, MemoryType
from stoker.core.frozen import changed
from stoker.core.machine import DevicePreference, SchedulableJob
from stoker.scheduler.fit import UnfitReason, choose, device_block, policy_block, shape_of
from stoker.scheduler.offers import NodeOffer, ResidentBase, Sharing
from tests.unit.scheduler.fleets import card, gpu_job, job, machine


def fits(wanted: SchedulableJob, offer: NodeOffer) -> bool:
    return choose(shape_of(wanted), offer) is not None


def test_a_job_alone_on_a_card_may_have_all_of_it() -> None:
    assert fits(gpu_job(22 * 1024), machine("a", card(gib=24)))
    assert fits(gpu_job(24 * 1024), machine("a", card(gib=24)))
    assert not fits(gpu_job(24 * 1024 + 1), machine("a", card(gib=24)))


def test_what_was_measured_free_counts_not_what_the_card_has() -> None:
    busy = machine("a", card(gib=24, free_bytes=10 * GIB))
    assert fits(gpu_job(10 * 1024), busy)
    assert not fits(gpu_job(10 * 1024 + 1), busy)


def test_unified_memory_is_never_the_devices_alone_unless_it_was_measured_free() -> None:
    board = card(gib=8, memory_type=MemoryType.UNIFIED)
    assert not fits(gpu_job(6 * 1024), machine("a", board))
    assert fits(gpu_job(6 * 1024), machine("a", changed(board, free_bytes=7 * GIB)))


def test_memory_of_several_cards_is_never_added() -> None:
    two = machine("a", card("GPU-1", 20), card("GPU-2", 20))
    assert not fits(gpu_job(30 * 1024), two)
    assert fits(gpu_job(18 * 1024, device_count=2), two)
    assert not fits(gpu_job(18 * 1024, device_count=3), two)


def test_several_devices_may_be_of_several_kinds_and_each_must_have_the_memory() -> None:
    mixed = machine("a", card("GPU-1", 24), card("GPU-2", 10, type="rtx-3080"))
    assert fits(gpu_job(9 * 1024, device_count=2), mixed)
    assert not fits(gpu_job(11 * 1024, device_count=2), mixed)


@pytest.mark.parametrize(
    ("sharing", "may_share", "is_shared"),
    [
        (Sharing.ALWAYS, False, True),
        (Sharing.ALWAYS, True, True),
        (Sharing.ASKED, False, False),
        (Sharing.ASKED, True, True),
        (Sharing.NEVER, True, False),
    ],
    ids=["node", "both", "neither", "job", "owner-says-no"],
)
def test_a_device_is_shared_if_the_job_or_the_node_allows_it(
    sharing: Sharing, may_share: bool, is_shared: bool
) -> None:
    choice = choose(shape_of(gpu_job(6000, may_share=may_share)), machine("a", card(sharing=sharing)))
    assert choice is not None
    assert choice.devices[0].is_shared is is_shared


def test_who_does_not_say_how_much_shares_with_nobody() -> None:
    choice = choose(shape_of(gpu_job(0, may_share=True)), machine("a", card(sharing=Sharing.ALWAYS)))
    assert choice is not None
    assert not choice.devices[0].is_shared


def test_a_job_of_several_devices_shares_none() -> None:
    busy = card("GPU-2", sharing=Sharing.ALWAYS, jobs=1, promised_bytes=GIB)
    pair = machine("a", card("GPU-1", sharing=Sharing.ALWAYS), busy)
    assert not fits(gpu_job(2000, device_count=2), pair)
    assert fits(gpu_job(2000), pair)


def test_a_shared_device_is_full_to_the_mib() -> None:
    usable = card().usable_bytes
    busy = machine("a", card(sharing=Sharing.ALWAYS, jobs=1, promised_bytes=usable - 2 * GIB), slots=3)
    assert fits(gpu_job(2048), busy)
    assert not fits(gpu_job(2049), busy)


def test_a_base_that_is_there_is_charged_once() -> None:
    base = ResidentBase(base="llama", size_bytes=4 * GIB, jobs=1)
    usable = card().usable_bytes
    device = card(sharing=Sharing.ALWAYS, jobs=1, promised_bytes=usable - GIB, bases=(base,))
    assert fits(gpu_job(5 * 1024, base="llama", base_bytes=4 * GIB), machine("a", device, slots=2))
    assert not fits(gpu_job(5 * 1024, base="qwen", base_bytes=4 * GIB), machine("a", device, slots=2))


@pytest.mark.parametrize(
    ("device", "block"),
    [
        (card(closed="cordoned"), UnfitReason.CLOSED),
        (card(backend=Backend.ROCM), UnfitReason.BACKEND),
        (card(gib=4), UnfitReason.TOO_SMALL),
        (card(is_held=True, jobs=1), UnfitReason.HELD),
        (card(jobs=1, promised_bytes=GIB), UnfitReason.IN_USE),
        (card(sharing=Sharing.ALWAYS, jobs=2, slots=2), UnfitReason.DEVICE_SLOTS),
        (card(sharing=Sharing.ALWAYS, jobs=1, promised_bytes=18 * GIB), UnfitReason.ROOM),
        (card(), None),
    ],
    ids=lambda value: str(value) if isinstance(value, UnfitReason) else "",
)
def test_a_device_says_what_is_in_the_way(device, block: UnfitReason | None) -> None:
    assert device_block(shape_of(gpu_job(6000)), device) is block


def test_deny_beats_allow_and_both_match_the_job_the_trial_s_job_and_the_model() -> None:
    def block(wanted: SchedulableJob, **lists: Any) -> UnfitReason | None:
        return policy_block(shape_of(wanted), machine("a", **lists))

    assert block(job("x", model="gbt"), allow_jobs=("gbt",)) is None
    assert block(job("gbt"), allow_jobs=("gbt",)) is None
    assert block(job("gbt/12"), allow_jobs=("gbt",)) is None
    assert block(job("gbt/rest"), allow_jobs=("gbt",)) is UnfitReason.NOT_ALLOWED
    assert block(job("x", model="gbt"), allow_jobs=("gbt",), deny_jobs=("x",)) is UnfitReason.DENIED
    assert block(job("x"), deny_jobs=("gbt",)) is None
    assert block(job("x", model="language/lora"), deny_jobs=("lora",)) is UnfitReason.DENIED
    assert block(job("x", model="language/lora"), deny_jobs=("language",)) is None
    assert block(job("x", allowed_hosts=("b",))) is UnfitReason.HOST
    assert block(job("x"), closed="drained") is UnfitReason.CLOSED


def test_who_prefers_a_device_takes_the_cpu_only_where_none_fits() -> None:
    wanted = job(wish=DevicePreference.PREFER, vram_bytes=6 * GIB)
    on_card = choose(shape_of(wanted), machine("a", card()))
    on_cpu = choose(shape_of(wanted), machine("a", card(gib=4)))
    assert on_card is not None
    assert on_card.devices
    assert on_cpu is not None
    assert not on_cpu.devices


def test_the_memory_minimum_of_who_prefers_is_not_ignored() -> None:
    assert not fits(gpu_job(30 * 1024), machine("a", card()))
    choice = choose(shape_of(job(wish=DevicePreference.PREFER, vram_bytes=30 * GIB)), machine("a", card()))
    assert choice is not None
    assert not choice.devices


def test_ram_and_cores_are_taken_by_jobs_on_devices_too() -> None:
    small = machine("a", card(), ram_bytes=8 * GIB, cores=4, ram_held_bytes=3 * GIB, cores_held=1)
    assert fits(gpu_job(1000, ram_bytes=5 * GIB, cores=3), small)
    assert not fits(gpu_job(1000, ram_bytes=5 * GIB + 1), small)
    assert not fits(gpu_job(1000, cores=4), small)


def test_a_machine_that_nobody_measured_is_not_asked_for_ram() -> None:
    assert fits(job(ram_bytes=900 * GIB, cores=500), machine("a"))


def test_a_slot_per_device_counts_devices_in_use_and_jobs_on_the_cpu() -> None:
    one = machine("a", card(sharing=Sharing.ASKED, jobs=1, promised_bytes=GIB), jobs=1)
    assert fits(gpu_job(2000, may_share=True), one), "who shares a device in use needs no slot"
    assert not fits(job(), one)
    on_cpu = machine("a", card(), jobs=1, cpu_jobs=1)
    assert not fits(gpu_job(2000), on_cpu)


def test_counted_slots_are_taken_by_every_job() -> None:
    counted = machine("a", card(sharing=Sharing.ALWAYS, jobs=3, promised_bytes=GIB), slots=3, is_slot_per_device=False)
    assert not fits(gpu_job(1000), changed(counted, jobs=3))
    assert fits(gpu_job(1000), changed(counted, jobs=2))
