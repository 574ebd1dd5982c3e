"""What fits on one device, as plain numbers."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.core.device import GIB, MIB, MemoryType
from stoker.devices.admission import DeviceBlock, added_bytes, alone_bytes, block_on, shared_bytes, shares

EMPTY: dict[str, Any] = {"most_bytes": 20 * GIB, "promised_bytes": 0, "jobs": 0, "is_held": False, "slots": None}


@pytest.mark.parametrize(
    ("vram_gib", "is_shared", "state", "block"),
    [
        (20, False, {}, None),
        (20, True, {}, None),
        (21, False, {}, DeviceBlock.TOO_SMALL),
        (21, True, {"jobs": 9, "is_held": True}, DeviceBlock.TOO_SMALL),
        (1, False, {"jobs": 1, "is_held": True}, DeviceBlock.HELD),
        (1, True, {"jobs": 1, "is_held": True}, DeviceBlock.HELD),
        (0, False, {"jobs": 1}, DeviceBlock.IN_USE),
        (1, True, {"jobs": 2, "slots": 2, "promised_bytes": 99 * GIB}, DeviceBlock.DEVICE_SLOTS),
        (1, True, {"jobs": 2, "slots": 3, "promised_bytes": 19 * GIB}, None),
        (1, True, {"jobs": 2, "promised_bytes": 19 * GIB + 1}, DeviceBlock.ROOM),
        (0, False, {"most_bytes": 0}, None),
    ],
)
def test_the_first_thing_that_blocks_a_job_is_named(
    vram_gib: int, is_shared: bool, state: dict[str, Any], block: DeviceBlock | None
) -> None:
    size = vram_gib * GIB
    assert block_on(size, size, is_shared=is_shared, **{**EMPTY, **state}) is block


def test_a_job_shares_if_it_may_and_says_how_much_and_that_may_be_shared() -> None:
    assert shares(20, 20, is_allowed=True)
    assert not shares(20, 20, is_allowed=False)
    assert not shares(21, 20, is_allowed=True)
    assert not shares(0, 20, is_allowed=True)


@pytest.mark.parametrize(
    ("memory_type", "free_mib", "alone_mib", "shared_mib"),
    [
        (MemoryType.DISCRETE, None, 24564, 20879),
        (MemoryType.DISCRETE, 99999, 24564, 20879),
        (MemoryType.DISCRETE, 22000, 22000, 20879),
        (MemoryType.DISCRETE, 9000, 9000, 9000),
        (MemoryType.UNIFIED, None, 14738, 14738),
        (MemoryType.UNIFIED, 20000, 20000, 14738),
        (MemoryType.UNIFIED, 0, 0, 0),
    ],
)
def test_a_device_has_what_was_measured_and_at_most_a_part_of_it_to_share(
    memory_type: MemoryType, free_mib: int | None, alone_mib: int, shared_mib: int
) -> None:
    device = 24564 * MIB, memory_type, None if free_mib is None else free_mib * MIB
    assert (alone_bytes(*device), shared_bytes(*device)) == (alone_mib * MIB, shared_mib * MIB)


def test_a_base_that_is_there_is_not_added_again() -> None:
    assert added_bytes(9, 7, 0) == 9
    assert added_bytes(9, 7, 7) == 2
    assert added_bytes(9, 7, 5) == 4, "it is larger than was said before"
    assert added_bytes(9, 7, 8) == 2
    assert added_bytes(9, 12, 12) == 0, "a job never adds less than nothing"
