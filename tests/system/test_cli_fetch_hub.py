"""`stoker fetch` of repositories, as a user gives it: a hub that the real client believes, its cache, plain folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.hub import FakeHub, Served
from tests.system.fetching import MIB, fetching_shell, sha256_of, some_bytes, tree
from tests.system.shell import Shell

MODEL = some_bytes(3 * MIB)
FILES = {"README.md": b"hello\n", "config.json": b'{"a": 1}\n', "sub/tokenizer.json": b"{}"}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub(token="hf_right") as hub:
        hub.repository("org/repo").commit({**FILES, "model.gguf": Served(MODEL, is_large=True)})
        yield hub


@pytest.fixture
def shell(tmp_path: Path, hub: FakeHub) -> Shell:
    return fetching_shell(tmp_path, hub.endpoint)


def snapshot(shell: Shell, hub: FakeHub, name: str = "org/repo") -> Path:
    commit = hub.repository(name).branches["main"]
    return Path(shell.env["HF_HOME"]) / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / commit


def test_a_repository_lands_in_the_cache_of_the_hub(shell: Shell, hub: FakeHub) -> None:
    done = shell.stoker("fetch", "org/repo")
    assert done.code == 0, done.err
    there = snapshot(shell, hub)
    assert tree(there) == {*FILES, "sub", "model.gguf"}
    assert (there / "model.gguf").read_bytes() == MODEL
    assert (there / "model.gguf").is_symlink()
    assert done.out.splitlines()[-1] == f"4 files, 3.0 MiB in {there}"
    assert tree(shell.folder) == set()
    hub.asked.clear()
    again = shell.stoker("fetch", "org/repo")
    assert again.out.count("present") == 4
    assert len(hub.asked) == 1
    assert all(told["is_good"] for told in shell.stoker("check", *(there / name for name in FILES), "--json").objects())


def test_files_are_chosen_by_name_folder_and_pattern(shell: Shell, hub: FakeHub) -> None:
    def fetched(*words: str) -> list[str]:
        done = shell.stoker("fetch", "org/repo", *words, "--dry-run", "--json")
        assert done.code == 0, done.err
        return [told["file"].removeprefix("org/repo: ") for told in done.objects()[:-1]]

    assert fetched("config.json") == ["config.json"]
    assert fetched("sub/", "*.md") == ["README.md", "sub/tokenizer.json"]
    assert fetched("--include", "*.json", "--exclude", "sub/*") == ["config.json"]
    assert fetched("--exclude", "*.gguf") == ["README.md", "config.json", "sub/tokenizer.json"]
    missing = shell.stoker("fetch", "org/repo", "confg.json")
    assert missing.code == 14
    assert "did you mean 'config.json'? --dry-run lists what there is" in missing.err
    assert shell.stoker("fetch", "org/repo", "--include", "*.bin").code == 14
    assert shell.stoker("fetch", "org/repo", "--exclude", "*").code == 2
    assert not os.path.exists(shell.env["HF_HOME"])


def test_one_file_prints_its_path_for_scripts(shell: Shell, hub: FakeHub) -> None:
    done = shell.stoker("fetch", "hf://org/repo@main", "config.json", "-q")
    assert (done.code, done.out, done.err) == (0, f"{snapshot(shell, hub)}/config.json\n", "")
    assert shell.stoker("fetch", "org/repo", "-q").out == f"{snapshot(shell, hub)}\n"


def test_out_gives_plain_files_that_share_the_bytes_of_the_cache(shell: Shell, hub: FakeHub) -> None:
    done = shell.stoker("fetch", "org/repo", "--out", "data")
    assert done.code == 0, done.err
    folder = shell.folder / "data" / "org-repo"
    assert tree(folder) == {*FILES, "sub", "model.gguf"}
    assert not any(path.is_symlink() for path in folder.rglob("*"))
    assert (folder / "model.gguf").read_bytes() == MODEL
    hub.asked.clear()
    assert shell.stoker("fetch", "org/repo", "--out", "data").out.count("present") == 4
    assert not hub.asked_for("resolve")


@pytest.mark.parametrize("name", ["config.json", "model.gguf"])
def test_a_file_of_the_user_in_the_folder_stays_and_the_others_come(shell: Shell, hub: FakeHub, name: str) -> None:
    folder = shell.folder / "m" / "org-repo"
    folder.mkdir(parents=True)
    (folder / name).write_text("mine")
    for _ in range(2):
        done = shell.stoker("fetch", "org/repo", "--out", "m")
        assert done.code == 16
        assert f"file exists and was not downloaded by Stoker: {folder / name}" in done.err
        assert (folder / name).read_text() == "mine"
    assert len([path for path in folder.rglob("*") if path.is_file()]) > 1
    assert shell.stoker("fetch", "org/repo", name, "--out", "m", "--force").code == 0
    assert (folder / name).read_text(errors="replace") != "mine"
    (folder / name).unlink()
    (folder / name).write_text("edited")
    assert shell.stoker("fetch", "org/repo", name, "--out", "m").code == 0


def test_a_revision_is_a_branch_a_commit_or_a_mistake(shell: Shell, hub: FakeHub) -> None:
    first = hub.repository("org/repo").branches["main"]
    hub.repository("org/repo").commit({"config.json": b"new"}, branch="v2")
    assert "3.0 MiB" in shell.stoker("fetch", "org/repo", "--dry-run", "--rev", first).out
    done = shell.stoker("fetch", "org/repo@v2", "--out", "x")
    assert (shell.folder / "x/org-repo/config.json").read_bytes() == b"new"
    assert done.code == 0
    wrong = shell.stoker("fetch", "org/repo", "--rev", "v3")
    assert wrong.code == 14
    assert "v3" in wrong.err


def test_what_is_not_ours_to_see_is_11_and_a_token_opens_it(shell: Shell, hub: FakeHub) -> None:
    hub.repository("org/gated").commit({"a.bin": Served(MODEL, is_large=True)})
    hub.repository("org/gated").is_gated = True
    refused = shell.stoker("fetch", "org/gated")
    assert refused.code == 11
    assert "HF_TOKEN" in refused.err
    wrong = shell.stoker("fetch", "org/gated", HF_TOKEN="hf_wrong")
    assert wrong.code == 11
    assert "hf_wrong" not in wrong.err
    done = shell.stoker("fetch", "org/gated", "--verbose", HF_TOKEN="hf_right")
    assert done.code == 0, done.err
    assert "hf_right" not in done.out + done.err
    assert "Signature" not in done.err
    assert not [asked for asked in hub.asked if asked.at_cdn and "authorization" in asked.headers]
    token = Path(shell.env["HF_HOME"]) / "token"
    token.write_text("hf_right\n")
    assert shell.stoker("fetch", "org/gated", "--force").code == 0
    assert shell.stoker("fetch", "org/none").code in (11, 14)


def test_the_expected_digest_is_held_against_the_one_file(shell: Shell, hub: FakeHub) -> None:
    assert shell.stoker("fetch", "org/repo", "model.gguf", "--sha256", sha256_of(MODEL), "--out", "x").code == 0
    assert shell.stoker("fetch", "org/repo", "config.json", "--sha256", sha256_of(FILES["config.json"])).code == 0
    for name in ("model.gguf", "config.json"):
        wrong = shell.stoker("fetch", "org/repo", name, "--sha256", "0" * 64, "--out", "y")
        assert wrong.code == 13
        assert "0" * 64 in wrong.err
    assert not (shell.folder / "y").exists()
    several = shell.stoker("fetch", "org/repo", "--sha256", "0" * 64)
    assert several.code == 2
    assert "--sha256 needs exactly one file" in several.err


def test_one_file_that_fails_does_not_lose_the_others(shell: Shell, hub: FakeHub) -> None:
    def spoil(asked, answer):
        if asked.at_cdn:
            answer.body = answer.body[:-1] + b"?"
        return answer

    hub.tamper = spoil
    done = shell.stoker("fetch", "org/repo", "--json", "--retries", "1")
    assert done.code == 13
    ends = {told["file"]: told["phase"] for told in done.objects() if told["phase"] in ("done", "failed")}
    assert ends.pop("org/repo: model.gguf") == "failed"
    assert set(ends.values()) == {"done"}
    assert len(ends) == 3
    plain = shell.stoker("fetch", "org/repo", "--retries", "1")
    assert plain.code == 13
    assert "1 of 4 files failed" in plain.err
    hub.tamper = None
    assert shell.stoker("fetch", "org/repo").code == 0


def test_offline_gives_what_the_cache_has(shell: Shell, hub: FakeHub) -> None:
    absent = shell.stoker("fetch", "org/repo", "--offline")
    assert absent.code == 14
    assert "hint: download it without --offline" in absent.err
    shell.stoker("fetch", "org/repo", "config.json")
    hub.asked.clear()
    assert shell.stoker("fetch", "org/repo", "config.json", "--offline").code == 0
    assert shell.stoker("fetch", "org/repo", "config.json", HF_HUB_OFFLINE="1").code == 0
    missing = shell.stoker("fetch", "org/repo", "model.gguf", "--offline")
    assert missing.code == 14
    assert hub.asked == []


def test_damage_in_the_cache_is_told_set_aside_and_mended(shell: Shell, hub: FakeHub) -> None:
    shell.stoker("fetch", "org/repo")
    blob = (snapshot(shell, hub) / "model.gguf").resolve()
    blob.chmod(0o644)
    blob.write_bytes(MODEL[:-1] + b"?")
    assert shell.stoker("check", snapshot(shell, hub) / "model.gguf").code == 15
    done = shell.stoker("fetch", "org/repo")
    assert done.code == 0
    assert "note: org/repo: model.gguf was damaged in the cache" in done.err
    assert ".damaged-" in done.err
    assert "damaged" not in done.out
    assert (snapshot(shell, hub) / "model.gguf").read_bytes() == MODEL
    assert shell.stoker("check", snapshot(shell, hub) / "model.gguf").code == 0


def test_pages_of_the_hub_mean_what_they_show(shell: Shell, hub: FakeHub) -> None:
    page = f"{hub.endpoint}/org/repo"
    assert shell.stoker("fetch", f"{page}/blob/main/sub/tokenizer.json").code == 0
    assert tree(shell.folder) == {"tokenizer.json"}
    assert shell.stoker("fetch", f"{page}/resolve/main/model.gguf?download=true", "--out", "m").code == 0
    assert (shell.folder / "m/model.gguf").read_bytes() == MODEL
    listed = shell.stoker("fetch", f"{page}/tree/main/sub", "--dry-run", "--json").objects()
    assert [told["file"] for told in listed[:-1]] == ["org/repo: sub/tokenizer.json"]
    assert len(shell.stoker("fetch", page, "--dry-run", "--json").objects()) == 5


def test_a_plain_mirror_serves_files_by_name(shell: Shell, hub: FakeHub) -> None:
    hub.lists = False
    done = shell.stoker("fetch", "org/repo", "model.gguf", "--base-url", hub.endpoint, "--out", "m", HF_ENDPOINT="")
    assert done.code == 0, done.err
    assert (shell.folder / "m/org-repo/model.gguf").read_bytes() == MODEL
    nameless = shell.stoker("fetch", "org/repo")
    assert nameless.code == 14
    assert "name" in nameless.err


def test_what_is_nearly_right_is_told_how_it_is_said(shell: Shell, hub: FakeHub) -> None:
    hub.repository("org/folders").commit({"onnx/a.onnx": b"x"})
    assert "hint: onnx/ is a folder: write onnx/" in shell.stoker("fetch", "org/folders", "onnx").err
    assert "if it is a dataset: stoker fetch datasets/org/data" in shell.stoker("fetch", "org/data").err
    gone = shell.stoker("fetch", "org/repo", "--retries", "1", HF_ENDPOINT="http://127.0.0.1:9")
    assert gone.code == 14
    assert "HF_ENDPOINT or --base-url" in gone.err
    assert "--offline" in gone.err


def test_datasets_have_a_name_of_their_own(shell: Shell, hub: FakeHub) -> None:
    hub.repository("datasets/org/data").commit({"a.csv": b"1,2\n"})
    assert shell.stoker("fetch", "datasets/org/data", "--out", "d").code == 0
    assert (shell.folder / "d/datasets-org-data/a.csv").read_bytes() == b"1,2\n"


def test_a_dry_run_tells_what_is_there_and_what_is_to_come(shell: Shell, hub: FakeHub) -> None:
    shell.stoker("fetch", "org/repo", "config.json")
    before = tree(Path(shell.env["HF_HOME"]))
    *files, told = shell.stoker("fetch", "org/repo", "--dry-run", "--json").objects()
    assert {one["file"]: one["is_there"] for one in files} == {
        f"org/repo: {name}": name == "config.json" for name in [*FILES, "model.gguf"]
    }
    total = len(MODEL) + sum(map(len, FILES.values()))
    assert (told["bytes"], told["to_come_bytes"]) == (total, total - len(FILES["config.json"]))
    shown = shell.stoker("fetch", "org/repo", "--dry-run").out
    assert "present      config.json" in shown
    assert "to download  model.gguf" in shown
    assert tree(Path(shell.env["HF_HOME"])) == before


def test_a_dry_run_offline_says_what_would_not_come(shell: Shell, hub: FakeHub) -> None:
    shell.stoker("fetch", "org/repo", "config.json")
    hub.asked.clear()
    done = shell.stoker("fetch", "org/repo", "--dry-run", "--offline")
    assert done.code == 0, done.err
    assert "present        config.json" in done.out
    assert "not available  model.gguf" in done.out
    assert "3 of 4 files not available" in done.err
    *files, told = shell.stoker("fetch", "org/repo", "--dry-run", "--offline", "--json").objects()
    assert [one["file"] for one in files if not one["is_missing"]] == ["org/repo: config.json"]
    assert (told["to_come_bytes"], told["is_missing"]) == (0, True)
    assert hub.asked == []


def test_a_dry_run_touches_nothing_and_refuses_what_the_fetch_refuses(shell: Shell, hub: FakeHub) -> None:
    assert shell.stoker("fetch", "org/repo", "--dry-run").code == 0
    assert shell.stoker("fetch", "org/repo", "model.gguf", "--sha256", "0" * 64, "--dry-run").code == 13
    assert not shell.home.exists()
    assert not os.path.exists(shell.env["HF_HOME"])


def test_a_dry_run_tells_where_plain_files_will_lie_and_what_the_cache_has(shell: Shell, hub: FakeHub) -> None:
    shell.stoker("fetch", "org/repo", "config.json")
    *files, told = shell.stoker("fetch", "org/repo", "--out", "~/x", "--dry-run", "--json").objects()
    assert told["folder"] == str(Path(shell.env["HOME"]) / "x/org-repo")
    assert files[1]["path"] == f"{told['folder']}/config.json"
    assert [one["is_there"] for one in files] == [False, True, False, False]
    assert "on this machine  config.json" in shell.stoker("fetch", "org/repo", "--out", "x", "--dry-run").out
