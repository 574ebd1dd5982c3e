"""The link to the best trial: ours follows the newest run, and what is somebody else's stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.jobs.results import has_best, settle_best
from stoker.store.results import SIDECAR, lay_out
from tests.unit.store.real_stores import make_store


@pytest.fixture
def out(tmp_path: Path) -> Path:
    store = make_store(tmp_path / "store")
    for label in ("lr=1", "lr=2"):
        lay_out(store, [], str(tmp_path / "out" / label))
    return tmp_path / "out"


def test_our_link_follows_the_best_and_goes_where_there_is_none(out: Path) -> None:
    for label in ("lr=1", "lr=2"):
        assert settle_best(str(out), label, ["lr=1", "lr=2"]) == ""
        assert os.readlink(out / "best") == label
        assert has_best(str(out))
    assert settle_best(str(out), None, ["lr=3"]) == ""
    assert not os.path.lexists(out / "best")
    assert settle_best(str(out), None, []) == ""


def test_a_link_to_a_trial_that_was_cleared_away_is_still_ours(out: Path) -> None:
    for label in ("lr=1", "lr=2"):
        settle_best(str(out), label, [])
        (out / label / SIDECAR).unlink()
        # In the second one something of the user's is left.
        if label == "lr=1":
            (out / label).rmdir()
        assert settle_best(str(out), None, ["lr=1", "lr=2"]) == ""
        assert not os.path.lexists(out / "best")


@pytest.mark.parametrize("target", ["/etc", "../other", "mine", "lr=1/plots", "./lr=1", "note.txt", "lr=1/", "."])
def test_a_link_of_somebody_else_stays_and_is_said_to_be_in_the_way(out: Path, target: str) -> None:
    (out / "mine").mkdir()
    (out / "note.txt").touch()
    os.symlink(target, out / "best")
    assert settle_best(str(out), "lr=2", ["lr=1", "lr=2"]) == str(out / "best")
    assert settle_best(str(out), None, ["lr=1", "lr=2"]) == ""
    assert os.readlink(out / "best") == target
    assert not has_best(str(out))


def test_a_file_or_a_folder_of_that_name_stays_too(out: Path) -> None:
    (out / "best").mkdir()
    assert settle_best(str(out), "lr=1", ["lr=1"]) == str(out / "best")
    assert (out / "best").is_dir()
