"""The engine's slots as a shared process uses them: made again, with all members in them, for one that does not fit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch

from stoker.cookbooks.language.compute.banks import AdapterSpec, AdapterState, Optim
from stoker.cookbooks.language.compute.base_weights import BaseWeights
from stoker.cookbooks.language.compute.slots import Slots
from stoker.core.frozen import frozen
from stoker.core.text import format_duration
from stoker.devices.estimate.terms import context_bytes_of


@frozen
class BankSize:
    """How large the banks are."""

    count: int
    rank: int
    targets: tuple[str, ...]

    def holds(self, other: BankSize) -> bool:
        return other.count <= self.count and other.rank <= self.rank and set(other.targets) <= set(self.targets)


def room_for(loaded: Iterable[tuple[int, AdapterSpec]], order: tuple[str, ...], least: int = 1) -> BankSize:
    """Return the least room, of so many slots at least, for adapters in these slots; targets in the given order."""
    members = list(loaded)
    wanted = {target for _, spec in members for target in spec.targets}
    return BankSize(
        count=max([least, *(slot + 1 for slot, _ in members)]),
        rank=max((spec.rank for _, spec in members), default=1),
        targets=tuple(target for target in order if target in wanted),
    )


class ResizableSlots:
    """Slots over one base, as many and as large as those who sit there need."""

    def __init__(self, base: BaseWeights) -> None:
        self.base = base
        self.slots: Slots | None = None
        self._room: BankSize | None = None
        self._loaded: dict[int, tuple[AdapterSpec, Optim]] = {}

    def load(self, newcomers: dict[int, tuple[AdapterState, Optim]]) -> bool:
        """Load adapters into their slots, all at once; return True if that replaced the banks."""
        order = tuple(linear.name for linear in self.base.shape.model.linears)
        specs = {slot: adapter.spec for slot, (adapter, _) in newcomers.items()}
        loaded = {**{slot: spec for slot, (spec, _) in self._loaded.items()}, **specs}
        # No slot goes: a place that is kept for one who left may be the last.
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

    def clear(self, slot: int) -> None:
        """Empty a slot."""
        if self._loaded.pop(slot, None) is not None:
            self._in_use.clear(slot)

    def leave_out(self, slot: int) -> None:
        """Give back what was kept for steps with the member that had a slot."""
        if self.slots is not None:
            self.slots.leave_out(slot)

    def _make(self, room: BankSize) -> None:
        held = {slot: (self._in_use.adapter(slot), optim) for slot, (_, optim) in self._loaded.items()}
        before = self._room
        try:
            self._fill(room, held)
        except Exception:
            # There is no memory for more: those who were here go on as before.
            if before is not None:
                self._fill(before, held)
            raise

    def _fill(self, room: BankSize, held: dict[int, tuple[AdapterState, Optim]]) -> None:
        # The old banks go first: there may not be room for both.
        self.slots = None
        self.slots = Slots(self.base, count=room.count, rank=room.rank, targets=room.targets)
        self._room = room
        for slot, (adapter, optim) in held.items():
            self.slots.load(slot, adapter, optim)

    @property
    def _in_use(self) -> Slots:
        if self.slots is None:
            raise IndexError("no members")
        return self.slots


# A shared process keeps to what it was given of a device: what it takes beyond that fails here, and not in a neighbour.
#
# An estimate may be wrong, and a device is shared. So torch's allocator gets a limit, whenever a member came
# or left; a pass that does not fit then is divided, as it is where the device itself is full.


class TorchAllocator(Protocol):
    """Torch's on one device."""

    @property
    def total_bytes(self) -> int:
        """What the device has."""

    @property
    def context_bytes(self) -> int:
        """What the process takes of the device beside it."""

    def reserved_bytes(self) -> int:
        """What it holds now, in use or not."""

    def stop_at(self, fraction: float) -> None:
        """Let it hold no more than this part of the device."""


class AllocatorLimit:
    """Where a shared process's allocator stops; it follows what the shared process was given."""

    def __init__(self, allocator: TorchAllocator | None) -> None:
        """Without an allocator, as on the CPU, nothing is done."""
        self._allocator = allocator
        self._followed: int | None = None

    def follow(self, ceiling_bytes: int | None) -> None:
        """Stop at what the process may take of the device; nothing: at all there is."""
        if self._allocator is None or ceiling_bytes == self._followed:
            return
        self._followed = ceiling_bytes
        self._allocator.stop_at(_fraction(ceiling_bytes, self._allocator))


def _fraction(ceiling_bytes: int | None, allocator: TorchAllocator) -> float:
    if ceiling_bytes is None:
        return 1.0
    # What it holds by now was given to no other process: those were admitted by what the driver had free.
    most_bytes = max(ceiling_bytes - allocator.context_bytes, allocator.reserved_bytes())
    return min(1.0, most_bytes / allocator.total_bytes)


class CurrentDeviceAllocator:
    """Torch's allocator on the device that this process was given."""

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


# What is reported of the first step on a GPU, which takes long where kernels are compiled for it.

BEGINS = "first step: kernels are compiled, or taken from an earlier run"


@frozen
class Kernels:
    """How many parts of the work were compiled by this process so far, and how many it found compiled."""

    compiled: int = 0
    kept: int = 0


def kernels_so_far() -> Kernels:
    """Ask torch; nothing where it does not count."""
    with suppress(ImportError, KeyError, TypeError):
        from torch._dynamo.utils import counters

        found = counters["inductor"]
        return Kernels(compiled=int(found["fxgraph_cache_miss"]), kept=int(found["fxgraph_cache_hit"]))
    return Kernels()


def first_step_text(took_s: float, kernels: Kernels) -> str:
    """Return how long the first step took, and why."""
    took = format_duration(took_s)
    if kernels.compiled:
        return f"compiling {took} (kept for next time)"
    return f"first step {took}, its kernels from an earlier run" if kernels.kept else f"first step {took}"


# A stretch of work that a request to end does not interrupt: what it leaves behind is whole, and can be kept.


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back SIGTERM within; what it does otherwise (raise, most of all) it does at the end of the block."""
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
