"""The supervisor of a company: starts its process in a box, watches it end, and leaves nothing behind.

    member (any run of this user)  ──starts──▶  supervisor (own session, one thread)  ──box──▶  child

It belongs to no run: the one that started it may end at any time. It holds no connection, only the door: when the
company has ended, it answers connections that still wait, and members that lost their connection find its last words in
an open file that they were given. It is never killed for one member; a company without any is.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import subprocess
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

from stoker.core.clock import SystemClock
from stoker.core.errors import InternalError, ProcessLost, StokerError
from stoker.core.jsontext import dumps, loads
from stoker.engine.runners.shared.members import SharedProcessExit, framed, words_as_json
from stoker.host.containment.box import MARK, ContainedGroup, ContainmentLimits
from stoker.host.containment.mechanisms import choose_mechanism
from stoker.host.linux import set_name
from stoker.host.processes import Child, start
from stoker.host.sockets import NamedSocket, NamedSocketListener
from stoker.host.user_switch import written

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]);"
    "from stoker.engine.runners.shared.shared_process import main; main(int(sys.argv[1]))"
)
_LOOK_S = 0.5
_TAIL_BYTES = 1 << 14
_KILL_WAIT_S = 5.0


def main(descriptor: int) -> NoReturn:
    """Become the supervisor of the company that an order describes: a process without a parent that waits."""
    if os.fork():
        os._exit(0)
    os.setsid()
    set_name("stoker-keeper")
    with open(descriptor, "rb") as file:
        order: dict[str, Any] = loads(file.read())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _end)
    words_fd = os.memfd_create("stoker-last-words", os.MFD_CLOEXEC)
    os._exit(SharedProcessSupervisor(order, words_fd).keep())


class SharedProcessSupervisor:
    """Keeps one company."""

    def __init__(self, order: dict[str, Any], words_fd: int) -> None:
        self._order = order
        self._words_fd = words_fd
        self._opened = NamedSocketListener(listener=socket.socket(fileno=order["listener_fd"]), mark=order["mark"])
        self._door = NamedSocket(order["folder"], order["name"])
        self._clock = SystemClock()
        self._tail = b""
        self._seen_s = self._look_at_s = self._clock.monotonic_s()

    def keep(self) -> int:
        """See the company through to its end; nothing of it is left then."""
        over: dict[str, Any] = {"over": True}
        try:
            words = self._run()
            if words.number is not None or words.status or words.was_out_of_memory:
                over["lost"] = words_as_json(words)
        except StokerError as error:
            over["refused"] = {"message": str(error), "hint": error.hint, "code": error.code}
        finally:
            with suppress(StokerError):
                self._door.close(self._opened)
            self._tell_waiting(over)
        return 0

    def _run(self) -> SharedProcessExit:
        order = self._order
        environment: dict[str, str] = order["environment"]
        limits = ContainmentLimits(memory_bytes=order["memory_bytes"], uses_gpu=bool(order["devices"]))
        mark = f"company-{order['name']}-{os.getpid()}"
        box = choose_mechanism(order["contain"], environment=environment).open(f"company-{order['name']}", limits, mark)
        try:
            child = self._start(box, {**environment, **order["variables"], MARK: mark})
            try:
                box.took_in(child.identity)
                self._watch(child, box)
            finally:
                # Its children may have left its group, but not the box.
                box.kill_all()
                ended = child.wait(_KILL_WAIT_S)
            words = SharedProcessExit(
                how=str(ended),
                status=ended.status,
                number=ended.signal,
                was_out_of_memory=box.read().was_out_of_memory,
                cap_bytes=order["memory_bytes"],
                said=self._tail.decode(errors="replace"),
            )
            os.pwrite(self._words_fd, dumps(words_as_json(words)).encode() + b"\n", 0)
            return words
        finally:
            box.close()

    def _start(self, box: ContainedGroup, environment: dict[str, str]) -> Child:
        order = self._order
        listener_fd = self._opened.listener.fileno()
        asked = {
            **{name: order[name] for name in ("run", "folder", "name", "mark", "devices", "linger_s", "sources_fd")},
            "listener_fd": listener_fd,
            "words_fd": self._words_fd,
            "keeper_pid": os.getpid(),
        }
        with open(order["sources_fd"], "rb"), written(asked) as descriptor:
            return start(
                # Without -P a json.py in the current folder would be taken for the library's.
                [order["python"], "-P", "-c", _BOOT, str(descriptor), dumps(order["sys_path"])],
                cwd=order["cwd"],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                entry=box.entry,
                pass_fds=(descriptor, listener_fd, self._words_fd, order["sources_fd"]),
            )

    def _watch(self, child: Child, box: ContainedGroup) -> None:
        """Wait for its end; end it where the kernel killed a part of it, or it has had no member for a while."""
        if child.stdout is None:
            raise InternalError("a company was started without a pipe for what it prints")
        output, end_fd = child.stdout, os.pidfd_open(child.identity.pid)
        with output:
            # What it started may hold the pipe open: only its own end counts.
            watched = [end_fd, output.fileno()]
            while end_fd not in (ready := select.select(watched, [], [], _LOOK_S)[0]):
                if ready and not self._hear(output.fileno()):
                    watched.remove(output.fileno())
                self._look_at(box)
            while select.select([output], [], [], 0)[0] and self._hear(output.fileno()):
                pass
        os.close(end_fd)

    def _hear(self, descriptor: int) -> bool:
        """Keep the end of what it prints; says whether it may print more."""
        chunk = os.read(descriptor, _TAIL_BYTES)
        self._tail = (self._tail + chunk)[-_TAIL_BYTES:]
        return bool(chunk)

    def _look_at(self, box: ContainedGroup) -> None:
        now_s = self._clock.monotonic_s()
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + _LOOK_S
        if box.read().was_out_of_memory or self._is_forsaken(now_s):
            box.kill_all()

    def _is_forsaken(self, now_s: float) -> bool:
        """Return whether no member has lived for a while: a company without members that does not end hangs."""
        try:
            # Every member holds it shared, through an opening of its own, as long as it lives.
            fcntl.flock(self._words_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._seen_s = now_s
            return False
        fcntl.flock(self._words_fd, fcntl.LOCK_UN)
        return bool(now_s - self._seen_s > self._order["patience_s"])

    def _tell_waiting(self, over: dict[str, Any]) -> None:
        """Answer every connection that still waits: the company is over."""
        listener = self._opened.listener
        listener.setblocking(False)
        # Later connections see the end of the connection.
        with suppress(OSError):
            while True:
                link, _ = listener.accept()
                with link, suppress(OSError):
                    link.sendall(framed(over))


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Once is enough: what follows is not to be disturbed.
        signal.signal(number, signal.SIG_IGN)
    raise ProcessLost("its keeper was told to end")
