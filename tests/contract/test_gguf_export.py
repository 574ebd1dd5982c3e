"""Exported adapters and models are what llama.cpp understands: it computes what PEFT and transformers compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.cookbooks.language.bundled import TinyShape, write_base
from stoker.cookbooks.language.gguf_model import _SPLITS
from stoker.cookbooks.language.kinds import GGUF_ADAPTER, GGUF_MODEL
from stoker.cookbooks.language.peft import write_adapter
from stoker.cookbooks.language.tokens import open_tokenizer
from stoker.core.errors import BadInput, InvalidArgs
from stoker.store.weight_files.gguf import read_gguf_header
from tests.contract.test_fixture_runtimes import IDS, TEXTS, by_llama
from tests.later import imported_later
from tests.unit.cookbooks.language.walked_language import compiled, run_node

with imported_later("torch", "peft"):
    import torch

    from stoker.cookbooks.language.compute.banks import AdapterSpec, fresh_adapter
    from stoker.cookbooks.language.compute.base_weights import load_base
    from stoker.cookbooks.language.compute.passes import AdapterSlotRows
    from stoker.cookbooks.language.compute.slots import Slots

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def trained(base: Path, folder: Path, **said: Any) -> Path:
    """An adapter after some updates, in PEFT's layout."""
    held = load_base(base)
    spec = AdapterSpec(**{"rank": 4, "alpha": 8.0, "targets": ALL, **said})
    slots = Slots(held, count=1, rank=spec.rank, targets=spec.targets, dora=spec.dora, whole=spec.whole)
    slots.load(0, fresh_adapter(held.shape, spec))
    tokens = torch.tensor(IDS)[None, None]
    labels = torch.cat([tokens[..., 1:], torch.full((1, 1, 1), -100)], dim=2)
    rows = AdapterSlotRows(slots=(0,), tokens=tokens, labels=labels, denominators=(len(IDS) - 1.0,))
    for _ in range(6):
        slots.step(rows, update=[True], rates=[2e-2])
    folder.mkdir()
    write_adapter(folder, spec, slots.weights(0), base_name=str(base))
    return folder


def by_peft(base: Path, adapter: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits with an adapter and without."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter)
    with torch.no_grad(), model.disable_adapter():
        without = model(torch.tensor([IDS])).logits[0].numpy()
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].numpy(), without


def exported(base: Path, adapter: Path, folder: Path, **said: str) -> Path:
    folder.mkdir()
    made = run_node(compiled("export", base=str(base), adapter=str(adapter), **said), "export_adapter", folder)
    return Path(made.path) / GGUF_ADAPTER


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


PATTERNS = {{"llama-bpe": "llama"}.get(name, name): pattern for pattern, name in _SPLITS.items()}
MERGES = [["1", "2"], ["12", "3"], ["Ġ", "d"], ["o", "n"]]


def split(base: Path, pattern: str) -> None:
    """Give a base a tokenizer that splits texts by a pattern, and merges letters that stay together."""
    said = json.loads((base / "tokenizer.json").read_text())
    by_bytes = {**said["pre_tokenizer"], "use_regex": False}
    by_pattern = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    said["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [by_pattern, by_bytes]}
    said["model"]["merges"] = MERGES
    said["model"]["vocab"] |= {left + right: 260 + number for number, (left, right) in enumerate(MERGES)}
    (base / "tokenizer.json").write_text(json.dumps(said))


def test_llama_cpp_computes_with_exported_models_and_adapters_what_peft_computes(tmp_path: Path) -> None:
    linear = {"rope_type": "linear", "factor": 2.0}
    cases: dict[str, tuple[TinyShape, dict[str, Any], str, dict[str, Any], str]] = {
        "llama": (TinyShape(is_tied=True), {"rope_scaling": LLAMA3}, "float32", {}, "float32"),
        "mistral": (
            TinyShape(family="mistral"), {"sliding_window": None}, "float32",
            {"targets": ("q_proj", "k_proj"), "rank": 3}, "float16",
        ),
        "qwen2": (TinyShape(family="qwen2"), {}, "float32", {"rslora": True}, "float32"),
        "qwen3": (
            TinyShape(family="qwen3"), {"rope_scaling": linear}, "float32", {"targets": ("down_proj",)}, "bfloat16"
        ),
        "narrow": (TinyShape(family="qwen3"), {}, "float16", {}, "float32"),
    }  # fmt: skip
    models, adapters, references = [], [], []
    for name, (shape, said, dtype, adapted, narrow) in cases.items():
        base = write_base(tmp_path / name, shape)
        config = json.loads((base / "config.json").read_text()) | said
        (base / "config.json").write_text(json.dumps(config))
        if name in PATTERNS:
            split(base, PATTERNS[name])
        adapter = trained(base, tmp_path / f"{name}-adapter", **adapted)
        (tmp_path / f"{name}-model").mkdir()
        made = run_node(compiled("export", base=str(base), dtype=dtype), "export_model", tmp_path / f"{name}-model")
        models.append(str(Path(made.path) / GGUF_MODEL))
        adapters.append(str(exported(base, adapter, tmp_path / f"{name}-out", dtype=narrow)))
        references.append(by_peft(base, adapter))
    found, tokens = by_llama(models, tmp_path, adapters)
    limits = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 5e-2}
    for (name, (_, _, dtype, _, narrow)), rows, (reference, without) in zip(
        cases.items(), found, references, strict=True
    ):
        moved = np.abs(without - reference).max()
        assert moved > 0.3, (name, moved)
        assert np.abs(rows - reference).max() <= max(limits[dtype], limits[narrow]) * moved, name
    for name, found_tokens in zip(cases, tokens, strict=True):
        tokenizer = open_tokenizer(tmp_path / name)
        assert found_tokens == [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS], name
    assert tokens[0] != tokens[2] != tokens[1]


