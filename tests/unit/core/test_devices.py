"""Devices, nodes and capabilities: sizes, shares and what stays the same from minute to minute."""

from __future__ import annotations

import pytest

from stoker.core import jsontext
from stoker.core.capability import Capability, MachineInterpreter
from stoker.core.device import MIB, Backend, Device, MemoryType, TriState, TriStateAnswer, usable_bytes
from stoker.core.frozen import changed
from stoker.core.machine import Cluster, Gpu, Node

YES, NO = TriStateAnswer(verdict=TriState.YES), TriStateAnswer(verdict=TriState.NO, why="hidden")


def device(uuid: str = "GPU-1", **fields: object) -> Device:
    given: dict = {"installed": YES, "visible": YES, "usable": YES, "total_bytes": 24564 * MIB, **fields}
    return Device(uuid=uuid, backend=Backend.CUDA, name="NVIDIA GeForce RTX 4090", **given)


@pytest.mark.parametrize(
    ("vram_mb", "memory_type", "usable_mb"),
    [
        (24564, MemoryType.DISCRETE, 20879),
        (8192, MemoryType.UNIFIED, 4915),
        (24000, MemoryType.DISCRETE, 20400),
        (1, MemoryType.DISCRETE, 0),
    ],
)
def test_the_usable_share_is_integer_arithmetic_in_whole_mib(vram_mb, memory_type, usable_mb):
    assert usable_bytes(vram_mb * MIB, memory_type) == usable_mb * MIB
    assert Gpu(uuid="a", type="b", vram_mb=vram_mb, memory_type=memory_type).usable_bytes == usable_mb * MIB


def test_a_part_of_a_mib_adds_nothing_to_the_usable_share():
    assert usable_bytes(24564 * MIB + MIB - 1, MemoryType.DISCRETE) == 20879 * MIB


def test_a_device_of_unknown_size_has_an_unknown_share():
    assert device(total_bytes=None).usable_bytes is None


def test_a_node_with_more_adapters_than_one_shares_its_devices_and_takes_that_many_jobs():
    card = Gpu(uuid="a", type="rtx-4090", vram_mb=24564)
    desk = Node(name="desk", host="desk", gpus=(card,), max_adapters=3)
    assert (desk.may_share, desk.most_jobs) == (True, 3)
    pair = Node(name="pair", host="pair", gpus=(card, changed(card, uuid="b")))
    assert (pair.may_share, pair.most_jobs) == (False, 2)
    assert changed(desk, shares_devices=False, slots=1).most_jobs == 1
    assert not changed(desk, shares_devices=False).may_share
    assert Node(name="cpu", host="cpu").most_jobs == 1


def test_adapter_slots_add_up_and_nodes_are_found_by_name():
    nodes = tuple(Node(name=name, host=name, max_adapters=most) for name, most in (("a", 3), ("b", 1), ("c", 1)))
    cluster = Cluster(nodes=nodes)
    assert cluster.adapter_slots == 5
    assert cluster.find("b") is nodes[1]
    assert cluster.find("d") is None


def test_devices_that_are_hidden_or_stopped_are_not_usable():
    machine = Capability(
        hostname="desk",
        os="linux",
        arch="x86_64",
        devices=(
            device("GPU-1", free_bytes=5 * MIB),
            device("GPU-2", free_bytes=7 * MIB),
            device("GPU-3", free_bytes=9 * MIB, visible=NO),
            device("GPU-4", free_bytes=11 * MIB, usable=NO),
        ),
    )
    assert [one.uuid for one in machine.usable_devices] == ["GPU-1", "GPU-2"]
    assert not changed(machine, devices=()).usable_devices


def test_free_memory_does_not_change_the_digest_and_hardware_does():
    machine = Capability(hostname="desk", os="linux", arch="x86_64", devices=(device(free_bytes=5),))
    busy = changed(machine, ram_available_bytes=7, devices=(device(free_bytes=1),))
    assert machine.digest == busy.digest
    assert machine.digest != changed(machine, devices=()).digest
    assert machine.digest != changed(machine, is_fake=True).digest


def test_a_capability_is_json_with_the_fields_of_the_first_fleet():
    machine = Capability(
        hostname="desk",
        os="linux",
        arch="x86_64",
        cpu_cores=8,
        ram_total_bytes=64 * 1024**3,
        devices=(device(free_bytes=12 * 1024**3),),
        interpreters=(
            MachineInterpreter(path="a", version="3.11.2"),
            MachineInterpreter(path="b", version="3.12.1", torch="2.13.0"),
        ),
    )
    told = jsontext.loads(jsontext.dumps(machine.to_dict()))
    assert told["ram_total_gib"] == 64.0
    assert told["cuda_available"] is True
    assert told["cuda_devices"] == [
        {"name": "NVIDIA GeForce RTX 4090", "vram_total_gib": 24564 / 1024, "vram_free_gib": 12.0}
    ]
    assert told["torch_version"] == "2.13.0"
    assert told["training_commit"] is None
    assert told["devices"][0]["usable"] == {"verdict": "yes", "why": ""}
