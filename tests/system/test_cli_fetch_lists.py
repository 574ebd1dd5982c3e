"""Lock lists as a user works with them: freeze a repository, fetch by the list, check the disk against it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers import habits as bad
from tests.servers.faulty import FaultyServer, Version
from tests.servers.hub import FakeHub, Served
from tests.system.fetching import MIB, fetching_shell, sha256_of, some_bytes, tree
from tests.system.shell import Done, Shell

DATA = some_bytes(MIB + 5)


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer(Version(data=DATA)) as server:
        yield server


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return fetching_shell(tmp_path)


def write_lock(shell: Shell, *entries: dict[str, Any]) -> None:
    (shell.folder / "models.lock.json").write_text(json.dumps(entries, indent=2))


def entry(name: str, *urls: str, data: bytes = DATA) -> dict[str, Any]:
    return {"id": name, "sha256": sha256_of(data), "bytes": len(data), "urls": list(urls), "license": "mit"}


def ends(done: Done) -> dict[str, Any]:
    """Return how each file ended, by its id."""
    return {told["file"]: told for told in done.objects() if told["phase"] in ("done", "failed")}


def test_each_file_comes_from_the_first_address_that_has_it(shell: Shell, server: FaultyServer) -> None:
    with FaultyServer(Version(data=DATA), bad.flipped(7)) as lying:
        write_lock(shell, entry("model", f"{server.origin}/gone", lying.url, server.url))
        done = shell.stoker("fetch", "--lock", "models.lock.json", "--json")
    assert done.code == 0, done.err
    told = done.objects()
    assert [event["reason"] for event in told if event["phase"] == "retry"][-1] == "mirror"
    end = ends(done)["model"]
    # Named by the first address, wherever it came from.
    assert end["path"] == str(shell.folder / "models" / sha256_of(DATA) / "gone")
    assert (end["status"], end["bytes"]) == ("downloaded", len(DATA))
    assert Path(end["path"]).read_bytes() == DATA
    again = shell.stoker("fetch", "--lock", "models.lock.json", "--json")
    assert [(event["phase"], event["status"]) for event in again.objects()] == [("done", "cached")]


def test_one_file_that_nobody_has_is_an_error_and_the_others_come(shell: Shell, server: FaultyServer) -> None:
    write_lock(
        shell,
        entry("lost", f"{server.origin}/a", f"{server.origin}/b", data=b"nobody has it"),
        entry("found", server.url),
        entry("other", server.url, data=b"not what is served"),
    )
    done = shell.stoker("fetch", "--lock", "models.lock.json", "--json")
    ended = ends(done)
    assert done.code == 14
    assert {name: told["phase"] for name, told in ended.items()} == {
        "lost": "failed",
        "found": "done",
        "other": "failed",
    }
    assert ended["lost"]["exit_code"] == 14
    assert ended["other"]["exit_code"] == 13
    assert len(ended["lost"]["data"]["tried"]) == 2
    plain = shell.stoker("fetch", "--lock", "models.lock.json")
    assert plain.code == 14
    assert "2 of 3 files failed" in plain.err
    assert not [path for path in tree(shell.folder / "models") if path.endswith(("/a", "/b"))]


def test_check_verifies_everything_on_disk_without_a_network(shell: Shell, server: FaultyServer) -> None:
    write_lock(shell, entry("one", server.url), entry("two", f"{server.origin}/two", data=b"2"))
    server.versions["/two"] = Version(data=b"2")
    missing = shell.stoker("fetch", "--check")
    assert missing.code == 15
    assert "2 of 2 files differ" in missing.err
    assert "not on this disk" in missing.out
    assert shell.stoker("fetch", "--lock", "models.lock.json", "--out", "m").code == 0
    server.close()
    # Where a receipt says that the bytes are is as good as where the list puts them.
    assert shell.stoker("fetch", "--check", "models.lock.json").code == 0
    assert shell.stoker("fetch", "--check", "--out", "m").code == 0
    assert shell.stoker("check", "models.lock.json", "--out", "m", "-q").out == ""
    (shell.folder / "m" / sha256_of(b"2") / "two").write_bytes(b"3")
    done = shell.stoker("fetch", "--check", "--out", "m", "--json")
    assert done.code == 15
    good, wrong = done.objects()[:2]
    assert (good["file"], good["is_good"]) == ("one", True)
    assert (wrong["file"], wrong["is_good"]) == ("two", False)
    assert wrong["path"] == str(shell.folder / "m" / sha256_of(b"2") / "two")
    assert sha256_of(b"3") in wrong["differs"][0]


def test_a_broken_list_is_told_whole_with_lines_and_nothing_is_fetched(shell: Shell, server: FaultyServer) -> None:
    write_lock(shell, {**entry("one", server.url), "sha256": "abc"}, {**entry("one", "ftp://x/y"), "size": 3})
    for words in (["--lock", "models.lock.json"], ["--check"]):
        done = shell.stoker("fetch", *words)
        assert done.code == 20
        assert "models.lock.json:4: [0].sha256: must be 64 hexadecimal digits" in done.err
        assert "[1].id: 'one' is in the list twice" in done.err
        assert "[1].size: is not a field of a listed file" in done.err
        assert "[1].urls[0]: not a web address" in done.err
    assert server.asked == []
    assert shell.stoker("fetch", "--lock", "nowhere.json").code == 16


def test_a_dry_run_of_a_list_asks_nobody(shell: Shell, server: FaultyServer) -> None:
    write_lock(shell, entry("one", server.url))
    *files, told = shell.stoker("fetch", "--lock", "models.lock.json", "--dry-run", "--json").objects()
    assert [one["file"] for one in files] == ["one"]
    assert told["to_come_bytes"] == len(DATA)
    assert server.asked == []
    assert tree(shell.folder) == {"models.lock.json"}


def test_a_frozen_repository_is_fetched_again_by_its_list_alone(tmp_path: Path) -> None:
    with FakeHub() as hub:
        files: dict[str, bytes | Served] = {
            "model.gguf": Served(DATA, is_large=True),
            "config.json": b"{}",
            "sub/config.json": b"{}",
        }
        commit = hub.repository("org/repo").commit(files)
        hub.tamper = _with_card
        shell = fetching_shell(tmp_path, hub.endpoint)
        done = shell.stoker("fetch", "--freeze", "org/repo")
        assert done.code == 0, done.err
        assert done.out.splitlines()[-1] == f"3 files, 1.0 MiB, listed in {shell.folder}/models.lock.json"
        listed = json.loads((shell.folder / "models.lock.json").read_text())
        assert [one["id"] for one in listed] == [
            "org/repo/config.json",
            "org/repo/model.gguf",
            "org/repo/sub/config.json",
        ]
        assert listed[1] == {
            "id": "org/repo/model.gguf",
            "sha256": sha256_of(DATA),
            "bytes": len(DATA),
            "urls": [f"{hub.endpoint}/org/repo/resolve/{commit}/model.gguf"],
            "license": "apache-2.0",
        }
        assert listed[0]["sha256"] == sha256_of(b"{}")
        assert not [asked for asked in hub.asked if asked.at_cdn]
        # The branch moves on; the list does not.
        hub.repository("org/repo").commit({"model.gguf": Served(b"new", is_large=True)})
        assert shell.stoker("fetch", "--lock", "models.lock.json").code == 0
        assert shell.stoker("fetch", "--check").code == 0
        assert (shell.folder / "models" / sha256_of(DATA) / "model.gguf").read_bytes() == DATA
        merged = shell.stoker("fetch", "--freeze", "org/repo", "model.gguf")
        assert "1 file, 3 B, listed in" in merged.out
        assert "plus 2 from before" in merged.out
        now = {one["id"]: one["sha256"] for one in json.loads((shell.folder / "models.lock.json").read_text())}
        assert now == {one["id"]: one["sha256"] for one in listed} | {"org/repo/model.gguf": sha256_of(b"new")}
        assert shell.stoker("fetch", "--freeze", "org/repo", "model.gguf", "--force").code == 0
        assert len(json.loads((shell.folder / "models.lock.json").read_text())) == 1
        assert shell.stoker("fetch", "--freeze", "org/repo", "model.gguf", "--lock", "new.lock.json", "-q").out == (
            f"{shell.folder}/new.lock.json\n"
        )
        assert json.loads((shell.folder / "new.lock.json").read_text())[0]["sha256"] == sha256_of(b"new")


def test_a_list_takes_from_the_cache_what_is_there_with_and_without_a_network(tmp_path: Path) -> None:
    with FakeHub() as hub:
        hub.repository("org/repo").commit({"a.gguf": Served(DATA, is_large=True), "b.json": b"{}"})
        shell = fetching_shell(tmp_path, hub.endpoint)
        for words in (["fetch", "org/repo"], ["fetch", "--freeze", "org/repo"], ["fetch", "--check"]):
            assert shell.stoker(*words).code == 0
        hub.asked.clear()
        assert "2 files, 1.0 MiB" in shell.stoker("fetch", "--lock", "models.lock.json", "--dry-run").out
        for words in (["--offline"], ["--out", "again"]):
            done = shell.stoker("fetch", "--lock", "models.lock.json", *words, "--json")
            assert {told["status"] for told in ends(done).values()} == {"linked"}
        assert hub.asked == []
        assert (shell.folder / "again" / sha256_of(DATA) / "a.gguf").read_bytes() == DATA
        assert (shell.folder / "models" / sha256_of(b"{}") / "b.json").read_bytes() == b"{}"


def test_freezing_is_told_as_an_event_like_everything_else(tmp_path: Path) -> None:
    with FakeHub() as hub:
        commit = hub.repository("org/repo").commit({"a.gguf": Served(DATA, is_large=True), "b.json": b"{}"})
        shell = fetching_shell(tmp_path, hub.endpoint)
        events = shell.stoker("fetch", "--freeze", "org/repo", "--json").objects()
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert all(event["kind"] == f"download_{event['phase']}" for event in events)
        told = events[-1]
        assert (told["phase"], told["file"], told["commit"]) == ("frozen", "org/repo", commit)
        assert (told["path"], told["files"], told["bytes"]) == (
            str(shell.folder / "models.lock.json"),
            2,
            len(DATA) + 2,
        )


def test_lock_names_the_list_whatever_is_done_with_it(tmp_path: Path) -> None:
    with FakeHub() as hub:
        hub.repository("org/repo").commit({"a.gguf": Served(DATA, is_large=True)})
        shell = fetching_shell(tmp_path, hub.endpoint)
        assert shell.stoker("fetch", "org/repo", "--freeze", "--lock", "deps.json").code == 0
        assert shell.stoker("fetch", "--lock", "deps.json", "--out", "~/m").code == 0
        home = Path(shell.env["HOME"])
        assert (home / "m" / sha256_of(DATA) / "a.gguf").read_bytes() == DATA
        for words in (["fetch", "--check", "--lock"], ["fetch", "--check"], ["check"]):
            done = shell.stoker(*words, "deps.json", "--out", "~/m", "--json")
            assert done.code == 0, done.err
            (told,) = done.objects()
            assert (told["file"], told["what"], told["is_good"]) == ("org/repo/a.gguf", "entry", True)
            assert told["path"] == str(home / "m" / sha256_of(DATA) / "a.gguf")


def test_an_empty_list_is_told_as_one(shell: Shell) -> None:
    (shell.folder / "none.lock.json").write_text("[]\n")
    for words in (["fetch", "--lock", "none.lock.json"], ["check", "none.lock.json"]):
        done = shell.stoker(*words)
        assert (done.code, done.err) == (0, "")
        assert "is empty" in done.out


def _with_card(asked, answer):
    """Answer questions about a revision as a hub does whose model has a card."""
    if "/revision/" in asked.target and answer.status == 200:
        answer.body = json.dumps({**json.loads(answer.body), "cardData": {"license": "apache-2.0"}}).encode()
    return answer
