"""On a machine with an NVIDIA GPU: NVML, nvidia-smi and torch say the same of it. Skips itself elsewhere.

Needs pytest and nothing else of ours; with `-s` it prints what each probe says:

    PYTHONPATH=src python -m pytest --noconftest -s tests/system/test_probes_on_gpu.py

Where nvidia-ml-py, nvidia-smi or torch is missing, that probe is left out, and the finding that says so is what is
checked.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import textwrap
import time

import pytest

from stoker.core.device import MIB, Backend, Device
from stoker.devices.meters import open_meter
from stoker.devices.probes import nvidia, others
from stoker.devices.probes.inventory import find_devices
from stoker.devices.probes.observations import DetectedDevices, DeviceReport, ProbeResult
from stoker.host.command_runner import Reply, SubprocessRunner

HAS_GPU = any(os.path.exists(f"/dev/{name}") for name in ("nvidiactl", "nvidia0", "dxg"))
HAS_NVML = bool(nvidia.library_folder())
HAS_SMI = shutil.which("nvidia-smi") is not None
HAS_TORCH = importlib.util.find_spec("torch") is not None
TORCH_LIMIT_S = 120.0
SAME_BYTES = 64 * MIB

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_GPU, reason="there is no NVIDIA device here"),
]


def found_by(*probes: str, limit_s: float = TORCH_LIMIT_S) -> DetectedDevices:
    ask = SubprocessRunner(os.environ)
    return find_devices(os.environ, ask=ask, python=sys.executable, probes=frozenset(probes), limit_s=limit_s)


def usable(found: DetectedDevices, probe: str) -> list[Device]:
    """Return the devices that a probe names and programs may see."""
    seen = [one for one in found.devices if probe in one.installed.why and one.backend is Backend.CUDA]
    return [one for one in seen if not one.visible.is_no]


def ask(argv: list[str], limit_s: float = 30.0) -> Reply:
    return SubprocessRunner(os.environ).ask(argv, limit_s=limit_s)


def wholes(statement: ProbeResult) -> dict[str, DeviceReport]:
    """Return what a probe says of devices that are not parts, by UUID."""
    print(f"\n{statement.probe}: {statement.reports} {statement.findings}")
    assert statement.is_readable, statement.findings
    return {one.uuid.lower(): one for one in statement.reports if not one.parent}


@pytest.fixture(scope="module")
def by_nvml() -> dict[str, DeviceReport]:
    if not HAS_NVML:
        pytest.skip("nvidia-ml-py is not installed")
    return wholes(nvidia.read_nvml(ask(nvidia.child_command(nvidia.library_folder(), "snapshot"))))


@pytest.fixture(scope="module")
def by_smi() -> dict[str, DeviceReport]:
    if not HAS_SMI:
        pytest.skip("nvidia-smi is not installed")
    reply = ask(nvidia.nvidia_smi_command())
    if nvidia.needs_old_columns(reply):
        reply = ask(nvidia.nvidia_smi_command(is_old=True))
    return wholes(nvidia.read_nvidia_smi(reply))


@pytest.fixture(scope="module")
def by_torch() -> dict[str, DeviceReport]:
    if not HAS_TORCH:
        pytest.skip("torch is not installed")
    return wholes(others.read_torch(ask(others.torch_command(sys.executable), TORCH_LIMIT_S)))


@pytest.fixture(scope="module")
def together() -> DetectedDevices:
    return found_by("nvml", "nvidia-smi", "torch")


def test_nvml_and_nvidia_smi_agree(by_nvml: dict[str, DeviceReport], by_smi: dict[str, DeviceReport]) -> None:
    assert by_nvml
    assert sorted(by_nvml) == sorted(by_smi)
    for uuid, one in by_nvml.items():
        other = by_smi[uuid]
        assert (one.name, one.pci, one.driver, one.index) == (other.name, other.pci, other.driver, other.index)
        assert abs((one.total_bytes or 0) - (other.total_bytes or 0)) <= SAME_BYTES


@pytest.mark.parametrize("probe", ["by_nvml", "by_smi"])
def test_torch_sees_the_same_devices_less_what_the_driver_keeps(
    by_torch: dict[str, DeviceReport], probe: str, request: pytest.FixtureRequest
) -> None:
    listed: dict[str, DeviceReport] = request.getfixturevalue(probe)
    if any(one.is_split for one in listed.values()) or "CUDA_VISIBLE_DEVICES" in os.environ:
        pytest.skip("torch does not see all devices here")
    if not all(by_torch):
        pytest.skip("this torch does not say its devices' UUIDs")
    assert sorted(by_torch) == sorted(listed)
    for uuid, one in by_torch.items():
        other = listed[uuid]
        assert (one.name, one.capability) == (other.name, other.capability or one.capability)
        if other.total_bytes is not None and other.reserved_bytes is not None:
            seen = other.total_bytes - other.reserved_bytes
            assert abs(seen - (one.total_bytes or 0)) <= SAME_BYTES, (other, one)


def test_all_together_disagree_about_nothing(together: DetectedDevices) -> None:
    differences = [one for one in together.findings if one.code.startswith(("disagree", "torch_", "duplicate"))]
    assert differences == []
    expected = set() if HAS_NVML else {"nvml_missing"}
    assert {one.code for one in together.findings} & {"nvml_missing", "nvml_sees_nothing"} == expected


def test_a_program_has_computed_on_every_device_that_torch_sees(together: DetectedDevices) -> None:
    if not HAS_TORCH:
        pytest.skip("torch is not installed")
    seen = usable(together, "torch")
    assert seen
    assert all(one.usable.is_yes for one in seen), [one.usable for one in seen]
    assert together.backends.keys() >= {Backend.CUDA, Backend.WEBGPU}
    assert together.backends[Backend.CUDA]


@pytest.mark.timing
def test_nvml_and_nvidia_smi_alone_answer_within_their_limit() -> None:
    begun = time.monotonic()
    found = found_by("nvml", "nvidia-smi", limit_s=5.0)
    assert time.monotonic() - begun < 6.0
    assert found.devices


def test_hiding_every_device_leaves_them_installed_and_not_visible() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    ask = SubprocessRunner(environment)
    found = find_devices(environment, ask=ask, probes=frozenset({"nvml", "nvidia-smi"}), limit_s=30.0)
    assert found.devices
    assert all(one.installed.is_yes and one.visible.is_no for one in found.devices if one.backend is Backend.CUDA)
    assert Backend.CUDA not in found.backends


def test_the_meter_measures_what_a_program_takes(together: DetectedDevices) -> None:
    if not HAS_TORCH or not HAS_NVML:
        pytest.skip("torch or nvidia-ml-py is not installed")
    device = next(one for one in usable(together, "nvml") if not one.usable.is_no)
    size_bytes = 1 << 30
    script = textwrap.dedent(f"""
        import torch
        held = torch.ones({size_bytes}, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        print("holds", flush=True)
        input()
    """)
    meter = open_meter(together.devices, os.environ)
    try:
        before = meter.free_bytes(device.uuid)
        if before is None:
            pytest.skip("the driver does not tell how much is free")
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": device.uuid}
        with subprocess.Popen(
            [sys.executable, "-c", script], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == "holds\n"
            after = meter.free_bytes(device.uuid)
            used = meter.used_by(device.uuid)
            program.communicate("\n")
        assert after is not None
        assert before - after >= size_bytes
        assert used is not None
        # In a container the numbers are the host's, and a driver may keep them to itself.
        assert program.pid not in used or used[program.pid] >= size_bytes
    finally:
        meter.close()
