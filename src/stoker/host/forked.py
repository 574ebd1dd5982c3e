"""One piece of work in a child of the zygote: its events, its end, its stop.

Events are JSON objects, in the order in which the child emitted them. The end is told once nothing of the child's
session is left. A child that nobody reads waits as soon as its pipe is full, so read events first and wait then.
"""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from stoker.host.entry import BOX_REFUSED, not_let_in
from stoker.host.exit import Exit
from stoker.host.identity import ProcessIdentity
from stoker.host.processes import GRACE_S, Stopped, stop_group
from stoker.model import json_text
from stoker.model.clock import Clock
from stoker.model.errors import ProcessLost

_READ_BYTES = 1 << 16
# How long a pipe that somebody else holds open may delay the news that the work has ended.
_EXIT_CHECK_S = 0.25
_REPORT_WAIT_S = 5.0


class Forked:
    """Work in a child of the zygote. One thread at a time reads its events; any thread may wait for it or stop it."""

    def __init__(self, events_fd: int) -> None:
        self._fd = events_fd
        self._close_fd = weakref.finalize(self, os.close, events_fd)
        self._buffer = bytearray()
        self._identity: ProcessIdentity | None = None
        self._exit: Exit | None = None
        self._error: ProcessLost | None = None
        self._refused = ""
        self._has_ended = threading.Event()
        self._no_more_events = False
        self.unreadable: list[str] = []
        """Lines that are not whole JSON objects, such as the one that a killed child was writing."""

    @property
    def identity(self) -> ProcessIdentity:
        """The child, which leads its own session."""
        if self._identity is None:
            message = "fork has not returned"
            raise RuntimeError(message)
        return self._identity

    @property
    def has_ended(self) -> bool:
        """Whether `wait` would return at once."""
        return self._has_ended.is_set()

    @property
    def has_no_more_events(self) -> bool:
        """Whether every event has been given out and none can come."""
        return self._no_more_events

    def events(self) -> Iterator[dict[str, Any]]:
        """Give events as they come, until the child has ended."""
        while not self._no_more_events:
            yield from self.read_events()

    def read_events(self, timeout_s: float | None = None) -> list[dict[str, Any]]:
        """Wait for events and give those that are there. None: the time is over, or no more can come."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        while not self._no_more_events:
            # Asked before the look at the pipe: what the child wrote before its end is in there.
            had_ended = self._has_ended.is_set()
            left_s = _EXIT_CHECK_S if deadline_s is None else min(_EXIT_CHECK_S, deadline_s - time.monotonic())
            if poller.poll(0 if had_ended else max(0, left_s * 1000)):
                chunk = os.read(self._fd, _READ_BYTES)
                if events := self._take_bytes(chunk):
                    return events
            elif had_ended:
                # Something that escaped holds the pipe open; it is not the work.
                self._finish_events()
            elif deadline_s is not None and time.monotonic() >= deadline_s:
                break
        return []

    def ignore_events(self) -> None:
        """Let go of the pipe: nobody will read it, and whoever writes to it is told so."""
        self._finish_events()

    def wait(self, timeout_s: float | None = None) -> Exit:
        """Wait until the child and everything of its session has ended.

        Raises `TimeoutError`, `ProcessLost`, and once its events were read `ContainmentUnavailable` if it did not get
        into its box: then it has done nothing.
        """
        if not self._has_ended.wait(timeout_s):
            message = f"process {self.identity.pid} still runs"
            raise TimeoutError(message)
        if self._refused:
            raise not_let_in(self._refused)
        if self._error is not None or self._exit is None:
            raise self._error or ProcessLost("the child's end was not seen")
        return self._exit

    def stop(self, *, grace_s: float = GRACE_S, clock: Clock | None = None) -> Stopped:
        """Stop the child and its whole group, confirmed; see `processes.stop_group`."""
        stopped = stop_group(self.identity, grace_s=grace_s, clock=clock)
        self._has_ended.wait(_REPORT_WAIT_S)
        return stopped

    def begin(self, identity: ProcessIdentity) -> None:
        """Learn who the child is. This and the next two are for the zygote's reader."""
        self._identity = identity

    def end(self, ended: Exit, survivors: Sequence[int]) -> None:
        """Learn how the child ended, and which processes of it could not be killed."""
        self._exit = ended
        if survivors:
            pids = list(survivors)
            self._error = ProcessLost(f"still there after SIGKILL: process {', '.join(map(str, pids))}", pids=pids)
        self._has_ended.set()

    def lose(self, why: ProcessLost) -> None:
        """Learn that nobody can tell any more; stop whatever is left of the child."""
        self._error = why
        if self._identity is not None:
            try:
                stop_group(self._identity, grace_s=0.0)
            except ProcessLost as survivor:
                self._error = survivor
        self._has_ended.set()

    def _take_bytes(self, chunk: bytes) -> list[dict[str, Any]]:
        if not chunk:
            self._finish_events()
            return []
        whole, newline, rest = chunk.rpartition(b"\n")
        if not newline:
            self._buffer += rest
            return []
        lines = (bytes(self._buffer) + whole).split(b"\n")
        self._buffer = bytearray(rest)
        return [event for line in lines if (event := self._parse(line)) is not None]

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        try:
            event = json_text.loads(line)
        except ValueError:
            event = None
        if isinstance(event, dict) and set(event) == {BOX_REFUSED}:
            self._refused = str(event[BOX_REFUSED])
            return None
        if isinstance(event, dict):
            return event
        self.unreadable.append(line.decode(errors="replace"))
        return None

    def _finish_events(self) -> None:
        self._no_more_events = True
        self._close_fd()
        if self._buffer:
            self.unreadable.append(self._buffer.decode(errors="replace"))
