"""What a network has to fit between: windows on one side, answers on the other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from stoker.cookbooks.sequence.schemas import WindowFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSizes:
    """The sizes that the data decides."""

    channels: int
    window: int
    outputs: int

    @classmethod
    def of(cls, facts: WindowFacts) -> NetworkSizes:
        series = facts["series"]
        outputs = facts["horizon"] if series["problem"] == "regression" else len(series["classes"])
        return cls(channels=len(series["channels"]), window=facts["window"], outputs=outputs)


class PooledHead(nn.Module):
    """From features of every row (batch, rows, width) to outputs: by their mean and by the newest row."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.out = nn.Linear(2 * width, outputs)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return one row of outputs for each window."""
        given: torch.Tensor = self.out(torch.cat([features.mean(dim=1), features[:, -1]], dim=1))
        return given
