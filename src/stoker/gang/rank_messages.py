"""Messages between a gang's owner and one rank, over a socket without a name: a kind, a length, a pickle.

Both ends are processes of one user and one version, and the rank runs the owner's code anyway.
"""

from __future__ import annotations

import pickle
import selectors
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from multiprocessing import spawn
from types import ModuleType
from typing import Any, NamedTuple

from stoker.core.errors import BadCall
from stoker.gang.gang_failures import RankSnapshot

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


_prepared: list[tuple[str, str]] = []


def main_of(module: ModuleType | None) -> tuple[str, str] | None:
    """Return how a rank can have this process's main module: by name or by path. `None`: it can't.

    As multiprocessing does it: the script is imported under another name, so that what stands under `if __name__ ==
    "__main__"` does not run again.
    """
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.name:
        return ("init_main_from_name", spec.name)
    path = getattr(module, "__file__", None)
    return ("init_main_from_path", path) if path else None


def prepare_main(main: tuple[str, str] | None) -> None:
    """Import the main module of the owner, once."""
    if main is None or main in _prepared:
        return
    how, where = main
    # It looks whether the module is here under its real name first.
    spawn.prepare({how: where, "sys_argv": sys.argv})
    _prepared.append(main)


# The owner's talk with all ranks at once: one message out to each, one answer in, waited for together.


_ANSWER_READ_BYTES = 1 << 18


class RankExchange:
    """One message to every rank, and what each answers. It never blocks: the sockets are made so."""

    def __init__(self, ends: Sequence[socket.socket], message: bytes) -> None:
        self._ends = {end.fileno(): (rank, end) for rank, end in enumerate(ends)}
        self._unsent = {rank: memoryview(message) for rank in range(len(ends))}
        self._got = {rank: bytearray() for rank in range(len(ends))}
        self._quiet: set[int] = set()
        for end in ends:
            end.setblocking(False)

    def fds(self) -> Mapping[int, int]:
        wanted = {}
        for fd, (rank, _) in self._ends.items():
            if rank in self._quiet or self._has_answered(rank):
                continue
            writes = selectors.EVENT_WRITE if self._unsent[rank] else 0
            wanted[fd] = selectors.EVENT_READ | writes
        return wanted

    def act(self, fd: int) -> None:
        rank, end = self._ends[fd]
        try:
            if self._unsent[rank]:
                self._unsent[rank] = self._unsent[rank][end.send(self._unsent[rank]) :]
            if data := end.recv(_ANSWER_READ_BYTES):
                self._got[rank] += data
            else:
                self._quiet.add(rank)
        except BlockingIOError:
            return
        except ConnectionError:
            # It is gone, which its process tells better.
            self._quiet.add(rank)

    def has_answered(self, look: RankSnapshot) -> bool:
        return self._has_answered(look.rank)

    def answers(self) -> list[bytes]:
        """Return all answers, in rank order."""
        return [bytes(memoryview(self._got[rank])[HEADER.size :]) for rank in sorted(self._got)]

    def _has_answered(self, rank: int) -> bool:
        got = self._got[rank]
        return len(got) >= HEADER.size and len(got) - HEADER.size >= HEADER.unpack_from(got)[1]


def call_message(function: Callable[..., Any], arguments: Sequence[Any]) -> bytes:
    """Return the message that has a function called. Raises `BadCall` if it can't travel."""
    name = getattr(function, "__qualname__", repr(function))
    if not callable(function):
        raise BadCall(f"{function!r} can't be called", hint="give a function")
    try:
        pickled = pickle.dumps((function, tuple(arguments)), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise BadCall(
            f"{name} can't be sent to ranks: {error}",
            hint="give a function of a module, not a lambda or one within another, and arguments that can be pickled",
        ) from error
    main = None
    if b"__main__" in pickled:
        main = main_of(sys.modules.get("__main__"))
        if main is None:
            raise BadCall(f"{name} is defined where ranks can't import it from", hint="put it in a file of its own")
    return pack(FrameKind.CALL, pickle.dumps((main, pickled)))


def read_answers(answers: Sequence[bytes]) -> list[Any]:
    """Return results in rank order. Raises `BadCall` for one that can't be read here."""
    results = []
    for rank, answer in enumerate(answers):
        try:
            results.append(pickle.loads(answer))  # noqa: S301 - from a process of ours
        except (Exception, SystemExit) as error:
            raise BadCall(f"what rank {rank} returned can't be read here: {error}", rank=rank) from error
    return results
