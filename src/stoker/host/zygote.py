"""A warm process from which work is forked, seen from the process that orders the work.

    this process  ──orders, pipes──▶  zygote (imported once, one thread)  ──fork──▶  child: function(request, emit)
                  ◀─forked, ended───                                                   │
                  ◀───────────────────────── events, one JSON line each ───────────────┘

Forking costs milliseconds where starting an interpreter with its libraries costs seconds, and a child can neither
harm this process nor outlive it: when this process goes away, even by kill -9, the zygote kills everything and ends;
when the zygote goes away, the kernel kills its children and we stop what those had started. Only what deliberately left
its session survives a killed zygote; only if both are killed at once do processes that children started survive.

Linux only; elsewhere `start` raises `Unavailable`. The entry interprets the request.
"""

from __future__ import annotations

import itertools
import os
import queue
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from signal import Signals
from typing import IO, Any

from stoker.core import jsontext
from stoker.core.clock import Clock, Closable
from stoker.core.errors import ProcessLost, Unavailable
from stoker.core.frozen import frozen
from stoker.host.box_entry import BOX_REFUSED, ChildSetup, not_let_in
from stoker.host.durable import StrPath, translated
from stoker.host.identity import ProcessExit, ProcessIdentity, identity_from
from stoker.host.processes import GRACE_S, StopOutcome, start_server, stop_group
from stoker.host.sockets import Channel

_READ_BYTES = 1 << 16
# How long a pipe that another process holds open may delay the report that the work has ended.
_EXIT_CHECK_S = 0.25
_REPORT_WAIT_S = 5.0


class ForkedWork:
    """Work in a child of the zygote. One thread at a time reads its events; any thread may wait for it or stop it.

    Events are JSON objects, in the order in which the child emitted them. The end is reported once nothing of the
    child's session is left. A child blocks as soon as its pipe is full, so read events first and wait then.
    """

    def __init__(self, events_fd: int) -> None:
        self._fd = events_fd
        self._close_fd = weakref.finalize(self, os.close, events_fd)
        self._buffer = bytearray()
        self._identity: ProcessIdentity | None = None
        self._exit: ProcessExit | None = None
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
        """True if `wait` would return at once."""
        return self._has_ended.is_set()

    @property
    def has_no_more_events(self) -> bool:
        """True if every event has been returned and none can come."""
        return self._no_more_events

    def events(self) -> Iterator[dict[str, Any]]:
        """Return events as they come, until the child has ended."""
        while not self._no_more_events:
            yield from self.read_events()

    def read_events(self, timeout_s: float | None = None) -> list[dict[str, Any]]:
        """Wait for events and return those that are there. None: timed out, or no more can come."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        while not self._no_more_events:
            # Checked before the pipe is read: what the child wrote before its end is in there.
            had_ended = self._has_ended.is_set()
            left_s = _EXIT_CHECK_S if deadline_s is None else min(_EXIT_CHECK_S, deadline_s - time.monotonic())
            if poller.poll(0 if had_ended else max(0, left_s * 1000)):
                chunk = os.read(self._fd, _READ_BYTES)
                if events := self._take_bytes(chunk):
                    return events
            elif had_ended:
                # An escaped process holds the pipe open; it is not the work.
                self._finish_events()
            elif deadline_s is not None and time.monotonic() >= deadline_s:
                break
        return []

    def ignore_events(self) -> None:
        """Close the pipe: a child that writes to it gets an error."""
        self._finish_events()

    def wait(self, timeout_s: float | None = None) -> ProcessExit:
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

    def stop(self, *, grace_s: float = GRACE_S, clock: Clock | None = None) -> StopOutcome:
        """Stop the child and its whole group, confirmed; see `processes.stop_group`."""
        stopped = stop_group(self.identity, grace_s=grace_s, clock=clock)
        self._has_ended.wait(_REPORT_WAIT_S)
        return stopped

    def begin(self, identity: ProcessIdentity) -> None:
        """Set the child's identity. This and the next two are for the zygote's reader."""
        self._identity = identity

    def end(self, ended: ProcessExit, survivors: Sequence[int]) -> None:
        """Set how the child ended, and which processes of it could not be killed."""
        self._exit = ended
        if survivors:
            pids = list(survivors)
            self._error = ProcessLost(f"still there after SIGKILL: process {', '.join(map(str, pids))}", pids=pids)
        self._has_ended.set()

    def lose(self, why: ProcessLost) -> None:
        """Mark the child as lost; stop what is left of it."""
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
            event = jsontext.loads(line)
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


# The path is set before anything of ours is imported, so that the zygote sees the very modules that we see.
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]);"
    "from stoker.host.zygote_main import main; main(int(sys.argv[1]))"
)
_CLOSE_WAIT_S = 5.0
_LOG_TAIL_BYTES = 2000


@frozen
class ZygotePreloadReport:
    """The zygote's report once it has imported everything."""

    warnings: tuple[str, ...]
    """What could not be preloaded, and threads that preloading left running."""
    preload_s: float


