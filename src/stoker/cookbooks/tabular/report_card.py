"""The model card: training, data, quality, limits, and how to use it."""

from __future__ import annotations

import math
import shlex
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from stoker.cookbooks.report_parts import Picture, bullets, csv_text, markdown_table, safe
from stoker.cookbooks.tabular.schemas import LESS_IS_BETTER, Interval, ModelScores, TableFacts, TabularEvaluation

# Scores as files for other programs, and the summary for a terminal.

_SHOWN = {"classification": ("accuracy", "macro_f1", "roc_auc", "log_loss"), "regression": ("mae", "rmse")}


def scores_csv(book: TabularEvaluation) -> str:
    """Return one line per model and metric: test score with its interval, cross-validated mean and spread."""
    rows: list[list[Any]] = []
    for model in ranked(book):
        validated = model["cross_validation"]
        for metric in book["metrics"]:
            score = model["test"][metric]
            folds = [validated["mean"][metric], validated["std"][metric]] if validated is not None else ["", ""]
            is_best = str(model["name"] == book["best"]).lower()
            rows.append([model["name"], metric, score["value"], score["low"], score["high"], *folds, is_best])
    return csv_text(["model", "metric", "test", "low", "high", "cv_mean", "cv_std", "is_best"], rows)


def headline(book: TabularEvaluation) -> str:
    """Return the result in one sentence."""
    best, metric = _best(book), book["rank_by"]
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
    # "Ranks first", not "is best": the order may be within the intervals, which the verdicts of the report say.
    by = "cross-validation" if book["ranked_on"] == "cross-validation" else "held-out rows"
    return f"{best['name']} ranks first of {contenders} models on {data_name(book['facts'])} by {by}: {scores}"


def summary(book: TabularEvaluation) -> dict[str, Any]:
    """Return the summary for a terminal: a headline, a table and what to try next."""
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


def _next(book: TabularEvaluation) -> list[str]:
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


_MOST_LISTED = 40


def model_card(book: TabularEvaluation) -> str:
    """Write the card as Markdown."""
    rows = _class_rows(book)
    sections = (
        f"# Model card: {safe(book['facts']['target'])} from {safe(data_name(book['facts']))}",
        f"{safe(headline(book))}.",
        _section("Data", _data(book)),
        _section("Models", _models(book)),
        _section("Scores on held-out rows", _scores(book)),
        _section(f"How {book['best']} does per class", markdown_table(_CLASS_COLUMNS, rows) if rows else ""),
        _section(f"What {book['best']} looks at", _importance(book)),
        _section("Limits", bullets(limits(book))),
        _section("Use", _use(book)),
        _section("Versions", bullets(f"{name} {version}" for name, version in sorted(book["versions"].items()))),
    )
    return "\n\n".join(section for section in sections if section) + "\n"


def limits(book: TabularEvaluation) -> list[str]:
    """Return what these scores do not show."""
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


def data_lines(facts: TableFacts) -> list[str]:
    """Return the description of the data."""
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


def _data(book: TabularEvaluation) -> str:
    split = book["split"]
    how = "each class in proportion" if book["facts"]["classes"] else "at random"
    division = (
        f"{split['train_rows']} rows to train on and {split['test_rows']} held out ({split['test_percent']} %, {how}, "
        f"seed {split['seed']})"
    )
    return bullets([*data_lines(book["facts"]), division])


def _models(book: TabularEvaluation) -> str:
    lines = []
    for model in ranked(book):
        settings = f": {params_text(model['params'])}" if model["params"] else ""
        lines.append(f"{model['name']}, {MODEL_NAMES[model['name']]}{settings}")
        lines.extend(f"  {note}" for note in model["notes"])
    return bullets(lines)


def _scores(book: TabularEvaluation) -> str:
    return (
        f"Brackets hold 95 % intervals from {book['bootstraps']} resamples of the test rows; ± is the spread over "
        f"folds.\n\n{markdown_table(*_scores_table(book))}\n\n{bullets(verdicts(book))}"
    )


