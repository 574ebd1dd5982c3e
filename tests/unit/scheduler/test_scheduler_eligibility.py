from __future__ import annotations

from typing import Any

import pytest

from stoker.model.devices import MIB, Backend
from stoker.model.requirements import Requirements, Wish
from stoker.model.resources import GIB
from stoker.scheduler.eligibility import can_run
from tests.unit.hardware.machines import NO, capability, device

UNMEASURED = "nobody could say how much RAM is available"


def needs(wish: Wish = Wish.REQUIRE, **more: Any) -> Requirements:
    return Requirements(wish=wish, **more)


def test_best_memory_is_the_most_free_of_any_one_device_and_never_a_sum() -> None:
    machine = capability(device(0, free_gib=11.25), device(1, free_gib=4), device(2, free_gib=90, visible=NO))
    assert machine.best_vram_bytes() == int(11.25 * GIB)
    assert capability().best_vram_bytes() == 0


@pytest.mark.parametrize(
    ("requirements", "reason"),
    [
        pytest.param(
            needs(vram_bytes=99 * GIB, ram_bytes=99 * GIB, cores=99, backend=Backend.ROCM),
            "needs rocm, and there is no such device",
            id="device",
        ),
        pytest.param(
            needs(vram_bytes=24 * GIB, ram_bytes=99 * GIB, cores=99),
            "needs 24.0 GiB of GPU memory, the best device has 11.2 GiB free",
            id="vram",
        ),
        pytest.param(
            needs(vram_bytes=8 * GIB, ram_bytes=64 * GIB, cores=99),
            "needs 64.0 GiB of RAM, 20.0 GiB are available",
            id="ram",
        ),
        pytest.param(needs(vram_bytes=8 * GIB, cores=99), "needs 99 cores, has 8", id="cores"),
    ],
)
def test_the_first_thing_that_is_missing_is_the_reason(requirements: Requirements, reason: str) -> None:
    answer = can_run(capability(device(free_gib=11.2)), requirements)
    assert (answer.ok, answer.reason, answer.devices) == (False, reason, ())


def test_whatever_fits_runs_on_the_device_with_the_most_room() -> None:
    answer = can_run(capability(device(0, free_gib=9), device(1, free_gib=12)), needs(vram_bytes=8 * GIB))
    assert (answer.ok, answer.reason, answer.devices) == (True, "runs on Card 1", ("GPU-1",))


@pytest.mark.parametrize(("more_bytes", "ok"), [(0, True), (MIB, False)], ids=["exactly", "one MiB over"])
def test_an_exact_fit_fits_and_one_mib_more_does_not(more_bytes: int, ok: bool) -> None:
    answer = can_run(capability(device(free_gib=12)), needs(vram_bytes=12 * GIB + more_bytes))
    assert answer.ok is ok
    if not ok:
        assert answer.reason.endswith("the best device has 12.0 GiB free (1.0 MiB short)")


def test_a_preferred_device_that_is_too_small_means_the_cpu_and_says_why() -> None:
    answer = can_run(capability(device(free_gib=4)), needs(Wish.PREFER, vram_bytes=8 * GIB))
    assert answer.ok
    assert not answer.uses_gpu
    assert answer.reason == "runs on the CPU: needs 8.0 GiB of GPU memory, the best device has 4.0 GiB free"


def test_a_preferred_device_that_fits_is_used() -> None:
    assert can_run(capability(device(free_gib=9)), needs(Wish.PREFER, vram_bytes=8 * GIB)).devices == ("GPU-0",)


def test_a_job_for_the_cpu_does_not_care_for_devices() -> None:
    answer = can_run(capability(), needs(Wish.NEVER, vram_bytes=8 * GIB))
    assert (answer.ok, answer.reason) == (True, "runs on the CPU")


def test_several_devices_each_need_the_memory() -> None:
    machine = capability(device(0, free_gib=20), device(1, free_gib=6))
    both = needs(vram_bytes=8 * GIB, device_count=2)
    assert can_run(machine, both).reason == (
        "needs 8.0 GiB of GPU memory on each of 2 devices, 1 has that; the next has 6.0 GiB free"
    )
    assert can_run(machine, needs(device_count=3)).reason == "needs 3 cuda devices, 2 can be used here"
    assert can_run(machine, needs(vram_bytes=6 * GIB, device_count=2)).devices == ("GPU-0", "GPU-1")


def test_a_hidden_device_is_no_device_and_the_reason_is_told() -> None:
    assert can_run(capability(device(visible=NO)), needs()).reason == (
        "needs cuda, and no such device can be used: CUDA_VISIBLE_DEVICES is empty"
    )


def test_memory_that_nobody_measured_counts_whole_and_the_reason_says_so() -> None:
    machine = capability(device(free_gib=None))
    assert can_run(machine, needs(vram_bytes=24 * GIB)).ok
    assert can_run(machine, needs(vram_bytes=25 * GIB)).reason == (
        "needs 25.0 GiB of GPU memory, the best device has 24.0 GiB in all (nobody measured how much of it is free)"
    )


def test_a_device_of_unknown_size_is_offered_to_nobody() -> None:
    assert can_run(capability(device(total_gib=None, free_gib=None)), needs()).reason == (
        "needs cuda, and no such device can be used: nobody could say how much memory Card 0 has"
    )


def test_memory_of_the_machine_that_nobody_can_read_refuses_nobody() -> None:
    unknown = can_run(capability(ram_total_bytes=None, ram_available_bytes=None), needs(Wish.NEVER))
    assert (unknown.ok, unknown.reason) == (True, f"runs on the CPU; {UNMEASURED}")
    machine = capability(device(), ram_available_bytes=None)
    assert can_run(machine, needs(ram_bytes=32 * GIB)).reason == f"runs on Card 0; {UNMEASURED}"
    assert can_run(machine, needs(ram_bytes=0)).reason == "runs on Card 0"
    assert can_run(machine, needs(Wish.NEVER, ram_bytes=33 * GIB)).reason == (
        f"needs 33.0 GiB of RAM, 32.0 GiB are there in all ({UNMEASURED})"
    )
