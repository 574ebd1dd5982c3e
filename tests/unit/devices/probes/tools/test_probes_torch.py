from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stoker.core.device import Backend
from stoker.devices.probes import others
from stoker.devices.probes.observations import ProbeResult
from stoker.host.command_runner import ProbeFailure, SubprocessRunner
from tests.fakes.asker import recorded


def read(name: str) -> ProbeResult:
    return others.read_torch(recorded(f"torch/{name}"))


def test_what_torch_has_computed_on_works() -> None:
    statement = read("2.6-two-rtx4090.txt")
    first, second = statement.reports
    assert first.uuid == "GPU-6f1c3c3e-5b9d-2a3e-8a47-1d2c9be0a111"
    assert (first.pci, first.capability) == ("0000:01:00.0", "8.9")
    assert first.works is not None
    assert first.works.is_yes
    assert "torch 2.6.0+cu124" in first.works.why
    assert second.works == first.works
    assert statement.backends == {Backend.CUDA: "12.4"}


def test_an_old_torch_names_devices_without_addresses() -> None:
    first, second = read("1.13-without-addresses.txt").reports
    assert (first.uuid, first.pci) == ("", "")
    assert second.works is not None
    assert second.works.is_no
    assert "out of memory" in second.works.why


def test_rocm_is_told_from_cuda() -> None:
    statement = read("2.5-rocm.txt")
    (device,) = statement.reports
    assert (device.backend, device.capability, device.uuid) == (Backend.ROCM, "gfx1100", "")
    assert statement.backends == {Backend.ROCM: "6.2.41133-dd7f95766"}


def test_metal_is_spoken_without_a_list() -> None:
    assert read("2.6-metal.txt").backends == {Backend.METAL: ""}


@pytest.mark.parametrize(
    ("name", "code", "is_readable"),
    [
        ("cpu-only.txt", "torch_without_gpu", True),
        ("driver-too-old.txt", "torch_error", True),
        ("import-fails.txt", "torch_error", False),
        ("half-way.txt", "probe_garbage", False),
    ],
)
def test_a_torch_that_can_not_use_devices_says_why(name: str, code: str, is_readable: bool) -> None:
    statement = read(name)
    assert [finding.code for finding in statement.findings] == [code]
    assert statement.is_readable is is_readable
    assert statement.reports == ()


def test_devices_that_are_hidden_from_torch_are_no_fault_of_its() -> None:
    statement = read("all-hidden.txt")
    assert statement.is_readable
    assert (statement.findings, statement.looked_for) == ((), frozenset({Backend.CUDA}))


def test_an_interpreter_without_torch_is_not_odd() -> None:
    assert read("not-installed.txt").findings == ()


def test_a_torch_that_hangs_has_said_what_it_is() -> None:
    half = recorded("torch/half-way.txt").out
    statement = others.read_torch(ProbeFailure(why="python did not answer within 5 s", code="probe_timeout", out=half))
    assert not statement.is_readable
    assert [finding.code for finding in statement.findings] == ["probe_timeout"]


def test_the_child_says_that_an_interpreter_has_no_torch() -> None:
    reply = SubprocessRunner({}).ask([sys.executable, "-S", *others.torch_command("")[1:]])
    assert others.read_torch(reply) == read("not-installed.txt")


TORCH = """
__version__ = "2.9.9"
class version: cuda = "12.8"; hip = None
class Properties:
    name, total_memory, major, minor, uuid = "NVIDIA H200", 150109880320, 9, 0, "9d2f7a54-0c1e-4f7b-9b61-3a1f0c55e333"
    pci_domain_id, pci_bus_id, pci_device_id = 0, 0x5d, 0
class cuda:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 2)
    get_device_properties = staticmethod(lambda index: Properties)
    mem_get_info = staticmethod(lambda index: (5, 6))
class backends: pass
class Ones:
    def __matmul__(self, other): return self
    def sum(self): return self
    def item(self): return 64.0
def ones(rows, columns, device):
    if device == "cuda:1": raise SystemExit("it even ends the process")
    return Ones()
"""


def test_the_child_keeps_a_broken_device_from_hiding_the_others(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    reply = SubprocessRunner({"PYTHONPATH": str(tmp_path)}).ask(others.torch_command(sys.executable))
    first, second = others.read_torch(reply).reports
    assert (first.pci, first.total_bytes, first.free_bytes) == ("0000:5d:00.0", 150109880320, 5)
    assert [one.works.verdict for one in (first, second) if one.works] == ["yes", "no"]


def test_the_child_gives_the_reason_why_there_are_no_devices(tmp_path: Path) -> None:
    text = TORCH.replace("lambda: True", "lambda: False")
    text = text.replace(
        "    device_count", "    @staticmethod\n    def init(): raise RuntimeError('driver too old')\n    device_count"
    )
    (tmp_path / "torch.py").write_text(text)
    reply = SubprocessRunner({"PYTHONPATH": str(tmp_path)}).ask(others.torch_command(sys.executable))
    statement = others.read_torch(reply)
    assert "driver too old" in statement.findings[0].message
