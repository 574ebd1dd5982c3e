"""Children that wait for an assignment: one ahead of time, and no flood of them where they can't live."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from stoker.host.identity import mine
from stoker.worker.attempt_process import AttemptProcess, AttemptSpawner
from stoker.worker.worker_state import Journal


def nursery(folder: Path, code: str) -> AttemptSpawner:
    said = folder / "said"
    said.mkdir()
    argv = (sys.executable, "-S", "-c", code)
    return AttemptSpawner(argv, folder=str(folder), said_folder=str(said), environment=lambda: dict(os.environ))


def test_one_child_is_kept_ahead_of_time(tmp_path: Path):
    children = nursery(tmp_path, "import sys; sys.stdin.read()")
    children.keep_spare()
    children.keep_spare()
    assert len(os.listdir(tmp_path / "said")) == 1
    children.close()
    assert os.listdir(tmp_path / "said") == []


def test_children_that_die_unasked_are_not_started_again_and_again(tmp_path: Path):
    children = nursery(tmp_path, "raise SystemExit('no such machine')")
    children.keep_spare()
    spare = children._spare
    assert spare is not None
    spare[0].wait()
    for _ in range(5):
        children.keep_spare()
    assert children._count == 1
    assert os.listdir(tmp_path / "said") == []
    # Whoever needs one gets one, and learns why it does not live.
    child, said_path = children.take()
    child.wait()
    assert "no such machine" in Path(said_path).read_text()
    children.dismiss(child, said_path)
    children.close()
    assert os.listdir(tmp_path / "said") == []


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "never begun"])
def test_what_an_attempts_process_said_goes_with_its_attempt(tmp_path: Path, is_told: bool):
    attempt, said = tmp_path / "20261115-031502-7f3a", tmp_path / "1-1.log"
    if is_told:
        attempt.mkdir()
    said.write_text("a warning\n")
    ward = AttemptProcess(mine(), said_path=str(said))
    assert ward.last_words() == "a warning"
    ward.forget(str(attempt))
    assert not said.exists()
    assert not is_told or (attempt / "said.log").read_text() == "a warning\n"


def test_an_attempts_process_that_said_nothing_leaves_nothing(tmp_path: Path):
    said = tmp_path / "1-1.log"
    said.touch()
    AttemptProcess(mine(), said_path=str(said)).forget(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_what_a_killed_keeper_was_hearing_is_gone_with_the_next_one(tmp_path: Path):
    (tmp_path / "said").mkdir()
    (tmp_path / "said" / "1-1.log").write_text("old words\n")
    Journal(str(tmp_path)).open()
    assert os.listdir(tmp_path / "said") == []
