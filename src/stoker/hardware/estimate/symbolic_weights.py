"""The weights of a model without numbers, and what a linear layer with an adapter does with its input."""

from __future__ import annotations

from stoker.hardware.estimate.operations import add, cast, dropout, elementwise, product
from stoker.hardware.estimate.shape import Linear, Norm
from stoker.hardware.estimate.tape import Leaf, Purpose, Tape, Tensor
from stoker.hardware.estimate.training import Training


class Matrix:
    """One linear layer with its weights, and its adapter if it has one."""

    def __init__(self, tape: Tape, linear: Linear, training: Training) -> None:
        self._tape = tape
        self._outputs = linear.outputs
        self._training = training
        self._inputs = linear.inputs
        width, trains = training.dtype.bytes, not training.is_lora
        self.weight = weight(tape, linear.inputs * linear.outputs, width, trains=trains)
        self.bias = weight(tape, linear.outputs, width, trains=trains) if linear.has_bias else None
        self.a: Tensor | None = None
        self.b: Tensor | None = None

    def adapt(self) -> None:
        """Give it an adapter."""
        rank, width = self._training.rank, self._training.adapter_dtype.bytes
        self.a = weight(self._tape, self._inputs * rank, width, purpose=Purpose.ADAPTERS)
        self.b = weight(self._tape, rank * self._outputs, width, purpose=Purpose.ADAPTERS)

    def __call__(self, x: Tensor) -> Tensor:
        tape = self._tape
        result = product(tape, x, self.weight, self._outputs, self.bias)
        if self.a is None or self.b is None:
            return result
        width = result.width
        x = cast(tape, x, self.a.width)
        small = product(tape, dropout(tape, x, self._training.dropout), self.a, self._training.rank)
        result = add(tape, result, elementwise(tape, product(tape, small, self.b, self._outputs)))
        return cast(tape, result, width)


class Block:
    """One layer's weights."""

    def __init__(self, tape: Tape, training: Training) -> None:
        shape = training.shape
        self.matrices = {one.name: Matrix(tape, one, training) for one in shape.linears}
        width, trains = training.dtype.bytes, not training.is_lora
        count = 2 if shape.norm is Norm.LAYER else 1
        self.norms = [[weight(tape, shape.hidden, width, trains=trains) for _ in range(count)] for _ in range(2)]
        self.head_norms = [
            [weight(tape, shape.head_dim, width, trains=trains)] for _ in range(2 if shape.has_head_norms else 0)
        ]


def weight(tape: Tape, elements: int, width: int, *, trains: bool = True, purpose: Purpose = Purpose.WEIGHTS) -> Tensor:
    """Make a weight; a trained one collects its gradient."""
    keeps = Purpose.ADAPTERS if purpose is Purpose.ADAPTERS else Purpose.GRADIENTS
    return Tensor(tape.fresh(elements * width, purpose), elements, width, Leaf(keeps) if trains else None)
