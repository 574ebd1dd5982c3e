from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from stoker.engine.metrics.metric_names import Direction
from stoker.engine.ranking import Measure, best_first
from stoker.jobs.comparison import Comparison, Curves, TrialRow
from stoker.views.charts import LEGEND, Chart, ChartLine, Panel, Scale, curve_panel, curves_chart, metrics_chart
from stoker.views.html_pages import to_svg
from tests.later import imported_later

with imported_later():
    from stoker.views.png import to_png


SVG = "{http://www.w3.org/2000/svg}"


def row(n: int, *, loss: float | None = None, state: str = "completed", **more: Any) -> TrialRow:
    fields: dict[str, Any] = {
        "n": n,
        "label": f"trial {n}",
        "state": state,
        "is_kept": False,
        "params": {},
        "metrics": {} if loss is None else {"loss": loss},
        "seconds": 1.0,
        "peak_bytes": None,
        "peak_gpu_bytes": None,
        "message": "",
    }
    return TrialRow(**{**fields, **more})


def comparison(rows: list[TrialRow], varying: tuple[str, ...] = (), metric: str = "loss") -> Comparison:
    measure = Measure(metric=metric, direction=Direction.SMALLER, why="")
    return Comparison(
        job="sweep",
        attempt="20261115-031510-0000",
        recipe="test/train",
        rows=tuple(best_first(rows, measure)),
        varying=varying,
        fixed={},
        metrics=tuple(dict.fromkeys(name for one in rows for name in one.metrics)),
        measure=measure,
    )


def swept(name: str, values: list[Any]) -> Chart:
    rows = [row(n, loss=float(n), params={name: value}) for n, value in enumerate(values, 1)]
    chart = metrics_chart(comparison(rows, (name,)))
    assert chart is not None
    return chart


def drawn(chart: Chart) -> ET.Element:
    """Read a chart's SVG back; it has to be well formed, whatever is in it."""
    return ET.fromstring(to_svg(chart))


# --- metrics against parameters ------------------------------------------------------------------


def test_a_parameter_over_decades_gets_a_log_axis_and_one_in_steps_does_not() -> None:
    assert swept("lr", [1e-4, 1e-3, 1e-2]).panels[0].x.is_log
    assert not swept("depth", [3, 5, 7]).panels[0].x.is_log


@pytest.mark.parametrize("values", [["adam", "sgd"], [True, False], [None, 3, 5], [[64], [64, 32]], [math.nan, 1.0]])
def test_a_parameter_that_is_not_all_numbers_is_a_strip_for_each_value(values: list[Any]) -> None:
    (panel,) = swept("x", values).panels
    assert len(panel.x.categories) == len(values)
    assert [round(mark.x) for mark in sorted(panel.marks, key=lambda mark: mark.y)] == list(range(len(values)))


def test_marks_of_one_strip_do_not_hide_each_other() -> None:
    (panel,) = swept("opt", ["adam"] * 10 + ["sgd"] * 10).panels
    assert len({round(mark.x, 3) for mark in panel.marks}) == 20
    assert all(-0.5 < mark.x < 0.5 for mark in panel.marks if mark.y <= 10)


def test_the_best_trial_is_marked_and_lies_on_top() -> None:
    (panel,) = swept("depth", [3, 5, 7]).panels
    assert [mark.is_best for mark in panel.marks] == [False, False, True]
    assert panel.marks[-1].y == 1.0
    assert panel.marks[-1].label == "trial 1 (trial 1): loss 1"


def test_failed_trials_and_values_that_are_not_finite_are_left_out_and_counted() -> None:
    rows = [row(n, loss=loss, params={"lr": n}) for n, loss in enumerate((0.1, 0.2, math.nan, math.inf, 1e200), 1)]
    rows.append(row(9, state="failed", params={"lr": 9}))
    chart = metrics_chart(comparison(rows, ("lr",)))
    assert chart is not None
    assert sorted(mark.y for mark in chart.panels[0].marks) == [0.1, 0.2]
    assert chart.note == "4 without a value of loss not drawn"


def test_a_metric_over_decades_gets_a_log_axis() -> None:
    rows = [row(n, loss=10.0**n, params={"lr": n}) for n in range(4)]
    chart = metrics_chart(comparison(rows, ("lr",)))
    assert chart is not None
    assert chart.panels[0].y.is_log


def test_the_best_value_at_each_place_is_joined() -> None:
    rows = [row(n, loss=loss, params={"lr": n % 2}) for n, loss in enumerate((0.5, 0.4, 0.3, 0.6))]
    chart = metrics_chart(comparison(rows, ("lr",)))
    assert chart is not None
    (guide,) = chart.panels[0].lines
    assert (guide.points, guide.rank) == (((0.0, 0.3), (1.0, 0.4)), -1)


