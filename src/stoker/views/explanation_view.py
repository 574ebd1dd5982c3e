"""An explanation of a job with its texts, for screens that draw them themselves."""

from __future__ import annotations

from stoker.protocol.view_messages import ExplanationRow, JobExplanation
from stoker.views.placement_lines import machine_rows, other_lines, start_lines


def with_texts(explanation: JobExplanation, now_s: float) -> JobExplanation:
    """Return an explanation with the lines and the table that `stoker explain` prints."""
    rows = tuple(
        ExplanationRow(machine=machine, device=device, score=score, why=why)
        for machine, device, score, why in machine_rows(explanation, now_s)
    )
    lines = (*start_lines(explanation, now_s), *other_lines(explanation))
    return explanation.model_copy(update={"lines": lines, "rows": rows})
