"""Tensors without numbers: how large each is, who keeps it, and what the backward pass makes of it.

As in torch, a tensor's memory is given back when the last reference to it goes, and what an operation keeps for its
backward pass goes once that has run. So code that is written as a model's own code holds what the model would hold,
at every moment. `Memory` counts by purpose; the fullest moment is what an estimate is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from heapq import heappop, heappush
from sys import getrefcount

from stoker.hardware.estimate.allocator import Allocator


class Purpose(IntEnum):
    """What memory is held for."""

    WEIGHTS = 0
    ADAPTERS = 1
    GRADIENTS = 2
    OPTIMISER = 3
    ACTIVATIONS = 4
    LOGITS = 5
    WORKSPACE = 6


class Memory:
    """What is held, by purpose, and what was held at the fullest moment."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.held = [0] * len(Purpose)
        self.total_bytes = 0
        self.most_bytes = 0
        self.at_most = list(self.held)
        self.during = ""
        """What is going on, for whoever asks when it was fullest."""
        self.fullest = ""

    def count(self, purpose: Purpose, size_bytes: int) -> None:
        self.held[purpose] += size_bytes
        self.total_bytes += size_bytes
        if self.total_bytes > self.most_bytes:
            self.most_bytes = self.total_bytes
            self.at_most = self.held.copy()
            self.fullest = self.during


class Storage:
    """Bytes of one tensor and its views, from its making until nobody refers to it."""

    __slots__ = ("_block", "_memory", "is_view", "purpose", "size_bytes")

    def __init__(self, memory: Memory, size_bytes: int, purpose: Purpose) -> None:
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
"""From the gradients of an operation's results, which it may empty, to those of what it took."""


class Node:
    """One operation that has a backward pass. Later ones have higher numbers."""

    __slots__ = ("inputs", "number", "run")

    def __init__(self, number: int, inputs: tuple[tuple[Node, int] | None, ...], run: Backward) -> None:
        self.number = number
        self.inputs = inputs
        self.run: Backward | None = run


class Leaf(Node):
    """Where gradients are wanted: a trained weight, or the input of a block that is computed again."""

    __slots__ = ("gradient", "is_fresh", "keeps")

    def __init__(self, keeps: Purpose | None = None) -> None:
        super().__init__(0, (), _nothing)
        self.keeps = keeps
        self.gradient: Storage | None = None
        self.is_fresh = False
        """Its gradient is of the backward pass that runs."""


class Tensor:
    """A view of a storage: how many elements of which width, and where its gradient goes."""

    __slots__ = ("elements", "node", "slot", "storage", "width")

    def __init__(self, storage: Storage, elements: int, width: int, node: Node | None = None, slot: int = 0) -> None:
        self.storage = storage
        self.elements = elements
        self.width = width
        self.node = node
        self.slot = slot

    @property
    def size_bytes(self) -> int:
        return self.elements * self.width


class Tape:
    """Makes tensors, remembers operations, runs them backward."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.is_recording = True
        self.autocast_width = 0
        """The width that products are computed in, where it is not that of the weights."""
        self._casts: dict[int, Tensor] = {}
        self._numbers = 0
        self._workspaces: dict[bool, Storage] = {}
        self._is_backward = False

    def fresh(self, size_bytes: int, purpose: Purpose | None = None) -> Storage:
        """Take memory."""
        return Storage(self.memory, size_bytes, Purpose.ACTIVATIONS if purpose is None else purpose)

    def viewed(self, size_bytes: int) -> Storage:
        """Take memory for a gradient that is handed on as a view."""
        storage = self.fresh(size_bytes)
        storage.is_view = True
        return storage

    def result(
        self, storage: Storage, elements: int, width: int, inputs: Sequence[Tensor], run: Backward | None
    ) -> Tensor:
        """Give an operation's result; it has a gradient if anything that it was made from has one."""
        node = self.node(inputs, run)
        return Tensor(storage, elements, width, node)

    def node(self, inputs: Sequence[Tensor], run: Backward | None) -> Node | None:
        """Remember an operation, if anything that it took wants a gradient."""
        if run is None or not self.is_recording or not any(one.node for one in inputs):
            return None
        self._numbers += 1
        return Node(self._numbers, tuple((one.node, one.slot) if one.node else None for one in inputs), run)

    def wants(self, tensor: Tensor) -> bool:
        """Say whether a gradient of this tensor will be asked for."""
        return self.is_recording and tensor.node is not None

    def multiplies(self) -> None:
        """Have the workspace that products need: torch keeps one for each of its two threads."""
        if self._is_backward not in self._workspaces:
            self._workspaces[self._is_backward] = self.fresh(32 * 1024**2, Purpose.WORKSPACE)

    def cast_weight(self, weight: Tensor) -> Tensor:
        """Give a weight in the width that products are computed in: made once, until the forward pass ends."""
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
        """End what autocast keeps."""
        self._casts.clear()

    def backward(self, end: Node, gradients: list[Storage | None]) -> None:
        """Run all that led to an operation backward; the list is emptied, and gradients end in leaves."""
        was_backward, self._is_backward = self._is_backward, True
        self._run_backward(end, gradients)
        self._is_backward = was_backward

    def _run_backward(self, end: Node, gradients: list[Storage | None]) -> None:
        waiting: dict[int, tuple[Node, list[Storage | None]]] = {end.number: (end, gradients.copy())}
        gradients.clear()
        ready = [-end.number]
        leaves: list[Leaf] = []

        def deliver(node: Node, slot: int, grad: Storage) -> None:
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
