"""`status.jsonl`: the journal of one run, one event per line, and our API for everything that shows a run.

One writer per run. Life-cycle events are never lost: each is written at once. Steps may be: they wait in a bounded
buffer that is written every half second, and what did not fit is written down as `step_gap`. At 64 MiB the file is
set aside as `status.1.jsonl`, one generation; readers read both and tolerate a torn last line.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from stoker.core.clock import Clock
from stoker.core.events import Event, Kinds, event_line
from stoker.core.jsontext import loads
from stoker.host.durable import open_regular, translated

STEP_BUFFER = 4096
STEP_FLUSH_S = 0.5
ROTATE_BYTES = 64 * 1024 * 1024


class StatusWriter:
    """Writes a run's events in order, from any thread, and shows each to the listeners."""

    def __init__(
        self,
        path: str,
        *,
        source: str,
        clock: Clock,
        listeners: tuple[Callable[[Event, float, int], None], ...] = (),
        rotate_bytes: int = ROTATE_BYTES,
    ) -> None:
        self._path = path
        self._source = source
        self._clock = clock
        self._listeners = listeners
        self._rotate_bytes = rotate_bytes
        self._lock = threading.Lock()
        self._steps: deque[tuple[Event, float]] = deque()
        self._held: list[Event] = []
        self._dropped = 0
        self._flushed_s = clock.monotonic_s()
        self._seq = 0
        self._is_torn = False
        self._is_closed = False
        with translated(path):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size_bytes = os.fstat(self._descriptor).st_size

    def emit(self, event: Event) -> None:
        """Write an event; a lossy one at its time."""
        now_s = self._clock.wall_s()
        with self._lock:
            if event.is_lossy:
                self._buffer(event, now_s)
            else:
                self._flush_steps()
                self._write([(event, now_s)])

    def hold(self, kind: str, **fields: Any) -> None:
        """Keep an event until `emit_held`. For one thread: the executor's loop."""
        self._held.append(Event(kind, fields))

    def emit_held(self) -> None:
        """Write the events that are held, together: what one turn of the executor's loop found out."""
        if self._held:
            now_s = self._clock.wall_s()
            with self._lock:
                self._flush_steps()
                self._write([(event, now_s) for event in self._held])
            self._held.clear()

    def tick(self) -> None:
        """Write buffered steps if their time has come."""
        with self._lock:
            if self._clock.monotonic_s() - self._flushed_s >= STEP_FLUSH_S:
                self._flush_steps()

    def close(self) -> None:
        """Write what is buffered, make the file durable and close it. Events that come later are not taken."""
        with self._lock, translated(self._path):
            if self._is_closed:
                return
            try:
                self._flush_steps()
                os.fsync(self._descriptor)
            finally:
                self._is_closed = True
                os.close(self._descriptor)

    def _buffer(self, event: Event, now_s: float) -> None:
        if len(self._steps) >= STEP_BUFFER:
            self._steps.popleft()
            self._dropped += 1
        self._steps.append((event, now_s))
        if self._clock.monotonic_s() - self._flushed_s >= STEP_FLUSH_S:
            self._flush_steps()

    def _flush_steps(self) -> None:
        self._flushed_s = self._clock.monotonic_s()
        if self._dropped:
            gap = (Event(Kinds.STEP_GAP, {"n": self._dropped}), self._clock.wall_s())
            self._dropped = 0
            self._write([gap])
        if self._steps:
            waiting = list(self._steps)
            self._steps.clear()
            self._write(waiting)

    def _write(self, events: list[tuple[Event, float]]) -> None:
        if self._is_closed:
            return
        first = self._seq + 1
        lines = [
            event_line(event, ts=at_s, seq=seq, source=self._source) for seq, (event, at_s) in enumerate(events, first)
        ]
        self._seq += len(lines)
        self._append(("\n".join(lines) + "\n").encode())
        for seq, (event, at_s) in enumerate(events, first):
            for listener in self._listeners:
                listener(event, at_s, seq)

    def _append(self, data: bytes) -> None:
        with translated(self._path):
            if self._size_bytes and self._size_bytes + len(data) > self._rotate_bytes:
                self._rotate()
            # A line that a full disk cut short must not swallow the one after it.
            view = memoryview(b"\n" + data if self._is_torn else data)
            self._is_torn = True
            while view:
                written = os.write(self._descriptor, view)
                self._size_bytes += written
                view = view[written:]
            self._is_torn = False

    def _rotate(self) -> None:
        # Opened under another name first: if that fails, the full file stays the journal.
        fresh = f"{self._path}.new"
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.replace(self._path, older_generation(self._path))
        os.replace(fresh, self._path)
        os.close(self._descriptor)
        self._descriptor = descriptor
        self._size_bytes = 0


def older_generation(path: str) -> str:
    """Return the name under which a full journal is set aside."""
    return f"{path.removesuffix('.jsonl')}.1.jsonl"


def read_status(path: str) -> Iterator[dict[str, Any]]:
    """Return a journal's events, the older generation first. Lines that do not parse are passed over."""
    for name in (older_generation(path), path):
        try:
            file = open_regular(name)
        except OSError:
            continue
        with file:
            for line in file:
                try:
                    event = loads(line)
                except ValueError:
                    continue
                if isinstance(event, dict):
                    yield event
