"""Small scripts of ours that become another program: what they are told, and how they are started.

Nothing that the program's owner chose is there before it is the program: not its environment (a library that it names
would run as us), not its folder. All of it waits in a descriptor, which never touches a disk where the system can do
without.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from stoker.core.clock import Clock
from stoker.core.errors import ContainmentUnavailable, ProcessLost
from stoker.host.box_entry import ChildSetup
from stoker.host.containment.box import MARK
from stoker.host.durable import write_all
from stoker.host.process_table import ProcessRow, living_rows
from stoker.host.processes import Child, Stream, signal_one, start
from stoker.host.users import OtherUser

# Everybody who runs as a user: found, and ended for certain. For users that have nothing else to run than our jobs.

_END_WAIT_S = 5.0
_PAUSE_S = 0.01


def processes_of(uid: int) -> tuple[ProcessRow, ...]:
    """Give everybody who acts for a user: in any of its ids."""
    if sys.platform != "linux":
        return ()
    from stoker.host.process_table import users_of  # noqa: PLC0415 - it is there on Linux only

    return tuple(row for row in living_rows() if row.pid != os.getpid() and uid in users_of(row.pid))


def end_everybody_of(uid: int, clock: Clock) -> int:
    """Kill everybody who runs as a user, and see them gone; give how many that were. Raises `ProcessLost`."""
    if uid == 0:
        message = "root's processes are not ours to end"
        raise ValueError(message)
    until_s = clock.monotonic_s() + _END_WAIT_S
    seen: set[int] = set()
    while left := processes_of(uid):
        seen.update(row.pid for row in left)
        for row in left:
            # Nobody forks while we go through the list.
            signal_one(row, signal.SIGSTOP)
        for row in left:
            signal_one(row, signal.SIGKILL)
        if clock.monotonic_s() >= until_s:
            pids = [row.pid for row in left]
            raise ProcessLost(f"still there after SIGKILL: {pids} of user {uid}", pids=pids)
        clock.sleep(_PAUSE_S)
    return len(seen)


def is_of_a_job(row: ProcessRow) -> bool:
    """Return whether a process was started by us for a job, as far as its environment tells."""
    try:
        with open(f"/proc/{row.pid}/environ", "rb") as file:
            return any(one.startswith(f"{MARK}=".encode()) for one in file.read().split(b"\0"))
    except OSError:
        return False


_HERE = os.path.dirname(__file__)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

SEATED = os.path.join(_HERE, "attach_script.py")
SWITCHED = os.path.join(_HERE, "run_as_script.py")


@contextmanager
def written(order: Mapping[str, object]) -> Iterator[int]:
    """Return a descriptor with an order in it, for the length of the block."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("stoker-order", os.MFD_CLOEXEC)
    else:
        descriptor, path = tempfile.mkstemp()
        os.unlink(path)
    try:
        write_all(descriptor, json.dumps(order).encode("ascii"), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def start_script(  # noqa: PLR0913 - what a process is made of
    script: str,
    descriptor: int,
    env: Mapping[str, str],
    *,
    stdout: Stream,
    stderr: Stream,
    stdin: Stream = subprocess.DEVNULL,
    entry: ChildSetup | None = None,
) -> Child:
    """Start one of the scripts with an order; of the program's variables it has the mark of its box alone."""
    ours = {"PATH": _PATH, "LC_ALL": "C.UTF-8", MARK: env.get(MARK, "")}
    command = [sys.executable, "-I", "-S", "-B", script, str(descriptor)]
    return start(
        command, cwd="/", env=ours, stdin=stdin, stdout=stdout, stderr=stderr, entry=entry, pass_fds=(descriptor,)
    )


# Programs started as another user: inside their box first, as root, and then that user for good.
#
# Nothing that the program's owner chose is there before the switch, which the few lines of `run_as_script` make: it
# waits in an order (`user_switch`). After the switch nothing leads back: no privilege can be gained, nothing of ours
# is open.


def start_as(  # noqa: PLR0913 - what a process is made of
    user: OtherUser,
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    stdout: Stream = subprocess.DEVNULL,
    stderr: Stream = subprocess.DEVNULL,
    entry: ChildSetup | None = None,
) -> Child:
    """Start a program as another user, the leader of its own session. Raises as `processes.start` does.

    A folder that the user may not enter, or a program that it may not execute, is told on the program's standard error;
    it ends with 126.
    """
    if sys.platform != "linux":
        raise ContainmentUnavailable("programs run as other users on Linux only")
    with written({"argv": list(argv), "folder": cwd, "env": dict(env), **user.to_dict()}) as descriptor:
        return start_script(SWITCHED, descriptor, env, stdout=stdout, stderr=stderr, entry=entry)
