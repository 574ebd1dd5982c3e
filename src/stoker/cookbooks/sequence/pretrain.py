"""The stage that trains a transformer without answers."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.authoring import StageContext, arg, stage
from stoker.cookbooks.sequence.kinds import Encoder, Windows
from stoker.cookbooks.sequence.settings import TrainingArgs


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainArgs(TrainingArgs):
    """Settings of the pre-training."""

    lr: float = arg(1e-3, help="learning rate (AdamW)", gt=0)
    width: int = arg(32, help="features of each row; a multiple of heads, and even", ge=2, le=8192)
    layers: int = arg(2, help="blocks above each other", ge=1, le=64)
    heads: int = arg(4, help="ways of looking in each block", ge=1, le=128)
    mask_percent: int = arg(30, help="share of each window that is hidden", ge=1, le=90)
    mask_span: int = arg(4, help="rows that are hidden together", ge=1, le=1000)


@stage("sequence/pretrain", version=1, uses=("torch", "numpy"), diverges_on=("loss",))
def pretrain(job: StageContext, data: Windows, args: PretrainArgs) -> Encoder:
    """Train a transformer to tell what was hidden of windows; no answer is looked at."""
    from dataclasses import asdict

    from stoker.cookbooks.sequence import produce
    from stoker.cookbooks.sequence.fitted import FittedEncoder
    from stoker.cookbooks.sequence.networks.attention import Restorer, TransformerShape
    from stoker.cookbooks.sequence.networks.ends import NetworkSizes
    from stoker.cookbooks.sequence.schemas import EncoderFacts
    from stoker.cookbooks.sequence.training import without_answers

    windows = data.load()
    shape = TransformerShape(width=args.width, layers=args.layers, heads=args.heads)
    network = produce.seeded(args.seed, lambda: Restorer(NetworkSizes.of(windows.facts), shape))
    curve = produce.trained(
        job,
        network,
        lambda device: without_answers(windows, percent=args.mask_percent, span=args.mask_span, device=device),
        args,
        name="pre-training",
    )
    notes = produce.still_falling(curve, args.epochs)
    produce.tell(job, notes)
    weights = {
        name.removeprefix("encoder."): values
        for name, values in network.state_dict().items()
        if name.startswith("encoder.")
    }
    facts = EncoderFacts(shape=asdict(shape), params=produce.params_of(args), curve=curve, notes=notes)
    return produce.saved(job, Encoder, FittedEncoder(weights=weights, facts=facts))
