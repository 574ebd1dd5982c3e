from __future__ import annotations

import math
import pickle
from functools import cache
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits  # type: ignore[import-untyped]

from stoker.authoring import StageInputError
from stoker.cookbooks.tabular import train_gbt, train_knn, train_mlp
from stoker.cookbooks.tabular.cross_validate import refit
from stoker.cookbooks.tabular.schemas import TabularModelFacts
from tests.later import imported_later

with imported_later():
    import pandas as pd

    from stoker.cookbooks.tabular.evaluation import baseline
    from stoker.cookbooks.tabular.examples import TableExamples, divide
    from stoker.cookbooks.tabular.metrics import plain_scores, predict
    from stoker.cookbooks.tabular.tables import label_table, read_bundled


BOOSTING = train_gbt.GbtArgs(trees=25, depth=None, lr=0.2, seed=0)
NEIGHBOURS = train_knn.KnnArgs(neighbours=None, weights="uniform", seed=0)
SELF_TRAINING = train_knn.KnnSemiArgs(neighbours=5, labelled_percent=30, confidence=0.9, rounds=10, seed=0)
NETWORK = train_mlp.MlpArgs(hidden=(32,), epochs=60, lr=1e-2, weight_decay=1e-4, batch=32, patience=10, seed=0)
TRAIN: dict[str, Any] = {
    "gbt": lambda examples, *watch: train_gbt.train(examples, BOOSTING, *watch),
    "knn": lambda examples, *watch: train_knn.train(examples, NEIGHBOURS, *watch),
    "knn_semi": lambda examples, *watch: train_knn.train_semi(examples, SELF_TRAINING, *watch),
    "mlp": lambda examples, *watch: train_mlp.train(examples, NETWORK, *watch),
}
QUANTITY_FAMILIES = ("gbt", "knn", "mlp")


def examples_of(frame: pd.DataFrame, target: str = "target") -> TableExamples:
    origin: Any = {"name": None, "target": None, "notes": []}
    labelled, facts = label_table(frame, origin, target=target, problem="auto", drop=())
    return TableExamples.of(labelled, facts)


@cache
def bundled(name: str) -> tuple[TableExamples, TableExamples]:
    examples = examples_of(read_bundled(name)[0])
    train, test = divide(examples, test_percent=25, seed=0)
    return examples.take(train), examples.take(test)


@cache
def trained_on_wine(family: str) -> Any:
    """What several tests look at, and none of them changes."""
    return TRAIN[family](bundled("wine")[0])


def messy(rows: int = 160) -> pd.DataFrame:
    """Numbers with gaps, categories with gaps, rare ones and strange ones; the answer depends on both sorts."""
    generator = np.random.default_rng(7)
    size = generator.normal(0, 1, rows)
    colour = generator.choice(["röd", "grün", "blue, dark", "青"], rows)
    answer = np.where(size + 1.5 * (colour == "röd") > 0.5, "ja", "nein")
    frame = pd.DataFrame({"größe $": size, "colour|tone": colour, "noise": generator.random(rows), "target": answer})
    frame.loc[generator.choice(rows, 20, replace=False), "größe $"] = np.nan
    frame.loc[generator.choice(rows, 20, replace=False), "colour|tone"] = None
    return frame


@pytest.mark.parametrize("family", TRAIN)
def test_every_family_beats_the_baseline_on_classes(family):
    train, test = bundled("wine")
    trained = trained_on_wine(family)
    simple = plain_scores(predict(baseline(train), test))["balanced_accuracy"]
    assert plain_scores(predict(trained.pipeline, test))["balanced_accuracy"] > simple + 0.4


@pytest.mark.parametrize("family", QUANTITY_FAMILIES)
def test_every_family_but_the_semi_supervised_one_beats_the_baseline_on_quantities(family):
    train, test = bundled("diabetes")
    trained = TRAIN[family](train)
    simple = plain_scores(predict(baseline(train), test))["rmse"]
    assert plain_scores(predict(trained.pipeline, test))["rmse"] < simple - 3


@pytest.mark.parametrize("family", TRAIN)
def test_gaps_categories_and_unknown_categories_are_no_trouble(family):
    train = examples_of(messy())
    pipeline = TRAIN[family](train).pipeline
    unseen = messy(40)
    unseen["colour|tone"] = "never seen"
    unseen.loc[:5, "größe $"] = np.nan
    assert set(pipeline.predict(unseen)) <= {"ja", "nein"}
    assert plain_scores(predict(pipeline, train))["balanced_accuracy"] > 0.75


@pytest.mark.parametrize("family", TRAIN)
def test_training_twice_gives_the_same_model(family):
    train, test = bundled("wine")
    first, second = trained_on_wine(family), TRAIN[family](train)
    assert first.params == second.params
    assert first.curves == second.curves
    assert (first.pipeline.predict_proba(test.features) == second.pipeline.predict_proba(test.features)).all()


@pytest.mark.parametrize("family", TRAIN)
def test_refitting_from_what_was_written_down_gives_the_same_model(family):
    train, test = bundled("wine")
    trained = trained_on_wine(family)
    facts: TabularModelFacts = {"family": family, "params": trained.params}  # type: ignore[typeddict-item]
    again = refit(facts, train)
    assert np.allclose(again.predict_proba(test.features), trained.pipeline.predict_proba(test.features))


