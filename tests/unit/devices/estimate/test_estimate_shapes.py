"""Shapes from config files: parameters as transformers counts them, and every fault of a bad file."""

from __future__ import annotations

import pytest

from stoker.core.errors import BadInput, InvalidInput
from stoker.devices.estimate.model_shapes import ModelShape, families, read_shape
from stoker.devices.estimate.training_setup import adapter_parameters, names_of, targeted
from tests.unit.devices.estimate.recorded import SHAPES, training_of

COUNTED = SHAPES["parameters"]
ADAPTED = [row for row in SHAPES["saved"] if row["training"]["method"] == "lora"]


def llama(**said) -> ModelShape:
    return read_shape({"model_type": "llama", **said})


@pytest.mark.parametrize("name", COUNTED)
def test_parameters_are_those_that_transformers_makes(name):
    shape = read_shape(COUNTED[name]["config"])
    assert shape.parameters == COUNTED[name]["count"]
    assert shape.layers * sum(one.parameters for one in shape.linears) == COUNTED[name]["linear_count"]


def test_every_family_was_counted():
    assert {row["config"]["model_type"] for row in COUNTED.values()} == set(families())


@pytest.mark.parametrize("row", ADAPTED, ids=lambda row: f"{row['config']['model_type']} {row['training']}")
def test_adapters_are_as_large_as_pefts(row):
    training = training_of(row)
    assert adapter_parameters(training.shape, training.targets, training.rank) == row["trained"]


def test_all_faults_of_a_config_are_told_together():
    with pytest.raises(InvalidInput) as caught:
        llama(hidden_size=0, num_hidden_layers="many", vocab_size=True, tie_word_embeddings="yes", attention_dropout=2)
    told = [str(fault) for fault in caught.value.faults]
    assert len(told) == 5
    for name in ("hidden_size", "num_hidden_layers", "vocab_size", "tie_word_embeddings", "attention_dropout"):
        assert any(name in one for one in told)


def test_heads_that_can_not_share_keys_are_a_fault():
    with pytest.raises(InvalidInput, match="32 is not a multiple of 5"):
        llama(num_attention_heads=32, num_key_value_heads=5)


def test_more_layers_than_anybody_has_are_refused_instead_of_gone_through():
    with pytest.raises(InvalidInput) as caught:
        llama(num_hidden_layers=10**9)
    assert "from 1 to 1,000" in str(caught.value.faults[0])


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "it has no model_type"),
        ({"model_type": ""}, "it has no model_type"),
        ({"model_type": 3}, "no family of models"),
        ({"model_type": "lama"}, "no family of models"),
    ],
    ids=["none", "empty", "number", "misspelt"],
)
def test_an_unknown_family_is_told_with_those_that_are_known(config, said):
    with pytest.raises(BadInput, match=said) as caught:
        read_shape(config, where="here.json")
    assert str(caught.value).startswith("here.json: ")
    assert "gpt2, gpt_neox, llama" in caught.value.hint


def test_the_nearest_family_is_suggested():
    with pytest.raises(BadInput) as caught:
        read_shape({"model_type": "qwen"})
    assert "did you mean 'qwen" in caught.value.hint


def test_a_field_that_is_null_counts_as_left_out():
    assert llama(num_key_value_heads=None, head_dim=None).kv_heads == llama().kv_heads


def test_what_changes_the_memory_changes_the_digest():
    shapes = [llama(), llama(hidden_size=2048), llama(vocab_size=32001), llama(tie_word_embeddings=True)]
    assert len({shape.digest for shape in shapes}) == len(shapes)
    assert llama().digest == llama(max_position_embeddings=7).digest


@pytest.mark.parametrize(
    ("config", "targets", "names"),
    [
        ("tiny-llama", ("attention",), ["q_proj", "k_proj", "v_proj", "o_proj"]),
        ("tiny-llama", ("mlp",), ["gate_proj", "up_proj", "down_proj"]),
        ("tiny-phi3", ("attention",), ["o_proj", "qkv_proj"]),
        ("tiny-gpt2", ("c_proj",), ["c_proj", "c_proj_mlp"]),
        ("tiny-gpt_neox", ("dense", "query_key_value"), ["query_key_value", "dense"]),
    ],
)
def test_targets_name_matrices_as_the_models_own_code_does(config, targets, names):
    assert [one.name for one in targeted(read_shape(COUNTED[config]["config"]), targets)] == names


def test_two_matrices_of_one_name_are_offered_once():
    assert names_of(read_shape({"model_type": "gpt2"})) == ["c_attn", "c_proj", "c_fc"]
