from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.cookbooks.language import bases
from stoker.cookbooks.language.bases import (
    read_base,
    read_weights,
    write_model,
)
from stoker.cookbooks.language.bundled import bundled_base
from stoker.cookbooks.language.schemas import best_eval, read_metadata, read_training
from stoker.core import jsontext
from stoker.core.errors import Cancelled, StageDiverged
from stoker.engine.code_identity import missing_of
from tests.later import imported_later
from tests.unit.cookbooks.language.walked_language import compiled, examples, run_node

with imported_later("torch", "transformers"):
    import torch
    from transformers import AutoModelForCausalLM

    from tests.unit.cookbooks.language.engine.general_bases import general_base


SMALL: dict[str, Any] = {"epochs": 2, "batch": 5, "lr": 3e-3, "max_seq_len": 64, "threads": 1}


class CutAtFive(list[dict[str, Any]]):
    """Events of a stage that is cancelled at its fifth update."""

    def append(self, event: dict[str, Any]) -> None:
        if event.get("step") == 5:
            raise Cancelled("enough")


class TermAt(list[dict[str, Any]]):
    """Events of a stage that gets a SIGTERM in the middle of an update."""

    def __init__(self, update: int) -> None:
        self.update = update

    def append(self, event: dict[str, Any]) -> None:
        if event.get("step") == self.update:
            os.kill(os.getpid(), signal.SIGTERM)


def asked_to_stop(plan: Any, folder: Path, given: Any, *, update: int) -> None:
    """Run a training that is asked to stop in the middle of an update, with its checkpoint in `kept`."""
    before = signal.signal(signal.SIGTERM, stop_at_once)
    try:
        with pytest.raises(Cancelled):
            run_node(plan, "train_full", folder / "cut", examples=given, said=TermAt(update), scratch=folder / "kept")
    finally:
        signal.signal(signal.SIGTERM, before)


def stop_at_once(*_: object) -> None:
    """Do what a stage's own handler of SIGTERM does."""
    raise Cancelled("enough")


def test_every_weight_learns_and_the_best_is_a_model_of_the_hubs_layout(tmp_path):
    said: list[dict[str, Any]] = []
    given = examples(tmp_path / "examples")
    plan = compiled("full", checkpoints=str(tmp_path / "kept"), label="mine", **SMALL)
    model = run_node(plan, "train_full", tmp_path, examples=given, said=said)
    training = read_training(model.path)
    evaluated = [point["eval_loss"] for point in training["curve"]["points"] if point["eval_loss"] is not None]
    assert training["curve"]["before"] is not None
    assert evaluated[-1] < training["curve"]["before"] - 1
    assert training["base"]["name"] == "tiny"
    steps = [event for event in said if "step" in event]
    assert (steps[-1]["step"], steps[-1]["of"]) == (8, 8)
    assert {"loss", "lr", "eval_loss", "tokens_per_s"} <= set(steps[-1]["metrics"])
    logged = [event["log"] for event in said if "log" in event]
    assert [line.partition(":")[0] for line in logged] == [f"update {number} of 8" for number in (1, 4, 8)]
    assert "eval_loss" in logged[-1]
    assert "tokens_per_s" not in logged[-1]
    base, made = read_base(bundled_base("tiny")), read_base(model.path)
    assert made.word != base.word
    assert made.files == base.files
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"best", "epoch-1", "epoch-2"}
    best = read_metadata(tmp_path / "kept" / "best")
    assert (best["mode"], best["label"], best["global_step"]) == ("full", "mine", training["curve"]["kept"])
    assert read_base(tmp_path / "kept" / "best").word == made.word


