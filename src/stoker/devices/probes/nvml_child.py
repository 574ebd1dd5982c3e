"""A script, never imported by Stoker: queries NVIDIA's management library, in a process of its own.

    python nvml_child.py FOLDER snapshot          prints one JSON object and ends
    python nvml_child.py FOLDER meter PARENT      answers one JSON line per line of standard input

The meter answers about one device (`free`, `used`), or about several at once (`sample`, for telemetry).

FOLDER contains `pynvml`. The meter ends with its standard input or with the process PARENT, whichever ends first. The
library makes no CUDA context, so this takes no memory on any device. Needs the standard library and `pynvml` only.
"""

from __future__ import annotations

import json
import os
import select
import sys
from typing import Any, ClassVar

MARK = "stoker-probe:"
_PARENT_CHECK_S = 1.0


def main() -> None:
    """Do what the arguments say."""
    folder, what = sys.argv[1:3]
    # At the end of the path: nothing beside the library may replace the standard library.
    sys.path.append(folder)
    try:
        import pynvml  # noqa: PLC0415 - lies in a folder that is known only now
    except ImportError as error:
        _say({"missing": str(error)})
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        _say({"error": str(error)})
        return
    if what == "snapshot":
        _say(_snapshot(pynvml))
    else:
        _Meter(pynvml).run(int(sys.argv[3]))


def _say(body: dict[str, Any]) -> None:
    sys.stdout.write(MARK + json.dumps(body) + "\n")
    sys.stdout.flush()


def _snapshot(nvml: Any) -> dict[str, Any]:
    devices, errors = [], []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            errors.append(f"device {index}: {error}")
            continue
        devices.append({**_device(nvml, handle), "index": index, "parts": _parts(nvml, handle)})
    return {
        "driver": _text(_try(nvml, "nvmlSystemGetDriverVersion")),
        "cuda": _try(nvml, "nvmlSystemGetCudaDriverVersion"),
        "devices": devices,
        "errors": errors,
    }


