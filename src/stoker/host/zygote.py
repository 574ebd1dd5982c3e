"""A warm process from which work is forked, seen from the process that orders the work.

    this process  ──orders, pipes──▶  zygote (imported once, one thread)  ──fork──▶  child: function(request, emit)
                  ◀─forked, ended───                                                   │
                  ◀───────────────────────── events, one JSON line each ───────────────┘

Forking costs milliseconds where starting an interpreter with its libraries costs seconds, and a child can neither
harm this process nor outlive it: when this process goes away, even by kill -9, the zygote kills everything and ends;
when the zygote goes away, the kernel kills its children and we stop what those had started. Only what deliberately left
its session survives a killed zygote, and only if both of us are killed at once does what children started go on.

Linux only; elsewhere `start` raises `Unavailable`. What a request means is the entry's affair.
"""

from __future__ import annotations

import itertools
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from signal import Signals
from typing import IO, Any

from stoker.host.channel import Channel
from stoker.host.durable import StrPath, translate, translated
from stoker.host.entry import Entry
from stoker.host.exit import Exit
from stoker.host.forked import Forked
from stoker.host.identity import identity_from
from stoker.host.processes import GRACE_S
from stoker.model import json_text
from stoker.model.closable import Closable
from stoker.model.errors import ProcessLost, Unavailable
from stoker.model.frozen import frozen

# The path is set before anything of ours is imported, so that the zygote sees the very modules that we see.
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]);"
    "from stoker.host.zygote_main import main; main(int(sys.argv[1]))"
)
_CLOSE_WAIT_S = 5.0
_LOG_TAIL_BYTES = 2000


@frozen
class Ready:
    """What the zygote says once it has imported everything."""

    warnings: tuple[str, ...]
    """What could not be preloaded, and threads that preloading left running."""
    preload_s: float


class Zygote(Closable):
    """The warm process. Any thread may fork from it and close it.

    It starts in the background: orders given before it is ready wait in line.
    """

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel, log: IO[bytes]) -> None:
        self._process = process
        self._channel = channel
        self._log = log
        self._ids = itertools.count(1)
        self._changing = threading.Lock()
        self._closing = threading.Lock()
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any] | None]] = {}
        self._forked: dict[int, Forked] = {}
        self._ready: Ready | None = None
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
        """Start a zygote. `linger_s` is what a child's leftovers get between being asked to end and being killed."""
        if sys.platform != "linux":
            raise Unavailable("work can be forked on Linux only", hint="run each stage in an interpreter of its own")
        ours, theirs = socket.socketpair()
        # Its own output: nobody reads it unless it dies.
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the zygote
        try:
            with theirs:
                process = subprocess.Popen(
                    # Without -P a json.py in the current folder would be taken for the library's.
                    [python, "-P", "-c", _BOOT, str(theirs.fileno()), json_text.dumps(list(sys_path))],
                    env=dict(env),
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            log.close()
            raise translate(error, error.filename or python) from error
        zygote = cls(process, Channel(ours), log)
        zygote._greet(preload, linger_s)
        return zygote

    def _greet(self, preload: Sequence[str], linger_s: float) -> None:
        self._reader.start()
        hello = {"op": "hello", "preload": list(preload), "parent_pid": os.getpid(), "linger_s": linger_s}
        life_read, self._life_fd = os.pipe()
        try:
            # If it is gone already, the reader says so to whoever asks.
            with suppress(OSError):
                self._channel.send(hello, [life_read])
        finally:
            os.close(life_read)

    @property
    def is_lost(self) -> bool:
        """Whether it is gone without having been closed: nothing can be forked from it any more."""
        return self._is_lost

    @property
    def loss(self) -> ProcessLost | None:
        """Why nothing of it is left, if it is lost."""
        return self._lost() if self._is_lost else None

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, timeout_s: float | None = None) -> Ready:
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
        box: Entry | None = None,
        fds: Sequence[int] = (),
    ) -> Forked:
        """Run `module:function(request, emit)` in a child; its output is appended to the log.

        Returns when the child exists. Somebody has to read its events: a full pipe makes the child wait. With a `box`
        the child enters it before it looks for the function; if it can't, waiting for it says why. `fds` (at most
        20) are open in the child, too, and in no other one: its request has their numbers there as `fds`, in the same
        order. Ours stay ours.
        """
        answer: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        fork_id = next(self._ids)
        log_fd = _open_log(log_path)
        read_fd, write_fd = os.pipe()
        forked = Forked(read_fd)
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
            # If nobody listens any more, the reader notices and answers for the zygote.
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

    def signal(self, children: Collection[Forked], number: Signals) -> None:
        """Signal children and their groups, except those that have ended.

        Nobody else can be meant: it is their parent who signals, before it reaps them.
        """
        with self._changing:
            ids = [fork_id for fork_id, forked in self._forked.items() if forked in children]
        # Whoever is gone has taken them along.
        with suppress(OSError):
            self._channel.send({"op": "signal", "ids": ids, "number": int(number)})

    def close(self, grace_s: float = GRACE_S) -> None:
        """Stop all children, politely and after `grace_s` firmly, and the zygote; confirmed. Twice is fine."""
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
            self._ready = Ready(warnings=tuple(body["warnings"]), preload_s=body["preload_s"])
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
        """The zygote is gone: stop what its children may have left, then tell everybody who waits."""
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
        said = _tail(self._log)
        return ProcessLost(
            f"the zygote (process {self.pid}) is gone" + (f": {said.splitlines()[-1]}" if said else ""),
            hint="was it killed for memory?",
            output=said,
        )


def _exit_of(body: Mapping[str, Any]) -> Exit:
    return Exit(status=body["status"], signal=body["signal"], max_rss_bytes=body["max_rss_bytes"], cpu_s=body["cpu_s"])


def _open_log(path: StrPath | None) -> int:
    if path is None:
        return os.open(os.devnull, os.O_WRONLY)
    with translated(path):
        # A pipe in its place is refused; nobody waits for a reader.
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o644)


def _tail(log: IO[bytes]) -> str:
    with suppress(OSError, ValueError):
        fd = log.fileno()
        size = os.fstat(fd).st_size
        return os.pread(fd, _LOG_TAIL_BYTES, max(0, size - _LOG_TAIL_BYTES)).decode(errors="replace").strip()
    return ""
