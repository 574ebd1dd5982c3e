"""A company keeps to what it was given of a device: what it takes beyond that fails here, and not in a neighbour.

An estimate may be wrong, and a device is shared. So torch's allocator is told where to stop, whenever somebody came or
left; a pass that does not fit then is divided, as it is where the device itself is full.
"""

from __future__ import annotations

from typing import Protocol

import torch

from stoker.hardware.estimate.terms import context_bytes_of


class Allocator(Protocol):
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


class Cap:
    """Where a company's allocator stops; it follows what the company was given."""

    def __init__(self, allocator: Allocator | None) -> None:
        """Without an allocator, as on the CPU, nothing is done."""
        self._allocator = allocator
        self._followed: int | None = None

    def follow(self, ceiling_bytes: int | None) -> None:
        """Stop at what the process may take of the device; nothing: at all there is."""
        if self._allocator is None or ceiling_bytes == self._followed:
            return
        self._followed = ceiling_bytes
        self._allocator.stop_at(_fraction(ceiling_bytes, self._allocator))


def _fraction(ceiling_bytes: int | None, allocator: Allocator) -> float:
    if ceiling_bytes is None:
        return 1.0
    # What it holds by now nobody else was given: others were let in by what the driver had free.
    most_bytes = max(ceiling_bytes - allocator.context_bytes, allocator.reserved_bytes())
    return min(1.0, most_bytes / allocator.total_bytes)


class OnDevice:
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