def _device(nvml: Any, handle: Any) -> dict[str, Any]:
    memory = _memory(nvml, handle)
    pci = _try(nvml, "nvmlDeviceGetPciInfo", handle)
    mode = _try(nvml, "nvmlDeviceGetMigMode", handle)
    capability = _try(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    return {
        "uuid": _text(_try(nvml, "nvmlDeviceGetUUID", handle)),
        "name": _text(_try(nvml, "nvmlDeviceGetName", handle)),
        "pci": _text(getattr(pci, "busId", None)),
        "minor": _try(nvml, "nvmlDeviceGetMinorNumber", handle),
        "total": getattr(memory, "total", None),
        "free": getattr(memory, "free", None),
        "reserved": getattr(memory, "reserved", None),
        "capability": list(capability) if capability else None,
        "is_split": bool(mode and mode[0]),
    }


def _parts(nvml: Any, handle: Any) -> list[dict[str, Any]]:
    mode = _try(nvml, "nvmlDeviceGetMigMode", handle)
    if not mode or not mode[0]:
        return []
    found = []
    for number in range(_try(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        part = _try(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        if part is not None:
            found.append({**_device(nvml, part), "index": number})
    return found


def _memory(nvml: Any, handle: Any) -> Any:
    """Return the memory with the driver's own part; older drivers do not report it."""
    version = getattr(nvml, "nvmlMemory_v2", None)
    newer = _try(nvml, "nvmlDeviceGetMemoryInfo", handle, version) if version else None
    return newer if newer is not None else _try(nvml, "nvmlDeviceGetMemoryInfo", handle)


def _try(nvml: Any, name: str, *arguments: Any) -> Any:
    """Call a function of the library; `None` if it, the driver or the device does not know it."""
    try:
        return getattr(nvml, name)(*arguments)
    except (nvml.NVMLError, AttributeError, TypeError):
        return None


def _text(value: Any) -> str | None:
    # Older versions of the library give bytes.
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


class _Meter:
    """Answers queries about devices' memory, one by one."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._handles: dict[str, Any] = {}
        self._sampler = _Sampler(nvml)

    def run(self, parent: int) -> None:
        _say({"ready": True})
        waiting = b""
        while _is_awaited(parent):
            data = os.read(sys.stdin.fileno(), 1 << 16)
            if not data:
                return
            *lines, waiting = (waiting + data).split(b"\n")
            for line in lines:
                _say(self._answer(json.loads(line)))

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        uuid, what = question["uuid"], question["ask"]
        if what == "sample":
            return {"id": question["id"], "value": self._sampler.sample(question["uuids"], question["also"])}
        try:
            handle = self._handles.get(uuid) or self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            self._handles[uuid] = handle
            value = self._free(handle) if what == "free" else self._used(handle)
        except (self._nvml.NVMLError, AttributeError, TypeError) as error:
            self._handles.pop(uuid, None)
            return {"id": question["id"], "error": str(error)}
        return {"id": question["id"], "value": value}

    def _free(self, handle: Any) -> Any:
        return self._nvml.nvmlDeviceGetMemoryInfo(handle).free

    def _used(self, handle: Any) -> dict[str, int]:
        used: dict[str, int] = {}
        # A process that draws and computes is in both lists, each time with all that it holds.
        rows = [*self._nvml.nvmlDeviceGetComputeRunningProcesses(handle), *self._graphics(handle)]
        for row in rows:
            if row.usedGpuMemory is not None:
                used[str(row.pid)] = max(used.get(str(row.pid), 0), int(row.usedGpuMemory))
        return used

    def _graphics(self, handle: Any) -> list[Any]:
        # Parts of divided devices and some drivers have no such list.
        return _try(self._nvml, "nvmlDeviceGetGraphicsRunningProcesses", handle) or []


class _Sampler:
    """Samples the state of devices at little cost: handles are kept, and what a device lacks is asked for once.

    `also` names what is asked for seldom, because it is slow: `fan` takes 0.14 ms, `processes` 4.5 ms under a lock of
    the driver that delays kernels, `energy_mj` 4.3 ms of processor time on an H200.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._errors = (nvml.NVMLError, AttributeError, TypeError, ValueError)
        self._handles: dict[str, Any] = {}
        self._lacking: dict[str, set[str]] = {}
        self._fixed: dict[str, dict[str, Any]] = {}
        self._memory_version = getattr(nvml, "nvmlMemory_v2", None)

    def sample(self, uuids: list[str], also: list[str]) -> dict[str, Any]:
        """Return values by device and name; a device that can't be reached has an `error`."""
        return {uuid: self._device(uuid, also) for uuid in uuids}

    def _device(self, uuid: str, also: list[str]) -> dict[str, Any]:
        nvml = self._nvml
        try:
            handle = self._handles.get(uuid)
            if handle is None:
                handle = self._handles[uuid] = nvml.nvmlDeviceGetHandleByUUID(uuid)
                self._lacking[uuid] = set()
                self._fixed[uuid] = self._constants(handle)
        except self._errors as error:
            return {"error": str(error)}
        lacking = self._lacking[uuid]
        found = dict(self._fixed[uuid])
        for name, read in self._READERS.items():
            if name not in lacking:
                self._put(found, name, read, uuid, handle)
        for name in also:
            if name not in lacking:
                self._put(found, name, self._SELDOM[name], uuid, handle)
        return found

    def _put(self, found: dict[str, Any], name: str, read: Any, uuid: str, handle: Any) -> None:
        try:
            value = read(self, handle)
        except self._errors as error:
            if type(error).__name__ in _GONE:
                # The card may come back under another handle.
                self._handles.pop(uuid, None)
            elif type(error).__name__ in _NEVER or isinstance(error, AttributeError):
                self._lacking[uuid].add(name)
            return
        if value is not None:
            found[name] = value

    def _constants(self, handle: Any) -> dict[str, Any]:
        nvml = self._nvml
        threshold = getattr(nvml, "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN", 1)
        values = {
            "slowdown_c": _try(nvml, "nvmlDeviceGetTemperatureThreshold", handle, threshold),
            "limit_mw": _try(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle),
        }
        return {name: value for name, value in values.items() if value is not None}

    def _utilisation(self, handle: Any) -> Any:
        return self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu

    def _memory(self, handle: Any) -> Any:
        # The first version counts what the driver reserves for itself as used.
        if self._memory_version:
            try:
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle, self._memory_version)
            except self._errors:
                self._memory_version = None
            else:
                return [memory.total, memory.used]
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        return [memory.total, memory.total - memory.free]

    def _power(self, handle: Any) -> Any:
        return self._nvml.nvmlDeviceGetPowerUsage(handle)

    def _energy(self, handle: Any) -> Any:
        return self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle)

    def _temperature(self, handle: Any) -> Any:
        return self._nvml.nvmlDeviceGetTemperature(handle, 0)

    def _clock(self, handle: Any) -> Any:
        # 1 is the clock of the multiprocessors.
        return self._nvml.nvmlDeviceGetClockInfo(handle, 1)

    def _throttle(self, handle: Any) -> Any:
        newer = getattr(self._nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        return (newer or self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(handle)

    def _ecc(self, handle: Any) -> Any:
        # Uncorrected errors since the driver was loaded.
        return self._nvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0)

    def _fan(self, handle: Any) -> Any:
        return self._nvml.nvmlDeviceGetFanSpeed(handle)

    def _limit(self, handle: Any) -> Any:
        return self._nvml.nvmlDeviceGetEnforcedPowerLimit(handle)

    def _processes(self, handle: Any) -> Any:
        return len(self._nvml.nvmlDeviceGetComputeRunningProcesses(handle))

    _READERS: ClassVar[dict[str, Any]] = {
        "utilisation": _utilisation,
        "memory": _memory,
        "power_mw": _power,
        "temperature_c": _temperature,
        "clock_mhz": _clock,
        "throttle": _throttle,
    }
    _SELDOM: ClassVar[dict[str, Any]] = {
        "fan": _fan,
        "limit_mw": _limit,
        "ecc": _ecc,
        "processes": _processes,
        "energy_mj": _energy,
    }


_NEVER = frozenset({"NVMLError_NotSupported", "NVMLError_FunctionNotFound", "NVMLError_NoPermission"})
_GONE = frozenset({"NVMLError_GpuIsLost", "NVMLError_InvalidArgument", "NVMLError_Uninitialized", "NVMLError_Unknown"})


def _is_awaited(parent: int) -> bool:
    """Wait for a query. False: the parent is gone, even if a process forked from it still holds the other end."""
    try:
        watched = os.pidfd_open(parent)
    except OSError:
        watched = -1
    try:
        while os.getppid() == parent:
            files = [sys.stdin.fileno(), *([watched] if watched >= 0 else [])]
            ready, _, _ = select.select(files, [], [], None if watched >= 0 else _PARENT_CHECK_S)
            if watched in ready:
                return False
            if ready:
                return True
        return False
    finally:
        if watched >= 0:
            os.close(watched)


if __name__ == "__main__":
    main()
