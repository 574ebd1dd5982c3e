from __future__ import annotations

import math
import tracemalloc
from pathlib import Path

import pytest

from stoker.engine.metrics.curves import Point, curves, thin
from stoker.engine.metrics.metrics_file import Damage, MetricRow, MetricSource, encode_frame


def a_file(path: Path, *frames: bytes) -> str:
    path.write_bytes(b"".join(frames))
    return str(path)


def rows_of(name: str, *points: Point) -> list[MetricRow]:
    return [MetricRow(step, float(step), name, value) for step, value in points]


def test_a_curve_per_name_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    path = a_file(tmp_path / "a.skm", encode_frame([*rows_of("b", (1, 2.0)), *rows_of("a", (1, 3.0), (2, 4.0))]))
    found = curves([path])
    assert list(found) == ["b", "a"]
    assert found == {"b": [(1, 2.0)], "a": [(1, 3.0), (2, 4.0)]}


def test_of_two_values_at_one_step_the_later_counts(tmp_path: Path) -> None:
    first = a_file(tmp_path / "1.skm", encode_frame(rows_of("loss", (1, 1.0), (2, 2.0), (3, 3.0))))
    second = a_file(tmp_path / "2.skm", encode_frame(rows_of("loss", (2, 20.0), (4, 40.0))))
    assert curves([first, second]) == {"loss": [(1, 1.0), (2, 20.0), (3, 3.0), (4, 40.0)]}


def test_what_a_program_reported_goes_before_what_was_read_off_its_output(tmp_path: Path) -> None:
    path = a_file(
        tmp_path / "a.skm",
        encode_frame(rows_of("loss", (1, 1.0)), source=MetricSource.STDOUT),
        encode_frame(rows_of("loss", (1, 2.0))),
        encode_frame([*rows_of("loss", (9, 3.0)), *rows_of("acc", (9, 4.0))], source=MetricSource.STDOUT),
    )
    assert curves([path]) == {"loss": [(1, 2.0)], "acc": [(9, 4.0)]}


def test_only_some_curves_may_be_asked_for(tmp_path: Path) -> None:
    path = a_file(tmp_path / "a.skm", encode_frame([*rows_of("b", (1, 2.0)), *rows_of("a", (1, 3.0))]))
    assert curves([path], names=["a", "zzz"]) == {"a": [(1, 3.0)]}


def test_a_long_curve_is_thinned_and_keeps_its_extremes_and_what_is_not_finite(tmp_path: Path) -> None:
    points: list[Point] = [(step, math.sin(step)) for step in range(100_000)]
    points[31_337] = (31_337, 1e9)
    points[77_777] = (77_777, -1e9)
    points[50_000] = (50_000, math.nan)
    points[51_500] = (51_500, math.inf)
    frames = [encode_frame(rows_of("x", *points[at : at + 4000])) for at in range(0, len(points), 4000)]
    (curve,) = curves([a_file(tmp_path / "a.skm", *frames)], points=500).values()
    assert len(curve) <= 500
    assert curve[0] == points[0]
    assert curve[-1] == points[-1]
    assert (31_337, 1e9) in curve
    assert (77_777, -1e9) in curve
    assert any(math.isnan(value) for _, value in curve)
    assert math.inf in [value for _, value in curve]
    assert [step for step, _ in curve] == sorted({step for step, _ in curve})


def test_memory_does_not_grow_with_the_number_of_rows(tmp_path: Path) -> None:
    frame = encode_frame(rows_of("x", *((step, float(step)) for step in range(4000))))
    small, large = a_file(tmp_path / "s.skm", *[frame] * 10), a_file(tmp_path / "l.skm", *[frame] * 25)

    def peak_bytes(path: str) -> int:
        tracemalloc.start()
        curves([path])
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    assert peak_bytes(large) < 1.1 * peak_bytes(small)


def test_very_many_names_get_fewer_points_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.engine.metrics.curves.ALL_POINTS", 12_000)
    frames = []
    for step in range(60):
        rows = [MetricRow(step, 0.0, f"m{number}", float(step)) for number in range(400)]
        frames.append(encode_frame(rows))
    found = curves([a_file(tmp_path / "a.skm", *frames)], points=100)
    assert len(found) == 400
    assert all(len(curve) <= 30 for curve in found.values())
    assert all(curve[0] == (0, 0.0) and curve[-1] == (59, 59.0) for curve in found.values())


def test_damage_is_told(tmp_path: Path) -> None:
    damages: list[Damage] = []
    path = a_file(tmp_path / "a.skm", b"junk", encode_frame(rows_of("a", (1, 1.0))))
    assert curves([path], on_damage=damages.append) == {"a": [(1, 1.0)]}
    assert [damage.size_bytes for damage in damages] == [4]


@pytest.mark.parametrize("limit", [20, 100, 1000])
def test_steps_far_apart_do_not_break_the_thinning(limit: int) -> None:
    points: list[Point] = [(-(2**63), 1.0), *((step, 0.0) for step in range(5000)), (2**63 - 1, 2.0)]
    found = thin(points, limit)
    assert len(found) <= limit
    assert found[0] == points[0]
    assert found[-1] == points[-1]
