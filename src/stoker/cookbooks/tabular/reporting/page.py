"""The report as one page that needs nothing beside it: no script, no network, images inside."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from stoker.cookbooks.tabular.records import ScoreBook
from stoker.cookbooks.tabular.reporting.card import data_lines, limits
from stoker.cookbooks.tabular.reporting.tables import headline
from stoker.cookbooks.tabular.reporting.wording import (
    METRIC_NAMES,
    MODEL_NAMES,
    cross_validated,
    number,
    params_text,
    ranked,
    verdicts,
    with_interval,
)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A plot as the page shows it."""

    name: str
    caption: str
    svg: bytes


def html_page(book: ScoreBook, pictures: Sequence[Picture]) -> str:
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
        _scores(book),
        _list(verdicts(book)),
        "<h2>Plots</h2>",
        f'<div class="plots">{"".join(_figure(picture) for picture in pictures)}</div>',
        _per_class(book),
        "<h2>Models</h2>",
        _models(book),
        "<h2>Data</h2>",
        _list(data),
        "<h2>Limits</h2>",
        _list(limits(book)),
        f'<p class="soft">{escape(versions)}</p>',
        "</body></html>\n",
    )
    return "\n".join(part for part in parts if part)


def _scores(book: ScoreBook) -> str:
    metric = book["rank_by"]
    columns = ["model", *(METRIC_NAMES[name] for name in book["metrics"]), f"{METRIC_NAMES[metric]}, cross-validated"]
    rows = []
    for model in ranked(book):
        cells = [model["name"], *(with_interval(model["test"][name]) for name in book["metrics"])]
        rows.append(([*cells, cross_validated(model, metric)], model["name"] == book["best"]))
    note = (
        f'<p class="soft">Brackets hold 95 % intervals from {book["bootstraps"]} resamples of the test rows; ± is the '
        "spread over folds of the training rows.</p>"
    )
    return _table(columns, rows) + note


def _per_class(book: ScoreBook) -> str:
    best = next(model for model in book["models"] if model["name"] == book["best"])
    if not best["per_class"]:
        return ""
    rows = []
    for scores in best["per_class"]:
        shares = [number(scores["precision"]), number(scores["recall"]), number(scores["f1"])]
        rows.append(([scores["name"], *shares, str(scores["rows"])], False))
    title = f"<h2>How {escape(book['best'])} does per class</h2>"
    return title + _table(["class", "precision", "recall", "F1", "test rows"], rows)


def _models(book: ScoreBook) -> str:
    rows = []
    for model in ranked(book):
        about = " ".join([f"{MODEL_NAMES[model['name']]}.", *model["notes"]])
        rows.append(([model["name"], about, params_text(model["params"])], model["name"] == book["best"]))
    return _table(["model", "what it is", "settings"], rows, text_columns=(1, 2))


def _table(columns: Sequence[str], rows: Sequence[tuple[Sequence[str], Any]], text_columns: Sequence[int] = ()) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = []
    for cells, is_best in rows:
        inside = "".join(
            f'<td class="text">{escape(cell)}</td>' if place in text_columns else f"<td>{escape(cell)}</td>"
            for place, cell in enumerate(cells)
        )
        lines.append(f'<tr class="best">{inside}</tr>' if is_best else f"<tr>{inside}</tr>")
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
