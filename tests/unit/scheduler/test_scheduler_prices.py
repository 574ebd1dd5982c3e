from __future__ import annotations

import pytest

from stoker.core.device import GIB, MemoryType
from stoker.core.machine import DevicePreference, Gpu, Node, Requirements, SchedulableJob
from stoker.scheduler.fit import PlacementShape, shape_of
from stoker.scheduler.machine_index import MatchableMachine
from stoker.scheduler.offers import NodeType, name_of, offer_of
from stoker.scheduler.prices import Prices, RunOption, find_prices, run_options
from stoker.scheduler.scheduler import Scheduler
from tests.unit.scheduler.fleets import node_types_of
from tests.unit.scheduler.policy_fleet import Fleet, device


def node(name: str, *types: str, vram_mb: int = 24564, slots: int | None = None, shares: bool = False) -> Node:
    gpus = tuple(Gpu(uuid=f"{name}-{at}", type=type_, vram_mb=vram_mb) for at, type_ in enumerate(types))
    return Node(name=name, host=name, gpus=gpus, cpu_cores=16, ram_mb=65536, slots=slots, shares_devices=shares)


def shape(wish: DevicePreference = DevicePreference.REQUIRE, **asked: object) -> PlacementShape:
    fields = {"vram_bytes": 8 * GIB, "ram_bytes": GIB, "cores": 1, **asked}
    return shape_of(SchedulableJob(name="job", requirements=Requirements(wish=wish, **fields)))  # type: ignore[arg-type]


def sorts(*nodes: Node) -> tuple[NodeType, ...]:
    return node_types_of(nodes)


def options_of(asked: PlacementShape, node_types: tuple[NodeType, ...]) -> list[RunOption]:
    return run_options(asked, [(number, one.offer) for number, one in enumerate(node_types)])


def prices(options: list[list[RunOption]], work_s: list[float], node_types: tuple[NodeType, ...]) -> Prices:
    return find_prices(options, work_s, [one.count for one in node_types])


def test_machines_that_differ_only_in_their_names_are_one_sort() -> None:
    scheduler = Scheduler()
    for one in (node("a", "RTX 4090"), node("b", "RTX 4090"), node("c")):
        scheduler.put_machine(MatchableMachine(offer_of(one)))
    tables = scheduler.tables.tables
    assert [(name_of(one.offer), one.count) for one in tables] == [("RTX 4090 24 GiB", 2), ("CPU 16 cores", 1)]
    assert {name: one.table.number for name, one in scheduler.machines.machines.items()} == {"a": 0, "b": 0, "c": 1}


def test_a_sort_says_what_it_is() -> None:
    mixed = node("m", "A100", "A100", "RTX 4090", shares=True)
    assert name_of(offer_of(mixed)) == "2 × A100 24 GiB + RTX 4090 24 GiB, shared"
    assert name_of(offer_of(Node(name="x", host="x"))) == "CPU"


def test_two_equal_machines_do_the_work_in_half_of_the_time() -> None:
    found = sorts(node("a", "RTX 4090"), node("b", "RTX 4090"))
    ways = [options_of(shape(), found)]
    assert prices(ways, [7200.0], found).bound_s == pytest.approx(3600.0)


def test_a_machine_of_half_the_speed_counts_half() -> None:
    found = sorts(node("a", "RTX 4090"), node("b", "RTX 3090"))
    worth = prices([options_of(shape(), found)], [1550.0], found)
    assert worth.bound_s == pytest.approx(1000.0, rel=5e-3)
    assert worth.bound_s <= 1000.0 + 1e-9


def test_jobs_that_few_machines_take_weigh_on_those_few() -> None:
    found = sorts(node("large", "RTX 4090"), *(node(f"s{at}", "RTX 4090", vram_mb=8192) for at in range(9)))
    ways = [options_of(shape(vram_bytes=20 * GIB), found), options_of(shape(vram_bytes=4 * GIB), found)]
    worth = prices(ways, [5000.0, 100.0], found)
    assert worth.bound_s == pytest.approx(5000.0, rel=5e-3)
    small = {way.node_type: worth.cost(way) for way in ways[1]}
    assert small[0] > 10 * small[1]


