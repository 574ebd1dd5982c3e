"""The stages that train a transformer: directly, or after a self-supervised pre-training."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from stoker.authoring import StageContext, arg, stage
from stoker.cookbooks.sequence.kinds import Encoder, SequenceModel, Windows
from stoker.cookbooks.sequence.schemas import EncoderFacts, TrainingArgs

if TYPE_CHECKING:
    from stoker.cookbooks.sequence.attention import Transformer
    from stoker.cookbooks.sequence.networks import NetworkSizes


@dataclass(frozen=True, kw_only=True)
class FinetuneArgs(TrainingArgs):
    """Settings of the fine-tuning."""

    lr: float = arg(1e-3, help="learning rate (AdamW)", gt=0)


@dataclass(frozen=True, kw_only=True)
class TransformerArgs(FinetuneArgs):
    """Settings of the transformer."""

    width: int = arg(32, help="features of each row; a multiple of heads, and even", ge=2, le=8192)
    layers: int = arg(2, help="number of blocks", ge=1, le=64)
    heads: int = arg(4, help="attention heads of each block", ge=1, le=128)


@dataclass(frozen=True, kw_only=True)
class PretrainArgs(TransformerArgs):
    """Settings of the pre-training."""

    mask_percent: int = arg(30, help="share of each window that is hidden", ge=1, le=90)
    mask_span: int = arg(4, help="rows that are hidden together", ge=1, le=1000)


@stage("sequence/train_transformer", version=1, uses=("torch", "numpy"), diverges_on=("loss",))
def train_transformer(job: StageContext, data: Windows, args: TransformerArgs) -> SequenceModel:
    """Train a transformer, epoch by epoch."""
    from stoker.cookbooks.sequence.attention import Transformer, TransformerShape
    from stoker.cookbooks.sequence.produce import produce_model

    shape = TransformerShape(width=args.width, layers=args.layers, heads=args.heads)
    return produce_model(job, "transformer", data, lambda ends: Transformer(ends, shape), shape, args)


@stage("sequence/pretrain", version=1, uses=("torch", "numpy"), diverges_on=("loss",))
def pretrain(job: StageContext, data: Windows, args: PretrainArgs) -> Encoder:
    """Train a transformer to predict hidden parts of windows, without targets."""
    from stoker.cookbooks.sequence import produce
    from stoker.cookbooks.sequence.attention import Restorer, TransformerShape
    from stoker.cookbooks.sequence.networks import FittedEncoder, NetworkSizes
    from stoker.cookbooks.sequence.training import without_answers

    windows = data.load()
    shape = TransformerShape(width=args.width, layers=args.layers, heads=args.heads)
    network = produce.seeded(args.seed, lambda: Restorer(NetworkSizes.of(windows.facts), shape))
    curve, notes = produce.train_network(
        job,
        network,
        lambda device: without_answers(windows, percent=args.mask_percent, span=args.mask_span, device=device),
        args,
        name="pre-training",
    )
    weights = {
        name.removeprefix("encoder."): values
        for name, values in network.state_dict().items()
        if name.startswith("encoder.")
    }
    facts = EncoderFacts(shape=asdict(shape), params=produce.params_of(args), curve=curve, notes=notes)
    return produce.saved(job, Encoder, FittedEncoder(weights=weights, facts=facts))


@stage("sequence/finetune", version=1, uses=("torch", "numpy"), diverges_on=("loss",))
def finetune(job: StageContext, encoder: Encoder, data: Windows, args: FinetuneArgs) -> SequenceModel:
    """Train a transformer from pre-trained weights."""
    from stoker.cookbooks.sequence.attention import Transformer, TransformerShape
    from stoker.cookbooks.sequence.produce import produce_model

    learned = encoder.load()
    shape = TransformerShape(**learned.facts["shape"])

    def make(ends: NetworkSizes) -> Transformer:
        network = Transformer(ends, shape)
        network.encoder.load_state_dict(learned.weights)
        return network

    return produce_model(job, "transformer_ssl", data, make, shape, args, before=(learned.facts["curve"],))
