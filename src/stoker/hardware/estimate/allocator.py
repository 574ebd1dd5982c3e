"""What torch's allocator would hold of the device, were it asked for these blocks in this order.

Freed blocks are kept and handed out again: the smallest that is large enough, split where the rest is worth it, joined
with its free neighbours when it comes back. What the driver sees is therefore more than what tensors take, and how much
more depends on the order. Two ways of torch's: segments of their own, or one that grows (`expandable_segments`).
Only sizes are kept here; nothing is allocated.
"""

from __future__ import annotations

from bisect import bisect_left, insort

MIB = 1024**2
_LEAST_BYTES = 512
_SMALL_BYTES = MIB
_SMALL_SEGMENT_BYTES = 2 * MIB
_MEDIUM_BYTES = 10 * MIB
_MEDIUM_SEGMENT_BYTES = 20 * MIB
_ROUND_BYTES = 2 * MIB
_STRIDE_BYTES = 32 * MIB
_FAR = 2**60


class Block:
    """A stretch of a segment, in use or free, and its neighbours there."""

    __slots__ = ("address", "after", "before", "is_free", "is_small", "size_bytes")

    def __init__(self, size_bytes: int, address: int, *, is_small: bool) -> None:
        self.size_bytes = size_bytes
        self.address = address
        self.is_small = is_small
        self.is_free = False
        self.before: Block | None = None
        self.after: Block | None = None


class Allocator:
    """One device's."""

    def __init__(self, *, is_expandable: bool = False) -> None:
        self.reserved_bytes = 0
        self._is_expandable = is_expandable
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}
        self._last: dict[bool, Block | None] = {True: None, False: None}
        self._lowest = self._next_address = self._stride_left_bytes = 0

    def take(self, size_bytes: int) -> Block:
        """Hand out a block of at least that size."""
        wanted_bytes = max(_LEAST_BYTES, -(-size_bytes // _LEAST_BYTES) * _LEAST_BYTES)
        is_small = wanted_bytes <= _SMALL_BYTES
        free = self._free[is_small]
        place = bisect_left(free, (wanted_bytes,))
        if place + 1 < len(free) and free[place][2] is self._last[is_small]:
            # What can still grow counts as large as it can get, so the next best comes first.
            place += 1
        block = free.pop(place)[2] if place < len(free) else self._more(wanted_bytes, is_small=is_small)
        block.is_free = False
        rest_bytes = block.size_bytes - wanted_bytes
        if rest_bytes >= _LEAST_BYTES if is_small or self._is_expandable else rest_bytes > _SMALL_BYTES:
            self._split(block, wanted_bytes)
        return block

    def give(self, block: Block) -> None:
        """Take a block back."""
        for near in (block.before, block.after):
            if near is not None and near.is_free:
                self._forget(near)
                self._join(block, near)
        self._keep(block)

    def _more(self, wanted_bytes: int, *, is_small: bool) -> Block:
        if self._is_expandable:
            return self._grow(wanted_bytes, is_small=is_small)
        if is_small:
            size_bytes = _SMALL_SEGMENT_BYTES
        elif wanted_bytes < _MEDIUM_BYTES:
            size_bytes = _MEDIUM_SEGMENT_BYTES
        else:
            size_bytes = -(-wanted_bytes // _ROUND_BYTES) * _ROUND_BYTES
        return self._segment(size_bytes, is_small=is_small)

    def _grow(self, wanted_bytes: int, *, is_small: bool) -> Block:
        """Map more pages at the end of the one segment, so that its last free stretch is long enough."""
        page_bytes = _SMALL_SEGMENT_BYTES if is_small else _MEDIUM_SEGMENT_BYTES
        last = self._last[is_small]
        there_bytes = last.size_bytes if last is not None and last.is_free else 0
        more_bytes = -(-(wanted_bytes - there_bytes) // page_bytes) * page_bytes
        if last is not None and last.is_free:
            self._forget(last)
            self.reserved_bytes += more_bytes
            last.size_bytes += more_bytes
            return last
        block = self._segment(more_bytes, is_small=is_small)
        # Pools have segments of their own, far from each other.
        block.address = _FAR * (not is_small) if last is None else last.address + last.size_bytes
        block.before = last
        if last is not None:
            last.after = block
        self._last[is_small] = block
        return block

    def _segment(self, size_bytes: int, *, is_small: bool) -> Block:
        """Take more of the device, where drivers put it: downwards in large steps, upwards within one."""
        self.reserved_bytes += size_bytes
        if size_bytes > self._stride_left_bytes:
            strides_bytes = -(-size_bytes // _STRIDE_BYTES) * _STRIDE_BYTES
            self._lowest -= strides_bytes
            self._next_address, self._stride_left_bytes = self._lowest, strides_bytes
        address = self._next_address
        self._next_address += size_bytes
        self._stride_left_bytes -= size_bytes
        return Block(size_bytes, address, is_small=is_small)

    def _split(self, block: Block, wanted_bytes: int) -> None:
        rest = Block(block.size_bytes - wanted_bytes, block.address + wanted_bytes, is_small=block.is_small)
        rest.before, rest.after = block, block.after
        if rest.after is not None:
            rest.after.before = rest
        if self._last[block.is_small] is block:
            self._last[block.is_small] = rest
        block.after = rest
        block.size_bytes = wanted_bytes
        self._keep(rest)

    def _join(self, block: Block, near: Block) -> None:
        block.size_bytes += near.size_bytes
        if near is block.before:
            block.address = near.address
            block.before = near.before
            if block.before is not None:
                block.before.after = block
            return
        block.after = near.after
        if block.after is not None:
            block.after.before = block
        if self._last[block.is_small] is near:
            self._last[block.is_small] = block

    def _keep(self, block: Block) -> None:
        block.is_free = True
        insort(self._free[block.is_small], (block.size_bytes, block.address, block))

    def _forget(self, block: Block) -> None:
        free = self._free[block.is_small]
        del free[bisect_left(free, (block.size_bytes, block.address))]
