from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.core.device import Backend, MemoryType
from stoker.devices.probes import amd, nvidia, others
from stoker.devices.probes.observations import tidy_pci
from stoker.devices.probes.readers import KernelFiles
from tests.fakes.asker import RECORDINGS
from tests.fakes.machine import FileMachine


@pytest.fixture
def machine(tmp_path: Path) -> FileMachine:
    return FileMachine(tmp_path)


@pytest.fixture
def files(machine: FileMachine) -> KernelFiles:
    return KernelFiles(str(machine.root))


def test_the_driver_lists_its_devices(machine: FileMachine, files: KernelFiles) -> None:
    machine.nvidia()
    (device,) = nvidia.read_driver(files).reports
    assert (device.uuid, device.minor) == ("GPU-6f1c3c3e-5b9d-2a3e-8a47-1d2c9be0a111", 0)
    assert (device.name, device.pci, device.driver) == ("NVIDIA GeForce RTX 4090", "0000:01:00.0", "535.161.07")


def test_a_device_that_nobody_has_used_yet_has_no_uuid(machine: FileMachine, files: KernelFiles) -> None:
    machine.nvidia(information="proc/nvidia-information-not-yet-used.txt", address="0000:5d:00.0")
    (device,) = nvidia.read_driver(files).reports
    assert (device.uuid, device.pci, device.minor) == ("", "0000:5d:00.0", 3)


@pytest.mark.parametrize(
    ("name", "version"), [("nvidia-version.txt", "535.161.07"), ("nvidia-version-open.txt", "570.86.15")]
)
def test_both_kinds_of_driver_say_their_version(
    machine: FileMachine, files: KernelFiles, name: str, version: str
) -> None:
    machine.file("/proc/driver/nvidia/version", (RECORDINGS / "proc" / name).read_text())
    assert nvidia.driver_version(files) == version


def test_a_device_that_the_driver_must_leave_alone_is_noticed(machine: FileMachine, files: KernelFiles) -> None:
    machine.nvidia()
    information = machine.root / "proc/driver/nvidia/gpus/0000:01:00.0/information"
    information.write_text(information.read_text().replace("GPU Excluded:\t No", "GPU Excluded:\t Yes"))
    assert [finding.code for finding in nvidia.read_driver(files).findings] == ["device_excluded"]


def test_the_bus_tells_a_card_without_driver_from_no_card(machine: FileMachine, files: KernelFiles) -> None:
    machine.card("0000:01:00.0", driver="nvidia")
    machine.card("0000:02:00.0")
    machine.card("0000:03:00.0", driver="nouveau")
    machine.card("0000:04:00.0", driver="vfio-pci")
    machine.card("0000:05:00.0", vendor="0x8086")
    driven, bare, other, kept = others.read_bus(files).reports
    assert driven.works is None
    whys = [one.works.why if one.works else "" for one in (bare, other, kept)]
    assert "no driver has it" in whys[0]
    assert "nouveau has it" in whys[1]
    assert "virtual machine" in whys[2]
    assert [bool(one.driver_hint) for one in (driven, bare, other, kept)] == [False, True, True, False]


def test_device_files_say_whether_we_may_use_them(machine: FileMachine, files: KernelFiles) -> None:
    for number in (0, 1, 10):
        machine.file(f"/dev/nvidia{number}")
    machine.file("/dev/nvidia-uvm")
    (machine.root / "dev/nvidia1").chmod(0)
    assert list(nvidia.device_files(files)) == [0, 1, 10]
    assert nvidia.device_files(files)[1] is (os.geteuid() == 0)


def test_the_compute_driver_lists_amds_devices_as_rocm_counts_them(machine: FileMachine, files: KernelFiles) -> None:
    machine.amd()
    statement = amd.read_kfd(files)
    (device,) = statement.reports
    assert (device.uuid, device.pci, device.index) == ("GPU-7cf529dea4b33bad", "0000:03:00.0", 0)
    assert (device.capability, device.total_bytes) == ("gfx1100", 21458059264)
    assert device.free_bytes == 21458059264 - 27856896
    assert statement.backends == {Backend.ROCM: ""}


def test_without_its_device_file_rocm_is_not_spoken(machine: FileMachine, files: KernelFiles) -> None:
    machine.amd()
    (machine.root / "dev/kfd").unlink()
    assert amd.read_kfd(files).backends == {}
    assert len(amd.read_kfd(files).reports) == 1


def test_generations_are_spelt_as_amd_does() -> None:
    named = {110000: "gfx1100", 90010: "gfx90a", 90402: "gfx942", 100306: "gfx1036", 0: "", 7: ""}
    assert {number: amd._generation(number) for number in named} == named


def test_a_board_is_known_by_its_tree(machine: FileMachine, files: KernelFiles) -> None:
    machine.jetson()
    (device,) = nvidia.read_jetson(files).reports
    assert device.name == "NVIDIA Jetson AGX Orin Developer Kit"
    assert (device.memory_type, device.driver, device.capability) == (MemoryType.UNIFIED, "L4T 36.4.3", "8.7")


def test_other_boards_with_a_tree_are_none(machine: FileMachine, files: KernelFiles) -> None:
    machine.file("/proc/device-tree/model", "Raspberry Pi 5 Model B Rev 1.0\0")
    machine.file("/proc/device-tree/compatible", "raspberrypi,5-model-b\0brcm,bcm2712\0")
    assert nvidia.read_jetson(files).reports == ()


def test_files_that_are_missing_strange_or_forbidden_are_empty(machine: FileMachine, files: KernelFiles) -> None:
    (machine.root / "sys").mkdir()
    assert files.text("/none") == ""
    assert files.text("/sys") == ""
    assert files.names("/etc/machine-id") == []
    assert files.names("/none") == []
    assert files.target_name("/etc/machine-id") == ""
    os.mkfifo(machine.root / "pipe")
    assert files.text("/pipe") == ""


def test_nothing_of_this_raises_on_garbage(machine: FileMachine, files: KernelFiles) -> None:
    garbage = "\udcff::::\n\n:\nGPU UUID: \x00\nDevice Minor: 99999999999999999999999\nsimd_count 9\nlocation_id -1\n"
    machine.root.joinpath("proc/driver/nvidia/gpus/x").mkdir(parents=True)
    for place in ("proc/driver/nvidia/gpus/x/information", "sys/class/kfd/kfd/topology/nodes/1/properties"):
        machine.file(place).write_bytes(garbage.encode("utf-8", "surrogateescape"))
    (device,) = nvidia.read_driver(files).reports
    assert (device.uuid, device.minor, device.pci) == ("", None, "")
    assert amd.read_kfd(files).reports[0].pci == ""


@pytest.mark.parametrize(
    ("text", "tidy"),
    [
        ("00000000:01:00.0", "0000:01:00.0"),
        ("0000:C1:00.0", "0000:c1:00.0"),
        ("01:00", "0000:01:00.0"),
        ("0000000F:01:00.0", "000f:01:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("[N/A]", ""),
        ("", ""),
    ],
)
def test_addresses_are_spelt_as_the_kernel_does(text: str, tidy: str) -> None:
    assert tidy_pci(text) == tidy
