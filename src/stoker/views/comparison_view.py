"""Jobs side by side as screens get them, what differs first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from stoker.core.text import one_line
from stoker.engine.metrics.metric_names import preference
from stoker.jobs.job_diff import ComparisonSide, Fact, compare_sides
from stoker.protocol.screen_messages import ComparedValue, ComparisonView
from stoker.protocol.view_messages import JobView
from stoker.views.comparison_lines import fact_text
from stoker.views.text_tables import value_text

MOST_SIDES = 20
_FACTS = 2000
_METRICS = 200
_LONGEST_NAME = 300
_LONGEST_VALUE = 500
_WORDS = ("config",)
"""Sections whose values are shown longer than in a terminal."""


def comparison_view(jobs: Sequence[JobView], sides: Sequence[ComparisonSide]) -> ComparisonView:
    """Return jobs side by side: all that differs, by section, then what is the same; of very many facts the first."""
    known = [fact for fact in compare_sides(sides) if any(value is not None for value in fact.values)]
    shown = sorted(((fact, not fact.is_same) for fact in known), key=lambda one: not one[1])
    return ComparisonView(
        jobs=tuple(jobs),
        facts=tuple(
            ComparedValue(
                section=fact.section,
                name=one_line(fact.name, _LONGEST_NAME),
                values=tuple(_text(fact, value) for value in fact.values),
                differs=differs,
            )
            for fact, differs in shown[:_FACTS]
        ),
        metrics=_with_curves(sides),
    )


def _text(fact: Fact, value: Any) -> str:
    if value is None:
        return ""
    return one_line(value_text(value), _LONGEST_VALUE) if fact.section in _WORDS else fact_text(fact, value)


def _with_curves(sides: Sequence[ComparisonSide]) -> tuple[str, ...]:
    """Return metrics that more than one side has, with curves."""
    counts = Counter(
        name for side in sides if side.row is not None and side.row.curve_files for name in side.row.metrics
    )
    return tuple(sorted((name for name, count in counts.items() if count > 1), key=preference)[:_METRICS])
