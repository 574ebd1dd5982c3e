from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from stoker.core.errors import NotFound
from stoker.engine.metrics.metric_names import Direction, known_direction, preference
from stoker.engine.ranking import Measure, best_first, measure_for

SMALLER, LARGER = Direction.SMALLER, Direction.LARGER


@dataclass(frozen=True)
class One:
    n: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    is_done: bool = True
    is_failed: bool = False


def some(*names: str) -> list[One]:
    return [One(n, dict.fromkeys(names, 0.5)) for n in range(1, 5)]


def chosen(*names: str, **params: object) -> tuple[str, Direction]:
    measure = measure_for(some(*names), params)
    assert measure is not None
    return measure.metric, measure.direction


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("loss", SMALLER),
        ("val_loss", SMALLER),
        ("eval/loss", SMALLER),
        ("valLoss", SMALLER),
        ("log_loss", SMALLER),
        ("accuracy_loss", SMALLER),
        ("error_rate", SMALLER),
        ("perplexity", SMALLER),
        ("rmse", SMALLER),
        ("accuracy", LARGER),
        ("valAcc", LARGER),
        ("macro_f1", LARGER),
        ("roc_auc", LARGER),
        ("r2", LARGER),
        ("test/r2", LARGER),
        ("top1", LARGER),
        ("mAP", LARGER),
        ("time_per_step", SMALLER),
        ("samples_per_second", LARGER),
        ("grad_norm", None),
        ("lr", None),
        ("glossary", None),
        ("", None),
        ("42", None),
    ],
)
def test_a_name_suggests_which_way_is_better(name: str, direction: Direction | None) -> None:
    assert known_direction(name) is direction


@pytest.mark.parametrize(
    ("names", "metric", "direction"),
    [
        (("loss", "val_loss", "lr"), "val_loss", SMALLER),
        (("train_loss", "loss"), "loss", SMALLER),
        (("train_loss", "grad_norm"), "train_loss", SMALLER),
        (("loss", "accuracy"), "accuracy", LARGER),
        (("train_accuracy", "val_loss"), "val_loss", SMALLER),
        (("accuracy", "val_loss"), "val_loss", SMALLER),
        (("test_accuracy", "accuracy", "val_accuracy"), "val_accuracy", LARGER),
        (("samples_per_second", "loss"), "loss", SMALLER),
        (("balanced_accuracy", "log_loss", "cv_balanced_accuracy", "loss"), "cv_balanced_accuracy", LARGER),
        (("zeta", "alpha"), "alpha", SMALLER),
        (("val_0_logloss", "val_1_logloss", "val_0_auc", "val_1_auc"), "val_1_auc", LARGER),
        (("val_9_loss", "val_10_loss"), "val_10_loss", SMALLER),
        (("val_top1", "val_top5"), "val_top1", LARGER),
        (("val_box_loss", "val_precision_b", "val_map50_b", "val_map50_95_b"), "val_map50_95_b", LARGER),
    ],
)
def test_scores_go_before_losses_and_held_out_rows_before_those_trained_on(
    names: tuple[str, ...], metric: str, direction: Direction
) -> None:
    assert chosen(*names) == (metric, direction)
    assert chosen(*reversed(names)) == (metric, direction)


def test_a_parameter_that_names_a_metric_decides() -> None:
    assert chosen("accuracy", "log_loss", "cv_log_loss", rank_by="log_loss") == ("cv_log_loss", SMALLER)
    assert chosen("accuracy", "loss", monitor="loss") == ("loss", SMALLER)
    assert chosen("accuracy", "loss", rank_by="auto", metric=3) == ("accuracy", LARGER)


def test_a_metric_that_few_trials_have_is_not_guessed() -> None:
    trials = [One(n, {"loss": 1.0, **({"accuracy": 0.9} if n == 1 else {})}) for n in range(1, 6)]
    measure = measure_for(trials, {})
    assert measure is not None
    assert measure.metric == "loss"


