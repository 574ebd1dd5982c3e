"""Jobs beside each other as lines: what differs, section by section, and how much is the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stoker.faces.view.arguments import value_text
from stoker.faces.view.stages import number
from stoker.faces.view.tables import table
from stoker.faces.view.times import span
from stoker.model.printable import one_line
from stoker.model.units import format_size
from stoker.worker.comparison import COSTS
from stoker.worker.sides import SECTIONS, Fact, Side

_COST_NAMES = {"seconds": "time", "peak_bytes": "memory", "peak_gpu_bytes": "GPU memory"}
_LONGEST = 48
_DIGEST = 64


def side_lines(facts: Sequence[Fact], sides: Sequence[Side], *, columns: int) -> list[str]:
    """Lay a comparison out. Where there are two sides, metrics also say what changed."""
    labels = [side.label for side in sides]
    lines = []
    for section in SECTIONS:
        own = [fact for fact in facts if fact.section == section]
        shown = own if section == "metrics" else [fact for fact in own if not fact.is_same]
        shown = [fact for fact in shown if any(value is not None for value in fact.values)]
        lines += ["", _title(section, own, shown)]
        if shown:
            more = ["change"] if section == "metrics" and len(sides) == 2 else []
            rows = [_row(fact, with_change=bool(more)) for fact in shown]
            lines += table(rows, header=["", *labels, *more], columns=columns, indent="  ")
    return lines


def verdict(facts: Sequence[Fact]) -> str:
    """Say in one line whether anything differs, and where."""
    decides = [fact for fact in facts if fact.section != "metrics"]
    measured = [fact for fact in facts if fact.section == "metrics" and fact.name not in COSTS]
    is_same_outcome = all(fact.is_same for fact in measured)
    differ = [name for name in SECTIONS if any(fact.section == name and not fact.is_same for fact in decides)]
    if differ:
        return f"they differ in {_listed(differ)}{'; what came out is the same' * (bool(measured) and is_same_outcome)}"
    known = [name for name in SECTIONS if any(fact.section == name for fact in decides)]
    unknown = [name for name in SECTIONS if name not in known and name != "metrics"]
    came_out = ", and so is what came out" if is_same_outcome else ", but not what came out"
    doubt = f"; nothing is known of {_listed(unknown)}" if unknown else ""
    return f"identical: {_listed(known)} are the same{came_out if measured else ''}{doubt}"


def fact_text(fact: Fact, value: Any) -> str:
    """Write a value of a fact for people."""
    if value is None:
        return "–"
    if fact.section == "metrics":
        if fact.name == "seconds":
            return span(value)
        return format_size(value) if fact.name in COSTS else number(value)
    if fact.section in ("code", "data") and isinstance(value, str):
        return ", ".join(_short_digest(one) for one in value.split(", "))
    return one_line(value_text(value), _LONGEST)


def change_text(fact: Fact) -> str:
    """Say how a number changed between two sides, as a difference and in percent."""
    before, after = fact.values
    if not _is_number(before) or not _is_number(after):
        return ""
    difference = after - before
    if difference == 0:
        return "the same"
    percent = f" ({difference / abs(before):+.1%})" if before else ""
    if fact.name in COSTS:
        return f"{'+' if difference > 0 else '-'}{fact_text(fact, abs(difference))}{percent}"
    return f"{difference:+.4g}{percent}"


def _row(fact: Fact, *, with_change: bool) -> list[str]:
    origins = fact.origins or ("",) * len(fact.values)
    cells = []
    for value, origin in zip(fact.values, origins, strict=True):
        told = f" ({one_line(origin, _LONGEST)})" if origin and value is not None else ""
        cells.append(f"{fact_text(fact, value)}{told}")
    return [_name(fact), *cells, *([change_text(fact)] if with_change else [])]


def _name(fact: Fact) -> str:
    return _COST_NAMES.get(fact.name, fact.name) if fact.section == "metrics" else fact.name


def _title(section: str, own: Sequence[Fact], shown: Sequence[Fact]) -> str:
    if section == "metrics":
        return "metrics" if shown else "metrics: none were reported"
    if not own:
        return f"{section}: {'no input file is known' if section == 'data' else 'nothing is known of it'}"
    same = sum(fact.is_same for fact in own)
    if not shown:
        return f"{section}: the same ({same})"
    return f"{section}: {len(shown)} differ{'s' * (len(shown) == 1)}{f', {same} the same' if same else ''}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _short_digest(text: str) -> str:
    words = text.split(":")
    return words[-1][:12] if len(words[-1]) == _DIGEST else text


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
