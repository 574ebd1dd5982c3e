"""Estimates of trainings that nobody would think of, and an allocator against a plain one."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.devices.estimate.model_shapes import ModelShape, families, read_shape
from stoker.devices.estimate.tape import MIB, AllocatorBlock, CachingAllocator
from stoker.devices.estimate.terms import estimate
from stoker.devices.estimate.training_setup import Attention, Method, Optimiser, TrainingSpec, Width
from tests.lengths import examples

STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 40 * MIB)), max_size=80)


@st.composite
def shapes(draw) -> ModelShape:
    heads = draw(st.sampled_from([1, 2, 4, 8]))
    hidden = heads * draw(st.sampled_from([16, 32, 48]))
    family = draw(st.sampled_from(families()))
    layers = draw(st.integers(1, 3))
    config = {
        "model_type": family, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from([one for one in (1, 2, 4, 8) if heads % one == 0])),
        "intermediate_size": draw(st.integers(1, 300)), "vocab_size": draw(st.integers(1, 3000)),
        "tie_word_embeddings": draw(st.booleans()),
    }  # fmt: skip
    return read_shape(config)


@st.composite
def trainings(draw) -> TrainingSpec:
    dtype = draw(st.sampled_from(Width))
    return TrainingSpec(
        shape=draw(shapes()),
        method=draw(st.sampled_from(Method)),
        rank=draw(st.integers(1, 64)),
        dropout=draw(st.sampled_from([0.0, 0.1])),
        adapter_dtype=draw(st.sampled_from(Width)),
        batch=draw(st.integers(1, 4)),
        sequence=draw(st.integers(1, 300)),
        dtype=dtype,
        autocast=draw(st.sampled_from([None, Width.BF16])) if dtype is Width.FP32 else None,
        optimiser=draw(st.sampled_from(Optimiser)),
        checkpointing=draw(st.booleans()),
        attention=draw(st.sampled_from(Attention)),
        padded=draw(st.booleans()),
        accumulation=draw(st.integers(1, 3)),
        keeps_outputs=draw(st.booleans()),
        loss_chunk=draw(st.sampled_from([0, 1, 64])),
        expandable_segments=draw(st.booleans()),
    )


@settings(max_examples=examples(20, 30), deadline=None)
@given(trainings())
def test_every_training_has_an_estimate_that_holds_at_least_its_states(training):
    told = estimate(training, context_bytes=0)
    assert all(term.size_bytes >= 0 for term in told.terms)
    assert told.term("weights") >= training.shape.parameters * training.dtype.bytes
    if training.is_lora:
        assert told.term("adapters") >= told.trained_parameters * training.adapter_dtype.bytes
    assert told.total_bytes >= told.term("weights") + told.term("activations") + told.term("logits")


@settings(max_examples=5, deadline=None)
@given(trainings())
def test_a_training_has_one_estimate(training):
    assert estimate(training) == estimate(training)


@given(st.booleans(), STEPS)
def test_blocks_never_overlap_and_nothing_is_lost(is_expandable, steps):
    allocator = CachingAllocator(is_expandable=is_expandable)
    held: list[tuple[AllocatorBlock, int]] = []
    for takes, size in steps:
        if takes or not held:
            block = allocator.take(size)
            assert block.size_bytes >= size
            held.append((block, size))
        else:
            block, _ = held.pop(size % len(held))
            allocator.give(block)
        spans = sorted((one.address, one.address + one.size_bytes) for one, _ in held)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert sum(one.size_bytes for one, _ in held) <= allocator.reserved_bytes
    reserved_bytes = allocator.reserved_bytes
    for block, _ in held:
        allocator.give(block)
    assert allocator.reserved_bytes == reserved_bytes
    for _, size in held:
        allocator.take(size)
    assert allocator.reserved_bytes <= 2 * reserved_bytes + 20 * MIB
