"""Meters that read files: AMD's devices by the graphics driver's, and devices that work in the machine's memory."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.hardware.probes.kernel_files import KernelFiles
from stoker.hardware.probes.meters.meter import Meter
from stoker.hardware.probes.witnesses import kfd
from stoker.host.disk import memory_available_bytes

_PROCESSES = "/sys/class/kfd/kfd/proc"


class AmdMeter:
    """Measures AMD's devices, by address. Untested on AMD hardware."""

    def __init__(self, addresses: Mapping[str, str], files: KernelFiles) -> None:
        self._addresses = dict(addresses)
        """UUID → PCI address."""
        self._files = files

    def free_bytes(self, uuid: str) -> int | None:
        folder = kfd.memory_files(self._files, self._addresses.get(uuid, "?"))
        return kfd.memory(self._files, folder)[1] if folder else None

    def used_by(self, uuid: str) -> Mapping[int, int] | None:
        number = self._driver_number(self._addresses.get(uuid, "?"))
        if not number:
            return None
        used = {}
        for pid in self._files.names(_PROCESSES, r"\d{1,10}"):
            size = kfd.bytes_of(self._files.text(f"{_PROCESSES}/{pid}/vram_{number}"))
            if size:
                used[int(pid)] = size
        return used

    def close(self) -> None:
        pass

    def _driver_number(self, pci: str) -> str:
        """Give the number by which the compute driver calls a device in the files of processes."""
        for node in self._files.names(kfd.NODES, r"\d+"):
            properties = kfd.read_properties(self._files.text(f"{kfd.NODES}/{node}/properties"))
            if kfd.address(properties) == pci:
                return self._files.text(f"{kfd.NODES}/{node}/gpu_id")
        return ""


class UnifiedMeter:
    """Measures devices that work in the machine's memory: what the machine has left is free.

    What each process holds is the other meter's to say, if it can.
    """

    def __init__(self, inner: Meter, files: KernelFiles) -> None:
        self._inner = inner
        self._files = files

    def free_bytes(self, uuid: str) -> int | None:
        return memory_available_bytes(self._files.place("/proc"))

    def used_by(self, uuid: str) -> Mapping[int, int] | None:
        return self._inner.used_by(uuid)

    def close(self) -> None:
        self._inner.close()
