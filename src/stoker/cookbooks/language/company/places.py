"""The engine's slots as a company uses them: made anew, with everybody in them, for somebody who does not fit."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.cookbooks.language.engine.adapters import Adapter, AdapterSpec, Optim
from stoker.cookbooks.language.engine.bases import Base
from stoker.cookbooks.language.engine.slots import Slots
from stoker.model.frozen import frozen


@frozen
class Room:
    """How large the banks are."""

    count: int
    rank: int
    targets: tuple[str, ...]

    def holds(self, other: Room) -> bool:
        return other.count <= self.count and other.rank <= self.rank and set(other.targets) <= set(self.targets)


def room_for(seated: Iterable[tuple[int, AdapterSpec]], order: tuple[str, ...], least: int = 1) -> Room:
    """Give the least room, of so many slots at least, for adapters in these slots; targets in the given order."""
    everybody = list(seated)
    wanted = {target for _, spec in everybody for target in spec.targets}
    return Room(
        count=max([least, *(slot + 1 for slot, _ in everybody)]),
        rank=max((spec.rank for _, spec in everybody), default=1),
        targets=tuple(target for target in order if target in wanted),
    )


class Places:
    """Slots over one base, as many and as large as those who sit there need."""

    def __init__(self, base: Base) -> None:
        self.base = base
        self.slots: Slots | None = None
        self._room: Room | None = None
        self._seated: dict[int, tuple[AdapterSpec, Optim]] = {}

    def seat(self, newcomers: dict[int, tuple[Adapter, Optim]]) -> bool:
        """Seat adapters in their slots, all at once; says whether the banks had to be made anew for that."""
        order = tuple(linear.name for linear in self.base.shape.model.linears)
        specs = {slot: adapter.spec for slot, (adapter, _) in newcomers.items()}
        seated = {**{slot: spec for slot, (spec, _) in self._seated.items()}, **specs}
        # No slot goes: a place that is kept for one who left may be the last.
        wanted = room_for(seated.items(), order, least=self._room.count if self._room else 1)
        is_made = self._room is None or not self._room.holds(wanted)
        if is_made:
            self._make(wanted)
        for slot, (adapter, optim) in newcomers.items():
            self._in_use.seat(slot, adapter, optim)
            self._seated[slot] = (adapter.spec, optim)
        return is_made

    def adapter(self, slot: int) -> Adapter:
        """Give a copy of the adapter in a slot."""
        return self._in_use.adapter(slot)

    def clear(self, slot: int) -> None:
        """Empty a slot."""
        if self._seated.pop(slot, None) is not None:
            self._in_use.clear(slot)

    def leave_out(self, slot: int) -> None:
        """Give back what was kept for steps with whoever had a slot."""
        if self.slots is not None:
            self.slots.leave_out(slot)

    def _make(self, room: Room) -> None:
        held = {slot: (self._in_use.adapter(slot), optim) for slot, (_, optim) in self._seated.items()}
        before = self._room
        try:
            self._fill(room, held)
        except Exception:
            # There is no memory for more: those who were here go on as before.
            if before is not None:
                self._fill(before, held)
            raise

    def _fill(self, room: Room, held: dict[int, tuple[Adapter, Optim]]) -> None:
        # The old banks go first: there may not be room for both.
        self.slots = None
        self.slots = Slots(self.base, count=room.count, rank=room.rank, targets=room.targets)
        self._room = room
        for slot, (adapter, optim) in held.items():
            self.slots.seat(slot, adapter, optim)

    @property
    def _in_use(self) -> Slots:
        if self.slots is None:
            raise IndexError("nobody is seated")
        return self.slots
