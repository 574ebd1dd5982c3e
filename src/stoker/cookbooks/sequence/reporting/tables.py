"""Scores and curves as files that other programs read, and the summary that a terminal shows."""

from __future__ import annotations

import csv
import io
import shlex
from typing import Any, Final

from stoker.cookbooks.sequence.records import ScoreBook

METRIC_NAMES: Final = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "log_loss": "log loss",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
    "skill": "skill",
}


def scores_csv(book: ScoreBook) -> str:
    """One line per metric: the model's score and the baseline's."""
    rows = [[metric, book["test"][metric], book["baseline"][metric]] for metric in book["metrics"]]
    steps = [[f"rmse_step_{ahead}", value, ""] for ahead, value in enumerate(book["by_step"], start=1)]
    return _csv(["metric", "test", "baseline"], [*rows, *steps])


def curve_csv(book: ScoreBook) -> str:
    """One line per epoch of each training: the losses, and whether its weights were kept."""
    rows = [
        [curve["name"], epoch, seen, unseen, str(epoch == curve["kept"]).lower()]
        for curve in book["model"]["curves"]
        for epoch, (seen, unseen) in enumerate(zip(curve["train"], curve["validation"], strict=True), start=1)
    ]
    return _csv(["training", "epoch", "train_loss", "validation_loss", "is_kept"], rows)


def headline(book: ScoreBook) -> str:
    """Say in one sentence what came out."""
    metric = book["rank_by"]
    score, simple = number(book["test"][metric]), number(book["baseline"][metric])
    windows = book["model"]["data"]["counts"]["test"]
    return (
        f"{book['model']['family']} on {data_name(book)}: {METRIC_NAMES[metric]} {score} on {windows} held-out windows "
        f"(baseline {simple})"
    )


def summary(book: ScoreBook) -> dict[str, Any]:
    """Give what a terminal shows at the end of a run: a headline, a table and what to try next."""
    columns = ["model", *(METRIC_NAMES[name] for name in book["metrics"])]
    rows = [
        [name, *(number(scores[metric]) for metric in book["metrics"])]
        for name, scores in ((book["model"]["family"], book["test"]), ("baseline", book["baseline"]))
    ]
    return {"headline": headline(book), "table": {"columns": columns, "rows": rows}, "next": _next(book)}


def data_name(book: ScoreBook) -> str:
    """Name the series."""
    series = book["model"]["data"]["series"]
    return series["name"] or f"a {series['format'].upper()} file"


def number(value: float) -> str:
    """Give a number as people read it."""
    return f"{value:.4g}"


def _next(book: ScoreBook) -> list[str]:
    facts, series = book["model"], book["model"]["data"]["series"]
    target = shlex.quote(series["target"])
    data = f"data={series['name']}" if series["name"] else f"data=FILE target={target}"
    other = "gru" if facts["family"] != "gru" else "cnn"
    steps = [f"stoker run sequence/{other} {data}"]
    steps.append(f"stoker run sequence/{facts['family']} {data} window={2 * facts['data']['window']}")
    if series["name"] is not None:
        steps.append(f"stoker run sequence/{facts['family']} data=YOUR.csv target=COLUMN")
    return steps


def _csv(columns: list[str], rows: list[list[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
