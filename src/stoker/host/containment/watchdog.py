"""Best effort: a thread that looks at the memory of everybody in an attempt, and kills them all above the cap.

It looks several times a second, so a program that grows faster than that passes the cap before it is seen: the reserve
that admission leaves to the machine is what it grows into. With an address-space limit, each process has a hard end
of its own as well, and what the thread watches is their sum.
"""

from __future__ import annotations

import os
import threading

from stoker.host.containment.box import BoxReading, Entry, Limits, Mechanism
from stoker.host.containment.loose import LooseBox
from stoker.host.containment.strays import find_strays
from stoker.host.identity import ProcessIdentity
from stoker.host.process_table import ProcessRow, read_row
from stoker.model.clock import Clock, SystemClock
from stoker.model.errors import ContainmentUnavailable, ProcessLost

# Far below the cap it looks less often.
_CALM_S = 0.25
_TENSE_S = 0.02
# Looking for newcomers means reading the whole table of processes.
_CENSUS_S = 0.5
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Watchdog:
    """Boxes that are only watched."""

    mechanism = Mechanism.WATCHDOG
    warning = "memory is limited by watching only (best effort): a program that grows fast is seen late"

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock

    def open(self, name: str, limits: Limits, mark: str) -> WatchedBox:
        return WatchedBox(limits, mark, clock=self._clock)


class AddressSpace:
    """Boxes in which each process has an end of its address space, and their sum is watched."""

    mechanism = Mechanism.ADDRESS_SPACE
    warning = ""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock

    def open(self, name: str, limits: Limits, mark: str) -> WatchedBox:
        if limits.uses_gpu:
            raise ContainmentUnavailable(
                "an address-space limit is not for GPU work: drivers reserve more than any machine has",
                hint="choose watchdog, or let the mechanism be chosen",
            )
        return WatchedBox(limits, mark, has_end=True, clock=self._clock)


class WatchedBox(LooseBox):
    """One attempt under watch."""

    def __init__(self, limits: Limits, mark: str, *, has_end: bool = False, clock: Clock | None = None) -> None:
        super().__init__(mark, entry=Entry(address_space_bytes=limits.memory_bytes) if has_end else None, clock=clock)
        self.mechanism = Mechanism.ADDRESS_SPACE if has_end else Mechanism.WATCHDOG
        self._cap_bytes = limits.memory_bytes
        self._time = clock or SystemClock()
        self._known: tuple[ProcessRow, ...] = ()
        self._census_s = float("-inf")
        self._peak_bytes: int | None = None
        self._was_killed = False
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stoker-watchdog", daemon=True)

    def took_in(self, identity: ProcessIdentity) -> None:
        super().took_in(identity)
        self._thread.start()

    def read(self) -> BoxReading:
        return BoxReading(
            peak_bytes=self._peak_bytes,
            was_out_of_memory=self._was_killed,
            how="watched from outside, several times a second",
            charged_bytes=self._peak_bytes,
        )

    def close(self) -> None:
        self._is_closed.set()
        if self._thread.is_alive():
            self._thread.join()
        super().close()

    def _watch(self) -> None:
        pause_s = 0.0
        while not self._is_closed.wait(pause_s):
            pause_s = self._look()

    def _look(self) -> float:
        """Look once, act on it, and give how long to wait until the next look."""
        now_s = self._time.monotonic_s()
        if now_s - self._census_s >= _CENSUS_S:
            self._census_s = now_s
            self._known = self._census()
        used_bytes = _together(self._known, self._cap_bytes)
        if used_bytes:
            self._peak_bytes = max(self._peak_bytes or 0, used_bytes)
        if self._cap_bytes is None:
            return _CALM_S
        if used_bytes > self._cap_bytes:
            self._was_killed = True
            try:
                self.kill_all()
            except ProcessLost:
                # Closing the box tells whoever waits for it.
                return _CALM_S
        return _TENSE_S if used_bytes * 2 > self._cap_bytes else _CALM_S

    def _census(self) -> tuple[ProcessRow, ...]:
        try:
            return find_strays(self._identity, self._mark)
        except ProcessLost:
            return self._known


def _together(members: tuple[ProcessRow, ...], cap_bytes: int | None) -> int:
    """Give the memory that these hold together.

    Pages that several share count for each of them in the quick sum. Only if that is above the cap are they told apart,
    which the kernel takes longer for.
    """
    members = tuple(row for row in members if _is_same(row))
    quick_bytes = sum(_resident_bytes(row.pid) for row in members)
    if cap_bytes is None or quick_bytes <= cap_bytes:
        return quick_bytes
    return sum(_fair_share_bytes(row.pid) for row in members)


def _is_same(row: ProcessRow) -> bool:
    now = read_row(row.pid)
    return now is not None and now.start_ticks == row.start_ticks


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def _fair_share_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return _resident_bytes(pid)
