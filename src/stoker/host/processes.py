"""Programs started in a group of their own, and the confirmed stop of groups.

Every program leads its own session, so one stop reaches all of it: TERM to all, wait, KILL to all, then check until
none is left or report the survivors. It works for our children and for processes that we only know by identity, such
as those of a run that was killed. Before each signal the identity is
checked: a recycled number is never signalled.

Not here: work forked from a warm process (`zygote`), limits on memory and processes that leave their session
(`containment`), and what a stage's end means.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import IO

from stoker.core.clock import Clock, SystemClock
from stoker.core.errors import ContainmentUnavailable, ProcessLost
from stoker.host.box_entry import ChildSetup, find_program, see_in, through_shell
from stoker.host.durable import StrPath, translate
from stoker.host.identity import (
    Liveness,
    ProcessExit,
    ProcessIdentity,
    ProcessRow,
    exit_from,
    identity_from,
    is_alive,
    is_of_this_boot,
    living_rows,
    read_row,
)

GRACE_S = 10.0
# Long enough for the kernel to release a process that has gigabytes mapped.
_KILL_WAIT_S = 5.0
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05

Stream = int | IO[bytes]
"""A descriptor, an open file, or one of subprocess's `DEVNULL`, `PIPE` and `STDOUT`."""


class StopOutcome(Enum):
    """What it took to stop a group."""

    ALREADY_GONE = "already_gone"
    POLITE = "polite"
    FIRM = "firm"


class GroupLeader(ABC):
    """A process of ours that leads its own session and process group."""

    identity: ProcessIdentity

    @abstractmethod
    def poll(self) -> ProcessExit | None:
        """Return how it ended, or `None` while it runs."""

    def wait(self, timeout_s: float | None = None, clock: Clock | None = None) -> ProcessExit:
        """Wait for the process itself (not for the rest of its group). Raises `TimeoutError`."""
        clock = clock or SystemClock()
        deadline_s = None if timeout_s is None else clock.monotonic_s() + timeout_s
        pause_s = _FIRST_PAUSE_S
        while (ended := self.poll()) is None:
            if deadline_s is not None and clock.monotonic_s() >= deadline_s:
                message = f"process {self.identity.pid} still runs"
                raise TimeoutError(message)
            clock.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        return ended


class Child(GroupLeader):
    """A program that we started."""

    def __init__(self, process: subprocess.Popen[bytes], identity: ProcessIdentity) -> None:
        self.identity = identity
        self._process = process
        self._exit: ProcessExit | None = None
        self._reaping = threading.Lock()

    @property
    def stdin(self) -> IO[bytes] | None:
        """Our end, if it was started with a pipe."""
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes] | None:
        """Our end, if it was started with a pipe."""
        return self._process.stdout

    @property
    def stderr(self) -> IO[bytes] | None:
        """Our end, if it was started with a pipe."""
        return self._process.stderr

    def poll(self) -> ProcessExit | None:
        with self._reaping:
            if self._exit is None:
                pid, status, usage = os.wait4(self.identity.pid, os.WNOHANG)
                if pid:
                    self._exit = exit_from(status, usage.ru_maxrss, usage.ru_utime + usage.ru_stime)
                    # Otherwise Popen would look for the process again when it is collected.
                    self._process.returncode = os.waitstatus_to_exitcode(status)
            return self._exit

    def stop(self, *, grace_s: float = GRACE_S, clock: Clock | None = None) -> StopOutcome:
        """Stop the whole group and reap the program; see `stop_group`."""
        stopped = stop_group(self.identity, grace_s=grace_s, clock=clock)
        self.wait(_KILL_WAIT_S)
        return stopped


