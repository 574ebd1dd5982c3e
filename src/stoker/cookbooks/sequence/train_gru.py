"""The stage that trains a GRU."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.cookbooks.sequence.kinds import Model, Windows
from stoker.cookbooks.sequence.settings import TrainingArgs
from stoker.plan.authoring import StageContext, arg, stage


@dataclass(frozen=True, slots=True, kw_only=True)
class GruArgs(TrainingArgs):
    """Settings of the GRU."""

    width: int = arg(32, help="numbers that it keeps in mind", ge=1, le=8192)
    layers: int = arg(1, help="layers above each other", ge=1, le=16)


@stage("sequence/train_gru", version=1, uses=("torch", "numpy"), diverges_on=("loss",))
def train_gru(job: StageContext, data: Windows, args: GruArgs) -> Model:
    """Train a GRU, epoch by epoch."""
    from stoker.cookbooks.sequence.networks.ends import Ends
    from stoker.cookbooks.sequence.networks.recurrent import Recurrent, RecurrentShape
    from stoker.cookbooks.sequence.science.producing import produce, saved

    windows = data.load()
    shape = RecurrentShape(width=args.width, layers=args.layers)
    model = produce(job, "gru", windows, lambda: Recurrent(Ends.of(windows.facts), shape, "gru"), shape, args)
    return saved(job, Model, model)
