"""AdamW over one flat gradient.

The same rule as `torch.optim.AdamW`, written for a gradient that is one tensor anyway (ranks exchange it so). Torch's
own takes its compiler in with the first step, which costs a process four seconds of processor time: as much as a whole
training of a small network.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_KEEP_MEAN = 0.9
_KEEP_SQUARE = 0.999
_LEAST = 1e-8


class Stepper:
    """Moves weights against their gradient, each at a pace that its own past decides."""

    def __init__(self, parameters: list[nn.Parameter], *, learning_rate: float, weight_decay: float) -> None:
        self._parameters = parameters
        self._learning_rate = learning_rate
        self._weight_decay = weight_decay
        self._sizes = [parameter.numel() for parameter in parameters]
        self._steps = 0
        self._mean = torch.zeros(sum(self._sizes), device=parameters[0].device)
        self._square = torch.zeros_like(self._mean)

    def step(self, gradient: torch.Tensor) -> None:
        """Take one step. The gradient lies as the parameters do, one behind the other."""
        self._steps += 1
        self._mean.lerp_(gradient, 1 - _KEEP_MEAN)
        self._square.mul_(_KEEP_SQUARE).addcmul_(gradient, gradient, value=1 - _KEEP_SQUARE)
        # Both began at zero, which early steps have to make up for.
        pace = self._learning_rate / (1 - _KEEP_MEAN**self._steps)
        spread = self._square.sqrt().div_((1 - _KEEP_SQUARE**self._steps) ** 0.5).add_(_LEAST)
        moves = torch.split(self._mean / spread, self._sizes)
        with torch.no_grad():
            for parameter, move in zip(self._parameters, moves, strict=True):
                parameter.mul_(1 - self._learning_rate * self._weight_decay).sub_(move.view_as(parameter), alpha=pace)

    def state(self) -> dict[str, Any]:
        """Give what it needs to go on."""
        return {"steps": self._steps, "mean": self._mean.clone(), "square": self._square.clone()}

    def go_on(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self._steps, self._mean, self._square = state["steps"], state["mean"].clone(), state["square"].clone()
