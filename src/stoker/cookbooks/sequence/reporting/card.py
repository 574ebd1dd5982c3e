"""The model card: what was trained on what, how good it is, what it is not good for, and how to use it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from stoker.cookbooks.sequence.records import ScoreBook
from stoker.cookbooks.sequence.reporting.tables import METRIC_NAMES, data_name, headline, number


def model_card(book: ScoreBook) -> str:
    """Write the card as Markdown."""
    series = book["model"]["data"]["series"]
    sections = (
        f"# Model card: {_safe(series['target'])} from {_safe(data_name(book))}",
        f"{_safe(headline(book))}.",
        f"## Data\n\n{_bullets(_data(book))}",
        f"## Model\n\n{_bullets(_model(book))}",
        f"## Scores on held-out windows\n\n{_scores(book)}",
        f"## Limits\n\n{_bullets(_limits(book))}",
        f"## Use\n\n{_use(book)}",
    )
    return "\n\n".join(sections) + "\n"


def _data(book: ScoreBook) -> list[str]:
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


def _model(book: ScoreBook) -> list[str]:
    facts = book["model"]
    settings = ", ".join(f"{name} {value}" for name, value in {**facts["shape"], **facts["params"]}.items())
    lines = [f"{facts['family']}, {facts['weights']} weights: {settings}"]
    lines += [f"{curve['name']}: {len(curve['train'])} epochs, kept {curve['kept']}" for curve in facts["curves"]]
    return [*lines, *facts["notes"], *(f"{name} {version}" for name, version in sorted(facts["versions"].items()))]


def _scores(book: ScoreBook) -> str:
    rows = [
        [METRIC_NAMES[metric], number(book["test"][metric]), number(book["baseline"][metric])]
        for metric in book["metrics"]
    ]
    return f"The baseline answers {book['baseline_is']}.\n\n{_table(['metric', 'model', 'baseline'], rows)}"


def _limits(book: ScoreBook) -> list[str]:
    return [
        "Scores are those of one stretch of time after the training; they say nothing about another one.",
        "Windows overlap and follow each other: they are not independent, so there are no intervals.",
    ]


def _use(book: ScoreBook) -> str:
    series = book["model"]["data"]["series"]
    gives = "the probability of each class" if series["classes"] else "the next values"
    return (
        "```python\n"
        "from pathlib import Path\n"
        "from stoker.cookbooks.sequence.science.restoring import read_model\n"
        'model = read_model(Path("."))\n'
        "print(model.answer(windows))\n"
        "```\n\n"
        f"`windows` is an array (windows, {book['model']['data']['window']} rows, oldest first, "
        f"{len(series['channels'])} channels: {_safe(', '.join(series['channels']))}) in the units of the data; the "
        f"answer is {gives}. `model.pt` holds weights alone."
    )


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_safe(line)}" for line in lines)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(_safe(cell) for cell in line)} |" for line in lines)


def _safe(text: str) -> str:
    """Keep what a user's file calls things from being read as Markdown or HTML."""
    return re.sub(r"([\\`*|<>])", r"\\\1", " ".join(text.split()))
