"""Several files in one request, and what became of each."""

from __future__ import annotations

import pytest

from stoker.core.errors import BadInput, Conflict, LocalFile, StokerError
from stoker.protocol.mirror_pieces import MOST_PIECES, MirrorPiece, piece_outcome, read_pieces, results_of, write_pieces


def test_pieces_come_back_as_they_were():
    pieces = [MirrorPiece("logs/a.log", 7, b"abc"), MirrorPiece("b", 0, b""), MirrorPiece("c", 2**40, b"d")]
    assert [(one.path, one.offset, bytes(one.data)) for one in read_pieces(write_pieces(pieces))] == [
        ("logs/a.log", 7, b"abc"),
        ("b", 0, b""),
        ("c", 2**40, b"d"),
    ]


def _body(listed: bytes, data: bytes = b"") -> bytes:
    return len(listed).to_bytes(4, "big") + listed + data


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0\0\xff[]",
        _body(b"[]"),
        _body(b"nonsense"),
        _body(b'{"a":1}'),
        _body(b'[["a",0]]'),
        _body(b"[[1,0,0]]"),
        _body(b'[["a",-1,0]]'),
        _body(b'[["a",0,true]]', b"x"),
        _body(b'[["a",0,1.0]]', b"x"),
        _body(b'[["a",0,2]]', b"x"),
        _body(b'[["a",0,9223372036854775807]]', b"x"),
        _body(b'[["a",0,1]]', b"xy"),
        _body(b'[["a",0,1],["b",0,1]]', b"x"),
        write_pieces([MirrorPiece("a", 0, b"")] * (MOST_PIECES + 1)),
    ],
)
def test_anything_else_is_refused(body):
    with pytest.raises(BadInput):
        read_pieces(body)


def test_an_error_of_one_piece_comes_back_with_its_data_and_those_of_the_disk_are_of_all():
    def fail(error: StokerError) -> int:
        raise error

    conflict = piece_outcome(lambda: fail(Conflict("other bytes", offset=4)))
    good, bad = results_of([7, conflict]).results
    assert good.unwrap() == 7
    with pytest.raises(Conflict, match="other bytes") as caught:
        bad.unwrap()
    assert caught.value.data["offset"] == 4
    with pytest.raises(LocalFile):
        piece_outcome(lambda: fail(LocalFile("the disk")))
