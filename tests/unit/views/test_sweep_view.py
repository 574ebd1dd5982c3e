"""A sweep as screens get it: ranks, parameters, importance."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stoker.core.errors import NotFound
from stoker.engine.metrics.metric_names import Direction
from stoker.jobs.trial_bests import BestStep
from stoker.protocol.screen_messages import SweepView
from stoker.views import parameter_importance
from stoker.views.parameter_importance import FOREST, RANKS, Importance, ParameterColumn, importance_of
from stoker.views.sweep_view import MOST_TRIALS, SweepFacts, SweepTrialFacts, best_trials, measure_of, sweep_view


@pytest.fixture(autouse=True)
def no_forest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "slow" not in request.keywords:
        monkeypatch.setattr(parameter_importance, "_has_forest", lambda: False)


def trial(n: int, state: str = "completed", metrics: dict[str, float] | None = None, **point: Any) -> SweepTrialFacts:
    return SweepTrialFacts(n=n, state=state, label=f"trial {n}", point=point, metrics=metrics or {})


def shown(
    *trials: SweepTrialFacts, metric: str = "", bests: dict[int, BestStep] | None = None, **more: Any
) -> SweepView:
    sweep = SweepFacts(name="sweep", recipe=more.pop("recipe", "test/train"), trials=trials, **more)
    measure = measure_of(sweep, metric)
    return sweep_view(sweep, measure, best_trials(sweep, measure), bests or {})


def test_live_trials_rank_among_completed_ones_and_failed_ones_are_last():
    view = shown(
        trial(1, metrics={"val_loss": 0.5}, lr=0.1),
        trial(2, "running", {"val_loss": 0.3}, lr=0.01),
        trial(3, "failed", {"val_loss": 0.1}, lr=0.001),
        trial(4, "pending", lr=1.0),
        trial(5, metrics={"val_loss": math.nan}, lr=0.2),
    )
    assert (view.metric, view.is_lower_better) == ("val_loss", True)
    assert [(one.number, one.place) for one in view.trials] == [(2, 1), (1, 2), (5, None), (4, None), (3, None)]
    assert view.jobs == {"completed": 2, "running": 1, "failed": 1, "pending": 1}
    assert view.trials[0].job == "sweep/2"


def test_the_best_step_decides_the_rank_and_brings_the_other_metrics_along():
    best = BestStep(step=40, metrics={"accuracy": 0.95, "train_loss": 0.2})
    view = shown(
        trial(1, metrics={"accuracy": 0.9, "train_loss": 0.1}, lr=1),
        trial(2, metrics={"accuracy": 0.8, "train_loss": 0.05, "test_accuracy": 0.7}, lr=2),
        metric="accuracy",
        bests={2: best},
    )
    assert [(one.number, one.best_step) for one in view.trials] == [(2, 40), (1, None)]
    assert view.trials[0].metrics == {"accuracy": 0.95, "test_accuracy": 0.7, "train_loss": 0.2}
    assert not view.is_lower_better


def test_trials_of_different_data_have_places_of_their_own():
    trials = [
        SweepTrialFacts(
            n=n, state="completed", metrics={"loss": n / 10}, point={"data": data}, measured_on={"data": data}
        )
        for n, data in enumerate("abab", 1)
    ]
    assert {one.number: one.place for one in shown(*trials).trials} == {1: 1, 2: 1, 3: 2, 4: 2}


def test_parameters_are_numbers_or_categories_and_those_of_one_value_are_left_out():
    view = shown(
        trial(1, lr=1e-4, opt="sgd", seed=1, wide=True),
        trial(2, lr=1e-3, opt=None, seed=1, wide=False),
        trial(3, lr=1e-2, opt="adam\x1b[2J", seed=1, wide=True),
    )
    found = {one.name: one for one in view.parameters}
    assert (found["lr"].is_number, found["lr"].is_log, found["lr"].low, found["lr"].high) == (True, True, 1e-4, 1e-2)
    assert found["opt"].values == ("sgd", "null", "adam [2J")
    assert found["wide"].values == ("true", "false")
    assert "seed" not in found
    assert view.trials[1].parameters == {"lr": 1e-3, "opt": None, "wide": False}
    assert view.importance_by == ""


def test_variables_of_a_program_are_not_shown():
    view = shown(
        *(SweepTrialFacts(n=n, state="completed", point={"env.TOKEN": f"secret-{n}"}) for n in (1, 2)), recipe="command"
    )
    assert "secret" not in view.model_dump_json()


def test_of_very_many_trials_the_best_are_shown_with_a_note():
    trials = [trial(n, metrics={"loss": float(n % 7)}, lr=n) for n in range(1, MOST_TRIALS + 501)]
    view = shown(*trials, counts={"completed": len(trials)})
    assert len(view.trials) == MOST_TRIALS
    assert view.total == len(trials)
    assert view.note.startswith("1,000 of 1,500 trials: the best by their last values")
    assert {one.metrics["loss"] for one in view.trials} == {0.0, 1.0, 2.0, 3.0, 4.0}


def test_a_metric_that_no_trial_has_is_refused_with_the_nearest():
    with pytest.raises(NotFound) as caught:
        shown(trial(1, metrics={"val_loss": 1.0}), metric="val_los")
    assert caught.value.hint == "did you mean 'val_loss'?"


def test_a_sweep_without_metrics_has_no_rank():
    view = shown(trial(1, "running", lr=1), trial(2, "pending", lr=2))
    assert view.metric == ""
    assert [one.place for one in view.trials] == [None, None]


def columns(count: int) -> tuple[list[ParameterColumn], list[float]]:
    """A metric that depends on the first parameter much, on the category less, and on the last not at all."""
    first = [((at * 37) % 101) / 101 for at in range(count)]
    kind = [float((at * 13) % 3) for at in range(count)]
    noise = [((at * 59) % 103) / 103 for at in range(count)]
    metric = [3 * one + 0.8 * two + 0.01 * other for one, two, other in zip(first, kind, noise, strict=True)]
    made = [ParameterColumn(values=tuple(values), is_number=values is not kind) for values in (first, kind, noise)]
    return made, metric


def check_importance(found: Importance) -> None:
    first, kind, noise = found.parts
    assert first > kind > noise
    assert sum(found.parts) == pytest.approx(1.0, abs=0.001)


def test_without_scikit_learn_the_importance_is_by_rank_correlation():
    made, metric = columns(90)
    found = importance_of(made, metric)
    assert found.method == RANKS
    check_importance(found)
    assert importance_of(made, [math.nan] * 83 + metric[83:]) == Importance()


@pytest.mark.slow
def test_with_scikit_learn_the_importance_is_by_a_random_forest_and_always_the_same():
    pytest.importorskip("sklearn")
    made, metric = columns(300)
    parameter_importance.load_forest().join()
    found = importance_of(made, metric)
    assert found.method == FOREST
    check_importance(found)
    parameter_importance._importance.cache_clear()
    assert importance_of(made, metric) == found


def test_a_metric_that_is_the_same_in_all_trials_depends_on_nothing():
    made, _ = columns(20)
    assert importance_of(made, [1.0] * 20).parts == (0.0, 0.0, 0.0)


def test_larger_is_better_where_the_name_says_so():
    sweep = SweepFacts(name="s", recipe="r", trials=[trial(1, metrics={"f1": 0.1}), trial(2, metrics={"f1": 0.2})])
    measure = measure_of(sweep)
    assert measure is not None
    assert measure.direction is Direction.LARGER
