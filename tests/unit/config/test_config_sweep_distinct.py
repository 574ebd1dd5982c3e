"""Points that mean the same are run once, and that is told."""

from __future__ import annotations

from stoker.config.points import DistinctPoints, MergedPoint
from stoker.config.sweep import Sweep, SweepPoint, points
from stoker.core.digests import Digest, digest_value
from tests.fakes.overrides import parse_override


def fingerprint(point: SweepPoint) -> Digest:
    return digest_value("test", {path: choice.value for path, choice in point.choices})


def sweep(word: str) -> Sweep:
    value = parse_override(word).value
    assert isinstance(value, Sweep)
    return value


def test_the_first_of_equal_points_stays_and_the_others_are_told() -> None:
    distinct = DistinctPoints(
        points(sweep("lr=1e-3,0.1,0.001,0.10,.1,1")), fingerprint, label_of=lambda point: point.label
    )
    assert [point.label for point, _ in distinct] == ["lr=0.001", "lr=0.1", "lr=1"]
    assert distinct.merged_count == 3
    assert distinct.merged == [
        MergedPoint(number=3, label="lr=0.001", same_as=1),
        MergedPoint(number=4, label="lr=0.1", same_as=2),
        MergedPoint(number=5, label="lr=0.1", same_as=2),
    ]


def test_each_point_comes_with_its_fingerprint() -> None:
    distinct = DistinctPoints(points(sweep("a=1,2")), fingerprint, label_of=lambda point: point.label)
    assert all(fingerprint(point) == digest for point, digest in distinct)


def test_of_very_many_merged_points_only_the_first_are_listed() -> None:
    distinct = DistinctPoints(points(sweep("x=lin:1:1:1000")), fingerprint, label_of=lambda point: point.label)
    assert len(list(distinct)) == 1
    assert distinct.merged_count == 999
    assert len(distinct.merged) == 20
