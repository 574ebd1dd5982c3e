from __future__ import annotations

from collections import Counter

import pytest

from stoker.cli import simulate as command
from stoker.core.digests import digest_value
from stoker.scheduler.simulation.workload import apportion, make_batch, make_nodes, make_shapes, mixes

MIXES = sorted(mixes())


def test_the_command_names_every_mix() -> None:
    assert tuple(mixes()) == command._MIXES


@pytest.mark.parametrize("name", MIXES)
def test_a_fleet_has_every_kind_as_often_as_its_share_says(name: str) -> None:
    mix = mixes()[name]
    nodes = make_nodes(mix, 1000, mix.seed)
    counts = Counter(node.name.rpartition("-")[0] for node in nodes)
    whole = sum(share for _, share in mix.kinds)
    assert len({node.name for node in nodes}) == 1000
    for kind, share in mix.kinds:
        assert abs(counts[kind.name] - 1000 * share / whole) < 1


@pytest.mark.parametrize("name", MIXES)
def test_shapes_are_distinct_and_of_every_family(name: str) -> None:
    mix = mixes()[name]
    shapes = make_shapes(mix, 200, mix.seed)
    assert len(shapes) == 200
    assert len({shape.wanted.requirements for shape in shapes}) == 200
    assert {shape.wanted.requirements.wish for shape in shapes} == {family.wish for family in mix.families}
    assert sum(shape.weight for shape in shapes) == pytest.approx(1.0)


def test_few_shapes_still_have_one_of_every_family() -> None:
    mix = mixes()["everything"]
    assert len(make_shapes(mix, 1, 1)) == len(mix.families)


def test_adapters_of_one_base_agree_on_its_size() -> None:
    sizes: dict[str, set[int]] = {}
    for shape in make_shapes(mixes()["adapters"], 200, 3):
        asked = shape.wanted.requirements
        if asked.base:
            sizes.setdefault(asked.base, set()).add(asked.base_bytes)
            assert asked.vram_bytes > asked.base_bytes
    assert len(sizes) > 1
    assert all(len(size) == 1 for size in sizes.values())


def test_a_queue_is_drawn_from_its_seed_alone() -> None:
    mix = mixes()["everything"]
    shapes = make_shapes(mix, 50, 7)
    one, same = make_batch(mix, shapes, 500, 7), make_batch(mix, shapes, 500, 7)
    other = make_batch(mix, shapes, 500, 8)
    assert (one.shape_of, one.work_s, one.priority_of) == (same.shape_of, same.work_s, same.priority_of)
    assert one.shape_of != other.shape_of
    assert set(make_batch(mix, shapes, 100, 7, is_equal=True).priority_of) == {0}
    assert len(set(one.priority_of)) == len(mix.priorities)


def test_jobs_take_about_as_long_as_their_shape() -> None:
    mix = mixes()["desktop"]
    shapes = make_shapes(mix, 50, 7)
    batch = make_batch(mix, shapes, 500, 7)
    for shape, work_s in zip(batch.shape_of, batch.work_s, strict=True):
        assert 1 / 1.26 < work_s / shapes[shape].expected_s < 1.26


def test_the_fixed_seeds_still_give_what_they_gave() -> None:
    drawn = {}
    for name, mix in mixes().items():
        shapes = make_shapes(mix, 200, mix.seed)
        asked = [shape.wanted.requirements for shape in shapes]
        nodes = make_nodes(mix, 50, mix.seed)
        batch = make_batch(mix, shapes, 100, mix.seed)
        drawn[name] = [
            [node.name for node in nodes],
            [[str(one.wish), one.device_count, one.vram_bytes, one.ram_bytes, one.cores] for one in asked],
            list(batch.shape_of),
            list(batch.priority_of),
        ]
    digest = digest_value("mixes", drawn)
    assert digest == "b410f7ae50cfd7272314605633b6dfc542c9f9dbbe2f09ad952b4a3c13c68dc1", (
        "mixes.toml or the draw has changed: figures in RESULTS.md are no longer those of this code"
    )


@pytest.mark.parametrize(("shares", "count", "parts"), [([1, 1, 1], 4, [2, 1, 1]), ([3, 1], 4, [3, 1]), ([5], 0, [0])])
def test_a_whole_is_divided_by_shares(shares: list[float], count: int, parts: list[int]) -> None:
    assert apportion(shares, count) == parts
