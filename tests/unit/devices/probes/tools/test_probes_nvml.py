from __future__ import annotations

from pathlib import Path

import pytest

from stoker.core.device import MIB, Backend
from stoker.devices.probes import nvidia
from stoker.host.command_runner import ProbeFailure, ProbeOutput, SubprocessRunner
from tests.fakes.asker import recorded

LIBRARY = """
class NVMLError(Exception): pass
class Memory: total, free, reserved = 150754820096, 150000000000, 646971392
class Pci: busId = b"00000000:5D:00.0"
nvmlMemory_v2 = 2
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index):
    if index == 1: raise NVMLError("GPU is lost")
    return index
def nvmlSystemGetDriverVersion(): return b"550.127.08"
def nvmlSystemGetCudaDriverVersion(): return 12040
def nvmlDeviceGetUUID(handle): return "GPU-9d2f7a54-0c1e-4f7b-9b61-3a1f0c55e333"
def nvmlDeviceGetName(handle): return "NVIDIA H200"
def nvmlDeviceGetPciInfo(handle): return Pci
def nvmlDeviceGetMinorNumber(handle): raise NVMLError("Not Supported")
def nvmlDeviceGetMemoryInfo(handle, version=None): return Memory
def nvmlDeviceGetCudaComputeCapability(handle): return (9, 0)
def nvmlDeviceGetMigMode(handle): return [0, 0]
"""


def test_a_snapshot_is_read_to_the_byte() -> None:
    statement = nvidia.read_nvml(recorded("nvml/h200.txt"))
    (device,) = statement.reports
    assert (device.uuid, device.pci) == ("GPU-9d2f7a54-0c1e-4f7b-9b61-3a1f0c55e333", "0000:5d:00.0")
    assert (device.total_bytes, device.reserved_bytes) == (150754820096, 617 * MIB)
    assert (device.driver, device.capability, device.minor) == ("550.127.08", "9.0", 0)
    assert statement.backends == {Backend.CUDA: "12.4"}


def test_parts_have_no_address_of_their_own() -> None:
    whole, large, small = nvidia.read_nvml(recorded("nvml/a100-mig.txt")).reports
    assert whole.is_split
    assert (large.parent, large.pci, large.minor, large.is_split) == (whole.uuid, "", None, False)
    assert (large.total_bytes, small.total_bytes) == (19968 * MIB, 4864 * MIB)


def test_a_device_without_memory_of_its_own_has_no_total() -> None:
    (board,) = nvidia.read_nvml(recorded("nvml/jetson-orin.txt")).reports
    assert (board.name, board.total_bytes, board.pci) == ("Orin (nvgpu)", None, "")


@pytest.mark.parametrize(
    ("name", "code"), [("version-mismatch.txt", "driver_mismatch"), ("library-missing.txt", "nvml_library_missing")]
)
def test_a_library_that_does_not_work_says_why(name: str, code: str) -> None:
    statement = nvidia.read_nvml(recorded(f"nvml/{name}"))
    assert not statement.is_readable
    assert [finding.code for finding in statement.findings] == [code]


def test_one_lost_device_does_not_hide_the_others() -> None:
    statement = nvidia.read_nvml(recorded("nvml/one-lost.txt"))
    assert statement.is_readable
    assert len(statement.reports) == 1
    assert [finding.code for finding in statement.findings] == ["device_lost"]


@pytest.mark.parametrize(
    "reply",
    [
        ProbeOutput(out="", err="Traceback (most recent call last): …", exit_code=1),
        ProbeOutput(out="stoker-probe:{cut off", exit_code=-11),
        ProbeOutput(out='stoker-probe:["a list"]'),
        ProbeOutput(out="", exit_code=-9),
        ProbeFailure(why="hangs", code="probe_timeout"),
    ],
    ids=["trace", "cut off", "no object", "killed", "hung"],
)
def test_a_child_that_breaks_is_a_finding(reply: ProbeOutput | ProbeFailure) -> None:
    statement = nvidia.read_nvml(reply)
    assert not statement.is_readable
    assert len(statement.findings) == 1


def test_values_of_the_wrong_kind_are_unknown() -> None:
    row = (
        '{"uuid": 5, "name": null, "pci": [], "total": -1, "free": true, "capability": "9.0", "index": "0", "parts": 3}'
    )
    (device,) = nvidia.read_nvml(ProbeOutput(out=f'stoker-probe:{{"devices": [{row}, 7], "cuda": "12"}}')).reports
    assert (device.uuid, device.total_bytes, device.free_bytes, device.index) == ("", None, None, None)


def test_the_child_reads_a_library_function_by_function(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text(LIBRARY)
    reply = SubprocessRunner({}).ask(nvidia.child_command(str(tmp_path), "snapshot"))
    statement = nvidia.read_nvml(reply)
    (device,) = statement.reports
    assert (device.name, device.total_bytes, device.reserved_bytes) == ("NVIDIA H200", 150754820096, 646971392)
    assert (device.minor, device.pci, device.driver) == (None, "0000:5d:00.0", "550.127.08")
    assert [finding.code for finding in statement.findings] == ["device_lost"]


def test_the_child_without_the_library_says_so(tmp_path: Path) -> None:
    statement = nvidia.read_nvml(SubprocessRunner({}).ask(nvidia.child_command(str(tmp_path), "snapshot")))
    assert [finding.code for finding in statement.findings] == ["nvml_missing"]


def test_the_library_beside_us_is_found_without_importing_it() -> None:
    folder = nvidia.library_folder()
    assert (Path(folder) / "pynvml.py").exists()
