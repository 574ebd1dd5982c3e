"""Recurrent networks: GRU and LSTM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from stoker.cookbooks.sequence.networks import NetworkSizes


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentShape:
    """The size of the network."""

    width: int
    layers: int


class RecurrentNetwork(nn.Module):
    """Predicts from the state after the last row."""

    def __init__(self, ends: NetworkSizes, shape: RecurrentShape, cell: Literal["gru", "lstm"]) -> None:
        super().__init__()
        kind = nn.GRU if cell == "gru" else nn.LSTM
        self.read = kind(ends.channels, shape.width, num_layers=shape.layers, batch_first=True)
        self.answer = nn.Linear(shape.width, ends.outputs)

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        """Return one row of outputs for each window."""
        features, _ = self.read(windows)
        answer: torch.Tensor = self.answer(features[:, -1])
        return answer
