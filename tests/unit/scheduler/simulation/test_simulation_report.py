from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

from stoker.core.clock import SystemClock
from stoker.scheduler.simulation.simulation_report import SimulationRequest, SimulationResult, quantile, simulate
from stoker.scheduler.simulation.simulator import CalendarQueue
from stoker.scheduler.simulation.workload import mixes
from stoker.views.html_pages import to_svg
from stoker.views.simulation_lines import report_lines, timeline_chart


@pytest.fixture(scope="module")
def simulated() -> SimulationResult:
    mix = mixes()["everything"]
    return simulate(SimulationRequest(mix=mix, seed=mix.seed, nodes=20, jobs=600, shapes=40), SystemClock())


def test_a_report_adds_up(simulated: SimulationResult) -> None:
    report = simulated.report
    assert report.decisions + report.not_placeable == report.jobs == 600
    assert report.bound.seconds <= report.makespan_s
    assert sum(use.machines for use in report.uses) == report.machines == 20
    assert sum(use.jobs for use in report.uses) == report.decisions
    assert sum(waits.jobs for waits in report.waits) == report.decisions
    assert all(0 <= use.used <= 1 for use in report.uses)
    assert report.waiting[-1] == 0
    assert 0 <= report.most_behind_s <= report.makespan_s


def test_waits_are_told_by_priority_the_highest_first(simulated: SimulationResult) -> None:
    waits = simulated.report.waits
    assert [one.priority for one in waits] == sorted((one.priority for one in waits), reverse=True)
    assert all(one.median_s <= one.p95_s <= one.max_s for one in waits)
    assert waits[0].median_s < waits[-1].median_s


def test_a_report_is_plain_json(simulated: SimulationResult) -> None:
    told = json.loads(json.dumps(simulated.report.to_dict()))
    assert told["ratio"] == pytest.approx(simulated.report.makespan_s / simulated.report.bound.seconds)
    assert {"makespan_s", "bound_s", "use", "waits", "digest"} <= set(told)


def test_the_text_has_what_a_reader_looks_for(simulated: SimulationResult) -> None:
    text = "\n".join(report_lines(simulated, 100))
    for word in ("makespan", "lower bound", "decisions", "H100", "priority", "median wait"):
        assert word in text


def test_the_timeline_is_a_picture(simulated: SimulationResult) -> None:
    picture = to_svg(timeline_chart(simulated.report, "everything, seed 15"))
    root = ET.fromstring(picture)
    assert root.tag.endswith("svg")
    assert picture.count("<path") > 10
    assert "lower bound" in picture


def test_heed_hears_of_the_progress_and_may_end_it() -> None:
    mix = mixes()["desktop"]
    heard: list[int] = []

    def heed(count: int) -> None:
        heard.append(count)
        if count >= 500:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(SimulationRequest(mix=mix, seed=1, nodes=10, jobs=1500, shapes=20), SystemClock(), heed)
    assert heard[0] == 0
    assert 500 <= heard[-1] < 600


@pytest.mark.parametrize(("part", "value"), [(0.5, 2.0), (0.95, 4.0), (0.0, 1.0), (1.0, 4.0)])
def test_quantiles_are_values_that_occurred(part: float, value: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], part) == value
    assert quantile([], part) == 0.0


def test_an_agenda_gives_things_in_the_order_of_time() -> None:
    agenda: CalendarQueue[str] = CalendarQueue()
    for number, at_s in enumerate((5.5, 0.2, 5.1, 0.1, 9.0, 5.1)):
        agenda.add(at_s, number, f"{at_s}/{number}")
    assert agenda.take()[2] == "0.1/3"
    agenda.add(0.15, 7, "now")
    assert [agenda.take()[2] for _ in range(len(agenda))] == ["now", "0.2/1", "5.1/2", "5.1/5", "5.5/0", "9.0/4"]
