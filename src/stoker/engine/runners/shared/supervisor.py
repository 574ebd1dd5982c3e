"""The supervisor of a shared process: starts it in containment, waits for its end, and cleans up.

    member (any run of this user)  ──starts──▶  supervisor (own session, one thread)  ──▶  shared process

It belongs to no run: the one that started it may end at any time. It holds the socket and no connection. When the
process has ended, it answers connections that still wait; members that lost their connection read the exit file. The
shared process is never killed for one member, but it is killed if it has no members and does not end.
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
from stoker.core.frozen import fields_of
from stoker.core.jsontext import dumps, loads
from stoker.engine.runners.shared.members import SharedProcessExit, framed
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
    """Fork, and become the supervisor of the shared process that a request describes."""
    if os.fork():
        os._exit(0)
    os.setsid()
    set_name("stoker-keeper")
    with open(descriptor, "rb") as file:
        order: dict[str, Any] = loads(file.read())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _end)
    exit_fd = os.memfd_create("stoker-last-words", os.MFD_CLOEXEC)
    os._exit(SharedProcessSupervisor(order, exit_fd).supervise())


class SharedProcessSupervisor:
    """Supervises one shared process."""

    def __init__(self, order: dict[str, Any], exit_fd: int) -> None:
        self._order = order
        self._exit_fd = exit_fd
        self._opened = NamedSocketListener(listener=socket.socket(fileno=order["listener_fd"]), mark=order["mark"])
        self._door = NamedSocket(order["folder"], order["name"])
        self._clock = SystemClock()
        self._tail = b""
        self._had_members = False
        self._seen_s = self._check_at_s = self._clock.monotonic_s()

    def supervise(self) -> int:
        """Run the shared process until it ends; nothing of it is left then."""
        over: dict[str, Any] = {"over": True}
        try:
            ended = self._run()
            has_failed = ended.number is not None or ended.status or ended.was_out_of_memory
            if has_failed and not self._had_members:
                # A connection that came after the members' end joins the next process instead.
                over["lost"] = fields_of(ended)
        except StokerError as error:
            over["refused"] = {"message": str(error), "hint": error.hint, "code": error.code}
        finally:
            with suppress(StokerError):
                self._door.close(self._opened)
            self._answer_waiting(over)
        return 0

    def _run(self) -> SharedProcessExit:
        order = self._order
        environment: dict[str, str] = order["environment"]
        limits = ContainmentLimits(memory_bytes=order["memory_bytes"], uses_gpu=bool(order["devices"]))
        label = f"company-{order['name']}"
        mark = f"{label}-{os.getpid()}"
        box = choose_mechanism(order["contain"], environment=environment).open(label, limits, mark)
        try:
            child = self._start(box, {**environment, **order["variables"], MARK: mark})
            try:
                box.took_in(child.identity)
                self._watch(child, box)
            finally:
                # Its children may have left its process group, but not the containment.
                box.kill_all()
                status = child.wait(_KILL_WAIT_S)
                # Members that lose their connection hold their locks until the exit file is written.
                self._is_joined()
            ended = SharedProcessExit(
                how=str(status),
                status=status.status,
                number=status.signal,
                was_out_of_memory=box.read().was_out_of_memory,
                cap_bytes=order["memory_bytes"],
                said=self._tail.decode(errors="replace"),
            )
            os.pwrite(self._exit_fd, dumps(fields_of(ended)).encode() + b"\n", 0)
            return ended
        finally:
            box.close()

    def _start(self, box: ContainedGroup, environment: dict[str, str]) -> Child:
        order = self._order
        listener_fd = self._opened.listener.fileno()
        request = {
            **{name: order[name] for name in ("run", "folder", "name", "mark", "devices", "linger_s", "sources_fd")},
            "listener_fd": listener_fd,
            "exit_fd": self._exit_fd,
            "keeper_pid": os.getpid(),
        }
        with open(order["sources_fd"], "rb"), written(request) as descriptor:
            return start(
                # Without -P, a json.py in the current folder would shadow the library.
                [order["python"], "-P", "-c", _BOOT, str(descriptor), dumps(order["sys_path"])],
                cwd=order["cwd"],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                entry=box.entry,
                pass_fds=(descriptor, listener_fd, self._exit_fd, order["sources_fd"]),
            )

    def _watch(self, child: Child, box: ContainedGroup) -> None:
        """Wait for its end; kill it if the kernel killed a part of it, or if it has had no member for a while."""
        if child.stdout is None:
            raise InternalError("a shared process was started without a pipe for its output")
        output, end_fd = child.stdout, os.pidfd_open(child.identity.pid)
        with output:
            # Its children may hold the pipe open: only its own end counts.
            watched = [end_fd, output.fileno()]
            while end_fd not in (ready := select.select(watched, [], [], _LOOK_S)[0]):
                if ready and not self._read_output(output.fileno()):
                    watched.remove(output.fileno())
                self._check(box)
            while select.select([output], [], [], 0)[0] and self._read_output(output.fileno()):
                pass
        os.close(end_fd)

    def _read_output(self, descriptor: int) -> bool:
        """Keep the end of its output; return False at the end of the pipe."""
        chunk = os.read(descriptor, _TAIL_BYTES)
        self._tail = (self._tail + chunk)[-_TAIL_BYTES:]
        return bool(chunk)

    def _check(self, box: ContainedGroup) -> None:
        now_s = self._clock.monotonic_s()
        if now_s < self._check_at_s:
            return
        self._check_at_s = now_s + _LOOK_S
        if box.read().was_out_of_memory or self._is_abandoned(now_s):
            box.kill_all()

    def _is_abandoned(self, now_s: float) -> bool:
        """Return True if there was no member for longer than the timeout: the process hangs."""
        if self._is_joined():
            self._seen_s = now_s
            return False
        return bool(now_s - self._seen_s > self._order["patience_s"])

    def _is_joined(self) -> bool:
        """Return True if there is a member: every living one holds a shared lock, by a file description of its own."""
        try:
            fcntl.flock(self._exit_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._had_members = True
            return True
        fcntl.flock(self._exit_fd, fcntl.LOCK_UN)
        return False

    def _answer_waiting(self, over: dict[str, Any]) -> None:
        """Send `over` to every connection that still waits."""
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
        # Ignore further signals: the cleanup must not be interrupted.
        signal.signal(number, signal.SIG_IGN)
    raise ProcessLost("its supervisor was terminated")
