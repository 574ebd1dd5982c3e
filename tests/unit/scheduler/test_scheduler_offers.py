"""Offers: of declared nodes, of declarations beside detections, and with what the ledger has reserved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.config.cluster_file import read_cluster, write_cluster
from stoker.core.device import GIB, MIB, Backend, MemoryType
from stoker.core.frozen import changed
from stoker.core.machine import Cluster, DevicePreference, Gpu, Node, Requirements, SchedulableJob
from stoker.devices.ledger.reservations import CandidateDevice, Reservation, ReservationShare
from stoker.devices.ledger.snapshot import DeviceHolder, DeviceState
from stoker.host.identity import mine
from stoker.scheduler.fit import choose, shape_of
from stoker.scheduler.offers import (
    NodeOffer,
    ResidentBase,
    Sharing,
    agree,
    backend_of,
    likeness,
    node_of,
    offer_of,
    type_of,
    with_holders,
)
from stoker.scheduler.score import speed_of
from tests.unit.devices.machines import NO, capability, device
from tests.unit.scheduler.fleets import BOX, DESKTOP, EDGE

AVAILABLE = 20 * GIB - 32 * GIB // 10
"""What a machine of 32 GiB, of which 20 GiB are free, admits: it keeps a tenth for itself."""


def test_more_adapters_than_one_mean_sharing_and_counted_slots() -> None:
    offer = offer_of(DESKTOP)
    assert (offer.slots, offer.is_slot_per_device, offer.devices[0].sharing) == (3, False, Sharing.ALWAYS)
    assert offer.devices[0].shared_bytes == 20879 * MIB
    assert offer.devices[0].whole_bytes == 24564 * MIB


def test_otherwise_there_is_a_slot_for_each_device_and_sharing_for_who_asks() -> None:
    offer = offer_of(EDGE)
    assert (offer.slots, offer.is_slot_per_device, offer.devices[0].sharing) == (1, True, Sharing.ASKED)
    assert offer.devices[0].whole_bytes == 4915 * MIB
    assert offer_of(BOX).ram_bytes == 58 * GIB


@pytest.mark.parametrize(
    ("says", "sharing"), [(True, Sharing.ALWAYS), (False, Sharing.NEVER), (None, Sharing.ASKED)], ids=str
)
def test_what_the_owner_says_about_sharing_counts(says: bool | None, sharing: Sharing) -> None:
    node = changed(EDGE, shares_devices=says)
    assert offer_of(node).devices[0].sharing is sharing


def test_a_measured_speed_stands_for_that_of_the_type_and_tells_machines_apart() -> None:
    measured = changed(EDGE, gpus=tuple(changed(gpu, speed=0.09) for gpu in EDGE.gpus))
    assert (offer_of(EDGE).devices[0].speed, offer_of(measured).devices[0].speed) == (speed_of("jetson-orin"), 0.09)
    assert likeness(offer_of(EDGE)) != likeness(offer_of(measured))
    shape = shape_of(SchedulableJob(name="a", requirements=Requirements(wish=DevicePreference.REQUIRE, ram_bytes=0)))
    placed = [choose(shape, offer_of(one)) for one in (EDGE, measured)]
    assert [one.key.score for one in placed if one is not None] == pytest.approx([0.12, 0.18])


def test_declared_slots_are_counted() -> None:
    offer = offer_of(changed(EDGE, slots=4))
    assert (offer.slots, offer.is_slot_per_device) == (4, False)
    assert offer_of(Node(name="a", host="a")).slots == 1


@pytest.mark.parametrize(
    ("type_name", "backend"),
    [
        ("rtx-4090", Backend.CUDA),
        ("AMD Instinct MI300X", Backend.ROCM),
        ("mi250x", Backend.ROCM),
        ("apple-m2", Backend.METAL),
        ("intel-arc", Backend.ONEAPI),
    ],
    ids=str,
)
def test_a_declared_type_says_what_a_device_is_spoken_to_through(type_name: str, backend: Backend) -> None:
    assert backend_of(type_name) is backend


def gpu(number: int = 0, vram_gib: float = 24.0, **more: Any) -> Gpu:
    return Gpu(uuid=f"GPU-{number}", type="rtx-4090", vram_mb=int(vram_gib * 1024), **more)


def node(*gpus: Gpu, cpu_cores: int | None = None, ram_mb: int | None = None) -> Node:
    return Node(name="desk", host="localhost", gpus=gpus, cpu_cores=cpu_cores, ram_mb=ram_mb)


def test_a_machine_that_nobody_declared_offers_what_was_found() -> None:
    agreed = agree(None, capability(device(0), device(1, visible=NO)))
    offer = agreed.offer
    assert (offer.node, offer.cores, offer.ram_bytes, offer.slots) == ("desk", 8, AVAILABLE, 2)
    assert [one.uuid for one in offer.devices if not one.closed] == ["GPU-0"]
    assert offer.devices[0].free_bytes == 23 * GIB
    assert offer.devices[1].closed == "not visible: CUDA_VISIBLE_DEVICES is empty"
    assert agreed.drift == ()


@pytest.mark.parametrize(
    ("declared", "cores", "ram_bytes", "drift"),
    [
        pytest.param((None, None), 8, AVAILABLE, [], id="nothing declared"),
        pytest.param((4, 16 * 1024), 4, 16 * GIB, ["cores", "RAM"], id="declared smaller"),
        pytest.param((64, 64 * 1024), 8, AVAILABLE, ["cores", "RAM"], id="declared larger"),
        pytest.param((8, 31 * 1024), 8, AVAILABLE, [], id="within five percent"),
    ],
)
def test_the_smaller_of_declared_and_found_counts(
    declared: tuple[int | None, int | None], cores: int, ram_bytes: int, drift: list[str]
) -> None:
    agreed = agree(node(cpu_cores=declared[0], ram_mb=declared[1]), capability())
    assert (agreed.offer.cores, agreed.offer.ram_bytes) == (cores, ram_bytes)
    assert [one.what for one in agreed.drift] == drift


def test_devices_are_matched_by_uuid_whatever_their_order() -> None:
    machine = capability(device(1, total_gib=48, free_gib=40), device(0, total_gib=24, free_gib=20))
    agreed = agree(node(gpu(0), gpu(1, 48)), machine)
    assert [(one.uuid, one.total_bytes // GIB, (one.free_bytes or 0) // GIB) for one in agreed.offer.devices] == [
        ("GPU-0", 24, 20),
        ("GPU-1", 48, 40),
    ]
    assert agreed.drift == ()


@pytest.mark.parametrize(
    ("declared_gib", "counts_gib", "has_drift"),
    [(24.0, 24.0, False), (23.0, 23.0, False), (25.0, 24.0, False), (16.0, 16.0, True), (48.0, 24.0, True)],
)
def test_the_smaller_size_of_a_device_counts_and_a_large_difference_is_told(
    declared_gib: float, counts_gib: float, has_drift: bool
) -> None:
    agreed = agree(node(gpu(0, declared_gib)), capability(device(0, total_gib=24, free_gib=24)))
    found = agreed.offer.devices[0]
    assert found.total_bytes == int(counts_gib * GIB)
    assert found.free_bytes == min(24 * GIB, found.total_bytes)
    assert [one.what for one in agreed.drift] == (["GPU-0"] if has_drift else [])
    if has_drift:
        assert agreed.drift[0].message == (
            f"rtx-4090 GPU-0: declared {declared_gib} GiB, found 24.0 GiB: the smaller is used"
        )


def test_what_is_declared_and_not_there_is_closed_and_told() -> None:
    agreed = agree(node(gpu(0), gpu(7)), capability(device(0)))
    assert [one.closed for one in agreed.offer.devices] == ["", "declared but not detected"]
    assert [one.what for one in agreed.drift] == ["GPU-7"]


def test_what_is_there_and_not_declared_is_given_to_nobody_and_told() -> None:
    agreed = agree(node(), capability(device(0)))
    assert agreed.offer.devices == ()
    assert [one.message for one in agreed.drift] == ["Card 0 GPU-0: detected but not declared: not used"]


def test_unified_memory_counts_if_either_side_says_so() -> None:
    machine = capability(device(0, memory_type=MemoryType.UNIFIED))
    agreed = agree(node(gpu(0)), machine)
    assert agreed.offer.devices[0].memory_type is MemoryType.UNIFIED
    assert "unified is used" in agreed.drift[0].message
    assert agree(node(gpu(0, memory_type=MemoryType.UNIFIED)), machine).drift == ()


def test_a_file_of_what_was_found_reads_back_and_has_no_drift(tmp_path: Path) -> None:
    machine = capability(
        device(0, name="NVIDIA GeForce RTX 4090"), device(1, name="AMD Instinct MI300X", backend=Backend.ROCM)
    )
    declared = node_of(machine)
    path = tmp_path / "cluster.yaml"
    path.write_text(write_cluster(Cluster(nodes=(declared,))))
    read = read_cluster(path.name, str(path)).nodes[0]
    assert read == declared
    agreed = agree(read, machine)
    assert agreed.drift == ()
    assert [one.backend for one in agreed.offer.devices] == [Backend.CUDA, Backend.ROCM]


def test_a_device_of_unknown_size_can_not_be_declared() -> None:
    assert node_of(capability(device(0, total_gib=None))).gpus == ()
    assert node_of(capability(device(0, total_gib=24))).gpus[0].total_bytes == 24 * 1024 * MIB


@pytest.mark.parametrize(
    ("name", "type_name"),
    [
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA H200", "h200"),
        ("Tesla V100-SXM2-16GB", "tesla-v100-sxm2-16gb"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "a100-sxm4-40gb-mig-1g.5gb"),
        ("AMD Radeon RX 7900 XTX", "amd-radeon-rx-7900-xtx"),
        ("NVIDIA", "nvidia"),
        ("", "unknown"),
        ("\u2603", "unknown"),
    ],
)
def test_a_type_is_the_makers_name_in_small_letters(name: str, type_name: str) -> None:
    assert type_of(name) == type_name
    assert speed_of(type_name) == speed_of(name)


@pytest.mark.parametrize(
    ("hostname", "name"), [("lab 1", "lab-1"), ("-x-", "x"), ("ü", "machine"), ("a" * 300, "a" * 100)]
)
def test_a_host_whose_name_is_none_for_a_file_gets_one(hostname: str, name: str) -> None:
    assert node_of(capability(hostname=hostname)).name == name


def holder(number: int, *, gib: int = 0, base: str = "", whole: bool = False) -> DeviceHolder:
    share = ReservationShare(
        uuid="GPU-0",
        promised_bytes=gib * GIB,
        total_bytes=24 * GIB,
        is_exclusive=whole,
    )
    entry = Reservation(
        id=f"{number}",
        job=f"job {number}",
        owner=mine(),
        user=0,
        shares=(share,),
        base=base,
        base_bytes=2 * GIB if base else 0,
        since_s=0.0,
        since_wall_s=0.0,
        lease_s=90.0,
        lease_until_s=90.0,
    )
    return DeviceHolder(entry=entry, share=share, held_s=1.0, is_late=False)


def state(*holders: DeviceHolder, reserved_gib: int, free_gib: int | None, taken_gib: int = 0) -> DeviceState:
    return DeviceState(
        device=CandidateDevice(uuid="GPU-0", total_bytes=24 * GIB),
        holders=holders,
        reserved_bytes=reserved_gib * GIB,
        free_bytes=None if free_gib is None else free_gib * GIB,
        taken_bytes=taken_gib * GIB,
    )


def offered() -> NodeOffer:
    return agree(None, capability(device(0))).offer


def fits(offer: NodeOffer, gib: int, *, shares: bool = False) -> bool:
    wants = Requirements(wish=DevicePreference.REQUIRE, vram_bytes=gib * GIB, may_share=shares, ram_bytes=0)
    return choose(shape_of(SchedulableJob(name="new", requirements=wants)), offer) is not None


def test_a_device_that_nobody_holds_is_offered_as_before() -> None:
    offer = with_holders(offered(), [state(reserved_gib=0, free_gib=23)])
    assert offer == offered()
    assert fits(offer, 23)


def test_a_device_that_somebody_has_to_himself_takes_nobody() -> None:
    offer = with_holders(offered(), [state(holder(1, whole=True), reserved_gib=24, free_gib=3)])
    assert offer.devices[0].is_held
    assert not fits(offer, 1)
    assert not fits(offer, 1, shares=True)


def test_what_is_promised_to_those_who_share_is_not_promised_again() -> None:
    one, other = holder(1, gib=6, base="b"), holder(2, gib=4, base="b")
    offer = with_holders(offered(), [state(one, other, reserved_gib=8, free_gib=16, taken_gib=5)])
    shown = offer.devices[0]
    assert (shown.jobs, shown.promised_bytes, offer.jobs) == (2, 8 * GIB, 2)
    assert shown.bases == (ResidentBase(base="b", size_bytes=2 * GIB, jobs=2),)
    # 16 GiB are free, and 5 of what is in use are ours: 21 that others leave, 20.4 usable, 8 of them promised.
    assert shown.free_bytes == 21 * GIB
    assert fits(offer, 12, shares=True)
    assert not fits(offer, 13, shares=True)
    assert not fits(offer, 1)


def test_a_device_that_the_ledger_does_not_know_stays_as_it_was() -> None:
    other = DeviceState(
        device=CandidateDevice(uuid="GPU-9", total_bytes=GIB), holders=(), reserved_bytes=0, free_bytes=None
    )
    assert with_holders(offered(), [other]).devices == offered().devices