def test_what_does_not_fit_into_a_picture_is_named() -> None:
    names = tuple(f"p{place}" for place in range(9))
    rows = [row(n, loss=float(n), params=dict.fromkeys(names, n)) for n in range(3)]
    chart = metrics_chart(comparison(rows, names))
    assert chart is not None
    assert len(chart.panels) == 6
    assert chart.note == "3 more parameters not drawn: p6, p7, p8"


def test_there_is_no_picture_where_nothing_varies_or_nothing_came_out() -> None:
    assert metrics_chart(comparison([row(1, loss=0.5)])) is None
    assert metrics_chart(comparison([row(1, params={"lr": 1}), row(2, params={"lr": 2})], ("lr",))) is None
    same = [row(n, loss=0.5, params={"lr": n}) for n in (1, 2)]
    assert metrics_chart(comparison(same, ("lr",))) is None


# --- curves --------------------------------------------------------------------------------------


def test_the_legend_is_bounded_and_the_best_has_the_first_colour() -> None:
    rows = [row(n, loss=float(n), curve_files=("x",)) for n in range(20)]
    lines = tuple((one, ((0, 1.0), (1, one.metrics["loss"]))) for one in rows)
    chart = curves_chart(comparison(rows), [Curves(metric="loss", lines=lines)])
    assert chart is not None
    assert [line.rank for line in chart.legend] == list(range(LEGEND))
    assert [line.is_best for line in chart.legend] == [True] + [False] * (LEGEND - 1)
    assert len(chart.panels[0].lines) == 20


def test_a_curve_without_a_finite_value_is_no_picture() -> None:
    assert curve_panel("loss", [ChartLine(label="x", points=((0, math.nan), (1, math.inf)), rank=0)]) is None
    assert curves_chart(comparison([row(1)]), []) is None


def test_a_curve_breaks_where_it_is_not_finite() -> None:
    line = ChartLine(label="x", points=((0, 1.0), (1, 2.0), (2, math.nan), (3, 1.0), (4, 3.0)), rank=0, is_best=True)
    panel = curve_panel("loss", [line])
    assert panel is not None
    chart = Chart(name="curves", title="t", panels=(panel,), columns=1)
    (path,) = [one for one in drawn(chart).iter(f"{SVG}path") if one.get("stroke-width") == "2.5"]
    assert path.attrib["d"].count("M") == 2
    assert path.attrib["d"].count("L") == 2


# --- drawing -------------------------------------------------------------------------------------

HOSTILE = '<script>alert("1")</script>&\x00\x1b[31m$x$\u2028' + "y" * 400


def hostile() -> Chart:
    panel = Panel(
        x_label=HOSTILE,
        y_label=HOSTILE,
        x=Scale(low=-0.5, high=0.5, categories=(HOSTILE,)),
        y=Scale(low=1, high=1000, is_log=True),
        lines=(ChartLine(label=HOSTILE, points=((0, 1.0), (0.2, 0.0), (0.4, 10.0)), rank=0),),
    )
    return Chart(name="x", title=HOSTILE, panels=(panel,), columns=1, legend=panel.lines)


def test_a_picture_is_well_formed_and_has_nothing_active_in_it_whatever_the_names() -> None:
    element = drawn(hostile())
    assert {one.tag.removeprefix(SVG) for one in element.iter()} == {
        "svg", "title", "style", "rect", "g", "path", "text",
    }  # fmt: skip
    assert not [name for one in element.iter() for name in one.attrib if name.startswith("on") or "href" in name]
    assert all(len(one.text or "") < 400 for one in element.iter(f"{SVG}text"))


def test_every_mark_says_which_trial_it_is() -> None:
    titles = [one.text for one in drawn(swept("lr", [0.1, 0.01])).iter(f"{SVG}title")]
    assert "trial 2 (trial 2): loss 2" in titles


def test_what_is_drawn_lies_inside_its_picture() -> None:
    element = drawn(swept("lr", [1e-4, 1e-3, 1e-2]))
    for circle in element.iter(f"{SVG}circle"):
        assert 0 < float(circle.attrib["cx"]) < 360
        assert 0 < float(circle.attrib["cy"]) < 260


@pytest.mark.parametrize(
    "chart", [hostile(), swept("lr", [1e-4, 1e-3]), swept("opt", ["a", "b"])], ids=["odd", "log", "strip"]
)
def test_a_png_is_one_and_the_same_every_time(chart: Chart) -> None:
    first = to_png(chart)
    assert first.startswith(b"\x89PNG\r\n\x1a\n")
    assert to_png(chart) == first
