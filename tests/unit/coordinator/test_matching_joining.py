"""What a joining machine offers is the smallest of what anybody says."""

from __future__ import annotations

import pytest

from stoker.coordinator.queue.machines import WorkerLimits, join, laid_over, limits_of
from stoker.core.device import GIB
from stoker.core.errors import BadInput
from stoker.core.machine import Node
from stoker.protocol.job_messages import HostPolicy
from tests.unit.coordinator.fleets import box, card


def test_a_machine_that_nobody_declared_offers_what_was_found_under_the_workers_name():
    offer = join("desk-2", box("desk", card("GPU-1"), card("GPU-2"))).offer
    assert (offer.node, offer.slots, offer.is_slot_per_device) == ("desk-2", 2, True)
    assert [device.closed for device in offer.devices] == ["", ""]


def test_what_was_available_when_it_joined_does_not_bind_for_good():
    assert join("desk", box("desk", ram_available_bytes=GIB)).offer.ram_bytes == 32 * GIB - 32 * GIB // 10


@pytest.mark.parametrize(
    ("gpus", "open_ones"),
    [(None, ["GPU-1", "GPU-2"]), (1, ["GPU-1"]), (0, []), (("GPU-2", "GPU-9"), ["GPU-2"]), (5, ["GPU-1", "GPU-2"])],
    ids=["nothing said", "one", "none", "by name", "more than there are"],
)
def test_a_worker_may_be_started_for_some_devices(gpus: int | tuple[str, ...] | None, open_ones: list[str]):
    offer = join("desk", box("desk", card("GPU-1"), card("GPU-2")), limits=WorkerLimits(gpus=gpus)).offer
    assert [device.uuid for device in offer.devices if not device.closed] == open_ones


@pytest.mark.parametrize(
    ("declared", "asked", "slots"),
    [(None, None, 1), (None, 4, 4), (3, None, 3), (3, 2, 2), (3, 8, 3)],
    ids=["a slot per device", "the worker's word", "the file's", "the worker takes less", "the file allows less"],
)
def test_slots_are_the_fewest_that_anybody_counted(declared: int | None, asked: int | None, slots: int):
    node = None if declared is None else Node(name="desk", host="desk", slots=declared)
    assert join("desk", box("desk"), node, limits=WorkerLimits(slots=asked)).offer.slots == slots


def test_a_policy_says_only_what_it_says():
    node = Node(name="desk", host="desk", deny_jobs=("lora",), priority=2)
    found = laid_over(node, HostPolicy(name="desk", priority=7), box("desk"))
    assert found is not None
    assert (found.priority, found.deny_jobs) == (7, ("lora",))
    assert laid_over(node, None, box("desk")) is node
    assert laid_over(None, HostPolicy(name="desk"), box("desk")) is None


def test_a_policy_over_an_undeclared_machine_leaves_it_its_devices():
    found = laid_over(None, HostPolicy(name="desk", allow_jobs=("gbt",)), box("desk", card("GPU-1")))
    assert found is not None
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-1"]


def test_a_workers_limits_are_read_and_other_keys_passed_over():
    said = {"cores": 2, "ram_bytes": GIB, "gpus": ["GPU-1"], "slots": 3, "colour": "red"}
    assert limits_of(said) == WorkerLimits(cores=2, ram_bytes=GIB, gpus=("GPU-1",), slots=3)
    assert limits_of({}) == WorkerLimits()
    assert limits_of({"gpus": 0}).gpus == 0


@pytest.mark.parametrize(
    "said",
    [
        {"cores": 0},
        {"cores": True},
        {"cores": "4"},
        {"ram_bytes": -1},
        {"ram_bytes": 1 << 80},
        {"gpus": [1]},
        {"slots": 0},
    ],
    ids=["no core", "a truth", "a text", "less than nothing", "more than there is", "no UUID", "no slot"],
)
def test_limits_that_are_none_are_refused(said: dict[str, object]):
    with pytest.raises(BadInput):
        limits_of(said)
