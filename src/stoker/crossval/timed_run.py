"""One run of a program, timed from its start to its end, with the memory that it took and what it printed.

The end is when the kernel reports it, not when somebody looks: a poll every 50 ms would be all that is measured of a
short program. What the program left running is stopped; the time that takes is not measured.
"""

from __future__ import annotations

import os
import selectors
import subprocess
from collections.abc import Mapping
from contextlib import suppress

from stoker.core.clock import Clock
from stoker.core.errors import StageTimeout, WorkFailed
from stoker.core.frozen import frozen
from stoker.core.text import one_line
from stoker.host.processes import Child, start

_KEPT_BYTES = 1 << 20
_SHOWN = 300
_GRACE_S = 2.0
_LOOK_S = 0.001
"""Where the kernel can't be asked to report an end, such as on macOS."""


@frozen
class TimedProgram:
    """A program that can be run again and again."""

    argv: tuple[str, ...]
    folder: str
    environment: Mapping[str, str]
    timeout_s: float | None = None

    @property
    def shown(self) -> str:
        return one_line(" ".join(self.argv), _SHOWN)


@frozen
class TimedRun:
    """What one run took. `output` is the end of what it printed to standard output."""

    seconds: float
    cpu_s: float
    peak_bytes: int
    output: str


def run_timed(program: TimedProgram, clock: Clock) -> TimedRun:
    """Run a program to its end. Raises `WorkFailed` if it fails, `StageTimeout` if it takes too long.

    Also after an interrupt nothing of it stays behind.
    """
    began_s = clock.monotonic_s()
    child = start(
        program.argv,
        cwd=program.folder,
        env=program.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    watch = _Watch(child, clock)
    try:
        deadline_s = None if program.timeout_s is None else began_s + program.timeout_s
        ended_s = watch.until_end(deadline_s)
        if ended_s is None:
            raise StageTimeout(
                f"{program.shown}: still running after {program.timeout_s:g} s", hint="--timeout sets the limit"
            )
        ended = child.wait()
        if not ended.is_success:
            said = one_line(watch.text(child.stderr).strip().rpartition("\n")[2], _SHOWN)
            raise WorkFailed(
                f"{program.shown}: {ended}{f': {said}' if said else ''}",
                hint="the program has to end with exit status 0 on both sides",
                exit_status=ended.status,
                signal=ended.signal,
                stderr=watch.text(child.stderr)[-4096:],
            )
        return TimedRun(
            seconds=ended_s - began_s,
            cpu_s=ended.cpu_s,
            peak_bytes=ended.max_rss_bytes,
            output=watch.text(child.stdout),
        )
    finally:
        watch.close()
        child.stop(grace_s=_GRACE_S)


class _Watch:
    """Reads what a child prints until it ends; keeps the last of it."""

    def __init__(self, child: Child, clock: Clock) -> None:
        self._child = child
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._kept: dict[object, bytearray] = {}
        self._end_fd = -1
        with suppress(OSError, AttributeError):
            self._end_fd = os.pidfd_open(child.identity.pid)
        if self._end_fd >= 0:
            self._selector.register(self._end_fd, selectors.EVENT_READ)
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                self._kept[pipe] = bytearray()
                self._selector.register(pipe, selectors.EVENT_READ)

    def until_end(self, deadline_s: float | None) -> float | None:
        """Return when the program ended; None at the deadline."""
        while True:
            left_s = None if deadline_s is None else deadline_s - self._clock.monotonic_s()
            if left_s is not None and left_s <= 0.0:
                return None
            ready = self._selector.select(left_s if self._end_fd >= 0 else _LOOK_S)
            has_ended = any(key.fd == self._end_fd for key, _ in ready)
            if has_ended or (self._end_fd < 0 and self._child.poll() is not None):
                ended_s = self._clock.monotonic_s()
                for pipe in self._kept:
                    self._read(pipe)
                return ended_s
            for key, _ in ready:
                if not self._read(key.fileobj, once=True):
                    self._selector.unregister(key.fileobj)

    def text(self, pipe: object) -> str:
        return bytes(self._kept.get(pipe, b"")).decode("utf-8", "replace")

    def close(self) -> None:
        self._selector.close()
        if self._end_fd >= 0:
            os.close(self._end_fd)
        for pipe in (self._child.stdout, self._child.stderr):
            if pipe is not None:
                pipe.close()

    def _read(self, pipe: object, *, once: bool = False) -> bool:
        """Read what is there; return False at the end of the stream."""
        kept = self._kept[pipe]
        while True:
            try:
                data = os.read(pipe.fileno(), 1 << 16)  # type: ignore[attr-defined]  # an open pipe
            except BlockingIOError:
                return True
            if not data:
                return False
            kept += data
            del kept[:-_KEPT_BYTES]
            if once:
                return True
