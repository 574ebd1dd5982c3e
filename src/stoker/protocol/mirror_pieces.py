"""Pieces of several mirrored files in one request, and what became of each.

A body is a list, as JSON behind its length in 4 bytes, of path, offset and size of each piece; then the bytes of all
pieces, in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stoker.core.errors import BadInput, LocalFile, Refused, StaleLease, StokerError
from stoker.core.frozen import frozen_by_position
from stoker.core.jsontext import dumps, loads
from stoker.protocol.codec import WireMessage
from stoker.protocol.refusals import error_of

MOST_PIECES = 1000
"""In one request."""
_LENGTH_BYTES = 4
_LARGEST_OFFSET = 2**63 - 1


@frozen_by_position
class MirrorPiece:
    """Bytes of a mirrored file, and where they are in it. Empty: to learn whether the file is there up to them."""

    path: str
    offset: int
    data: bytes | memoryview


class MirrorPieceResult(WireMessage):
    """What became of one piece: the size of its file, or the error that refused it."""

    offset: int = 0
    error: dict[str, Any] | None = None

    def unwrap(self) -> int:
        """Return the size of the file. Raises the error."""
        if self.error is not None:
            raise error_of(self.error)
        return self.offset


class MirrorPiecesResponse(WireMessage):
    """What became of each piece, in their order."""

    results: tuple[MirrorPieceResult, ...]


def piece_outcome(put: Callable[[], int]) -> int | StokerError:
    """Write one piece; return the size of its file, or the error that refuses this piece alone."""
    try:
        return put()
    except (StaleLease, LocalFile):
        raise
    except (Refused, BadInput) as error:
        return error


def results_of(outcomes: Sequence[int | StokerError]) -> MirrorPiecesResponse:
    """Return sizes and errors as a message."""
    return MirrorPiecesResponse(
        results=tuple(
            MirrorPieceResult(error=one.to_dict()) if isinstance(one, StokerError) else MirrorPieceResult(offset=one)
            for one in outcomes
        )
    )


def write_pieces(pieces: Sequence[MirrorPiece]) -> bytes:
    """Return the body of a request."""
    listed = dumps([[one.path, one.offset, len(one.data)] for one in pieces]).encode()
    return b"".join((len(listed).to_bytes(_LENGTH_BYTES, "big"), listed, *(one.data for one in pieces)))


def read_pieces(body: bytes) -> list[MirrorPiece]:
    """Return the pieces of a body. Raises `BadInput` if it is anything else."""
    size_bytes = int.from_bytes(body[:_LENGTH_BYTES], "big")
    at = _LENGTH_BYTES + size_bytes
    try:
        listed = loads(body[_LENGTH_BYTES:at]) if len(body) >= at else None
    except ValueError:
        listed = None
    if not isinstance(listed, list) or not 0 < len(listed) <= MOST_PIECES:
        raise BadInput(f"no list of 1 to {MOST_PIECES} pieces of files")
    view, pieces = memoryview(body), []
    for one in listed:
        if not (isinstance(one, list) and len(one) == 3 and isinstance(one[0], str) and all(map(_is_size, one[1:]))):
            raise BadInput("a piece of a file is its path, its offset and its size")
        path, offset, length = one
        pieces.append(MirrorPiece(path, offset, view[at : at + length]))
        at += length
        if at > len(body):
            break
    if at != len(body):
        raise BadInput("the pieces of files are not as long as their list says")
    return pieces


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST_OFFSET
