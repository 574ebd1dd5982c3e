"""Windows as something to learn from: with answers, or without, by hiding a part of each.

Windows overlap, so the series lies in memory once and batches are gathered from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stoker.cookbooks.sequence.records import PartName
from stoker.cookbooks.sequence.science.training import Batch, Data
from stoker.cookbooks.sequence.science.windows import Windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The windows of one part, on one device."""

    signals: torch.Tensor
    answers: torch.Tensor
    starts: torch.Tensor
    window: int
    horizon: int
    """0 for classification."""
    target: int
    """The channel that is predicted (regression)."""

    @classmethod
    def of(cls, windows: Windows, name: PartName, device: Any = "cpu") -> Part:
        facts = windows.facts
        series = facts["series"]
        is_quantity = series["problem"] == "regression"
        return cls(
            signals=torch.from_numpy(windows.signals).to(device),
            answers=torch.from_numpy(windows.answers).to(device),
            starts=torch.from_numpy(windows.starts[name]).to(device),
            window=facts["window"],
            horizon=facts["horizon"],
            target=series["channels"].index(series["target"]) if is_quantity else 0,
        )

    def __len__(self) -> int:
        return len(self.starts)

    def inputs(self, examples: torch.Tensor) -> torch.Tensor:
        """Give windows: examples by rows by channels."""
        rows = torch.arange(self.window, device=self.starts.device)
        return self.signals[self._starts(examples)[:, None] + rows]

    def last_values(self, examples: torch.Tensor) -> torch.Tensor:
        """Give the newest known value of what is predicted, as a column."""
        return self.signals[self._starts(examples) + self.window - 1, self.target][:, None]

    def truth(self, examples: torch.Tensor) -> torch.Tensor:
        """Give what is asked: the next values (examples by steps), or the class of each window's last row."""
        ends = self._starts(examples) + self.window
        if not self.horizon:
            return self.answers[ends - 1]
        return self.answers[ends[:, None] + torch.arange(self.horizon, device=ends.device)]

    def _starts(self, examples: torch.Tensor) -> torch.Tensor:
        return self.starts[examples.to(self.starts.device)]


@dataclass(frozen=True, slots=True)
class Supervised:
    """Windows with their answers. Of a quantity, a network says how far it moves from the last known value."""

    part: Part

    def __len__(self) -> int:
        return len(self.part)

    def loss_sum(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Squared error, mean over the steps ahead, or cross entropy; summed over windows."""
        mine = batch.mine(batch.examples)
        outputs, truth = model(self.part.inputs(mine)), self.part.truth(mine)
        if not self.part.horizon:
            return nn.functional.cross_entropy(outputs, truth, reduction="sum")
        error: torch.Tensor = outputs + self.part.last_values(mine) - truth
        return error.square().mean(dim=1).sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class Masked:
    """Windows without answers: spans of rows are hidden, and what they held is to be told from the rest."""

    part: Part
    percent: int
    span: int

    def __len__(self) -> int:
        return len(self.part)

    def loss_sum(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Squared error over what was hidden of each window, summed over windows."""
        inputs = self.part.inputs(batch.mine(batch.examples))
        hidden = batch.mine(self.hidden(len(batch.examples), batch.seed)).to(inputs.device)
        restored: torch.Tensor = model(inputs, hidden)
        error = (restored - inputs).square().mean(dim=2)
        return ((error * hidden).sum(dim=1) / hidden.sum(dim=1)).sum()

    def hidden(self, windows: int, seed: int) -> torch.Tensor:
        """Choose for each window which rows to hide: whole spans, as many of them as make up the share."""
        spans = -(-self.part.window // self.span)
        count = min(spans, max(1, round(spans * self.percent / 100)))
        draw = torch.rand(windows, spans, generator=torch.Generator().manual_seed(seed))
        chosen = torch.zeros(windows, spans, dtype=torch.bool).scatter_(1, draw.argsort(dim=1)[:, :count], value=True)
        return chosen.repeat_interleave(self.span, dim=1)[:, : self.part.window]


def with_answers(windows: Windows, device: Any = "cpu") -> Data:
    """Give the training and the validation part of windows, with their answers."""
    return Data(
        train=Supervised(Part.of(windows, "train", device)),
        validation=Supervised(Part.of(windows, "validation", device)),
    )


def without_answers(windows: Windows, *, percent: int, span: int, device: Any = "cpu") -> Data:
    """Give the same parts with spans to hide instead of answers."""
    return Data(
        train=Masked(part=Part.of(windows, "train", device), percent=percent, span=span),
        validation=Masked(part=Part.of(windows, "validation", device), percent=percent, span=span),
    )