class Zygote(Closable):
    """The warm process. Any thread may fork from it and close it.

    It starts in the background: orders sent before it is ready are queued.
    """

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel, log: IO[bytes]) -> None:
        self._process = process
        self._channel = channel
        self._log = log
        self._ids = itertools.count(1)
        self._changing = threading.Lock()
        self._closing = threading.Lock()
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any] | None]] = {}
        self._forked: dict[int, ForkedWork] = {}
        self._ready: ZygotePreloadReport | None = None
        self._is_ready = threading.Event()
        self._is_closed = False
        self._is_lost = False
        self._life_fd = -1
        self._reader = threading.Thread(target=self._read, name="stoker-zygote-reader", daemon=True)

    @classmethod
    def start(
        cls,
        python: str,
        preload: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: StrPath,
        sys_path: Sequence[str],
        linger_s: float = GRACE_S,
    ) -> Zygote:
        """Start a zygote. `linger_s` is the grace period of a child's leftovers between TERM and KILL."""
        if sys.platform != "linux":
            raise Unavailable("work can be forked on Linux only", hint="run each stage in an interpreter of its own")
        folders = jsontext.dumps(list(sys_path))
        # Without -P a json.py in the current folder would be taken for the library's.
        process, ours, log = start_server(lambda fd: [python, "-P", "-c", _BOOT, str(fd), folders], cwd=cwd, env=env)
        zygote = cls(process, Channel(ours), log)
        zygote._greet(preload, linger_s)
        return zygote

    def _greet(self, preload: Sequence[str], linger_s: float) -> None:
        self._reader.start()
        hello = {"op": "hello", "preload": list(preload), "parent_pid": os.getpid(), "linger_s": linger_s}
        life_read, self._life_fd = os.pipe()
        try:
            # If it is gone already, the reader reports that to the callers.
            with suppress(OSError):
                self._channel.send(hello, [life_read])
        finally:
            os.close(life_read)

    @property
    def is_lost(self) -> bool:
        """True if it is gone without having been closed: nothing can be forked from it any more."""
        return self._is_lost

    @property
    def loss(self) -> ProcessLost | None:
        """The error, if it is lost."""
        return self._lost() if self._is_lost else None

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, timeout_s: float | None = None) -> ZygotePreloadReport:
        """Wait until everything is imported. Never needed before `fork`. Raises `TimeoutError`, `ProcessLost`."""
        if not self._is_ready.wait(timeout_s):
            message = f"the zygote is not ready after {timeout_s} s"
            raise TimeoutError(message)
        if self._ready is None:
            raise self._lost()
        return self._ready

    def fork(  # noqa: PLR0913 - what a process is made of
        self,
        entry: str,
        request: Mapping[str, Any],
        *,
        log_path: StrPath | None = None,
        env: Mapping[str, str] | None = None,
        cwd: StrPath | None = None,
        box: ChildSetup | None = None,
        fds: Sequence[int] = (),
    ) -> ForkedWork:
        """Run `module:function(request, emit)` in a child; its output is appended to the log.

        Returns when the child exists. The caller must read its events: a full pipe blocks the child. With a `box` the
        child enters it before it looks for the function; if it can't, `wait` raises the reason. `fds` (at most 20) are
        open in the child, too, and in no other one: its request has their numbers there as `fds`, in the same order.
        Ours stay ours.
        """
        answer: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        fork_id = next(self._ids)
        log_fd = _open_log(log_path)
        read_fd, write_fd = os.pipe()
        forked = ForkedWork(read_fd)
        order = {
            "op": "fork",
            "id": fork_id,
            "entry": entry,
            "request": dict(request),
            "env": dict(env or {}),
            "cwd": None if cwd is None else os.fspath(cwd),
            "box": None if box is None else {"files": box.procs_files, "address_space_bytes": box.address_space_bytes},
            "is_gated": box is not None and box.gate_fd is not None,
        }
        gate = [] if box is None or box.gate_fd is None else [box.gate_fd]
        try:
            with self._changing:
                if self._is_closed or self._is_lost:
                    raise self._lost()
                self._answers[fork_id] = answer
                self._forked[fork_id] = forked
            # If the zygote is gone, the reader notices and answers instead.
            with suppress(ConnectionError):
                self._channel.send(order, [write_fd, log_fd, *gate, *fds])
        except BaseException:
            with self._changing:
                self._answers.pop(fork_id, None)
                self._forked.pop(fork_id, None)
            raise
        finally:
            os.close(write_fd)
            os.close(log_fd)
        body = answer.get()
        if body is None:
            raise self._lost()
        if body["op"] == "refused":
            raise ProcessLost(
                f"no process could be made: {body['why']}", hint="this machine is out of memory or process numbers"
            )
        return forked

    def signal(self, children: Collection[ForkedWork], number: Signals) -> None:
        """Signal children and their groups, except those that have ended.

        No other process can be hit: their parent signals, before it reaps them.
        """
        with self._changing:
            ids = [fork_id for fork_id, forked in self._forked.items() if forked in children]
        # If the zygote is gone, its children are gone too.
        with suppress(OSError):
            self._channel.send({"op": "signal", "ids": ids, "number": int(number)})

    def close(self, grace_s: float = GRACE_S) -> None:
        """Stop all children, with TERM and after `grace_s` KILL, and the zygote; confirmed. Idempotent."""
        with self._changing:
            self._is_closed = True
        with self._closing:
            if self._reader.is_alive() and self._is_ready.is_set():
                with suppress(OSError):
                    self._channel.send({"op": "close", "grace_s": grace_s})
                self._reader.join(grace_s + _CLOSE_WAIT_S)
            if self._reader.is_alive():
                # It is still importing, or hangs. Killed, its end of the channel closes, the kernel kills its children
                # and the reader stops whatever those leave.
                self._process.kill()
                self._reader.join(_CLOSE_WAIT_S)
            self._reap()
            self._channel.close()
            self._log.close()
            if self._life_fd >= 0:
                os.close(self._life_fd)
            self._life_fd = -1

    def _reap(self) -> None:
        try:
            self._process.wait(_CLOSE_WAIT_S)
        except subprocess.TimeoutExpired as error:
            raise ProcessLost(f"the zygote (process {self.pid}) does not end", pid=self.pid) from error

    def _read(self) -> None:
        try:
            while (messages := self._channel.receive()) is not None:
                for message in messages:
                    self._take(message.body)
        finally:
            self._give_up()

    def _take(self, body: dict[str, Any]) -> None:
        if body["op"] == "ready":
            self._ready = ZygotePreloadReport(warnings=tuple(body["warnings"]), preload_s=body["preload_s"])
            self._is_ready.set()
            return
        with self._changing:
            forked = self._forked[body["id"]]
            if body["op"] != "forked":
                del self._forked[body["id"]]
            answer = None if body["op"] == "exit" else self._answers.pop(body["id"])
        if body["op"] == "forked":
            forked.begin(identity_from(body["pid"], body["start_ticks"]))
        elif body["op"] == "exit":
            forked.end(_exit_of(body), body["survivors"])
        if answer is not None:
            answer.put(body)

    def _give_up(self) -> None:
        """Handle the loss of the zygote: stop what its children may have left, then wake all waiting callers."""
        with self._changing:
            self._is_lost = True
            orphaned = list(self._forked.values())
            waiting = list(self._answers.values())
            self._forked.clear()
            self._answers.clear()
        for forked in orphaned:
            forked.lose(self._lost())
        for answer in waiting:
            answer.put(None)
        self._is_ready.set()

    def _lost(self) -> ProcessLost:
        if self._is_closed:
            return ProcessLost("the zygote is closed", hint="start another one")
        output = _tail(self._log)
        return ProcessLost(
            f"the zygote (process {self.pid}) is gone" + (f": {output.splitlines()[-1]}" if output else ""),
            hint="was it killed for memory?",
            output=output,
        )


def _exit_of(body: Mapping[str, Any]) -> ProcessExit:
    return ProcessExit(
        status=body["status"], signal=body["signal"], max_rss_bytes=body["max_rss_bytes"], cpu_s=body["cpu_s"]
    )


def _open_log(path: StrPath | None) -> int:
    if path is None:
        return os.open(os.devnull, os.O_WRONLY)
    with translated(path):
        # A pipe in its place is refused, without waiting for a reader.
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o644)


def _tail(log: IO[bytes]) -> str:
    with suppress(OSError, ValueError):
        fd = log.fileno()
        size = os.fstat(fd).st_size
        return os.pread(fd, _LOG_TAIL_BYTES, max(0, size - _LOG_TAIL_BYTES)).decode(errors="replace").strip()
    return ""
