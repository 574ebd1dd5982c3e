from __future__ import annotations

import numpy as np
import pytest

from stoker.authoring import StageInputError
from tests.later import imported_later

with imported_later():
    from sklearn import metrics as reference

    from stoker.cookbooks.tabular.evaluation import bootstrap, interval
    from stoker.cookbooks.tabular.metrics import Predictions, plain_scores, ranking_metric, weighted_scores


def classified(classes: int, rows: int = 120, seed: int = 0) -> Predictions:
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, classes, rows)
    scores = generator.random((rows, classes)) + 0.8 * np.eye(classes)[truth]
    # Rounded, so that ties occur.
    probabilities = np.round(scores, 1) / np.round(scores, 1).sum(axis=1, keepdims=True)
    return Predictions(
        problem="classification", truth=truth, answers=probabilities.argmax(axis=1), probabilities=probabilities
    )


def measured(rows: int = 80) -> Predictions:
    generator = np.random.default_rng(1)
    truth = generator.normal(50, 10, rows)
    return Predictions(
        problem="regression",
        truth=truth,
        answers=truth + generator.normal(0, 4, rows),
        probabilities=np.empty((rows, 0)),
    )


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_scores_of_classes_equal_the_reference_under_any_weights(classes):
    predictions = classified(classes)
    weights = np.random.default_rng(5).integers(0, 4, (3, 120)).astype(np.float64)
    ours = weighted_scores(predictions, weights)
    truth, answers, given = predictions.truth, predictions.answers, predictions.probabilities
    for row, weight in enumerate(weights):
        shown = {"sample_weight": weight}
        theirs = {
            "accuracy": reference.accuracy_score(truth, answers, **shown),
            "balanced_accuracy": reference.balanced_accuracy_score(truth, answers, **shown),
            "macro_f1": reference.f1_score(truth, answers, average="macro", **shown),
            "log_loss": reference.log_loss(truth, given, **shown),
            "roc_auc": np.mean(
                [
                    reference.roc_auc_score(truth == code, given[:, code], **shown)
                    for code in ([1] if classes == 2 else range(classes))
                ]
            ),
        }
        for name, value in theirs.items():
            assert ours[name][row] == pytest.approx(value, abs=1e-12), name


def test_the_brier_score_of_two_classes_equals_the_reference():
    predictions = classified(2)
    expected = reference.brier_score_loss(predictions.truth, predictions.probabilities[:, 1])
    assert plain_scores(predictions)["brier"] == pytest.approx(expected)


def test_scores_of_quantities_equal_the_reference_under_any_weights():
    predictions = measured()
    weights = np.random.default_rng(5).integers(0, 4, (3, 80)).astype(np.float64)
    ours = weighted_scores(predictions, weights)
    for row, weight in enumerate(weights):
        pair = (predictions.truth, predictions.answers)
        assert ours["r2"][row] == pytest.approx(reference.r2_score(*pair, sample_weight=weight))
        assert ours["mae"][row] == pytest.approx(reference.mean_absolute_error(*pair, sample_weight=weight))
        expected = reference.root_mean_squared_error(*pair, sample_weight=weight)
        assert ours["rmse"][row] == pytest.approx(expected)


def test_a_weighting_without_a_class_leaves_that_class_out_of_the_averages():
    predictions = classified(3)
    weights = (predictions.truth != 2).astype(np.float64)[None, :]
    scores = weighted_scores(predictions, weights)
    assert all(np.isfinite(values).all() for values in scores.values())


def test_a_bootstrap_is_the_same_for_the_same_seed_however_it_is_cut_into_pieces(monkeypatch):
    from stoker.cookbooks.tabular import evaluation

    whole = bootstrap(classified(3), repeats=200, seed=4)
    monkeypatch.setattr(evaluation, "_CELLS_AT_ONCE", 120 * 7)
    pieces = bootstrap(classified(3), repeats=200, seed=4)
    assert all(np.allclose(whole[name], pieces[name]) for name in whole)


def test_an_interval_holds_the_score_and_narrows_with_more_rows():
    widths = []
    for rows in (60, 2000):
        predictions = classified(2, rows=rows)
        score = interval(plain_scores(predictions)["accuracy"], bootstrap(predictions, repeats=500, seed=0)["accuracy"])
        assert score["low"] <= score["value"] <= score["high"]
        widths.append(score["high"] - score["low"])
    assert widths[1] < widths[0] / 3


def test_a_ranking_metric_that_does_not_fit_is_refused_with_those_that_do():
    assert ranking_metric("classification", "auto") == "balanced_accuracy"
    assert ranking_metric("regression", "mae") == "mae"
    with pytest.raises(StageInputError, match="rank_by=mae does not fit classification") as caught:
        ranking_metric("classification", "mae")
    assert "balanced_accuracy" in caught.value.hint
