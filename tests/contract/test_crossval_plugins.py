"""Plug-ins that ship, each with its real runtime: what they compute agrees, and what they can't do has a reason."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from stoker.core.errors import HashMismatch, NotVerified, PluginFailed
from stoker.crossval import reference_check
from stoker.crossval.fixture_folder import SAFETENSORS, write_fixture
from stoker.crossval.fixture_models import FixtureSpec
from stoker.crossval.plugin_lines import PluginCommand
from stoker.crossval.plugin_messages import LoadRequest, fallbacks
from stoker.crossval.plugin_process import Plugin
from stoker.crossval.reference_check import TOKENS, check_reference, write_check_model
from stoker.crossval.runtimes import RuntimePlaces, plugin_command, read_runtime

ROOT = Path(__file__).parents[2]
IDS = [(7 * place * place + 3 * place) % 96 + 3 for place in range(64)]
TEXT = "it's 12,345.67 dollars; don't pay\n</s>"
HERE = RuntimePlaces(environment=os.environ, folder=str(ROOT), own_prefix=sys.prefix, own_python=sys.executable)
Rows = dict[str, np.ndarray]


def _started(words: str) -> Plugin:
    return Plugin(plugin_command(read_runtime(words), HERE))


def _rows(plugin: Plugin, *, layers: bool = True, chunk: int = 0, decode_from: int | None = None) -> Rows:
    found: dict[str, list[np.ndarray]] = {}
    for row in plugin.logits(IDS, chunk, layers=layers, decode_from=decode_from):
        found.setdefault(row.layer or "logits", []).append(np.array(row.values))
    return {name: np.stack(values) for name, values in found.items()}


def _distance(candidate: np.ndarray, reference: np.ndarray) -> float:
    """Return the largest squared error of a position, over the reference's squares, each without its mean."""
    one = candidate - candidate.mean(axis=1, keepdims=True, dtype=np.float64)
    two = reference - reference.mean(axis=1, keepdims=True, dtype=np.float64)
    return float((((one - two) ** 2).sum(axis=1) / (two**2).sum(axis=1)).max())


@pytest.fixture(scope="module")
def llama() -> Iterator[Plugin]:
    with _started("llama.cpp") as plugin:
        yield plugin


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fixture") / "qwen2"
    write_fixture(str(folder), FixtureSpec(size="tiny", arch="qwen2"), (SAFETENSORS, "f32", "q8_0"), now_s=0.0)
    return folder


def test_llama_cpp_passes_the_check_of_a_reference(
    llama: Plugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "check.gguf")
    write_check_model(path)
    loaded = check_reference(llama, path)
    assert (loaded.ran.kv, loaded.ran.flash, loaded.tensors) == ("F32", False, 12)
    assert "AVX" in loaded.build["flags"] or "NEON" in loaded.build["flags"]
    monkeypatch.setattr(reference_check, "EXPECTED", {4: (0.857, 0.1245)})
    with pytest.raises(NotVerified, match=r"computes 0\.12.* where 0\.124500 is right \(position 4, logit 1\)"):
        check_reference(llama, path)


def test_llama_cpp_gives_the_same_in_any_pieces_and_shows_its_layers(llama: Plugin, fixture: Path) -> None:
    loaded = llama.load(LoadRequest(model=str(fixture / "model-f32.gguf")))
    assert (loaded.n_vocab, loaded.n_layers, loaded.width, loaded.used) == (100, 2, 64, 27)
    assert loaded.ran.weights == "F32"
    assert "cpu.MUL_MAT(F32)" in loaded.ran.kernels
    whole = _rows(llama)
    assert set(whole) == {"embd", "l_out-0", "l_out-1", "result_norm", "logits"}
    assert whole["l_out-0"].shape == (64, 64)
    assert _distance(_rows(llama, layers=False, chunk=5)["logits"], whole["logits"]) < 1e-9
    assert _distance(_rows(llama, layers=False, decode_from=32)["logits"], whole["logits"]) < 1e-9


