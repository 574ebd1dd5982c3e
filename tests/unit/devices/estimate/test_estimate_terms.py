"""Estimates: their terms, their reasons, and where they fit."""

from __future__ import annotations

import pytest

from stoker.core.clock import SystemClock
from stoker.core.device import GIB, Backend, Device, TriState, TriStateAnswer
from stoker.core.errors import BadInput, InvalidArgs
from stoker.core.frozen import fields_of
from stoker.devices.estimate.model_shapes import read_shape
from stoker.devices.estimate.terms import DEFAULT_CONTEXT_BYTES, Correction, estimate
from stoker.devices.estimate.training_setup import (
    KEYS,
    Attention,
    Method,
    Optimiser,
    TrainingSpec,
    Width,
    read_training,
)
from stoker.devices.ledger.ledger import Ledger
from stoker.devices.ledger.ledger_rules import LedgerDecisionInputs
from stoker.devices.ledger.reservations import CandidateDevice, DeviceRequest, FakeMeter, Reservation
from stoker.devices.ledger.snapshot import Fit, books_of, fits

GPT2 = read_shape({"model_type": "gpt2"})
YES = TriStateAnswer(verdict=TriState.YES)


def device(total: int | None = 24 * GIB, free: int | None = 24 * GIB) -> Device:
    return Device(
        uuid="GPU-1", backend=Backend.CUDA, name="RTX 4090", total_bytes=total, free_bytes=free,
        installed=YES, visible=YES, usable=YES,
    )  # fmt: skip


def test_terms_add_up_to_the_total_and_each_says_why():
    told = estimate(TrainingSpec(shape=GPT2))
    assert [term.name for term in told.terms] == [
        "weights", "adapters", "activations", "logits", "fragmentation", "context",
    ]  # fmt: skip
    assert told.total_bytes == sum(term.size_bytes for term in told.terms)
    assert all(term.why for term in told.terms)
    assert told.to_dict()["total_bytes"] == told.total_bytes
    assert "124,439,808 parameters in bf16" in told.terms[0].why


def test_full_training_has_gradients_and_an_optimiser_in_place_of_adapters():
    told = estimate(TrainingSpec(shape=GPT2, method=Method.FULL, sequence=128))
    assert told.term("adapters") == 0
    assert told.term("optimiser") == pytest.approx(3 * 2 * GPT2.parameters, rel=0.1)
    assert told.fullest == "while the optimiser steps"


def test_the_context_is_the_devices_own_where_it_was_measured():
    plain = estimate(TrainingSpec(shape=GPT2)).total_bytes
    assert estimate(TrainingSpec(shape=GPT2), gpu="NVIDIA H200").total_bytes > plain
    assert estimate(TrainingSpec(shape=GPT2), context_bytes=0).total_bytes == plain - DEFAULT_CONTEXT_BYTES


def test_a_correction_is_a_term_of_its_own():
    plain = estimate(TrainingSpec(shape=GPT2))
    higher = estimate(TrainingSpec(shape=GPT2), correction=Correction(percent=103.0, runs=4))
    assert higher.total_bytes == pytest.approx(1.03 * plain.total_bytes, rel=1e-6)
    assert higher.terms[-1].name == "calibration"
    assert "+3.0 %, by 4 measured runs" in higher.terms[-1].why


def test_targets_that_name_nothing_are_refused():
    with pytest.raises(BadInput, match="no matrix of a gpt2 model is called q_proj") as caught:
        estimate(TrainingSpec(shape=GPT2, targets=("q_proj",)))
    assert "c_attn" in caught.value.hint


@pytest.mark.parametrize(
    ("need", "there", "fit", "why"),
    [
        (24 * GIB, device(), Fit.NOW, "24.0 GiB of 24.0 GiB are free"),
        (24 * GIB + 1, device(), Fit.NEVER, "more than its 24.0 GiB"),
        (20 * GIB, device(free=18 * GIB), Fit.ALONE, "18.0 GiB free by the driver's measure"),
        (20 * GIB, device(free=None), Fit.ALONE, "free memory unknown"),
        (1, device(total=None, free=None), Fit.UNKNOWN, "memory size unknown"),
    ],
    ids=["exact", "one byte over", "busy", "free unknown", "all unknown"],
)
def test_it_fits_now_alone_or_never(need, there, fit, why):
    free = {} if there.free_bytes is None else {there.uuid: there.free_bytes}
    found = fits(need, there, LedgerDecisionInputs(free_bytes=free))
    assert found.fit is fit
    assert why in found.why
    assert found.to_dict()["fits"] == str(fit)


