"""The owner's talk with all ranks at once: one message out to each, one answer in, nobody waited for alone."""

from __future__ import annotations

import pickle
import selectors
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoker.core.errors import BadCall
from stoker.gang.gang_failures import RankSnapshot
from stoker.gang.rank_messages import HEADER, FrameKind, main_of, pack

_READ_BYTES = 1 << 18


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
            if data := end.recv(_READ_BYTES):
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
