"""`stoker fixtures`: a folder that runtimes load, its digests, and what is wrong with a request."""

from __future__ import annotations

import hashlib
import json

from tests.system.shell import Shell


def test_a_fixture_is_written_and_its_digests_are_printed(shell: Shell) -> None:
    done = shell.stoker("fixtures", "--size", "tiny", "--output", "model")
    assert done.code == 0, done.err
    printed = {name: digest for digest, *_, name in map(str.split, done.out.splitlines())}
    folder = shell.folder / "model"
    assert printed == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != "fixture.json"
    }
    assert {"model.safetensors", "model-q8_0.gguf", "tokenizer.json"} <= set(printed)
    assert "model: 8 files written" in done.err
    again = shell.stoker("fixtures", "--size", "tiny", "--output", "model", "--json")
    [answer] = map(json.loads, again.out.splitlines())
    assert (answer["size"], answer["arch"], answer["changed"]) == ("tiny", "llama", [])
    assert {one["name"]: one["sha256"] for one in answer["files"]} == printed
    assert json.loads((folder / "fixture.json").read_text())["files"] == answer["files"]


def test_a_folder_is_named_by_what_is_in_it_and_an_unknown_size_is_small(shell: Shell) -> None:
    done = shell.stoker("fixtures", "--size", "huge", "--arch", "qwen2", "--formats", "q8_0, Q8_0")
    assert done.code == 0, done.err
    assert "there is no size 'huge' (tiny, small, medium); small is used" in done.err
    files = {path.name for path in (shell.folder / "fixtures" / "qwen2-small").iterdir()}
    assert files == {"config.json", "tokenizer.json", "tokenizer_config.json", "model-q8_0.gguf", "fixture.json"}


def test_what_can_not_be_written_is_refused(shell: Shell) -> None:
    (shell.folder / "mine").mkdir()
    (shell.folder / "mine" / "config.json").write_text("{}")
    cases = {
        ("--arch", "lama"): (2, "did you mean 'llama'?"),
        ("--formats", "q4_k"): (2, "formats of this size: safetensors, bf16, f16, f32, q8_0; q4_k needs --size medium"),
        ("--formats", "int4"): (2, "there is no format 'int4'"),
        ("--output", "mine"): (2, "holds files that are no fixture: config.json"),
        ("--output", "mine/config.json"): (16, "is not a folder"),
    }
    for words, (code, text) in cases.items():
        done = shell.stoker("fixtures", *words)
        assert (done.code, text in done.err) == (code, True), done.err
    assert (shell.folder / "mine" / "config.json").read_text() == "{}"