@pytest.mark.parametrize("family", TRAIN)
def test_a_pipeline_answers_with_class_names_and_loads_without_stoker(family):
    train, test = bundled("iris")
    pipeline = TRAIN[family](train).pipeline
    assert set(pipeline.predict(test.features)) == {"setosa", "versicolor", "virginica"}
    assert b"stoker" not in pickle.dumps(pipeline)


def test_boosting_keeps_the_trees_that_help_and_reports_each_group():
    seen: list[tuple[int, int]] = []
    train, _ = bundled("breast_cancer")
    trained = train_gbt.train(
        train,
        train_gbt.GbtArgs(trees=150, depth=3, lr=0.3, seed=0),
        lambda done, of, metrics: seen.append((done, of)) if math.isfinite(metrics["loss"]) else None,
    )
    assert 1 <= trained.params["trees"] < 150
    assert trained.pipeline["model"].n_iter_ == trained.params["trees"]
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert {of for _, of in seen} == {150}


def test_boosted_trees_are_the_same_bytes_whatever_the_number_of_threads():

    train, _ = bundled("iris")
    settings = train_gbt.GbtArgs(trees=3, depth=2, lr=0.3, seed=0)
    alone = pickle.dumps(train_gbt.fit(train, settings))
    with threadpool_limits(limits=2):
        assert pickle.dumps(train_gbt.fit(train, settings)) == alone


def test_a_small_table_is_trained_by_one_thread_and_a_large_one_by_as_many_as_are_allowed(monkeypatch):

    from stoker.cookbooks.tabular import training

    train, _ = bundled("iris")
    with training.limited(2, train):
        assert {pool["num_threads"] for pool in threadpool_info()} == {1}
    monkeypatch.setattr(training, "_LARGE_CELLS", 1)
    with training.limited(2, train):
        assert {pool["num_threads"] for pool in threadpool_info()} == {2}


def test_the_network_stops_when_the_rows_set_aside_get_no_better():
    train, _ = bundled("breast_cancer")
    trained = TRAIN["mlp"](train)
    unseen = trained.curves[0]["series"][1]["y"]
    assert trained.params["epochs"] == unseen.index(min(unseen)) + 1


def test_the_network_answers_quantities_in_their_own_unit():
    train, test = bundled("diabetes")
    answers = TRAIN["mlp"](train).pipeline.predict(test.features)
    assert abs(answers.mean() - test.target.mean()) < 15


def test_a_network_that_explodes_hands_the_loss_to_its_watcher():
    train, _ = bundled("diabetes")
    losses: list[float] = []
    settings = train_mlp.MlpArgs(hidden=(16,), epochs=50, lr=1e200, weight_decay=0.0, batch=32, patience=50, seed=0)

    def watch(_done: int, _of: int, metrics: Any) -> None:
        losses.append(metrics["loss"])
        if not math.isfinite(losses[-1]):
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        train_mlp.train(train, settings, watch)
    assert not math.isfinite(losses[-1])


def test_given_neighbours_are_kept_and_capped_by_the_rows_there_are():
    train, _ = bundled("iris")
    fixed = train_knn.train(train, train_knn.KnnArgs(neighbours=7, weights="distance", seed=0))
    assert fixed.params["neighbours"] == 7
    assert fixed.curves == []
    capped = train_knn.train(train, train_knn.KnnArgs(neighbours=5000, weights="uniform", seed=0))
    assert capped.params["neighbours"] == len(train)
    assert "only 112 training rows" in capped.notes[0]


@pytest.mark.parametrize("weights", ["uniform", "distance"])
@pytest.mark.parametrize("name", ["iris", "diabetes"])
def test_the_curve_over_neighbours_is_what_the_reference_would_score(weights, name):
    from sklearn.metrics import root_mean_squared_error

    from stoker.cookbooks.tabular.examples import folds_of

    train, _ = bundled(name)
    curve = train_knn.train(train, train_knn.KnnArgs(neighbours=None, weights=weights, seed=0)).curves[0]
    losses = []
    for fit_rows, score_rows in folds_of(train, folds=5, seed=0):
        scored = train.take(score_rows)
        settings = train_knn.KnnArgs(neighbours=5, weights=weights, seed=0)
        answers = train_knn.fit(train.take(fit_rows), settings).predict(scored.features)
        wrong = (answers != scored.target).mean() if name == "iris" else root_mean_squared_error(scored.target, answers)
        losses.append(float(wrong))
    series = curve["series"][0]
    assert series["y"][series["x"].index(5.0)] == pytest.approx(np.mean(losses), rel=1e-5)


def test_self_training_says_how_many_labels_it_had_and_gave():
    train, _ = bundled("breast_cancer")
    trained = TRAIN["knn_semi"](train)
    assert trained.notes[0].startswith("128 of 426 training rows kept their label;")
    assert trained.curves[0]["series"][0]["y"][0] == pytest.approx(128 / 426, abs=1e-5)


def test_self_training_refuses_quantities():
    with pytest.raises(StageInputError, match="knn_semi needs classes to predict"):
        TRAIN["knn_semi"](bundled("diabetes")[0])


@pytest.mark.parametrize("family", TRAIN)
def test_a_dozen_rows_are_enough_to_train_on(family):
    frame = pd.DataFrame({"x": np.arange(12.0), "target": ["a", "b"] * 6})
    trained = TRAIN[family](examples_of(frame))
    assert len(trained.pipeline.predict(frame)) == 12
