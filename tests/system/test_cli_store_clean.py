"""`stoker clean`: every place with its size, dry by default, asking on a terminal, `--yes` for machines."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.system.shell import Shell, wait_until


@pytest.fixture
def used(shell: Shell) -> Shell:
    """A shell with a result, a thing that was put, leftovers of the dead, and models of other programs."""
    shell.env["HF_HOME"] = str(shell.home / "hf")
    assert shell.stoker("run", "toy/text", "value=3").code == 0
    (shell.folder / "data").write_bytes(b"d" * 20_000)
    assert shell.stoker("store", "put", "data").code == 0
    left = shell.home / "store" / "staging" / ".999999.1.dead"
    left.mkdir()
    (left / "half").write_bytes(b"h" * 30_000)
    blobs = shell.home / "hf" / "hub" / "models--org--name" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "whole").write_bytes(b"w" * 50_000)
    (blobs / "half.incomplete").write_bytes(b"i" * 7000)
    os.utime(blobs / "half.incomplete", (time.time() - 200_000, time.time() - 200_000))
    return shell


@pytest.fixture
def left(shell: Shell) -> Shell:
    """A shell in which a process died."""
    shell.env["HF_HOME"] = str(shell.home / "hf")
    folder = shell.home / "store" / "staging" / ".999999.1.dead"
    folder.mkdir(parents=True)
    (folder / "half").write_bytes(b"h" * 30_000)
    return shell


def everything(shell: Shell) -> set[Path]:
    return {path for path in shell.home.rglob("*") if path.is_file() and "memo.db" not in path.name}


def test_every_place_is_listed_and_nothing_is_removed_unless_told(used: Shell) -> None:
    before = everything(used)
    *places, total = used.stoker("clean", "--json").objects()
    by_name = {place["place"]: place for place in places}
    assert list(by_name) == [
        "results", "kept results", "staging", "uploads", "incoming", "views", "names", "quarantine", "scratch",
        "workspaces", "jobs", "state", "environments", "kernels", "fleet", "unfinished downloads", "models",
        "plain results",
    ]  # fmt: skip
    assert (by_name["staging"]["bytes"], by_name["staging"]["removable_bytes"]) == (30_000, 30_000)
    assert (by_name["models"]["bytes"], by_name["models"]["removable_bytes"]) == (50_000, 0)
    assert by_name["unfinished downloads"]["removable_bytes"] == 7000
    assert by_name["kept results"]["bytes"] == 20_000
    assert by_name["plain results"]["bytes"] >= 10_000
    assert by_name["plain results"]["stays"] == "your files: never removed"
    assert total["total_bytes"] == sum(place["bytes"] for place in places)
    assert total["removable_bytes"] == sum(place["removable_bytes"] for place in places)
    assert (total["done"], total["freed_bytes"]) == (False, 0)
    shown = used.stoker("clean").out
    assert "nothing was removed; remove it with --yes" in shown
    assert all(name in shown for name in by_name)
    assert everything(used) == before


def test_told_to_it_removes_what_may_go_and_says_how_much(used: Shell) -> None:
    *places, total = used.stoker("clean", "--yes", "--json").objects()
    assert total["done"] is True
    assert total["stuck"] == []
    assert total["freed_bytes"] == total["removable_bytes"] >= 37_000
    assert used.staged() == []
    hub = used.home / "hf" / "hub" / "models--org--name" / "blobs"
    assert [path.name for path in hub.iterdir()] == ["whole"]
    assert used.stoker("get", "data", "back").code == 0
    assert (used.folder / "stoker-out" / "text").is_dir()
    assert used.stoker("run", "toy/text", "value=3").out.startswith("all 2 stages were cached")
    again = used.stoker("clean", "--yes")
    assert again.code == 0
    assert places


def test_a_limit_lets_results_go_as_well_and_what_was_put_stays(used: Shell) -> None:
    wait_until(lambda: all(time.time() - path.stat().st_ctime > 1.2 for path in used.home.glob("store/blobs/*/*")))
    done = used.stoker("store", "prune", "--everywhere", "--max-size", "0", "--yes")
    assert done.code == 0, done.err
    assert "remove: 2 results" in done.out
    assert len(list(used.home.glob("store/blobs/*/*"))) == 1
    assert used.stoker("get", "data", "back").code == 0


@pytest.mark.parametrize("words", [("clean",), ("store", "prune")])
@pytest.mark.parametrize(
    ("answer", "goes"),
    [("y", True), ("YES", True), ("n", False), ("", False), ("Yep", False), ("\x04", False)],
)
def test_at_a_terminal_it_asks_and_only_y_or_yes_accepts(
    left: Shell, words: tuple[str, ...], answer: str, goes: bool
) -> None:
    seen = answering(left, *words, answer=answer)
    assert "Remove " in seen
    assert ("freed" in seen) is goes
    assert (left.staged() == []) is goes


@pytest.mark.parametrize("words", [("clean", "--dry-run"), ("store", "prune", "--dry-run")])
def test_a_dry_run_asks_nothing_and_removes_nothing(left: Shell, words: tuple[str, ...]) -> None:
    seen = answering(left, *words, answer="y")
    assert "Remove " not in seen
    assert "nothing was removed; remove it with --yes" in seen
    assert left.staged()


def test_young_downloads_of_ours_go_when_told(used: Shell) -> None:
    part = used.home / "hf" / "hub" / "models--org--name" / "blobs" / "young.part"
    part.write_bytes(b"p" * 900)
    assert used.stoker("clean", "--yes").code == 0
    assert part.exists()
    assert used.stoker("clean", "--downloads", "--yes").code == 0
    assert not part.exists()


def test_only_the_named_places_are_listed_and_cleaned(used: Shell) -> None:
    part = used.home / "hf" / "hub" / "models--org--name" / "blobs" / "half.incomplete"
    *places, total = used.stoker("clean", "unfinished-downloads", "quarantine", "--yes", "--json").objects()
    assert [place["place"] for place in places] == ["quarantine", "unfinished downloads"]
    assert total["freed_bytes"] == 7000
    assert not part.exists()
    assert used.staged(), "another place"
    wrong = used.stoker("clean", "stagin", "--yes")
    assert wrong.code == 2
    assert "did you mean 'staging'?" in wrong.err
    assert used.stoker("clean", "staging", "--yes").code == 0
    assert used.staged() == []


def test_help_says_what_it_is_short_for(shell: Shell) -> None:
    shown = " ".join(shell.stoker("clean", "--help").out.split())
    assert "The same as `stoker store prune --everywhere`" in shown
    assert "With --everywhere (also `stoker clean`)" in " ".join(shell.stoker("help", "store", "prune").out.split())


def answering(shell: Shell, *words: str, answer: str) -> str:
    """Run a command at a terminal, answer its question, and give what was seen."""
    line = answer if answer == "\x04" else f"{answer}\n"
    done = shell.at_a_terminal(*words, when=lambda seen: line.encode() if b"[y/N]" in seen else None)
    assert done.code == 0, done.out
    return done.out
