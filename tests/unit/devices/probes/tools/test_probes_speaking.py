from __future__ import annotations

import pytest

from stoker.core.device import Backend
from stoker.devices.probes.others import BACKEND_PROBES, read
from stoker.host.command_runner import ProbeFailure, ProbeOutput
from tests.fakes.asker import recorded

BY_NAME = {one.probe: one for one in BACKEND_PROBES}


@pytest.mark.parametrize(
    ("name", "backends"),
    [
        ("vulkaninfo/1.3-discrete-and-llvmpipe.txt", {Backend.WEBGPU: "Vulkan 1.3.277"}),
        ("vulkaninfo/only-llvmpipe.txt", {}),
        ("clinfo/nvidia-and-pocl.txt", {Backend.OPENCL: "3.0"}),
        ("clinfo/only-pocl.txt", {}),
        ("clinfo/no-platforms.txt", {}),
        ("sycl-ls/2023-arc.txt", {Backend.ONEAPI: "1.3.26241"}),
        ("sycl-ls/2025-arc.txt", {Backend.ONEAPI: "1.6.31294"}),
        ("sycl-ls/only-cpu.txt", {}),
        ("glxinfo/nvidia.txt", {Backend.OPENGL: "4.6"}),
        ("glxinfo/llvmpipe.txt", {}),
    ],
)
def test_what_has_hardware_behind_it_can_be_spoken(name: str, backends: dict[Backend, str]) -> None:
    assert read(BY_NAME[name.partition("/")[0]], recorded(name)).backends == backends


def test_words_that_only_contain_a_backend_do_not_count() -> None:
    assert read(BY_NAME["glxinfo"], ProbeOutput(out="single, glib, mingle, wiggle\n")).backends == {}
    assert (
        read(BY_NAME["clinfo"], ProbeOutput(out="CL_DEVICE_TYPE  CL_DEVICE_TYPE_CPU, not a GPUish one\n")).backends
        == {}
    )


@pytest.mark.parametrize("speaker", BACKEND_PROBES, ids=lambda one: one.probe)
def test_a_program_that_fails_or_hangs_is_a_finding(speaker) -> None:
    assert [one.code for one in read(speaker, ProbeOutput(out="", err="no driver", exit_code=1)).findings] == [
        "probe_garbage"
    ]
    assert [one.code for one in read(speaker, ProbeFailure(why="hangs", code="probe_timeout")).findings] == [
        "probe_timeout"
    ]
