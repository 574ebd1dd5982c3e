"""Trainings without numbers hold what torch holds: by tensor, by phase, by purpose."""

from __future__ import annotations

import pytest

from stoker.devices.estimate.model_shapes import read_shape
from stoker.devices.estimate.symbolic import SymbolicModel, rehearse
from stoker.devices.estimate.tape import CachingAllocator, Purpose, Tape, TapeMemory
from stoker.devices.estimate.training_setup import TrainingSpec, adapter_parameters, read_training
from tests.unit.devices.estimate.recorded import SHAPES, name_of, training_of

LLAMA = read_shape({"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16,
                    "num_key_value_heads": 4, "intermediate_size": 2816, "vocab_size": 8000})  # fmt: skip


class Exact(CachingAllocator):
    """One that counts bytes as they are asked for."""

    def take(self, size_bytes):
        block = super().take(size_bytes)
        block.size_bytes = size_bytes
        return block

    def give(self, block):
        pass


def kept_after_forward(training: TrainingSpec) -> int:
    """Return the bytes that a forward pass leaves for the backward pass, without weights, workspaces and logits."""
    memory = TapeMemory(Exact())
    tape = Tape(memory)
    model = SymbolicModel(tape, training)
    before = memory.total_bytes
    ids = tape.fresh(training.tokens * 8)
    tape.autocast_width = training.autocast.bytes if training.autocast else 0
    loss, logits = model.loss(ids)
    tape.forget_casts()
    del logits
    assert loss.node is not None
    return memory.total_bytes - before - memory.held[Purpose.WORKSPACE]


@pytest.mark.parametrize("row", SHAPES["saved"], ids=name_of)
def test_what_is_kept_for_the_backward_pass_is_what_autograd_keeps(row):
    # With blocks that are computed again, two small tables of angles are held beside what autograd keeps.
    slack = 0.02 if row["training"].get("checkpointing") else 0.005
    assert kept_after_forward(training_of(row)) == pytest.approx(row["saved_bytes"], rel=slack)


def told(*words: str) -> TrainingSpec:
    return read_training(LLAMA, words)


def test_weights_take_what_their_numbers_take():
    held = rehearse(told("method=full", "batch=2")).held_bytes
    assert held[Purpose.WEIGHTS] == pytest.approx(2 * LLAMA.parameters, rel=0.03)
    assert held[Purpose.ADAPTERS] == 0


def test_adapters_take_weights_and_two_states_until_there_are_gradients():
    training = told("method=lora", "batch=4", "sequence=512")
    count = adapter_parameters(LLAMA, training.targets, training.rank)
    rehearsal = rehearse(training)
    assert rehearsal.fullest == "backward"
    assert rehearsal.held_bytes[Purpose.ADAPTERS] == pytest.approx(12 * count, rel=0.05)


def test_logits_are_there_in_five_copies_at_the_fullest_moment():
    training = told("method=lora", "batch=8", "sequence=512")
    assert rehearse(training).held_bytes[Purpose.LOGITS] == pytest.approx(14 * training.tokens * 8000, rel=0.02)


def test_outputs_that_are_let_go_save_their_logits():
    words = ("method=lora", "batch=8", "sequence=512")
    kept, gone = (rehearse(told(*words, f"keeps_outputs={flag}")) for flag in ("true", "false"))
    saved = kept.held_bytes[Purpose.LOGITS] - gone.held_bytes[Purpose.LOGITS]
    assert saved == pytest.approx(2 * 8 * 512 * 8000, rel=0.05)


@pytest.mark.parametrize("words", [("method=lora",), ("method=full",), ("method=lora", "dropout=0.1")], ids=" ".join)
def test_computing_again_takes_less(words):
    plain, again = (
        rehearse(told(*words, "batch=8", "sequence=512", f"checkpointing={flag}")) for flag in ("no", "yes")
    )
    assert again.held_bytes[Purpose.ACTIVATIONS] < plain.held_bytes[Purpose.ACTIVATIONS] / 2
    assert again.reserved_bytes < plain.reserved_bytes


def test_more_at_a_time_takes_more():
    taken = [rehearse(told("batch=1", f"sequence={tokens}")).allocated_bytes for tokens in (128, 256, 512, 1024)]
    assert taken == sorted(taken)


def test_a_hundred_backward_passes_take_no_more_and_no_longer_than_two():
    two, hundred = (rehearse(told("method=full", f"accumulation={count}")) for count in (2, 100))
    assert two == hundred
    assert two.held_bytes[Purpose.GRADIENTS] >= 2 * LLAMA.parameters


def test_chunks_of_logits_take_less_however_many_there_are():
    whole, chunked, crumbs = (
        rehearse(told("batch=8", "sequence=1024", f"loss_chunk={chunk}")) for chunk in (0, 1024, 1)
    )
    assert whole.held_bytes[Purpose.LOGITS] > 4 * chunked.held_bytes[Purpose.LOGITS]
    assert crumbs.allocated_bytes <= chunked.allocated_bytes


def test_nothing_is_left_of_a_rehearsal():
    memory = TapeMemory(CachingAllocator())
    tape = Tape(memory)
    model = SymbolicModel(tape, told("method=full", "checkpointing=true"))
    loss, logits = model.loss(tape.fresh(8))
    assert loss.node is not None
    tape.backward(loss.node, [tape.fresh(4)])
    for leaf in model.leaves():
        leaf.gradient = None
    del model, loss, logits, leaf
    assert memory.total_bytes == memory.held[Purpose.WORKSPACE]
