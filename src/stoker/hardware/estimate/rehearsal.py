"""A few steps of a training without a device and without numbers: what would be held, and when it is most."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.hardware.estimate.allocator import Allocator
from stoker.hardware.estimate.symbolic_model import SymbolicModel
from stoker.hardware.estimate.tape import Leaf, Memory, Purpose, Storage, Tape
from stoker.hardware.estimate.training import Optimiser, Training
from stoker.model.frozen import frozen

_STEPS = 3
"""From the second step on the optimiser's states lie among what the first one left; nothing changes after the third."""
_PASSES = 2
"""With gradients of a pass before it, each is like the second."""
_STATES = {
    Optimiser.ADAMW: 2,
    Optimiser.ADAMW_FUSED: 2,
    Optimiser.ADAMW_8BIT: 2,
    Optimiser.SGD: 0,
    Optimiser.SGD_MOMENTUM: 1,
}


@frozen
class Rehearsal:
    """What a training would hold."""

    held_bytes: Mapping[Purpose, int]
    """At the fullest moment, by purpose."""
    reserved_bytes: int
    """What the allocator would have taken of the device by then."""
    fullest: str
    """What was going on: `forward`, `backward` or `step`."""

    @property
    def allocated_bytes(self) -> int:
        return sum(self.held_bytes.values())


def rehearse(training: Training, *, steps: int = _STEPS) -> Rehearsal:
    """Go through some steps."""
    memory = Memory(Allocator(is_expandable=training.expandable_segments))
    stage = _Stage(training, memory)
    for _ in range(steps):
        stage.step()
    return Rehearsal(
        held_bytes=dict(zip(Purpose, memory.at_most, strict=True)),
        reserved_bytes=memory.allocator.reserved_bytes,
        fullest=memory.fullest,
    )


class _Stage:
    """A model, its optimiser and what they have made so far."""

    def __init__(self, training: Training, memory: Memory) -> None:
        self._training = training
        self._memory = memory
        self._tape = Tape(memory)
        self._model = SymbolicModel(self._tape, training)
        self._leaves = self._model.leaves()
        self._states: list[Storage] = []

    def step(self) -> None:
        held: list[object] = []
        for _ in range(min(self._training.accumulation, _PASSES)):
            held = self._pass()
        self._memory.during = "step"
        self._update()
        for leaf in self._leaves:
            leaf.gradient = None
        held.clear()

    def _pass(self) -> list[object]:
        """Run forward and backward; give what the program still holds then."""
        training, tape = self._training, self._tape
        self._memory.during = "forward"
        ids = tape.fresh(training.tokens * 8)
        tape.autocast_width = training.autocast.bytes if training.autocast else 0
        loss, logits = self._model.loss(ids)
        tape.forget_casts()
        tape.autocast_width = 0
        if not training.keeps_outputs:
            logits = None
        self._memory.during = "backward"
        if loss.node is not None:
            tape.backward(loss.node, [tape.fresh(loss.size_bytes)])
        return [ids, loss, logits]

    def _update(self) -> None:
        optimiser = self._training.optimiser
        held = [leaf for leaf in self._leaves if leaf.gradient is not None]
        if not self._states:
            for leaf in held:
                self._states += [self._state(leaf) for _ in range(_STATES[optimiser])]
        if optimiser is Optimiser.ADAMW:
            _roots = [self._state(leaf) for leaf in held]

    def _state(self, leaf: Leaf) -> Storage:
        size_bytes = leaf.gradient.size_bytes if leaf.gradient is not None else 0
        if self._training.optimiser is Optimiser.ADAMW_8BIT:
            size_bytes //= self._training.trained_width.bytes
        purpose = Purpose.ADAPTERS if leaf.keeps is Purpose.ADAPTERS else Purpose.OPTIMISER
        return self._tape.fresh(size_bytes, purpose)
