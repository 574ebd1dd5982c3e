from __future__ import annotations

import math
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from stoker.engine.metrics import metric_levels
from stoker.engine.metrics.curve_reader import CurveReader
from stoker.engine.metrics.metric_levels import levels_path, series_parts
from stoker.engine.metrics.metrics_file import MetricRow, MetricSource, encode_frame


def frames_of(points: Sequence[tuple[int, float]], name: str = "loss", rows: int = 500) -> bytes:
    made = [MetricRow(step, 1000.0 + step, name, value) for step, value in points]
    return b"".join(encode_frame(made[at : at + rows]) for at in range(0, len(made), rows))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of some hundred values: what a million does, ten thousand do as well."""
    monkeypatch.setattr(metric_levels, "PART_BYTES", 30_000)
    monkeypatch.setattr("stoker.engine.metrics.curve_reader._RAW_BYTES", 60_000)


def wave(count: int) -> list[tuple[int, float]]:
    chance = random.Random(7)
    return [(step, math.sin(step / 300) + chance.random() / 10) for step in range(count)]


def test_a_long_curve_keeps_its_spikes_and_what_is_not_finite(tmp_path: Path) -> None:
    points = wave(20_000)
    points[7_777] = (7_777, 50.0)
    points[8_888] = (8_888, -50.0)
    points[9_999] = (9_999, math.nan)
    path = tmp_path / "a.skm"
    path.write_bytes(frames_of(points))
    for _ in range(2):
        curve = CurveReader([str(path)]).curve("loss", points=400)
        assert curve is not None
        assert len(curve.points) <= 400
        assert curve.total == 20_000
        assert (7_777, 50.0, 8_777.0) in curve.points
        assert curve.best == (8_888, -50.0, 9_888.0)
        assert curve.last == (19_999, points[-1][1], 20_999.0)
        assert [point[0] for point in curve.points if math.isnan(point[1])] == [9_999]
        steps = [point[0] for point in curve.points]
        assert steps == sorted(set(steps))
    assert os.path.getsize(levels_path(str(path))) < path.stat().st_size / 4


def test_a_short_range_has_every_value(tmp_path: Path) -> None:
    points = wave(20_000)
    path = tmp_path / "a.skm"
    path.write_bytes(frames_of(points))
    curve = CurveReader([str(path)]).curve("loss", points=400, first=10_000, last=10_299)
    assert curve is not None
    assert [point[:2] for point in curve.points] == points[10_000:10_300]
    assert curve.total == 300
    # Best and last are those of the whole curve.
    assert curve.best is not None
    assert curve.best[1] == min(value for _, value in points)


def test_levels_grow_with_the_file_and_are_not_made_twice(tmp_path: Path) -> None:
    points, path = wave(9_000), tmp_path / "a.skm"
    data = frames_of(points)
    path.write_bytes(data[: len(data) // 2])
    series_parts(str(path))
    before = Path(levels_path(str(path))).read_bytes()
    path.write_bytes(data)
    (parts,) = series_parts(str(path)).values()
    after = Path(levels_path(str(path))).read_bytes()
    assert after.startswith(before)
    assert len(after) > len(before) > 0
    assert sum(part.count for part in parts) == 9_000
    assert [step for part in parts for step, _, _ in part.points()] == list(range(9_000))


@pytest.mark.parametrize("harm", ["cut", "flipped", "empty", "of another file", "written twice"])
def test_damaged_levels_are_made_again(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "a.skm"
    path.write_bytes(frames_of(wave(9_000)))
    side = Path(levels_path(str(path)))
    right = CurveReader([str(path)]).curve("loss", points=100)
    data = side.read_bytes()
    if harm == "of another file":
        path.write_bytes(frames_of([(step, 1.0) for step in range(9_000)]))
        right = CurveReader([str(path), str(tmp_path / "missing.skm")]).curve("loss", points=100)
    elif harm == "written twice":
        side.write_bytes(data + data)
    else:
        middle = len(data) // 2
        harmed = {"cut": data[:middle], "flipped": data[:middle] + b"?" + data[middle + 1 :], "empty": b""}
        side.write_bytes(harmed[harm])
    assert CurveReader([str(path)]).curve("loss", points=100) == right
    if harm not in ("written twice", "of another file"):
        assert side.read_bytes() == data


def test_levels_of_very_many_metrics_stay_small_beside_their_file(tmp_path: Path) -> None:
    path = tmp_path / "a.skm"
    rows = [MetricRow(step, 5.0, f"metric-{at}", float(step)) for step in range(90) for at in range(300)]
    path.write_bytes(b"".join(encode_frame(rows[at : at + 300]) for at in range(0, len(rows), 300)))
    for _ in range(3):
        curve = CurveReader([str(path)]).curve("metric-7", points=100)
        assert curve is not None
        assert [point[0] for point in curve.points] == list(range(90))
        assert 0 < os.path.getsize(levels_path(str(path))) < path.stat().st_size / 3


def test_levels_that_are_cut_off_after_they_were_looked_at_are_made_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.skm"
    path.write_bytes(frames_of(wave(9_000)))
    side = Path(levels_path(str(path)))
    right = CurveReader([str(path)]).curve("loss", points=100)
    for left in (b"", b"?" * len(side.read_bytes())):
        reader = CurveReader([str(path)])
        side.write_bytes(left)
        assert reader.curve("loss", points=100) == right


def test_a_folder_that_cannot_be_written_has_curves_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.skm"
    path.write_bytes(frames_of(wave(9_000)))
    os.mkdir(levels_path(str(path)))
    curve = CurveReader([str(path)]).curve("loss", points=100)
    assert curve is not None
    assert curve.total == 9_000


def test_steps_that_were_run_again_have_the_later_values(tmp_path: Path) -> None:
    """No zigzag: of the first stretch only what the second did not run again is left."""
    path = tmp_path / "a.skm"
    first = [(step, 1.0) for step in range(12_000)]
    again = [(step, 2.0) for step in range(8_000, 20_000)]
    path.write_bytes(frames_of([*first, *again]))
    curve = CurveReader([str(path)]).curve("loss", points=300)
    assert curve is not None
    assert {point[1] for point in curve.points if point[0] < 7_900} == {1.0}
    assert {point[1] for point in curve.points if point[0] >= 8_000} == {2.0}
    # The same over two files, as two attempts have them.
    files = [tmp_path / "1.skm", tmp_path / "2.skm"]
    files[0].write_bytes(frames_of(first))
    files[1].write_bytes(frames_of(again))
    joined = CurveReader([str(one) for one in files]).curve("loss", points=300)
    assert joined is not None
    assert {point[1] for point in joined.points if point[0] >= 8_000} == {2.0}


def test_steps_out_of_order_lose_nothing(tmp_path: Path) -> None:
    chance = random.Random(3)
    points = [(step, float(step)) for step in range(3_000)]
    for at in range(0, 3_000, 10):
        part = points[at : at + 10]
        chance.shuffle(part)
        points[at : at + 10] = part
    path = tmp_path / "a.skm"
    path.write_bytes(frames_of(points))
    curve = CurveReader([str(path)]).curve("loss", points=400, first=1_000, last=1_300)
    assert curve is not None
    assert [point[0] for point in curve.points] == list(range(1_000, 1_301))


def test_many_metrics_of_one_file_are_told_apart(tmp_path: Path) -> None:
    rows = [MetricRow(step, 5.0, name, float(step)) for step in range(2_000) for name in ("lr", "val_loss", "loss")]
    odd = [MetricRow(9, 5.0, "loss", 1.0), MetricRow(9, 5.0, "note", math.inf), MetricRow(10, 5.0, "loss", 2.0)]
    path = tmp_path / "a.skm"
    frames = [encode_frame(rows[at : at + 999]) for at in range(0, len(rows), 999)]
    path.write_bytes(b"".join(frames) + encode_frame(odd, source=MetricSource.STDOUT))
    reader = CurveReader([str(path)])
    assert reader.names[0] == "val_loss"
    assert set(reader.names) == {"lr", "val_loss", "loss", "note"}
    for name in ("lr", "val_loss", "loss"):
        curve = reader.curve(name, points=100)
        assert curve is not None
        assert curve.source is MetricSource.REPORTED
        assert curve.last == (1_999, 1_999.0, 5.0)
        assert curve.total == 2_000
    note = reader.curve("note", points=100)
    assert note is not None
    assert note.points == ((9, math.inf, 5.0),)
    assert note.best is None
    assert reader.curve("missing", points=10) is None
