"""Children that wait for an assignment: one ahead of time, and no flood of them where they can't live."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stoker.worker.keeper.nursery import Nursery


def nursery(folder: Path, code: str) -> Nursery:
    said = folder / "said"
    said.mkdir()
    argv = (sys.executable, "-S", "-c", code)
    return Nursery(argv, folder=str(folder), said_folder=str(said), environment=lambda: dict(os.environ))


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
    assert len(os.listdir(tmp_path / "said")) == 1
    # Whoever needs one gets one, and learns why it does not live.
    child, said_path = children.take()
    child.wait()
    assert "no such machine" in Path(said_path).read_text()
    children.dismiss(child)
    children.close()
