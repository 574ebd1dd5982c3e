"""The stage that trains a transformer from nothing."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.authoring import StageContext, arg, stage
from stoker.cookbooks.sequence.kinds import Model, Windows
from stoker.cookbooks.sequence.settings import TrainingArgs


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerArgs(TrainingArgs):
    """Settings of the transformer."""

    lr: float = arg(1e-3, help="learning rate (AdamW)", gt=0)
    width: int = arg(32, help="features of each row; a multiple of heads, and even", ge=2, le=8192)
    layers: int = arg(2, help="blocks above each other", ge=1, le=64)
    heads: int = arg(4, help="ways of looking in each block", ge=1, le=128)


@stage("sequence/train_transformer", version=1, uses=("torch", "numpy"), diverges_on=("loss",))
def train_transformer(job: StageContext, data: Windows, args: TransformerArgs) -> Model:
    """Train a transformer, epoch by epoch."""
    from stoker.cookbooks.sequence.networks.attention import Transformer, TransformerShape
    from stoker.cookbooks.sequence.networks.ends import NetworkSizes
    from stoker.cookbooks.sequence.produce import produce_model, saved

    windows = data.load()
    shape = TransformerShape(width=args.width, layers=args.layers, heads=args.heads)
    model = produce_model(
        job, "transformer", windows, lambda: Transformer(NetworkSizes.of(windows.facts), shape), shape, args
    )
    return saved(job, Model, model)
