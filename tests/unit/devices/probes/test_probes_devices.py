from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from stoker.core.device import MIB, Backend, MemoryType
from stoker.core.errors import FakeForbidden
from stoker.devices.probes.inventory import find_devices
from stoker.devices.probes.observations import DetectedDevices
from stoker.host.command_runner import SubprocessRunner
from tests.fakes.asker import ScriptedAsker, recorded
from tests.fakes.machine import FileMachine


@pytest.fixture
def machine(tmp_path: Path) -> FileMachine:
    return FileMachine(tmp_path)


def find(machine: FileMachine, ask: ScriptedAsker | SubprocessRunner | None = None, **given) -> DetectedDevices:
    """Ask the machine's own programs unless told otherwise, and NVML and torch never by accident."""
    asker = ask or ScriptedAsker({})
    return find_devices(machine.environment, ask=asker, files=str(machine.root), **given)


def codes(found: DetectedDevices) -> set[str]:
    return {finding.code for finding in found.findings}


def test_a_machine_without_evidence_is_asked_nothing(machine: FileMachine) -> None:
    for name in ("vulkaninfo", "clinfo", "sycl-ls", "glxinfo", "system_profiler", "python"):
        machine.program(name, "exit 1")
    machine.environment["DISPLAY"] = ":0"
    asker = ScriptedAsker({})
    found = find(machine, asker, python=sys.executable)
    assert asker.asked == []
    assert found == DetectedDevices()


def test_looking_where_there_is_nothing_takes_next_to_no_time(machine: FileMachine) -> None:
    for number in range(64):
        machine.card(f"0000:{number:02x}:00.0", vendor="0x8086")
    times_s = []
    for _ in range(3):
        begun = time.process_time()
        find(machine)
        times_s.append(time.process_time() - begun)
    assert min(times_s) < 0.1


def test_torch_is_asked_without_evidence_only_if_somebody_wants_it(machine: FileMachine) -> None:
    asker = ScriptedAsker({"torch_child.py": recorded("torch/2.6-h200.txt")})
    assert find(machine, asker, python="python3", wants_torch=True).devices[0].name == "NVIDIA H200"
    assert len(asker.asked) == 1


@pytest.mark.parametrize(
    "place",
    ["/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia/version", "/usr/lib64/libnvidia-ml.so.1"],
)
def test_any_evidence_of_nvidia_has_its_library_and_torch_asked(machine: FileMachine, place: str) -> None:
    machine.file(place)
    asker = ScriptedAsker({})
    find(machine, asker, python="/usr/bin/python3")
    asked = [word.rpartition("/")[2] for argv in asker.asked for word in argv if word.endswith(".py")]
    assert asked == ["nvml_child.py", "torch_child.py"]


def test_torch_is_asked_last_and_may_take_longer(machine: FileMachine) -> None:
    machine.file("/dev/nvidia0")
    for name in ("nvidia-smi", "vulkaninfo", "clinfo"):
        machine.program(name, "")
    asker = ScriptedAsker({})
    find(machine, asker, python="python3", limit_s=5.0, torch_limit_s=60.0)
    assert asker.asked[-1][-1].endswith("torch_child.py")
    assert asker.limits_s == [5.0] * 4 + [60.0]
    find(machine, asker, python="python3", probes=frozenset({"nvml"}))
    assert len(asker.asked) == 6


def test_a_tool_on_the_path_is_evidence(machine: FileMachine) -> None:
    machine.recording("nvidia-smi", "nvidia-smi/r550-h200.csv")
    found = find(machine, SubprocessRunner(machine.environment), probes=frozenset({"nvidia-smi"}))
    assert [(one.name, one.total_bytes) for one in found.devices] == [("NVIDIA H200", 143771 * MIB)]


def test_all_probes_are_heard_and_merged(machine: FileMachine) -> None:
    machine.nvidia()
    machine.file("/dev/nvidia1")
    machine.card("0000:01:00.0", driver="nvidia")
    machine.card("0000:41:00.0", driver="nvidia")
    machine.program("nvidia-smi", "")
    asker = ScriptedAsker(
        {
            "nvml_child.py": recorded("nvml/two-rtx4090.txt"),
            "nvidia-smi": recorded("nvidia-smi/r535-two-rtx4090.csv"),
            "torch_child.py": recorded("torch/2.6-two-rtx4090.txt"),
        }
    )
    found = find(machine, asker, python="python3")
    assert codes(found) == set()
    assert [one.installed.why for one in found.devices] == [
        "seen by nvml, nvidia-smi, torch, kernel, pci",
        "seen by nvml, nvidia-smi, torch, pci",
    ]
    assert all(one.visible.is_yes and one.usable.is_yes for one in found.devices)


def test_an_old_nvidia_smi_is_asked_again(machine: FileMachine) -> None:
    def answer(argv):
        is_new = "compute_cap" in argv[1]
        name = "r470-unknown-field.txt" if is_new else "r418-tesla-k80-old-columns.csv"
        return recorded(f"nvidia-smi/{name}", exit_code=2 if is_new else 0)

    machine.program("nvidia-smi", "")
    found = find(machine, ScriptedAsker({"nvidia-smi": answer}), probes=frozenset({"nvidia-smi"}))
    assert [one.name for one in found.devices] == ["Tesla K80", "Tesla K80"]
    assert codes(found) == set()


