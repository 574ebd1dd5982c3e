from __future__ import annotations

import csv
import io
import math
from html.parser import HTMLParser
from typing import Any

import pytest

from stoker.core.frozen import changed
from stoker.core.text import one_line
from stoker.engine.metrics.metric_names import Direction
from stoker.engine.ranking import Measure
from stoker.jobs.comparison import Comparison, Curves
from stoker.jobs.job_diff import ComparisonSide, Fact, compare_sides
from stoker.jobs.trial_settings import JobSetting
from stoker.views.charts import metrics_chart
from stoker.views.comparison_lines import (
    METRICS_SHOWN,
    best_line,
    change_text,
    csv_rows,
    fact_text,
    headline,
    hidden_line,
    measure_line,
    side_lines,
    trial_table,
    verdict,
)
from stoker.views.html_pages import comparison_page, sides_chart, sides_page
from stoker.views.text_tables import ASCII
from tests.unit.views.test_charts import comparison, row

NASTY = "<img src=x onerror=alert(1)>\"'&\n\x1b[2J"


def sweep() -> Comparison:
    return comparison(
        [
            row(1, loss=0.5, params={"lr": 0.1, "opt": None}, seconds=61.0, peak_bytes=3 << 30),
            row(2, loss=0.25, params={"lr": 0.01, "opt": "sgd"}, is_kept=True),
            row(3, loss=math.nan, params={"lr": 1, "opt": "sgd"}),
            row(4, params={"lr": 10.0, "opt": "sgd"}, state="failed", message="exit 1:\n ValueError"),
            row(5, params={"lr": 0.2, "opt": "sgd"}, state="pending"),
        ],
        ("lr", "opt"),
    )


