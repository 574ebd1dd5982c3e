from __future__ import annotations

from pathlib import Path

import pytest

from stoker.core.device import MIB, Device
from stoker.core.errors import FakeForbidden
from stoker.devices.this_machine import devices_here
from stoker.host.command_runner import CommandRunner
from tests.fakes.asker import ScriptedAsker, recorded
from tests.fakes.machine import FileMachine


@pytest.fixture
def machine(tmp_path: Path) -> FileMachine:
    return FileMachine(tmp_path)


def find(machine: FileMachine, asker: ScriptedAsker) -> tuple[Device, ...]:
    return devices_here(machine.environment, ask=lambda: asker, files=str(machine.root))


def programs(asker: ScriptedAsker) -> list[str]:
    return [
        next(word for word in argv if word.endswith(("_child.py", "smi"))).rpartition("/")[2] for argv in asker.asked
    ]


def test_where_nothing_speaks_for_a_device_there_is_nobody_to_ask(machine: FileMachine) -> None:
    machine.file("/dev/dri/renderD128")
    machine.program("vulkaninfo", "")

    def nobody() -> CommandRunner:
        raise AssertionError

    assert devices_here(machine.environment, ask=nobody, files=str(machine.root)) == ()


def test_who_knows_all_there_is_to_know_is_asked_alone(machine: FileMachine) -> None:
    machine.nvidia()
    machine.program("nvidia-smi", "")
    asker = ScriptedAsker({"nvml_child.py": recorded("nvml/two-rtx4090.txt")})
    assert {one.name for one in find(machine, asker)} == {"NVIDIA GeForce RTX 4090"}
    assert programs(asker) == ["nvml_child.py"]


def test_nvidias_tool_is_asked_where_the_library_does_not_say_how_large_a_device_is(machine: FileMachine) -> None:
    machine.nvidia()
    machine.program("nvidia-smi", "")
    asker = ScriptedAsker({"nvidia-smi": recorded("nvidia-smi/r550-h200.csv")})
    assert 143771 * MIB in [one.total_bytes for one in find(machine, asker)]
    assert programs(asker) == ["nvml_child.py", "nvml_child.py", "nvidia-smi"]


def test_what_a_variable_hides_is_not_to_be_used(machine: FileMachine) -> None:
    machine.nvidia()
    machine.environment["CUDA_VISIBLE_DEVICES"] = "1"
    asker = ScriptedAsker({"nvml_child.py": recorded("nvml/two-rtx4090.txt")})
    assert len(find(machine, asker)) == 1


def test_invented_devices_need_no_evidence_and_can_be_forbidden(machine: FileMachine) -> None:
    machine.environment["STOKER_GPU_FAKE"] = "cuda:2x24GiB"
    assert [one.is_fake for one in find(machine, ScriptedAsker({}))] == [True, True]
    machine.environment["STOKER_STRICT"] = "1"
    with pytest.raises(FakeForbidden):
        find(machine, ScriptedAsker({}))
