"""Boxes without walls: whoever is inside is found again by what they carry, and nothing stops them from growing."""

from __future__ import annotations

from stoker.host.containment.box import BoxReading, Entry, Limits, Mechanism
from stoker.host.containment.keeper import Keeper
from stoker.host.containment.strays import end_strays, find_strays
from stoker.host.identity import ProcessIdentity
from stoker.model.clock import Clock


class Bare:
    """No limit at all."""

    mechanism = Mechanism.BARE
    warning = "memory is NOT limited: nothing on this machine can; a program that eats it all takes the machine along"

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock

    def open(self, name: str, limits: Limits, mark: str) -> LooseBox:
        return LooseBox(mark, clock=self._clock)


class LooseBox:
    """One attempt, known by its first process and its mark."""

    mechanism = Mechanism.BARE

    def __init__(self, mark: str, *, entry: Entry | None = None, clock: Clock | None = None) -> None:
        self.entry = entry or Entry()
        self._mark = mark
        self._clock = clock
        self._identity: ProcessIdentity | None = None
        # It knows the mark before anybody carries it.
        self._keeper = Keeper()
        self._keeper.guard_mark(mark)

    def took_in(self, identity: ProcessIdentity) -> None:
        self._identity = identity
        self._keeper.guard_session(identity)

    def read(self) -> BoxReading:
        return BoxReading(peak_bytes=None, was_out_of_memory=False, how="nobody counts")

    def members(self) -> tuple[int, ...]:
        return tuple(row.pid for row in find_strays(self._identity, self._mark))

    def kill_all(self) -> None:
        end_strays(self._identity, self._mark, clock=self._clock)

    def close(self) -> None:
        self.kill_all()
        self._keeper.dismiss()
