"""Reports of checks as JSON, JUnit XML and Markdown."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from stoker.core.errors import Usage
from stoker.core.frozen import changed
from stoker.core.jsontext import loads
from stoker.crossval.report_formats import (
    FORMATS,
    CheckReport,
    ReportedCheck,
    format_of_path,
    report_json,
    report_junit,
    report_markdown,
    write_report,
)

REPORT = CheckReport(
    kind="gate",
    title='new "a<b>" & | old',
    outcome="failed",
    reason="latency +9 %",
    checks=(
        ReportedCheck(
            name="latency", outcome="failed", reason="+9 % > +5 %\x00\x1b", rows=({"change": 0.09, "count": 25},)
        ),
        ReportedCheck(name="throughput", outcome="undecided", reason="about 300 pairs"),
        ReportedCheck(name="perplexity", outcome="passed", reason="+0 %", seconds=1.5),
        ReportedCheck(name="p95", outcome="skipped", reason="not asked for"),
        ReportedCheck(name="loss", outcome="error", reason="nan", rows=({"value": math.nan},)),
    ),
    about={"machine": "desk|1", "pairs": 25},
    made_at="2026-11-18T10:00:00+00:00",
    seconds=12.0,
)


def test_json_has_every_fact_and_numbers_that_are_none_are_tagged() -> None:
    body = loads(report_json(changed(REPORT, details={"pairs": [[1.0, 2.0]]})))
    assert (body["format"], body["version"], body["outcome"]) == ("stoker-gate-report", 1, "failed")
    assert [one["name"] for one in body["checks"]] == ["latency", "throughput", "perplexity", "p95", "loss"]
    assert body["checks"][0]["rows"] == [{"change": 0.09, "count": 25}]
    assert math.isnan(body["checks"][4]["rows"][0]["value"])
    assert body["details"] == {"pairs": [[1.0, 2.0]]}


def test_junit_counts_what_is_undecided_as_an_error() -> None:
    suite = ET.fromstring(report_junit(REPORT))[0]
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5",
        "failures": "1",
        "errors": "2",
        "skipped": "1",
    }
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    failure = cases["latency"].find("failure")
    assert failure is not None
    assert failure.get("message") == "+9 % > +5 %\ufffd\ufffd"
    error = cases["throughput"].find("error")
    assert error is not None
    assert error.get("type") == "undecided"
    assert [child.tag for child in cases["perplexity"]] == ["system-out"]
    assert cases["perplexity"].get("time") == "1.500"
    assert suite.get("name") == REPORT.title
    assert {one.get("name"): one.get("value") for one in suite.iter("property")} == {"machine": "desk|1", "pairs": "25"}


@pytest.mark.parametrize("outcome", ["failed", "undecided", "error"])
def test_a_report_that_ended_early_is_no_green_suite(outcome) -> None:
    early = CheckReport(kind="gate", title="gate", outcome=outcome, reason="interrupted")
    suite = ET.fromstring(report_junit(early))[0]
    assert int(suite.get("failures", "0")) + int(suite.get("errors", "0")) == 1


def test_markdown_has_a_table_of_checks_and_no_cell_breaks_it() -> None:
    text = report_markdown(REPORT)
    assert "**failed**: latency +9 %" in text
    assert "| latency | failed | +9 % \\> +5 %" in text
    assert "| machine | desk\\|1 |" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in rows)


@pytest.mark.parametrize(("name", "wanted"), [("a.json", "json"), ("b.XML", "junit"), ("c.md", "markdown")])
def test_the_end_of_a_name_selects_the_format(name: str, wanted: str, tmp_path: Path) -> None:
    assert format_of_path(name) == wanted
    path = tmp_path / "deep" / name
    write_report(REPORT, str(path))
    assert path.read_text() == FORMATS[wanted](REPORT)


def test_another_end_is_refused() -> None:
    with pytest.raises(Usage, match="does not end with"):
        format_of_path("report.html")
