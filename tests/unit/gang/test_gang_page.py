from __future__ import annotations

import random
import struct
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stoker.gang.mailbox import (
    HANDLE_BYTES,
    MOST_BUFFERS,
    PAGE_BYTES,
    TEXT_BYTES,
    TYPE_BYTES,
    Phase,
    RankPage,
    RankState,
    Slot,
    TornPage,
    decode,
    encode,
    state_at,
    whole,
)

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
SLOTS = st.lists(st.builds(Slot, offset=U64, nbytes=U64), max_size=MOST_BUFFERS).map(tuple)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
PAGES = st.builds(
    RankPage,
    state=st.sampled_from(RankState),
    phase=st.sampled_from(Phase),
    sequence=U64,
    rank=U32,
    nranks=U32,
    device_id=st.integers(-(2**31), 2**31 - 1),
    pid=U64,
    start_ticks=U64,
    stamps_ns=st.tuples(*[U64] * len(Phase)),
    device_ctx=U64,
    window_base=U64,
    requested_bytes=U64,
    actual_bytes=U64,
    handle_kind=U32,
    handle=st.binary(max_size=HANDLE_BYTES),
    slots=SLOTS,
    failed_ns=U64,
    error_type=TEXT.filter(lambda text: len(text.encode()) <= TYPE_BYTES),
    error_text=TEXT.filter(lambda text: len(text.encode()) <= TEXT_BYTES),
    is_cut=st.booleans(),
    errno=st.integers(-(2**31), 2**31 - 1),
    traceback_bytes=U32,
)


def test_a_page_of_zeros_is_idle():
    assert decode(bytes(PAGE_BYTES)) == RankPage()


@given(PAGES)
def test_what_is_written_is_what_is_read(page):
    data = whole(page)
    assert len(data) == PAGE_BYTES
    assert decode(data) == page


@given(PAGES, PAGES)
def test_a_page_whose_state_is_not_there_yet_is_torn_or_says_the_same_state(before, after):
    payload, _ = encode(after)
    at = state_at()
    mixed = payload[:at] + whole(before)[at : at + 4] + payload[at + 4 :]
    seen = decode(mixed)
    assert seen == after if before.state is after.state else isinstance(seen, TornPage)


@given(PAGES, st.data())
def test_a_page_that_was_cut_off_in_the_middle_of_writing_is_never_believed(page, data):
    old, new = whole(RankPage(state=RankState.STARTED, sequence=1)), whole(page)
    border = data.draw(st.integers(1, PAGE_BYTES - 1))
    mixed = new[:border] + old[border:]
    assert decode(mixed) in (page, decode(old)) or isinstance(decode(mixed), TornPage)


@given(PAGES, st.integers(0, PAGE_BYTES * 8 - 1))
def test_one_bit_that_flips_is_noticed(page, bit):
    data = bytearray(whole(page))
    data[bit // 8] ^= 1 << (bit % 8)
    assert isinstance(decode(bytes(data)), TornPage)


@given(st.integers(0, 2**32), st.sampled_from([0, 1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1]), st.booleans())
def test_no_bytes_make_the_reader_raise(seed, size, has_our_head):
    data = random.Random(seed).randbytes(size)
    data = whole(RankPage())[:16] + data[16:] if has_our_head else data
    assert isinstance(decode(data), TornPage)


@given(st.lists(st.tuples(st.integers(16, PAGE_BYTES - 1), st.binary(min_size=1, max_size=8)), max_size=40))
@example([(16 + 8, b"\xff\xff\xff\xff")])
def test_nonsense_under_a_valid_checksum_is_clamped(edits):
    """As a rank with a wild pointer, or one that means harm, could write it."""
    data = bytearray(whole(RankPage(state=RankState.SUCCESS, slots=(Slot(offset=0, nbytes=1),), error_text="x")))
    for at, piece in edits:
        data[at : at + len(piece)] = piece
    data = data[:PAGE_BYTES]
    state = int.from_bytes(data[8:12], "little")
    struct.pack_into("<I", data, 12, zlib.crc32(data[16:], state))
    page = decode(bytes(data))
    if isinstance(page, RankPage):
        assert len(page.slots) <= MOST_BUFFERS
        assert len(page.handle) <= HANDLE_BYTES
        # Bytes that are no UTF-8 become one sign each.
        assert len(page.error_text) <= TEXT_BYTES
        assert len(page.error_type) <= TYPE_BYTES
    else:
        assert "phase" in page.why


@pytest.mark.parametrize(("size", "sign"), [(1, "a"), (2, "ü"), (3, "€"), (4, "🔥")])
@pytest.mark.parametrize("lead", range(4))
def test_long_text_is_cut_on_the_border_of_a_character(size, sign, lead):
    page = decode(whole(RankPage(error_text="x" * lead + sign * (TEXT_BYTES + 1))))
    assert isinstance(page, RankPage)
    assert page.error_text == "x" * lead + sign * ((TEXT_BYTES - lead) // size)
    assert page.is_cut


def test_text_that_fits_is_not_said_to_be_cut():
    page = decode(whole(RankPage(error_text="x" * TEXT_BYTES, error_type="t" * TYPE_BYTES)))
    assert page == RankPage(error_text="x" * TEXT_BYTES, error_type="t" * TYPE_BYTES)


def test_text_that_is_no_unicode_is_told_as_far_as_it_goes():
    page = decode(whole(RankPage(error_text="a\udcffb")))
    assert isinstance(page, RankPage)
    assert page.error_text == "a\\udcffb"


@pytest.mark.parametrize(
    "page",
    [
        RankPage(slots=(Slot(offset=0, nbytes=1),) * (MOST_BUFFERS + 1)),
        RankPage(handle=b"x" * (HANDLE_BYTES + 1)),
    ],
)
def test_what_has_no_room_is_refused_when_it_is_written(page):
    with pytest.raises(ValueError, match="no room"):
        encode(page)


def test_a_page_of_another_version_is_told_apart():
    data = bytearray(whole(RankPage(state=RankState.STARTED)))
    data[4] = 9
    seen = decode(bytes(data))
    assert isinstance(seen, TornPage)
    assert "version 9" in seen.why