def test_llama_cpp_says_which_kernels_took_a_quantised_file(llama: Plugin, fixture: Path) -> None:
    request = LoadRequest(model=str(fixture / "model-q8_0.gguf"), precision="f32")
    loaded = llama.load(request)
    assert loaded.ran.weights == "Q8_0"
    assert "cpu.MUL_MAT(Q8_0)" in loaded.ran.kernels
    assert fallbacks(request, loaded) == ("precision f32 was requested, its weights are Q8_0",)


def test_llama_cpp_takes_a_sequence_that_is_longer_than_a_batch(llama: Plugin, tmp_path: Path) -> None:
    path = str(tmp_path / "check.gguf")
    write_check_model(path)
    llama.load(LoadRequest(model=path))
    assert sum(1 for _ in llama.logits(list(TOKENS) * 130)) == 650


def test_what_llama_cpp_can_not_load_has_a_reason(llama: Plugin, fixture: Path, tmp_path: Path) -> None:
    whole = (fixture / "model-f32.gguf").read_bytes()
    cut, no_model = tmp_path / "cut.gguf", tmp_path / "no.gguf"
    cut.write_bytes(whole[:-4096])
    no_model.write_bytes(b"nothing of the kind")
    for path, said in ((cut, "data is not within the file bounds"), (no_model, "no.gguf"), (tmp_path / "x", "exist")):
        with pytest.raises(PluginFailed, match=said) as raised:
            llama.load(LoadRequest(model=str(path)))
        assert raised.value.data["reason"] == "load_failed"
    with pytest.raises(HashMismatch):
        llama.load(LoadRequest(model=str(fixture / "model-f32.gguf"), sha256="0" * 64))
    with pytest.raises(PluginFailed, match="runs on cpu, not on cuda"):
        llama.load(LoadRequest(model=str(fixture / "model-f32.gguf"), device="cuda"))
    # None of that has ended it.
    llama.load(LoadRequest(model=str(fixture / "model-f32.gguf")))
    with pytest.raises(PluginFailed, match="id 100 is not in a vocabulary of 100"):
        list(llama.logits([100]))
    with pytest.raises(PluginFailed, match="can't do replay"):
        llama.replay(0, b"\0" * 256)


def test_a_server_gives_what_its_runtime_gives(llama: Plugin, fixture: Path) -> None:
    model = str(fixture / "model-f32.gguf")
    llama.load(LoadRequest(model=model))
    direct = np.stack([np.array(row.values) for row in llama.logits(IDS[:8])])
    with _served(model) as address, _started(f"{address}/v1") as plugin:
        choice = read_runtime(f"{address}/v1")
        loaded = plugin.load(choice.load_request("unused"))
        assert (loaded.n_vocab, loaded.ran.weights) == (100, "F32")
        rows = np.stack([np.array(row.values) for row in plugin.logits(IDS[:8])])
        assert _distance(rows, direct) < 1e-9
        assert plugin.tokenize(TEXT) == llama.tokenize(TEXT)
        with pytest.raises(PluginFailed, match="has no model other"):
            plugin.load(read_runtime(f"{address}/v1#other").load_request(""))
    with _started(f"{address}/v1") as plugin, pytest.raises(PluginFailed, match="refused"):
        plugin.load(choice.load_request(""))


