"""Downloads in real processes that can be killed: a parent without threads that forks one per order it reads.

Started seldom and asked by lines of JSON, so that a process costs a fork and not an interpreter. What a test
wants to go wrong inside such a process (a lock that lies, a failing sync, a death before a certain step) stands in its
order; nothing of it is known to Stoker.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import stoker.host.http.connections as _loaded_before_the_fork  # noqa: F401 - else every process would load it anew
from stoker.core.clock import SystemClock
from stoker.core.digests import Digest
from stoker.core.errors import Cancelled, StokerError, Terminated
from stoker.host import writers
from stoker.host.durable import NO_STEP
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import HttpSettings
from stoker.host.resources import free_bytes
from stoker.transfer.download import content
from stoker.transfer.download.download import fetch_file
from stoker.transfer.download.types import DownloadRequest, DownloadStop, DownloadTimeouts, DownloadTools, TargetFile

# What changes a file system; a process may be told to die, or to fail, at the n-th of them.
CALLS = ("rename", "replace", "unlink", "link", "mkdir", "fsync", "fdatasync", "ftruncate", "truncate", "pwrite")


def main() -> None:
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os._exit(_end(order))
        print(pid, flush=True)
        if sys.stdin.readline() != "wait\n":
            return
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(code, flush=True)


def _end(order: dict[str, Any]) -> int:
    try:
        return carry_out(order)
    except BaseException:  # noqa: BLE001 - nothing may climb back into the parent's copy
        traceback.print_exc()
        return 70


def carry_out(order: dict[str, Any]) -> int:
    """Fetch one file and give the exit code."""
    stop = DownloadStop()
    signal.signal(signal.SIGINT, lambda number, frame: stop.ask(Cancelled("interrupted")))
    signal.signal(signal.SIGTERM, lambda number, frame: stop.ask(Terminated("terminated")))
    countdown = Countdown(**order["at"]) if order.get("at") else None
    LOCKS[order.get("flock", "works")]()
    content.DIRECT_BYTES = order.get("direct_bytes", content.DIRECT_BYTES)
    writers.BLOCK_BYTES = order.get("block_bytes", writers.BLOCK_BYTES)
    if countdown is not None:
        countdown.watch_calls()
    transport = Urllib3Transport(HttpSettings(connect_s=5, read_s=order.get("read_s", 10.0)))
    tools = DownloadTools(
        transport=transport,
        clock=SystemClock(),
        free_bytes=free_bytes if order.get("counts_space", True) else lambda path: 1 << 50,
        jitter=lambda: 0.0,
        on_step=countdown if countdown and countdown.steps else NO_STEP,
    )
    wanted = DownloadRequest(url=order["url"], sha256=Digest(order["sha256"]) if order.get("sha256") else None)
    try:
        fetch_file(
            wanted,
            TargetFile(folder=order["folder"], name=order["name"]),
            tools=tools,
            patience=DownloadTimeouts(**order.get("patience", {})),
            stop=stop,
        )
    except StokerError as error:
        if order.get("is_verbose"):
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


@dataclass
class Countdown:
    """Does something just before the n-th thing that it is told of: a step of the download, or a call."""

    left: int
    does: str
    steps: bool = True
    calls: tuple[str, ...] = CALLS

    def __call__(self, what: str) -> None:
        self.left -= 1
        if self.left != -1:
            return
        if self.does in ("EIO", "ENOSPC", "EDQUOT"):
            number = getattr(errno, self.does)
            raise OSError(number, os.strerror(number))
        os.kill(os.getpid(), getattr(signal, self.does))

    def watch_calls(self) -> None:
        for name in self.calls:
            setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object, **options: object) -> object:
            self(name)
            return call(*args, **options)

        return counted


def _lie() -> None:
    setattr(fcntl, "flock", lambda fd, operation: None)  # noqa: B010 - the plain assignment is no valid type


def _refuse() -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    setattr(fcntl, "flock", flock)  # noqa: B010 - the same


LOCKS: dict[str, Callable[[], None]] = {"works": lambda: None, "lies": _lie, "is missing": _refuse}

if __name__ == "__main__":
    main()
