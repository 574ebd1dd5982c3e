"""Which meter measures which device: one for all devices of a machine, put together of those that know a kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stoker.hardware.probes.kernel_files import KernelFiles
from stoker.hardware.probes.meters.file_meters import AmdMeter, UnifiedMeter
from stoker.hardware.probes.meters.meter import FakeMeter, Meter, NoMeter
from stoker.hardware.probes.meters.nvml_meter import NvmlMeter
from stoker.model.devices import Backend, Device, MemoryType


def open_meter(devices: Iterable[Device], environment: Mapping[str, str], *, files: str = "/") -> Meter:
    """Give a meter for these devices. Nothing is started before the first question; close it when done.

    Invented devices are measured as invented. Of a device that no meter knows, the answer is `None`.
    """
    listed = tuple(devices)
    kernels = KernelFiles(files)
    nvml = NvmlMeter(environment)
    amd = AmdMeter({one.uuid: one.pci for one in listed if one.backend is Backend.ROCM}, kernels)
    fake = FakeMeter({one.uuid: one.total_bytes or 0 for one in listed if one.is_fake})
    by_kind: dict[Backend, Meter] = {Backend.CUDA: nvml, Backend.ROCM: amd}
    meters: dict[str, Meter] = {}
    for one in listed:
        meter = fake if one.is_fake else by_kind.get(one.backend, NoMeter())
        is_shared = one.memory_type is MemoryType.UNIFIED and not one.is_fake
        meters[one.uuid] = UnifiedMeter(meter, kernels) if is_shared else meter
    return MeterOfAll(meters)


class MeterOfAll:
    """Sends each question to the meter that knows the device."""

    def __init__(self, meters: Mapping[str, Meter]) -> None:
        self._meters = dict(meters)

    def free_bytes(self, uuid: str) -> int | None:
        meter = self._meters.get(uuid)
        return meter.free_bytes(uuid) if meter is not None else None

    def used_by(self, uuid: str) -> Mapping[int, int] | None:
        meter = self._meters.get(uuid)
        return meter.used_by(uuid) if meter is not None else None

    def close(self) -> None:
        for meter in self._meters.values():
            meter.close()
