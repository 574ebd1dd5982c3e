"""Charts of characters: curves, spikes, borders of attempts, and what can't be drawn."""

from __future__ import annotations

import math

import pytest

from stoker.core.display_width import text_width
from stoker.views.charts import ChartLine, Panel, curve_panel
from stoker.views.text_chart import panel_lines, sparkline


def panel(*values: float) -> Panel:
    points = tuple((float(step), value) for step, value in enumerate(values))
    found = curve_panel("loss", [ChartLine(label="loss", points=points, rank=0)])
    assert found is not None
    return found


def test_a_curve_goes_from_the_upper_left_to_the_lower_right() -> None:
    assert panel_lines(panel(4, 3, 2, 1, 0), columns=31, rows=6, is_ascii=True) == [
        "      4.2 +*****",
        "          |     *****",
        "          |          ****",
        "          |              *****",
        "     -0.2 +                   *",
        "          +0       step       4",
    ]


def test_a_spike_between_two_columns_is_drawn() -> None:
    values = [0.0] * 1000
    values[500] = 10.0
    lines = panel_lines(panel(*values), columns=40, rows=10)
    assert any(char != " " for char in lines[0].partition("│")[2] + lines[0].partition("┤")[2])


@pytest.mark.parametrize("is_ascii", [False, True])
def test_every_line_fits_whatever_the_size(is_ascii: bool) -> None:
    for columns in (20, 47, 133):
        for rows in (4, 9, 40):
            lines = panel_lines(panel(1e-9, 5, 1e9), columns=columns, rows=rows, is_ascii=is_ascii)
            assert len(lines) == rows
            assert max(map(text_width, lines)) <= columns
            assert not is_ascii or all(line.isascii() for line in lines)


def test_a_value_that_is_not_finite_interrupts_the_curve() -> None:
    lines = panel_lines(panel(1, 1, math.nan, math.inf, 1, 1), columns=41, rows=5, is_ascii=True)
    drawn = max(lines[:-1], key=lambda line: line.count("*"))
    assert len(drawn.partition("|")[2].split()) == 2


def test_the_border_of_an_attempt_is_a_dotted_line() -> None:
    lines = panel_lines(panel(3, 2, 1, 0), columns=40, rows=8, borders=[2.0, 99.0])
    assert sum("┊" in line for line in lines) >= 5


def test_what_is_too_small_is_not_drawn() -> None:
    assert panel_lines(panel(1, 2), columns=10, rows=3) == []


def test_a_sparkline_keeps_the_highest_value_of_each_column() -> None:
    assert sparkline([0, 1, 2, math.nan, 7, 3], 6) == "▁▂▃ █▄"
    assert sparkline([0.0] * 99 + [5.0] + [0.0] * 100, 10).count("█") == 1
    assert sparkline([math.nan], 3) == " "
    assert sparkline([2, 2], 5, is_ascii=True).isascii()
