"""The stage that trains a LSTM."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.cookbooks.sequence.kinds import Model, Windows
from stoker.cookbooks.sequence.settings import TrainingArgs
from stoker.plan.authoring import StageContext, arg, stage


@dataclass(frozen=True, slots=True, kw_only=True)
class LstmArgs(TrainingArgs):
    """Settings of the LSTM."""

    width: int = arg(32, help="numbers that it keeps in mind", ge=1, le=8192)
    layers: int = arg(1, help="layers above each other", ge=1, le=16)


@stage("sequence/train_lstm", version=1, uses=("torch", "numpy"), diverges_on=("loss",))
def train_lstm(job: StageContext, data: Windows, args: LstmArgs) -> Model:
    """Train a LSTM, epoch by epoch."""
    from stoker.cookbooks.sequence.networks.ends import Ends
    from stoker.cookbooks.sequence.networks.recurrent import Recurrent, RecurrentShape
    from stoker.cookbooks.sequence.science.producing import produce, saved

    windows = data.load()
    shape = RecurrentShape(width=args.width, layers=args.layers)
    model = produce(job, "lstm", windows, lambda: Recurrent(Ends.of(windows.facts), shape, "lstm"), shape, args)
    return saved(job, Model, model)
