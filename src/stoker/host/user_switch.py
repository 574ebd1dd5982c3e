"""Small scripts of ours that become another program: their orders, and how they are started.

Nothing that the program's owner chose is present before the script has become the program: not its environment (a
library that it names would run as us), not its folder. All of it is in a descriptor, which never touches a disk if the
system supports that.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from stoker.core.clock import Clock
from stoker.core.errors import ContainmentUnavailable, ProcessLost
from stoker.host.box_entry import ChildSetup
from stoker.host.containment.box import MARK
from stoker.host.durable import write_all
from stoker.host.identity import ProcessRow, living_rows
from stoker.host.processes import Child, Stream, signal_one, start
from stoker.host.resources import own_group
from stoker.host.users import OtherUser

# The processes of a user: found, and killed for certain. For users that run nothing but our jobs.

_END_WAIT_S = 5.0
_PAUSE_S = 0.01


def processes_of(uid: int) -> tuple[ProcessRow, ...]:
    """Return the processes that act for a user, by any of its ids."""
    if sys.platform != "linux":
        return ()
    from stoker.host.identity import users_of  # noqa: PLC0415 - it is there on Linux only

    return tuple(row for row in living_rows() if row.pid != os.getpid() and uid in users_of(row.pid))


def end_everybody_of(uid: int, clock: Clock) -> int:
    """Kill all processes of a user, confirmed; return how many there were. Raises `ProcessLost`."""
    if uid == 0:
        message = "root's processes are not ours to end"
        raise ValueError(message)
    until_s = clock.monotonic_s() + _END_WAIT_S
    seen: set[int] = set()
    while left := processes_of(uid):
        seen.update(row.pid for row in left)
        for row in left:
            # None can fork while we go through the list.
            signal_one(row, signal.SIGSTOP)
        for row in left:
            signal_one(row, signal.SIGKILL)
        if clock.monotonic_s() >= until_s:
            pids = [row.pid for row in left]
            raise ProcessLost(f"still there after SIGKILL: {pids} of user {uid}", pids=pids)
        clock.sleep(_PAUSE_S)
    return len(seen)


def is_of_a_job(row: ProcessRow) -> bool:
    """Return True if we started a process for a job, as far as its environment shows."""
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
        import tempfile  # noqa: PLC0415 - milliseconds at every start

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
    """Start one of the scripts with an order; of the program's variables it gets the mark of its box alone."""
    ours = {"PATH": _PATH, "LC_ALL": "C.UTF-8", MARK: env.get(MARK, "")}
    command = [sys.executable, "-I", "-S", "-B", script, str(descriptor)]
    return start(
        command, cwd="/", env=ours, stdin=stdin, stdout=stdout, stderr=stderr, entry=entry, pass_fds=(descriptor,)
    )


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

    If the user may not enter the folder or execute the program, the script writes that to standard error and exits
    with 126.

    Nothing that the program's owner chose is present before the switch, which the few lines of `run_as_script` make: it
    waits in an order. After the switch nothing leads back: no privilege can be gained, nothing of ours is open.
    """
    if sys.platform != "linux":
        raise ContainmentUnavailable("programs run as other users on Linux only")
    with written({"argv": list(argv), "folder": cwd, "env": dict(env), **user.to_dict()}) as descriptor:
        return start_script(SWITCHED, descriptor, env, stdout=stdout, stderr=stderr, entry=entry)


# Commands beside a running program: in its control groups, as its user, with a terminal of their own if they need one.


class AttachedCommand:
    """A started command, and our ends of its streams."""

    def __init__(self, child: Child, input_fd: int, outputs: tuple[int, ...], *, is_tty: bool) -> None:
        self.child = child
        self.input = input_fd
        """Its standard input."""
        self.outputs = outputs
        """Its output, then its errors; of a terminal both are one."""
        self.is_tty = is_tty
        self._open = {input_fd, *outputs}

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal."""
        if self.is_tty:
            with suppress(OSError):
                _set_size(self.input, (rows, columns))

    def end_input(self) -> None:
        """Close its standard input. At a terminal the user does that."""
        if not self.is_tty:
            self.close_one(self.input)

    def close_one(self, descriptor: int) -> None:
        """Close one end. Idempotent."""
        if descriptor in self._open:
            self._open.discard(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        """Close all ends."""
        for descriptor in list(self._open):
            self.close_one(descriptor)


def attach(
    argv: Sequence[str],
    *,
    folder: str,
    env: Mapping[str, str],
    size: tuple[int, int] | None,
    procs_files: Sequence[str] = (),
    user: OtherUser | None = None,
) -> AttachedCommand:
    """Start a command; with a `size` at a terminal of that many rows and columns. Its first word is a path.

    If it can't be executed, or its folder can't be entered, the script writes that to its errors and exits with 126.
    """
    order = {
        "argv": list(argv),
        "folder": folder,
        "env": dict(env),
        "procs_files": list(procs_files),
        "is_tty": size is not None,
        "switched": SWITCHED,
        **({} if user is None else user.to_dict()),
    }
    with written(order) as descriptor:
        return _at_pipes(descriptor, env) if size is None else _at_terminal(descriptor, env, size, user)


def procs_files_of(pid: int) -> tuple[str, ...]:
    """Return the files by which other processes enter the memory control groups of a process, if it has its own."""
    found = []
    for version in (2, 1):
        theirs, ours = (own_group("memory", version, of=who) for who in (pid, "self"))
        if theirs is not None and theirs != ours:
            found.append(os.path.join(theirs, "cgroup.procs"))
    return tuple(found)


def _at_pipes(descriptor: int, env: Mapping[str, str]) -> AttachedCommand:
    pipes = [os.pipe() for _ in range(3)]
    (stdin, our_in), (our_out, stdout), (our_errors, stderr) = pipes
    try:
        child = _start(descriptor, env, (stdin, stdout, stderr))
    except BaseException:
        for end in (our_in, our_out, our_errors):
            os.close(end)
        raise
    finally:
        for end in (stdin, stdout, stderr):
            os.close(end)
    return AttachedCommand(child, our_in, (our_out, our_errors), is_tty=False)


def _at_terminal(
    descriptor: int, env: Mapping[str, str], size: tuple[int, int], user: OtherUser | None
) -> AttachedCommand:
    ours, theirs = os.openpty()
    try:
        _set_size(ours, size)
        if user is not None:
            os.fchown(theirs, user.uid, -1)
        child = _start(descriptor, env, (theirs, theirs, theirs))
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return AttachedCommand(child, ours, (ours,), is_tty=True)


def _start(descriptor: int, env: Mapping[str, str], streams: tuple[int, int, int]) -> Child:
    stdin, stdout, stderr = streams
    return start_script(SEATED, descriptor, env, stdin=stdin, stdout=stdout, stderr=stderr)


def _set_size(terminal: int, size: tuple[int, int]) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