class Page(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.heads: list[str] = []
        self.cells: list[str] = []
        """Of every table, those of its head first."""
        self._is_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag in ("th", "td"):
            self.cells.append("")
            self._is_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "th":
            self.heads.append(self.cells[-1])
        self._is_cell = self._is_cell and tag not in ("th", "td")

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._is_cell:
            self.cells[-1] += data


# --- trials --------------------------------------------------------------------------------------


def test_trials_are_a_table_with_the_best_first_and_why_the_others_failed() -> None:
    assert trial_table(sweep(), rows=10, columns=0, signs=ASCII) == [
        "   trial  lr    opt   loss  time   memory",
        "+  2      0.01  sgd   0.25  1.0s            kept",
        "+  1      0.1   null  0.5   1m01s  3.0 GiB",
        "+  3      1     sgd   nan   1.0s",
        "-  5      0.2   sgd         1.0s            pending",
        "x  4      10.0  sgd         1.0s            failed: exit 1: ValueError",
    ]
    assert len(trial_table(sweep(), rows=2, columns=0, signs=ASCII)) == 3


def test_a_metric_that_is_called_as_what_was_varied_is_no_second_column() -> None:
    found = changed(sweep(), metrics=("loss", "lr"))
    assert trial_table(found, rows=1, columns=0, signs=ASCII)[0].split() == ["trial", "lr", "opt", "loss", "time"]


def test_what_trials_took_of_a_gpu_stands_beside_what_they_took_of_the_machine() -> None:
    found = comparison([row(1, loss=0.5, peak_bytes=3 << 30, peak_gpu_bytes=6 << 30), row(2, loss=0.7)])
    assert trial_table(found, rows=10, columns=0, signs=ASCII) == [
        "   trial  loss  time  memory   GPU memory",
        "+  1      0.5   1.0s  3.0 GiB  6.0 GiB",
        "+  2      0.7   1.0s",
    ]
    assert ">6.0 GiB<" in comparison_page(found, [], "/f")


def test_the_lines_above_say_how_many_what_by_and_who_is_best() -> None:
    found = sweep()
    assert headline(found) == "sweep: 5 trials (1 kept, 2 completed, 1 pending, 1 failed)"
    assert measure_line(found) == "ranked by loss, smaller is better"
    guessed = changed(found, measure=Measure(metric="loss", direction=Direction.SMALLER, why="guessed by its name"))
    assert "(guessed by its name; change it with --by NAME, --min or --max)" in measure_line(guessed)
    assert best_line(found, "/f") == "best: trial 2  loss 0.25"
    nothing = changed(found, measure=None)
    assert measure_line(nothing) == "not ranked: no metric says how good a trial is; name one with --by"
    assert measure_line(changed(nothing, metrics=())) == "not ranked: no trial reported a metric"
    assert measure_line(comparison([row(1, loss=math.nan)])) == "not ranked: no trial has a finite loss"
    assert best_line(nothing, "/f") == ""
    assert best_line(comparison([row(1, loss=math.nan)]), "/f") == ""


def test_metrics_beside_the_table_are_named_in_one_short_line() -> None:
    names = tuple(f"m{n}" for n in range(5000))
    line = hidden_line(changed(sweep(), metrics=(*names[:METRICS_SHOWN], "lo\nss\x1b[31m", "x" * 300, *names)))
    assert line.startswith("note: more metrics in --json, --csv and the HTML page: lo ss [31m, xxx")
    assert line.endswith(", m7 and 4,992 more")
    assert len(line) < 200
    assert line.isprintable()
    assert hidden_line(sweep()) == ""


def test_trials_on_different_data_stand_apart_and_each_data_has_its_best() -> None:
    sums, chats = {"data": "sums"}, {"data": "chats"}
    rows = [
        row(1, loss=3.0, measured_on=sums, is_named=True, label="first"),
        row(2, loss=1.0, measured_on=chats),
        row(3, loss=2.0, measured_on=sums),
    ]
    found = comparison(rows)
    assert found.best is None
    assert measure_line(found) == "ranked by loss, smaller is better; loss on different data is not compared"
    assert best_line(found, "/f") == "best: trial 3  loss 2 (data=sums) · trial 2  loss 1 (data=chats)"
    assert trial_table(found, rows=10, columns=0, signs=ASCII) == [
        "   trial  label  loss  time",
        "+  3             2     1.0s",
        "+  1      first  3     1.0s",
        "+  2             1     1.0s",
    ]
    assert 'class="best"' not in comparison_page(found, [], "/f")
    assert best_line(comparison(rows[:2]), "/f") == "", "nobody to compare with"
    elsewhere = row(4, state="failed", measured_on={"data": "lines"})
    assert best_line(comparison([elsewhere, *rows]), "/f") == best_line(found, "/f")
    assert [one.n for ground in comparison([elsewhere, *rows]).grounds for one in ground.trials] == [3, 1, 2, 4]


def test_the_page_has_places_on_each_data_and_the_labels_that_somebody_gave() -> None:
    sums, chats = {"data": "sums"}, {"data": "chats"}
    rows = [
        row(1, loss=3.0, measured_on=sums, is_named=True, label="first"),
        row(2, loss=1.0, measured_on=chats),
        row(3, loss=2.0, measured_on=sums),
    ]
    page = Page(comparison_page(comparison(rows), [], "/f"))
    assert page.cells[:3] == ["place", "trial", "label"]
    width = len(page.heads)
    body = page.cells[width:]
    assert [body[start : start + 3] for start in range(0, 3 * width, width)] == [
        ["1", "3", ""],
        ["2", "1", "first"],
        ["1", "2", ""],
    ]


def test_a_trial_without_a_value_sets_nobody_apart() -> None:
    rows = [
        row(1, state="failed", loss=0.1, measured_on={"data": "chats"}),
        row(2, loss=2.0, measured_on={"data": "sums"}),
        row(3, loss=1.0, measured_on={"data": "sums"}),
        row(4, measured_on={"data": "lines"}),
    ]
    found = comparison(rows)
    assert found.best is not None
    assert found.best.n == 3
    assert found.places == {3: 1, 2: 2, 4: 3, 1: 4}
    assert measure_line(found) == "ranked by loss, smaller is better"
    assert best_line(found, "/f") == "best: trial 3  loss 1"


def test_a_csv_file_has_everything_in_full() -> None:
    text = io.StringIO()
    csv.writer(text).writerows(csv_rows(sweep()))
    rows = list(csv.DictReader(io.StringIO(text.getvalue())))
    assert [one["trial"] for one in rows] == ["2", "1", "3", "5", "4"]
    assert rows[1]["param.opt"] == "null"
    assert (rows[1]["metric.loss"], rows[2]["metric.loss"], rows[4]["metric.loss"]) == ("0.5", "nan", "")
    assert (rows[1]["seconds"], rows[1]["peak_bytes"]) == ("61.0", str(3 << 30))
    assert rows[1]["peak_gpu_bytes"] == ""
    assert rows[4]["message"] == "exit 1: ValueError"


def test_a_line_has_no_breaks_and_nothing_that_moves_a_cursor() -> None:
    assert one_line("a\n\tb\x1b[31mc") == "a b [31mc"
    assert one_line("abcdef", 4) == "abc…"


def test_the_page_stands_by_itself_and_whatever_people_named_is_text_in_it() -> None:
    rows = [
        row(1, loss=0.5, label=NASTY, params={NASTY: 1}),
        row(2, loss=0.4, params={NASTY: NASTY}),
        row(3, params={NASTY: 2}, state="failed", message=NASTY),
    ]
    found = changed(comparison(rows, (NASTY,)), job=NASTY, recipe=NASTY, fixed={NASTY: NASTY})
    chart = metrics_chart(found)
    assert chart is not None
    text = comparison_page(found, [chart], "/f")
    page = Page(text)
    assert "img" not in page.tags
    assert page.tags.count("script") == 1
    names = {name for name, _ in page.attributes}
    assert not {name for name in names if name.startswith("on") or name in ("src", "href", "action")}
    policy = next(value for name, value in page.attributes if name == "content" and value and "default-src" in value)
    assert policy.startswith("default-src 'none'")
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert "<img src=x onerror=alert(1)>" in page.text


def test_the_page_sorts_by_values_and_has_both_lights() -> None:
    text = comparison_page(sweep(), [], "/f")
    assert 'data-value="0.25">0.25<' in text
    assert 'data-value="">nan<' in text
    assert "prefers-color-scheme: dark" in text
    assert '<tr class="best">' in text
    assert '<tr class="failed">' in text


# --- jobs ----------------------------------------------------------------------------------------


def side(label: str, **more: Any) -> ComparisonSide:
    fields: dict[str, Any] = {
        "label": label,
        "attempt": f"20261115-{label}",
        "recipe": "test/train",
        "state": "completed",
        "started_s": 0.0,
        "settings": {"lr": JobSetting(value=0.1, origin="default")},
        "code": {"train": "a" * 64},
        "data": {"train: file": "d" * 64},
        "environment": {"python": "3.11"},
        "comparison": comparison([row(1, loss=0.5)]),
        "without_result": (),
    }
    return ComparisonSide(**{**fields, **more})


def test_jobs_that_are_the_same_are_said_to_be() -> None:
    sides = [side("one"), side("two")]
    facts = compare_sides(sides)
    assert verdict(facts) == "identical: config, code, data and environment are the same, and the metrics too"
    lines = side_lines(facts, sides, columns=0)
    assert "config: the same (2)" in lines
    assert "code: the same (1)" in lines
    worse = [side("one"), side("two", comparison=comparison([row(1, loss=0.6)]))]
    assert verdict(compare_sides(worse)).endswith("the same, but not the metrics")
    program = [side(name, data={}) for name in ("one", "two")]
    assert verdict(compare_sides(program)).endswith("; unknown: data")
    silent = [side(name, comparison=comparison([row(1)])) for name in ("one", "two")]
    assert verdict(compare_sides(silent)) == "identical: config, code, data and environment are the same"


def test_what_differs_is_shown_with_where_it_came_from_and_how_metrics_changed() -> None:
    other = side(
        "two",
        settings={"lr": JobSetting(value=0.05, origin="base.yaml:3:5"), "new": JobSetting(value=True)},
        code={"train": "b" * 64},
        comparison=comparison([row(1, loss=0.25)]),
    )
    sides = [side("one"), other]
    facts = compare_sides(sides)
    assert verdict(facts) == "different: config and code"
    assert side_lines(facts, sides, columns=0) == [
        "",
        "config: 2 differ, 1 the same",
        "       one            two",
        "  lr   0.1 (default)  0.05 (base.yaml:3:5)",
        "  new  –              true",
        "",
        "code: 1 differs",
        "         one           two",
        "  train  aaaaaaaaaaaa  bbbbbbbbbbbb",
        "",
        "data: the same (1)",
        "",
        "environment: the same (1)",
        "",
        "metrics",
        "        one   two   change",
        "  loss  0.5   0.25  -0.25 (-50.0%)",
        "  time  1.0s  1.0s  the same",
    ]


def test_the_first_trial_speaks_for_a_side_that_has_no_best() -> None:
    rows = [row(2, loss=0.1, measured_on={"data": "a"}), row(1, loss=0.9, measured_on={"data": "b"})]
    apart = side("apart", comparison=comparison(rows))
    assert apart.comparison.rows[0].n == 2
    assert apart.row is not None
    assert apart.row.n == 1
    assert {fact.name: fact.values for fact in compare_sides([apart])}["loss"] == (0.9,)
    best = side("best", comparison=comparison([changed(one, measured_on={}) for one in rows]))
    assert best.row is not None
    assert best.row.n == 2


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (1.0, 1.5, "+0.5 (+50.0%)"),
        (-2.0, -1.0, "+1 (+50.0%)"),
        (0.0, 1.0, "+1"),
        (1.0, 1.0, "the same"),
        (math.nan, 1.0, ""),
        (1.0, math.inf, ""),
        (None, 1.0, ""),
    ],
)
def test_a_change_is_told_as_a_difference_and_in_percent(before: Any, after: Any, text: str) -> None:
    assert change_text(Fact(section="metrics", name="loss", values=(before, after))) == text


