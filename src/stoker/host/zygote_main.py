"""The warm process itself: imports what work will need, once, and forks a child per order.

Guarantees: it has one thread and runs none of the work. An end of a child is reported only when nothing of the child's
session is left: leftovers get TERM, and KILL after `linger_s`. Descendants that left their session are reparented to
us, and are killed as soon as no other child runs that could still own them. When the other side goes away, even by
kill -9, everything is killed and this process ends.

Started by `zygote`, the only process that talks to it. Linux only.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from stoker.core.frozen import compile_constructors
from stoker.host import linux
from stoker.host.identity import ProcessRow, held, read_row
from stoker.host.import_watch import watch_imports
from stoker.host.linux import HANDLED, has_ended, reap, signal_child
from stoker.host.sockets import Channel, ReceivedMessage
from stoker.host.zygote_child import ChildPipes, run_forked

# While something is being ended, this often is checked whether it has.
_LOOK_AGAIN_S = 0.01
_IDLE_S = 0.02
_KILL_WAIT_S = 5.0


def main(control_fd: int) -> None:
    """Serve orders until the other side closes."""
    linux.set_name("stoker-zygote")
    linux.adopt_orphans()
    # Automatic collection would touch, and so copy, pages that all children share.
    gc.disable()
    ZygoteServer(Channel(socket.socket(fileno=control_fd))).serve()
    # Nothing of ours is left to write, and taking the preloaded libraries apart takes a while.
    os._exit(0)


@dataclass(slots=True, kw_only=True)
class Fork:
    """One child. Its number can't be reused before we reap it."""

    id: int
    pid: int
    has_ended: bool = False
    kill_at_s: float | None = None
    """When what remains of it is killed."""


