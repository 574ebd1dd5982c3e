"""The report of a comparison: JSON, Markdown and JUnit through `report_formats`, and one HTML page with plots.

It is always written: a comparison that crashed or was interrupted has a report with what went wrong instead of steps.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from stoker.core.errors import NotVerified
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps, loads
from stoker.crossval.ladder import Outcome, Parity, Step
from stoker.crossval.report_formats import CheckReport, ReportedCheck, report_json, report_junit, report_markdown
from stoker.crossval.result_receipts import receipt_of_parity, write_receipt
from stoker.crossval.trace import TraceHeader
from stoker.host.durable import read_regular, translated, write_file
from stoker.views.charts import Chart, ChartLine, Panel, curve_panel, curves_of_panels
from stoker.views.html_pages import figure, page

NAMES = {".json": report_json, ".md": report_markdown, ".xml": report_junit}
VERDICT = "parity.json"
PAGE = "parity.html"
_OUTCOME = "<p><strong>"
"""The beginning of the line with the outcome, in the page."""
RECEIPT = "parity.receipt.json"
LARGEST_BYTES = 1 << 30
_PLOTTED = ("nmse", "kl", "max_abs_sd", "cosine")
_MEASURES = ("nmse", "max_abs", "max_abs_sd", "kl", "top1", "top5", "cosine")


@frozen
class Sides:
    """Who was compared, in words."""

    candidate: str
    reference: str
    facts: Mapping[str, object]

    @classmethod
    def of(cls, ours: TraceHeader, theirs: TraceHeader) -> Sides:
        """Return the sides of two traces."""
        facts: dict[str, object] = {"positions": len(ours.ids), "texts": len(ours.texts)}
        for side, header in (("candidate", ours), ("reference", theirs)):
            facts |= {
                side: header.model,
                f"{side} sha256": header.sha256,
                f"{side} runtime": f"{header.runtime} {header.version}",
                f"{side} weights": ", ".join(header.precisions),
                f"{side} device": header.ran.get("device", ""),
                f"{side} machine": header.machine.get("name", ""),
                f"{side} tokenizer": header.tokenizer_sha256,
            }
            if found := header.fallbacks:
                facts[f"{side} did not run as requested"] = "; ".join(found)
        return cls(candidate=_side(ours), reference=_side(theirs), facts=facts)


def parity_report(parity: Parity, sides: Sides, *, made_at: str = "", seconds: float | None = None) -> CheckReport:
    """Return the report of a verdict."""
    return CheckReport(
        kind="crossval",
        title=f"{sides.candidate} against {sides.reference}",
        outcome=_word(parity.outcome),
        reason=parity.first.text if parity.first is not None else parity.reason,
        checks=tuple(map(_check, parity.steps)),
        about={**sides.facts, **{f"limit {name}": value for name, value in parity.limits.to_json().items()}},
        made_at=made_at,
        seconds=seconds,
        details=parity.to_json(),
    )


def error_report(error: Mapping[str, object], title: str, *, made_at: str = "") -> CheckReport:
    """Return the report of a comparison that did not come to a verdict; `error` is a `StokerError` as JSON."""
    facts = {"error": error.get("error"), "exit code": error.get("exit_code"), "hint": error.get("hint")}
    reason = str(error.get("message", ""))
    return CheckReport(
        kind="crossval",
        title=title,
        outcome="error",
        reason=reason,
        checks=(ReportedCheck(name="run", outcome="error", reason=reason),),
        about={name: value for name, value in facts.items() if value},
        made_at=made_at,
        details={"error": dict(error)},
    )


def write_parity(parity: Parity, ours: TraceHeader, theirs: TraceHeader, folder: str) -> None:
    """Write all forms of the report of a verdict, the verdict as plain JSON, and its receipt."""
    sides = Sides.of(ours, theirs)
    body = {"v": 1, **parity.to_json(), "candidate": _facts(ours), "reference": _facts(theirs)}
    verdict = f"{dumps(body, indent=1)}\n".encode()
    write_file(os.path.join(folder, VERDICT), verdict)
    write_receipt(receipt_of_parity(parity, ours, theirs, verdict=verdict, name=VERDICT), os.path.join(folder, RECEIPT))
    _write(parity_report(parity, sides), folder, [figure(chart) for chart in parity_charts(parity)])


def read_verdict(path: str) -> Parity:
    """Read a verdict that `write_parity` wrote. Raises `NotVerified` if it is none."""
    try:
        return Parity.from_json(loads(read_regular(path, LARGEST_BYTES)))
    except (KeyError, TypeError, ValueError) as error:
        raise NotVerified(f"{path} is not the verdict of a comparison: {error}") from None


def write_forms(report: CheckReport, folder: str) -> None:
    """Write all forms of a report without positions; the folder is made."""
    with translated(folder):
        os.makedirs(folder, exist_ok=True)
    _write(report, folder, [])


def accept_forms(report: CheckReport, note: str, folder: str) -> None:
    """Write all forms of a report whose failure was expected; the page keeps its plots, and gets the note."""
    _write_texts(report, folder)
    path = os.path.join(folder, PAGE)
    text = read_regular(path, LARGEST_BYTES).decode("utf-8", "replace")
    write_file(path, text.replace(_OUTCOME, f"<p>{escape(note)}</p>{_OUTCOME}", 1).encode("utf-8", "replace"))


def _write(report: CheckReport, folder: str, figures: Sequence[str]) -> None:
    _write_texts(report, folder)
    write_file(os.path.join(folder, PAGE), parity_page(report, figures).encode("utf-8", "replace"))


def _write_texts(report: CheckReport, folder: str) -> None:
    for ending, writer in NAMES.items():
        name = "report.json" if ending == ".json" else f"parity{ending}"
        write_file(os.path.join(folder, name), writer(report).encode("utf-8", "replace"))


def parity_page(report: CheckReport, figures: Sequence[str]) -> str:
    """Return one self-contained page: the verdict, the steps, the plots, the facts."""
    steps = "".join(
        f"<tr><td>{escape(one.name)}</td><td><strong>{escape(one.outcome)}</strong></td>"
        f'<td class="text">{escape(one.reason)}</td></tr>'
        for one in report.checks
    )
    facts = "".join(
        f'<tr><td>{escape(name)}</td><td class="text">{escape(str(value))}</td></tr>'
        for name, value in report.about.items()
    )
    parts = [
        f"{_OUTCOME}{escape(report.outcome)}</strong>{escape(f': {report.reason}' if report.reason else '')}</p>",
        f"<h2>Steps</h2><table><tbody>{steps}</tbody></table>",
        *figures,
        f"<h2>Facts</h2><table><tbody>{facts}</tbody></table>",
    ]
    return page(report.title, f"stoker crossval {report.made_at}".rstrip(), parts)


def parity_charts(parity: Parity) -> Iterator[Chart]:
    """Return the plots: measures over positions, errors over layers, each with its limit."""
    limits = parity.limits.to_json()
    for step in parity.steps:
        panels = [*_position_panels(step, limits), *_layer_panels(step, parity.limits.layer)]
        if panels:
            chart = curves_of_panels(panels, ())
            yield Chart(
                name=step.name,
                title=step.name.capitalize(),
                panels=chart.panels,
                columns=min(2, len(panels)),
                panel_width=chart.panel_width,
                panel_height=chart.panel_height,
            )


def _position_panels(step: Step, limits: Mapping[str, Any]) -> Iterator[Panel]:
    for name in _PLOTTED:
        points = tuple(
            (float(row.pos), value) for row in step.positions if (value := getattr(row, name)) not in (None, math.inf)
        )
        panel = curve_panel(name, _with_limit(points, limits.get(name)))
        if panel is not None and any(y for _, y in points):
            yield _renamed(panel, "position")


def _layer_panels(step: Step, limit: float) -> Iterator[Panel]:
    points = tuple((float(row.layer), row.error) for row in step.layers if math.isfinite(row.error))
    panel = curve_panel("relative error", _with_limit(points, limit)) if len(points) > 1 else None
    if panel is not None:
        yield _renamed(panel, "layer")


def _with_limit(points: tuple[tuple[float, float], ...], limit: float | None) -> list[ChartLine]:
    lines = [ChartLine(label="candidate", points=points, rank=0, is_best=True)]
    if points and limit:
        lines.append(ChartLine(label="limit", points=((points[0][0], limit), (points[-1][0], limit)), rank=-1))
    return lines


def _renamed(panel: Panel, x_label: str) -> Panel:
    return Panel(x_label=x_label, y_label=panel.y_label, x=panel.x, y=panel.y, lines=panel.lines)


def _check(step: Step) -> ReportedCheck:
    rows: tuple[Mapping[str, object], ...] = tuple(
        {"position": row.pos, **{name: getattr(row, name) for name in _MEASURES}} for row in step.positions
    ) or tuple(one.to_json() for one in step.layers)
    return ReportedCheck(name=step.name, outcome=_word(step.outcome), reason=step.reason, rows=rows)


def _word(outcome: Outcome) -> Any:
    return str(outcome)


def _side(header: TraceHeader) -> str:
    return f"{header.model} ({header.runtime})" if header.model else header.runtime


def _facts(header: TraceHeader) -> dict[str, Any]:
    body = header.to_json()
    return {name: body[name] for name in body if name not in ("v", "texts", "tokens", "layers", "width")}
