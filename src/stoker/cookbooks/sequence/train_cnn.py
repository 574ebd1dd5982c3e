"""The stage that trains convolutions."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.authoring import StageContext, arg, stage
from stoker.cookbooks.sequence.kinds import SequenceModel, Windows
from stoker.cookbooks.sequence.schemas import TrainingArgs


@dataclass(frozen=True, kw_only=True)
class CnnArgs(TrainingArgs):
    """Settings of the convolutions."""

    width: int = arg(32, help="features of each row", ge=1, le=8192)
    layers: int = arg(3, help="number of blocks, each with twice the dilation", ge=1, le=16)
    kernel: int = arg(3, help="kernel size in rows", ge=1, le=101)


@stage("sequence/train_cnn", version=1, uses=("torch", "numpy"), diverges_on=("loss",))
def train_cnn(job: StageContext, data: Windows, args: CnnArgs) -> SequenceModel:
    """Train convolutions over time, epoch by epoch."""
    from stoker.cookbooks.sequence.convolution import Cnn, CnnShape
    from stoker.cookbooks.sequence.produce import produce_model

    shape = CnnShape(width=args.width, layers=args.layers, kernel=args.kernel)
    return produce_model(job, "cnn", data, lambda ends: Cnn(ends, shape), shape, args)
