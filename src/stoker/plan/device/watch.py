"""What attempts really hold of their devices, measured about once a second in a thread of its own.

Of a device, whatever processes below an attempt's own hold is its. Where the driver's process numbers mean nothing here
(in a container), an attempt that has a device to itself is charged with what became less free since it began. No
thread runs before an attempt holds a device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from stoker.hardware.ledger.living import chain_of
from stoker.hardware.probes.meters.meter import Meter
from stoker.host.identity import ProcessIdentity
from stoker.plan.device.gate import Taken

EVERY_S = 1.0

Measured = Callable[[Taken, Mapping[str, int]], None]
"""Hears what an attempt holds of each of its devices at this moment, if that is more than ever before."""


class _Watched:
    def __init__(self, free_bytes: Mapping[str, int]) -> None:
        self.owner: ProcessIdentity | None = None
        self.free_bytes = free_bytes
        self.most_bytes: dict[str, int] = {}


class DeviceWatch:
    """Watches the attempts of one run."""

    def __init__(
        self,
        meter: Callable[[], Meter],
        measured: Measured,
        *,
        beat: Callable[[], None],
        trouble: Callable[[str], None],
        every_s: float = EVERY_S,
    ) -> None:
        """Make it; `beat` is called each time before it measures, `trouble` when either went wrong."""
        self._meter = meter
        self._measured = measured
        self._beat = beat
        self._trouble = trouble
        self._every_s = every_s
        self._lock = threading.Lock()
        self._watched: dict[Taken, _Watched] = {}
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, taken: Taken, free_bytes: Mapping[str, int]) -> None:
        """Watch an attempt; `free_bytes` is what was free on devices that it has to itself, before it began."""
        with self._lock:
            self._watched[taken] = _Watched(free_bytes)
            if self._thread is None and not self._is_over.is_set():
                self._thread = threading.Thread(target=self._run, name="stoker-devices", daemon=True)
                self._thread.start()

    def owned_by(self, taken: Taken, owner: ProcessIdentity) -> None:
        """Learn whose processes do the work; what it holds is measured from now on."""
        with self._lock:
            if taken in self._watched:
                self._watched[taken].owner = owner

    def end(self, taken: Taken) -> None:
        """Watch it no longer."""
        with self._lock:
            self._watched.pop(taken, None)

    def close(self) -> None:
        """Measure no more. A question that is under way is not waited for."""
        self._is_over.set()

    def look(self) -> None:
        """Measure everybody once."""
        with self._lock:
            watched = [(taken, one, one.owner) for taken, one in self._watched.items() if one.owner is not None]
        if not watched:
            return
        meter = self._meter()
        used: dict[str, Mapping[int, int] | None] = {}
        for taken, one, owner in watched:
            fresh: dict[str, int] = {}
            for uuid in taken.devices:
                if uuid not in used:
                    used[uuid] = meter.used_by(uuid)
                held, is_unclear = _held_by(owner.pid, used[uuid])
                if is_unclear and uuid in one.free_bytes:
                    free_bytes = meter.free_bytes(uuid)
                    held = 0 if free_bytes is None else one.free_bytes[uuid] - free_bytes
                if held and held > one.most_bytes.get(uuid, 0):
                    one.most_bytes[uuid] = fresh[uuid] = held
            if fresh:
                taken.peak_bytes = max(one.most_bytes.values())
                self._measured(taken, fresh)

    def _run(self) -> None:
        while not self._is_over.wait(self._every_s):
            try:
                self._beat()
                self.look()
            except Exception as error:  # noqa: BLE001 - else nothing is renewed and measured any more, and nobody knows
                self._trouble(f"{type(error).__name__}: {error}")


def _held_by(owner: int, used: Mapping[int, int] | None) -> tuple[int, bool]:
    """Add up what an attempt's processes hold; says also whether nobody can tell: no holder is a process seen here."""
    chains = {pid: chain_of(pid) for pid in used or ()}
    theirs = [pid for pid, chain in chains.items() if pid == owner or owner in (chain or ())]
    return sum((used or {})[pid] for pid in theirs), not any(chain is not None for chain in chains.values())