def test_a_training_that_was_interrupted_ends_with_the_same_bytes(tmp_path):
    given = examples(tmp_path / "examples")
    # Of updates so fast only the evaluated ones are sure to be told.
    plan = compiled("full", checkpoint_every=1, eval_every=5, **SMALL)
    whole = run_node(plan, "train_full", tmp_path / "whole", examples=given)
    said: list[dict[str, Any]] = []

    scratch = tmp_path / "scratch"
    with pytest.raises(Cancelled):
        run_node(plan, "train_full", tmp_path / "cut", examples=given, said=CutAtFive(), scratch=scratch)
    again = run_node(plan, "train_full", tmp_path / "again", examples=given, said=said, scratch=scratch)
    assert {"log": "resumed after update 4 of 8"} in said
    for name in ("model.safetensors", "training.json"):
        assert (again.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_a_training_that_is_asked_to_stop_leaves_a_checkpoint_of_its_last_update(tmp_path):
    given = examples(tmp_path / "examples")
    plan = compiled("full", checkpoint_every=100, eval_every=5, **SMALL)
    whole = run_node(plan, "train_full", tmp_path / "whole", examples=given)
    said: list[dict[str, Any]] = []
    asked_to_stop(plan, tmp_path, given, update=5)
    again = run_node(plan, "train_full", tmp_path / "again", examples=given, said=said, scratch=tmp_path / "kept")
    assert {"log": "resumed after update 5 of 8"} in said
    assert (again.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


def test_gradients_that_are_gathered_over_passes_are_those_of_one_pass(tmp_path):
    given = examples(tmp_path / "examples", count=24, held_out=4)
    losses = []
    for name, batch in (("one", {"batch": 20}), ("several", {"batch": 5, "accumulate": 4})):
        plan = compiled("full", **{**SMALL, "steps": 3, **batch})
        model = run_node(plan, "train_full", tmp_path / name, examples=given)
        losses.append([point["loss"] for point in read_training(model.path)["curve"]["points"]])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_loss_beyond_all_numbers_ends_the_training(tmp_path):
    given = examples(tmp_path / "examples")
    plan = compiled("full", **{**SMALL, "lr": 1e6, "weight_decay": 1e6, "warmup_percent": 0.0, "clip": None})
    with pytest.raises(StageDiverged, match="loss is"):
        run_node(plan, "train_full", tmp_path, examples=given)


def test_patience_ends_a_training_that_does_not_get_better(tmp_path):
    given = examples(tmp_path / "examples")
    plan = compiled("full", **{**SMALL, "lr": 1e-30, "epochs": 50, "patience": 2, "warmup_percent": 0.0})
    training = read_training(run_node(plan, "train_full", tmp_path, examples=given).path)
    assert training["curve"]["points"][-1]["step"] == 12
    assert training["notes"] == ["Stopped after update 12 of 200: 2 evaluations in a row without improvement."]
    assert training["curve"]["kept"] == 4


def test_a_training_that_is_asked_to_stop_where_its_patience_ends_does_not_go_on(tmp_path):
    given = examples(tmp_path / "examples")
    plan = compiled(
        "full", **{**SMALL, "lr": 1e-30, "epochs": 50, "patience": 2, "warmup_percent": 0.0, "keep": "last"}
    )
    whole = run_node(plan, "train_full", tmp_path / "whole", examples=given)
    asked_to_stop(plan, tmp_path, given, update=12)
    said: list[dict[str, Any]] = []
    again = run_node(plan, "train_full", tmp_path / "again", examples=given, said=said, scratch=tmp_path / "kept")
    assert {"log": "resumed after update 12 of 200"} in said
    assert read_training(again.path)["notes"] == read_training(whole.path)["notes"]
    assert (again.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


def test_a_large_model_is_written_in_several_files_with_an_index(tmp_path, monkeypatch):
    monkeypatch.setattr(bases, "SHARD_BYTES", 100_000)
    base = read_base(bundled_base("tiny"))
    weights = read_weights(base)
    write_model(tmp_path, base, weights, torch.bfloat16)
    made = read_base(tmp_path)
    assert len(made.weight_files) > 1
    assert made.config["torch_dtype"] == "bfloat16"
    again = read_weights(made)
    assert all(torch.equal(again[name], one.to(torch.bfloat16)) for name, one in weights.items())


DROPS: dict[str, Any] = {"resid_pdrop": 0.1, "attn_pdrop": 0.1, "embd_pdrop": 0.1}


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "qwen2_moe"])
def test_any_family_trains_and_its_result_is_one_of_transformers(tmp_path, family):
    base = general_base(tmp_path / "base", family)
    plan = compiled("full", base=str(base), samples=["3+4="], sample_tokens=3, **SMALL)
    model = run_node(plan, "train_full", tmp_path, examples=examples(tmp_path / "examples"))
    training = read_training(model.path)
    before, best = training["curve"]["before"], best_eval(training)
    assert before is not None
    assert best is not None
    assert before > best + 0.5
    (sampled,) = run_node(plan, "sample_model", tmp_path, model=model).load()
    made, given = (AutoModelForCausalLM.from_pretrained(one) for one in (model.path, base))
    assert made.state_dict().keys() == given.state_dict().keys()
    # A tied matrix is written once.
    assert read_base(model.path).shape.parameters == read_base(base).shape.parameters
    tokens = torch.tensor([list(b"3+4=")])
    with torch.no_grad():
        ends = made.generate(tokens, max_new_tokens=3, do_sample=False, eos_token_id=256, pad_token_id=259)
    assert sampled["completion"].encode() == bytes(one for one in ends[0, 4:].tolist() if one < 256)


def test_dropout_of_a_base_is_drawn_again_alike(tmp_path):
    base = general_base(tmp_path / "base", "gpt2")
    config = base / "config.json"
    config.write_text(jsontext.dumps({**jsontext.loads(config.read_text()), **DROPS}))
    given, scratch = examples(tmp_path / "examples"), tmp_path / "scratch"
    plan = compiled("full", base=str(base), checkpoint_every=1, eval_every=5, **SMALL)
    whole = run_node(plan, "train_full", tmp_path / "whole", examples=given)
    with pytest.raises(Cancelled):
        run_node(plan, "train_full", tmp_path / "cut", examples=given, said=CutAtFive(), scratch=scratch)
    again = run_node(plan, "train_full", tmp_path / "again", examples=given, scratch=scratch)
    assert (again.path / "training.json").read_bytes() == (whole.path / "training.json").read_bytes()
    assert (again.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


def test_texts_get_rows_of_their_own_where_a_family_mixes_those_of_one_row(tmp_path):
    base = general_base(tmp_path / "base", "bloom")
    plan = compiled("full", base=str(base), packing=True, **{**SMALL, "steps": 2})
    training = read_training(run_node(plan, "train_full", tmp_path, examples=examples(tmp_path / "examples")).path)
    assert training["notes"] == ["bloom does not keep texts of one row apart: one text per row, packing=false."]
    assert training["settings"]["packing"] is False


def test_moments_in_eight_bits_need_a_library_that_is_missed_before_anything_runs(monkeypatch):
    monkeypatch.setattr("stoker.engine.code_identity.version_of", lambda name: "" if name == "bitsandbytes" else "1")
    monkeypatch.setattr("stoker.engine.code_identity._ABSENT", "")
    missing = missing_of([compiled("full", optimizer="adamw8bit", **SMALL).node("train_full").stage])
    assert missing is not None
    assert str(missing) == "language/train_full_8bit needs bitsandbytes: not installed"
    assert missing.hint == f"{sys.executable} -m pip install 'stoker[bitsandbytes]'"
    assert missing_of([compiled("full", optimizer="adafactor", **SMALL).node("train_full").stage]) is None


def test_a_family_that_is_not_estimated_block_by_block_asks_for_its_states(tmp_path):
    for family in ("gpt2", "qwen2_moe", "phi"):
        base = general_base(tmp_path / family, family)
        for gpus in (0, 1):
            plan = compiled("full", base=str(base), gpus=gpus, max_seq_len=64, samples=["x"])
            assert plan.node("train_full").asks is not None
            assert plan.node("sample_model").asks is not None
