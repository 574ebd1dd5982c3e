"""Samples of devices and of the host: utilisation, memory, power, temperature, clock, throttling.

A value that a device or its driver does not report is `None`, never 0. NVIDIA's devices are sampled through a lasting
child process with a timeout (`NvmlMeter`): a driver call that hangs ends that child, and nothing else. AMD's devices
are read from the kernel's files; untested on AMD hardware. Apple's devices have no values: what their system reports
needs root, or an interface without documentation.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoker.core.device import Backend, Device
from stoker.core.frozen import changed, frozen
from stoker.devices.meters import NvmlMeter
from stoker.devices.probes import amd
from stoker.devices.probes.readers import KernelFiles, bytes_value, count_value
from stoker.host.resources import memory_available_bytes, memory_total_bytes

HOST = ""
"""The UUID under which the host itself is sampled: its processors are its utilisation, its RAM its memory."""
FAN_EVERY_S = 10.0
PROCESSES_EVERY_S = 30.0
ENERGY_EVERY_S = 120.0
"""An H200 takes 4.3 ms of processor time to answer."""
RAM_EVERY_S = 5.0
"""Reading the limits of all control groups takes half a millisecond."""
_MOST = 1e12


@frozen
class DeviceSample:
    """The state of one device at one moment. None: not supported, or not measured."""

    uuid: str
    utilisation_percent: float | None = None
    """Part of the last second in which a kernel ran; says nothing about how much of the device it used."""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    """Since the driver was loaded."""
    temperature_c: float | None = None
    slowdown_c: float | None = None
    """At this temperature the device slows down."""
    clock_mhz: float | None = None
    throttle: tuple[str, ...] | None = None
    """Why it runs below its clock; empty: it does not."""
    fan_percent: float | None = None
    ecc_errors: int | None = None
    """Uncorrected ones since the driver was loaded."""
    processes: int | None = None
    load: float | None = None
    """Of the host: average number of runnable processes over a minute."""
    error: str = ""

    @property
    def memory_percent(self) -> float | None:
        if self.memory_used_bytes is None or not self.memory_total_bytes:
            return None
        return 100.0 * self.memory_used_bytes / self.memory_total_bytes

    @property
    def is_slowed(self) -> bool:
        """True if heat or the power supply slows it down; the power limit alone is the normal state of a busy card."""
        return bool(self.throttle) and any(one in _SLOWING for one in self.throttle or ())


THROTTLE_BITS: Mapping[int, str] = {
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x20: "heat (driver)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
"""NVML's bits; others (idle, set clocks, display) are no throttling."""
HEAT = frozenset({"heat (driver)", "heat (hardware)"})
_SLOWING = HEAT | {"hardware slowdown", "power brake"}
_KEPT = ("fan_percent", "power_limit_w", "ecc_errors", "processes", "energy_j")


def throttle_names(bits: int) -> tuple[str, ...]:
    """Return the reasons in a bit mask of NVML."""
    return tuple(name for bit, name in THROTTLE_BITS.items() if bits & bit)


class DeviceSampler:
    """Samples the devices of this machine and the host. Caller closes. Not thread-safe."""

    def __init__(
        self,
        devices: Callable[[], Sequence[Device]],
        environment: Mapping[str, str],
        *,
        files: str = "/",
        nvml: NvmlMeter | None = None,
    ) -> None:
        """`devices` returns what the machine has now; nothing is started before the first sample of a device."""
        self._devices = devices
        self._files = KernelFiles(files)
        self._nvml = nvml or NvmlMeter(environment, limit_s=WATCHDOG_S)
        self._amd = AmdSensors(self._files)
        self._host = HostSensors(files)
        self._due_s: dict[str, float] = {}
        self._kept: dict[str, dict[str, Any]] = {}

    def sample(self, now_s: float) -> list[DeviceSample]:
        """Return one sample of each device that could be measured, and of the host, which comes first.

        `now_s` never goes back; it decides what is measured seldom. Blocks for as long as the watchdog allows.
        """
        listed = [one for one in self._devices() if not one.is_fake]
        found = [self._host.sample(now_s)]
        cuda = [one.uuid for one in listed if one.backend is Backend.CUDA]
        if cuda:
            found += self._nvidia(cuda, now_s)
        found += [sample for one in listed if one.backend is Backend.ROCM and (sample := self._amd.sample(one))]
        return found

    def close(self) -> None:
        """End the child process."""
        self._nvml.close()

    def _nvidia(self, uuids: Sequence[str], now_s: float) -> list[DeviceSample]:
        also = [name for name, every_s in _SELDOM.items() if now_s >= self._due_s.get(name, float("-inf"))]
        rows = self._nvml.sample(uuids, also)
        if rows is None:
            return []
        self._due_s |= {name: now_s + _SELDOM[name] for name in also}
        return [self._with_kept(read_nvml(uuid, row)) for uuid, row in rows.items() if uuid in uuids]

    def _with_kept(self, sample: DeviceSample) -> DeviceSample:
        """Return a sample with the last values of what is measured seldom."""
        kept = self._kept.setdefault(sample.uuid, {})
        kept |= {name: value for name in _KEPT if (value := getattr(sample, name)) is not None}
        return changed(sample, **kept) if kept else sample


WATCHDOG_S = 5.0
"""A driver that takes longer to answer is hung: its child is ended, and asked again after a rest."""
_SELDOM = {
    "fan": FAN_EVERY_S,
    "limit_mw": FAN_EVERY_S,
    "ecc": PROCESSES_EVERY_S,
    "processes": PROCESSES_EVERY_S,
    "energy_mj": ENERGY_EVERY_S,
}


