"""The process that brings what a job needs, as its keeper sees it: started, heard, and ended with the attempt.

    python -m stoker.app.prepare_main     one line on its standard input, lines of `telling` on its standard output

Its standard input stays open as long as its keeper wants it: if the keeper goes away, it ends by itself. Killed from
outside, it is started again as long as it got on: everything that came is kept.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from stoker.core.clock import Clock
from stoker.core.errors import StokerError
from stoker.core.frozen import fields_of, frozen
from stoker.core.jsontext import dumps, loads
from stoker.core.text import one_line
from stoker.host.processes import Child, start

# What a preparing child says to its keeper, line by line: how far it is, and how it ended.
#
# `count` only grows, and only with honest work: it is what keeps the lease.

LONGEST_LINE = 500
READY, REFUSED = "ready", "refused"


@frozen
class PrepareLine:
    """One line."""

    says: str = ""
    """For a heartbeat."""
    line: str = ""
    """For the job's log."""
    count: int = 0
    end: str = ""
    verified: tuple[str, ...] = ()
    """Inputs that were read where they lie, and are what was submitted."""
    reason: str = ""
    message: str = ""
    lasts: bool = False
    """It stays so until something is done on this machine; else it may pass."""

    def to_line(self) -> bytes:
        """Return it as a line."""
        said = {name: value for name, value in fields_of(self).items() if value}
        for name in ("says", "line", "message"):
            if name in said:
                said[name] = one_line(said[name], LONGEST_LINE)
        return dumps(said).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> PrepareLine | None:
        """Read a line; nothing if it is none of ours."""
        try:
            raw: Any = loads(line)
            if not isinstance(raw, dict):
                return None
            return cls(**{**raw, "verified": tuple(raw.get("verified", ()))})
        except (ValueError, TypeError):
            return None


_LOOK_EVERY_S = 0.1
_GRACE_S = 5.0
_CHUNK_BYTES = 1 << 16
_LONGEST_LINE_BYTES = 1 << 16
_MOST_STARTS = 5
PREPARING = "preparing"


@frozen
class PreparingProgram:
    """How such a process is started."""

    argv: tuple[str, ...]
    folder: str
    environment: Callable[[], Mapping[str, str]]
    clock: Clock


def bring_by_child(
    program: PreparingProgram, ticket: bytes, stop: threading.Event, heed: Callable[[PrepareLine], None]
) -> PrepareLine | None:
    """Have what a job needs brought by a process of its own. Gives its last word; nothing if it was stopped.

    `heed` gets every line; counts go on from one process to the next.
    """
    base, last_words = 0, ""
    for _ in range(_MOST_STARTS):
        run = _Run(program, ticket, stop, base, heed)
        ended = run.to_end()
        if ended is not None or stop.is_set():
            return ended
        last_words = run.how
        if run.count == base:
            break
        base = run.count
    return PrepareLine(end=REFUSED, reason=PREPARING, message=f"what brings it went away without a word: {last_words}")


class _Run:
    """One process."""

    def __init__(
        self,
        program: PreparingProgram,
        ticket: bytes,
        stop: threading.Event,
        base: int,
        heed: Callable[[PrepareLine], None],
    ) -> None:
        self._program = program
        self._ticket = ticket
        self._stop = stop
        self._heed = heed
        self._base = base
        self.count = base
        self.how = ""

    def to_end(self) -> PrepareLine | None:
        program = self._program
        child = start(
            program.argv,
            cwd=program.folder,
            env=program.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            with suppress(OSError):
                if child.stdin is not None:
                    child.stdin.write(self._ticket)
                    child.stdin.flush()
            return self._listen(child)
        finally:
            self._end(child)

    def _listen(self, child: Child) -> PrepareLine | None:
        rest, tail, end = b"", b"", None
        with selectors.DefaultSelector() as selector:
            for stream in (child.stdout, child.stderr):
                if stream is not None:
                    selector.register(stream, selectors.EVENT_READ, stream is child.stdout)
            while selector.get_map() and not self._stop.is_set():
                for key, _ in selector.select(_LOOK_EVERY_S):
                    data = os.read(key.fd, _CHUNK_BYTES)
                    if not data:
                        selector.unregister(key.fileobj)
                    elif key.data:
                        *lines, rest = (rest + data).split(b"\n")
                        rest = rest[-_LONGEST_LINE_BYTES:]
                        for line in lines:
                            end = self._take(line) or end
                    else:
                        tail = (tail + data)[-2000:]
                if end is not None:
                    return end
        said = tail.decode(errors="replace").strip().splitlines()
        self.how = said[-1] if said else "it said nothing"
        return None

    def _take(self, line: bytes) -> PrepareLine | None:
        told = PrepareLine.from_line(line)
        if told is None:
            return None
        if told.end:
            return told
        self.count = max(self.count, self._base + told.count)
        self._heed(PrepareLine(says=told.says, line=told.line, count=self.count))
        return None

    def _end(self, child: Child) -> None:
        streams: Sequence[IO[bytes] | None] = (child.stdin, child.stdout, child.stderr)
        for stream in streams:
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        with suppress(StokerError, TimeoutError):
            child.stop(grace_s=_GRACE_S, clock=self._program.clock)
