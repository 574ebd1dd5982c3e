"""A transformer over the rows of a window, and the head that learns from hidden rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from stoker.cookbooks.sequence.networks import NetworkSizes, PooledHead


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """The size of the network."""

    width: int
    layers: int
    heads: int


class WindowEncoder(nn.Module):
    """Encodes windows: features of every row, with attention to all others."""

    places: torch.Tensor

    def __init__(self, ends: NetworkSizes, shape: TransformerShape) -> None:
        super().__init__()
        self.enter = nn.Linear(ends.channels, shape.width)
        self.register_buffer("places", _places(ends.window, shape.width), persistent=False)
        self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        """Return features of every row."""
        return self.look(self.enter(windows))

    def look(self, features: torch.Tensor) -> torch.Tensor:
        """Return features of every row from what entered for it."""
        features = features + self.places
        for block in self.blocks:
            features = block(features)
        normed: torch.Tensor = self.norm(features)
        return normed


class Transformer(nn.Module):
    """An encoder and an answer."""

    def __init__(self, ends: NetworkSizes, shape: TransformerShape) -> None:
        super().__init__()
        self.encoder = WindowEncoder(ends, shape)
        self.answer = PooledHead(shape.width, ends.outputs)

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        """Return one row of outputs for each window."""
        answer: torch.Tensor = self.answer(self.encoder(windows))
        return answer


class Restorer(nn.Module):
    """An encoder that is shown windows with rows hidden, and tells what those held."""

    def __init__(self, ends: NetworkSizes, shape: TransformerShape) -> None:
        super().__init__()
        self.encoder = WindowEncoder(ends, shape)
        self.unknown = nn.Parameter(torch.zeros(shape.width))
        self.restore = nn.Linear(shape.width, ends.channels)

    def forward(self, windows: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return every row as it might be; `hidden` (batch, rows) says which ones are not to be looked at."""
        entered = torch.where(hidden[:, :, None], self.unknown, self.encoder.enter(windows))
        restored: torch.Tensor = self.restore(self.encoder.look(entered))
        return restored


class _Block(nn.Module):
    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self._heads = shape.heads
        self.norm_before_look = nn.LayerNorm(shape.width)
        self.ask = nn.Linear(shape.width, 3 * shape.width)
        self.take = nn.Linear(shape.width, shape.width)
        self.norm_before_think = nn.LayerNorm(shape.width)
        self.think = nn.Sequential(
            nn.Linear(shape.width, 2 * shape.width), nn.GELU(), nn.Linear(2 * shape.width, shape.width)
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        features = features + self._look(self.norm_before_look(features))
        thought: torch.Tensor = features + self.think(self.norm_before_think(features))
        return thought

    def _look(self, features: torch.Tensor) -> torch.Tensor:
        batch, rows, width = features.shape
        asked = self.ask(features).view(batch, rows, 3, self._heads, width // self._heads)
        queries, keys, values = asked.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(queries, keys, values)
        taken: torch.Tensor = self.take(seen.transpose(1, 2).reshape(batch, rows, width))
        return taken


def _places(rows: int, width: int) -> torch.Tensor:
    """Return each row a mark of where it stands: waves of many lengths."""
    angles = torch.arange(rows)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    places = torch.zeros(rows, width)
    places[:, 0::2] = torch.sin(angles)
    places[:, 1::2] = torch.cos(angles)[:, : width // 2]
    return places
