"""A declared node as placement sees it."""

from __future__ import annotations

import pytest

from stoker.model.devices import MIB, Backend
from stoker.model.frozen import changed
from stoker.model.nodes import Node
from stoker.scheduler.offers import Sharing, backend_of, offer_of
from tests.unit.scheduler.fleets import BOX, DESKTOP, EDGE


def test_more_adapters_than_one_mean_sharing_and_counted_slots() -> None:
    offer = offer_of(DESKTOP)
    assert (offer.slots, offer.is_slot_per_device, offer.devices[0].sharing) == (3, False, Sharing.ALWAYS)
    assert offer.devices[0].shared_bytes == 20879 * MIB
    assert offer.devices[0].whole_bytes == 24564 * MIB


def test_otherwise_there_is_a_slot_for_each_device_and_sharing_for_who_asks() -> None:
    offer = offer_of(EDGE)
    assert (offer.slots, offer.is_slot_per_device, offer.devices[0].sharing) == (1, True, Sharing.ASKED)
    assert offer.devices[0].whole_bytes == 4915 * MIB
    assert offer_of(BOX).ram_bytes == 65536 * MIB


@pytest.mark.parametrize(
    ("says", "sharing"), [(True, Sharing.ALWAYS), (False, Sharing.NEVER), (None, Sharing.ASKED)], ids=str
)
def test_what_the_owner_says_about_sharing_counts(says: bool | None, sharing: Sharing) -> None:
    node = changed(EDGE, shares_devices=says)
    assert offer_of(node).devices[0].sharing is sharing


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
