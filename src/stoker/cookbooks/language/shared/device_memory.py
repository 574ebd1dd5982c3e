"""The adapter slots of a shared process: banks are made again, with all members, for a member that does not fit."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from stoker.cookbooks.language.compute.banks import AdapterSpec, AdapterState, Optim, Pairs
from stoker.cookbooks.language.compute.base_weights import FrozenBase
from stoker.cookbooks.language.compute.slots import Slots
from stoker.core.frozen import frozen
from stoker.devices.estimate.terms import context_bytes_of


@frozen
class BankSize:
    """The size of the banks."""

    count: int
    rank: int
    targets: tuple[str, ...]
    dora: bool = False
    """True if a member has magnitudes."""
    whole: tuple[str, ...] = ()
    """The modules that members train whole; their share key has them, so they are the same."""

    def holds(self, other: BankSize) -> bool:
        is_large = other.count <= self.count and other.rank <= self.rank and other.dora <= self.dora
        return is_large and set(other.targets) <= set(self.targets) and set(other.whole) <= set(self.whole)


def room_for(loaded: Iterable[tuple[int, AdapterSpec]], order: tuple[str, ...], least: int = 1) -> BankSize:
    """Return the smallest size, of at least so many slots, for adapters in these slots.

    Targets are in the given order, others behind them.
    """
    members = list(loaded)
    wanted = {target for _, spec in members for target in spec.targets}
    return BankSize(
        count=max([least, *(slot + 1 for slot, _ in members)]),
        rank=max((spec.rank for _, spec in members), default=1),
        targets=(*(target for target in order if target in wanted), *sorted(wanted.difference(order))),
        dora=any(spec.dora for _, spec in members),
        whole=tuple(dict.fromkeys(name for _, spec in members for name in spec.whole)),
    )


class ResizableSlots:
    """Slots over one base, as many and as large as their members need."""

    def __init__(self, base: FrozenBase) -> None:
        self.base = base
        self.slots: Slots | None = None
        self._room: BankSize | None = None
        self._loaded: dict[int, tuple[AdapterSpec, Optim]] = {}

    def load(self, newcomers: dict[int, tuple[AdapterState, Optim]]) -> bool:
        """Load adapters into their slots, all at once; return True if the banks were replaced."""
        order = tuple(linear.name for linear in self.base.shape.model.linears)
        specs = {slot: adapter.spec for slot, (adapter, _) in newcomers.items()}
        loaded = {**{slot: spec for slot, (spec, _) in self._loaded.items()}, **specs}
        # No slot is removed: one that is kept for a former member may be the last.
        wanted = room_for(loaded.items(), order, least=self._room.count if self._room else 1)
        is_made = self._room is None or not self._room.holds(wanted)
        if is_made:
            self._make(wanted)
        for slot, (adapter, optim) in newcomers.items():
            self._in_use.load(slot, adapter, optim)
            self._loaded[slot] = (adapter.spec, optim)
        return is_made

    def adapter(self, slot: int) -> AdapterState:
        """Return a copy of the adapter in a slot."""
        return self._in_use.adapter(slot)

    def weights(self, slot: int) -> Pairs:
        """Return a copy of the matrices of the adapter in a slot."""
        return self._in_use.weights(slot)

    def snapshot(self, slot: int) -> Callable[[], Pairs]:
        """Return a function that makes that copy of the matrices as they are now, in any thread."""
        return self._in_use.snapshot(slot)

    def clear(self, slot: int) -> None:
        """Empty a slot."""
        if self._loaded.pop(slot, None) is not None:
            self._in_use.clear(slot)

    def release(self) -> None:
        """Free all slots, which are empty: the next members may need fewer, and have other reservations."""
        self.slots = self._room = None
        if self.base.device != "cpu":
            gc.collect()
            torch.cuda.empty_cache()
            # Peaks correct estimates: those of the next members must not contain these.
            torch.cuda.reset_peak_memory_stats()

    def leave_out(self, slot: int) -> None:
        """Release the memory kept for steps with the member that had a slot."""
        if self.slots is not None:
            self.slots.leave_out(slot)

    def _make(self, room: BankSize) -> None:
        held = {slot: (self._in_use.adapter(slot), optim) for slot, (_, optim) in self._loaded.items()}
        before = self._room
        try:
            self._fill(room, held)
        except Exception:
            # There is no memory for more: the earlier members continue as before.
            if before is not None:
                self._fill(before, held)
            raise

    def _fill(self, room: BankSize, held: dict[int, tuple[AdapterState, Optim]]) -> None:
        # The old banks are freed first: there may not be memory for both.
        self.slots = None
        self.slots = Slots(
            self.base, count=room.count, rank=room.rank, targets=room.targets, dora=room.dora, whole=room.whole
        )
        self._room = room
        for slot, (adapter, optim) in held.items():
            self.slots.load(slot, adapter, optim)

    @property
    def _in_use(self) -> Slots:
        if self.slots is None:
            raise IndexError("no members")
        return self.slots


# The memory limit of a shared process on a device: an allocation beyond it fails here, not in another process.
#
# An estimate may be wrong, and a device is shared. So torch's allocator gets a limit whenever a member joins or leaves;
# a pass that does not fit is then divided, as if the device were full.


class TorchAllocator(Protocol):
    """Torch's allocator on one device."""

    @property
    def total_bytes(self) -> int:
        """Memory of the device."""

    @property
    def context_bytes(self) -> int:
        """Memory of the process on the device beside the allocator's."""

    def reserved_bytes(self) -> int:
        """Memory held now, in use or not."""

    def stop_at(self, fraction: float) -> None:
        """Limit it to this part of the device."""


class AllocatorLimit:
    """The limit of a shared process's allocator; it follows the reservation of the process."""

    def __init__(self, allocator: TorchAllocator | None) -> None:
        """Without an allocator, as on the CPU, this does nothing."""
        self._allocator = allocator
        self._followed: int | None = None

    def follow(self, ceiling_bytes: int | None) -> None:
        """Set the limit to the reservation of the process; None: no limit."""
        if self._allocator is None or ceiling_bytes == self._followed:
            return
        self._followed = ceiling_bytes
        self._allocator.stop_at(_fraction(ceiling_bytes, self._allocator))


def _fraction(ceiling_bytes: int | None, allocator: TorchAllocator) -> float:
    if ceiling_bytes is None:
        return 1.0
    # Memory held now is in no other process's reservation: those were admitted by what the driver reported as free.
    most_bytes = max(ceiling_bytes - allocator.context_bytes, allocator.reserved_bytes())
    return min(1.0, most_bytes / allocator.total_bytes)


class CurrentDeviceAllocator:
    """Torch's allocator on the device of this process."""

    @property
    def total_bytes(self) -> int:
        total: int = torch.cuda.get_device_properties(0).total_memory
        return total

    @property
    def context_bytes(self) -> int:
        return context_bytes_of(torch.cuda.get_device_name(0))[0]

    def reserved_bytes(self) -> int:
        reserved: int = torch.cuda.memory_reserved(0)
        return reserved

    def stop_at(self, fraction: float) -> None:
        torch.cuda.set_per_process_memory_fraction(fraction, 0)


# Blocks that SIGTERM does not interrupt: the state after them is consistent, and can be saved.


@contextmanager
def undisturbed() -> Iterator[None]:
    """Delay SIGTERM until the end of the block; its handler, which mostly raises, runs then."""
    before = signal.getsignal(signal.SIGTERM)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[Any, ...]] = []
    signal.signal(signal.SIGTERM, lambda *arguments: came.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if came:
            before(*came[0])
