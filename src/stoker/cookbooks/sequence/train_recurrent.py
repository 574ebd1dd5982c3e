"""The stages that train recurrent networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stoker.authoring import StageContext, arg, stage
from stoker.cookbooks.sequence.kinds import SequenceModel, Windows
from stoker.cookbooks.sequence.schemas import TrainingArgs


@dataclass(frozen=True, kw_only=True)
class RecurrentArgs(TrainingArgs):
    """Settings of a GRU or an LSTM."""

    width: int = arg(32, help="size of the hidden state", ge=1, le=8192)
    layers: int = arg(1, help="number of layers", ge=1, le=16)


@stage("sequence/train_gru", version=1, uses=("torch", "numpy"), diverges_on=("loss",))
def train_gru(job: StageContext, data: Windows, args: RecurrentArgs) -> SequenceModel:
    """Train a GRU, epoch by epoch."""
    return _train(job, data, args, "gru")


@stage("sequence/train_lstm", version=1, uses=("torch", "numpy"), diverges_on=("loss",))
def train_lstm(job: StageContext, data: Windows, args: RecurrentArgs) -> SequenceModel:
    """Train a LSTM, epoch by epoch."""
    return _train(job, data, args, "lstm")


def _train(job: StageContext, data: Windows, args: RecurrentArgs, cell: Literal["gru", "lstm"]) -> SequenceModel:
    from stoker.cookbooks.sequence.produce import produce_model
    from stoker.cookbooks.sequence.recurrent import RecurrentNetwork, RecurrentShape

    shape = RecurrentShape(width=args.width, layers=args.layers)
    return produce_model(job, cell, data, lambda ends: RecurrentNetwork(ends, shape, cell), shape, args)
