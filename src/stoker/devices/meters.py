"""A meter with one child process, which queries NVIDIA's library over a pipe.

The child loads the library, so nothing of it is ever loaded here; it takes no memory on any device. A query has a
timeout. A child that hangs is killed, queries return `None` for a while, and then another one is started. The child
ends with this process, even by kill -9. After a fork, the new process starts a child of its own and leaves the old one
to its parent. Thread-safe.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from stoker.core import jsontext
from stoker.core.clock import Clock, SystemClock
from stoker.core.device import Backend, Device, MemoryType
from stoker.devices.ledger.reservations import FakeMeter, Meter, NoMeter
from stoker.devices.probes import amd as probes_amd
from stoker.devices.probes.nvidia import child_command, library_folder
from stoker.devices.probes.readers import KernelFiles, bytes_value, marked_objects
from stoker.host.command_runner import LIMIT_S
from stoker.host.resources import memory_available_bytes

# Meters that read files: AMD's devices by the graphics driver's, and devices that use the machine's memory.

_PROCESSES = "/sys/class/kfd/kfd/proc"


class AmdMeter:
    """Measures AMD's devices, by address. Untested on AMD hardware."""

    def __init__(self, addresses: Mapping[str, str], files: KernelFiles) -> None:
        self._addresses = dict(addresses)
        """UUID → PCI address."""
        self._files = files

    def free_bytes(self, uuid: str) -> int | None:
        folder = probes_amd.memory_files(self._files, self._addresses.get(uuid, "?"))
        return probes_amd.memory(self._files, folder)[1] if folder else None

    def used_by(self, uuid: str) -> Mapping[int, int] | None:
        number = self._driver_number(self._addresses.get(uuid, "?"))
        if not number:
            return None
        used = {}
        for pid in self._files.names(_PROCESSES, r"\d{1,10}"):
            size = probes_amd.bytes_of(self._files.text(f"{_PROCESSES}/{pid}/vram_{number}"))
            if size:
                used[int(pid)] = size
        return used

    def close(self) -> None:
        pass

    def _driver_number(self, pci: str) -> str:
        """Return the number of a device in the compute driver's files of processes."""
        for node in self._files.names(probes_amd.NODES, r"\d+"):
            properties = probes_amd.read_properties(self._files.text(f"{probes_amd.NODES}/{node}/properties"))
            if probes_amd.address(properties) == pci:
                return self._files.text(f"{probes_amd.NODES}/{node}/gpu_id")
        return ""


class UnifiedMeter:
    """Measures devices that use the machine's memory: what the machine has left is free.

    The other meter measures processes, if it can.
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


REST_S = 10.0
"""How long no child is started after one has failed; twice as long after each failure that follows."""
MOST_REST_S = 600.0
_GOING_S = 0.5
_MOST_BYTES = 1 << 20

MeterCommand = Callable[[], Sequence[str] | None]
"""Returns the child's command; `None` if there is none."""


def nvml_command() -> Sequence[str] | None:
    """Return the command of the child that queries NVIDIA's library; none if its Python half is not installed."""
    folder = library_folder()
    return child_command(folder, "meter", str(os.getpid())) if folder else None


