"""Real processes for the tests of `host`: made, watched and waited for without sleeping blindly."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stoker.host.identity import read_row

PATIENCE_S = 90.0
"""Long enough for a machine on which others work. What never comes is found out as well a minute later."""


def fork(action: Callable[[], object]) -> int:
    """Run the action in a child of this process; its status says whether it raised."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        action()
    except BaseException:  # noqa: BLE001 - nothing may climb back into pytest's copy
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def code_of(pid: int) -> int:
    """Wait for a child of this process and give its status, or minus its signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_and_reap(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def is_running(pid: int) -> bool:
    row = read_row(pid)
    return row is not None and not row.is_gone


def wait_until(claim: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline_s, "it did not come true in time"
        time.sleep(0.005)


@contextmanager
def signal_pipe() -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """Return (say, await_it): one process says, another one waits for it."""
    read_fd, write_fd = os.pipe()

    def say() -> None:
        os.write(write_fd, b"x")

    def await_it() -> None:
        assert select.select([read_fd], [], [], PATIENCE_S)[0], "nobody said anything"
        os.read(read_fd, 1)

    try:
        yield say, await_it
    finally:
        os.close(read_fd)
        os.close(write_fd)
