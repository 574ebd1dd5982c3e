from __future__ import annotations

import math
from html.parser import HTMLParser

import pytest

from stoker.core.frozen import changed
from stoker.core.job import JobSpec
from stoker.jobs.comparison import Comparison
from stoker.jobs.job_diff import ComparisonSide
from stoker.jobs.program import RECIPE
from stoker.jobs.repeat_command import RepeatCommand, repeat_here, repeat_on_fleet
from stoker.jobs.trial_settings import JobSetting
from stoker.views.report import MOST_TRIALS, ReportFacts, RunReport, report_of
from stoker.views.report_formats import report_markdown, report_page
from tests.unit.views.test_charts import comparison, row

NASTY = "<img src=x onerror=alert(1)>\"'&|`*\n\x1b[2J\udc80"


def side(trials: Comparison, **settings: JobSetting) -> ComparisonSide:
    return ComparisonSide(
        label="sweep",
        attempt=trials.attempt,
        recipe=trials.recipe,
        state="completed",
        started_s=1_800_000_000.25,
        settings=settings,
        code={"train.py": "sha256:ab"},
        data={},
        environment={"stoker": "0.2", "host": "desk"},
        comparison=trials,
        without_result=(),
    )


def report(trials: Comparison, **settings: JobSetting) -> RunReport:
    repeat = RepeatCommand(lines=("stoker run lr=0.1,0.2 -- ./train '```'",), notes=("a note",))
    facts = ReportFacts(ref="sweep", job_id="ab" * 32, is_fleet=False, digests={"job": "ab" * 32}, repeat=repeat)
    return report_of(side(trials, **settings), facts)


def sweep(name: str = "lr") -> Comparison:
    values = [0.1, 0.2, 0.3]
    rows = [row(n, loss=float(n), params={name: value}) for n, value in enumerate(values, 1)]
    return comparison([*rows, row(4, loss=math.nan, params={name: 0.4}, state="failed", message="exit 1")], (name,))


class Acted(HTMLParser):
    """Collects the tags that a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, _attrs: object) -> None:
        self.tags.add(tag)


def test_a_report_holds_question_result_trials_configuration_and_how_to_repeat_it() -> None:
    found = report(sweep(), lr=JobSetting(value=0.1, origin="argument 1 (lr=0.1,0.2)"))
    assert [section.title for section in found.sections] == [
        "Question",
        "Result",
        "Curves and metrics",
        "Trials",
        "Configuration",
        "Environment",
        "Code",
        "Digests",
        "How to repeat it",
    ]
    page, text = report_page(found), report_markdown(found)
    assert "4 trials of test/train, over lr = 0.1, 0.2, 0.3, 0.4." in page
    assert "started 2027-01-15 08:00:00 UTC" in page
    assert "| lr | 0.1 | argument 1 (lr=0.1,0.2) |" in text
    # A fence is longer than what is inside it.
    assert "\n````sh\nstoker run lr=0.1,0.2 -- ./train '```'\n````\n" in text
    assert page.count("<svg ") == text.count("data:image/svg+xml;base64,") == 1


def test_what_was_chosen_comes_before_defaults_and_a_program_is_called_so() -> None:
    settings = {"memory": JobSetting(value="", origin="default"), "lr": JobSetting(value=0.1, origin="argument 1 (lr)")}
    found = report(changed(sweep(), recipe=RECIPE), **settings)
    text = report_markdown(found)
    assert text.index("| lr | 0.1 |") < text.index("| default |")
    assert "4 trials of a program, over lr" in text


def test_paper_is_white_whatever_the_screen() -> None:
    page = report_page(report(sweep()))
    assert page.count("prefers-color-scheme") == page.count("screen and (prefers-color-scheme") == 2


def test_names_with_markup_and_control_characters_stay_text_in_every_format() -> None:
    trials = changed(sweep(NASTY), job=NASTY, recipe=NASTY)
    found = report(trials, **{NASTY: JobSetting(value=NASTY, origin=NASTY)})
    page, text = report_page(found), report_markdown(found)
    assert "img" not in Acted(page).tags
    assert "<img" not in page
    assert "<img" not in text
    assert "\x1b" not in page + text
    rows = [line for line in text.splitlines() if line.startswith("| ") and "onerror" in line]
    assert rows
    # Every bar of a name is escaped: the rest are the borders of cells.
    assert {line.count("|") - line.count("\\|") for line in rows if "img src" in line} <= {3, 4, 8}


def test_of_ten_thousand_trials_the_best_are_listed_and_the_rest_counted() -> None:
    rows = [row(n, loss=float(n), params={"lr": n / 7}) for n in range(1, 10_001)]
    found = report(comparison(rows, ("lr",)))
    text = report_markdown(found)
    assert "9,500 more trials are not listed; all of them: stoker compare sweep --csv FILE" in text
    assert text.count("\n| ") < MOST_TRIALS + 100
    assert len(report_page(found)) < 1_500_000


def test_the_same_job_makes_the_same_bytes_in_every_format() -> None:
    pytest.importorskip("fpdf")
    from stoker.views.report_pdf import report_pdf

    first, second = report(sweep(NASTY)), report(sweep(NASTY))
    assert report_page(first) == report_page(second)
    assert report_markdown(first) == report_markdown(second)
    pdf = report_pdf(first)
    assert pdf == report_pdf(second)
    assert pdf.startswith(b"%PDF-")


def test_a_pdf_without_a_font_for_all_characters_shows_question_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fpdf")
    from stoker.views import report_pdf

    monkeypatch.setattr(report_pdf, "unicode_font", lambda: "")
    assert report_pdf.report_pdf(report(sweep("学习率"))).startswith(b"%PDF-")


def test_a_command_is_rebuilt_from_the_places_of_its_values_without_its_secrets() -> None:
    spec = JobSpec(
        id="ab" * 32, name="train", recipe=RECIPE, folder="/home/anna/my project", args={"env": {"TOKEN": "secret"}}
    )
    config = {
        "origins": {
            "env": [
                {"layer": "default", "from": "default"},
                {"layer": "override", "from": "argument 2 (env.TOKEN=secret)"},
            ],
            "memory": [{"layer": "file", "from": "base.yaml:3:7"}],
        },
        "sweep": {"lr": "argument 1 (lr=0.1,0.2)"},
        "program": ["python", "train.py", "{lr}"],
    }
    found = repeat_here(spec, config, {"timeout_s": 90.0})
    assert found.lines == (
        "cd '/home/anna/my project'",
        "stoker run lr=0.1,0.2 'env.TOKEN=…' --config base.yaml --name train --timeout 90s -- python train.py '{lr}'",
    )
    assert found.notes == ("instead of …, type the values of the variables, which are not shown",)


def test_a_job_of_a_fleet_is_requeued_or_submitted_with_its_arguments() -> None:
    spec = JobSpec(id="ab" * 32, name="gbt", recipe="tabular/gbt", args={"data": "iris", "model": {"trees": 200}})
    assert repeat_on_fleet(spec, "gbt/3").lines == (
        "stoker jobs requeue gbt/3",
        "stoker submit tabular/gbt data=iris model.trees=200 --name gbt",
    )