@pytest.mark.parametrize(
    "name",
    ["epoch", "train/epoch", "global_step", "lr", "lr-AdamW", "learning_rate", "train/learning_rate", "grad_norm"],
)
def test_where_a_trial_is_and_how_it_is_trained_is_not_guessed_but_may_be_asked_for(name: str) -> None:
    assert measure_for(some(name), {}) is None
    assert chosen(name, "zeta") == ("zeta", SMALLER)
    assert measure_for(some(name), {}, by=name) is not None
    assert chosen(name, "loss", rank_by=name) == (name, SMALLER)


def test_a_loss_that_is_nan_everywhere_is_not_replaced_by_speed_or_by_any_name() -> None:
    diverged = [One(n, {"val_loss": math.nan, "loss": math.inf, "tokens_per_second": 5.0, "zeta": 1.0}) for n in (1, 2)]
    measure = measure_for(diverged, {})
    assert measure is not None
    assert measure.metric == "val_loss"
    assert chosen("tokens_per_second", "zeta") == ("tokens_per_second", LARGER)


def test_a_metric_that_is_the_same_in_all_trials_is_not_guessed() -> None:
    trials = [One(n, {"accuracy": 0.95, "loss": 1.0 / n}) for n in range(1, 4)]
    measure = measure_for(trials, {})
    assert measure is not None
    assert measure.metric == "loss"
    same = measure_for([One(n, {"accuracy": 0.95, "loss": 1.0}) for n in range(1, 4)], {})
    assert same is not None
    assert same.metric == "accuracy"


def test_what_is_asked_for_is_not_a_guess() -> None:
    trials = some("loss", "accuracy", "odd")
    asked = measure_for(trials, {}, by="odd", direction=LARGER)
    assert asked == Measure(metric="odd", direction=LARGER, why="")
    assert measure_for(trials, {}, by="odd") == Measure(metric="odd", direction=SMALLER, why="its name does not tell")
    assert measure_for(trials, {}, by="accuracy") == Measure(metric="accuracy", direction=LARGER, why="by its name")
    turned = measure_for(trials, {}, direction=SMALLER)
    assert turned is not None
    assert (turned.metric, turned.direction) == ("accuracy", SMALLER)


def test_a_metric_that_nobody_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(NotFound, match="no trial has a metric 'lss'") as raised:
        measure_for(some("loss"), {}, by="lss")
    assert raised.value.hint == "did you mean 'loss'?"
    with pytest.raises(NotFound) as raised:
        measure_for([One(1)], {}, by="loss")
    assert raised.value.hint == "there are: none"


def test_without_metrics_there_is_nothing_to_rank_by() -> None:
    assert measure_for([One(1), One(2)], {}) is None
    assert [one.n for one in best_first([One(2), One(1)], None)] == [1, 2]


def test_best_first_then_not_finite_then_none_then_unfinished_then_failed() -> None:
    wanted = [
        One(9, {"loss": 0.1}),
        One(2, {"loss": 0.2}),
        One(3, {"loss": 0.2}),
        One(8, {"loss": math.nan}),
        One(10, {"loss": -math.inf}),
        One(1, {"other": 0.0}),
        One(7, {"loss": 0.01}, is_done=False),
        One(4, {"loss": 0.0}, is_done=False, is_failed=True),
        One(5, {}, is_done=False, is_failed=True),
    ]
    shuffled = wanted[:]
    for seed in range(5):
        random.Random(seed).shuffle(shuffled)
        assert best_first(shuffled, Measure(metric="loss", direction=SMALLER, why="")) == wanted
    top = best_first(shuffled, Measure(metric="loss", direction=LARGER, why=""))[:3]
    assert [one.n for one in top] == [2, 3, 9]


def test_the_order_of_names_is_total() -> None:
    names = ["loss", "val_loss", "accuracy", "train_loss", "odd", "time", "acc"]
    assert len({preference(name) for name in names}) == len(names)
