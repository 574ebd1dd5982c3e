"""Trained networks on disk, with their facts.

Weights are written by torch and read with `weights_only`: names and numbers, no code. The same weights give the same
bytes.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from stoker.cookbooks.sequence.schemas import EncoderFacts, SequenceModelFacts, WindowFacts
from stoker.core import jsontext
from stoker.core.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedNetwork:
    """A trained network and its facts."""

    network: nn.Module
    facts: SequenceModelFacts

    def answer(self, rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Predict windows of rows in their own units (windows by rows by channels, oldest row first).

        Returns the next values in their unit (windows by steps), or the probability of each class. Raises `BadInput`
        for windows of another shape.
        """
        data = self.facts["data"]
        series = data["series"]
        wanted = (data["window"], len(series["channels"]))
        if np.ndim(rows) != 3 or np.shape(rows)[1:] != wanted:
            raise BadInput(
                f"windows of {wanted[0]} rows by {wanted[1]} channels are required, not {np.shape(rows)}",
                hint=f"the channels are {', '.join(series['channels'])}",
            )
        mean, spread = np.array(data["mean"]), np.array(data["spread"])
        inputs = torch.from_numpy(((np.asarray(rows) - mean) / spread).astype(np.float32))
        self.network.eval()
        with torch.no_grad():
            outputs = self.network(inputs)
        if series["problem"] == "classification":
            return np.asarray(outputs.double().softmax(dim=1).numpy())
        place = series["channels"].index(series["target"])
        scaled = (outputs + inputs[:, -1, place, None]).double().numpy()
        return np.asarray(scaled * spread[place] + mean[place])


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedEncoder:
    """The weights of an encoder, and their facts."""

    weights: dict[str, torch.Tensor]
    facts: EncoderFacts


def write_model(model: FittedNetwork, folder: Path) -> None:
    """Write weights and facts into an empty folder."""
    _write(folder, "model", model.network.state_dict(), model.facts)


def write_encoder(encoder: FittedEncoder, folder: Path) -> None:
    """Write weights and facts into an empty folder."""
    _write(folder, "encoder", encoder.weights, encoder.facts)


def read_encoder(folder: Path) -> FittedEncoder:
    """Read back what `write_encoder` wrote, for the CPU."""
    facts: EncoderFacts = jsontext.loads((folder / "encoder.json").read_text(encoding="utf-8"))
    return FittedEncoder(weights=read_weights(folder / "encoder.pt"), facts=facts)


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Read weights, for the CPU."""
    weights: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return weights


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that a result depends on."""
    return {name: version(name) for name in ("numpy", "torch")}


def _write(folder: Path, name: str, weights: dict[str, torch.Tensor], facts: Any) -> None:
    written = io.BytesIO()
    torch.save({key: values.detach().cpu().contiguous() for key, values in weights.items()}, written)
    (folder / f"{name}.pt").write_bytes(written.getvalue())
    text = jsontext.dumps(facts, indent=2, sort_keys=True)
    (folder / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


# Sizes of inputs and outputs of a network.


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
    """Maps features of every row (batch, rows, width) to outputs: by their mean and by the newest row."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.out = nn.Linear(2 * width, outputs)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return one row of outputs for each window."""
        given: torch.Tensor = self.out(torch.cat([features.mean(dim=1), features[:, -1]], dim=1))
        return given
