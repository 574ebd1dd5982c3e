"""Models compared by their files: every fault that is in a file is found in the tensor that it was put into."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from stoker.core.errors import BadInput, Damaged, LocalFile, StokerError
from stoker.crossval.fixture_folder import SAFETENSORS, write_fixture
from stoker.crossval.fixture_models import FixtureSpec
from stoker.crossval.model_files import compare_settings, coverage_faults, open_model
from stoker.crossval.tensor_files import BLOCK_BYTES, TensorComparison, compare_models, find_not_finite
from stoker.crossval.tensor_values import read_values
from stoker.store.weight_files.tensor_layouts import ARCHITECTURES
from tests.fakes.broken_models import FAULTS, Broken, Fault, break_model, tensors_at_end

PAIRS = [(fault, arch) for fault in FAULTS.values() for arch in fault.archs]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    for arch in ARCHITECTURES:
        spec = FixtureSpec(size="tiny", arch=arch)
        write_fixture(str(folder / arch), spec, (SAFETENSORS, "f32", "f16", "q8_0"), now_s=0.0)
    return folder


def different(candidate: Path, reference: Path) -> dict[str, TensorComparison]:
    compared = compare_models(open_model(candidate), open_model(reference))
    return {one.reference_name: one for one in compared if not one.is_same}


@pytest.mark.parametrize("kind", [SAFETENSORS, "f32", "q8_0"])
@pytest.mark.parametrize(("fault", "arch"), PAIRS, ids=lambda one: getattr(one, "name", one))
def test_a_fault_in_a_file_is_found_where_it_is(tmp_path, whole, fault, arch, kind):
    source = whole / arch if kind == SAFETENSORS else whole / arch / f"model-{kind}.gguf"
    target = tmp_path / ("model" if kind == SAFETENSORS else "model.gguf")
    broken = break_model(source, target, fault)
    if fault.name == "truncated":
        with pytest.raises(Damaged, match="is damaged: it has "):
            open_model(broken)
        return
    # The other format states where: a pair of one format alone would not show that both are wrong.
    reference = whole / arch / "model-f16.gguf" if kind == SAFETENSORS else whole / arch
    faults = different(broken, reference)
    if not fault.changes_files:
        assert not faults
        assert [one.name for one in compare_settings(open_model(broken), open_model(reference))] == ["rope.freq_base"]
        return
    assert {_place(name) for name in faults} == _places(fault, broken)
    is_number_wrong = fault.name in ("not a number", "infinite")
    assert len(list(find_not_finite(open_model(broken)))) == is_number_wrong


def _places(fault: Fault, path: Path) -> set[str]:
    if fault.place == "end":
        return {_place(name) for name in tensors_at_end(path, 4096)}
    if fault.name == "layers swapped" or fault.place == "every layer":
        return {"layer 0", "layer 1"}
    return {"layer 1" if fault.place == "load" else fault.place}


def _place(name: str) -> str:
    for layer in "01":
        if f"blk.{layer}." in name or f"layers.{layer}." in name or f".h.{layer}." in name:
            return f"layer {layer}"
    tables = ("token_embd", "embed_tokens", "position_embd", "wte", "wpe")
    return "embedding" if any(word in name for word in tables) else "norm" if "norm" in name else "head"


def test_one_weight_is_named_with_its_place_and_its_size(tmp_path, whole):
    broken = break_model(whole / "llama", tmp_path / "model", FAULTS["weight + 0.001"])
    [one] = different(broken, whole / "llama").values()
    assert (one.name, one.different, one.first) == ("model.layers.1.mlp.up_proj.weight", 1, (3, 7))
    assert one.max_abs == pytest.approx(0.001, rel=1e-3)
    assert 0 < one.nmse < 1e-6
    assert one.text == "1 of 8,192 values differ, the first at [3, 7]"


def test_a_tensor_that_is_missing_is_named_by_both_checks(tmp_path, whole):
    broken = break_model(whole / "qwen2", tmp_path / "model", FAULTS["q bias missing"])
    name = "model.layers.1.self_attn.q_proj.bias"
    assert different(broken, whole / "qwen2")[name].outcome == "missing"
    assert different(broken, whole / "qwen2" / "model-f16.gguf")["blk.1.attn_q.bias"].outcome == "missing"
    assert list(coverage_faults(open_model(broken))) == [f"it lacks {name}"]
    [extra] = [one for one in compare_models(open_model(whole / "qwen2"), open_model(broken)) if not one.is_same]
    assert (extra.name, extra.outcome) == (name, "extra")


def test_a_tensor_that_the_architecture_does_not_have_is_named(tmp_path, whole):
    shutil.copytree(whole / "qwen2", tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    [fault] = coverage_faults(open_model(tmp_path / "model"))
    assert fault.startswith("it has, and its architecture has not, model.layers.0.self_attn.k_proj.bias, ")


def test_a_tied_head_is_the_embedding(tmp_path, whole):
    shutil.copytree(whole / "llama", tmp_path / "model")
    Broken(tmp_path / "model").drop("output.weight")
    model = open_model(tmp_path / "model")
    assert model.missing() == ()
    compared = {
        one.reference_name: one.outcome for one in compare_models(open_model(whole / "llama/model-f32.gguf"), model)
    }
    # Its output matrix is not the embedding.
    assert compared.pop("model.embed_tokens.weight") == "different"
    assert set(compared.values()) == {"equal", "same"}


def test_blocks_are_compared_as_bytes_and_values_are_read_of_those_that_differ(tmp_path, monkeypatch):
    count = 1_000_000
    values = np.arange(count, dtype="<f4").reshape(1000, 1000)
    for name in ("one", "two"):
        _write(tmp_path / f"{name}.safetensors", {"a": values})
        values = values.copy()
        values[500, 5] = -1.0
    seen: list[int] = []

    def read(data: bytearray, dtype: str) -> np.ndarray:
        seen.append(len(data))
        return read_values(data, dtype)

    monkeypatch.setattr("stoker.crossval.tensor_files.read_values", read)
    bytes_read: list[int] = []
    [one] = compare_models(
        open_model(tmp_path / "two.safetensors"), open_model(tmp_path / "one.safetensors"), on_bytes=bytes_read.append
    )
    assert (one.outcome, one.different, one.first, one.max_abs) == ("different", 1, (500, 5), 500_006.0)
    assert seen == [BLOCK_BYTES] * 2
    assert sum(bytes_read) == 4 * count


@pytest.mark.parametrize(
    ("one", "two", "outcome"),
    [
        (np.zeros(3, "<f4"), np.zeros(4, "<f4"), "shape"),
        (np.array([0.0, 1.0], "<f4"), np.array([-0.0, 1.0], "<f4"), "equal"),
        (np.array([0.5, 1.0], "<f4"), np.array([0.5, 1.0], "<f2"), "equal"),
        (np.array([np.nan], "<f4"), np.array([np.nan], "<f2"), "equal"),
        (np.array([np.nan], "<f4"), np.array([1.0], "<f4"), "different"),
        (np.array([np.inf], "<f4"), np.array([-np.inf], "<f4"), "different"),
        (np.array([1, 2], "<i8"), np.array([1, 3], "<i8"), "different"),
        (np.array([True, False]), np.array([True, True]), "different"),
        (np.zeros((0, 4), "<f4"), np.zeros((0, 4), "<f4"), "same"),
        (np.float32(1.0).reshape(()), np.float32(1.0).reshape(()), "same"),
    ],
)
def test_values_of_all_kinds_are_compared(tmp_path, one, two, outcome):
    _write(tmp_path / "one.safetensors", {"a": one})
    _write(tmp_path / "two.safetensors", {"a": two})
    [found] = compare_models(open_model(tmp_path / "one.safetensors"), open_model(tmp_path / "two.safetensors"))
    assert found.outcome == outcome


def test_types_that_are_unknown_are_compared_as_bytes_and_with_others_not_at_all(tmp_path):
    for name, dtype, data in (
        ("one", "F6", b"ab"),
        ("two", "F6", b"ac"),
        ("three", "F7", b"ab"),
        ("four", "F6", b"abc"),
    ):
        header = {"a": {"dtype": dtype, "shape": [2], "data_offsets": [0, len(data)]}}
        _write_raw(tmp_path / f"{name}.safetensors", header, data)
    models = {name: open_model(tmp_path / f"{name}.safetensors") for name in ("one", "two", "three", "four")}
    outcomes = {name: next(compare_models(models["one"], models[name])).outcome for name in models}
    assert outcomes == {"one": "same", "two": "different", "three": "unreadable", "four": "unreadable"}
    assert not list(find_not_finite(models["one"]))


def test_heads_that_do_not_divide_the_rows_are_no_crash(tmp_path, whole):
    shutil.copytree(whole / "llama", tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "num_attention_heads": 7}))
    faults = different(tmp_path / "model", whole / "llama" / "model-f32.gguf")
    assert faults["blk.0.attn_q.weight"].text == "its 64 rows can't be those of 7 heads"


def test_a_file_that_becomes_shorter_meanwhile_is_named(tmp_path, whole):
    shutil.copyfile(whole / "llama" / "model-f32.gguf", tmp_path / "model.gguf")
    model = open_model(tmp_path / "model.gguf")
    with (tmp_path / "model.gguf").open("r+b") as file:
        file.truncate(100_000)
    with pytest.raises(Damaged, match="became shorter while it was read"):
        list(compare_models(model, model))


@pytest.mark.parametrize(
    ("names", "kind", "words"),
    [
        ((), LocalFile, "there are no weights in"),
        (("a.gguf", "b.gguf"), BadInput, "has 2 GGUF files"),
        (("model.safetensors",), Damaged, "model.safetensors is damaged: it has 0 bytes"),
        (("a.gguf",), Damaged, "a.gguf is damaged: it has 0 bytes"),
        (("model.safetensors.index.json",), Damaged, "index.json can't be used"),
    ],
)
def test_a_folder_without_a_model_is_refused(tmp_path, names, kind: type[StokerError], words):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(kind, match=words) as raised:
        open_model(tmp_path)
    assert raised.value.hint


def test_paths_that_are_no_model_are_refused(tmp_path):
    with pytest.raises(LocalFile, match="no such file"):
        open_model(tmp_path / "nothing.gguf")
    (tmp_path / "model.bin").touch()
    with pytest.raises(BadInput, match=r"is neither \.gguf nor \.safetensors"):
        open_model(tmp_path / "model.bin")


@pytest.mark.parametrize("text", ["", "{", "[]", "1"])
def test_a_config_that_is_none_is_named(tmp_path, text):
    _write(tmp_path / "model.safetensors", {"a": np.zeros(1, "<f4")})
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(Damaged, match=r"config\.json can't be used"):
        open_model(tmp_path)


@pytest.mark.parametrize("layers", [0, -1, 10**9, "2", None, True, 1.5])
def test_a_config_with_absurd_numbers_states_no_tensors(tmp_path, layers):
    _write(tmp_path / "model.safetensors", {"a": np.zeros(1, "<f4")})
    config = {"model_type": "llama", "num_hidden_layers": layers, "num_attention_heads": 4, "rope_theta": 10**400}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = open_model(tmp_path)
    assert (model.layouts, model.missing(), model.unknown()) == ((), (), ())


def test_a_tensor_in_two_files_is_named(tmp_path):
    for name in ("a.safetensors", "b.safetensors"):
        _write(tmp_path / name, {"x": np.zeros(1, "<f4")})
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(Damaged, match=r"'x' is also in a\.safetensors"):
        open_model(tmp_path)


_NAMES = {"<f4": "F32", "<f2": "F16", "<i8": "I64", "|b1": "BOOL"}


def _write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    header, data = {}, b""
    for name, array in arrays.items():
        places = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": _NAMES[array.dtype.str], "shape": list(array.shape), "data_offsets": places}
        data += array.tobytes()
    _write_raw(path, header, data)


def _write_raw(path: Path, header: dict[str, dict], data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
