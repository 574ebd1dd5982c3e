"""The best step of a trial, from its metrics files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from stoker.engine.metrics.metric_names import Direction
from stoker.engine.metrics.metrics_file import MetricRow, MetricSource, encode_frame
from stoker.jobs import trial_bests
from stoker.jobs.trial_bests import TrialBests, best_step


def write(path: Path, *rows: tuple[int, str, float], source: MetricSource = MetricSource.REPORTED) -> str:
    frame = encode_frame([MetricRow(step, 1.0, name, value) for step, name, value in rows], source=source)
    with path.open("ab") as file:
        file.write(frame)
    return str(path)


def test_the_best_step_has_the_other_metrics_there_or_before(tmp_path: Path):
    path = write(
        tmp_path / "train.skm",
        (0, "lr", 0.1),
        (1, "loss", 3.0),
        (2, "loss", math.nan),
        (3, "loss", 1.0),
        (3, "accuracy", 0.5),
        (4, "loss", 1.0),
        (4, "late", 9.0),
    )
    best = best_step([path], "loss", Direction.SMALLER)
    assert best is not None
    assert best.step == 3
    assert best.metrics == {"loss": 1.0, "lr": 0.1, "accuracy": 0.5}
    highest = best_step([path], "loss", Direction.LARGER)
    assert highest is not None
    assert highest.step == 1
    assert best_step([path], "missing", Direction.SMALLER) is None


def test_a_later_attempt_replaces_steps_and_what_was_reported_goes_before_what_was_printed(tmp_path: Path):
    first = write(tmp_path / "1.skm", (1, "loss", 0.1), (2, "loss", 0.2))
    second = write(tmp_path / "2.skm", (1, "loss", 5.0))
    write(tmp_path / "2.skm", (1, "loss", 0.0), source=MetricSource.STDOUT)
    best = best_step([first, second], "loss", Direction.SMALLER)
    assert best is not None
    assert (best.step, best.metrics["loss"]) == (2, 0.2)


def test_a_file_is_read_once_until_it_grows_and_none_when_it_is_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "train.skm", (1, "loss", 2.0))
    reads: list[int] = []

    def counted(paths: list[str], metric: str, direction: Direction) -> object:
        reads.append(1)
        return best_step(paths, metric, direction)

    monkeypatch.setattr(trial_bests, "best_step", counted)
    bests = TrialBests()
    assert bests.find({7: [path]}, "loss", Direction.SMALLER, is_late=lambda: True) == ({}, 1)
    for _ in range(2):
        found, unread = bests.find({7: [path], 8: [str(tmp_path / "missing.skm")]}, "loss", Direction.SMALLER)
        assert (found[7].step, unread) == (1, 0)
    write(tmp_path / "train.skm", (2, "loss", 1.0))
    assert bests.find({7: [path]}, "loss", Direction.SMALLER)[0][7].step == 2
    assert len(reads) == 2


def test_of_long_files_the_levels_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "train.skm", *((at, "loss", abs(at - 70.0)) for at in range(200)), (3, "accuracy", 0.5))
    monkeypatch.setattr(trial_bests, "MOST_BYTES", 1)
    best = best_step([path], "loss", Direction.SMALLER)
    assert best is not None
    assert (best.step, best.metrics) == (70, {"loss": 0.0, "accuracy": 0.5})
