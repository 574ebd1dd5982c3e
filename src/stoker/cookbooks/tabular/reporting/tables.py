"""Scores as files that other programs read, and the summary that a terminal shows."""

from __future__ import annotations

import csv
import io
import shlex
from typing import Any

from stoker.cookbooks.tabular.records import ScoreBook
from stoker.cookbooks.tabular.reporting.wording import (
    METRIC_NAMES,
    SHORT_METRIC_NAMES,
    cross_validated,
    data_name,
    number,
    ranked,
    with_interval,
)

_SHOWN = {"classification": ("accuracy", "macro_f1", "roc_auc", "log_loss"), "regression": ("mae", "rmse")}


def scores_csv(book: ScoreBook) -> str:
    """One line per model and metric: test score with its interval, cross-validated mean and spread."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "metric", "test", "low", "high", "cv_mean", "cv_std", "is_best"])
    for model in ranked(book):
        validated = model["cross_validation"]
        for metric in book["metrics"]:
            score = model["test"][metric]
            folds = [validated["mean"][metric], validated["std"][metric]] if validated is not None else ["", ""]
            is_best = str(model["name"] == book["best"]).lower()
            writer.writerow([model["name"], metric, score["value"], score["low"], score["high"], *folds, is_best])
    return text.getvalue()


def headline(book: ScoreBook) -> str:
    """Say in one sentence what came out."""
    best = next(model for model in book["models"] if model["name"] == book["best"])
    metric = book["rank_by"]
    contenders = len(book["models"]) - 1
    validated = best["cross_validation"]
    held_out = f"{with_interval(best['test'][metric])} on {book['split']['test_rows']} held-out rows"
    if validated is None:
        scores = f"{METRIC_NAMES[metric]} {held_out}"
    else:
        folds = f"{cross_validated(best, metric)} over {validated['folds']} folds"
        scores = f"{METRIC_NAMES[metric]} {folds}, {held_out}"
    if contenders <= 1:
        return f"{best['name']} on {data_name(book['facts'])}: {scores}"
    # "Ranks first", not "is best": the order may lie within the intervals, which the verdicts of the report say.
    by = "cross-validation" if book["ranked_on"] == "cross-validation" else "held-out rows"
    return f"{best['name']} ranks first of {contenders} models on {data_name(book['facts'])} by {by}: {scores}"


def summary(book: ScoreBook) -> dict[str, Any]:
    """Give what a terminal shows at the end of a run: a headline, a table and what to try next."""
    metric = book["rank_by"]
    others = [name for name in _SHOWN[book["facts"]["problem"]] if name != metric]
    columns = [
        "model",
        f"{METRIC_NAMES[metric]} [95 %]",
        *(SHORT_METRIC_NAMES[name] for name in others),
        "cross-validated",
    ]
    rows = [
        [
            model["name"],
            with_interval(model["test"][metric]),
            *(number(model["test"][name]["value"]) for name in others),
            cross_validated(model, metric),
        ]
        for model in ranked(book)
    ]
    return {"headline": headline(book), "table": {"columns": columns, "rows": rows}, "next": _next(book)}


def _next(book: ScoreBook) -> list[str]:
    facts = book["facts"]
    name = facts["origin"]["name"]
    data = f"data={name}" if name else f"data=FILE target={shlex.quote(facts['target'])}"
    trained = [model["name"] for model in book["models"][:-1]]
    steps = [f"stoker run tabular/compare {data}"] if len(trained) == 1 else []
    if book["best"] == "gbt":
        steps.append(f"stoker run tabular/gbt {data} lr=0.05 model.trees=400")
    elif book["best"] == "mlp":
        steps.append(f"stoker run tabular/mlp {data} 'hidden=[128,64]'")
    elif book["best"] == "knn":
        steps.append(f"stoker run tabular/knn {data} weights=distance")
    else:
        steps.append(f"stoker run tabular/knn_semi {data} labelled_percent=50")
    if facts["problem"] == "classification" and "knn_semi" not in trained and len(trained) > 1:
        steps.append(f"stoker run tabular/knn_semi {data} labelled_percent=10")
    if name is not None:
        steps.append("stoker run tabular/compare data=YOUR.csv target=COLUMN")
    return steps
