from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from stoker.core.frozen import changed
from stoker.jobs.comparison import CURVES_DRAWN, Comparison, JobFacts, compare_trials, read_curves
from tests.unit.jobs.real_jobs import Made, Shelf, falling, sweep_of_six, write_curve


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def compared(gathering: JobFacts, **more: Any) -> Comparison:
    spec = gathering.spec
    values = {path: setting.value for path, setting in gathering.settings().items()}
    return compare_trials(
        gathering.trials(), job=spec.name, attempt=gathering.attempt.id, recipe=spec.recipe, values=values, **more
    )


def test_trials_stand_best_first_with_what_varies_and_what_does_not(shelf: Shelf) -> None:
    shelf.add("sweep", sweep_of_six(), args={"lr": 0.5, "model": {"depth": 3}, "data": "iris"})
    found = compared(shelf.gathering("sweep"), by="loss")
    assert [row.n for row in found.rows] == [4, 3, 6, 5, 2, 1]
    assert found.varying == ("lr", "model.depth")
    assert found.fixed == {"data": "iris"}
    assert found.metrics[0] == "loss"
    assert found.best is found.rows[0]
    assert found.rows[0].params == {"lr": 0.01, "model.depth": 4}
    failed = found.rows[-1]
    assert (failed.state, failed.message) == ("failed", "exit 1: ValueError: loss is nan (train.py:88)")
    assert failed.is_failed
    assert math.isnan(found.rows[-2].metrics["loss"])


def test_a_parameter_with_one_value_does_not_vary_and_one_and_true_are_two(shelf: Shelf) -> None:
    points: list[dict[str, Any]] = [{"a": 1, "b": 1, "c": 1}, {"a": True, "b": 1, "c": 1.0}]
    shelf.add("sweep", [Made(point=point) for point in points], args={"a": 0, "b": 0})
    found = compared(shelf.gathering("sweep"))
    assert found.varying == ("a", "c")
    assert found.fixed == {"b": 1}


def test_a_point_that_leaves_a_parameter_alone_has_the_job_s_value(shelf: Shelf) -> None:
    shelf.add("sweep", [Made(point={"lr": 0.1}), Made(point={"depth": 4})], args={"lr": 0.5, "depth": 2})
    found = compared(shelf.gathering("sweep"))
    assert [dict(row.params) for row in sorted(found.rows, key=lambda row: row.n)] == [
        {"lr": 0.1, "depth": 2},
        {"lr": 0.5, "depth": 4},
    ]


def test_only_a_label_that_somebody_gave_is_a_name(shelf: Shelf) -> None:
    shelf.add("sweep", [Made(point={"lr": 0.1}), Made(point={"lr": 0.2})], args={"lr": 0.5})
    trials = shelf.gathering("sweep").trials()
    end = trials[0].end
    trial = changed(end.trial, spec=changed(end.trial.spec, label="legal"))
    named = changed(trials[0], end=changed(end, trial=trial))
    found = compare_trials([named, trials[1]], job="sweep", attempt="a", recipe="r", values={})
    assert {row.label: row.is_named for row in found.rows} == {"legal": True, "lr=0.2": False}


def test_a_job_without_a_sweep_is_one_trial(shelf: Shelf) -> None:
    shelf.add("one", [Made(metrics={"loss": 0.5}, curve=falling(0.1))], args={"lr": 0.5})
    found = compared(shelf.gathering("one"))
    assert [(row.n, row.label, row.state) for row in found.rows] == [(1, "", "completed")]
    assert (found.varying, found.fixed, found.metrics) == ((), {"lr": 0.5}, ("loss",))


def test_a_failed_best_is_no_best(shelf: Shelf) -> None:
    shelf.add("sweep", [Made(point={"lr": lr}, state="failed", message="no") for lr in (1, 2)])
    found = compared(shelf.gathering("sweep"))
    assert (found.best, found.measure) == (None, None)


def test_curves_are_of_what_is_ranked_by_then_of_losses_best_trial_first(shelf: Shelf) -> None:
    attempt = shelf.add("sweep", sweep_of_six())
    folder = Path(shelf.runs, attempt, "metrics")
    for node in ("3.train", "4.train"):
        write_curve(str(folder / f"{node}.program.skm"), [0.1, 0.5, 0.9], "accuracy")
    by_accuracy = read_curves(compared(shelf.gathering("sweep"), by="accuracy"))
    assert [one.metric for one in by_accuracy] == ["accuracy", "loss"]
    assert [row.n for row, _ in by_accuracy[0].lines] == [4, 3]
    assert [row.n for row, _ in by_accuracy[1].lines] == [4, 3, 6, 5]
    assert by_accuracy[0].lines[0][1] == ((0, 0.1), (1, 0.5), (2, 0.9))
    by_loss = read_curves(compared(shelf.gathering("sweep"), by="loss"))
    assert [one.metric for one in by_loss] == ["loss", "accuracy"]


def test_a_single_value_is_no_curve(shelf: Shelf) -> None:
    shelf.add("one", [Made(metrics={"loss": 0.5}, curve=[0.5])])
    assert read_curves(compared(shelf.gathering("one"))) == []


def test_many_long_curves_are_thinned_and_the_best_are_read(shelf: Shelf) -> None:
    trials = [Made(point={"lr": n}, metrics={"loss": float(n)}, curve=falling(0.001, 3000)) for n in range(40)]
    shelf.add("sweep", trials)
    (curves,) = read_curves(compared(shelf.gathering("sweep")))
    assert [row.n for row, _ in curves.lines] == list(range(1, CURVES_DRAWN + 1))
    assert all(100 < len(points) <= 600 for _, points in curves.lines)
    first = curves.lines[0][1]
    assert (first[0], first[-1][0]) == ((0, 1.1), 2999)
