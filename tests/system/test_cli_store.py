"""`stoker store`: how much is kept, is it whole, what stays, what goes, what stands for what."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest

from tests.system.shell import TOY, Shell, wait_until


@pytest.fixture
def used(shell: Shell) -> Shell:
    """A shell in which something large enough for a blob has run."""
    assert shell.stoker("run", "toy/text", "value=3", "--no-out").code == 0
    return shell


def let_it_age(shell: Shell) -> None:
    """Let what is kept grow old enough: what is young is spared, since it may be about to be named."""
    newest_s = max(path.stat().st_ctime for path in shell.home.glob("store/blobs/*/*"))
    wait_until(lambda: time.time() - newest_s > 1.2)


def test_du_adds_up_by_stage_and_kind(used: Shell) -> None:
    big, number, total = used.stoker("store", "--json").objects()
    assert (big["stage"], big["kind"], big["results"], big["bytes"]) == ("toy/big", "toy/words@1", 1, 10_000)
    assert number["stage"] == "toy/number"
    assert total["total_bytes"] == big["bytes"] + number["bytes"]
    assert "toy/big" in used.stoker("cache", "du").out


def test_verify_finds_damage_sets_it_aside_and_says_13(used: Shell) -> None:
    assert used.stoker("store", "verify", "--full").out == "2 results verified\n"
    (blob,) = used.home.glob("store/blobs/*/*")
    blob.chmod(0o644)
    blob.write_bytes(b"y" + blob.read_bytes()[1:])
    done = used.stoker("store", "verify")
    assert done.code == 13
    assert "1 of 2 results is damaged" in done.err
    assert not blob.exists()
    assert used.stoker("run", "toy/text", "value=3", "--no-out").code == 0
    assert used.stoker("store", "verify").code == 0


def test_verify_finds_a_damaged_record(used: Shell) -> None:
    record = next(used.home.glob("store/records/*/*"))
    record.chmod(0o644)
    record.write_bytes(record.read_bytes()[:-3])
    assert used.stoker("store", "verify").code == 13


def test_a_prune_shows_first_acts_when_told_and_what_it_took_is_made_again_when_needed(used: Shell) -> None:
    shown = used.stoker("store", "prune", "--max-size", "100")
    assert re.search(r"^to remove: [12] results?; frees 9\.8 KiB, keeps \d+ B$", shown.out, re.MULTILINE)
    assert "nothing was removed; remove it with --yes" in shown.out
    assert list(used.home.glob("store/blobs/*/*"))
    let_it_age(used)
    done = used.stoker("store", "prune", "--max-size", "0", "--yes")
    assert done.code == 0, done.err
    assert "freed 9.8 KiB" in done.out
    assert not list(used.home.glob("store/blobs/*/*"))
    gone = used.stoker("get", "text")
    assert gone.code == 1
    assert "was pruned" in gone.err
    again = used.stoker("run", "toy/text", "value=3")
    assert again.code == 0
    assert "ran" in again.out
    assert "its bytes were pruned and needed again" in used.stoker("explain", "text/big").out


def test_what_is_pinned_stays(used: Shell) -> None:
    assert "pinned text: 2 results" in used.stoker("store", "pin", "last").out
    assert used.stoker("store", "pins").out.splitlines()[1].split() == ["text", "2"]
    kept = used.stoker("store", "prune", "--max-size", "0", "--yes")
    assert kept.out.splitlines() == [
        "no results to remove; 9.8 KiB kept",
        "not removed: 2 results, pinned as text",
        "still 9.8 KiB above --max-size: the rest is kept for the reasons above",
        "freed 0 B",
    ]
    assert list(used.home.glob("store/blobs/*/*"))
    assert used.stoker("store", "pin", "text", "--remove").code == 0
    assert "to remove: 2 results; frees 9.8 KiB, keeps 0 B" in used.stoker("store", "prune", "--max-size", "0").out
    assert (
        used.stoker("store", "prune").out
        == "no results to remove; 9.8 KiB kept; set a limit with --max-size or --older-than\n"
    )


def test_a_prune_removes_what_a_killed_process_left_and_nothing_of_a_living_one(shell: Shell) -> None:
    gate, ledger = shell.folder / "gate", shell.folder / "ledger"
    words = (f"gate={gate}", f"ledger={ledger}", "--no-out")
    dead = shell.start("run", "toy/slow", "value=1", *words)
    wait_until(ledger.exists)
    dead.kill()
    dead.communicate()
    ledger.unlink()
    left = set(shell.staged())
    assert left
    living = shell.start("run", "toy/slow", "value=2", *words, "--name", "living")
    wait_until(ledger.exists)
    done = shell.stoker("store", "prune", "--yes")
    assert done.code == 0, done.err
    assert not left & set(shell.staged())
    assert len(list((shell.home / "store/leases").glob("?" * 64))) == 1
    gate.touch()
    assert living.wait(30) == 0
    living.communicate()


def test_an_old_result_is_adopted_for_changed_code_with_who_and_why(used: Shell, tmp_path: Path) -> None:
    same = used.stoker("store", "adopt", "last/number", "--reason", "nothing changed")
    assert same.code == 1
    assert "already the result of this" in same.err
    cookbook = tmp_path / "changed"
    shutil.copytree(TOY, cookbook)
    code = cookbook / "stoker_toy.py"
    code.write_text(code.read_text() + "\n\nUNUSED = 1\n")
    used.use(cookbook)
    assert "0 of 2 stages are cached" in used.stoker("run", "toy/text", "value=3", "--dry-run").out
    early = used.stoker("store", "adopt", "text/big", "--reason", "only a constant was added")
    assert early.code == 1
    assert "hint: adopt number first" in early.err
    for stage in ("number", "big"):
        done = used.stoker("store", "adopt", f"text/{stage}", "--reason", "only a constant was added")
        assert done.code == 0, done.err
        assert "is now also the result of key" in done.out
    assert used.stoker("run", "toy/text", "value=3", "--no-out").out.startswith("all 2 stages were cached")
