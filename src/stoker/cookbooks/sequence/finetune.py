"""The stage that teaches a pre-trained transformer to answer."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.authoring import StageContext, arg, stage
from stoker.cookbooks.sequence.kinds import Encoder, Model, Windows
from stoker.cookbooks.sequence.settings import TrainingArgs


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneArgs(TrainingArgs):
    """Settings of the fine-tuning."""

    lr: float = arg(1e-3, help="learning rate (AdamW)", gt=0)


@stage("sequence/finetune", version=1, uses=("torch", "numpy"), diverges_on=("loss",))
def finetune(job: StageContext, encoder: Encoder, data: Windows, args: FinetuneArgs) -> Model:
    """Train a transformer that begins with what it learned without answers."""
    from stoker.cookbooks.sequence.networks.attention import Transformer, TransformerShape
    from stoker.cookbooks.sequence.networks.ends import NetworkSizes
    from stoker.cookbooks.sequence.produce import produce_model, saved

    windows, learned = data.load(), encoder.load()
    shape = TransformerShape(**learned.facts["shape"])

    def make() -> Transformer:
        network = Transformer(NetworkSizes.of(windows.facts), shape)
        network.encoder.load_state_dict(learned.weights)
        return network

    model = produce_model(job, "transformer_ssl", windows, make, shape, args, before=(learned.facts["curve"],))
    return saved(job, Model, model)
