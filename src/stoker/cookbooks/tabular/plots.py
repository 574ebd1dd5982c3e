"""The plots of a report, each a figure made from the score book."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from stoker.cookbooks.report_parts import LINE_COLOURS, one_plot, plain
from stoker.cookbooks.tabular.report_card import METRIC_NAMES, number, ranked
from stoker.cookbooks.tabular.schemas import (
    LESS_IS_BETTER,
    CurveSeries,
    LearningCurve,
    ModelScores,
    TabularCurve,
    TabularEvaluation,
)

# Distinguishable with any colour vision, and in grey.
COLOURS = {"gbt": "#0072B2", "knn": "#E69F00", "knn_semi": "#CC79A7", "mlp": "#009E73", "baseline": "#7F7F7F"}
MARKS = {"gbt": "o", "knn": "s", "knn_semi": "D", "mlp": "^", "baseline": "x"}
_MOST_NUMBERED_CLASSES = 12
_MOST_NAMED_CLASSES = 30


def all_plots(book: TabularEvaluation) -> Iterator[tuple[str, str, Figure]]:
    """Return (file name, caption, figure) of every plot that the book has data for."""
    trained = [model for model in ranked(book) if model["name"] != "baseline"]
    yield "scores", "Scores on held-out rows, with 95 % intervals", _scores(book)
    if any(model["roc"] is not None for model in trained):
        yield "roc", "True against false alarms on held-out rows", _roc(book, trained)
        yield "calibration", "How often the models are right when they are this sure", _calibration(trained)
    if any(model["scatter"] is not None for model in trained):
        yield "predicted", "Predicted against true values on held-out rows", _predicted(book, trained)
    for model in trained:
        if model["confusion"]:
            yield f"confusion-{model['name']}", f"Which classes {model['name']} mixes up", _confusion(book, model)
    for model in trained:
        for curve in model["curves"]:
            yield f"training-{model['name']}", f"Training of {model['name']}", _training(model, curve)
    learning = [(model["name"], model["learning"]) for model in trained if model["learning"] is not None]
    if learning:
        yield "learning", "Would more rows help?", _learning(learning)
    if book["importance"]:
        yield "importance", f"What {book['best']} looks at", _importance(book)


def _scores(book: TabularEvaluation) -> Figure:
    models = ranked(book)[::-1]
    metrics = book["metrics"]
    columns = 3
    rows = -(-len(metrics) // columns)
    figure = Figure(figsize=(10.5, rows * (0.9 + 0.36 * len(models))), layout="constrained")
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for axes, metric in zip(grid.flat, metrics, strict=True):
        for place, model in enumerate(models):
            score = model["test"][metric]
            axes.plot(
                [score["low"], score["high"]], [place, place], color=COLOURS[model["name"]], linewidth=3, alpha=0.45
            )
            axes.plot(score["value"], place, marker=MARKS[model["name"]], color=COLOURS[model["name"]], markersize=8)
            axes.annotate(
                number(score["value"]),
                (score["value"], place),
                xytext=(0, 8),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
        axes.set_title(METRIC_NAMES[metric])
        axes.set_xlabel("less is better" if metric in LESS_IS_BETTER else "more is better", fontsize=8, color="#555555")
        axes.set_yticks(range(len(models)), [model["name"] for model in models])
        axes.set_ylim(-0.6, len(models) - 0.3)
        axes.margins(x=0.12)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.grid(visible=False, axis="y")
    return figure


def _roc(book: TabularEvaluation, trained: list[ModelScores]) -> Figure:
    figure, axes = one_plot(5.6, 5.2)
    axes.plot([0, 1], [0, 1], color=COLOURS["baseline"], linestyle=":", label="chance")
    for model in trained:
        if model["roc"] is not None:
            area = number(model["test"]["roc_auc"]["value"])
            label = f"{model['name']} (area {area})"
            axes.plot(model["roc"]["x"], model["roc"]["y"], color=COLOURS[model["name"]], label=label)
    classes = book["facts"]["classes"]
    about = f"alarm: {plain(classes[1])}" if len(classes) == 2 else "each class against the rest, averaged"
    axes.set_title(f"ROC ({about})")
    axes.set_xlabel("false alarms")
    axes.set_ylabel("true alarms")
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.set_aspect("equal")
    axes.legend(loc="lower right")
    return figure


def _calibration(trained: list[ModelScores]) -> Figure:
    figure, axes = one_plot(5.6, 5.2)
    axes.plot([0, 1], [0, 1], color=COLOURS["baseline"], linestyle=":", label="as sure as right")
    lowest = 1.0
    for model in trained:
        bins = model["calibration"]
        if bins is not None:
            colour, mark = COLOURS[model["name"]], MARKS[model["name"]]
            axes.plot(bins["x"], bins["y"], color=colour, marker=mark, label=model["name"])
            lowest = min([lowest, *bins["x"]])
    axes.set_title("Calibration")
    axes.set_xlabel("confidence in the answer")
    axes.set_ylabel("share that is right")
    axes.set_xlim(max(0.0, lowest - 0.05), 1.02)
    axes.set_ylim(-0.02, 1.04)
    axes.legend(loc="best")
    return figure


def _predicted(book: TabularEvaluation, trained: list[ModelScores]) -> Figure:
    figure = Figure(figsize=(3.6 * len(trained) + 0.6, 3.9), layout="constrained")
    grid = figure.subplots(1, len(trained), sharex=True, sharey=True, squeeze=False)
    drawn: list[tuple[ModelScores, CurveSeries]] = [
        (model, model["scatter"]) for model in trained if model["scatter"] is not None
    ]
    values = [value for _, points in drawn for value in (*points["x"], *points["y"])]
    for axes, (model, points) in zip(grid.flat, drawn, strict=True):
        axes.plot([min(values), max(values)], [min(values), max(values)], color=COLOURS["baseline"], linestyle=":")
        axes.scatter(points["x"], points["y"], color=COLOURS[model["name"]], s=16, alpha=0.65, linewidths=0)
        axes.set_title(f"{model['name']} (R² {number(model['test']['r2']['value'])})")
        axes.set_xlabel(f"true {plain(book['facts']['target'])}")
    grid[0, 0].set_ylabel("predicted")
    return figure


def _confusion(book: TabularEvaluation, model: ModelScores) -> Figure:
    counts = np.array(model["confusion"])
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = min(11.0, 2.6 + 0.55 * len(counts))
    figure, axes = one_plot(size + 0.9, size)
    image = axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    if len(counts) <= _MOST_NUMBERED_CLASSES:
        for row, column in np.ndindex(*counts.shape):
            colour = "white" if shares[row, column] > 0.55 else "#222222"
            axes.text(column, row, str(counts[row, column]), ha="center", va="center", color=colour)
    names = [plain(name, 16) for name in book["facts"]["classes"]]
    step = -(-len(names) // _MOST_NAMED_CLASSES)
    upright = max(map(len, names)) <= 3
    axes.set_xticks(
        range(0, len(names), step), names[::step], rotation=0 if upright else 40, ha="center" if upright else "right"
    )
    axes.set_yticks(range(0, len(names), step), names[::step])
    if not upright:
        for label in axes.get_xticklabels():
            label.set_rotation_mode("anchor")
    axes.grid(visible=False)
    axes.set_title(f"Confusion of {model['name']}")
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of the true class")
    return figure


def _training(model: ModelScores, curve: TabularCurve) -> Figure:
    figure, axes = one_plot()
    for colour, series in zip(LINE_COLOURS, curve["series"], strict=False):
        marker = "o" if len(series["x"]) <= 12 else None
        axes.plot(series["x"], series["y"], color=colour, label=series["name"], marker=marker, markersize=5)
    if curve["chosen"] is not None:
        axes.axvline(
            curve["chosen"], color="#555555", linestyle="--", linewidth=1.2, label=f"kept: {curve['chosen']:g}"
        )
    axes.set_title(f"Training of {model['name']}")
    axes.set_xlabel(curve["x_label"])
    axes.set_ylabel(curve["y_label"])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="best")
    return figure


def _learning(curves: list[tuple[str, LearningCurve]]) -> Figure:
    figure, axes = one_plot()
    for name, curve in curves:
        mean, spread = np.array(curve["mean"]), np.array(curve["std"])
        axes.fill_between(curve["rows"], mean - spread, mean + spread, color=COLOURS[name], alpha=0.15, linewidth=0)
        axes.plot(curve["rows"], mean, color=COLOURS[name], marker=MARKS[name], label=name)
    axes.set_title("Learning curves")
    axes.set_xlabel("training rows")
    axes.set_ylabel(f"{METRIC_NAMES[curves[0][1]['metric']]} (cross-validated)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="best")
    return figure


def _importance(book: TabularEvaluation) -> Figure:
    rows = book["importance"][::-1]
    figure, axes = one_plot(6.8, 1.2 + 0.32 * len(rows))
    places = range(len(rows))
    axes.barh(
        places,
        [row["mean"] for row in rows],
        xerr=[row["std"] for row in rows],
        color=COLOURS[book["best"]],
        error_kw={"ecolor": "#555555", "capsize": 3, "elinewidth": 1.2},
    )
    axes.set_yticks(places, [plain(row["feature"]) for row in rows])
    axes.set_title(f"What {book['best']} looks at")
    axes.set_xlabel(f"loss of {METRIC_NAMES[book['rank_by']]} when the column is shuffled")
    axes.grid(visible=False, axis="y")
    return figure
