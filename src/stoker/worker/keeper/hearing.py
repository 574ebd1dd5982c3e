"""What an attempt says while it runs, from its journal: how far it is, what it measured, one line for people."""

from __future__ import annotations

import os
from typing import IO

from stoker.host.durable import open_regular
from stoker.model.events import Kinds
from stoker.model.frozen import fresh, frozen
from stoker.model.json_text import loads
from stoker.model.printable import one_line
from stoker.worker.story import NodeStory, Story

_MOST_BYTES = 4 * 1024 * 1024
_MOST_METRICS = 64
_LONGEST_LINE = 200


@frozen
class Heard:
    """How an attempt stands."""

    step: int | None = None
    of: int | None = None
    metrics: dict[str, float] = fresh(factory=dict)
    stage: str = ""
    says: str = ""


class Hearing:
    """Follows one journal; each look costs what was written since the last one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._torn = b""
        self._story = Story()
        self._last: NodeStory | None = None
        self._says = ""

    def look(self) -> Heard:
        """Read on, and say how it stands. A journal that is not there yet, or can't be read, says nothing."""
        for line in self._new_lines():
            try:
                event = loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                self._take(event)
        node = self._last
        if node is None:
            return Heard(says=self._says)
        numbers = {
            one_line(name, _LONGEST_LINE): number
            for name, value in list(node.metrics.items())[:_MOST_METRICS]
            if (number := _number(value)) is not None
        }
        step, of = (value if isinstance(value, int) else None for value in (node.step, node.of))
        return Heard(step=step, of=of, metrics=numbers, stage=node.node, says=self._says)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _take(self, event: dict[str, object]) -> None:
        node = self._story.take(event)
        self._last = node or self._last
        kind = event.get("kind")
        if kind in (Kinds.STAGE_LOG, Kinds.STAGE_TOLD):
            self._says = one_line(str(event.get("text", "")), _LONGEST_LINE)
        elif kind == Kinds.STAGE_WAITING:
            self._says = one_line(f"waits: {event.get('why', '')}", _LONGEST_LINE)
        elif kind == Kinds.STAGE_BEGIN:
            self._says = ""

    def _new_lines(self) -> list[bytes]:
        read = self._read()
        lines = (self._torn + read).split(b"\n")
        self._torn = lines.pop()
        return lines

    def _read(self) -> bytes:
        try:
            if self._file is None:
                self._file = open_regular(self._path)
            read = self._file.read(_MOST_BYTES)
            if not read and os.fstat(self._file.fileno()).st_ino != os.stat(self._path).st_ino:
                # It was full and set aside; what was written to it before that has been read.
                self.close()
                self._file = open_regular(self._path)
                read = self._file.read(_MOST_BYTES)
        except OSError:
            return b""
        return read


def _number(value: object) -> float | None:
    """Give a metric as a heartbeat tells it: what a job measured must never cost its worker the heartbeat."""
    if not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None
