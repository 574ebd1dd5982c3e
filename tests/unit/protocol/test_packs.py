"""Packs of small files: parted by size, taken apart with every byte checked."""

from __future__ import annotations

import pytest

from stoker.core.digests import digest_bytes
from stoker.core.errors import BadInput, HashMismatch
from stoker.protocol.tree_messages import (
    HEAD_BYTES,
    MOST_DIGESTS,
    PACK_BYTES,
    PACKED_BYTES,
    frame,
    head,
    in_packs,
    read_frames,
    read_pack,
)

FILES = [b"", b"one", b"two" * 1000]


def packed(*files: bytes) -> bytes:
    return b"".join(frame(digest_bytes(data), data) for data in files)


def test_a_pack_gives_back_its_files():
    assert list(read_pack(packed(*FILES))) == [(digest_bytes(data), data) for data in FILES]
    assert list(read_pack(b"")) == []


@pytest.mark.parametrize("cut", [1, HEAD_BYTES - 1, HEAD_BYTES + 1, 2 * HEAD_BYTES, 2 * HEAD_BYTES + 2])
def test_a_torn_pack_is_refused(cut):
    with pytest.raises(BadInput, match="in the middle"):
        list(read_pack(packed(b"", b"one")[:cut]))


def test_wrong_bytes_are_refused():
    torn = bytearray(packed(b"one"))
    torn[-1] ^= 1
    with pytest.raises(HashMismatch):
        list(read_pack(bytes(torn)))


def test_a_size_beyond_the_limit_is_refused_before_its_bytes_are_waited_for():
    with pytest.raises(BadInput, match="the limit is"):
        list(read_pack(head("0" * 64, PACKED_BYTES + 1)))
    with pytest.raises(BadInput, match="the limit is"):
        list(read_pack(b"\0" * 32 + b"\xff" * 8))


def test_what_was_not_asked_for_or_comes_twice_is_refused():
    one = digest_bytes(b"one")
    source = iter([packed(b"one", b"one")])
    with pytest.raises(BadInput, match="which was not requested"):
        list(read_frames(Reader(next(source)).read, requested=frozenset({one})))
    with pytest.raises(BadInput, match="which was not requested"):
        list(read_frames(Reader(packed(b"two")).read, requested=frozenset({one})))


class Reader:
    """Gives bytes one at a time, as a slow line does."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, _count: int) -> bytes:
        piece, self.data = self.data[:1], self.data[1:]
        return piece


def test_frames_that_trickle_in_are_the_same():
    pack = packed(*FILES)
    assert list(read_frames(Reader(pack).read)) == list(read_pack(pack))


def test_files_are_parted_into_packs_within_the_limit():
    sizes = [PACKED_BYTES] * 20 + [1] * 5
    files = [(f"{number:064x}", size) for number, size in enumerate(sizes)]
    packs = list(in_packs(files))
    assert [name for pack in packs for name in pack] == [name for name, _ in files]
    by_name = dict(files)
    assert all(sum(HEAD_BYTES + by_name[name] for name in pack) <= PACK_BYTES for pack in packs)
    assert len(packs) == 3
    assert [len(pack) for pack in in_packs([(f"{n:064x}", 0) for n in range(MOST_DIGESTS + 1)])] == [MOST_DIGESTS, 1]
