"""Bytes on their way through the coordinator: bounded, counted from their beginning, each taken in and given out once.

Whoever sends says where its bytes begin, whoever reads says what it has: a repeat changes nothing, and a lost answer
loses nothing. What was heard is dropped.
"""

from __future__ import annotations

from collections import deque

from stoker.model.errors import BadInput
from stoker.model.fleet_errors import Conflict


class ExecStream:
    """One direction of a session. Its bytes belong to streams of the command, told apart by number."""

    def __init__(self, room_bytes: int) -> None:
        self._room_bytes = room_bytes
        self._pieces: deque[tuple[int, bytes]] = deque()
        self.heard = 0
        """The reader has everything before this."""
        self.end = 0
        """Up to here it was taken in."""

    @property
    def free_bytes(self) -> int:
        """How much more may be taken in."""
        return self._room_bytes - (self.end - self.heard)

    def take(self, offset: int, data: bytes, stream: int = 0) -> int:
        """Take in what is new of some bytes, as far as there is room; give up to where there is something now."""
        if offset > self.end:
            raise Conflict(f"bytes are missing before {offset}", hint=f"go on at {self.end}", offset=self.end)
        fresh = data[self.end - offset :][: self.free_bytes]
        if fresh:
            self._pieces.append((stream, fresh))
            self.end += len(fresh)
        return self.end

    def give(self, offset: int, most_bytes: int) -> list[tuple[int, bytes]]:
        """Give what comes from an offset on; what is before it goes."""
        if not self.heard <= offset <= self.end:
            raise BadInput(f"there is nothing at {offset}: from {self.heard} to {self.end} there is", offset=self.heard)
        while self._pieces and self.heard < offset:
            stream, data = self._pieces.popleft()
            known = min(len(data), offset - self.heard)
            self.heard += known
            if known < len(data):
                self._pieces.appendleft((stream, data[known:]))
        given: list[tuple[int, bytes]] = []
        for stream, data in self._pieces:
            given.append((stream, data[:most_bytes]))
            most_bytes -= len(data)
            if most_bytes <= 0:
                break
        return given
