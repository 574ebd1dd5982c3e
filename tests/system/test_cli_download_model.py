"""`stoker download-model`: the earlier tool's command, its defaults, its layout and its codes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.hub import FakeHub, Served
from tests.system.fetching import MIB, fetching_shell, sha256_of, some_bytes, tree
from tests.system.shell import Shell

MODEL = some_bytes(2 * MIB)
ID, FILE = "microsoft/bitnet-b1.58-2B-4T-gguf", "ggml-model-i2_s.gguf"
FOLDER = "models/microsoft-bitnet-b1.58-2B-4T-gguf"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as hub:
        hub.repository(ID).commit({FILE: Served(MODEL, is_large=True), "tokenizer.model": b"words"})
        hub.repository("org/bare").commit({"deep/er/model.gguf": Served(MODEL, is_large=True)})
        yield hub


@pytest.fixture
def shell(tmp_path: Path, hub: FakeHub) -> Shell:
    return fetching_shell(tmp_path, hub.endpoint)


def test_the_defaults_are_those_that_were_documented(shell: Shell, hub: FakeHub) -> None:
    done = shell.stoker("download-model")
    assert done.code == 0, done.err
    assert (shell.folder / FOLDER / FILE).read_bytes() == MODEL
    assert done.out.splitlines()[-1] == str(shell.folder / FOLDER / FILE)
    # The first tokenizer that there is; appended names, so that two files never share one.
    beside = {f"{name}{end}" for name in (FILE, "tokenizer.model") for end in ("", ".etag")}
    assert tree(shell.folder / FOLDER) == beside
    hub.asked.clear()
    assert shell.stoker("download-model").out.count("present") == 2
    assert not [asked for asked in hub.asked if asked.method == "GET"]


def test_only_the_last_part_of_a_path_names_the_file_and_no_tokenizer_is_no_failure(shell: Shell) -> None:
    done = shell.stoker("download-model", "--id", "org/bare", "--file", "deep/er/model.gguf", "--out", "m")
    assert (done.code, done.err) == (0, "")
    assert (shell.folder / "m/org-bare/model.gguf").read_bytes() == MODEL
    for path in ("deep/", "../../x.gguf"):
        wrong = shell.stoker("download-model", "--id", "org/bare", "--file", path)
        assert wrong.code == 2
        assert "is not a file name" in wrong.err


def test_a_tokenizer_that_can_not_be_had_is_a_note(shell: Shell, hub: FakeHub) -> None:
    def refuse(asked, answer):
        if "tokenizer" in asked.target:
            answer.status, answer.headers, answer.body = 403, {"X-Error-Code": "GatedRepo"}, b""
        return answer

    hub.tamper = refuse
    done = shell.stoker("download-model")
    assert done.code == 0
    assert "note: the model was downloaded, tokenizer.json was not" in done.err
    (warning,) = (event for event in shell.stoker("download-model", "--json").objects() if event["kind"] == "warning")
    assert "tokenizer.json was not" in warning["message"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--sha256", "0" * 64], 13),
        (["--file", "none.gguf"], 14),
        (["--id", "org/none"], 11),
        (["--offline"], 14),
        (["--id", "../x"], 2),
    ],
)
def test_codes(shell: Shell, words: list[str], code: int) -> None:
    done = shell.stoker("download-model", *words)
    assert done.code == code, done.err
    assert not (shell.folder / FOLDER / FILE).exists()


def test_offline_takes_the_file_that_is_there_if_its_digest_fits(shell: Shell, hub: FakeHub) -> None:
    shell.stoker("download-model")
    hub.asked.clear()
    assert shell.stoker("download-model", "--offline", "--sha256", sha256_of(MODEL)).code == 0
    assert shell.stoker("download-model", HF_HUB_OFFLINE="1").code == 0
    assert shell.stoker("download-model", "--offline", "--sha256", "0" * 64).code == 13
    assert hub.asked == []


def test_a_file_of_the_user_is_never_replaced_unasked(shell: Shell, hub: FakeHub) -> None:
    mine = shell.folder / FOLDER / FILE
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    done = shell.stoker("download-model")
    assert (done.code, mine.read_text()) == (16, "mine")
    assert f"file exists and was not downloaded by Stoker: {mine}" in done.err
    assert not [asked for asked in hub.asked if asked.at_cdn]
    # What the earlier tool left has its validators beside it.
    mine.with_name(f"{FILE}.etag").write_text('"old"\n')
    assert shell.stoker("download-model").code == 0
    assert mine.read_bytes() == MODEL


def test_a_default_that_the_repository_does_not_have_is_told_as_one(shell: Shell, hub: FakeHub) -> None:
    hub.repository("org/other").commit({"a.gguf": b"a"})
    done = shell.stoker("download-model", "--id", "org/other")
    assert done.code == 14
    assert f"hint: the default is --file {FILE}; `stoker fetch org/other --dry-run` lists" in done.err
    assert "did you mean `stoker download-model --id org/other`?" in shell.stoker("download-model", "org/other").err
    assert "did you mean `stoker fetch`?" in shell.stoker("download", "org/other").err


def test_bytes_that_the_cache_has_do_not_come_again(shell: Shell, hub: FakeHub) -> None:
    shell.stoker("fetch", ID, FILE)
    hub.asked.clear()
    assert "on this machine" in shell.stoker("download-model").out
    assert not [asked for asked in hub.asked if asked.at_cdn]
    model = shell.folder / FOLDER / FILE
    assert model.read_bytes() == MODEL
    # It is the user's own: writing to it changes nothing in the cache.
    model.write_bytes(b"mine")
    assert "present" in shell.stoker("fetch", ID, FILE).out


@pytest.mark.skipif(shutil.which("jq") is None, reason="there is no jq here")
def test_the_lines_with_jq_work_as_they_are_written(shell: Shell, hub: FakeHub) -> None:
    def piped(words: str) -> str:
        script = f'stoker() {{ "{sys.executable}" -P -m stoker "$@"; }}; set -o pipefail; {words}'
        done = subprocess.run(
            ["bash", "-c", script], cwd=shell.folder, env=shell.env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    progress = piped(
        """stoker download-model --json | jq -r 'select(.phase=="progress") | [.downloaded,.total] | @tsv'"""
    )
    assert f"\t{len(MODEL)}" in progress
    shutil.rmtree(shell.folder / "models")
    done = piped(
        """stoker download-model --json | jq -r 'select(.phase=="done") | "Downloaded \\(.bytes) bytes in \\(.ms)ms"'"""
    )
    assert done.startswith(f"Downloaded {len(MODEL)} bytes in ")
    shutil.rmtree(shell.folder / "models")
    failed = False

    def cut_once(asked, answer):
        nonlocal failed
        if asked.at_cdn and asked.method == "GET" and not failed:
            failed = True
            answer.cuts_at = MIB
        return answer

    hub.tamper = cut_once
    assert '"wait_secs"' in piped("""stoker download-model --json | jq 'select(.phase=="retry")'""")
