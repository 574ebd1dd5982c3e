"""The model card: training, data, quality, limits, and how to use it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from stoker.cookbooks.report_parts import (
    LINE_COLOURS,
    bullets,
    csv_text,
    markdown_table,
    one_plot,
    plain,
    safe,
    short_number,
)
from stoker.cookbooks.sequence.schemas import SequenceCurve, SequenceEvaluation

# Scores and curves as files for other programs, and the summary for a terminal.

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


def scores_csv(book: SequenceEvaluation) -> str:
    """Return one line per metric: the model's score and the baseline's."""
    rows = [[metric, book["test"][metric], book["baseline"][metric]] for metric in book["metrics"]]
    steps = [[f"rmse_step_{ahead}", value, ""] for ahead, value in enumerate(book["by_step"], start=1)]
    return csv_text(["metric", "test", "baseline"], [*rows, *steps])


def curve_csv(book: SequenceEvaluation) -> str:
    """Return one line per epoch of each training: the losses, and whether its weights were kept."""
    rows = [
        [curve["name"], epoch, seen, unseen, str(epoch == curve["kept"]).lower()]
        for curve in book["model"]["curves"]
        for epoch, (seen, unseen) in enumerate(zip(curve["train"], curve["validation"], strict=True), start=1)
    ]
    return csv_text(["training", "epoch", "train_loss", "validation_loss", "is_kept"], rows)


def headline(book: SequenceEvaluation) -> str:
    """Return the result in one sentence."""
    metric = book["rank_by"]
    score, simple = short_number(book["test"][metric]), short_number(book["baseline"][metric])
    windows = book["model"]["data"]["counts"]["test"]
    return (
        f"{book['model']['family']} on {data_name(book)}: {METRIC_NAMES[metric]} {score} on {windows} held-out windows "
        f"(baseline {simple})"
    )


def summary(book: SequenceEvaluation) -> dict[str, Any]:
    """Return the summary for a terminal: a headline, a table and what to try next."""
    columns = ["model", *(METRIC_NAMES[name] for name in book["metrics"])]
    rows = [
        [name, *(short_number(scores[metric]) for metric in book["metrics"])]
        for name, scores in ((book["model"]["family"], book["test"]), ("baseline", book["baseline"]))
    ]
    return {"headline": headline(book), "table": {"columns": columns, "rows": rows}, "next": _next(book)}


def data_name(book: SequenceEvaluation) -> str:
    """Return the name of the series."""
    series = book["model"]["data"]["series"]
    return series["name"] or f"a {series['format'].upper()} file"


def _next(book: SequenceEvaluation) -> list[str]:
    facts, series = book["model"], book["model"]["data"]["series"]
    target = shlex.quote(series["target"])
    data = f"data={series['name']}" if series["name"] else f"data=FILE target={target}"
    other = "gru" if facts["family"] != "gru" else "cnn"
    steps = [f"stoker run sequence/{other} {data}"]
    steps.append(f"stoker run sequence/{facts['family']} {data} window={2 * facts['data']['window']}")
    if series["name"] is not None:
        steps.append(f"stoker run sequence/{facts['family']} data=YOUR.csv target=COLUMN")
    return steps


def model_card(book: SequenceEvaluation) -> str:
    """Write the card as Markdown."""
    series = book["model"]["data"]["series"]
    sections = (
        f"# Model card: {safe(series['target'])} from {safe(data_name(book))}",
        f"{safe(headline(book))}.",
        f"## Data\n\n{bullets(_data(book))}",
        f"## Model\n\n{bullets(_model(book))}",
        f"## Scores on held-out windows\n\n{_scores(book)}",
        f"## Limits\n\n{bullets(_limits(book))}",
        f"## Use\n\n{_use(book)}",
    )
    return "\n\n".join(sections) + "\n"


def _data(book: SequenceEvaluation) -> list[str]:
    facts = book["model"]["data"]
    series = facts["series"]
    lines = [f"{data_name(book)}: {series['rows']} rows, channels {', '.join(series['channels'])}"]
    if series["sha256"]:
        lines.append(f"SHA-256 of the file: {series['sha256']}")
    if series["classes"]:
        asked = f"the class of the last row of a window: {', '.join(map(str, series['classes']))}"
    else:
        asked = f"the next {facts['horizon']} values of {series['target']}"
    lines.append(f"asked: {asked}, from {facts['window']} rows, every {facts['stride']}")
    counts, borders = facts["counts"], facts["borders"]
    lines.append(
        f"divided in time: rows up to {borders[1]} to train on ({counts['train']} windows), up to {borders[2]} to stop "
        f"by ({counts['validation']}), up to {borders[3]} held out ({counts['test']}); no window lies in two parts"
    )
    lines.append("scaled by mean and spread of the training rows alone")
    return [*lines, *facts["notes"]]


def _model(book: SequenceEvaluation) -> list[str]:
    facts = book["model"]
    settings = ", ".join(f"{name} {value}" for name, value in {**facts["shape"], **facts["params"]}.items())
    lines = [f"{facts['family']}, {facts['weights']} weights: {settings}"]
    lines += [f"{curve['name']}: {len(curve['train'])} epochs, kept {curve['kept']}" for curve in facts["curves"]]
    return [*lines, *facts["notes"], *(f"{name} {version}" for name, version in sorted(facts["versions"].items()))]


def _scores(book: SequenceEvaluation) -> str:
    rows = [
        [METRIC_NAMES[metric], short_number(book["test"][metric]), short_number(book["baseline"][metric])]
        for metric in book["metrics"]
    ]
    return f"The baseline answers {book['baseline_is']}.\n\n{markdown_table(['metric', 'model', 'baseline'], rows)}"


def _limits(book: SequenceEvaluation) -> list[str]:
    return [
        "Scores are those of one stretch of time after the training; they say nothing about another one.",
        "Windows overlap and follow each other: they are not independent, so there are no intervals.",
    ]


def _use(book: SequenceEvaluation) -> str:
    series = book["model"]["data"]["series"]
    gives = "the probability of each class" if series["classes"] else "the next values"
    return (
        "```python\n"
        "from pathlib import Path\n"
        "from stoker.cookbooks.sequence.restore import read_model\n"
        'model = read_model(Path("."))\n'
        "print(model.answer(windows))\n"
        "```\n\n"
        f"`windows` is an array (windows, {book['model']['data']['window']} rows, oldest first, "
        f"{len(series['channels'])} channels: {safe(', '.join(series['channels']))}) in the units of the data; the "
        f"answer is {gives}. `model.pt` holds weights alone."
    )


# The plots of a report, each a figure made from the score book.


_MOST_NUMBERED_CLASSES = 12


def all_plots(book: SequenceEvaluation) -> Iterator[tuple[str, str, Figure]]:
    """Return (file name, caption, figure) of every plot that the book has data for."""
    for curve in book["model"]["curves"]:
        yield f"loss-{curve['name']}", "", _losses(curve)
    if book["by_step"]:
        yield "forecast", "", _forecast(book)
    if len(book["by_step"]) > 1:
        yield "steps", "", _steps(book)
    if book["confusion"]:
        yield "confusion", "", _confusion(book)


def _losses(curve: SequenceCurve) -> Figure:
    figure, axes = one_plot()
    epochs = range(1, len(curve["train"]) + 1)
    axes.plot(epochs, curve["train"], color=LINE_COLOURS[0], label="training part")
    axes.plot(epochs, curve["validation"], color=LINE_COLOURS[1], label="validation part")
    axes.axvline(curve["kept"], color="#7F7F7F", linestyle=":", label=f"kept: epoch {curve['kept']}")
    axes.set_title(f"Loss of the {curve['name']}")
    axes.set_xlabel("epochs")
    axes.set_ylabel("loss")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()
    return figure


def _forecast(book: SequenceEvaluation) -> Figure:
    figure, axes = one_plot(9.0, 4.2)
    for place, name in enumerate(("true", "predicted")):
        axes.plot(book["shown"][name], color=LINE_COLOURS[place], label=name)
    axes.set_title(f"{plain(book['model']['data']['series']['target'])}, one step ahead, at the beginning of the test")
    axes.set_xlabel("windows")
    axes.legend()
    return figure


def _steps(book: SequenceEvaluation) -> Figure:
    figure, axes = one_plot()
    axes.plot(range(1, len(book["by_step"]) + 1), book["by_step"], color=LINE_COLOURS[0], marker="o")
    axes.set_title("Error by how far ahead")
    axes.set_xlabel("steps ahead")
    axes.set_ylabel("root mean squared error")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _confusion(book: SequenceEvaluation) -> Figure:
    figure, axes = one_plot(5.6, 5.2)
    names = [plain(name, 14) for name in book["model"]["data"]["series"]["classes"]]
    axes.imshow(book["confusion"], cmap="Blues")
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.grid(visible=False)
    if len(names) <= _MOST_NUMBERED_CLASSES:
        most = max(map(max, book["confusion"]))
        for row, counts in enumerate(book["confusion"]):
            for column, count in enumerate(counts):
                colour = "white" if count > most / 2 else "black"
                axes.text(column, row, str(count), ha="center", va="center", color=colour)
    return figure