def test_several_devices_are_taken_for_as_long_as_the_job_runs() -> None:
    found = sorts(node("four", "A100", "A100", "A100", "A100", slots=8))
    worth = prices([options_of(shape(device_count=2), found)], [4 * 1.2 * 3600.0], found)
    assert worth.bound_s == pytest.approx(2 * 3600.0, rel=1e-6)


def test_who_shares_takes_its_part_and_its_base_once() -> None:
    found = sorts(node("shared", "RTX 4090", slots=99, shares=True))
    usable = found[0].offer.devices[0].usable_bytes
    part = shape(vram_bytes=6 * GIB, may_share=True, base="llama", base_bytes=4 * GIB)
    (way,) = options_of(part, found)
    assert way.part_of("devices") == pytest.approx(2 * GIB / (usable - 4 * GIB))
    assert way.part_of("halves") is None


def test_two_jobs_of_more_than_half_a_device_never_share_it() -> None:
    found = sorts(node("shared", "RTX 4090", slots=99, shares=True))
    (way,) = options_of(shape(vram_bytes=12 * GIB, may_share=True), found)
    assert way.part_of("halves") == 1.0
    assert prices([[way]], [7200.0], found).bound_s == pytest.approx(7200.0, rel=1e-2)


def test_who_prefers_devices_has_a_way_on_the_cpu_a_hundred_times_as_long() -> None:
    found = sorts(node("a", "RTX 4090", slots=2))
    ways = options_of(shape(DevicePreference.PREFER), found)
    assert [(way.on_devices, way.speed) for way in ways] == [(True, 1.0), (False, 0.01)]
    assert [way.speed for way in options_of(shape(DevicePreference.NEVER), found)] == [1.0]


def test_unified_memory_is_never_the_device_s_alone() -> None:
    gpu = Gpu(uuid="J", type="Jetson Orin", vram_mb=8192, memory_type=MemoryType.UNIFIED)
    found = sorts(Node(name="j", host="j", gpus=(gpu,), cpu_cores=8, ram_mb=65536))
    assert options_of(shape(vram_bytes=4 * GIB), found)
    assert not options_of(shape(vram_bytes=6 * GIB), found)


def test_what_can_run_nowhere_counts_for_nothing() -> None:
    found = sorts(node("a", "RTX 4090"))
    ways = [options_of(shape(vram_bytes=80 * GIB), found), options_of(shape(), found)]
    assert ways[0] == []
    assert prices(ways, [1e9, 3600.0], found).bound_s == pytest.approx(3600.0)
    assert prices([[]], [1e9], found).bound_s == 0.0
    assert prices([], [], ()).bound_s == 0.0


def test_prices_are_found_again_from_those_before() -> None:
    found = sorts(node("a", "RTX 4090"), node("b", "RTX 3090"), node("c", "RTX 4080", vram_mb=16376))
    ways = [options_of(shape(vram_bytes=size * GIB), found) for size in (4, 12, 20)]
    before = prices(ways, [5000.0, 3000.0, 9000.0], found)
    counts = [one.count for one in found]
    again = find_prices(ways, [4000.0, 2500.0, 7000.0], counts, before=before, rounds=40)
    anew = prices(ways, [4000.0, 2500.0, 7000.0], found)
    assert again.bound_s == pytest.approx(anew.bound_s, rel=5e-3)


def test_a_node_type_that_comes_later_gets_the_price_that_it_would_have_had_from_the_first() -> None:
    both = Fleet([node("a", "NVIDIA H100"), node("b", "NVIDIA A100")], device(8))
    later = Fleet([node("a", "NVIDIA H100")], device(8))
    for fleet in (both, later):
        fleet.come(0, 20)
        fleet.ask("a")
    later.scheduler.put_machine(MatchableMachine(offer_of(node("b", "NVIDIA A100"))))
    found = []
    for fleet in (both, later):
        for _ in range(20):
            fleet.ask("b")
        prices = fleet.scheduler.tables.prices
        assert prices is not None
        found.append(prices.bound_s)
    assert found[1] == pytest.approx(found[0], rel=0.05)
