"""Fixture models: the same bytes on every machine, one model in every format, folders that are whole or untouched."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stoker.core.errors import BadInput, LocalFile, NoSpace
from stoker.crossval.fixture_folder import LISTING, SAFETENSORS, fixture_facts, formats_of, write_fixture
from stoker.crossval.fixture_models import FixtureSpec, matrix_parts, shape_of, tensors_of
from stoker.crossval.fixture_tokenizer import fixture_tokenizer, tokenizer_json
from stoker.crossval.model_files import open_model
from stoker.crossval.tensor_files import compare_models

GOLDEN = Path(__file__).parents[2] / "golden" / "fixtures.json"
TINY = [FixtureSpec(size="tiny", arch=arch) for arch in ("llama", "qwen2", "gpt2")]


def _digests(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.name != LISTING
    }


@pytest.mark.parametrize("wanted", json.loads(GOLDEN.read_text()), ids=lambda one: f"{one['arch']}-{one['size']}")
def test_a_fixture_has_its_golden_digests(tmp_path, wanted):
    spec = FixtureSpec(size=wanted["size"], arch=wanted["arch"])
    written = write_fixture(str(tmp_path / "model"), spec, tuple(wanted["formats"]), now_s=0.0)
    assert {file.name: file.sha256 for file in written.files} == wanted["files"] == _digests(tmp_path / "model")
    assert json.loads((tmp_path / "model" / LISTING).read_text())["files"] == [
        {"name": file.name, "format": file.format, "size_bytes": file.size_bytes, "sha256": file.sha256}
        for file in written.files
    ]


@pytest.mark.parametrize("spec", [*TINY, FixtureSpec(size="medium")], ids=lambda spec: f"{spec.arch}-{spec.size}")
def test_every_format_holds_exactly_the_same_weights(tmp_path, spec):
    kinds = ("q4_k",) if spec.size == "medium" else formats_of(spec)
    write_fixture(str(tmp_path), spec, (SAFETENSORS, *kinds), now_s=0.0)
    reference = open_model(tmp_path)
    for kind in set(kinds) - {SAFETENSORS}:
        candidate = open_model(tmp_path / f"model-{kind}.gguf")
        assert (candidate.missing(), candidate.unknown()) == ((), ())
        compared = list(compare_models(candidate, reference))
        assert len(compared) == len(tensors_of(spec))
        assert all(one.is_same for one in compared), [one for one in compared if not one.is_same]
        kinds_there = {one.entry.dtype for one in candidate.tensors.values()}
        assert kinds_there == {kind.upper(), "F32"}


@pytest.mark.parametrize("spec", TINY, ids=lambda spec: spec.arch)
def test_the_library_of_the_format_reads_the_same_weights_from_gguf(tmp_path, spec):
    import gguf
    import numpy as np

    write_fixture(str(tmp_path), spec, ("q8_0",), now_s=0.0)
    read = {one.name: one for one in gguf.GGUFReader(tmp_path / "model-q8_0.gguf").tensors}
    tensor = next(one for one in tensors_of(spec) if one.layout.gguf == "output.weight")
    found = gguf.quants.dequantize(read["output.weight"].data, read["output.weight"].tensor_type)
    assert np.array_equal(found, matrix_parts(spec, tensor).floats())


def test_weights_are_spread_as_faults_need_it():
    for tensor in tensors_of(FixtureSpec(size="small")):
        if not tensor.is_vector and tensor.layout.gguf != "token_embd.weight":
            assert float(matrix_parts(FixtureSpec(), tensor).floats().std()) == pytest.approx(tensor.spread, rel=0.1)


def test_the_third_bit_of_a_seed_changes_every_tensor(tmp_path):
    for seed in (0, 4):
        write_fixture(str(tmp_path / str(seed)), FixtureSpec(size="tiny", seed=seed), (SAFETENSORS,), now_s=0.0)
    compared = list(compare_models(open_model(tmp_path / "4"), open_model(tmp_path / "0")))
    assert {one.outcome for one in compared} == {"different"}


@pytest.mark.parametrize("size", ["tiny", "small", "medium"])
def test_a_vocabulary_has_as_many_tokens_as_were_asked_for_and_each_merge_makes_one(size):
    count = shape_of(FixtureSpec(size=size)).vocabulary
    tokenizer = fixture_tokenizer(count)
    assert len(set(tokenizer.tokens)) == len(tokenizer.tokens) == count
    assert [left + right for left, right in tokenizer.merges] == list(tokenizer.tokens[99:])
    known = set(tokenizer.tokens)
    assert all(left in known and right in known for left, right in tokenizer.merges)


def test_text_that_is_printable_survives_its_tokens():
    from tokenizers import Tokenizer

    text = "".join(map(chr, range(0x20, 0x7F))) + "\nthe end"
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer_json(fixture_tokenizer(1000))))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_a_second_call_changes_nothing_and_repairs_what_was_changed(tmp_path):
    spec = FixtureSpec(size="tiny")
    folder = str(tmp_path / "a" / "model")
    first = write_fixture(folder, spec, (SAFETENSORS, "f32"), now_s=0.0)
    assert len(first.changed) == len(first.files) == 5
    stamps = {path.name: path.stat().st_mtime_ns for path in Path(folder).iterdir() if path.name != LISTING}
    again = write_fixture(folder, spec, (SAFETENSORS,), now_s=0.0)
    assert (again.changed, again.files) == ((), first.files)
    assert all(Path(folder, name).stat().st_mtime_ns == stamp for name, stamp in stamps.items())
    Path(folder, "model-f32.gguf").write_bytes(b"no model")
    os.remove(Path(folder, "config.json"))
    assert write_fixture(folder, spec, (SAFETENSORS,), now_s=0.0).changed == ("config.json", "model-f32.gguf")
    assert {file.name: file.sha256 for file in first.files} == _digests(Path(folder))


def test_another_fixture_replaces_the_one_that_is_there(tmp_path):
    write_fixture(str(tmp_path), FixtureSpec(size="tiny"), ("f16", "f32"), now_s=0.0)
    written = write_fixture(str(tmp_path), FixtureSpec(size="tiny", arch="gpt2"), ("f32",), now_s=0.0)
    assert sorted(_digests(tmp_path)) == sorted(file.name for file in written.files)
    assert "model-f16.gguf" not in _digests(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "notes.txt"])
def test_a_folder_with_other_files_is_refused_and_stays_as_it_is(tmp_path, name):
    (tmp_path / name).write_text("{}")
    with pytest.raises(BadInput, match=name):
        write_fixture(str(tmp_path), FixtureSpec(size="tiny"), ("f32",), now_s=0.0)
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "another"}', '{"files": 1}', "[" * 5000, "\xff"])
def test_a_listing_of_something_else_is_refused(tmp_path, text):
    (tmp_path / LISTING).write_text(text)
    with pytest.raises(BadInput, match="is not the listing of a fixture"):
        write_fixture(str(tmp_path), FixtureSpec(size="tiny"), ("f32",), now_s=0.0)


@pytest.mark.parametrize(
    "more", [{}, {"size": []}, {"size": "tiny", "arch": "llama", "seed": 0, "files": [{"format": {}}, {"format": "x"}]}]
)
def test_a_listing_that_is_damaged_or_newer_is_replaced(tmp_path, more):
    (tmp_path / LISTING).write_text(json.dumps({"format": "stoker/fixture", "version": 99, **more}))
    written = write_fixture(str(tmp_path), FixtureSpec(size="tiny"), ("f32",), now_s=0.0)
    assert [file.name for file in written.files if file.format == "f32"] == ["model-f32.gguf"]


@pytest.mark.parametrize("has_listing", [True, False])
def test_what_a_killed_call_left_is_completed(tmp_path, has_listing):
    (tmp_path / ".stoker-tmp-1-1-abc").write_bytes(b"half")
    if has_listing:
        facts = fixture_facts(FixtureSpec(size="tiny"), ())
        (tmp_path / LISTING).write_text(json.dumps(facts))
        (tmp_path / "model-f16.gguf").write_bytes(b"half")
    written = write_fixture(str(tmp_path), FixtureSpec(size="tiny"), ("f16",), now_s=time.time() + 7200)
    assert sorted(_digests(tmp_path)) == sorted(file.name for file in written.files)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "model").touch()
    with pytest.raises(LocalFile, match="is not a folder"):
        write_fixture(str(tmp_path / "model"), FixtureSpec(size="tiny"), ("f32",), now_s=0.0)


def test_a_format_that_rows_do_not_fit_into_is_refused_with_those_that_do(tmp_path):
    with pytest.raises(BadInput, match="of size tiny can't be q4_k") as raised:
        write_fixture(str(tmp_path / "model"), FixtureSpec(size="tiny"), ("q4_k",), now_s=0.0)
    assert "q8_0" in raised.value.hint
    with pytest.raises(BadInput, match="no format 'q3'"):
        write_fixture(str(tmp_path / "model"), FixtureSpec(size="tiny"), ("q3",), now_s=0.0)
    assert not (tmp_path / "model").exists()


def test_a_disk_that_is_too_small_is_named_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("stoker.crossval.fixture_folder.free_bytes", lambda _: 1000)
    with pytest.raises(NoSpace, match="no space for the fixture"):
        write_fixture(str(tmp_path / "model"), FixtureSpec(size="tiny"), ("f32",), now_s=0.0)
    assert not (tmp_path / "model").exists()


def test_the_command_line_does_not_import_numbers_before_it_needs_them():
    code = "import sys, stoker.cli.fixtures; print(sorted({'numpy', 'gguf', 'tokenizers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
