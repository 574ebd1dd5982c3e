"""A script, never imported by Stoker: queries NVIDIA's management library, in a process of its own.

    python nvml_child.py FOLDER snapshot          prints one JSON object and ends
    python nvml_child.py FOLDER meter PARENT      answers one JSON line per line of standard input

FOLDER contains `pynvml`. The meter ends with its standard input or with the process PARENT, whichever ends first. The
library makes no CUDA context, so this takes no memory on any device. Needs the standard library and `pynvml` only.
"""

from __future__ import annotations

import json
import os
import select
import sys
from typing import Any

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
