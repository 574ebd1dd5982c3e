"""The stage that trains a GRU."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.authoring import StageContext, arg, stage
from stoker.cookbooks.sequence.kinds import Model, Windows
from stoker.cookbooks.sequence.settings import TrainingArgs


@dataclass(frozen=True, slots=True, kw_only=True)
class GruArgs(TrainingArgs):
    """Settings of the GRU."""

    width: int = arg(32, help="numbers that it keeps in mind", ge=1, le=8192)
    layers: int = arg(1, help="layers above each other", ge=1, le=16)


@stage("sequence/train_gru", version=1, uses=("torch", "numpy"), diverges_on=("loss",))
def train_gru(job: StageContext, data: Windows, args: GruArgs) -> Model:
    """Train a GRU, epoch by epoch."""
    from stoker.cookbooks.sequence.networks.ends import NetworkSizes
    from stoker.cookbooks.sequence.networks.recurrent import RecurrentNetwork, RecurrentShape
    from stoker.cookbooks.sequence.produce import produce_model, saved

    windows = data.load()
    shape = RecurrentShape(width=args.width, layers=args.layers)
    model = produce_model(
        job, "gru", windows, lambda: RecurrentNetwork(NetworkSizes.of(windows.facts), shape, "gru"), shape, args
    )
    return saved(job, Model, model)
