"""Which of several places is taken: wishes, hosts, priorities, bases, scores, and the first node among equals."""

from __future__ import annotations

from typing import Any

from stoker.model.requirements import WantedJob, Wish
from stoker.model.resources import GIB
from stoker.scheduler.node_index import NodeIndex, PlacedJob
from stoker.scheduler.offers import NodeOffer, Sharing
from stoker.scheduler.score import CostRule
from tests.unit.scheduler.fleets import card, gpu_job, job, machine


def place(wanted: WantedJob, *offers: NodeOffer) -> PlacedJob:
    board = NodeIndex(offers)
    placed = board.place(board.shape_of(wanted))
    assert placed is not None
    return placed


def test_the_first_of_equal_nodes_and_of_equal_devices_is_taken() -> None:
    twins = [machine(name, card(f"{name}-1"), card(f"{name}-2")) for name in ("b", "a")]
    placed = place(gpu_job(1000), *twins)
    assert (placed.node, placed.devices) == ("b", ("b-1",))


def test_a_faster_device_is_better() -> None:
    slow, fast = machine("slow", card(type="rtx-3080")), machine("fast", card(type="rtx-4090"))
    assert place(gpu_job(1000), slow, fast).node == "fast"


def test_of_equally_fast_devices_the_smaller_that_will_do_is_better() -> None:
    large, small = machine("large", card(gib=48)), machine("small", card(gib=24))
    assert place(gpu_job(20 * 1024), large, small).node == "small"
    assert place(gpu_job(30 * 1024), large, small).node == "large"


def test_a_preferred_host_goes_before_any_score_and_a_required_one_is_all_there_is() -> None:
    fleet = machine("fast", card()), machine("slow", card(type="jetson-orin"))
    assert place(gpu_job(1000, preferred_hosts=("slow", "gone")), *fleet).node == "slow"
    assert place(gpu_job(1000, preferred_hosts=("gone",)), *fleet).node == "fast"
    assert place(gpu_job(1000, allowed_hosts=("slow",)), *fleet).node == "slow"


def test_a_device_elsewhere_goes_before_the_cpu_of_a_preferred_host() -> None:
    fleet = machine("here"), machine("there", card())
    placed = place(job(wish=Wish.PREFER, preferred_hosts=("here",)), *fleet)
    assert (placed.node, len(placed.devices)) == ("there", 1)


def test_a_node_of_higher_priority_goes_before_a_better_score() -> None:
    fleet = machine("fast", card()), machine("first", card(type="jetson-nano"), priority=1)
    assert place(gpu_job(1000), *fleet).node == "first"


def test_cpu_jobs_leave_machines_with_devices_alone_while_others_will_do() -> None:
    fleet = [
        machine("gpu", card(), ram_bytes=512 * GIB, cores=128),
        machine("cpu", ram_bytes=16 * GIB, cores=4),
    ]
    board = NodeIndex(fleet)
    shape = board.shape_of(job(ram_bytes=4 * GIB, cores=1))
    placed = [board.place(shape) for _ in range(3)]
    assert [one.node if one else None for one in placed] == ["cpu", "gpu", None]


def test_cpu_jobs_go_where_the_most_is_left() -> None:
    fleet = [
        machine("small", ram_bytes=16 * GIB, cores=4, slots=4),
        machine("large", ram_bytes=64 * GIB, cores=16, slots=4),
    ]
    board = NodeIndex(fleet)
    shape = board.shape_of(job(ram_bytes=4 * GIB, cores=1))
    placed = [board.place(shape) for _ in range(4)]
    # 16 slices, then 15 / 2, then 14 / 3 are still more than the small machine's 4, then 13 / 4 are not.
    assert [one.node if one else None for one in placed] == ["large", "large", "large", "small"]
    assert placed[0] is not None
    assert placed[0].score == 16 * 0.01


def test_adapters_gather_where_their_base_is() -> None:
    shared: dict[str, Any] = {"sharing": Sharing.ALWAYS}
    fleet = [machine("a", card("a", **shared), slots=4), machine("b", card("b", **shared), slots=4)]
    board = NodeIndex(fleet)
    llama = board.shape_of(gpu_job(6 * 1024, base="llama", base_bytes=5 * GIB))
    qwen = board.shape_of(gpu_job(6 * 1024, base="qwen", base_bytes=5 * GIB))
    order = [board.place(shape) for shape in (llama, qwen, llama, qwen, llama)]
    assert [one.node if one else None for one in order] == ["a", "b", "a", "b", "a"]
    promised = {node: board.offer(node).devices[0].promised_bytes for node in board.nodes}
    assert promised == {"a": 8 * GIB, "b": 7 * GIB}
    for one in order:
        assert one is not None
        board.release(one)
    assert [board.offer(node) for node in board.nodes] == fleet


def test_work_not_worth_the_way_goes_to_the_cpu_unless_it_requires_a_device() -> None:
    fleet = machine("gpu", card()), machine("cpu")
    board = NodeIndex(fleet, cost=CostRule())
    tiny: dict[str, Any] = {"transfer_mb": 1.0, "mflop": 100.0, "vram_bytes": GIB}
    advised = board.place(board.shape_of(job(wish=Wish.PREFER, **tiny)))
    assert advised is not None
    assert advised.node == "cpu"
    required = board.place(board.shape_of(job(wish=Wish.REQUIRE, **tiny)))
    assert required is not None
    assert required.node == "gpu"
    overridden = NodeIndex(fleet)
    kept = overridden.place(overridden.shape_of(job(wish=Wish.PREFER, **tiny)))
    assert kept is not None
    assert kept.node == "gpu"