class ZygoteServer:
    """The loop: orders and ends of children come in, answers and ends go out."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._forks: dict[int, Fork] = {}
        self._own_children: frozenset[int] = frozenset()
        self._linger_s = 0.0
        self._close_at_s: float | None = None
        self._pid = os.getpid()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector = selectors.DefaultSelector()
        self._fds = [channel.fileno(), self._wake_read, self._wake_write, self._selector.fileno()]
        self._waiting: list[ReceivedMessage] = []
        self._moves = linux.moves()
        self._is_settled = False

    def serve(self) -> None:
        """Report readiness, then serve until the other side closes; leave no process behind."""
        try:
            # The other side may go away at any moment, and that is a request to end.
            with suppress(ConnectionError):
                self._serve(self._hello())
        finally:
            self._kill_all()

    def _serve(self, waiting: list[ReceivedMessage]) -> None:
        self._watch()
        while True:
            self._waiting = waiting
            while self._waiting:
                self._obey(self._waiting.pop(0))
            self._tend()
            if self._close_at_s is not None and not self._forks:
                break
            ready = {key.data for key, _ in self._selector.select(self._pause_s())}
            if not ready and not self._forks and next(self._moves, None) is None:
                self._is_settled = True
            if self._is_told_to_end(ready):
                break
            received = self._channel.receive() if "channel" in ready else []
            if received is None:
                break
            waiting = received

    def _pause_s(self) -> float | None:
        """Return how long to wait for something to do."""
        if self._is_ending:
            return _LOOK_AGAIN_S
        # Idle for the first time: memory that children will share is rearranged, a little at a time.
        return None if self._is_settled or self._forks else _IDLE_S

    def _hello(self) -> list[ReceivedMessage]:
        """Read the first message and carry it out; return those that came behind it."""
        messages: list[ReceivedMessage] = []
        while not messages:
            received = self._channel.receive()
            if received is None:
                sys.exit(0)
            messages += received
        hello = messages[0].body
        self._linger_s = hello["linger_s"]
        parent_fd = os.pidfd_open(hello["parent_pid"])
        if os.getppid() != hello["parent_pid"]:
            sys.exit(0)
        # Beside the channel's end, because a process forked by our parent may hold that open.
        self._selector.register(parent_fd, selectors.EVENT_READ, "parent")
        self._fds.append(parent_fd)
        started_s = time.monotonic()
        (life_fd,) = messages[0].fds
        # Importing takes seconds, in which the selector is not polled.
        with held(life_fd):
            watch_imports()
            warnings = _preload(hello["preload"])
        os.close(life_fd)
        preload_s = time.monotonic() - started_s
        warnings += _threads_left()
        compile_constructors()
        gc.collect()
        gc.freeze()
        self._own_children = frozenset(self._children())
        self._channel.send({"op": "ready", "warnings": warnings, "preload_s": preload_s})
        return messages[1:]

    def _watch(self) -> None:
        self._selector.register(self._channel, selectors.EVENT_READ, "channel")
        self._selector.register(self._wake_read, selectors.EVENT_READ, "signal")
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in HANDLED:
            signal.signal(number, _leave_it_to_the_loop)

    def _is_told_to_end(self, ready: set[str]) -> bool:
        if "parent" in ready:
            return True
        numbers = os.read(self._wake_read, 4096) if "signal" in ready else b""
        return signal.SIGTERM in numbers or signal.SIGINT in numbers or signal.SIGHUP in numbers

    def _obey(self, message: ReceivedMessage) -> None:
        order = message.body
        if order["op"] == "fork":
            self._fork(order, message.fds)
        elif order["op"] == "signal":
            for fork in self._forks.values():
                if fork.id in order["ids"]:
                    signal_child(fork.pid, order["number"])
        elif order["op"] == "close" and self._close_at_s is None:
            self._close_at_s = time.monotonic() + order["grace_s"]
            self._signal_all(signal.SIGTERM)

    def _fork(self, order: dict[str, Any], fds: list[int]) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            pid = os.fork()
            if pid == 0:
                events_fd, log_fd, *given = fds
                gate_fd = given.pop(0) if order["is_gated"] else None
                ends = ChildPipes(events_fd=events_fd, log_fd=log_fd, gate_fd=gate_fd, given_fds=given)
                # Signals for children that are still to be made are theirs alone.
                later = [fd for message in self._waiting for fd in message.fds]
                not_its_own = [*self._fds, *later, *self._channel.unclaimed_fds]
                run_forked(order, ends, zygote_pid=self._pid, zygote_fds=not_its_own)
        except OSError as error:
            self._channel.send({"op": "refused", "id": order["id"], "why": error.strerror})
            return
        finally:
            # Only we get here: the child ends in `run_forked`.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
            for fd in fds:
                os.close(fd)
        row = read_row(pid)
        self._forks[pid] = Fork(id=order["id"], pid=pid)
        self._channel.send(
            {"op": "forked", "id": order["id"], "pid": pid, "start_ticks": row.start_ticks if row else 0}
        )

    @property
    def _is_ending(self) -> bool:
        return self._close_at_s is not None or any(fork.has_ended for fork in self._forks.values())

    def _tend(self) -> None:
        """Notice ends, clean up what they leave behind, and report those that leave nothing."""
        now_s = time.monotonic()
        if self._is_past_closing(now_s):
            self._signal_all(signal.SIGKILL)
        for fork in self._forks.values():
            fork.has_ended = fork.has_ended or has_ended(fork.pid)
        orphans = self._orphans()
        others_run = any(not fork.has_ended for fork in self._forks.values())
        for fork in [fork for fork in self._forks.values() if fork.has_ended]:
            # The owner of a process that left its session is unknown; once only this child is left, it is this one.
            remains = [
                row for row in orphans if row.session == fork.pid or (row.session not in self._forks and not others_run)
            ]
            if remains and not self._is_given_up(fork, now_s):
                self._end_remains(fork, remains, now_s)
            else:
                self._report(fork, remains)

    def _orphans(self) -> list[ProcessRow]:
        """Return the living descendants of children that came to us because their own parents ended."""
        orphans = []
        for pid in self._children():
            if pid in self._forks or pid in self._own_children:
                continue
            row = read_row(pid)
            if row is not None and not row.is_gone:
                orphans.append(row)
                continue
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return orphans

    def _end_remains(self, fork: Fork, remains: list[ProcessRow], now_s: float) -> None:
        if fork.kill_at_s is None:
            fork.kill_at_s = now_s + self._linger_s
            number = signal.SIGTERM
        elif now_s >= fork.kill_at_s or self._is_past_closing(now_s):
            number = signal.SIGKILL
        else:
            return
        signal_child(fork.pid, number)
        for row in remains:
            # Our own children, not yet reaped: the numbers are theirs.
            with suppress(ProcessLookupError, PermissionError):
                os.kill(row.pid, number)

    def _is_past_closing(self, now_s: float) -> bool:
        return self._close_at_s is not None and now_s >= self._close_at_s

    def _is_given_up(self, fork: Fork, now_s: float) -> bool:
        return fork.kill_at_s is not None and now_s >= fork.kill_at_s + _KILL_WAIT_S

    def _report(self, fork: Fork, survivors: list[ProcessRow]) -> None:
        # Processes that joined its group since the last check.
        signal_child(fork.pid, signal.SIGKILL)
        end = reap(fork.pid)
        del self._forks[fork.pid]
        self._channel.send(
            {
                "op": "exit",
                "id": fork.id,
                "status": end.status,
                "signal": end.signal,
                "max_rss_bytes": end.max_rss_bytes,
                "cpu_s": end.cpu_s,
                "survivors": [row.pid for row in survivors],
            }
        )

    def _signal_all(self, number: signal.Signals) -> None:
        for fork in self._forks.values():
            signal_child(fork.pid, number)

    def _kill_all(self) -> None:
        """Kill every child and every orphan, and the orphans that this makes, until none is left."""
        deadline_s = time.monotonic() + _KILL_WAIT_S
        while time.monotonic() < deadline_s:
            left = [pid for pid in self._children() if pid not in self._own_children]
            if not left:
                return
            for pid in left:
                signal_child(pid, signal.SIGKILL)
            # A killed process is reaped within moments; its children become ours before it can be.
            for pid in left:
                with suppress(ChildProcessError):
                    if os.waitpid(pid, os.WNOHANG)[0]:
                        self._forks.pop(pid, None)
            self._selector.select(0.001)

    def _children(self) -> list[int]:
        with open(f"/proc/self/task/{self._pid}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]


def _leave_it_to_the_loop(number: int, frame: object) -> None:
    """Do nothing: the number goes through the wake-up pipe."""


def _preload(names: list[str]) -> list[str]:
    warnings = []
    for name in names:
        try:
            import_module(name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the work may not need it, or reports it better
            warnings.append(f"can't preload {name}: {type(error).__name__}: {error}")
    return warnings


def _threads_left() -> list[str]:
    """Fork once for trial: libraries that have threads and know about forking end them at that moment."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    count = len(os.listdir("/proc/self/task"))
    return [] if count == 1 else [f"{count - 1} threads run beside the first after preloading; forked work may hang"]
