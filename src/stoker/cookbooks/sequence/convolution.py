"""Causal convolutions over time: residual blocks with growing receptive fields."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from stoker.cookbooks.sequence.networks import NetworkSizes, PooledHead


@dataclass(frozen=True, slots=True, kw_only=True)
class CnnShape:
    """The size of the network."""

    width: int
    layers: int
    kernel: int


class Cnn(nn.Module):
    """Causal convolutions: features of a row depend on that row and earlier ones."""

    def __init__(self, ends: NetworkSizes, shape: CnnShape) -> None:
        super().__init__()
        self.enter = nn.Linear(ends.channels, shape.width)
        self.blocks = nn.ModuleList(_Block(shape.width, shape.kernel, 2**layer) for layer in range(shape.layers))
        self.answer = PooledHead(shape.width, ends.outputs)

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        """Return one row of outputs for each window."""
        features = self.enter(windows).transpose(1, 2)
        for block in self.blocks:
            features = features + block(features)
        answer: torch.Tensor = self.answer(features.transpose(1, 2))
        return answer


class _Block(nn.Module):
    def __init__(self, width: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self._padding = (kernel - 1) * dilation
        # Groups within one example: batch statistics would differ between ranks.
        self.norm = nn.GroupNorm(1, width)
        self.look = nn.Conv1d(width, width, kernel, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        padded = nn.functional.pad(self.norm(features), (self._padding, 0))
        mixed: torch.Tensor = self.mix(nn.functional.gelu(self.look(padded)))
        return mixed
