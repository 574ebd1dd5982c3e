"""Numbers of the lines of several logs that grow together: a line keeps its number, and what comes later is behind it.

At the first look lines are numbered log by log; what is found at a later look gets the following numbers, whichever log
it is in. If a log was begun anew, or there are too many pieces, all are numbered anew, and the order has another name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from stoker.core.frozen import frozen, frozen_by_position

MOST_SPANS = 20_000
_NAME_CHARACTERS = 12


@frozen_by_position
class LogSpan:
    """Lines of one log that have the following numbers."""

    source: str
    first: int
    """Number of the first of them in its log."""
    count: int


@frozen
class LogState:
    """One log as it is now."""

    source: str
    end: int
    """Number of its whole lines."""
    first: int = 0
    """The first one that is kept."""
    inode: int = 0


class LogOrder:
    """The order of the lines of some logs. Not thread-safe."""

    def __init__(self) -> None:
        self.name = ""
        """Says that numbers are the same: another one, and they were given anew."""
        self.spans: list[LogSpan] = []
        self._ends: dict[str, int] = {}
        self._inodes: dict[str, int] = {}

    def note(self, logs: Sequence[LogState], pieces: Sequence[LogSpan] = ()) -> None:
        """Number the lines that were not there before; `pieces` say how those of some logs came one by one."""
        states = {log.source: log for log in logs}
        is_anew = len(self.spans) > MOST_SPANS or any(
            source not in states or states[source].end < end or states[source].inode != self._inodes[source]
            for source, end in self._ends.items()
        )
        if is_anew or not self.name:
            self.spans, self._ends = [], {}
        for piece in pieces:
            self._add(piece.source, piece.first, piece.first + piece.count)
        for log in logs:
            self._add(log.source, log.first, log.end)
        self._inodes = {log.source: log.inode for log in logs}
        if is_anew or not self.name:
            spans = [(one.source, one.first, one.count, self._inodes[one.source]) for one in self.spans]
            self.name = hashlib.sha256(repr(spans).encode()).hexdigest()[:_NAME_CHARACTERS]

    def _add(self, source: str, first: int, end: int) -> None:
        begin = max(first, self._ends.get(source, 0))
        self._ends[source] = max(end, self._ends.get(source, 0))
        if begin >= end:
            return
        last = self.spans[-1] if self.spans else None
        if last is not None and last.source == source and last.first + last.count == begin:
            self.spans[-1] = LogSpan(source, last.first, last.count + end - begin)
        else:
            self.spans.append(LogSpan(source, begin, end - begin))