def test_a_card_that_somebody_holds_fits_later_however_much_of_it_is_free(tmp_path):
    card = device()
    candidate = CandidateDevice.of(card)
    assert candidate is not None
    ledger = Ledger(str(tmp_path / "ledger"), clock=SystemClock(), meter=FakeMeter({card.uuid: 24 * GIB}))
    held = ledger.reserve(DeviceRequest(job="night/run", devices=(candidate,)))
    assert isinstance(held, Reservation)
    busy = fits(GIB, card, books_of(ledger.state([candidate])))
    assert (busy.fit, busy.why.startswith("GPU-1 is held whole by night/run")) == (Fit.ALONE, True)
    ledger.release(held)
    assert fits(GIB, card, books_of(ledger.state([candidate]))).fit is Fit.NOW


def test_every_field_of_a_training_can_be_said():
    assert set(KEYS) == set(fields_of(TrainingSpec(shape=GPT2))) - {"shape"}


def test_words_become_a_training():
    words = (
        "method=lora", "rank=8", "targets=c_attn, c_fc", "dropout=0.05", "adapter_dtype=bf16", "batch_size=4",
        "seq_len=512", "dtype=FP32", "autocast=bf16", "optimizer=adamw-fused", "gradient_checkpointing=yes",
        "attention=eager", "padded=off", "accumulation=2", "keeps_outputs=0", "loss_chunk=256",
        "expandable_segments=true",
    )  # fmt: skip
    assert read_training(GPT2, words) == TrainingSpec(
        shape=GPT2, method=Method.LORA, rank=8, targets=("c_attn", "c_fc"), dropout=0.05, adapter_dtype=Width.BF16,
        batch=4, sequence=512, dtype=Width.FP32, autocast=Width.BF16, optimiser=Optimiser.ADAMW_FUSED,
        checkpointing=True, attention=Attention.EAGER, padded=False, accumulation=2, keeps_outputs=False,
        loss_chunk=256, expandable_segments=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("batch", "is not key=value"),
        ("bach=2", "did you mean 'batch'?"),
        ("batch=0", "from 1 to"),
        ("batch=-1", "from 1 to"),
        ("batch=1e3", "from 1 to"),
        ("batch=٣", "from 1 to"),
        ("batch=99999999999", "from 1 to"),
        ("dropout=1", "from 0 to below 1"),
        ("dropout=nan", "from 0 to below 1"),
        ("dtype=bf61", "did you mean 'bf16'?"),
        ("autocast=fp32", "none of bf16, fp16"),
        ("checkpointing=perhaps", "neither true nor false"),
        ("targets=,", "names nothing"),
        ("targets=c_atn", "did you mean 'c_attn'?"),
        ("sequence=2048", "the model has 1,024 positions"),
        ("autocast=fp16", "fp16 over weights in bf16"),
    ],
)
def test_a_bad_word_is_told_with_what_would_be_right(word, said):
    with pytest.raises(InvalidArgs) as caught:
        read_training(GPT2, [word])
    assert said in str(caught.value)


def test_all_bad_words_are_told_together():
    with pytest.raises(InvalidArgs) as caught:
        read_training(GPT2, ["method=full", "rank=4", "targets=x", "batch=none", "batch=2", "what"])
    assert [fault.where for fault in caught.value.faults] == ["batch", "batch", "what", "rank", "targets"]


def test_a_kind_is_everything_but_how_much_at_a_time():
    small, large = (read_training(GPT2, [f"batch={batch}", f"sequence={batch * 10}"]) for batch in (1, 8))
    assert small.kind == large.kind
    assert small.kind != read_training(GPT2, ["checkpointing=true"]).kind
    assert "rank" not in read_training(GPT2, ["method=full"]).kind