class NvmlMeter:
    """Measures NVIDIA's devices, parts of divided ones included. Nothing is started before the first query."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        command: MeterCommand = nvml_command,
        limit_s: float = LIMIT_S,
        rest_s: float = REST_S,
        clock: Clock | None = None,
    ) -> None:
        self._environment = dict(environment)
        self._command = command
        self._limit_s = limit_s
        self._rest_s = rest_s
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._child: _Talk | None = None
        self._rests_until_s = float("-inf")
        self._failures = 0
        _METERS.add(self)

    def free_bytes(self, uuid: str) -> int | None:
        return bytes_value(self._ask("free", uuid))

    def used_by(self, uuid: str) -> Mapping[int, int] | None:
        rows = self._ask("used", uuid)
        if not isinstance(rows, dict):
            return None
        sizes = {pid: bytes_value(size) for pid, size in rows.items() if pid.isdecimal() and len(pid) < 12}
        return {int(pid): size for pid, size in sizes.items() if size is not None}

    def sample(self, uuids: Sequence[str], also: Sequence[str] = ()) -> dict[str, dict[str, Any]] | None:
        """Return raw values of devices, by UUID and name (`nvml_child`); None if the library does not respond.

        `also` names what is measured seldom: `fan`, `limit_mw`, `ecc`, `processes`, `energy_mj`.
        """
        rows = self._ask("sample", "", uuids=list(uuids), also=list(also))
        if not isinstance(rows, dict):
            return None
        return {uuid: row for uuid, row in rows.items() if isinstance(row, dict)}

    def close(self) -> None:
        with self._lock:
            self._let_go()

    def start_anew(self) -> None:
        """Forget the child, which belongs to the process that we were forked from."""
        # Another thread may have held the old lock when we were forked, and that thread is not here.
        self._lock = threading.Lock()
        if self._child is not None:
            self._child.forget()
            self._child = None

    def _ask(self, what: str, uuid: str, **more: Any) -> Any:
        with self._lock:
            if self._clock.monotonic_s() < self._rests_until_s:
                return None
            try:
                if self._child is None:
                    self._child = self._start()
                if self._child is not None:
                    value = self._child.ask(what, uuid, self._limit_s, more)
                    self._failures = 0
                    return value
            except (OSError, ValueError, TimeoutError):
                self._let_go()
            # A child that hangs inside the driver may not even end by SIGKILL: each one more is started later.
            rest_s = min(MOST_REST_S, self._rest_s * 2.0**self._failures)
            self._failures = min(self._failures + 1, 10)
            self._rests_until_s = self._clock.monotonic_s() + rest_s
            return None

    def _start(self) -> _Talk | None:
        command = self._command()
        return _Talk(command, self._environment) if command is not None else None

    def _let_go(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


class _Talk:
    """One child and the pipes to it. Not thread-safe."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            list(command),
            cwd="/",
            env={**environment, "LC_ALL": "C"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        self._kill = weakref.finalize(self, _kill, self._process)
        self._number = 0
        self._text = b""
        for pipe in self._pipes():
            os.set_blocking(pipe.fileno(), False)

    def ask(self, what: str, uuid: str, limit_s: float, more: Mapping[str, Any]) -> Any:
        """Return the child's response, `None` if it has no value. Raises if it does not respond."""
        self._number += 1
        question = jsontext.dumps({"id": self._number, "ask": what, "uuid": uuid, **more}).encode() + b"\n"
        to_child, from_child = self._pipes()
        os.write(to_child.fileno(), question)
        # Real time: it limits how long a thread may block.
        clock = SystemClock()
        deadline_s = clock.monotonic_s() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(from_child, selectors.EVENT_READ)
            while True:
                left_s = deadline_s - clock.monotonic_s()
                if left_s <= 0 or not selector.select(left_s):
                    raise TimeoutError("the meter's child does not respond")
                for answer in self._read(from_child):
                    # A child that can't reach the library reports that instead of a value, and ends.
                    if "error" in answer and "id" not in answer:
                        raise ValueError(answer["error"])
                    if answer.get("id") == self._number:
                        return answer.get("value")

    def end(self) -> None:
        """Kill the child and wait until it is gone, if it can be killed at all."""
        self._kill()

    def forget(self) -> None:
        """Close our copies of the pipes; the child itself belongs to another process."""
        self._kill.detach()
        _close_pipes(self._process)
        # Otherwise it would be waited for here, where it is not a child.
        self._process.returncode = 0

    def _read(self, pipe: IO[bytes]) -> list[dict[str, Any]]:
        data = os.read(pipe.fileno(), 1 << 16)
        if not data or len(self._text) > _MOST_BYTES:
            raise ValueError("the meter's child has ended")
        *lines, self._text = (self._text + data).split(b"\n")
        return marked_objects(b"\n".join(lines).decode("utf-8", "replace"))

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        to_child, from_child = self._process.stdin, self._process.stdout
        if to_child is None or from_child is None:
            raise ValueError("the meter's child has no pipes")
        return to_child, from_child


def _kill(process: subprocess.Popen[bytes]) -> None:
    _close_pipes(process)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GOING_S)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


_METERS: weakref.WeakSet[NvmlMeter] = weakref.WeakSet()


def _after_fork() -> None:
    for meter in list(_METERS):
        meter.start_anew()


os.register_at_fork(after_in_child=_after_fork)


# Which meter measures which device: one for all devices of a machine, composed of one per kind.


def open_meter(devices: Iterable[Device], environment: Mapping[str, str], *, files: str = "/") -> Meter:
    """Return a meter for these devices. Nothing is started before the first query; caller closes.

    Fake devices have fake values. A device without a meter is `None`.
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
    """Passes each query to the meter of the device."""

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
