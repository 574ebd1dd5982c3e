"""Loading of a trained model as a network: the only module that imports every family.

Trainings do not import it, so that a change of one family does not change the code identity of the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_never

from torch import nn

from stoker.cookbooks.sequence.attention import Transformer, TransformerShape
from stoker.cookbooks.sequence.convolution import Cnn, CnnShape
from stoker.cookbooks.sequence.networks import FittedNetwork, NetworkSizes, read_weights
from stoker.cookbooks.sequence.recurrent import RecurrentNetwork, RecurrentShape
from stoker.cookbooks.sequence.schemas import SequenceModelFacts
from stoker.core import jsontext


def read_model(folder: Path) -> FittedNetwork:
    """Read weights (`model.pt`) and facts (`model.json`) from a folder, for the CPU."""
    facts: SequenceModelFacts = jsontext.loads((folder / "model.json").read_text(encoding="utf-8"))
    network = _build(facts)
    network.load_state_dict(read_weights(folder / "model.pt"))
    return FittedNetwork(network=network, facts=facts)


def _build(facts: SequenceModelFacts) -> nn.Module:
    ends, shape = NetworkSizes.of(facts["data"]), facts["shape"]
    match facts["family"]:
        case "cnn":
            return Cnn(ends, CnnShape(**shape))
        case "gru":
            return RecurrentNetwork(ends, RecurrentShape(**shape), "gru")
        case "lstm":
            return RecurrentNetwork(ends, RecurrentShape(**shape), "lstm")
        case "transformer" | "transformer_ssl":
            return Transformer(ends, TransformerShape(**shape))
        case other:
            assert_never(other)