def start(  # noqa: PLR0913 - what a process is made of
    argv: Sequence[str],
    *,
    cwd: StrPath,
    env: Mapping[str, str],
    stdout: Stream = subprocess.DEVNULL,
    stderr: Stream = subprocess.DEVNULL,
    stdin: Stream = subprocess.DEVNULL,
    entry: ChildSetup | None = None,
    pass_fds: Sequence[int] = (),
) -> Child:
    """Start a program as the leader of its own session, with `env` as its whole environment.

    With an `entry` it is inside its box before its first instruction, and its standard input is empty. An entry with a
    gate holds it there until the box has registered it. Raises `ContainmentUnavailable` if it can't enter.
    `pass_fds` are open in it under the same numbers.
    """
    if entry is None or entry.is_empty:
        return _spawn(argv, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=pass_fds)
    if stdin != subprocess.DEVNULL:
        message = "a program that enters a box gets no standard input"
        raise ValueError(message)
    program = find_program(argv[0], cwd=cwd, env=env)
    command = through_shell(entry, program, argv, env)
    spawn = partial(_spawn, command, cwd=cwd, env=env, stdout=stdout, stderr=stderr, pass_fds=pass_fds)
    if entry.gate_fd is not None:
        return spawn(stdin=entry.gate_fd)
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            child = spawn(stdin=theirs.fileno())
        try:
            see_in(ours)
        except ContainmentUnavailable:
            child.stop(grace_s=0.0)
            for ours_of_it in (child.stdout, child.stderr):
                if ours_of_it is not None:
                    ours_of_it.close()
            raise
    return child


def _spawn(  # noqa: PLR0913 - what a process is made of
    argv: Sequence[str],
    *,
    cwd: StrPath,
    env: Mapping[str, str],
    stdin: Stream,
    stdout: Stream,
    stderr: Stream,
    pass_fds: Sequence[int],
) -> Child:
    try:
        process = subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=dict(env),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            pass_fds=pass_fds,
        )
    except OSError as error:
        # The operating system names the folder if that is missing, and otherwise the program.
        raise translate(error, error.filename or argv[0]) from error
    # Until it is waited for, even a program that has ended keeps its row.
    row = read_row(process.pid)
    return Child(process, identity_from(process.pid, row.start_ticks if row else 0))


