"""The model card: what was trained on what, how good it is, what it is not good for, and how to use it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from stoker.cookbooks.tabular.records import Facts, ModelScores, ScoreBook
from stoker.cookbooks.tabular.reporting.tables import headline
from stoker.cookbooks.tabular.reporting.wording import (
    METRIC_NAMES,
    MODEL_NAMES,
    cross_validated,
    data_name,
    number,
    params_text,
    ranked,
    verdicts,
    with_interval,
)

_MOST_LISTED = 40


def model_card(book: ScoreBook) -> str:
    """Write the card as Markdown."""
    sections = (
        f"# Model card: {_safe(book['facts']['target'])} from {_safe(data_name(book['facts']))}",
        f"{_safe(headline(book))}.",
        _section("Data", _data(book)),
        _section("Models", _models(book)),
        _section("Scores on held-out rows", _scores(book)),
        _section(f"How {book['best']} does per class", _per_class(book)),
        _section(f"What {book['best']} looks at", _importance(book)),
        _section("Limits", _bullets(limits(book))),
        _section("Use", _use(book)),
        _section("Versions", _bullets(f"{name} {version}" for name, version in sorted(book["versions"].items()))),
    )
    return "\n\n".join(section for section in sections if section) + "\n"


def limits(book: ScoreBook) -> list[str]:
    """Say what these scores do not show."""
    rows = book["split"]["test_rows"]
    said = [
        "Scores hold for rows like these; they say nothing about data of another origin, time or mix of values.",
        f"The test part has {rows} rows: differences within the intervals are not differences.",
    ]
    if book["ranked_on"] == "cross-validation":
        said.append(
            "The best model was chosen by cross-validation on the training rows. Settings such as the number of trees "
            "were chosen on those rows too, so cross-validated scores are slightly too good; test scores are not."
        )
    else:
        said.append(
            "Cross-validation was not possible, so the best model was chosen on the test rows: its score is too good."
        )
    said.append("Rows are assumed to be independent. Groups or time order in them would make every score too good.")
    return [*said, *book["facts"]["notes"]]


def data_lines(facts: Facts) -> list[str]:
    """Say what the data is."""
    origin = facts["origin"]
    lines = [f"{data_name(facts)}{', bundled with scikit-learn' if origin['name'] else ''}"]
    if origin["sha256"]:
        lines.append(f"SHA-256 of the file: {origin['sha256']}")
    lines.append(
        f"{facts['rows']} rows; {len(facts['numeric'])} numeric and {len(facts['categorical'])} categorical columns"
    )
    if facts["classes"]:
        lines.append(f"target: {facts['target']}, classes {_enumerated(facts['classes'])}")
    else:
        lines.append(f"target: {facts['target']}, a quantity")
    return lines


def _data(book: ScoreBook) -> str:
    split = book["split"]
    how = "each class in proportion" if book["facts"]["classes"] else "at random"
    division = (
        f"{split['train_rows']} rows to train on and {split['test_rows']} held out ({split['test_percent']} %, {how}, "
        f"seed {split['seed']})"
    )
    return _bullets([*data_lines(book["facts"]), division])


def _models(book: ScoreBook) -> str:
    lines = []
    for model in ranked(book):
        settings = f": {params_text(model['params'])}" if model["params"] else ""
        lines.append(f"{model['name']}, {MODEL_NAMES[model['name']]}{settings}")
        lines.extend(f"  {note}" for note in model["notes"])
    return _bullets(lines)


def _scores(book: ScoreBook) -> str:
    metric = book["rank_by"]
    columns = ["model", *(METRIC_NAMES[name] for name in book["metrics"]), f"{METRIC_NAMES[metric]}, cross-validated"]
    rows = [
        [
            model["name"],
            *(with_interval(model["test"][name]) for name in book["metrics"]),
            cross_validated(model, metric),
        ]
        for model in ranked(book)
    ]
    return (
        f"Brackets hold 95 % intervals from {book['bootstraps']} resamples of the test rows; ± is the spread over "
        f"folds.\n\n{_table(columns, rows)}\n\n{_bullets(verdicts(book))}"
    )


def _per_class(book: ScoreBook) -> str:
    best = _best(book)
    rows = [
        [
            scores["name"],
            number(scores["precision"]),
            number(scores["recall"]),
            number(scores["f1"]),
            str(scores["rows"]),
        ]
        for scores in best["per_class"]
    ]
    return _table(["class", "precision", "recall", "F1", "test rows"], rows) if rows else ""


def _importance(book: ScoreBook) -> str:
    rows = [[row["feature"], f"{number(row['mean'])} ± {number(row['std'])}"] for row in book["importance"]]
    return (
        f"Loss of {METRIC_NAMES[book['rank_by']]} on held-out rows when one column is shuffled. Columns that say the "
        f"same share their importance.\n\n{_table(['column', 'loss'], rows)}"
        if rows
        else ""
    )


def _use(book: ScoreBook) -> str:
    columns = [*book["facts"]["numeric"], *book["facts"]["categorical"]]
    return (
        "```python\n"
        "import joblib, pandas as pd\n"
        'model = joblib.load("best-model.joblib")\n'
        'print(model.predict(pd.read_csv("new-rows.csv")))\n'
        "```\n\n"
        f"It needs scikit-learn {book['versions']['scikit-learn']} and not Stoker. The rows need these columns: "
        f"{_safe(_enumerated(columns))}. The file is a pickle: loading one runs what is in it, so load only files that "
        "you trust."
    )


def _best(book: ScoreBook) -> ModelScores:
    return next(model for model in book["models"] if model["name"] == book["best"])


def _section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}" if body else ""


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"{'  ' if line.startswith('  ') else ''}- {_safe(line.strip())}" for line in lines)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(_safe(cell) for cell in line)} |" for line in lines)


def _enumerated(names: Sequence[object]) -> str:
    shown = ", ".join(str(name) for name in names[:_MOST_LISTED])
    return f"{shown} and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else shown


def _safe(text: str) -> str:
    """Keep what a user's file calls things from being read as Markdown or HTML."""
    return re.sub(r"([\\`*|<>])", r"\\\1", " ".join(text.split()))