@contextmanager
def _served(model: str) -> Iterator[str]:
    program = ROOT / "tests" / "fakes" / "llama_server.py"
    with subprocess.Popen(
        [sys.executable, program, model], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield process.stdout.readline().decode().strip()
        process.stdin.close()


def test_torch_agrees_with_llama_cpp_and_replays_its_layers(llama: Plugin, torch_plugin: Plugin, fixture: Path) -> None:
    ours = torch_plugin.load(LoadRequest(model=str(fixture), precision="f32"))
    theirs = llama.load(LoadRequest(model=str(fixture / "model-f32.gguf")))
    assert ours.ran.weights == theirs.ran.weights == "F32"
    assert (ours.tensors, ours.used, ours.n_layers, ours.width) == (27, 27, 2, 64)
    assert ours.tokenizer_sha256 == theirs.tokenizer_sha256
    assert torch_plugin.tokenize(TEXT) == llama.tokenize(TEXT)
    assert torch_plugin.tokenize(TEXT, special=True) == llama.tokenize(TEXT, special=True)
    one, two = _rows(torch_plugin), _rows(llama)
    assert set(one) == set(two)
    assert {name: _distance(one[name], two[name]) < 1e-9 for name in one} == dict.fromkeys(one, True)
    assert _distance(_rows(torch_plugin, layers=False, chunk=7, decode_from=40)["logits"], one["logits"]) < 1e-9
    for layer, (given, made) in enumerate([("embd", "l_out-0"), ("l_out-0", "l_out-1"), ("l_out-1", "logits")]):
        replayed = np.array(torch_plugin.replay(layer, two[given].tobytes())).reshape(64, -1)
        assert _distance(replayed, two[made]) < 1e-10, layer
    _check_other_precisions(torch_plugin, fixture, one["logits"])
    _check_bad_models(torch_plugin, fixture)


def test_an_adapter_computes_what_its_base_does_with_its_matrices_added(
    torch_plugin: Plugin, fixture: Path, tmp_path: Path
) -> None:
    rank, alpha, name = 2, 6.0, "model.layers.1.self_attn.q_proj"
    draw = np.random.default_rng(1)
    one, two = (draw.normal(size=size).astype("<f4") for size in ((rank, 64), (64, rank)))
    merged = fixture.parent / "merged"
    merged.mkdir()
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (merged / file).write_bytes((fixture / file).read_bytes())
    weights = load_file(fixture / "model.safetensors")
    weights[f"{name}.weight"] = weights[f"{name}.weight"] + alpha / rank * (two @ one)
    save_file(weights, merged / "model.safetensors", metadata={"format": "pt"})
    lora = {f"base_model.model.{name}.lora_{part}.weight": matrix for part, matrix in (("A", one), ("B", two))}
    save_file(lora, tmp_path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha}
    config |= {"target_modules": name, "base_model_name_or_path": "x"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    request = LoadRequest(model=str(tmp_path), base=str(fixture), precision="f32")
    assert torch_plugin.load(request).tensors == 27
    adapted = _rows(torch_plugin, layers=False)["logits"]
    torch_plugin.load(LoadRequest(model=str(merged), precision="f32"))
    assert _distance(adapted, _rows(torch_plugin, layers=False)["logits"]) < 1e-9
    torch_plugin.load(LoadRequest(model=str(fixture), precision="f32"))
    assert _distance(adapted, _rows(torch_plugin, layers=False)["logits"]) > 1e-3
    save_file({**lora, "base_model.model.other.lora_A.weight": one}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(PluginFailed, match="has 3 tensors, its base has places for 2"):
        torch_plugin.load(request)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "IA3"}')
    with pytest.raises(PluginFailed, match="only LORA is supported"):
        torch_plugin.load(request)


def _check_other_precisions(plugin: Plugin, fixture: Path, exact: np.ndarray) -> None:
    request = LoadRequest(model=str(fixture), precision="bf16")
    loaded = plugin.load(request)
    assert (loaded.ran.weights, loaded.ran.kv) == ("BF16", "BF16")
    assert not fallbacks(request, loaded)
    assert 1e-7 < _distance(_rows(plugin, layers=False)["logits"], exact) < 2e-2
    # A GGUF file becomes floats of the requested precision; the fixture's numbers are exact in Q8_0.
    quantised = plugin.load(LoadRequest(model=str(fixture / "model-q8_0.gguf"), precision="f32"))
    assert (quantised.ran.weights, quantised.tensors, quantised.used) == ("F32", 27, 27)
    assert _distance(_rows(plugin, layers=False)["logits"], exact) < 1e-9


def test_weights_in_four_bits_compute_what_the_same_weights_do_as_floats(torch_plugin: Plugin, fixture: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    rows = {}
    for precision, weights in (("4bit-as-f32", "F32"), ("4bit", "NF4")):
        request = LoadRequest(model=str(fixture), precision=precision)
        loaded = torch_plugin.load(request)
        assert loaded.ran.weights == weights
        assert not fallbacks(request, loaded)
        rows[precision] = _rows(torch_plugin, layers=False)["logits"]
    assert 1e-7 < _distance(rows["4bit"], rows["4bit-as-f32"]) < 5e-2


def _check_bad_models(plugin: Plugin, fixture: Path) -> None:
    broken = fixture.parent / "broken"
    broken.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (broken / name).write_bytes((fixture / name).read_bytes())
    whole = (fixture / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(whole[:-4096])
    with pytest.raises(PluginFailed, match=r"(?i)incomplete|deserializ|buffer"):
        plugin.load(LoadRequest(model=str(broken)))
    renamed = re.sub(rb"model\.layers\.1\.self_attn\.k_proj\.bias", b"model.layers.1.self_attn.k_proj.bios", whole)
    (broken / "model.safetensors").write_bytes(renamed)
    with pytest.raises(PluginFailed, match=r"lacks model\.layers\.1\.self_attn\.k_proj\.bias"):
        plugin.load(LoadRequest(model=str(broken)))
    with pytest.raises(PluginFailed, match="no device cuda"):
        plugin.load(LoadRequest(model=str(fixture), device="cuda"))
    # transformers loads model.safetensors of the folder, whatever file of it was named.
    (broken / "model.safetensors").write_bytes(whole)
    assert plugin.load(LoadRequest(model=str(broken / "model.safetensors"))).tensors == 27
    for name in ("other.safetensors", "model-00001-of-00002.safetensors"):
        (broken / name).write_bytes(whole)
        with pytest.raises(PluginFailed, match=rf"{name}: transformers would load model\.safetensors") as raised:
            plugin.load(LoadRequest(model=str(broken / name)))
        assert raised.value.data["reason"] == "unsupported"
    (broken / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(PluginFailed, match="has both model"):
        plugin.load(LoadRequest(model=str(broken)))


def test_onnx_runtime_agrees_with_torch(torch_plugin: Plugin, fixture: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: nothing can export")
    program = ROOT / "tests" / "fakes" / "onnx_export.py"
    subprocess.run([sys.executable, program, fixture, fixture / "model.onnx"], check=True, capture_output=True)
    torch_plugin.load(LoadRequest(model=str(fixture)))
    exact = _rows(torch_plugin)
    with _started("onnx") as plugin:
        request = LoadRequest(model=str(fixture / "model.onnx"))
        loaded = plugin.load(request)
        assert (loaded.n_vocab, loaded.n_layers, loaded.width, loaded.ran.device) == (100, 2, 64, "cpu")
        assert not fallbacks(request, loaded)
        found = _rows(plugin, chunk=16)
        assert {name: _distance(found[name], exact[name]) < 1e-9 for name in found} == dict.fromkeys(
            ("l_out-0", "l_out-1", "logits"), True
        )
        assert plugin.tokenize(TEXT) == torch_plugin.tokenize(TEXT)


def test_the_plug_in_of_the_guide_works(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "guides" / "crossval-plugins.md").read_text("utf-8")
    for name in ("bigram.py", "bigram.json"):
        found = re.search(rf"```\w+ file={re.escape(name)}\n(.*?)```", text, re.DOTALL)
        assert found is not None
        (tmp_path / name).write_text(found[1], "utf-8")
    command = PluginCommand(label="bigram", argv=(sys.executable, "bigram.py"), env={}, cwd=str(tmp_path))
    with Plugin(command) as plugin:
        assert plugin.hello().can == ("tokenize", "logits")
        request = LoadRequest(model="bigram.json")
        loaded = plugin.load(request)
        assert not fallbacks(request, loaded)
        rows = [list(row.values) for row in plugin.logits(plugin.tokenize("ab"))]
        assert rows == [[0.5, -1.5], [2.0, 0.25]]
        with pytest.raises(HashMismatch):
            plugin.load(LoadRequest(model="bigram.json", sha256="0" * 64))
