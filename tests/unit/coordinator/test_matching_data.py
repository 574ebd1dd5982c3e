"""How a job's data stands on machines, for whoever explains."""

from __future__ import annotations

from stoker.coordinator.explained_case import data_row, first_copies
from stoker.core.job import InputKind, JobInput
from stoker.protocol.lease_messages import MachineInventory

TREE = JobInput(
    where="env:DATA", kind=InputKind.TREE, tree="a" * 64, name="corpus", size_bytes=12 << 30, files=3, host="desk"
)  # fmt: skip


def test_who_has_it_copies_nothing_and_who_has_not_says_how_much_and_how_long():
    assert data_row((), "lab", MachineInventory()) == {}
    assert data_row((TREE,), "lab", None) == {}
    at_home = data_row((TREE,), "desk", MachineInventory())
    held = data_row((TREE,), "lab", MachineInventory(trees=("a" * 64,)))
    assert at_home["missing_bytes"] == held["missing_bytes"] == 0
    assert held["text"] == "has its data, 12.0 GiB"
    assert first_copies(held) == first_copies({}) == ""
    lacks = data_row((TREE,), "lab", MachineInventory())
    assert first_copies(lacks) == ", and copies 12.0 GiB of data first"
    measured = data_row((TREE,), "lab", MachineInventory(brings_bytes_per_s=(12 << 30) // 180))
    assert first_copies(measured) == ", and copies 12.0 GiB of data (about 3m00s) first"
