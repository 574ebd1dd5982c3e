"""A base in four bits computes what a base of the same, rounded weights computes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from stoker.devices.estimate.shared_base import nf4_bytes
from tests.later import imported_later
from tests.unit.cookbooks.language.engine.bases import made_base

with imported_later():
    import torch
    from safetensors.torch import load_file, save_file

    from stoker.cookbooks.language.compute.banks import AdapterSpec, AdapterState
    from stoker.cookbooks.language.compute.base_weights import BaseWeights, QuantisedLayers, in_ram, load_base
    from stoker.cookbooks.language.compute.nf4 import dequantise, quantise
    from tests.unit.cookbooks.language.engine.peft_alone import some_batches
    from tests.unit.cookbooks.language.engine.trained_together import ALL, Member, room_for, same_bits, train

STEPS = 3
RECORDED = Path(__file__).parents[4] / "recordings" / "nf4" / "bitsandbytes_cuda.npz"
"""What bitsandbytes 0.50.2 made of random weights on an H200."""


def rounded(folder: Path, into: Path) -> Path:
    """Copy a base with the matrices of its blocks rounded to four bits."""
    shutil.copytree(folder, into)
    weights = load_file(into / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith("_proj.weight"):
            dequantise(quantise(weight), weight)
    save_file(weights, into / "model.safetensors", metadata={"format": "pt"})
    return into


def trained(base: BaseWeights) -> list[AdapterState]:
    members = [
        Member(
            spec=AdapterSpec(rank=rank, alpha=8.0, targets=ALL, seed=rank),
            batches=some_batches(rank, STEPS, longest=16),
            rates=[1e-2] * STEPS,
        )
        for rank in (2, 4)
    ]
    slots = room_for(base, members)
    train(slots, dict(enumerate(members)), range(STEPS), length=16)
    return [slots.adapter(slot) for slot in range(slots.count)]


@pytest.mark.parametrize("family", ["llama", "qwen2, biases", "qwen3, norms of heads"])
def test_adapters_over_four_bits_are_those_over_the_rounded_weights(family: str, tmp_path: Path) -> None:
    folder = made_base(tmp_path / "base", family)
    four, whole = load_base(folder, base_dtype="nf4"), load_base(rounded(folder, tmp_path / "rounded"))
    assert isinstance(four.layers, QuantisedLayers)
    for one, two in zip(trained(four), trained(whole), strict=True):
        assert same_bits(one, two)


def test_only_matrices_of_blocks_are_in_four_bits_and_one_block_is_whole(tmp_path: Path) -> None:
    folder = made_base(tmp_path / "base", "llama")
    four, whole = load_base(folder, base_dtype="nf4"), load_base(folder)
    block = sum(one.inputs * one.outputs for one in whole.shape.model.linears)
    matrices = len(whole.shape.model.linears) * whole.shape.layers
    saved = whole.size_bytes - four.size_bytes
    exact = (whole.shape.layers - 1) * block * 4 - nf4_bytes(whole.shape.layers * block)
    # Each matrix has a mean of its own, and a last block of scales that is not full.
    assert 0 <= exact - saved <= 8 * matrices
    assert torch.equal(four.embedding, whole.embedding)


def test_weights_are_those_of_bitsandbytes_bit_for_bit() -> None:
    recorded = {name: torch.from_numpy(array) for name, array in np.load(RECORDED).items()}
    weight = recorded["weight"].bfloat16()
    ours = quantise(weight)
    is_zero = (weight == 0).all(dim=1)
    assert torch.equal(ours.codes.view(300, 32)[~is_zero], recorded["codes"].view(300, 32)[~is_zero])
    assert torch.equal(ours.scales, recorded["scales"])
    assert torch.equal(ours.scale_sizes, recorded["sizes"])
    assert torch.equal(ours.mean, recorded["mean"].view(()))
    back = torch.empty_like(weight)
    dequantise(ours, back)
    assert torch.equal(back.float()[~is_zero], recorded["back"][~is_zero])
    # A block of zeros stays zeros here; there it becomes what is left of its scale.
    assert is_zero.sum() == 1
    assert not back[is_zero].any()


def test_a_weight_is_off_by_a_sixth_of_the_largest_near_it_at_most_and_zero_stays_zero() -> None:
    weight = torch.randn(70, 64, generator=torch.Generator().manual_seed(0))
    weight[3] = 0
    found = torch.empty_like(weight)
    dequantise(quantise(weight), found)
    largest = weight.abs().amax(dim=1, keepdim=True)
    # Half of the widest step between two of the 16 values, and what rounding the scale adds.
    assert ((found - weight).abs() <= 0.16 * largest + 0.02 * largest.max()).all()
    assert not found[3].any()


def test_without_page_locked_memory_an_embedding_stays_where_it_is() -> None:
    embedding = torch.ones(3, 2)
    # Only a machine with a GPU has such memory.
    assert torch.cuda.is_available() or in_ram(embedding) is embedding
