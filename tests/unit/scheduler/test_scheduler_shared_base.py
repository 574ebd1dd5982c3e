"""Jobs over one base: the base counts once on their device, and so does the process that works for all of them."""

from __future__ import annotations

from stoker.core.device import GIB
from stoker.core.machine import DevicePreference, Gpu, Node, SchedulableJob
from stoker.scheduler.node_index import NodeIndex, PlacedJob
from stoker.scheduler.offers import NodeOffer, ResidentProcess, offer_of
from stoker.scheduler.reasons import obstacles
from tests.unit.scheduler.fleets import card, job, machine


def adapter(base: str = "qwen", *, wish: DevicePreference = DevicePreference.PREFER, **more: int) -> SchedulableJob:
    """An adapter's training: 5 GiB on a device, 4 of them the base; 2.5 GiB of RAM, 2 of them its process."""
    said = {
        "vram_bytes": 5 * GIB,
        "base_bytes": 4 * GIB,
        "ram_bytes": 5 * GIB // 2,
        "base_ram_bytes": 2 * GIB,
        **more,
    }
    return job(name="lora", wish=wish, may_share=wish is not DevicePreference.NEVER, base=base, **said)


def fill(board: NodeIndex, wanted: SchedulableJob) -> list[PlacedJob]:
    """Place as many as there is room for."""
    shape, placed = board.shape_of(wanted), []
    while (one := board.place(shape)) is not None:
        placed.append(one)
    return placed


def waits(board: NodeIndex, node: str, wanted: SchedulableJob) -> list[str]:
    return [one.why for one in obstacles(board.shape_of(wanted), board.offer(node))]


def test_eight_go_together_where_eight_adapters_are_the_most_and_a_ninth_waits_for_a_slot() -> None:
    desk = Node(
        name="desk",
        host="desk",
        max_adapters=8,
        ram_mb=16 * 1024,
        gpus=(Gpu(uuid="GPU-1", type="rtx-4090", vram_mb=24 * 1024),),
    )
    board = NodeIndex([offer_of(desk)])
    placed = fill(board, adapter())
    assert [(one.devices, one.is_shared) for one in placed] == [(("GPU-1",), True)] * 8
    (device,) = board.offer("desk").devices
    assert (device.promised_bytes, [one.jobs for one in device.bases]) == (12 * GIB, [8])
    assert board.offer("desk").ram_held_bytes == 6 * GIB
    assert waits(board, "desk", adapter(wish=DevicePreference.REQUIRE)) == ["all 8 slots are taken (8 jobs)"]


def test_without_a_count_as_many_go_together_as_the_device_holds() -> None:
    board = NodeIndex([machine("desk", card(gib=24))])
    assert len(fill(board, adapter(wish=DevicePreference.REQUIRE, ram_bytes=0, base_ram_bytes=0))) == 16
    (why,) = waits(board, "desk", adapter(wish=DevicePreference.REQUIRE, ram_bytes=0, base_ram_bytes=0))
    assert why == "needs 1.0 GiB, 409.0 MiB left of 20.4 GiB usable (20.0 GiB promised to 16 jobs)"


def test_on_a_cpu_the_process_counts_once_and_each_has_to_fit_as_if_it_were_the_first() -> None:
    board = NodeIndex([machine("box", slots=32, is_slot_per_device=False, ram_bytes=8 * GIB, cores=8)])
    placed = fill(board, adapter(wish=DevicePreference.NEVER))
    assert len(placed) == 8
    assert board.offer("box").ram_held_bytes == 6 * GIB
    assert board.offer("box").processes == (ResidentProcess(base="qwen", size_bytes=2 * GIB, device="", jobs=8),)
    assert waits(board, "box", adapter(wish=DevicePreference.NEVER)) == ["needs 2.5 GiB RAM, 2.0 GiB left of 8.0 GiB"]


def test_whoever_leaves_last_takes_the_process_with_it() -> None:
    board = NodeIndex([machine("box", slots=8, is_slot_per_device=False, ram_bytes=64 * GIB)])
    placed = fill(board, adapter(wish=DevicePreference.NEVER))
    held = []
    for one in placed:
        board.release(one)
        held.append(board.offer("box").ram_held_bytes)
    assert held == [(2 * GIB + left * GIB // 2) if left else 0 for left in range(7, -1, -1)]
    assert board.offer("box").processes == ()


def test_each_device_has_a_process_of_its_own_and_so_has_each_base() -> None:
    board = NodeIndex([machine("desk", card("GPU-1"), card("GPU-2"), slots=9, is_slot_per_device=False)])
    for base in ("qwen", "llama"):
        shape = board.shape_of(adapter(base, wish=DevicePreference.REQUIRE))
        board.occupy("desk", shape, ("GPU-1",), is_shared=True)
        board.occupy("desk", shape, ("GPU-2",), is_shared=True)
        board.occupy("desk", shape, ("GPU-2",), is_shared=True)
    offer: NodeOffer = board.offer("desk")
    assert [(one.base, one.device, one.jobs) for one in offer.processes] == [
        ("llama", "GPU-1", 1),
        ("llama", "GPU-2", 2),
        ("qwen", "GPU-1", 1),
        ("qwen", "GPU-2", 2),
    ]
    assert offer.ram_held_bytes == 4 * 2 * GIB + 6 * GIB // 2