def test_a_model_that_llama_cpp_would_compute_otherwise_is_refused_before_anything_runs(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", TinyShape(family="mistral"))
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"sliding_window": 8, "rope_scaling": {**YARN}}))
    tokenizer = json.loads((base / "tokenizer.json").read_text())
    tokenizer["model"] |= {"merges": [["a", "b"]], "vocab": {**tokenizer["model"]["vocab"], "ab": 260}}
    (base / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(InvalidArgs) as refused:
        compiled("export", base=str(base))
    assert [one.message for one in refused.value.faults] == [
        "rope_type yarn can't be exported",
        "attention windows can't be exported",
        "its tokenizer can't be exported",
    ]


def test_the_same_adapter_gives_the_same_file_with_the_scale_of_llama_cpp(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", TinyShape())
    adapter = trained(base, tmp_path / "adapter", rslora=True, targets=("v_proj",))
    first, second = (exported(base, adapter, tmp_path / name) for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    header = read_gguf_header(first)
    assert header.values["adapter.lora.alpha"] == 16.0
    assert set(header.tensors) == {
        f"blk.{layer}.attn_v.weight.lora_{side}" for layer in range(load_base(base).shape.layers) for side in "ab"
    }


def test_an_adapter_that_a_narrow_file_cant_hold_is_refused(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", TinyShape(family="qwen2"))
    held = load_base(base)
    adapter = fresh_adapter(held.shape, AdapterSpec(rank=1, alpha=1.0, targets=("o_proj",)))
    adapter.weights["model.layers.0.self_attn.o_proj"][1][0] = 1e6
    (tmp_path / "adapter").mkdir()
    write_adapter(tmp_path / "adapter", adapter.spec, adapter.weights, base_name="base")
    with pytest.raises(BadInput, match=r"lora_B of model\.layers\.0\.self_attn\.o_proj is not finite in float16"):
        exported(base, tmp_path / "adapter", tmp_path / "out", dtype="float16")


def test_magnitudes_and_copies_of_modules_are_refused_before_anything_runs(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", TinyShape())
    adapter = trained(base, tmp_path / "adapter", dora=True, whole=("lm_head",))
    with pytest.raises(InvalidArgs) as refused:
        compiled("export", base=str(base), adapter=str(adapter))
    assert [one.message for one in refused.value.faults] == [
        "llama.cpp's adapters have no magnitudes (DoRA)",
        "llama.cpp's adapters have no copy of lm_head",
    ]
    assert {one.hint for one in refused.value.faults} == {"merge it (language/merge), and export the model"}


def test_an_adapter_over_another_base_is_refused_before_anything_runs(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", TinyShape())
    adapter = trained(base, tmp_path / "adapter", targets=("q_proj",))
    with pytest.raises(InvalidArgs, match="its matrices for"):
        compiled("export", base=str(write_base(tmp_path / "other", TinyShape(hidden=32))), adapter=str(adapter))
