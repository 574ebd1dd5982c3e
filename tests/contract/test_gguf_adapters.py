"""Exported adapters are what llama.cpp understands: it loads every file, and computes what PEFT computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.cookbooks.language.bundled import TinyShape, write_base
from stoker.cookbooks.language.kinds import GGUF_ADAPTER
from stoker.cookbooks.language.peft import write_adapter
from stoker.core.errors import BadInput, InvalidArgs
from stoker.crossval.fixture_folder import SAFETENSORS, write_fixture
from stoker.crossval.fixture_models import FixtureSpec
from stoker.store.weight_files.gguf import read_gguf_header
from stoker.store.weight_files.tensor_layouts import Architecture
from tests.contract.test_fixture_runtimes import IDS, by_llama
from tests.later import imported_later
from tests.unit.cookbooks.language.walked_language import compiled, run_node

with imported_later("torch", "peft"):
    import torch

    from stoker.cookbooks.language.compute.banks import AdapterSpec, fresh_adapter
    from stoker.cookbooks.language.compute.base_weights import load_base
    from stoker.cookbooks.language.compute.passes import AdapterSlotRows
    from stoker.cookbooks.language.compute.slots import Slots

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def fixture(folder: Path, arch: Architecture) -> Path:
    write_fixture(str(folder), FixtureSpec(size="tiny", arch=arch), (SAFETENSORS, "f32"), now_s=0.0)
    return folder


def trained(base: Path, folder: Path, **said: Any) -> Path:
    """An adapter after some updates, in PEFT's layout."""
    held = load_base(base)
    spec = AdapterSpec(**{"rank": 4, "alpha": 8.0, "targets": ALL, **said})
    slots = Slots(held, count=1, rank=spec.rank, targets=spec.targets)
    slots.load(0, fresh_adapter(held.shape, spec))
    tokens = torch.tensor(IDS)[None, None]
    labels = torch.cat([tokens[..., 1:], torch.full((1, 1, 1), -100)], dim=2)
    rows = AdapterSlotRows(slots=(0,), tokens=tokens, labels=labels, denominators=(len(IDS) - 1.0,))
    for _ in range(6):
        slots.step(rows, update=[True], rates=[2e-2])
    folder.mkdir()
    write_adapter(folder, spec, slots.weights(0), base_name=str(base))
    return folder


def by_peft(base: Path, adapter: Path) -> np.ndarray:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter)
    with torch.no_grad():
        found: np.ndarray = model(torch.tensor([IDS])).logits[0].numpy()
    return found


def exported(base: Path, adapter: Path, folder: Path, **said: str) -> Path:
    folder.mkdir()
    made = run_node(compiled("export", base=str(base), adapter=str(adapter), **said), "export_adapter", folder)
    return Path(made.path) / GGUF_ADAPTER


def test_llama_cpp_computes_with_an_exported_adapter_what_peft_computes(tmp_path: Path) -> None:
    cases: list[tuple[Architecture, str, dict[str, Any]]] = [
        ("llama", "float32", {}),
        ("qwen2", "float32", {"rslora": True}),
        ("llama", "float16", {"targets": ("q_proj", "k_proj"), "rank": 3}),
        ("qwen2", "bfloat16", {"targets": ("down_proj",)}),
    ]
    bases = {arch: fixture(tmp_path / arch, arch) for arch, _, _ in cases}
    models, files, references = [], [], []
    for number, (arch, dtype, said) in enumerate(cases):
        adapter = trained(bases[arch], tmp_path / f"adapter-{number}", **said)
        models.append(str(bases[arch] / "model-f32.gguf"))
        files.append(str(exported(bases[arch], adapter, tmp_path / f"out-{number}", dtype=dtype)))
        references.append(by_peft(bases[arch], adapter))
    without = [str(base / "model-f32.gguf") for base in bases.values()]
    found, _ = by_llama([*models, *without], tmp_path, [*files, *[""] * len(without)])
    plain = dict(zip(bases, found[len(cases) :], strict=True))
    for (arch, dtype, _), rows, reference in zip(cases, found, references, strict=False):
        moved = np.abs(plain[arch] - reference).max()
        assert moved > 0.3, (arch, dtype, moved)
        assert np.abs(rows - reference).max() <= moved * {"float32": 1e-4, "float16": 5e-3, "bfloat16": 5e-2}[dtype]


def test_the_same_adapter_gives_the_same_file_with_the_scale_of_llama_cpp(tmp_path: Path) -> None:
    base = fixture(tmp_path / "base", "llama")
    adapter = trained(base, tmp_path / "adapter", rslora=True, targets=("v_proj",))
    first, second = (exported(base, adapter, tmp_path / name) for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    header = read_gguf_header(first)
    assert header.values["adapter.lora.alpha"] == 16.0
    assert set(header.tensors) == {
        f"blk.{layer}.attn_v.weight.lora_{side}" for layer in range(load_base(base).shape.layers) for side in "ab"
    }


def test_an_adapter_that_a_narrow_file_cant_hold_is_refused(tmp_path: Path) -> None:
    base = fixture(tmp_path / "base", "qwen2")
    held = load_base(base)
    adapter = fresh_adapter(held.shape, AdapterSpec(rank=1, alpha=1.0, targets=("o_proj",)))
    adapter.weights["model.layers.0.self_attn.o_proj"][1][0] = 1e6
    (tmp_path / "adapter").mkdir()
    write_adapter(tmp_path / "adapter", adapter.spec, adapter.weights, base_name="base")
    with pytest.raises(BadInput, match=r"lora_B of model\.layers\.0\.self_attn\.o_proj is not finite in float16"):
        exported(base, tmp_path / "adapter", tmp_path / "out", dtype="float16")


def test_an_adapter_over_another_base_is_refused_before_anything_runs(tmp_path: Path) -> None:
    base = fixture(tmp_path / "base", "llama")
    adapter = trained(base, tmp_path / "adapter", targets=("q_proj",))
    with pytest.raises(InvalidArgs, match="its matrices for"):
        compiled("export", base=str(write_base(tmp_path / "other", TinyShape(hidden=32))), adapter=str(adapter))
