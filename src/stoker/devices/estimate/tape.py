"""Tensors without numbers: their sizes, references, and what the backward pass makes of them.

As in torch, a tensor's memory is freed with its last reference, and what an operation keeps for its backward pass is
freed once that has run. So code that is written like a model's own code holds what the model would hold, at every
moment. `TapeMemory` counts by purpose; an estimate is made of its peak.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from enum import IntEnum
from heapq import heappop, heappush
from sys import getrefcount

# What torch's allocator would hold of the device after these requests in this order.
#
# Freed blocks are kept and reused: the smallest that is large enough, split if the rest is worth it, joined with its
# free neighbours when it is freed. What the driver sees is therefore more than what tensors take, and how much more
# depends on the order. Two modes of torch's: separate segments, or one that grows (`expandable_segments`). Only sizes
# are kept here; nothing is allocated.

MIB = 1024**2
_LEAST_BYTES = 512
_SMALL_BYTES = MIB
_SMALL_SEGMENT_BYTES = 2 * MIB
_MEDIUM_BYTES = 10 * MIB
_MEDIUM_SEGMENT_BYTES = 20 * MIB
_ROUND_BYTES = 2 * MIB
_STRIDE_BYTES = 32 * MIB
_FAR = 2**60


class AllocatorBlock:
    """A stretch of a segment, in use or free, and its neighbours there."""

    __slots__ = ("address", "after", "before", "is_free", "is_small", "size_bytes")

    def __init__(self, size_bytes: int, address: int, *, is_small: bool) -> None:
        self.size_bytes = size_bytes
        self.address = address
        self.is_small = is_small
        self.is_free = False
        self.before: AllocatorBlock | None = None
        self.after: AllocatorBlock | None = None


class CachingAllocator:
    """One device's."""

    def __init__(self, *, is_expandable: bool = False) -> None:
        self.reserved_bytes = 0
        self._is_expandable = is_expandable
        self._free: dict[bool, list[tuple[int, int, AllocatorBlock]]] = {True: [], False: []}
        self._last: dict[bool, AllocatorBlock | None] = {True: None, False: None}
        self._lowest = self._next_address = self._stride_left_bytes = 0

    def take(self, size_bytes: int) -> AllocatorBlock:
        """Allocate a block of at least that size."""
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

    def give(self, block: AllocatorBlock) -> None:
        """Free a block."""
        for near in (block.before, block.after):
            if near is not None and near.is_free:
                self._forget(near)
                self._join(block, near)
        self._keep(block)

    def _more(self, wanted_bytes: int, *, is_small: bool) -> AllocatorBlock:
        if self._is_expandable:
            return self._grow(wanted_bytes, is_small=is_small)
        if is_small:
            size_bytes = _SMALL_SEGMENT_BYTES
        elif wanted_bytes < _MEDIUM_BYTES:
            size_bytes = _MEDIUM_SEGMENT_BYTES
        else:
            size_bytes = -(-wanted_bytes // _ROUND_BYTES) * _ROUND_BYTES
        return self._segment(size_bytes, is_small=is_small)

    def _grow(self, wanted_bytes: int, *, is_small: bool) -> AllocatorBlock:
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

    def _segment(self, size_bytes: int, *, is_small: bool) -> AllocatorBlock:
        """Take more of the device, where drivers put it: downwards in large steps, upwards within one."""
        self.reserved_bytes += size_bytes
        if size_bytes > self._stride_left_bytes:
            strides_bytes = -(-size_bytes // _STRIDE_BYTES) * _STRIDE_BYTES
            self._lowest -= strides_bytes
            self._next_address, self._stride_left_bytes = self._lowest, strides_bytes
        address = self._next_address
        self._next_address += size_bytes
        self._stride_left_bytes -= size_bytes
        return AllocatorBlock(size_bytes, address, is_small=is_small)

    def _split(self, block: AllocatorBlock, wanted_bytes: int) -> None:
        rest = AllocatorBlock(block.size_bytes - wanted_bytes, block.address + wanted_bytes, is_small=block.is_small)
        rest.before, rest.after = block, block.after
        if rest.after is not None:
            rest.after.before = rest
        if self._last[block.is_small] is block:
            self._last[block.is_small] = rest
        block.after = rest
        block.size_bytes = wanted_bytes
        self._keep(rest)

    def _join(self, block: AllocatorBlock, near: AllocatorBlock) -> None:
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

    def _keep(self, block: AllocatorBlock) -> None:
        block.is_free = True
        insort(self._free[block.is_small], (block.size_bytes, block.address, block))

    def _forget(self, block: AllocatorBlock) -> None:
        free = self._free[block.is_small]
        del free[bisect_left(free, (block.size_bytes, block.address))]


class Purpose(IntEnum):
    """What memory is held for."""

    WEIGHTS = 0
    ADAPTERS = 1
    GRADIENTS = 2
    OPTIMISER = 3
    ACTIVATIONS = 4
    LOGITS = 5
    WORKSPACE = 6


class TapeMemory:
    """Memory in use by purpose, now and at the peak."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self.allocator = allocator
        self.held = [0] * len(Purpose)
        self.total_bytes = 0
        self.most_bytes = 0
        self.at_most = list(self.held)
        self.during = ""
        """The current phase, to name that of the peak."""
        self.fullest = ""

    def count(self, purpose: Purpose, size_bytes: int) -> None:
        self.held[purpose] += size_bytes
        self.total_bytes += size_bytes
        if self.total_bytes > self.most_bytes:
            self.most_bytes = self.total_bytes
            self.at_most = self.held.copy()
            self.fullest = self.during


class Storage:
    """Bytes of one tensor and its views, from its creation until its last reference is gone."""

    __slots__ = ("_block", "_memory", "is_view", "purpose", "size_bytes")

    def __init__(self, memory: TapeMemory, size_bytes: int, purpose: Purpose) -> None:
        self._memory = memory
        self.is_view = False
        """As a gradient it is a view, to which torch never adds in place."""
        self._block = memory.allocator.take(size_bytes)
        self.size_bytes = size_bytes
        self.purpose = purpose
        memory.count(purpose, self._block.size_bytes)

    def __del__(self) -> None:
        self._memory.count(self.purpose, -self._block.size_bytes)
        self._memory.allocator.give(self._block)

    def is_now(self, purpose: Purpose) -> None:
        """Count it for another purpose from here on."""
        self._memory.count(self.purpose, -self._block.size_bytes)
        self.purpose = purpose
        self._memory.count(purpose, self._block.size_bytes)


Backward = Callable[[list[Storage | None]], Sequence[Storage | None]]
"""From the gradients of an operation's results, which it may empty, to those of its operands."""


class TapeNode:
    """One operation that has a backward pass. Later ones have higher numbers."""

    __slots__ = ("inputs", "number", "run")

    def __init__(self, number: int, inputs: tuple[tuple[TapeNode, int] | None, ...], run: Backward) -> None:
        self.number = number
        self.inputs = inputs
        self.run: Backward | None = run


class Leaf(TapeNode):
    """Where gradients are needed: a trained weight, or the input of a block that is recomputed."""

    __slots__ = ("gradient", "is_fresh", "keeps")

    def __init__(self, keeps: Purpose | None = None) -> None:
        super().__init__(0, (), _nothing)
        self.keeps = keeps
        self.gradient: Storage | None = None
        self.is_fresh = False
        """Its gradient is of the backward pass that runs."""


class SymbolicTensor:
    """A view of a storage: how many elements of which width, and where its gradient goes."""

    __slots__ = ("elements", "node", "slot", "storage", "width")

    def __init__(
        self, storage: Storage, elements: int, width: int, node: TapeNode | None = None, slot: int = 0
    ) -> None:
        self.storage = storage
        self.elements = elements
        self.width = width
        self.node = node
        self.slot = slot

    @property
    def size_bytes(self) -> int:
        return self.elements * self.width


class Tape:
    """Makes tensors, records operations, runs them backward."""

    def __init__(self, memory: TapeMemory) -> None:
        self.memory = memory
        self.is_recording = True
        self.autocast_width = 0
        """The width that products are computed in, if it is not that of the weights."""
        self._casts: dict[int, SymbolicTensor] = {}
        self._numbers = 0
        self._workspaces: dict[bool, Storage] = {}
        self._is_backward = False

    def fresh(self, size_bytes: int, purpose: Purpose | None = None) -> Storage:
        """Allocate memory."""
        return Storage(self.memory, size_bytes, Purpose.ACTIVATIONS if purpose is None else purpose)

    def viewed(self, size_bytes: int) -> Storage:
        """Allocate memory for a gradient that is passed on as a view."""
        storage = self.fresh(size_bytes)
        storage.is_view = True
        return storage

    def result(
        self, storage: Storage, elements: int, width: int, inputs: Sequence[SymbolicTensor], run: Backward | None
    ) -> SymbolicTensor:
        """Return an operation's result; it has a gradient if anything that it was made from has one."""
        node = self.node(inputs, run)
        return SymbolicTensor(storage, elements, width, node)

    def node(self, inputs: Sequence[SymbolicTensor], run: Backward | None) -> TapeNode | None:
        """Record an operation, if any operand needs a gradient."""
        if run is None or not self.is_recording or not any(one.node for one in inputs):
            return None
        self._numbers += 1
        return TapeNode(self._numbers, tuple((one.node, one.slot) if one.node else None for one in inputs), run)

    def wants(self, tensor: SymbolicTensor) -> bool:
        """Return True if a gradient of this tensor will be needed."""
        return self.is_recording and tensor.node is not None

    def multiplies(self) -> None:
        """Allocate the workspace of products: torch keeps one for each of its two threads."""
        if self._is_backward not in self._workspaces:
            self._workspaces[self._is_backward] = self.fresh(32 * 1024**2, Purpose.WORKSPACE)

    def cast_weight(self, weight: SymbolicTensor) -> SymbolicTensor:
        """Return a weight in the width that products are computed in: made once, until the forward pass ends."""
        width = self.autocast_width
        if not width or weight.width == width:
            return weight
        known = self._casts.get(id(weight))
        if known is None:
            storage = self.fresh(weight.elements * width)
            size_bytes = weight.size_bytes
            known = self.result(storage, weight.elements, width, (weight,), lambda _: (self.fresh(size_bytes),))
            # Only of weights that are trained, as torch does.
            if weight.node is not None:
                self._casts[id(weight)] = known
        return known

    def forget_casts(self) -> None:
        """Free what autocast keeps."""
        self._casts.clear()

    def backward(self, end: TapeNode, gradients: list[Storage | None]) -> None:
        """Run all that led to an operation backward; the list is emptied, and gradients end in leaves."""
        was_backward, self._is_backward = self._is_backward, True
        self._run_backward(end, gradients)
        self._is_backward = was_backward

    def _run_backward(self, end: TapeNode, gradients: list[Storage | None]) -> None:
        waiting: dict[int, tuple[TapeNode, list[Storage | None]]] = {end.number: (end, gradients.copy())}
        gradients.clear()
        ready = [-end.number]
        leaves: list[Leaf] = []

        def deliver(node: TapeNode, slot: int, grad: Storage) -> None:
            if isinstance(node, Leaf):
                self._collect(node, grad)
                leaves.append(node)
                return
            if node.number not in waiting:
                waiting[node.number] = (node, [])
                heappush(ready, -node.number)
            slots = waiting[node.number][1]
            slots += [None] * (slot + 1 - len(slots))
            if slots[slot] is None:
                slots[slot] = grad
            elif _is_view(slots, slot) or _references(slots, slot) > _ALONE:
                slots[slot] = self.fresh(grad.size_bytes)

        while ready:
            node, slots = waiting.pop(-heappop(ready))
            assert node.run is not None  # noqa: S101 - a graph is run once
            made: Sequence[Storage | None] = node.run(slots)
            node.run = None
            slots = []
            for edge, grad in zip(node.inputs, made, strict=True):
                if edge is not None and grad is not None:
                    deliver(*edge, grad)
            made = ()
            grad = None
        for leaf in leaves:
            leaf.is_fresh = False

    def _collect(self, leaf: Leaf, grad: Storage) -> None:
        if leaf.gradient is None:
            leaf.gradient = grad
            leaf.is_fresh = True
            if leaf.keeps is not None:
                grad.is_now(leaf.keeps)
        elif leaf.is_fresh and leaf.gradient.is_view:
            # Two uses of one weight.
            leaf.gradient = self.fresh(grad.size_bytes, leaf.keeps)


def _nothing(_grads: list[Storage | None]) -> Sequence[Storage | None]:
    return ()


def _is_view(slots: list[Storage | None], slot: int) -> bool:
    there = slots[slot]
    return there is not None and there.is_view


def _references(slots: Sequence[object], slot: int) -> int:
    return getrefcount(slots[slot])


_ALONE = _references([object()], 0)
"""References to what only a list refers to: versions of Python count differently."""
