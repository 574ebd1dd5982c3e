"""Bases: found by what a user types, looked through before anything runs, named by what they are."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from stoker.cookbooks.language import bases, bundled
from stoker.cookbooks.language.bases import base_word, read_base
from stoker.cookbooks.language.bundled import TinyShape, bundled_base, data_lines, write_base
from stoker.cookbooks.language.checks import find_base, lacking, outline_of
from stoker.cookbooks.language.compute.base_path import choose_path
from stoker.cookbooks.language.gguf_model import model_faults
from stoker.core.errors import BadInput, Damaged, NoPermission, NoSpace, StokerError
from stoker.engine.recipe import MachineContext, surrounded_by
from stoker.store.weight_files import safetensors
from stoker.store.weight_files.headers import DamagedHeader, Header
from stoker.store.weight_files.safetensors import read_header


@pytest.fixture
def base(tmp_path) -> Path:
    return write_base(tmp_path / "base")


def _why(folder: Path, kind: type[StokerError] = BadInput) -> str:
    with pytest.raises(kind) as raised:
        find_base(str(folder))
    assert raised.value.hint
    assert "\n" not in raised.value.message
    return raised.value.message


def _say(folder: Path, **changed: object) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_bytes()), **changed}
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "gone"}))


def test_a_base_tells_what_it_is_without_its_weights_being_read(base):
    found = find_base(str(base))
    assert found.name == "base"
    assert (found.family, found.vocabulary, found.positions) == ("llama", 264, 2048)
    assert found.weight_files == ("model.safetensors",)
    assert found.tokenizer_files == ("tokenizer.json", "tokenizer_config.json")
    assert found.files == tuple(sorted(os.listdir(base)))
    assert found.size_bytes == (base / "model.safetensors").stat().st_size
    assert found.shape.parameters == sum(
        (one.end - one.begin) // 4 for one in read_header(base / "model.safetensors").tensors.values()
    )


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_every_family_that_can_be_trained_is_known(tmp_path, family):
    assert find_base(str(write_base(tmp_path, TinyShape(family=family, is_tied=True)))).family == family


def test_the_word_of_a_base_is_the_same_wherever_it_lies_and_another_if_its_weights_are(base, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(base, copy)
    other = write_base(tmp_path / "other", TinyShape(seed=1))
    assert base_word(copy) == base_word(base) == find_base(str(base)).word
    assert base_word(other) != base_word(base)
    _say(copy, rms_norm_eps=1e-5)
    assert base_word(copy) != base_word(base)


def test_a_base_in_several_files_is_found_through_its_index(base):
    whole = read_header(base / "model.safetensors")
    os.rename(base / "model.safetensors", base / "model-00001-of-00001.safetensors")
    index = {"weight_map": dict.fromkeys(whole.tensors, "model-00001-of-00001.safetensors")}
    (base / "model.safetensors.index.json").write_text(json.dumps(index))
    found = find_base(str(base))
    assert found.weight_files == ("model-00001-of-00001.safetensors",)
    assert "model.safetensors.index.json" in found.files
    os.remove(base / "model-00001-of-00001.safetensors")
    assert "model-00001-of-00001.safetensors is missing" in _why(base)


def test_what_is_not_there_is_told_and_what_was_meant_is_guessed(tmp_path):
    assert "folder not found" in _why(tmp_path / "nothing")
    with pytest.raises(BadInput) as raised:
        find_base("tinny")
    assert raised.value.hint == "did you mean 'tiny'?"


@pytest.mark.parametrize(
    "text", ["", "  ", "a\0b", "x" * 5000, "~nobody-of-that-name/base", "../../x/y/z", "datasets/a/b"]
)
def test_odd_texts_are_refused_as_any_other(text):
    with pytest.raises(BadInput):
        find_base(text)


def test_a_file_is_no_base(base):
    assert "is a file; a base is a folder" in _why(base / "config.json")


def test_everything_that_is_wrong_with_a_folder_is_told_at_once(tmp_path):
    message = _why(tmp_path)
    assert "it has no config.json" in message
    assert "it has no tokenizer" in message
    assert "it has no weights as safetensors" in message


def test_weights_as_pickles_are_named(base):
    os.rename(base / "model.safetensors", base / "pytorch_model.bin")
    assert "it has no weights as safetensors, only pytorch_model.bin" in _why(base)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"architectures": ["BertForMaskedLM"], "model_type": "bert"},
            "BertForMaskedLM is not a causal language model",
        ),
        ({"architectures": ["LlamaModel"]}, "LlamaModel is not a causal language model"),
        ({"is_encoder_decoder": True}, "is not a causal language model"),
        (
            {"architectures": ["NovelForCausalLM"], "model_type": "novel"},
            "its architecture 'novel' is not supported: transformers has no causal language model of it",
        ),
        ({"model_type": "gone"}, "it names no model_type"),
        ({"model_type": 7}, "its architecture 7 is not supported"),
        ({"quantization_config": {"quant_method": "gptq"}}, "its weights are quantised"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": 3}, "it has no model.layers.2."),
        ({"vocab_size": 300}, "model.embed_tokens.weight is [264, 64]; config.json states [300, 64]"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1000"),
        ({"max_position_embeddings": 10**30}, "max_position_embeddings is 1000"),
    ],
)
def test_a_config_that_describes_nothing_trainable_is_refused(base, changed, words):
    _say(base, **changed)
    assert words in _why(base)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, "quantised by awq (supported on disk: 32 and 16 bits, NF4"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, "quantised by fp8 ("),
        ({"quantization_config": {"bits": 4}}, "quantised by an unknown method ("),
        (
            {"model_type": "gemma", "quantization_config": {"load_in_8bit": True}},
            "its architecture gemma is none of llama, mistral, qwen2, qwen3; quantised bases take the fast path only",
        ),
    ],
)
def test_the_hint_for_a_format_that_is_not_read_names_what_works(base, changed, words):
    _say(base, **changed)
    with pytest.raises(BadInput, match=re.escape(words)) as raised:
        find_base(str(base))
    assert raised.value.hint == (
        "use the model in 16 bits that it was made from; language/lora quantises it with base_dtype=nf4"
    )


@pytest.mark.parametrize(
    ("family", "changed", "words"),
    [
        ("llama", {}, ""),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' is not supported"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act gelu is not supported; only silu is"),
        ("llama", {"model_type": "gemma"}, "its architecture gemma is none of llama, mistral, qwen2, qwen3"),
        ("qwen3", {"model_type": "llama"}, "no block of llama has a tensor model.layers.0.self_attn.k_norm.weight"),
        ("qwen2", {"model_type": "mistral"}, "no block of mistral has a tensor model.layers.0.self_attn.k_proj.bias"),
    ],
)
def test_what_the_fast_path_lacks_is_known_before_weights_are_loaded(tmp_path, family, changed, words):
    base = write_base(tmp_path / "base", TinyShape(family=family))
    _say(base, **changed)
    assert find_base(str(base)).differs == words
    assert choose_path(base, "auto").is_general == bool(words)
    assert choose_path(base, "general").is_general
    if words:
        with pytest.raises(BadInput, match="can't take the fast path"):
            choose_path(base, "fast")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_a_config_that_is_none_is_refused(base, content):
    (base / "config.json").write_bytes(content)
    assert "config.json" in _why(base)


def _with_header(told: object) -> bytes:
    text = json.dumps(told).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it has 0 bytes, too few for a header"),
        (struct.pack("<Q", 1 << 60) + b"{}", "does not fit into its 10"),
        (struct.pack("<Q", 2) + b"no", "its header is not JSON"),
        (_with_header([1]), "its header is not a JSON object"),
        (struct.pack("<Q", 15) + b'{"a": 1,"a": 2}', "its header names 'a' twice"),
        (_with_header({"a": 1}), "invalid header entry 'a'"),
        (_with_header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}}), "invalid header entry 'a'"),
        (_with_header({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, -8]}}), "invalid header entry 'a'"),
        (_with_header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}), "its header states"),
        (_with_header({"a": {"dtype": "F32", "shape": [1] * 65, "data_offsets": [0, 4]}}), "invalid header entry 'a'"),
        (_with_header({"a": {"dtype": "X", "shape": [2], "data_offsets": [0, 2**66]}}), "invalid header entry 'a'"),
        (_with_header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}), "gap before 'a'"),
    ],
)
def test_a_damaged_weight_file_is_named(base, content, words):
    (base / "model.safetensors").write_bytes(content)
    message = _why(base, Damaged)
    assert "model.safetensors is damaged: " in message
    assert words in message


def test_a_header_that_would_take_long_is_refused_before_it_is_taken_apart(base, monkeypatch):
    def loads(text: str | bytes, **_: object) -> object:
        assert len(text) < 20_000_000, "the header was taken apart"
        return json.loads(text)

    monkeypatch.setattr(safetensors, "json", SimpleNamespace(loads=loads, JSONDecodeError=json.JSONDecodeError))
    with (base / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 20_000_001))
        file.truncate(8 + 20_000_001)
    assert "its header has 20,000,001 bytes; the maximum is 20,000,000" in _why(base, Damaged)


def test_tensors_are_counted_before_they_are_looked_at_and_braces_are_none(tmp_path, monkeypatch):
    monkeypatch.setattr(safetensors, "_MOST_TENSORS", 3)
    path = tmp_path / "some.safetensors"
    told: dict[str, object] = {name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for name in "abc"}
    path.write_bytes(_with_header({**told, "__metadata__": {"said": "{" * 10}}))
    assert set(read_header(path).tensors) == set("abc")
    path.write_bytes(_with_header({**told, "d": "no tensor"}))
    with pytest.raises(DamagedHeader, match="its header lists more than 3 tensors"):
        read_header(path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
def test_a_header_in_another_encoding_than_the_formats_is_damaged(tmp_path, encoding):
    text = json.dumps({"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}).encode(encoding)
    (tmp_path / "some.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(DamagedHeader, match="its header is no"):
        read_header(tmp_path / "some.safetensors")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "part.safetensors"])
def test_what_would_never_end_or_never_begin_is_not_read(base, name):
    (base / "model.safetensors.index.json").write_text('{"weight_map": {"a": "part.safetensors"}}')
    (base / name).unlink(missing_ok=True)
    os.mkfifo(base / name)
    # Beside an index that is none, the one file with weights counts.
    assert read_base(base) if name.endswith(".index.json") else f"{name} " in _why(base, StokerError)


def test_of_many_files_that_are_missing_or_damaged_few_are_named_and_none_is_looked_for(base, monkeypatch):
    named = {str(one): f"{one}.safetensors" for one in range(1000)}
    (base / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
    for one in range(995, 1000):
        (base / f"{one}.safetensors").touch()
    asked: list[Path] = []

    def ask(path: Path) -> Header:
        asked.append(path)
        return read_header(path)

    monkeypatch.setattr(bases, "read_header", ask)
    message = _why(base)
    assert "0.safetensors, 1.safetensors, 10.safetensors and 992 more are missing; 995.safetensors is dam" in message
    assert message.endswith("997.safetensors is damaged: it has 0 bytes, too few for a header and 2 more")
    assert len(asked) == 5


def test_a_file_that_an_index_names_is_shown_and_not_obeyed(base):
    named = {"a": "\x1b[2Jx" + "y" * 1000}
    (base / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
    message = _why(base)
    assert message.isprintable()
    assert len(message) < 300


def test_a_weight_file_that_was_cut_off_is_damaged(base):
    os.truncate(base / "model.safetensors", 100_000)
    assert "model.safetensors is damaged: it has 100,000 bytes" in _why(base, Damaged)
    # What else is wrong has to change first.
    _say(base, model_type="other")
    assert "model.safetensors is damaged" in _why(base)


@pytest.mark.parametrize("named", [{}, {"weight_map": {}}, {"weight_map": {"a": "../x"}}, {"weight_map": {"a": 1}}, []])
def test_an_index_that_names_nothing_here_is_refused(base, named):
    (base / "model.safetensors.index.json").write_text(json.dumps(named))
    assert "model.safetensors.index.json can't be used" in _why(base)


def test_weights_in_few_bits_are_refused(base):
    path = base / "model.safetensors"
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b'"F32"', b'"I32"'))
    assert "its weights are I32" in _why(base)


def test_a_model_of_the_hub_is_found_in_its_cache(tmp_path):
    repo = tmp_path / "models--org--name"
    commit = "0123456789" * 4
    write_base(repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    with surrounded_by(MachineContext(hub_cache=lambda: str(tmp_path))):
        assert find_base("org/name").name == "org/name"
        assert find_base("org/name").folder == repo / "snapshots" / commit
        assert find_base(f"org/name@{commit}").word == find_base("org/name").word
        with pytest.raises(BadInput) as raised:
            find_base("org/other")
        assert raised.value.hint == "stoker fetch org/other"
        (repo / "snapshots" / commit / "model.safetensors").unlink()
        with pytest.raises(BadInput) as raised:
            find_base("org/name")
        assert raised.value.hint == "stoker fetch org/name"


def _next(text: str) -> tuple[str, ...]:
    lack = lacking(text, "base")
    return () if lack is None else lack.names


def test_what_the_hub_may_have_of_a_base_is_said_small_files_first_and_nothing_of_what_is_refused_anyway(
    tmp_path, monkeypatch
):
    commit = "0123456789" * 4
    with surrounded_by(MachineContext(hub_cache=lambda: str(tmp_path))):
        first = lacking("org/name@v1", "base")
        assert first is not None
        assert (first.repo, "*.json" in first.names, "model.safetensors" in first.names) == ("org/name@v1", True, False)
        assert outline_of("org/name@v1") is None
        repo = tmp_path / "models--org--name"
        folder = write_base(repo / "snapshots" / commit)
        (repo / "refs").mkdir()
        (repo / "refs" / "v1").write_text(commit)
        assert lacking("org/name@v1", "base") is None
        (folder / "model.safetensors").unlink()
        assert _next("org/name@v1") == ("model.safetensors.index.json", "model.safetensors")
        outline = outline_of("org/name@v1")
        assert outline is not None
        assert outline.positions == 2048
        (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "one.safetensors"}}')
        assert _next("org/name@v1") == ("one.safetensors",)
        _say(folder, model_type="other")
        assert lacking("org/name@v1", "base") is None
        assert lacking("tiny", "base") is lacking(str(tmp_path), "base") is lacking("./org/name", "base") is None
        (tmp_path / "models").mkdir()
        monkeypatch.chdir(tmp_path)
        assert lacking("models/name", "base") is None


@pytest.mark.parametrize("revision", ["../../../outside", "{folder}"])
def test_a_revision_leads_nowhere_outside_of_the_cache(base, tmp_path, revision):
    shutil.copytree(base, tmp_path / "outside")
    (tmp_path / "hub" / "models--org--name" / "snapshots").mkdir(parents=True)
    text = "org/name@" + revision.format(folder=tmp_path / "outside")
    with (
        surrounded_by(MachineContext(hub_cache=lambda: str(tmp_path / "hub"))),
        pytest.raises(BadInput, match="folder not found"),
    ):
        find_base(text)


def test_a_bundled_base_is_made_once_and_mended(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = bundled_base("tiny")
    weights = folder / "model.safetensors"
    before = weights.stat()
    assert bundled_base("tiny") == folder
    assert weights.stat().st_ino == before.st_ino
    os.truncate(weights, 10)
    assert find_base("tiny").folder == folder
    assert weights.stat().st_size == before.st_size
    assert folder.parent.stat().st_mode & 0o777 == 0o700


def test_a_bundled_base_for_which_there_is_no_room_is_told_and_leaves_nothing_half(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plain = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) > 10_000:
            raise OSError(errno.ENOSPC, "no space")
        return plain(descriptor, data)

    monkeypatch.setattr("os.write", full)
    monkeypatch.setattr("os.pwrite", lambda descriptor, data, _at: full(descriptor, data))
    with pytest.raises(NoSpace, match=r"model\.safetensors"):
        bundled_base("tiny")
    left = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["config.json", "generation_config.json"]


def test_a_bundled_base_is_never_read_from_somebody_elses_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"stoker-bundled-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NoPermission):
        bundled_base("tiny")


def test_the_bundled_base_never_changes():
    # Results are kept under what it is: whoever changes it means to.
    assert find_base("tiny").word == "0b7330ecbc528581"


@pytest.mark.parametrize("name", bundled.DATA)
def test_bundled_data_is_made_of_distinct_lines(name):
    lines = data_lines(name)
    assert 20 < len(lines) == len(set(lines))


def test_a_base_is_looked_through_without_heavy_libraries():
    code = (
        "import sys; from stoker.cookbooks.language.checks import find_base; find_base('tiny');"
        "sys.exit(bool({'torch', 'numpy', 'transformers', 'safetensors'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_folder_may_be_given_a_name_for_people(base):
    assert read_base(base, name="org/name").name == "org/name"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"transformers_weights": "adapter_model.bin"}, "transformers_weights is 'adapter_model.bin'"),
        ({"_attn_implementation": "some-org/kernel"}, "_attn_implementation is 'some-org/kernel'"),
        ({"text_config": {"attn_implementation": {"": "sdpa", "x": "a/b"}}}, "attn_implementation is 'a/b'"),
        ({"architectures": ["x" * 5_000]}, "x… is not a causal language model"),
        ({"model_type": "olmo2", "num_hidden_layers": 10**7}, "is 10000000, not a whole number from 1 to 1,000"),
        ({"model_type": "olmo2", "hidden_size": "x" * 5_000}, "x…, not a whole number"),
    ],
)
def test_a_config_that_names_code_other_weights_or_absurd_sizes_is_refused(base, said, words):
    _say(base, **said)
    message = _why(base)
    assert words in message
    assert len(message) < 500


def _rewrite(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    from safetensors.numpy import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_tied_weights_that_are_saved_twice_must_be_equal(tmp_path, family):
    base = write_base(tmp_path / "base", TinyShape(is_tied=True))
    embedding = "model.embed_tokens.weight"
    _rewrite(base, lambda weights: weights.update({"lm_head.weight": weights[embedding].copy()}))
    _say(base, model_type=family, architectures=[f"{family.title()}ForCausalLM"])
    assert not find_base(str(base)).differs.startswith("no block")

    def differ(weights: dict[str, np.ndarray]) -> None:
        weights["lm_head.weight"][-1, -1] += 1

    _rewrite(base, differ)
    assert _why(base).endswith(
        f"lm_head.weight and {embedding} differ, but config.json ties them (tie_word_embeddings)"
    )
    _say(base, tie_word_embeddings=False)
    assert find_base(str(base)).name == "base"


@pytest.mark.parametrize(
    "missing",
    ["lm_head.weight", "model.layers.1.input_layernorm.weight", "model.layers.0.self_attn.k_proj.bias"],
)
def test_no_weight_that_the_config_states_may_be_missing(tmp_path, missing):
    base = write_base(tmp_path / "base", TinyShape(family="qwen2"))
    assert find_base(str(base)).family == "qwen2"
    _rewrite(base, lambda weights: weights.pop(missing))
    assert _why(base) == f"base can't be trained: it has no {missing}"


def test_weights_without_the_biases_of_their_family_are_refused(base):
    _say(base, model_type="qwen2", architectures=["Qwen2ForCausalLM"])
    assert "it has no model.layers.0.self_attn.q_proj.bias" in _why(base)


def test_an_adapter_beside_the_weights_is_refused_and_never_loaded(base):
    pytest.importorskip("transformers")
    from stoker.cookbooks.language.compute.transformers_base import load_transformers

    (base / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "/elsewhere"}')
    assert "transformers would load that adapter, too" in _why(base)
    with pytest.raises(BadInput, match=r"adapter_config\.json is beside its weights"):
        load_transformers(base)


@pytest.mark.parametrize("said", [{"rope_parameters": {"rope_type": 7}}, {"hidden_act": 3}, {"head_dim": "wide"}])
def test_what_transformers_raises_at_odd_settings_is_bad_input(base, said):
    pytest.importorskip("transformers")
    from stoker.cookbooks.language.compute.transformers_base import load_transformers

    _say(base, **said, auto_map={"AutoModelForCausalLM": "evil.Model", "AutoConfig": "evil.Config"})
    (base / "evil.py").write_text(f"open({str(base / 'ran')!r}, 'w')")
    with pytest.raises(BadInput, match="transformers can't load"):
        load_transformers(base)
    assert not (base / "ran").exists()


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("model", [1]),
        ("pre_tokenizer", {"pretokenizers": [1, 2]}),
        ("pre_tokenizer", {"pretokenizers": [{"type": "Split", "pattern": "x"}, {"type": "ByteLevel"}]}),
    ],
)
def test_an_odd_tokenizer_can_not_be_exported(base, key, said):
    path = base / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), key: said}))
    assert [message for message, _ in model_faults(read_base(base))] == ["its tokenizer can't be exported"]
