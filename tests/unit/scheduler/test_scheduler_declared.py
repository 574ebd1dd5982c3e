from __future__ import annotations

from pathlib import Path

import pytest

from stoker.config.cluster_file import read_cluster
from stoker.config.cluster_text import write_cluster
from stoker.model.devices import MIB, Backend, MemoryType
from stoker.model.nodes import Cluster, Gpu, Node
from stoker.model.resources import GIB
from stoker.scheduler.offers import agree, node_of, type_of
from stoker.scheduler.score import speed_of
from tests.unit.hardware.machines import NO, capability, device


def gpu(number: int = 0, vram_gib: float = 24.0, **more: MemoryType) -> Gpu:
    return Gpu(uuid=f"GPU-{number}", type="rtx-4090", vram_mb=int(vram_gib * 1024), **more)


def node(*gpus: Gpu, cpu_cores: int | None = None, ram_mb: int | None = None) -> Node:
    return Node(name="desk", host="localhost", gpus=gpus, cpu_cores=cpu_cores, ram_mb=ram_mb)


def test_a_machine_that_nobody_declared_offers_what_was_found() -> None:
    agreed = agree(None, capability(device(0), device(1, visible=NO)))
    offer = agreed.offer
    assert (offer.node, offer.cores, offer.ram_bytes, offer.slots) == ("desk", 8, 20 * GIB, 2)
    assert [one.uuid for one in offer.devices if not one.closed] == ["GPU-0"]
    assert offer.devices[0].free_bytes == 23 * GIB
    assert offer.devices[1].closed == "not visible: CUDA_VISIBLE_DEVICES is empty"
    assert agreed.drift == ()


@pytest.mark.parametrize(
    ("declared", "cores", "ram_bytes", "drift"),
    [
        pytest.param((None, None), 8, 20 * GIB, [], id="nothing declared"),
        pytest.param((4, 16 * 1024), 4, 16 * GIB, ["cores", "RAM"], id="declared smaller"),
        pytest.param((64, 64 * 1024), 8, 20 * GIB, ["cores", "RAM"], id="declared larger"),
        pytest.param((8, 31 * 1024), 8, 20 * GIB, [], id="within five percent"),
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
            f"rtx-4090 GPU-0: declared {declared_gib} GiB, found 24.0 GiB: the smaller counts"
        )


def test_what_is_declared_and_not_there_is_closed_and_told() -> None:
    agreed = agree(node(gpu(0), gpu(7)), capability(device(0)))
    assert [one.closed for one in agreed.offer.devices] == ["", "declared, and not found on the machine"]
    assert [one.what for one in agreed.drift] == ["GPU-7"]


def test_what_is_there_and_not_declared_is_given_to_nobody_and_told() -> None:
    agreed = agree(node(), capability(device(0)))
    assert agreed.offer.devices == ()
    assert [one.message for one in agreed.drift] == [
        "Card 0 GPU-0: found on the machine, and not declared: no job gets it"
    ]


def test_unified_memory_counts_if_either_side_says_so() -> None:
    machine = capability(device(0, memory_type=MemoryType.UNIFIED))
    agreed = agree(node(gpu(0)), machine)
    assert agreed.offer.devices[0].memory_type is MemoryType.UNIFIED
    assert "unified, the more careful, counts" in agreed.drift[0].message
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
