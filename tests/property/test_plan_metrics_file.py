"""A file of metrics gives back what was written, and of a damaged one everything that is still whole."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.engine.metrics.curves import curves, thin
from stoker.engine.metrics.metrics_file import (
    MAGIC,
    Damage,
    MetricRow,
    MetricSource,
    clean_name,
    encode_frame,
    read_frames,
    read_metrics,
)
from tests.lengths import examples

STEPS = st.integers(-(2**63), 2**63 - 1)
ROWS = st.builds(
    MetricRow,
    st.integers(0, 50) | STEPS,
    st.floats(0, 2e9),
    st.sampled_from(["loss", "acc", "é"]) | st.text(max_size=30).map(clean_name),
    st.floats(),
)
BATCHES = st.lists(
    st.tuples(st.lists(ROWS, max_size=8), st.sampled_from(MetricSource), st.integers(0, 2**64 - 1)), max_size=5
)
JUNK = st.lists(st.binary(max_size=20) | st.sampled_from([MAGIC, MAGIC[:4], MAGIC + b"\x10\0\0\0"]), max_size=4).map(
    b"".join
)


@pytest.fixture(scope="module")
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield str(Path(folder, "a.skm"))


def written(batches: list[tuple[list[MetricRow], MetricSource, int]]) -> list[bytes]:
    return [encode_frame(rows, source=source, lost=lost) for rows, source, lost in batches]


def expected(batches: list[tuple[list[MetricRow], MetricSource, int]]) -> list[str]:
    # By their text, which tells NaN from nothing and -0.0 from 0.0.
    return [repr(row._replace(source=source)) for rows, source, _ in batches for row in rows]


@settings(max_examples=examples(24, 60), deadline=None)
@given(BATCHES)
def test_everything_comes_back(path: str, batches: list[tuple[list[MetricRow], MetricSource, int]]) -> None:
    Path(path).write_bytes(b"".join(written(batches)))
    assert list(map(repr, read_metrics([path]))) == expected(batches)
    assert [frame.lost for frame in read_frames(path)] == [lost for _, _, lost in batches]


@settings(max_examples=examples(24, 60), deadline=None)
@given(BATCHES, st.data())
def test_a_file_cut_anywhere_gives_the_frames_before_the_cut(
    path: str, batches: list[tuple[list[MetricRow], MetricSource, int]], data: st.DataObject
) -> None:
    frames = written(batches)
    whole = b"".join(frames)
    cut = data.draw(st.integers(0, len(whole)))
    Path(path).write_bytes(whole[:cut])
    damages: list[Damage] = []
    found = list(map(repr, read_metrics([path], on_damage=damages.append)))
    count, at = 0, 0
    while count < len(frames) and at + len(frames[count]) <= cut:
        at += len(frames[count])
        count += 1
    assert found == expected(batches[:count])
    assert sum(damage.size_bytes for damage in damages) == cut - at


@settings(max_examples=examples(40, 100), deadline=None)
@given(BATCHES, st.lists(JUNK, min_size=6, max_size=6), st.data())
def test_junk_and_flipped_bits_cost_no_other_frame(
    path: str, batches: list[tuple[list[MetricRow], MetricSource, int]], junk: list[bytes], data: st.DataObject
) -> None:
    frames = written(batches)
    hurt = data.draw(st.sets(st.integers(0, len(frames) - 1), max_size=2)) if frames else set()
    parts = []
    for number, frame in enumerate(frames):
        parts.append(junk[number])
        if number in hurt:
            damaged = bytearray(frame)
            at = data.draw(st.integers(0, len(frame) - 1))
            damaged[at] ^= 1 << data.draw(st.integers(0, 7))
            parts.append(bytes(damaged))
        else:
            parts.append(frame)
    Path(path).write_bytes(b"".join([*parts, junk[-1]]))
    damages: list[Damage] = []
    found = list(map(repr, read_metrics([path], on_damage=damages.append)))
    assert found == expected([batch for number, batch in enumerate(batches) if number not in hurt])
    kept = sum(len(frame) for number, frame in enumerate(frames) if number not in hurt)
    assert sum(damage.size_bytes for damage in damages) == Path(path).stat().st_size - kept


@settings(max_examples=examples(24, 60), deadline=None)
@given(st.binary(max_size=200) | JUNK)
def test_hostile_bytes_give_no_rows_and_no_error(path: str, hostile: bytes) -> None:
    Path(path).write_bytes(hostile)
    damages: list[Damage] = []
    assert list(read_metrics([path], on_damage=damages.append)) == []
    assert sum(damage.size_bytes for damage in damages) == len(hostile)


@settings(max_examples=examples(24, 60), deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 300), st.floats()), max_size=400), st.integers(20, 60))
def test_thinning_keeps_ends_and_extremes(points: list[tuple[int, float]], limit: int) -> None:
    exact = sorted(dict(points).items())
    found = thin(points, limit)
    assert len(found) <= max(limit, 0)
    assert set(map(repr, found)) <= set(map(repr, exact))
    assert [step for step, _ in found] == sorted({step for step, _ in found})
    if exact:
        assert [repr(found[0]), repr(found[-1])] == [repr(exact[0]), repr(exact[-1])]
        finite = [value for _, value in exact if math.isfinite(value)]
        kept = [value for _, value in found if math.isfinite(value)]
        if finite:
            assert (min(kept), max(kept)) == (min(finite), max(finite))
        assert any(not math.isfinite(value) for _, value in found) == (len(finite) < len(exact))


@settings(max_examples=examples(40, 100), deadline=None)
@given(BATCHES)
def test_curves_agree_with_the_rows(path: str, batches: list[tuple[list[MetricRow], MetricSource, int]]) -> None:
    Path(path).write_bytes(b"".join(written(batches)))
    rows = list(read_metrics([path]))
    best = {row.name: min(other.source for other in rows if other.name == row.name) for row in rows}
    told = [row for row in rows if row.source is best[row.name]]
    assert {name: repr(curve) for name, curve in curves([path]).items()} == {
        name: repr(sorted({row.step: row.value for row in told if row.name == name}.items())) for name in best
    }