def test_parts_are_listed_where_only_nvidia_smi_can_be_asked(machine: FileMachine) -> None:
    def answer(argv):
        return recorded(f"nvidia-smi/r550-a100-mig{'-list.txt' if argv[1] == '-L' else '.csv'}")

    machine.program("nvidia-smi", "")
    found = find(machine, ScriptedAsker({"nvidia-smi": answer}), probes=frozenset({"nvidia-smi"}))
    assert [one.uuid[:4] for one in found.devices] == ["GPU-", "MIG-", "MIG-"]


def test_device_files_that_nobody_answers_for_are_a_finding(machine: FileMachine) -> None:
    machine.file("/dev/nvidia0")
    found = find(machine, ScriptedAsker({"nvml_child.py": recorded("nvml/no-devices.txt")}))
    assert codes(found) == {"nvml_sees_nothing"}
    assert found.backends == {}


def test_a_board_without_any_tool_is_found(machine: FileMachine) -> None:
    machine.jetson()
    found = find(machine, ScriptedAsker({"nvml_child.py": recorded("nvml/library-missing.txt")}))
    (device,) = found.devices
    assert (device.memory_type, device.total_bytes) == (MemoryType.UNIFIED, 65788012 * 1024)
    assert device.free_bytes == 51200000 * 1024
    assert Backend.CUDA in found.backends


def test_an_amd_machine_is_found_without_amds_tools(machine: FileMachine) -> None:
    machine.amd()
    found = find(machine)
    (device,) = found.devices
    assert (device.backend, device.capability, device.total_bytes) == (Backend.ROCM, "gfx1100", 21458059264)
    assert (device.visible.is_yes, codes(found)) == (True, set())


def test_amds_tools_name_what_the_kernel_only_numbers(machine: FileMachine) -> None:
    machine.amd()
    machine.recording("rocm-smi", "rocm-smi/6.2-rx7900xt-and-processor.json")
    found = find(machine, SubprocessRunner(machine.environment))
    assert found.devices[0].name == "Radeon RX 7900 XT"
    assert found.devices[0].installed.why == "seen by rocm-smi, kfd"


def test_a_mac_is_asked_by_its_profiler(machine: FileMachine) -> None:
    machine.file("/System/Library/CoreServices/SystemVersion.plist")
    machine.recording("system_profiler", "system_profiler/m1.json")
    found = find(machine, SubprocessRunner(machine.environment))
    assert found.backends == {Backend.METAL: "3", Backend.WEBGPU: ""}
    assert found.devices[0].total_bytes == 65788012 * 1024


def test_graphics_alone_have_the_other_backends_asked(machine: FileMachine) -> None:
    machine.file("/dev/dri/renderD128")
    machine.recording("vulkaninfo", "vulkaninfo/1.3-discrete-and-llvmpipe.txt")
    machine.recording("clinfo", "clinfo/nvidia-and-pocl.txt")
    machine.recording("sycl-ls", "sycl-ls/2025-arc.txt")
    machine.recording("glxinfo", "glxinfo/nvidia.txt")
    found = find(machine, SubprocessRunner(machine.environment))
    assert found.backends == {Backend.WEBGPU: "Vulkan 1.3.277", Backend.ONEAPI: "1.6.31294", Backend.OPENCL: "3.0"}
    machine.environment["DISPLAY"] = ":0"
    assert Backend.OPENGL in find(machine, SubprocessRunner(machine.environment)).backends
    assert find(machine, SubprocessRunner(machine.environment), probes=frozenset()).backends == {}


def test_a_missing_library_of_python_is_a_finding_and_not_an_error(
    machine: FileMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.devices.probes.nvidia.library_folder", lambda: "")
    machine.nvidia()
    found = find(machine)
    assert codes(found) == {"nvml_missing"}
    assert [one.name for one in found.devices] == ["NVIDIA GeForce RTX 4090"]


def test_fakes_replace_everything_and_are_hidden_like_the_real_ones(machine: FileMachine) -> None:
    machine.nvidia()
    machine.environment |= {"STOKER_GPU_FAKE": "cuda:2x8GiB", "CUDA_VISIBLE_DEVICES": "1"}
    asker = ScriptedAsker({})
    found = find(machine, asker)
    assert asker.asked == []
    assert [one.visible.is_yes for one in found.devices] == [False, True]
    machine.environment["CUDA_VISIBLE_DEVICES"] = found.devices[0].uuid
    assert [one.visible.is_yes for one in find(machine).devices] == [True, False]
    machine.environment["CUDA_VISIBLE_DEVICES"] = ""
    assert find(machine).backends == {}
    machine.environment["STOKER_STRICT"] = "1"
    with pytest.raises(FakeForbidden):
        find(machine)
