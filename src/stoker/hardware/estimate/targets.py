"""Which matrices of a block get an adapter, and how large the adapters are."""

from __future__ import annotations

from stoker.hardware.estimate.shape import Linear, ModelShape
from stoker.hardware.estimate.training import ALL_LINEAR, ATTENTION, MLP

_OF_MLP = ("gate_proj", "up_proj", "down_proj", "gate_up_proj", "c_fc", "c_proj_mlp", "dense_h_to_4h", "dense_4h_to_h")
_SPOKEN = {"c_proj_mlp": "c_proj"}


def names_of(shape: ModelShape) -> list[str]:
    """Give what a block's matrices are called; GPT-2 has two of one name."""
    return list(dict.fromkeys(spoken(one) for one in shape.linears))


def spoken(linear: Linear) -> str:
    """Give what the model's own code calls a matrix."""
    return _SPOKEN.get(linear.name, linear.name)


def targeted(shape: ModelShape, targets: tuple[str, ...]) -> list[Linear]:
    """Give the matrices of one block that targets name."""
    return [one for one in shape.linears if any(_is_meant(one, target) for target in targets)]


def adapter_parameters(shape: ModelShape, targets: tuple[str, ...], rank: int) -> int:
    """Count what adapters add to all blocks."""
    return shape.layers * sum(rank * (one.inputs + one.outputs) for one in targeted(shape, targets))


def _is_meant(linear: Linear, target: str) -> bool:
    if target == ALL_LINEAR:
        return True
    if target in (ATTENTION, MLP):
        return (linear.name in _OF_MLP) == (target == MLP)
    return spoken(linear) == target