def read_nvml(uuid: str, row: Mapping[str, Any]) -> DeviceSample:
    """Read what the child reports of one device. Pure; a value that is none of its kind is left out."""
    memory = row.get("memory")
    total, used = memory if isinstance(memory, list) and len(memory) == 2 else (None, None)
    throttle = row.get("throttle")
    return DeviceSample(
        uuid=uuid,
        utilisation_percent=_number(row.get("utilisation"), most=100.0),
        memory_total_bytes=bytes_value(total) or None,
        memory_used_bytes=bytes_value(used),
        power_w=_number(row.get("power_mw"), scale=1e-3),
        power_limit_w=_number(row.get("limit_mw"), scale=1e-3) or None,
        energy_j=_number(row.get("energy_mj"), scale=1e-3, most=1e18),
        temperature_c=_number(row.get("temperature_c"), most=1000.0),
        slowdown_c=_number(row.get("slowdown_c"), most=1000.0) or None,
        clock_mhz=_number(row.get("clock_mhz"), most=1e5),
        throttle=throttle_names(throttle) if isinstance(throttle, int) and 0 <= throttle < 1 << 64 else None,
        fan_percent=_number(row.get("fan"), most=1000.0),
        ecc_errors=count_value(row.get("ecc")),
        processes=count_value(row.get("processes")),
        error=str(row.get("error") or "")[:200],
    )


class AmdSensors:
    """Reads the sensors of AMD's devices from the graphics driver's files. Untested on AMD hardware."""

    def __init__(self, files: KernelFiles) -> None:
        self._files = files
        self._folders: dict[str, tuple[str, str]] = {}

    def sample(self, device: Device) -> DeviceSample | None:
        """Return a sample of a device; None if the driver has no files for it."""
        folder, sensors = self._place(device.pci)
        if not folder:
            return None
        total, free = amd.memory(self._files, folder)
        return DeviceSample(
            uuid=device.uuid,
            utilisation_percent=self._value(folder, "gpu_busy_percent", most=100.0),
            memory_total_bytes=total,
            memory_used_bytes=None if total is None or free is None else total - free,
            power_w=self._first(sensors, ("power1_average", "power1_input"), scale=1e-6),
            power_limit_w=self._value(sensors, "power1_cap", scale=1e-6) or None,
            temperature_c=self._first(sensors, ("temp2_input", "temp1_input"), scale=1e-3, most=1e6),
            slowdown_c=self._first(sensors, ("temp2_crit", "temp1_crit"), scale=1e-3, most=1e6) or None,
            clock_mhz=self._value(sensors, "freq1_input", scale=1e-6, most=1e11),
            fan_percent=self._fan(sensors),
        )

    def _place(self, pci: str) -> tuple[str, str]:
        found = self._folders.get(pci)
        if found is None:
            folder = amd.memory_files(self._files, pci)
            names = self._files.names(f"{folder}/hwmon", r"hwmon\d+") if folder else []
            found = (folder, f"{folder}/hwmon/{names[0]}" if names else "")
            if folder:
                self._folders[pci] = found
        return found

    def _value(self, folder: str, name: str, *, scale: float = 1.0, most: float = _MOST) -> float | None:
        text = self._files.text(f"{folder}/{name}") if folder else ""
        return _number(int(text), scale=scale, most=most) if text.isdecimal() and len(text) < 20 else None

    def _first(self, folder: str, names: Sequence[str], *, scale: float, most: float = _MOST) -> float | None:
        values = (self._value(folder, name, scale=scale, most=most) for name in names)
        return next((value for value in values if value is not None), None)

    def _fan(self, folder: str) -> float | None:
        speed, fastest = self._value(folder, "pwm1"), self._value(folder, "pwm1_max")
        return None if speed is None or not fastest else 100.0 * speed / fastest


class HostSensors:
    """Reads how busy this computer is: processors and RAM, within the limits of the container we are in."""

    def __init__(self, files: str = "/") -> None:
        self._proc = os.path.join(files, "proc")
        self._files = KernelFiles(files)
        self._before: tuple[int, int] | None = None
        self._memory: tuple[int | None, int | None] = (None, None)
        self._due_s = float("-inf")

    def sample(self, now_s: float) -> DeviceSample:
        """Return a sample; utilisation is that since the call before, None at the first."""
        if now_s >= self._due_s:
            self._due_s = now_s + RAM_EVERY_S
            self._memory = memory_total_bytes(self._proc), memory_available_bytes(self._proc)
        total, available = self._memory
        return DeviceSample(
            uuid=HOST,
            utilisation_percent=self._busy(),
            memory_total_bytes=total,
            memory_used_bytes=None if total is None or available is None else max(0, total - available),
            load=self._load(),
        )

    def _busy(self) -> float | None:
        words = self._files.text("/proc/stat").partition("\n")[0].split()
        if len(words) < 6 or words[0] != "cpu" or not all(word.isdecimal() for word in words[1:]):
            return None
        # Guests are counted in user time already.
        times = [int(word) for word in words[1:9]]
        now, before = (sum(times), times[3] + times[4]), self._before
        self._before = now
        if before is None or now[0] <= before[0]:
            return None
        return min(100.0, max(0.0, 100.0 * (1.0 - (now[1] - before[1]) / (now[0] - before[0]))))

    def _load(self) -> float | None:
        try:
            return float(self._files.text("/proc/loadavg").split()[0])
        except (IndexError, ValueError):
            return None


def _number(value: object, *, scale: float = 1.0, most: float = _MOST) -> float | None:
    """Return a number within its bounds; None for anything else: drivers report what they lack as a huge number."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
        return None
    return round(value * scale, 6)
