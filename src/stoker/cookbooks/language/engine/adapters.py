"""An adapter apart from any bank: its settings, weights and the optimiser's moments, by the name of each matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stoker.cookbooks.language.engine.shapes import Shape, module_name

Pairs = dict[str, tuple[Tensor, Tensor]]
"""By the name of a matrix (`model.layers.0.self_attn.q_proj`): A `[rank, inputs]` and B `[outputs, rank]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSpec:
    """What an adapter is."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    dropout: float = 0.0
    seed: int = 0
    rslora: bool = False

    @property
    def scale(self) -> float:
        """What B A is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Optim:
    """How one adapter is updated: AdamW, its gradient shortened to `clip` if it is longer."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float = math.inf


@dataclass(slots=True, kw_only=True)
class Adapter:
    """One adapter, in 32 bits on the CPU."""

    spec: AdapterSpec
    weights: Pairs
    first: Pairs = field(default_factory=dict)
    """Running means of the gradient; empty before the first update."""
    second: Pairs = field(default_factory=dict)
    """Of its square."""
    steps: int = 0


def fresh_adapter(shape: Shape, spec: AdapterSpec) -> Adapter:
    """Give an adapter that changes nothing yet: A drawn from its own seed as PEFT draws it, B zero."""
    draws = torch.Generator().manual_seed(spec.seed)
    weights: Pairs = {}
    for layer in range(shape.layers):
        for target in spec.targets:
            inputs, outputs = shape.linear(target)
            # kaiming_uniform_ with a = √5 is uniform within 1 / √inputs.
            bound = 1 / math.sqrt(inputs)
            a = torch.empty(spec.rank, inputs).uniform_(-bound, bound, generator=draws)
            weights[module_name(layer, target)] = (a, torch.zeros(outputs, spec.rank))
    return Adapter(spec=spec, weights=weights)
