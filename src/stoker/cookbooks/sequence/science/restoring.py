"""A model that was written down, back as a network that answers: the one place that knows every family.

Trainings stay away from it, so that a change of one family leaves the code of the others as it was.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_never

from torch import nn

from stoker.cookbooks.sequence.networks.attention import Transformer, TransformerShape
from stoker.cookbooks.sequence.networks.convolution import Cnn, CnnShape
from stoker.cookbooks.sequence.networks.ends import Ends
from stoker.cookbooks.sequence.networks.recurrent import Recurrent, RecurrentShape
from stoker.cookbooks.sequence.records import ModelFacts
from stoker.cookbooks.sequence.science.fitted import FittedModel, read_weights
from stoker.model import json_text


def read_model(folder: Path) -> FittedModel:
    """Read weights (`model.pt`) and facts (`model.json`) from a folder, for the CPU."""
    facts: ModelFacts = json_text.loads((folder / "model.json").read_text(encoding="utf-8"))
    network = _build(facts)
    network.load_state_dict(read_weights(folder / "model.pt"))
    return FittedModel(network=network, facts=facts)


def _build(facts: ModelFacts) -> nn.Module:
    ends, shape = Ends.of(facts["data"]), facts["shape"]
    match facts["family"]:
        case "cnn":
            return Cnn(ends, CnnShape(**shape))
        case "gru":
            return Recurrent(ends, RecurrentShape(**shape), "gru")
        case "lstm":
            return Recurrent(ends, RecurrentShape(**shape), "lstm")
        case "transformer" | "transformer_ssl":
            return Transformer(ends, TransformerShape(**shape))
        case other:
            assert_never(other)
