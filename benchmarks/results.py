"""How answers are shown: a table for the terminal, and RESULTS.md with the machine that the figures came from.

An answer is the JSON object that a benchmark prints. `results.json` keeps the newest one of each benchmark, so that
one question can be asked again without the others; RESULTS.md is drawn from it and holds nothing that was not
measured. A benchmark that failed is recorded as failed: older figures of it stay, and the page says that they are old.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
KEPT = HERE / "results.json"
PAGE = HERE / "RESULTS.md"

Answer = dict[str, Any]


def as_text(answer: Answer) -> str:
    """The answer as a table for a terminal."""
    cells = [_cells(row) for row in answer["rows"]]
    heads = ("", "measured", "against", "ratio", "goal", "")
    widths = [max(len(line[column]) for line in (heads, *cells)) for column in range(len(heads))]
    lines = [f"{answer['benchmark']}: {answer['asks']}"]
    for line in (heads, *cells):
        first, *middle, last = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        lines.append("  ".join(["", first, *(text.strip().rjust(len(text)) for text in middle), last]).rstrip())
    names, *verdicts = answer.get("verdicts") or [[]]
    for case, *said in verdicts:
        lines.append(f"  {case}")
        lines += [f"    {name}: {verdict}" for name, verdict in zip(names[1:], said, strict=True)]
    lines += [f"  not measured: {reason}" for reason in _reasons(answer)]
    return "\n".join(lines)


def record(answers: list[Answer]) -> None:
    """Keeps these answers in place of older ones and draws RESULTS.md again."""
    kept: dict[str, Answer] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    kept.update({answer["benchmark"]: answer for answer in answers})
    KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(as_page(list(kept.values())))


def record_failure(name: str, asks: str, at: str, reason: str) -> None:
    """Note that a benchmark gave no answer; figures that it gave before stay, marked as older."""
    kept: dict[str, Answer] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    before = kept.get(name, {"benchmark": name, "asks": asks, "rows": []})
    record([{**before, "failed": {"at": at, "reason": reason}}])


def as_page(answers: list[Answer]) -> str:
    """All answers as a Markdown page."""
    parts = [_INTRODUCTION]
    for answer in sorted(answers, key=lambda answer: answer["benchmark"]):
        parts.append(f"## {answer['benchmark']}\n\n{answer['asks']}\n")
        if failed := answer.get("failed"):
            older = " The figures below are older." if answer["rows"] else ""
            parts.append(f"**Failed** {failed['at']}: {failed['reason']}.{older}\n")
            if not older:
                continue
        parts.append(_markdown_table(answer))
        if answer.get("verdicts"):
            parts.append(_verdict_table(answer["verdicts"]))
        parts += [f"Not measured: {reason}\n" for reason in _reasons(answer)]
        parts += [f"{note}\n" for note in answer.get("notes", ())]
        parts.append(_provenance(answer))
    return "\n".join(parts)


_INTRODUCTION = """# Results

Drawn by `python benchmarks/run_all.py --record` from `results.json`; do not edit by hand. How things are measured
stands in [README.md](README.md). The best of the runs decides, the median stands behind it. Ratios travel between
machines, times do not.
"""


def _markdown_table(answer: Answer) -> str:
    lines = [
        "| question | measured, best / median | against, best / median | ratio | goal | |",
        "|---|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in answer["rows"]]
    return "\n".join(lines) + "\n"


def _verdict_table(verdicts: list[list[str]]) -> str:
    heads, *lines = verdicts
    return "\n".join("| " + " | ".join(line) + " |" for line in (heads, ["---"] * len(heads), *lines)) + "\n"


def _provenance(answer: Answer) -> str:
    facts = answer["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(answer["versions"].items()))
    if "gpu" in facts:
        return f"Measured {answer['measured_at']} on {facts['gpu']} MiB. Versions: {versions}.\n"
    return (
        f"Measured {answer['measured_at']} on {facts['processor']}, {facts['cores']} cores, {facts['memory_gib']} GiB, "
        f"{facts['kernel']}, {facts['filesystem']}, one small write with fsync {facts['fsync_ms']} ms, "
        f"Python {facts['python']}, "
        f"load average {answer['load_before']:.1f} before and {answer['load_after']:.1f} after. "
        f"Versions: {versions}.\n"
    )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"{row['question']}, vs {row['against']}",
        _show(row["ours"], row["unit"]),
        _show(row["theirs"], row["unit"]),
        "" if row["ratio"] is None else f"{row['ratio']:.3g}",
        "" if row["at_most"] is None else f"≤ {row['at_most']:g}",
        row["verdict"],
    )


def _reasons(answer: Answer) -> list[str]:
    return list(dict.fromkeys(row["why_missing"] for row in answer["rows"] if row["why_missing"]))


def _show(figure: dict[str, Any] | None, unit: str) -> str:
    """A figure in a unit that suits its size; one that was taken once, or never varied, is shown once."""
    if figure is None:
        return "not measured"
    best, median = _show_one(figure["best"], unit), _show_one(figure["median"], unit)
    return best if figure["runs"] == 1 or best == median else f"{best} / {median}"


def _show_one(value: float, unit: str) -> str:
    match unit:
        case "s" if value < 0.001:
            return f"{value * 1e6:.0f} µs"
        case "s" if value < 1:
            return f"{value * 1e3:.3g} ms"
        case "s":
            return f"{value:.2f} s"
        case "bytes":
            return f"{value / 2**20:.0f} MiB"
        case _:
            return f"{value:g}"
