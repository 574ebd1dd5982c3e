"""Shared processes over transformers' own modules: members are as separate, and end as they do, on the fast path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.cookbooks.language.bundled import TinyShape, write_base
from stoker.cookbooks.language.kinds import Adapter
from stoker.cookbooks.language.schemas import read_training
from stoker.core.errors import BadInput, StageDiverged
from tests.later import imported_later
from tests.unit.cookbooks.language.shared.companions import Person, some_pairs

with imported_later():
    import torch

    from stoker.cookbooks.language.compute.math import PointwiseKernels
    from tests.unit.cookbooks.language.engine.general_bases import general_base
    from tests.unit.cookbooks.language.shared.test_shared_running import losses, same_bits, train

People = Callable[..., Person]
ALL: dict[str, Any] = {"targets": ("all-linear",), "steps": 4}


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return general_base(tmp_path_factory.mktemp("general") / "gpt2", "gpt2")


@pytest.fixture(scope="module")
def gemma2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return general_base(tmp_path_factory.mktemp("general") / "gemma2", "gemma2")


def test_members_learn_together_what_they_learn_alone_and_load_in_peft(person: People, gpt2: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    everybody: list[dict[str, Any]] = [
        {**ALL},
        {**ALL, "targets": ("*.attn.c_attn", "mlp.c_proj"), "rank": 2, "packing": True},
        {**ALL, "targets": ("transformer.h.1.mlp.c_fc",), "accumulate": 2, "dropout": 0.2, "clip": 0.05, "dora": True},
    ]
    together = [person(number, on=gpt2, **said) for number, said in enumerate(everybody)]
    train(*together)
    for number, said in enumerate(everybody):
        alone = person(number, world="alone", on=gpt2, **said)
        train(alone)
        assert losses(together[number]) == pytest.approx(losses(alone), rel=1e-5)
    assert "general path: its architecture gpt2 is none of llama, mistral, qwen2, qwen3" in together[0].log
    expected = [("c_attn", "c_fc", "c_proj"), ("attn.c_attn", "mlp.c_proj"), ("h.1.mlp.c_fc",)]
    for one, names in zip(together, expected, strict=True):
        loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(gpt2), one.out)
        modules = {name for name, module in loaded.named_modules() if hasattr(module, "lora_A")}
        assert modules == {f"base_model.model.{name}" for name in one.weights}
        assert all(name.endswith(names) for name in one.weights)


def test_a_member_whose_loss_is_no_number_leaves_the_others_as_they_are_to_the_bit(
    person: People, gemma2: Path
) -> None:
    healthy = [person(number, world="healthy", even=True, on=gemma2, **ALL) for number in range(3)]
    train(*healthy)
    beside = [
        person(number, even=True, on=gemma2, **ALL, **({"lr": 1e38, "schedule": "constant"} if number == 1 else {}))
        for number in range(3)
    ]
    train(*beside)
    assert isinstance(beside[1].ended, StageDiverged)
    assert same_bits(beside[0], healthy[0])
    assert same_bits(beside[2], healthy[2])


def test_a_cancelled_member_goes_on_later_as_if_nothing_had_been(person: People, gemma2: Path) -> None:
    said: dict[str, Any] = {**ALL, "dropout": 0.1, "steps": 6}
    whole, stopped = person(0, world="whole", on=gemma2, **said), person(0, on=gemma2, **said)
    train(whole)
    stopped.on_report = lambda report: setattr(stopped, "is_cancelled", report.get("step") == 3)
    train(stopped)
    stopped.out.rmdir()
    again = person(0, on=gemma2, **said)
    train(again)
    assert "resumed after update 3 of 6" in again.log
    assert same_bits(again, whole)


def test_both_paths_teach_the_same(person: People, tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", TinyShape(hidden=32, inner=48, heads=2, kv_heads=1))
    said: dict[str, Any] = {
        "accumulate": 2,
        "on": base,
        "targets": ("layers.1.self_attn.q_proj", "v_proj", "*.up_proj"),
    }
    fast, general = person(0, path="fast", **said), person(0, world="general", path="general", **said)
    train(fast)
    train(general)
    assert "fast path: its blocks are those of llama, compared by the logits of 2 of them" in fast.log
    assert "general path: path=general" in general.log
    assert losses(general) == pytest.approx(losses(fast), rel=1e-5)
    assert fast.weights.keys() == general.weights.keys()
    assert len(fast.weights) == 5
    for name, pair in fast.weights.items():
        for mine, theirs in zip(pair, general.weights[name], strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("method", ["dpo", "orpo"])
def test_pairs_teach_the_same_on_both_paths(base: Path, tmp_path: Path, method: str) -> None:
    said: dict[str, Any] = {"method": method, "beta": 0.3, "batch": 3, "lr": 3e-2, "lora_plus": 4.0}
    of_paths = {
        path: Person(tmp_path / path, base, 0, some_pairs(0), path=path, **said) for path in ("fast", "general")
    }
    for one in of_paths.values():
        train(one)
    fast, general = of_paths.values()
    assert losses(general) == pytest.approx(losses(fast), rel=1e-5)
    for name, pair in fast.weights.items():
        for mine, theirs in zip(pair, general.weights[name], strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-3, atol=1e-5)


def test_blocks_that_compute_something_else_are_refused_on_the_fast_path_alone(
    person: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PointwiseKernels, "gate", staticmethod(lambda opened, up: opened * up))
    refused = person(0, path="fast", **ALL)
    train(refused)
    assert isinstance(refused.ended, BadInput)
    assert "can't take the fast path: its logits differ from those of transformers by" in str(refused.ended)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"path": "fast"}, "can't take the fast path: its architecture gpt2 is none of llama"),
        ({"targets": ("q_proj", "c_fc")}, "targets: no matrix 'q_proj' in this gpt2 model"),
    ],
)
def test_what_a_module_does_not_have_is_told_with_what_it_has(
    person: People, gpt2: Path, said: dict[str, Any], words: str
) -> None:
    one = person(0, on=gpt2, **{**ALL, **said})
    train(one)
    assert isinstance(one.ended, BadInput)
    assert words in str(one.ended)
    assert one.ended.hint in {"path=general, or leave it out", "its matrices are c_attn, c_proj, c_fc"}


def test_texts_that_a_family_does_not_isolate_are_padded(
    person: People, gpt2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {**ALL, "keep": "last"}
    packed, padded = person(0, on=gpt2, packing=True, **said), person(0, world="padded", on=gpt2, **said)
    train(padded)
    monkeypatch.setattr("stoker.cookbooks.language.compute.general_base.takes_packed_rows", lambda _module: False)
    train(packed)
    assert isinstance(packed.ended, Adapter)
    note = "gpt2 does not keep texts of one row apart: one text per row, packing=false."
    assert note in packed.log
    training = read_training(packed.ended.path)
    assert (training["notes"], training["settings"]["packing"]) == ([note], False)
    assert same_bits(packed, padded)