def _scores_table(book: TabularEvaluation) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of all scores, best model first."""
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
    return columns, rows


_CLASS_COLUMNS = ["class", "precision", "recall", "F1", "test rows"]


def _class_rows(book: TabularEvaluation) -> list[list[str]]:
    """Return how well the best model finds each class."""
    return [
        [one["name"], number(one["precision"]), number(one["recall"]), number(one["f1"]), str(one["rows"])]
        for one in _best(book)["per_class"]
    ]


def _importance(book: TabularEvaluation) -> str:
    rows = [[row["feature"], f"{number(row['mean'])} ± {number(row['std'])}"] for row in book["importance"]]
    return (
        f"Loss of {METRIC_NAMES[book['rank_by']]} on held-out rows when one column is shuffled. Columns that say the "
        f"same share their importance.\n\n{markdown_table(['column', 'loss'], rows)}"
        if rows
        else ""
    )


def _use(book: TabularEvaluation) -> str:
    columns = [*book["facts"]["numeric"], *book["facts"]["categorical"]]
    return (
        "```python\n"
        "import joblib, pandas as pd\n"
        'model = joblib.load("best-model.joblib")\n'
        'print(model.predict(pd.read_csv("new-rows.csv")))\n'
        "```\n\n"
        f"It needs scikit-learn {book['versions']['scikit-learn']} and not Stoker. The rows need these columns: "
        f"{safe(_enumerated(columns))}. The file is a pickle: loading one runs what is in it, so load only files that "
        "you trust."
    )


def _best(book: TabularEvaluation) -> ModelScores:
    return next(model for model in book["models"] if model["name"] == book["best"])


def _section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}" if body else ""


def _enumerated(names: Sequence[object]) -> str:
    shown = ", ".join(str(name) for name in names[:_MOST_LISTED])
    return f"{shown} and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else shown


# The report as one self-contained page: no script, no network, images inside.

_STYLE = """
:root { color-scheme: light dark; --line: #ddd; --soft: #666; --mark: #eef6fc; }
@media (prefers-color-scheme: dark) { :root { --line: #444; --soft: #aaa; --mark: #1d2f3d; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .3rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.lead { font-size: 1.05rem; margin-top: 0; } .soft { color: var(--soft); }
.wide { overflow-x: auto; } table { border-collapse: collapse; } tr.best { background: var(--mark); }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .7rem; text-align: left; white-space: nowrap; }
td { font-variant-numeric: tabular-nums; } td.text { white-space: normal; }
.plots { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); }
figure { background: #fff; border: 1px solid var(--line); border-radius: 6px; margin: 0; padding: .6rem; }
figure { text-align: center; } figure.full { grid-column: 1 / -1; } img { height: auto; max-width: 100%; }
figcaption { color: #555; font-size: .9rem; }
"""


def html_page(book: TabularEvaluation, pictures: Sequence[Picture]) -> str:
    """Write the page."""
    title = f"{book['facts']['target']}: {book['best']}"
    split = book["split"]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(book["versions"].items()))
    data = [
        *data_lines(book["facts"]),
        f"{split['train_rows']} rows to train on, {split['test_rows']} held out (seed {split['seed']})",
    ]
    parts = (
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Predicting {escape(book['facts']['target'])}</h1>",
        f'<p class="lead">{escape(headline(book))}.</p>',
        "<h2>Scores on held-out rows</h2>",
        _scores_page(book),
        _list(verdicts(book)),
        "<h2>Plots</h2>",
        f'<div class="plots">{"".join(_figure(picture) for picture in pictures)}</div>',
        _per_class_page(book),
        "<h2>Models</h2>",
        _models_page(book),
        "<h2>Data</h2>",
        _list(data),
        "<h2>Limits</h2>",
        _list(limits(book)),
        f'<p class="soft">{escape(versions)}</p>',
        "</body></html>\n",
    )
    return "\n".join(part for part in parts if part)


def _scores_page(book: TabularEvaluation) -> str:
    columns, rows = _scores_table(book)
    note = (
        f'<p class="soft">Brackets hold 95 % intervals from {book["bootstraps"]} resamples of the test rows; ± is the '
        "spread over folds of the training rows.</p>"
    )
    return _table_page(columns, rows, best=book["best"]) + note


def _per_class_page(book: TabularEvaluation) -> str:
    rows = _class_rows(book)
    title = f"<h2>How {escape(book['best'])} does per class</h2>"
    return title + _table_page(_CLASS_COLUMNS, rows) if rows else ""


def _models_page(book: TabularEvaluation) -> str:
    rows = []
    for model in ranked(book):
        about = " ".join([f"{MODEL_NAMES[model['name']]}.", *model["notes"]])
        rows.append([model["name"], about, params_text(model["params"])])
    return _table_page(["model", "what it is", "settings"], rows, best=book["best"], text_columns=(1, 2))


def _table_page(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, best: str | None = None, text_columns: Sequence[int] = ()
) -> str:
    """Return a table as HTML, the row of the best model marked."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = []
    for cells in rows:
        inside = "".join(
            f'<td class="text">{escape(cell)}</td>' if place in text_columns else f"<td>{escape(cell)}</td>"
            for place, cell in enumerate(cells)
        )
        lines.append(f'<tr class="best">{inside}</tr>' if cells[0] == best else f"<tr>{inside}</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _figure(picture: Picture) -> str:
    source = b64encode(picture.svg).decode()
    wide = ' class="full"' if picture.name in ("scores", "predicted") else ""
    return (
        f'<figure{wide}><img src="data:image/svg+xml;base64,{source}" alt="{escape(picture.caption)}">'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" if lines else ""


# Names of metrics, models, numbers and data for people.


METRIC_NAMES: Final[Mapping[str, str]] = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "roc_auc": "ROC AUC",
    "log_loss": "log loss",
    "brier": "Brier score",
    "r2": "R²",
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
}
SHORT_METRIC_NAMES: Final[Mapping[str, str]] = {
    **METRIC_NAMES,
    "balanced_accuracy": "balanced",
    "mae": "MAE",
    "rmse": "RMSE",
}
MODEL_NAMES: Final[Mapping[str, str]] = {
    "gbt": "gradient boosted trees (HistGradientBoosting)",
    "knn": "k nearest neighbours",
    "knn_semi": "k nearest neighbours, self-trained from few labels",
    "mlp": "multi-layer perceptron",
    "baseline": "baseline that never looks at a feature",
}


def number(value: float) -> str:
    """Return a score with the digits that its size and spread justify."""
    if not math.isfinite(value):
        return "–"
    if value != 0 and abs(value) >= 100:
        return f"{value:,.1f}"
    text = f"{value:.3f}"
    return text.removeprefix("-") if float(text) == 0 else text


def with_interval(score: Interval) -> str:
    """Return a score with its 95 % interval."""
    return f"{number(score['value'])} [{number(score['low'])}, {number(score['high'])}]"


def cross_validated(model: ModelScores, metric: str) -> str:
    """Return the cross-validated mean and spread, or a dash where there is none."""
    validated = model["cross_validation"]
    if validated is None:
        return "–"
    return f"{number(validated['mean'][metric])} ± {number(validated['std'][metric])}"


def ranked(book: TabularEvaluation) -> list[ModelScores]:
    """Return the models from best to worst by what decides, the baseline last."""
    sign = 1.0 if book["rank_by"] in LESS_IS_BETTER else -1.0

    def place(model: ModelScores) -> tuple[bool, bool, float]:
        validated = model["cross_validation"]
        score = validated["mean"] if validated is not None else {}
        value = score.get(book["rank_by"], model["test"][book["rank_by"]]["value"])
        return model["name"] == "baseline", model["name"] != book["best"], sign * value

    return sorted(book["models"], key=place)


def verdicts(book: TabularEvaluation) -> list[str]:
    """Return which differences the test rows can and can't show."""
    best, metric = book["best"], METRIC_NAMES[book["rank_by"]]
    beaten: list[str] = []
    level: list[str] = []
    ahead: list[str] = []
    for model in ranked(book):
        gap = model["behind_best"]
        if gap is not None:
            (beaten if gap["low"] > 0 else ahead if gap["high"] < 0 else level).append(model["name"])
    said = []
    if beaten:
        said.append(f"{best} is better than {_joined(beaten, 'and')} on the held-out rows ({metric}, 95 % sure).")
    if level:
        said.append(f"The held-out rows can't tell {_joined(level, 'or')} from {best} ({metric}, 95 %).")
    if ahead:
        said.append(
            f"On the held-out rows {_joined(ahead, 'and')} did better than {best} ({metric}, 95 % sure); on the "
            "training rows, which decide, it was the other way round."
        )
    return said


def data_name(facts: TableFacts) -> str:
    """Return the name of the data, the same on every machine."""
    origin = facts["origin"]
    return origin["name"] or f"a {'CSV' if origin['format'] == 'csv' else 'Parquet'} file"


def params_text(params: Mapping[str, Any]) -> str:
    """Return settings on one line."""
    return ", ".join(f"{name}={_setting(value)}" for name, value in sorted(params.items())) or "–"


def _setting(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _joined(names: list[str], word: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"
