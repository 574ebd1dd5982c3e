"""Rows and rings: extremes survive every merge, files keep their size, old rows are recognised."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.devices.telemetry.samples import DeviceSample
from stoker.devices.telemetry.series import (
    AT_THE_COORDINATOR,
    CHANNELS,
    MINUTES,
    ON_THE_MACHINE,
    SECONDS,
    TENS,
    RingFile,
    RowCollector,
    TelemetryRow,
    file_name,
    merged,
    row_of,
    thinned,
)

START_S = 1_800_000_000


def row(at_s: int, power: float, *, count: int = 1) -> TelemetryRow:
    values = tuple((power, power, power) if one.name == "power" else None for one in CHANNELS)
    return TelemetryRow(start_s=at_s, count=count, values=values)


def powers(rows: list[TelemetryRow]) -> list[tuple[float, float, float] | None]:
    return [one.values[2] for one in rows]


def test_a_sample_becomes_a_row_and_what_is_not_measured_stays_unknown():
    made = row_of(DeviceSample(uuid="a", power_w=100.0, memory_total_bytes=200, memory_used_bytes=50), START_S + 0.7)
    assert made.start_s == START_S
    assert made.values == (None, (25.0, 25.0, 25.0), (100.0, 100.0, 100.0), None, None)


def test_merged_rows_keep_the_extremes_and_weigh_the_means():
    made = merged([row(0, 10.0, count=3), row(1, 50.0), row(2, 30.0)], 0)
    assert made.values[2] == pytest.approx((10.0, 22.0, 50.0))
    assert made.values[3] is None
    assert made.count == 5


def test_a_ring_returns_what_was_written_and_forgets_what_is_older_than_its_length(tmp_path: Path):
    ring = RingFile(str(tmp_path / "a.ring"), ON_THE_MACHINE)
    assert ring.read(1, 0, START_S) == []
    ring.write([(1, row(START_S + at, float(at % 100))) for at in range(4000)], about={"uuid": "GPU-1", "name": "Card"})
    found = ring.read(SECONDS.period_s, START_S, START_S + 3999)
    assert [one.start_s - START_S for one in found] == list(range(400, 4000))
    assert powers(found[:2]) == [(0.0, 0.0, 0.0), (1.0, 1.0, 1.0)]
    assert ring.read(SECONDS.period_s, START_S + 3998, START_S + 3998.9) == found[-2:-1]
    assert ring.about() == {"uuid": "GPU-1", "name": "Card"}
    assert ring.read(TENS.period_s, START_S, START_S + 4000) == []


def test_a_gap_in_time_is_a_gap_in_the_series_and_not_old_rows(tmp_path: Path):
    ring = RingFile(str(tmp_path / "a.ring"), ON_THE_MACHINE)
    ring.write([(1, row(START_S, 1.0)), (1, row(START_S + 5000, 2.0))])
    assert powers(ring.read(1, START_S + 4000, START_S + 5000)) == [(2.0, 2.0, 2.0)]


def test_files_never_grow_beyond_their_size_and_the_size_is_as_documented(tmp_path: Path):
    ring = RingFile(str(tmp_path / "a.ring"), AT_THE_COORDINATOR)
    last = MINUTES.rows * MINUTES.period_s
    ring.write([(10, row(START_S + at, 1.0)) for at in range(0, 10 * (TENS.rows + 100), 10)])
    ring.write([(300, row(START_S // 300 * 300 + at, 1.0)) for at in (0, last - 300, last, last + 300)])
    assert os.path.getsize(ring.path) <= ring.most_bytes
    assert 500 * 9 * ring.most_bytes == pytest.approx(5.9e9, rel=0.05)


def test_a_damaged_file_is_read_as_empty_and_never_raises(tmp_path: Path):
    path = tmp_path / "a.ring"
    path.write_bytes(os.urandom(20_000))
    ring = RingFile(str(path), ON_THE_MACHINE)
    assert ring.read(1, START_S, START_S + 10) == []
    assert ring.about() == {}


def test_numbers_beyond_what_a_row_can_hold_are_cut_off(tmp_path: Path):
    ring = RingFile(str(tmp_path / "a.ring"), ON_THE_MACHINE)
    ring.write([(1, row(START_S, 1e9))])
    assert powers(ring.read(1, START_S, START_S))[0] == (6553.4, 6553.4, 6553.4)


@pytest.mark.parametrize("points", [1, 7, 100, 1000])
def test_fewer_points_keep_every_extreme(points: int):
    rows = [row(START_S + 10 * at, 500.0 if at == 123 else 100.0) for at in range(360)]
    some, period_s = thinned(rows, 10, points)
    assert len(some) <= points
    assert period_s % 10 == 0
    assert max(high for extent in powers(some) if extent for high in extent) == 500.0
    assert sum(one.count for one in some) == 360


def test_a_period_is_over_with_the_first_row_of_the_next():
    collector = RowCollector(10)
    found = [collector.add(row(START_S + at, float(at))) for at in range(21)]
    assert [one.start_s - START_S for one in found if one is not None] == [0, 10]
    assert found[10] is not None
    assert found[10].values[2] == (0.0, 4.5, 9.0)


def test_a_device_with_a_hostile_name_has_a_harmless_file():
    assert "/" not in file_name("../../etc/passwd")
    assert file_name("") == "host.ring"
