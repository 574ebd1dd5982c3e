"""Curves of several attempts joined to one: where each attempt begins, whatever the clocks of its machines say."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.engine.metrics.metrics_file import MetricRow, encode_frame
from stoker.jobs.job_curves import CurveRange, read_job_curves

HOUR_S = 3600.0


def joined(tmp_path: Path, *attempts: tuple[float, int, int]) -> dict[int, int]:
    """Return the borders of attempts: by its clock when it started, its first step, and the step after its last one.

    Each file has the steps of the attempts before it, with their times, as an attempt that resumes writes them.
    """
    rows: dict[int, MetricRow] = {}
    paths = []
    for number, (started_s, first, end) in enumerate(attempts, 1):
        rows = {step: row for step, row in rows.items() if step < first}
        rows |= {
            step: MetricRow(step, started_s + 1.0 + step - first, "loss", 1.0 / step) for step in range(first, end)
        }
        path = tmp_path / f"{number}.skm"
        path.write_bytes(encode_frame(list(rows.values())))
        paths.append(str(path))
    starts = {number: started_s for number, (started_s, _, _) in enumerate(attempts, 1)}
    return dict(read_job_curves({"run": paths}, CurveRange(), starts).borders)


@pytest.mark.parametrize("ahead_s", [0.0, HOUR_S, -HOUR_S, 30.0])
def test_an_attempt_begins_where_it_resumed_though_clocks_differ(tmp_path: Path, ahead_s: float) -> None:
    first = (HOUR_S + ahead_s, 1, 61)
    assert joined(tmp_path, first, (HOUR_S + 120.0, 41, 200)) == {2: 41}
    assert joined(tmp_path, first, (HOUR_S + 120.0, 41, 80), (HOUR_S + 300.0 + ahead_s, 71, 200)) == {2: 41, 3: 71}


def test_an_attempt_that_reported_nothing_has_no_border(tmp_path: Path) -> None:
    assert joined(tmp_path, (10.0, 1, 61), (500.0, 61, 61)) == {}
    assert joined(tmp_path, (10.0, 1, 61), (500.0, 41, 41), (900.0, 41, 99)) == {3: 41}
    assert joined(tmp_path, (10.0, 1, 61)) == {}
    assert joined(tmp_path, (10.0, 1, 61), (500.0, 1, 99)) == {2: 1}, "it began at the beginning"