def start_server(
    argv_of: Callable[[int], list[str]], *, cwd: StrPath, env: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], socket.socket, IO[bytes]]:
    """Start a program that is given one end of a socket; return it, the other end, and the file of its output.

    The output is read only if it dies. The caller closes all three.
    """
    import tempfile  # noqa: PLC0415 - most programs are started without it

    ours, theirs = socket.socketpair()
    log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the caller
    argv = argv_of(theirs.fileno())
    try:
        with theirs:
            process = subprocess.Popen(
                argv,
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
        raise translate(error, error.filename or argv[0]) from error
    return process, ours, log


def stop_group(identity: ProcessIdentity, *, grace_s: float = GRACE_S, clock: Clock | None = None) -> StopOutcome:
    """Stop a process and everything in its group and session: TERM, after `grace_s` KILL, confirmed.

    Raises `ProcessLost` if a process survives, or if the process belongs to a host we can't see.
    """
    clock = clock or SystemClock()
    members = group_members(identity)
    if not members:
        end_unseen(identity)
        return StopOutcome.ALREADY_GONE
    _send(identity, members, signal.SIGTERM)
    # A stopped process receives the request only when it continues.
    _send(identity, members, signal.SIGCONT)
    if not _remaining(identity, grace_s, clock, signal_each_round=None):
        end_unseen(identity)
        return StopOutcome.POLITE
    # Again in each round: a member may have forked between our check and our signal.
    survivors = _remaining(identity, _KILL_WAIT_S, clock, signal_each_round=signal.SIGKILL)
    if survivors:
        pids = [row.pid for row in survivors]
        raise ProcessLost(
            f"still there after SIGKILL: process {', '.join(map(str, pids))} of group {identity.pid}",
            hint="it may belong to another user, or wait for a device or a network disk",
            pids=pids,
            group=identity.to_dict(),
        )
    end_unseen(identity)
    return StopOutcome.FIRM


def ask_group(identity: ProcessIdentity) -> None:
    """Send TERM to a process and everything in its group and session, once, without waiting."""
    members = group_members(identity)
    if members:
        _send(identity, members, signal.SIGTERM)
        _send(identity, members, signal.SIGCONT)


def group_members(identity: ProcessIdentity, rows: Iterable[ProcessRow] | None = None) -> tuple[ProcessRow, ...]:
    """Return what is left of a process, its group and its session; none if the number belongs to another one now.

    The kernel does not reuse a number while a group or session of that number has members. So they are the process's
    own even after it has ended, unless another process had the number in between and left a session behind in turn.
    `rows` are the running processes, if the caller has them already.
    """
    if identity.pid == 1:
        # It is never ours, and killing "group 1" means every process there is.
        raise ProcessLost("process 1 is not ours to stop", process=identity.to_dict())
    if is_alive(identity) is Liveness.UNKNOWN:
        raise ProcessLost(
            f"process {identity.pid} of {identity.host} can't be seen from here",
            hint="stop it on its own host, as its own user",
            process=identity.to_dict(),
        )
    row = read_row(identity.pid)
    if not is_of_this_boot(identity) or (row is not None and row.start_ticks != identity.start_ticks):
        return ()
    return tuple(
        row
        for row in (living_rows() if rows is None else rows)
        if identity.pid in {row.pid, row.group, row.session} and row.start_ticks >= identity.start_ticks
    )


def _remaining(
    identity: ProcessIdentity, wait_s: float, clock: Clock, *, signal_each_round: signal.Signals | None
) -> tuple[ProcessRow, ...]:
    deadline_s = clock.monotonic_s() + wait_s
    pause_s = _FIRST_PAUSE_S
    while members := group_members(identity):
        if signal_each_round is not None:
            _send(identity, members, signal_each_round)
        left_s = deadline_s - clock.monotonic_s()
        if left_s <= 0:
            break
        clock.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
    return members


def end_unseen(identity: ProcessIdentity) -> None:
    """Kill a group in which we see no living process.

    Mostly there is none, or only zombies, which it does not affect. But a chain of processes that each fork and end
    moves on faster than a table can be read; the kernel, which holds forks off meanwhile, gets all of it at once.
    """
    row = read_row(identity.pid)
    if is_of_this_boot(identity) and (row is None or row.start_ticks == identity.start_ticks):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(identity.pid, signal.SIGKILL)


def _send(identity: ProcessIdentity, members: Sequence[ProcessRow], number: signal.Signals) -> None:
    leader = read_row(identity.pid)
    leads = leader is not None and leader.start_ticks == identity.start_ticks and leader.group == identity.pid
    if leads:
        # All at once, so that none escapes by forking.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(identity.pid, number)
    for member in members:
        if not leads or member.group != identity.pid:
            signal_one(member, number)


def signal_one(member: ProcessRow, number: signal.Signals) -> None:
    """Signal one process, if it is still the one of the row."""
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform != "linux":
            if _is_same(member):
                os.kill(member.pid, number)
            return
        # The descriptor stays with the process it was opened for: what we compare is what we signal.
        fd = os.pidfd_open(member.pid)
        try:
            if _is_same(member):
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


def _is_same(member: ProcessRow) -> bool:
    row = read_row(member.pid)
    return row is not None and row.start_ticks == member.start_ticks


def group_cpu_ticks(group: int) -> int | None:
    """Return the clock ticks that the living processes of a group have used; nothing if none lives.

    On systems that do not report it, a living group has used none.
    """
    pids = [row.pid for row in living_rows() if row.group == group]
    return sum(map(_ticks_of, pids)) if pids else None


def _ticks_of(pid: int) -> int:
    if sys.platform != "linux":
        return 0
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return 0
    try:
        text = os.read(fd, 4096)
    except OSError:
        return 0
    finally:
        os.close(fd)
    # User and system time, its own and that of children that it has seen end; the name before may hold anything.
    fields = text[text.rindex(b")") + 2 :].split()
    return sum(map(int, fields[11:15]))
