"""Reasons why a detected, idle machine can't run a job: order, both numbers, and what is unknown."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.core.capability import Capability
from stoker.core.device import GIB, MIB, Backend
from stoker.core.machine import DevicePreference, Requirements, SchedulableJob
from stoker.scheduler.explain import NodeVerdict, judge_node
from stoker.scheduler.fit import UnfitReason, shape_of
from stoker.scheduler.offers import agree
from stoker.scheduler.reasons import first_block
from tests.unit.devices.machines import NO, capability, device


def judge(machine: Capability, wish: DevicePreference = DevicePreference.REQUIRE, **required: Any) -> NodeVerdict:
    requirements = Requirements(wish=wish, **required)
    return judge_node(shape_of(SchedulableJob(name="", requirements=requirements)), agree(None, machine).offer)


def whys(verdict: NodeVerdict) -> list[str]:
    return [one.why for one in verdict.obstacles]


def test_the_memory_of_a_machine_is_the_most_free_of_any_one_device_and_never_a_sum() -> None:
    machine = capability(device(0, free_gib=11.25), device(1, free_gib=4), device(2, free_gib=90, visible=NO))
    (obstacle,) = judge(machine, vram_bytes=12 * GIB).obstacles
    assert (obstacle.code, obstacle.left) == (UnfitReason.TOO_SMALL, int(11.25 * GIB))
    assert judge(machine, vram_bytes=int(11.25 * GIB)).on == ("GPU-0",)


@pytest.mark.parametrize(
    ("required", "reasons"),
    [
        pytest.param(
            {"vram_bytes": 99 * GIB, "ram_bytes": 64 * GIB, "cores": 99, "backend": Backend.ROCM},
            [
                "needs 1 rocm device, has none",
                "needs 64.0 GiB RAM, 16.8 GiB left of 16.8 GiB",
                "needs 99 cores, 8 left of 8",
            ],
            id="device",
        ),
        pytest.param(
            {"vram_bytes": 24 * GIB, "ram_bytes": 64 * GIB, "cores": 99},
            [
                "needs 24.0 GiB, 11.2 GiB of 24.0 GiB measured free",
                "needs 64.0 GiB RAM, 16.8 GiB left of 16.8 GiB",
                "needs 99 cores, 8 left of 8",
            ],
            id="vram",
        ),
        pytest.param(
            {"vram_bytes": 8 * GIB, "ram_bytes": 64 * GIB, "cores": 99},
            ["needs 64.0 GiB RAM, 16.8 GiB left of 16.8 GiB", "needs 99 cores, 8 left of 8"],
            id="ram",
        ),
        pytest.param({"vram_bytes": 8 * GIB, "cores": 99}, ["needs 99 cores, 8 left of 8"], id="cores"),
        pytest.param({"vram_bytes": 8 * GIB, "cores": 8}, [], id="none"),
    ],
)
def test_reasons_are_device_memory_ram_and_cores_in_this_order_with_both_numbers(
    required: dict[str, Any], reasons: list[str]
) -> None:
    machine = capability(device(free_gib=11.2))
    verdict = judge(machine, **required)
    assert whys(verdict) == reasons
    assert verdict.fits is not bool(reasons)
    if reasons:
        shape = shape_of(SchedulableJob(name="", requirements=Requirements(wish=DevicePreference.REQUIRE, **required)))
        assert first_block(shape, agree(None, machine).offer) is verdict.obstacles[0].code


@pytest.mark.parametrize(("more_bytes", "fits"), [(0, True), (MIB, False)], ids=["exactly", "one MiB over"])
def test_an_exact_fit_fits_and_one_mib_more_does_not(more_bytes: int, fits: bool) -> None:
    verdict = judge(capability(device(free_gib=12)), vram_bytes=12 * GIB + more_bytes)
    assert verdict.fits is fits
    assert whys(verdict) == ([] if fits else ["needs 12289 MiB, 12288 MiB of 24576 MiB measured free"])


def test_a_preferred_device_that_is_too_small_means_the_cpu_and_its_reason_is_shown() -> None:
    verdict = judge(capability(device(free_gib=4)), DevicePreference.PREFER, vram_bytes=8 * GIB)
    assert (verdict.fits, verdict.on) == (True, ())
    obstacle = verdict.devices[0].obstacle
    assert obstacle is not None
    assert obstacle.why == "needs 8.0 GiB, 4.0 GiB of 24.0 GiB measured free"


def test_a_job_for_the_cpu_needs_no_devices() -> None:
    verdict = judge(capability(), DevicePreference.NEVER, vram_bytes=8 * GIB)
    assert (verdict.fits, verdict.on, verdict.obstacles) == (True, (), ())


def test_several_devices_each_need_the_memory() -> None:
    machine = capability(device(0, free_gib=20), device(1, free_gib=6))
    assert whys(judge(machine, vram_bytes=8 * GIB, device_count=2)) == ["needs 2 devices at once, 1 are suitable now"]
    assert whys(judge(machine, device_count=3)) == ["needs 3 cuda devices, has 2"]
    assert sorted(judge(machine, vram_bytes=6 * GIB, device_count=2).on) == ["GPU-0", "GPU-1"]


def test_a_hidden_device_takes_no_jobs_and_the_reason_says_why() -> None:
    assert whys(judge(capability(device(visible=NO)))) == ["takes no jobs: not visible: CUDA_VISIBLE_DEVICES is empty"]


def test_memory_that_is_not_measured_counts_whole() -> None:
    machine = capability(device(free_gib=None))
    assert judge(machine, vram_bytes=24 * GIB).fits
    assert whys(judge(machine, vram_bytes=25 * GIB)) == ["needs 25.0 GiB, has 24.0 GiB"]


def test_a_device_of_unknown_size_is_not_offered() -> None:
    assert whys(judge(capability(device(total_gib=None, free_gib=None)))) == ["needs 1 cuda device, has none"]


def test_ram_that_can_not_be_read_refuses_no_job() -> None:
    assert judge(
        capability(ram_total_bytes=None, ram_available_bytes=None), DevicePreference.NEVER, ram_bytes=99 * GIB
    ).fits
    machine = capability(device(), ram_available_bytes=None)
    assert judge(machine, ram_bytes=28 * GIB).fits
    assert whys(judge(machine, DevicePreference.NEVER, ram_bytes=33 * GIB)) == [
        "needs 33.0 GiB RAM, 28.8 GiB left of 28.8 GiB"
    ]
