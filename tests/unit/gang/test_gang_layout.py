from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stoker.gang.rank_config import ALIGNMENT_BYTES, aligned, lay_out
from stoker.gang.windows import regions


@given(st.lists(st.integers(1, 10**12), max_size=128))
def test_buffers_lie_in_order_aligned_and_never_over_each_other(sizes):
    layout = lay_out(sizes)
    end = 0
    for size, slot in zip(sizes, layout.slots, strict=True):
        assert slot.nbytes == size
        assert slot.offset % ALIGNMENT_BYTES == 0
        assert 0 <= slot.offset - end < ALIGNMENT_BYTES
        end = slot.offset + slot.nbytes
    assert layout.needed_bytes == end


def test_one_buffer_needs_no_more_than_itself():
    assert lay_out([1000]).needed_bytes == 1000
    assert lay_out([]).needed_bytes == 0


@given(st.integers(0, 10**15), st.sampled_from([1, 256, 4096, 2**21]))
def test_a_border_is_the_next_one(size, border):
    assert aligned(size, border) % border == 0
    assert 0 <= aligned(size, border) - size < border


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_regions_of_ranks_touch_and_do_not_overlap(sizes):
    end = 0
    for size, (offset, room) in zip(sizes, regions(sizes), strict=True):
        assert offset == end
        assert room >= size
        end = offset + room
