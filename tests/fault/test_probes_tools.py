"""Vendors' tools that hang, flood, print garbage, crash or need root, on a PATH: noted, never fatal, never slow."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from stoker.devices.probes.inventory import find_devices
from stoker.devices.probes.observations import DetectedDevices
from stoker.host.command_runner import SubprocessRunner
from tests.fakes.machine import FileMachine

LIMIT_S = 1.0
"""For tools that hang. Whoever answers gets more: on a busy machine a program takes a while to start."""
ANSWER_S = 20.0
TOOLS = ("nvidia-smi", "amd-smi", "rocm-smi", "vulkaninfo", "clinfo", "sycl-ls")
FLOOD = f"exec {sys.executable} -I -S -c 'import sys\nwhile True: sys.stdout.write(\"x, \" * 9999)'"
BROKEN = {
    "hangs": "exec /bin/sleep 100",
    "hangs and can't be asked to stop": "trap '' TERM INT HUP; /bin/sleep 100",
    "floods": FLOOD,
    "crashes": "kill -SEGV $$",
    "needs root": "echo 'Failed to initialize NVML: Insufficient Permissions'; echo 'permission denied' >&2; exit 4",
    "is silent": "exit 0",
    "prints a screen": "echo '+------+'; echo '| what | <html> {[('",
    "prints bytes": r"printf '\000\377\376index, uuid, name\n\000\n,,,,\n0\n-1, x\n'",
    "leaves somebody behind": "/bin/sleep 100 & echo '{}'",
}


@pytest.fixture
def machine(tmp_path: Path) -> FileMachine:
    machine = FileMachine(tmp_path)
    machine.nvidia()
    machine.amd()
    return machine


def find(machine: FileMachine, limit_s: float = LIMIT_S, **given) -> DetectedDevices:
    ask = SubprocessRunner(machine.environment)
    return find_devices(
        machine.environment, ask=ask, files=str(machine.root), limit_s=limit_s, torch_limit_s=limit_s, **given
    )


@pytest.mark.timing
@pytest.mark.parametrize("how", BROKEN)
def test_all_tools_broken_in_the_same_way_cost_one_limit_and_hide_nothing(machine: FileMachine, how: str) -> None:
    for tool in TOOLS:
        machine.program(tool, BROKEN[how])
    begun = time.monotonic()
    found = find(machine, probes=frozenset(TOOLS))
    assert time.monotonic() - begun < 6 * LIMIT_S
    assert [one.name for one in found.devices] == ["NVIDIA GeForce RTX 4090", "AMD gfx1100"]
    assert found.findings
    assert all(finding.message and "\n" not in finding.message for finding in found.findings)


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("hangs", "probe_timeout"),
        ("floods", "probe_flood"),
        ("crashes", "probe_garbage"),
        ("needs root", "probe_permission"),
        ("is silent", "probe_garbage"),
    ],
)
def test_what_is_wrong_with_a_tool_has_a_name(machine: FileMachine, how: str, code: str) -> None:
    machine.program("nvidia-smi", BROKEN[how])
    found = find(machine, LIMIT_S if how == "hangs" else ANSWER_S, probes=frozenset({"nvidia-smi"}))
    assert [(one.code, one.probe) for one in found.findings] == [(code, "nvidia-smi")]


def test_one_tool_that_hangs_does_not_spoil_the_answer_of_another(machine: FileMachine) -> None:
    machine.program("nvidia-smi", BROKEN["hangs"])
    machine.recording("rocm-smi", "rocm-smi/6.2-rx7900xt-and-processor.json")
    found = find(machine, probes=frozenset(TOOLS))
    assert "Radeon RX 7900 XT" in [one.name for one in found.devices]
    assert [one.code for one in found.findings] == ["probe_timeout"]


def test_an_interpreter_that_hangs_in_torch_is_one_more_finding(machine: FileMachine) -> None:
    python = machine.program("python3", BROKEN["hangs"])
    found = find(machine, probes=frozenset({"torch"}), python=python)
    assert [(one.code, one.probe) for one in found.findings] == [("probe_timeout", "torch")]


def test_the_real_library_without_a_driver_is_a_finding(machine: FileMachine) -> None:
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("there is a driver here")
    ask = SubprocessRunner(os.environ)
    found = find_devices(machine.environment, ask=ask, files=str(machine.root), probes=frozenset({"nvml"}))
    assert [one.code for one in found.findings] == ["nvml_library_missing"]
