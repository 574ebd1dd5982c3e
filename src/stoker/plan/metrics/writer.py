"""Writes metrics from our side of the fence: what stages report and what is read off a program's output.

Whoever adds a value never waits: values go into a bounded buffer, and a thread writes them as frames twice a second.
What did not fit is counted, and the next frame says how much is missing. A disk that is full or gone costs the
values that no longer fit into the buffer, never the run; `close` says what happened.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Mapping
from contextlib import suppress

from stoker.model.clock import Clock
from stoker.model.frozen import frozen
from stoker.plan.metrics.file import (
    ROWS_PER_FRAME,
    Row,
    Source,
    clean_name,
    clean_step,
    encode_frame,
)

FLUSH_S = 0.5
BUFFER_ROWS = 256 * 1024
CLOSE_S = 5.0


@frozen
class Written:
    """What became of everything that was added."""

    rows: int
    lost: int
    """Did not fit while the disk did not keep up."""
    fault: str = ""
    """What the operating system said last, if some of it could not be written."""


class MetricsWriter:
    """Appends to one file, which is made with the first value. Any thread may add."""

    def __init__(self, path: str, *, clock: Clock, buffer_rows: int = BUFFER_ROWS, flush_s: float = FLUSH_S) -> None:
        self.path = path
        self._clock = clock
        self._buffer_rows = buffer_rows
        self._flush_s = flush_s
        self._adding = threading.Lock()
        self._rows: list[Row] = []
        self._lost = 0
        self._is_closed = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._writing = threading.Lock()
        self._taken: list[Row] = []
        """Out of the buffer and not yet in the file; counts against the buffer's bound."""
        self._descriptor = -1
        self._written = 0
        self._lost_told = 0
        self._fault = ""

    def add(
        self, step: int, values: Mapping[str, float], *, at_s: float | None = None, source: Source = Source.REPORTED
    ) -> None:
        """Take values in; what does not fit is counted as lost."""
        if not values:
            return
        when_s = self._clock.wall_s() if at_s is None else at_s
        where = clean_step(step)
        with self._adding:
            room = 0 if self._is_closed else self._buffer_rows - len(self._rows) - len(self._taken)
            for name, value in values.items():
                if room > 0:
                    self._rows.append(Row(where, when_s, clean_name(name), value, source))
                    room -= 1
                else:
                    self._lost += 1
            is_due = len(self._rows) >= ROWS_PER_FRAME
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="stoker-metrics", daemon=True)
                self._thread.start()
        if is_due:
            self._wake.set()

    def flush(self) -> None:
        """Write what has been added so far, now and here."""
        with self._writing:
            with self._adding:
                self._taken += self._rows
                self._rows = []
                lost = self._lost
            try:
                self._write(lost)
            except OSError as error:
                # What was taken is tried again next time.
                self._fault = error.strerror or str(error)

    def close(self, timeout_s: float = CLOSE_S) -> Written:
        """Write the rest, make it durable and say what became of it all. A disk that hangs is not waited for longer."""
        with self._adding:
            self._is_closed = True
            thread = self._thread
        self._wake.set()
        if thread is not None:
            thread.join(timeout_s)
        late = thread is not None and thread.is_alive()
        with self._adding:
            lost = self._lost + len(self._rows) + len(self._taken)
        return Written(rows=self._written, lost=lost, fault="the disk does not answer" if late else self._fault)

    def _run(self) -> None:
        while not self._is_closed:
            self._wake.wait(self._flush_s)
            self._wake.clear()
            self.flush()
        self.flush()
        with self._writing, suppress(OSError):
            if self._descriptor >= 0:
                os.fsync(self._descriptor)
                os.close(self._descriptor)
                self._descriptor = -1

    def _write(self, lost: int) -> None:
        while self._taken:
            source = self._taken[0].source
            batch = [row for row in self._taken[:ROWS_PER_FRAME] if row.source is source]
            frame = encode_frame(batch, source=source, lost=lost - self._lost_told)
            if self._descriptor < 0:
                # A program may have put a pipe there, or a link to something else.
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
                self._descriptor = os.open(self.path, flags, 0o644)
            if os.write(self._descriptor, frame) != len(frame):
                # Readers pass over what did get there.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._lost_told = lost
            self._written += len(batch)
            others = [row for row in self._taken[:ROWS_PER_FRAME] if row.source is not source]
            self._taken = others + self._taken[ROWS_PER_FRAME:]
