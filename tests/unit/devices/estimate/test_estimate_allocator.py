"""The allocator that holds nothing: torch's rules about sizes, splitting, joining and growing."""

from __future__ import annotations

import pytest

from stoker.devices.estimate.tape import MIB, CachingAllocator


@pytest.mark.parametrize(
    ("wanted", "reserved"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (751 * MIB, 752 * MIB),
    ],
)
def test_segments_have_the_sizes_that_torch_asks_for(wanted, reserved):
    allocator = CachingAllocator()
    allocator.take(wanted)
    assert allocator.reserved_bytes == reserved


def test_small_blocks_share_a_segment():
    allocator = CachingAllocator()
    for _ in range(4):
        allocator.take(MIB // 2)
    assert allocator.reserved_bytes == 2 * MIB
    allocator.take(1)
    assert allocator.reserved_bytes == 4 * MIB


def test_the_smallest_block_that_is_large_enough_is_taken():
    allocator = CachingAllocator()
    large, small = allocator.take(40 * MIB), allocator.take(30 * MIB)
    allocator.give(large)
    allocator.give(small)
    assert allocator.take(28 * MIB).address == small.address


def test_a_rest_that_is_worth_it_is_split_off():
    allocator = CachingAllocator()
    allocator.give(allocator.take(40 * MIB))
    assert allocator.take(30 * MIB).size_bytes == 30 * MIB
    allocator.take(10 * MIB)
    assert allocator.reserved_bytes == 40 * MIB


def test_a_rest_that_is_not_worth_it_stays():
    allocator = CachingAllocator()
    allocator.give(allocator.take(40 * MIB))
    assert allocator.take(39 * MIB).size_bytes == 40 * MIB


def test_free_neighbours_are_joined_in_whatever_order_they_come_back():
    for order in ([0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 0, 2]):
        allocator = CachingAllocator()
        allocator.give(allocator.take(60 * MIB))
        blocks = [allocator.take(20 * MIB) for _ in range(3)]
        for place in order:
            allocator.give(blocks[place])
        allocator.take(60 * MIB)
        assert allocator.reserved_bytes == 60 * MIB


def test_blocks_of_two_segments_are_never_joined():
    allocator = CachingAllocator()
    blocks = [allocator.take(20 * MIB) for _ in range(2)]
    for block in blocks:
        allocator.give(block)
    allocator.take(40 * MIB)
    assert allocator.reserved_bytes == 80 * MIB


def test_a_growing_segment_goes_on_where_its_last_free_stretch_begins():
    allocator = CachingAllocator(is_expandable=True)
    first, second = allocator.take(20 * MIB), allocator.take(20 * MIB)
    allocator.give(second)
    allocator.take(60 * MIB)
    assert allocator.reserved_bytes == 80 * MIB
    allocator.give(first)
    allocator.take(20 * MIB)
    assert allocator.reserved_bytes == 80 * MIB


def test_what_can_still_grow_is_taken_last():
    allocator = CachingAllocator(is_expandable=True)
    blocks = [allocator.take(size * MIB) for size in (60, 20, 40)]
    allocator.give(blocks[0])
    allocator.give(blocks[2])
    assert allocator.take(40 * MIB).address == blocks[0].address
