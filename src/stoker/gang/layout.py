"""Where named buffers lie in a window: in declared order, each on a border of 256 bytes."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.gang.page import Slot
from stoker.model.frozen import frozen

ALIGNMENT_BYTES = 256


@frozen
class Layout:
    """The places of buffers, in declared order, and how much room they need together."""

    slots: tuple[Slot, ...]
    needed_bytes: int
    """To the end of the last buffer; nothing is after it."""


def lay_out(sizes_bytes: Sequence[int]) -> Layout:
    """Give each buffer its place."""
    slots: list[Slot] = []
    end = 0
    for size in sizes_bytes:
        offset = aligned(end)
        slots.append(Slot(offset=offset, nbytes=size))
        end = offset + size
    return Layout(slots=tuple(slots), needed_bytes=end)


def aligned(size_bytes: int, border_bytes: int = ALIGNMENT_BYTES) -> int:
    """Give the next border at or after this size."""
    return -(-size_bytes // border_bytes) * border_bytes
