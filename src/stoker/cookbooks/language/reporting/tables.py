"""Curves and samples as files, and the summary that a terminal shows."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from stoker.cookbooks.language.bundled import BASES
from stoker.cookbooks.language.records import Sample, Training, best_eval, perplexity, significant


def curve_csv(training: Training) -> str:
    """One line for each point of the curve, and whether its weights were kept."""
    columns = ["step", "epoch", "loss", "eval_loss", "perplexity", "lr", "is_kept"]
    curve = training["curve"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for one in curve["points"]:
        beyond = perplexity(one["eval_loss"])
        values = (one["loss"], one["eval_loss"], None if beyond is None else significant(beyond))
        kept = str(one["step"] == curve["kept"]).lower()
        writer.writerow(
            [one["step"], one["epoch"], *("" if value is None else value for value in values), one["lr"], kept]
        )
    return text.getvalue()


def samples_text(samples: Sequence[Sample]) -> str:
    """Give samples as Markdown, each prompt above its completion."""
    parts = [
        f"## {number}\n\n{fenced(one['prompt'])}\n\n{fenced(one['completion'])}"
        for number, one in enumerate(samples, 1)
    ]
    return "# Samples\n\nEach prompt above what was made of it.\n\n" + "\n\n".join(parts) + "\n"


def headline(training: Training) -> str:
    """Say in one sentence what came out."""
    after, before = perplexity(best_eval(training)), perplexity(training["curve"]["before"])
    judged = "not evaluated" if after is None else f"perplexity {number(after)} on {_held_out(training)}"
    beside = "" if before is None or after is None else f" (the base alone: {number(before)})"
    return f"{title(training)}: {judged}{beside}"


def title(training: Training) -> str:
    """Say what was trained."""
    settings, base = training["settings"], training["base"]["name"]
    if training["method"] == "full":
        return f"{base}, every weight trained"
    return f"adapter of rank {settings.get('rank')} on {base}"


def summary(training: Training) -> dict[str, Any]:
    """Give what a terminal shows at the end of a run: a headline, a table and what to try next."""
    curve = training["curve"]
    kept = best_eval(training)
    last = next((one for one in reversed(curve["points"]) if one["loss"] is not None), None)
    rows = [
        ["held out, the base alone", _loss(curve["before"]), _loss(perplexity(curve["before"]))],
        [f"held out, after {updates(curve['kept'])} (kept)", _loss(kept), _loss(perplexity(kept))],
    ]
    if last is not None:
        rows.append([f"training, after {updates(last['step'])}", _loss(last["loss"]), _loss(perplexity(last["loss"]))])
    return {
        "headline": headline(training),
        "table": {"columns": ["part", "loss", "perplexity"], "rows": rows},
        "next": _next(training),
    }


def updates(count: int) -> str:
    """Say how many updates."""
    return f"{count} update{'' if count == 1 else 's'}"


def number(value: float) -> str:
    """Give a number as people read it."""
    return f"{value:.4g}"


def fenced(text: str) -> str:
    """Give a text that is shown as it is, whatever it holds."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text}\n{fence}"


def _loss(value: float | None) -> str:
    return "–" if value is None else number(value)


def _held_out(training: Training) -> str:
    count = training["data"].get("held_out")
    return f"{count:,} held-out example{'' if count == 1 else 's'}" if isinstance(count, int) else "the held-out part"


def base_word(training: Training) -> str:
    """Give what to type for the base. Of a folder only its own name is known: the same base may lie anywhere."""
    name: str = training["base"]["name"]
    return name if "/" in name or name in BASES else f"PATH/{name}"


def _next(training: Training) -> list[str]:
    settings, base = training["settings"], base_word(training)
    if training["method"] == "full":
        return [f"stoker run language/lora base={base} data=FILE.jsonl"]
    rank, lr = settings.get("rank", 16), settings.get("lr", 2e-4)
    again = f"stoker run language/lora rank={rank},{2 * rank} lr={lr:g},{2 * lr:g}"
    return [f"{again} base={base} data=FILE.jsonl"]
