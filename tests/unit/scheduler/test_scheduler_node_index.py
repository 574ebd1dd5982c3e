"""The node index: one object for each shape, added and removed nodes, released capacity, and the best place."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.core.device import GIB
from stoker.core.errors import InternalError
from stoker.core.frozen import changed
from stoker.core.machine import DevicePreference, SchedulableJob
from stoker.scheduler.node_index import NodeIndex, PlacedJob
from stoker.scheduler.offers import NodeOffer, Sharing
from tests.unit.scheduler.fleets import card, gpu_job, job, machine


def test_jobs_that_are_placed_alike_have_one_shape_whatever_they_are_called() -> None:
    board = NodeIndex([machine("a", card(), deny_jobs=("lora",))])
    one, other = board.shape_of(gpu_job(6000, "one")), board.shape_of(gpu_job(6000, "other", priority=7))
    assert one is other
    assert board.shape_of(gpu_job(6000, "lora")) is not one
    assert board.shape_of(gpu_job(6000, "lora/3")) is board.shape_of(gpu_job(6000, "x", model="lora")) is not one
    assert board.shape_of(gpu_job(6001)) is not one
    assert board.shape_of(gpu_job(6000, allowed_hosts=("b", "a"))) is board.shape_of(
        gpu_job(6000, allowed_hosts=("a", "b"))
    )


def test_bits_name_the_shapes_that_fit() -> None:
    board = NodeIndex([machine("a", card(gib=24))])
    small, large, cpu = (board.shape_of(one) for one in (gpu_job(6000), gpu_job(30000), job()))
    assert board.fitting("a") == 1 << board.number_of(small) | 1 << board.number_of(cpu)
    placed = board.place(small)
    assert placed is not None
    assert board.fitting("a") == 0
    board.release(placed)
    assert board.would_fit("a", small)
    assert not board.would_fit("a", large)


def test_what_is_given_back_twice_is_a_bug() -> None:
    board = NodeIndex([machine("a", card())])
    placed = board.place(board.shape_of(gpu_job(1000)))
    assert placed is not None
    board.release(placed)
    with pytest.raises(InternalError):
        board.release(placed)


def test_a_node_that_is_described_anew_keeps_its_jobs_and_its_place_in_the_order() -> None:
    board = NodeIndex([machine("a", card("1"), card("2")), machine("b", card("3"))])
    shape = board.shape_of(gpu_job(1000))
    placed = board.place(shape)
    assert placed is not None
    assert placed.devices == ("1",)
    now = board.offer("a")
    # The first card went away, the other one's memory was measured.
    board.put(changed(now, devices=(changed(now.devices[1], free_bytes=2 * GIB),), slots=1))
    assert board.nodes == ("a", "b")
    again = board.place(shape)
    assert again is not None
    assert (again.node, again.devices) == ("a", ("2",))
    board.release(placed)
    board.release(again)
    assert board.offer("a").devices[0].jobs == 0
    assert board.offer("a").jobs == 0


def test_what_was_placed_on_a_node_that_is_gone_is_released_without_harm() -> None:
    board = NodeIndex([machine("a", card()), machine("b", card())])
    shape = board.shape_of(gpu_job(1000))
    placed = board.place(shape)
    assert placed is not None
    board.remove("a")
    board.put(machine("a", card()))
    board.release(placed)
    assert board.offer("a").jobs == 0
    assert board.nodes == ("b", "a")


def test_a_word_that_no_list_had_before_is_told() -> None:
    board = NodeIndex([machine("a", card())])
    plain = board.shape_of(gpu_job(1000, "lora"))
    assert not board.put(machine("b", card("2")))
    assert board.put(machine("c", card("3"), deny_jobs=("lora",)))
    assert not board.put(machine("d", card("4"), deny_jobs=("lora",)))
    assert board.shape_of(gpu_job(1000, "lora")) is not plain


def test_a_new_list_of_hosts_is_obeyed_by_nodes_that_were_there_before() -> None:
    board = NodeIndex([machine(name, card(name)) for name in "abc"])
    anywhere, there = board.shape_of(gpu_job(1000)), gpu_job(1000, allowed_hosts=("c",))
    first = board.place(anywhere)
    assert first is not None
    assert first.node == "a"
    placed = board.place(board.shape_of(there))
    assert placed is not None
    assert placed.node == "c"
    assert board.place(board.shape_of(there)) is None


def test_a_job_that_asks_to_share_joins_only_others_that_did() -> None:
    board = NodeIndex([machine("a", card(sharing=Sharing.ASKED))])
    sharing, alone = board.shape_of(gpu_job(6000, may_share=True)), board.shape_of(gpu_job(6000))
    assert board.place(sharing) is not None
    assert board.place(alone) is None
    assert [board.place(sharing) is not None for _ in range(3)] == [True, True, False]


def test_a_cpu_job_s_slot_is_not_there_for_a_second_device() -> None:
    board = NodeIndex([machine("a", card("1"), card("2"))])
    cpu, pair = board.shape_of(job()), board.shape_of(gpu_job(1000, device_count=2))
    assert board.place(cpu) is not None
    assert board.place_on("a", pair) is None
    assert board.place(pair) is None


def test_an_exact_fit_beside_others_is_a_fit() -> None:
    device = card(sharing=Sharing.ALWAYS)
    board = NodeIndex([machine("a", device, slots=2, is_slot_per_device=False)])
    assert board.place(board.shape_of(gpu_job(1024))) is not None
    rest_mb = device.usable_bytes // 1024**2 - 1024
    assert board.place(board.shape_of(gpu_job(rest_mb + 1))) is None
    assert board.place(board.shape_of(gpu_job(rest_mb))) is not None


def test_the_first_of_equal_nodes_is_taken_whatever_else_tells_them_apart() -> None:
    fleet = [
        machine("lists", card("1"), deny_jobs=("other",)),
        machine("plain", card("2"), ram_bytes=64 * GIB),
        machine("less", card("3"), ram_bytes=8 * GIB),
    ]
    for first in range(3):
        board = NodeIndex([*fleet[first:], *fleet[:first]])
        board.shape_of(gpu_job(1000, ram_bytes=32 * GIB))
        shape = board.shape_of(gpu_job(1000, ram_bytes=GIB))
        placed = [board.place(shape) for _ in range(3)]
        assert tuple(one.node if one else None for one in placed) == board.nodes
        for one in reversed(placed):
            assert one is not None
            board.release(one)
            # Searched in between, so that each comes back by itself.
            assert board.place(board.shape_of(gpu_job(90_000))) is None
        again = [board.place(shape) for _ in range(3)]
        assert tuple(one.node if one else None for one in again) == board.nodes


def test_an_empty_board_has_no_place() -> None:
    board = NodeIndex()
    assert board.place(board.shape_of(gpu_job(1))) is None
    assert board.nodes == ()


def place(wanted: SchedulableJob, *offers: NodeOffer) -> PlacedJob:
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
    placed = place(job(wish=DevicePreference.PREFER, preferred_hosts=("here",)), *fleet)
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
    board = NodeIndex(fleet)
    tiny: dict[str, Any] = {"transfer_mb": 1.0, "mflop": 100.0, "vram_bytes": GIB}
    advised = board.place(board.shape_of(job(wish=DevicePreference.PREFER, **tiny)))
    assert advised is not None
    assert advised.node == "cpu"
    required = board.place(board.shape_of(job(wish=DevicePreference.REQUIRE, **tiny)))
    assert required is not None
    assert required.node == "gpu"
    overridden = NodeIndex(fleet, cost=None)
    kept = overridden.place(overridden.shape_of(job(wish=DevicePreference.PREFER, **tiny)))
    assert kept is not None
    assert kept.node == "gpu"
