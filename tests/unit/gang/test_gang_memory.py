from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from stoker.gang import mailbox
from stoker.gang.mailbox import read_at, unnamed_memory, write_at


@pytest.fixture
def fd() -> Iterator[int]:
    made = unnamed_memory("x", 16)
    yield made
    os.close(made)


def test_memory_that_may_grow_does():
    fd = unnamed_memory("x", 0, may_grow=True)
    try:
        assert os.pwrite(fd, b"abc", 10) == 3
        assert os.fstat(fd).st_size == 13
    finally:
        os.close(fd)


@pytest.mark.parametrize("piece_bytes", [1 << 30, 3])
def test_what_is_written_is_read_whole_whatever_one_call_moves(monkeypatch, fd, piece_bytes):
    monkeypatch.setattr(mailbox, "_PIECE_BYTES", piece_bytes)
    write_at(fd, memoryview(b"0123456789"), 4)
    assert read_at(fd, 12, 3) == b"\0" + b"0123456789" + b"\0"


def test_memory_that_ends_too_soon_is_told(fd):
    with pytest.raises(EOFError, match="ends after 16 bytes"):
        read_at(fd, 10, 10)
