"""Reports about named checks as JSON, JUnit XML and Markdown, so that a pipeline and a person read the same facts.

A report has an outcome of its own: a crash is a report without the checks that did not come. Nothing here decides.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from stoker.core.errors import Usage
from stoker.core.frozen import fresh, frozen
from stoker.core.jsontext import dumps
from stoker.core.text import did_you_mean
from stoker.host.durable import translated, write_file

Outcome = Literal["passed", "failed", "skipped", "undecided", "error"]
"""`undecided`: no answer is possible from what was measured. `error`: the check itself did not finish."""

VERSION = 1


@frozen
class ReportedCheck:
    """One named check."""

    name: str
    outcome: Outcome
    reason: str = ""
    """One line: what was found, and against which limit."""
    rows: tuple[Mapping[str, object], ...] = ()
    """What it was decided from; rows of one check have the same keys."""
    seconds: float | None = None


@frozen
class CheckReport:
    """All checks of one command, and what was checked."""

    kind: str
    """The command: `gate`, `crossval`."""
    title: str
    outcome: Outcome
    reason: str = ""
    checks: tuple[ReportedCheck, ...] = ()
    about: Mapping[str, object] = fresh(factory=dict)
    """Facts of the whole report: sides, limits, machine, versions."""
    made_at: str = ""
    seconds: float | None = None
    details: Mapping[str, object] = fresh(factory=dict)
    """What only the JSON has: measurements from which the outcome can be computed again."""

    def to_json(self) -> dict[str, object]:
        """Return the report as one JSON object."""
        return {
            "format": f"stoker-{self.kind}-report",
            "version": VERSION,
            "title": self.title,
            "outcome": self.outcome,
            "reason": self.reason,
            "made_at": self.made_at,
            "seconds": self.seconds,
            "about": dict(self.about),
            "checks": [
                {
                    "name": one.name,
                    "outcome": one.outcome,
                    "reason": one.reason,
                    "seconds": one.seconds,
                    "rows": [dict(row) for row in one.rows],
                }
                for one in self.checks
            ],
            **({"details": dict(self.details)} if self.details else {}),
        }


def report_json(report: CheckReport) -> str:
    """Return the report as JSON text that ends with a newline."""
    return dumps(report.to_json(), indent=2) + "\n"


def report_markdown(report: CheckReport) -> str:
    """Return the report as Markdown, with a table of checks and one of each check's rows."""
    lines = [f"# {_in_line(report.title)}", "", f"**{report.outcome}**{_after(report.reason)}", ""]
    if report.checks:
        cells = [(one.name, str(one.outcome), one.reason) for one in report.checks]
        lines += [*_table(("check", "outcome", "reason"), cells), ""]
    if report.about:
        lines += [*_table(("fact", "value"), [(name, _text(value)) for name, value in report.about.items()]), ""]
    for one in report.checks:
        if one.rows:
            header = tuple(one.rows[0])
            lines += [f"## {_in_line(one.name)}", ""]
            lines += [*_table(header, [tuple(_text(row.get(name)) for name in header) for row in one.rows]), ""]
    if report.made_at:
        lines += [f"Made at {report.made_at}.", ""]
    return "\n".join(lines)


def report_junit(report: CheckReport) -> str:
    """Return the report as JUnit XML: a test case for each check.

    An undecided check is an `error`, as one that did not finish: neither may pass a pipeline. A report that ended early
    has a test case of its own, so that no reader takes what is there for all.
    """
    cases = list(report.checks)
    if report.outcome in ("failed", "undecided", "error") and not any(one.outcome == report.outcome for one in cases):
        cases.append(ReportedCheck(name=report.kind, outcome=report.outcome, reason=report.reason))
    counts = {
        "tests": len(cases),
        "failures": sum(one.outcome == "failed" for one in cases),
        "errors": sum(one.outcome in ("undecided", "error") for one in cases),
        "skipped": sum(one.outcome == "skipped" for one in cases),
    }
    totals = " ".join(f'{name}="{count}"' for name, count in counts.items())
    head = f"name={_quoted(report.title)} {totals}{_time(report.seconds)}"
    stamp = f" timestamp={_quoted(report.made_at)}" if report.made_at else ""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f"<testsuites {head}>", f"  <testsuite {head}{stamp}>"]
    if report.about:
        lines.append("    <properties>")
        lines += [
            f"      <property name={_quoted(name)} value={_quoted(_text(value))}/>"
            for name, value in report.about.items()
        ]
        lines.append("    </properties>")
    for one in cases:
        lines += _junit_case(report.kind, one)
    return "\n".join([*lines, "  </testsuite>", "</testsuites>", ""])


def _junit_case(kind: str, check: ReportedCheck) -> list[str]:
    opening = f"    <testcase classname={_quoted(f'stoker.{kind}')} name={_quoted(check.name)}{_time(check.seconds)}>"
    lines = [dumps(dict(row)) for row in check.rows]
    if check.outcome == "passed":
        lines = [check.reason, *lines]
        verdict = []
    elif check.outcome == "skipped":
        verdict = [f"      <skipped message={_quoted(check.reason)}/>"]
    else:
        tag = "failure" if check.outcome == "failed" else "error"
        verdict = [f'      <{tag} type="{check.outcome}" message={_quoted(check.reason)}/>']
    text = _escaped("\n".join(filter(None, lines)))
    output = [f"      <system-out>{text}</system-out>"] if text else []
    return [opening, *verdict, *output, "    </testcase>"]


FORMATS: Mapping[str, Callable[[CheckReport], str]] = {
    "json": report_json,
    "junit": report_junit,
    "markdown": report_markdown,
}
"""The writers by the names of formats, as `--format` takes them."""
_ENDINGS = {".json": "json", ".xml": "junit", ".md": "markdown"}


def format_of_path(path: str) -> str:
    """Return the format that the end of a file's name selects. Raises `Usage` if it selects none."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in _ENDINGS:
        hint = did_you_mean(ending, _ENDINGS) if ending else ""
        raise Usage(
            f"report {path!r} does not end with .json, .xml (JUnit) or .md", hint=hint or "--report report.json"
        )
    return _ENDINGS[ending]


def write_report(report: CheckReport, path: str) -> None:
    """Write the report durably, in the format that the file's name selects; folders are made."""
    text = FORMATS[format_of_path(path)](report)
    with translated(path):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    write_file(path, text.encode("utf-8", "replace"))


# Text: numbers for people, and what each format must not contain.

# XML 1.0 has no way to write these, not even escaped.
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_MARKED = re.compile(r"([\\`*_\[\]<>|#])")


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value) if isinstance(value, str | int) else dumps(value)


def _escaped(text: str) -> str:
    clean = _NOT_IN_XML.sub("\ufffd", text)
    return clean.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _quoted(text: object) -> str:
    words = _escaped(str(text)).replace('"', "&quot;")
    return f'"{words.replace(chr(10), "&#10;").replace(chr(13), "&#13;").replace(chr(9), "&#9;")}"'


def _time(seconds: float | None) -> str:
    return "" if seconds is None else f' time="{seconds:.3f}"'


def _after(reason: str) -> str:
    return f": {_in_line(reason)}" if reason else ""


def _in_line(text: str) -> str:
    return _MARKED.sub(r"\\\1", " ".join(text.split()))


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    marked = [tuple(map(_in_line, row)) for row in (header, *rows)]
    lines = [marked[0], tuple("---" for _ in header), *marked[1:]]
    return [f"| {' | '.join(cells)} |" for cells in lines]
