from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from stoker.core.capability import MachineInterpreter
from stoker.devices.checkup import CheckStatus, SmokeTestResult, check_smoke, read_smoke, smoke
from stoker.devices.probes.readers import MARK
from stoker.host.command_runner import ProbeFailure, ProbeOutput, SubprocessRunner
from tests.fakes.small_torch import TORCH
from tests.unit.devices.machines import capability, device


def python_with(torch: str, folder: Path) -> tuple[MachineInterpreter, SubprocessRunner]:
    (folder / "torch.py").write_text(torch)
    ask = SubprocessRunner({"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"})
    return MachineInterpreter(path=sys.executable, version="3.11", torch="9.9"), ask


def test_each_device_is_compared_with_the_cpu_in_a_child(tmp_path: Path) -> None:
    python, ask = python_with(TORCH, tmp_path)
    right, wrong, broken = smoke(capability(device(0), interpreters=(python,)), ask)
    assert (right.device, right.name, right.is_right, right.is_wrong) == ("cuda:0", "Card 0", True, False)
    assert right.cosine == pytest.approx(1.0)
    assert wrong.is_wrong
    assert wrong.cosine is not None
    assert broken.why == "RuntimeError: CUDA error: no kernel image"
    assert [check.verdict for check in check_smoke((right, wrong, broken))] == [
        CheckStatus.OK,
        CheckStatus.BAD,
        CheckStatus.BAD,
    ]


def test_what_lies_beside_the_script_does_not_stand_in_for_what_torch_imports(tmp_path: Path) -> None:
    python, ask = python_with("import meter", tmp_path)
    (one,) = smoke(capability(interpreters=(python,)), ask)
    assert one.why.endswith("ModuleNotFoundError: No module named 'meter'")


def test_a_torch_that_can_not_be_imported_is_told(tmp_path: Path) -> None:
    python, ask = python_with("raise OSError('libcudart.so.12: cannot open shared object file')", tmp_path)
    (one,) = smoke(capability(interpreters=(python,)), ask)
    assert not one.was_tried
    assert "torch can't be imported: OSError: libcudart.so.12" in one.why


def test_without_torch_or_with_faked_devices_nothing_is_tried() -> None:
    ask = SubprocessRunner({"PATH": "/nowhere"})
    (one,) = smoke(capability(device(0)), ask)
    assert one.why == "no Python here has torch"
    (one,) = smoke(capability(device(0, is_fake=True), is_fake=True), ask)
    assert one.why == "the devices are faked by STOKER_GPU_FAKE"
    (check,) = check_smoke((one,))
    assert (check.verdict, check.message) == (CheckStatus.WARN, "skipped: the devices are faked by STOKER_GPU_FAKE")


@pytest.mark.parametrize(
    "out",
    [
        "",
        "Traceback (most recent call last):",
        '{"devices": [{"device": "cuda:0"}]}',
        f"{MARK}[]",
        f"{MARK}{{}}",
        f'{MARK}{{"devices": 3}}',
        f'{MARK}{{"devices": [3]}}',
        f'{MARK}{{"devices": [{{}}]}}',
    ],
    ids=["nothing", "trace", "unmarked", "list", "no devices", "number", "row", "nameless"],
)
def test_an_answer_that_is_none_is_a_line_that_says_so(out: str) -> None:
    (one,) = read_smoke(ProbeOutput(out=out, exit_code=1), "/v/bin/python")
    assert not one.was_tried
    assert one.why == "/v/bin/python printed no readable result (exit 1)"


def test_a_torch_without_devices_and_one_that_hangs_are_told() -> None:
    out = f"a warning\n{MARK}{json.dumps({'torch': '2.0', 'devices': []})}\nand another"
    seen = read_smoke(ProbeOutput(out=out), "py")
    assert seen == (SmokeTestResult(why="the torch of py sees no device"),)
    hung = read_smoke(ProbeFailure(why="it did not answer within 120 s", code="probe_timeout"), "py")
    assert hung == (SmokeTestResult(why="py: it did not answer within 120 s"),)


@pytest.mark.parametrize(("cosine", "is_right"), [(0.99, True), (0.989, False), ("1.0", False), (None, False)])
def test_from_ninety_nine_hundredths_on_it_is_right(cosine: object, is_right: bool) -> None:
    out = MARK + json.dumps({"devices": [{"device": "cuda:0", "name": "Card", "cosine": cosine}]})
    assert read_smoke(ProbeOutput(out=out), "py")[0].is_right is is_right
