"""Messages between a gang's owner and one rank, over a socket without a name: a kind, a length, a pickle.

Both ends are processes of one user and one version, and the rank runs the owner's code anyway.
"""

from __future__ import annotations

import socket
import struct
from enum import IntEnum
from typing import NamedTuple

HEADER = struct.Struct("<BQ")
_READ_BYTES = 1 << 20


class Kind(IntEnum):
    """What a message is."""

    CALL = 1
    STORE = 2
    """Copy out what is to be stored to the host."""
    CLOSE = 3
    ANSWER = 4
    PLACE = 5
    """Where the store of several hosts is."""


class Frame(NamedTuple):
    """One message."""

    kind: Kind
    payload: bytes


def pack(kind: Kind, payload: bytes = b"") -> bytes:
    """Give a message's bytes."""
    return HEADER.pack(kind, len(payload)) + payload


def send(end: socket.socket, kind: Kind, payload: bytes = b"") -> None:
    """Send a message, waiting as long as the other side reads."""
    end.sendall(HEADER.pack(kind, len(payload)))
    end.sendall(payload)


def receive(end: socket.socket) -> Frame | None:
    """Wait for a message; `None`: the other side is gone."""
    head = _exactly(end, HEADER.size)
    if head is None:
        return None
    kind, length = HEADER.unpack(head)
    payload = _exactly(end, length)
    return None if payload is None else Frame(Kind(kind), bytes(payload))


def _exactly(end: socket.socket, size: int) -> bytearray | None:
    got = bytearray(size)
    view = memoryview(got)
    done = 0
    while done < size:
        try:
            count = end.recv_into(view[done:], min(size - done, _READ_BYTES))
        except ConnectionError:
            return None
        if not count:
            return None
        done += count
    return got