def test_a_change_of_time_or_memory_has_its_unit() -> None:
    assert change_text(Fact(section="metrics", name="seconds", values=(61.0, 1.0))) == "-1m00s (-98.4%)"
    assert change_text(Fact(section="metrics", name="peak_bytes", values=(1 << 30, 3 << 29))) == "+512.0 MiB (+50.0%)"
    of_gpu = Fact(section="metrics", name="peak_gpu_bytes", values=(2 << 30, 1 << 30))
    assert change_text(of_gpu) == "-1.0 GiB (-50.0%)"


def test_three_sides_stand_beside_each_other_without_a_change() -> None:
    sides = [side(name) for name in ("one", "two", "three")]
    lines = side_lines(compare_sides(sides), sides, columns=0)
    assert "        one   two   three" in lines
    assert not [line for line in lines if "change" in line]


def test_the_page_of_jobs_has_every_fact_and_their_curves_and_nothing_active() -> None:
    ours, other = side(NASTY, settings={NASTY: JobSetting(value=NASTY, origin=NASTY)}), side("two")
    lines = ((row(1), ((0, 1.0), (1, 0.5))),)
    curves = [[Curves(metric="loss", lines=lines)], [Curves(metric="loss", lines=lines)]]
    chart = sides_chart([ours, other], curves)
    assert chart is not None
    assert [line.label for line in chart.legend] == [NASTY, "two"]
    facts = compare_sides([ours, other])
    page = Page(sides_page(facts, [ours, other], [chart]))
    assert "img" not in page.tags
    assert "svg" in page.tags
    assert "train: file" in page.text
    assert sides_chart([ours, other], [[], []]) is None


def test_a_digest_is_written_shortly_and_several_side_by_side() -> None:
    fact = Fact(section="data", name="x", values=(None,))
    assert fact_text(fact, "sha256:" + "a" * 64) == "a" * 12
    assert fact_text(fact, ", ".join(("a" * 64, "b" * 64))) == f"{'a' * 12}, {'b' * 12}"
    assert fact_text(fact, "absent") == "absent"
    assert fact_text(fact, None) == "–"
