"""Messages between a gang's owner and one rank, over a socket without a name: a kind, a length, a pickle.

Both ends are processes of one user and one version, and the rank runs the owner's code anyway.
"""

from __future__ import annotations

import socket
import struct
import sys
from enum import IntEnum
from multiprocessing import spawn
from types import ModuleType
from typing import NamedTuple

HEADER = struct.Struct("<BQ")
_READ_BYTES = 1 << 20


class FrameKind(IntEnum):
    """What a message is."""

    CALL = 1
    STORE = 2
    """Copy out what is to be stored to the host."""
    CLOSE = 3
    ANSWER = 4
    PLACE = 5
    """Where the store of several hosts is."""


class RankFrame(NamedTuple):
    """One message."""

    kind: FrameKind
    payload: bytes


def pack(kind: FrameKind, payload: bytes = b"") -> bytes:
    """Return a message's bytes."""
    return HEADER.pack(kind, len(payload)) + payload


def send(end: socket.socket, kind: FrameKind, payload: bytes = b"") -> None:
    """Send a message, waiting as long as the other side reads."""
    end.sendall(HEADER.pack(kind, len(payload)))
    end.sendall(payload)


def receive(end: socket.socket) -> RankFrame | None:
    """Wait for a message; `None`: the other side is gone."""
    head = _exactly(end, HEADER.size)
    if head is None:
        return None
    kind, length = HEADER.unpack(head)
    payload = _exactly(end, length)
    return None if payload is None else RankFrame(FrameKind(kind), bytes(payload))


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


# The user's main module in a rank: functions that are defined in a script work there, too.
#
# As multiprocessing does it: the script is imported under another name, so that what stands under
# `if __name__ == "__main__"` does not run again.

_prepared: list[tuple[str, str]] = []


def main_of(module: ModuleType | None) -> tuple[str, str] | None:
    """Return how a rank can have this process's main module: by name or by path. `None`: it can't."""
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.name:
        return ("init_main_from_name", spec.name)
    path = getattr(module, "__file__", None)
    return ("init_main_from_path", path) if path else None


def prepare_main(main: tuple[str, str] | None) -> None:
    """Have the main module of the owner here, once."""
    if main is None or main in _prepared:
        return
    how, where = main
    # It looks whether the module is here under its real name first.
    spawn.prepare({how: where, "sys_argv": sys.argv})
    _prepared.append(main)
