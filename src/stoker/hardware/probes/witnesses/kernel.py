"""The kernel as a witness for NVIDIA's devices: the driver's own list, device files, and the PCI bus.

Reads files only. The driver's list names what it drives; the bus also names what no driver has taken, which is how a
card without a driver is told from no card.
"""

from __future__ import annotations

import re

from stoker.hardware.probes.cells import count_value, text_cell
from stoker.hardware.probes.kernel_files import KernelFiles
from stoker.hardware.probes.sighting import Sighting, Statement, tidy_pci
from stoker.model.capability import ProbeFinding
from stoker.model.devices import Answer, Backend, Verdict

WITNESS = "kernel"
BUS_WITNESS = "pci"

_GPUS = "/proc/driver/nvidia/gpus"
_VERSION = re.compile(r"(?:Kernel Module|Module for \S+)\s+(\d+(?:\.\d+)+)")
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_BUS = "/sys/bus/pci/devices"
# Displays, and accelerators that can't draw.
_CLASSES = ("0x03", "0x12")
_VENDORS = {"0x10de": (Backend.CUDA, "NVIDIA", "nvidia"), "0x1002": (Backend.ROCM, "AMD", "amdgpu")}


def read_driver(files: KernelFiles) -> Statement:
    """Give what NVIDIA's driver lists in /proc."""
    version = driver_version(files)
    rows = [(pci, read_information(files.text(f"{_GPUS}/{pci}/information"))) for pci in files.names(_GPUS)]
    excluded = [pci for pci, row in rows if row.get("GPU Excluded", "").lower() == "yes"]
    return Statement(
        witness=WITNESS,
        sightings=tuple(_of_driver(index, pci, row, version) for index, (pci, row) in enumerate(rows)),
        findings=tuple(
            ProbeFinding(
                code="device_excluded",
                message=f"the driver was told to leave the device at {pci} alone",
                probe=WITNESS,
                hint="see NVreg_ExcludedGpus in the options of the nvidia kernel module",
            )
            for pci in excluded
        ),
        was_heard=files.has(_GPUS),
    )


def read_bus(files: KernelFiles) -> Statement:
    """Give the accelerators of NVIDIA's and AMD's on the PCI bus, whether or not a driver has taken them."""
    found = []
    for address in files.names(_BUS, r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"):
        place = f"{_BUS}/{address}"
        if files.text(f"{place}/vendor") in _VENDORS and files.text(f"{place}/class").startswith(_CLASSES):
            found.append(_of_bus(files, address))
    return Statement(witness=BUS_WITNESS, sightings=tuple(found))


def read_information(text: str) -> dict[str, str]:
    """Read one device's file of the driver: `Key: value` lines."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def driver_version(files: KernelFiles) -> str:
    """Give the version of NVIDIA's loaded driver; empty without one."""
    found = _VERSION.search(files.text("/proc/driver/nvidia/version"))
    return found[1] if found else text_cell(files.text("/sys/module/nvidia/version"))


def device_files(files: KernelFiles) -> dict[int, bool]:
    """Give the numbers of NVIDIA's device files, each with whether we may use it."""
    names = files.names("/dev", r"nvidia\d{1,4}")
    return {int(name.removeprefix("nvidia")): files.may_use(f"/dev/{name}") for name in names}


def _of_driver(index: int, pci: str, row: dict[str, str], version: str) -> Sighting:
    uuid = row.get("GPU UUID", "")
    minor = row.get("Device Minor", "")
    return Sighting(
        backend=Backend.CUDA,
        # Question marks, until somebody has used the device.
        uuid=uuid if _UUID.fullmatch(uuid) else "",
        pci=tidy_pci(row.get("Bus Location", "")) or tidy_pci(pci),
        index=index,
        minor=count_value(int(minor)) if minor.isdecimal() and len(minor) < 6 else None,
        name=text_cell(row.get("Model", "")),
        driver=version,
    )


def _of_bus(files: KernelFiles, address: str) -> Sighting:
    place = f"{_BUS}/{address}"
    backend, vendor, expected = _VENDORS[files.text(f"{place}/vendor")]
    driver = files.target_name(f"{place}/driver")
    is_kept = driver.startswith("vfio")
    taken = f"the driver {driver} has it" if driver else "no driver has it"
    stopped = None
    if is_kept:
        stopped = Answer(verdict=Verdict.NO, why=f"it is kept for a virtual machine (bound to {driver})")
    elif driver != expected:
        stopped = Answer(verdict=Verdict.NO, why=f"{taken}, and computing needs {expected}")
    return Sighting(
        backend=backend,
        pci=tidy_pci(address),
        name=text_cell(f"{vendor} device {files.text(f'{place}/device')}"),
        lacks_driver=stopped is not None and not is_kept,
        works=stopped,
    )
