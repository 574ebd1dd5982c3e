"""Bases that bitsandbytes quantised on disk, and bases in eight bits, against bitsandbytes itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.cookbooks.language.bases import read_base
from stoker.cookbooks.language.bundled import Family, TinyShape, write_base
from stoker.cookbooks.language.saved_quantisation import has_wide_scales
from stoker.core.errors import BadInput, InvalidArgs
from stoker.devices.estimate.shared_base import nf4_bytes
from tests.later import imported_later
from tests.unit.cookbooks.language.walked_language import compiled

bitsandbytes = pytest.importorskip("bitsandbytes")

with imported_later():
    import torch
    from bitsandbytes import functional
    from safetensors.torch import load_file, save_file

    from stoker.cookbooks.language.compute.base_weights import QuantisedLayers, load_base
    from stoker.cookbooks.language.compute.int8 import dequantise_int8, quantise_int8
    from stoker.cookbooks.language.compute.slots import Slots
    from tests.unit.cookbooks.language.engine.bitsandbytes_bases import by_bitsandbytes, configure, saved

TOKENS = [[5, 80, 13, 200, 7, 7, 91]]


def made_base(folder: Path, family: Family) -> Path:
    """Write a base whose rows are whole blocks: where one spans rows, bitsandbytes computes wrongly on a CPU."""
    return write_base(folder, TinyShape(family=family, hidden=64, inner=192))


@pytest.mark.parametrize(
    ("family", "how"),
    [
        ("llama", {}),
        ("qwen2", {"double": False}),
        ("llama", {"skipped": ("0.mlp.down_proj.weight",)}),
        ("qwen3", {"kind": "int8"}),
    ],
)
def test_a_saved_base_is_read_bit_for_bit_as_bitsandbytes_reads_it(family: Family, how: dict[str, Any], tmp_path: Path):
    folder = saved(made_base(tmp_path / "base", family), tmp_path / "saved", **how)
    assert read_base(folder).quantised == how.get("kind", "nf4")
    base, wanted = load_base(folder), by_bitsandbytes(folder)
    assert isinstance(base.layers, QuantisedLayers)
    for number in range(len(base.layers)):
        layer, at = base.layers[number], f"model.layers.{number}"
        for found, names in (
            (layer.qkv, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
            (layer.o, ("self_attn.o_proj",)),
            (layer.gate_up, ("mlp.gate_proj", "mlp.up_proj")),
            (layer.down, ("mlp.down_proj",)),
        ):
            assert torch.equal(found, torch.cat([wanted[f"{at}.{name}.weight"].float() for name in names]))


@pytest.mark.parametrize("double", [False, True])
def test_magnitudes_are_estimated_as_they_are_saved(tmp_path: Path, *, double: bool) -> None:
    made = made_base(tmp_path / "base", "llama")
    folder = saved(made, tmp_path / "saved", double=double)
    whole, four = load_base(made), load_base(folder)
    layers, linears = whole.shape.layers, whole.shape.model.linears
    block = sum(one.inputs * one.outputs for one in linears)
    is_wide = has_wide_scales(read_base(folder).config)
    exact = (layers - 1) * block * 4 - nf4_bytes(layers * block, has_wide_scales=is_wide)
    assert is_wide is not double
    # Each matrix has a mean of its own, and a last block of scales that is not full.
    assert 0 <= exact - (whole.size_bytes - four.size_bytes) <= 8 * layers * len(linears)


def test_a_saved_base_computes_what_transformers_computes_with_bitsandbytes(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = saved(made_base(tmp_path / "base", "llama"), tmp_path / "saved")
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).dequantize()
    with torch.no_grad():
        logits = theirs(torch.tensor(TOKENS)).logits[:, -1].float()
    ours = Slots(load_base(folder), count=1, rank=1, targets=("q_proj",)).logits(0, torch.tensor(TOKENS))
    assert (ours - logits).abs().max() <= 1e-4


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_eight_bits_are_those_of_bitsandbytes_bit_for_bit(dtype: str) -> None:
    weight = torch.randn(70, 64, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    ours = quantise_int8(weight)
    codes, sizes, _ = functional.int8_vectorwise_quant(weight.clone())
    assert torch.equal(ours.codes, codes)
    assert torch.equal(ours.sizes, sizes)
    found = torch.empty(weight.shape)
    dequantise_int8(ours, found)
    assert torch.equal(found, functional.int8_vectorwise_dequant(codes, sizes))
    zeros = torch.zeros(2, 64)
    dequantise_int8(quantise_int8(zeros), zeros)
    assert not zeros.any()


def test_a_base_in_eight_bits_is_a_quarter_and_computes_nearly_the_same(tmp_path: Path) -> None:
    folder = made_base(tmp_path / "base", "llama")
    eight, whole = load_base(folder, base_dtype="int8"), load_base(folder)
    linears, layers = whole.shape.model.linears, whole.shape.layers
    block = sum(one.inputs * one.outputs for one in linears)
    rows = sum(one.outputs for one in linears)
    assert whole.size_bytes - eight.size_bytes == layers * (3 * block - 4 * rows) - 4 * block
    tokens = torch.tensor(TOKENS)
    narrow, wide = (Slots(one, count=1, rank=1, targets=("q_proj",)).logits(0, tokens) for one in (eight, whole))
    assert 0 < (narrow - wide).abs().max() <= 0.1


OTHERS: list[tuple[object, str]] = [
    ({"quant_method": "gptq", "bits": 4}, "quantised by gptq"),
    ({"quant_method": "awq"}, "quantised by awq"),
    ({"quant_method": "fp8"}, "quantised by fp8"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quantised by bitsandbytes fp4"),
    ("x" * 1000, "quantised by x"),
]


@pytest.mark.parametrize(("said", "words"), OTHERS)
def test_another_format_is_refused_before_anything_runs_with_what_to_do(
    said: object, words: str, tmp_path: Path
) -> None:
    folder = made_base(tmp_path / "base", "llama")
    configure(folder, said)
    with pytest.raises(InvalidArgs, match=words) as refused:
        compiled("lora", base=str(folder))
    assert "use the model in 16 bits that it was made from" in str(refused.value)


def test_what_does_not_go_with_a_quantised_base_is_refused(tmp_path: Path) -> None:
    folder = saved(made_base(tmp_path / "base", "llama"), tmp_path / "saved")
    for name, given, words in (
        ("lora", {"base_dtype": "int8"}, "int8, but saved is nf4 on disk"),
        ("lora", {"path": "general"}, "saved is nf4 on disk: fast path only"),
        ("full", {}, r"saved is quantised on disk \(nf4\)"),
    ):
        with pytest.raises(InvalidArgs, match=words):
            compiled(name, base=str(folder), **given)
    plan = compiled("lora", base=str(folder), samples=["1+1="])
    assert plan.node("train_lora").args["base_dtype"] == "auto"


def damage_state(tensors: dict[str, Any], name: str, **said: object) -> None:
    state = json.loads(tensors[name].numpy().tobytes()) | said
    tensors[name] = torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)


NAME = "model.layers.1.mlp.up_proj.weight"
STATE_OF = f"{NAME}.quant_state.bitsandbytes__nf4"
DAMAGES: dict[str, Any] = {
    "has blocks of 128 and 256": lambda tensors: damage_state(
        tensors, f"{NAME}.quant_state.bitsandbytes__nf4", blocksize=128
    ),
    "nf4 can't be read": lambda tensors: tensors.update(
        {f"{NAME}.quant_state.bitsandbytes__nf4": torch.zeros(9, dtype=torch.uint8)}
    ),
    "__nf4 can't be read": lambda tensors: tensors.update(
        {STATE_OF: torch.frombuffer(bytearray(b"[" * 60_000), dtype=torch.uint8)}
    ),
    "has blocks of x+…": lambda tensors: damage_state(tensors, STATE_OF, blocksize="x" * 5_000),
    "was .32, 384. before": lambda tensors: damage_state(tensors, STATE_OF, shape=[32, 384]),
    "nf4 can't be read$": lambda tensors: damage_state(tensors, STATE_OF, nested_offset="1.0"),
    r"up_proj.weight.absmax of .* numbers \(U8\)": lambda tensors: tensors.update(
        {f"{NAME}.absmax": tensors[f"{NAME}.absmax"].float()}
    ),
    "it has no .*nested_absmax": lambda tensors: tensors.pop(f"{NAME}.nested_absmax"),
    "has 32 weights; config.json states": lambda tensors: tensors.update({NAME: tensors[NAME][:16].clone()}),
    "it has no": lambda tensors: tensors.pop(NAME),
}


@pytest.mark.parametrize("words", DAMAGES)
def test_parts_that_do_not_fit_are_refused_before_anything_is_loaded(words: str, tmp_path: Path) -> None:
    folder = saved(made_base(tmp_path / "base", "llama"), tmp_path / "saved")
    tensors = load_file(folder / "model.safetensors")
    DAMAGES[words](tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(BadInput, match=words):
        read_base(folder)


def test_a_matrix_of_another_precision_or_shape_is_refused(tmp_path: Path) -> None:
    folder = saved(made_base(tmp_path / "base", "llama"), tmp_path / "saved", kind="int8")
    tensors = load_file(folder / "model.safetensors")
    tensors[NAME] = tensors[NAME].reshape(1, -1)
    scales = tensors.pop(NAME.removesuffix("weight") + "SCB")
    tensors[STATE_OF] = scales.to(torch.uint8)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(BadInput, match=r"up_proj.weight is \[1, .*it has no .*up_proj.SCB"):
        read_base(folder)


def test_a_table_of_other_values_is_refused(tmp_path: Path) -> None:
    folder = saved(made_base(tmp_path / "base", "llama"), tmp_path / "saved")
    tensors = load_file(folder / "model.safetensors")
    tensors[f"{NAME}.quant_map"] = tensors[f"{NAME}.quant_map"].flip(0)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(BadInput, match="quant_map has other values than those of NF4"):
        load_base(folder)
