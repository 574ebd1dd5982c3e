"""Identity of a process beyond its number.

Numbers are reused, so a process is identified by its number, its start time, the boot of that time and the host. A
recycled number is then a different process, a reboot ends all processes, and processes of another host are unknown.
Linux reads `/proc`; macOS uses `ps` and `sysctl` (untested, start times to the second); Windows (untested) always
reports unknown.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import cache
from typing import NamedTuple

from stoker.core.frozen import frozen

if sys.platform not in {"linux", "win32"}:
    import subprocess


class Liveness(Enum):
    """What is known about a process from here and now."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


@frozen
class ProcessIdentity:
    """One process, among all that ever had its number."""

    pid: int
    start_ticks: int
    boot_id: str
    """Empty if the system has none; it is then not compared."""
    host: str
    pid_space: str = ""
    """The namespace of the number: two containers of one host may both have a process 7. Empty: not compared."""

    def __post_init__(self) -> None:
        # For kill, zero and negative numbers mean whole groups: ours first.
        if self.pid < 1:
            message = f"not the number of a process: {self.pid}"
            raise ValueError(message)

    def to_dict(self) -> dict[str, object]:
        return {
            "pid": self.pid,
            "start_ticks": self.start_ticks,
            "boot_id": self.boot_id,
            "host": self.host,
            "pid_space": self.pid_space,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> ProcessIdentity:
        """Read the result of `to_dict`. Raises `ValueError` on anything else."""
        pid, start_ticks = data.get("pid"), data.get("start_ticks")
        if not isinstance(pid, int) or not isinstance(start_ticks, int):
            message = f"not a process identity: {dict(data)!r}"
            raise ValueError(message)  # noqa: TRY004 - the value is wrong, its type is what it says
        return cls(
            pid=pid,
            start_ticks=start_ticks,
            boot_id=str(data.get("boot_id", "")),
            host=str(data.get("host", "")),
            pid_space=str(data.get("pid_space", "")),
        )


def of_pid(pid: int) -> ProcessIdentity | None:
    """Return the process that has this number now, a zombie included; `None` if none is visible."""
    row = read_row(pid)
    return None if row is None else identity_from(pid, row.start_ticks)


def mine() -> ProcessIdentity:
    """Return this process."""
    return _mine(os.getpid())


def identity_from(pid: int, start_ticks: int) -> ProcessIdentity:
    """Return the identity of a process on this host whose start is already known."""
    return ProcessIdentity(
        pid=pid, start_ticks=start_ticks, boot_id=_boot_id(), host=os.uname().nodename, pid_space=_pid_space()
    )


def is_alive(identity: ProcessIdentity) -> Liveness:
    """Return whether that very process still runs. A zombie does not."""
    here = mine()
    if sys.platform == "win32" or identity.host != here.host:
        return Liveness.UNKNOWN
    if _differ(identity.boot_id, here.boot_id):
        return Liveness.GONE
    if _differ(identity.pid_space, here.pid_space):
        return Liveness.UNKNOWN
    row = read_row(identity.pid)
    if row is None:
        return _of_an_unseen_number(identity.pid)
    same = row.start_ticks == identity.start_ticks and not row.is_gone
    return Liveness.ALIVE if same else Liveness.GONE


def is_of_this_boot(identity: ProcessIdentity) -> bool:
    """Return True if the number has the same meaning here and now, so that it may be looked up at all."""
    here = mine()
    return (
        identity.host == here.host
        and not _differ(identity.boot_id, here.boot_id)
        and not _differ(identity.pid_space, here.pid_space)
    )


def _differ(one: str, other: str) -> bool:
    return bool(one) and bool(other) and one != other


def _of_an_unseen_number(pid: int) -> Liveness:
    # A system may hide other users' processes from /proc, but not from kill.
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return Liveness.GONE
    except PermissionError:
        return Liveness.UNKNOWN
    # It started between the two checks, or ended there and lingers: either way it is another process.
    return Liveness.GONE


@cache
def _mine(pid: int) -> ProcessIdentity:
    row = read_row(pid)
    return identity_from(pid, row.start_ticks if row else 0)


@cache
def _boot_id() -> str:
    try:
        return _read_boot_id()
    except OSError:
        return ""


if sys.platform == "linux":

    def _read_boot_id() -> str:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()

elif sys.platform == "win32":

    def _read_boot_id() -> str:
        return ""

else:

    def _read_boot_id() -> str:
        result = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return result.stdout.strip()


@cache
def _pid_space() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


# This computer and this interpreter in a job's record, so that two runs can be compared later.


def surroundings() -> dict[str, str]:
    """Return facts about where something ran; they never enter a key."""
    about = os.uname()
    return {
        "host": about.nodename,
        "system": f"{about.sysname} {about.release}",
        "machine": about.machine,
        "cpus": str(os.cpu_count() or "?"),
        "stoker's python": f"{sys.implementation.name} {'.'.join(map(str, sys.version_info[:3]))}",
    }


if sys.platform != "linux":
    import calendar
    import subprocess
    import time


class ProcessRow(NamedTuple):
    """One process. A tuple and not a dataclass, because a scan makes hundreds."""

    pid: int
    parent_pid: int
    group: int
    session: int
    state: str
    threads: int
    start_ticks: int
    """Clock ticks since boot on Linux, seconds since 1970 elsewhere; only equality has a meaning."""

    @property
    def is_gone(self) -> bool:
        """True if it no longer runs: a zombie only waits to be reaped.

        A process whose first thread has ended is shown as a zombie too while other threads run.
        """
        return self.state in {"Z", "X"} and self.threads <= 1


def living_rows() -> Iterator[ProcessRow]:
    """Return all running processes."""
    return (row for row in rows() if not row.is_gone)


if sys.platform == "linux":

    def read_row(pid: int) -> ProcessRow | None:
        """Return one process, zombies included; `None` if there is none, or it is hidden from us."""
        try:
            fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return None
        try:
            # 52 numbers of at most 20 digits and a name of at most 64 bytes fit into one read.
            text = os.read(fd, 4096)
        except ProcessLookupError:
            return None
        finally:
            os.close(fd)
        return _parse_stat(pid, text)

    def are_numbers_ours() -> bool:
        """True if the table is that of our own namespace: in a new one, /proc may be missing or still the old one's."""
        try:
            return os.readlink("/proc/self") == str(os.getpid())
        except OSError:
            return False

    def users_of(pid: int) -> frozenset[int]:
        """Return the users that a process acts for: real, effective, saved. Empty if unknown."""
        try:
            with open(f"/proc/{pid}/status", "rb") as file:
                words = next((line.split() for line in file if line.startswith(b"Uid:")), [])
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return frozenset()
        return frozenset(map(int, words[1:]))

    def rows() -> Iterator[ProcessRow]:
        """Return all visible processes, zombies included."""
        for name in os.listdir("/proc"):
            if name.isdigit() and (row := read_row(int(name))) is not None:
                yield row

    def _parse_stat(pid: int, text: bytes) -> ProcessRow:
        # The name is in parentheses and may itself contain spaces and parentheses: count from the last one.
        fields = text[text.rindex(b")") + 2 :].split()
        return ProcessRow(
            pid=pid,
            parent_pid=int(fields[1]),
            group=int(fields[2]),
            session=int(fields[3]),
            state=fields[0].decode("ascii"),
            threads=int(fields[17]),
            start_ticks=int(fields[19]),
        )

else:

    def read_row(pid: int) -> ProcessRow | None:
        """Return one process, zombies included; `None` if there is none."""
        return next(_ask_ps("-p", str(pid)), None)

    def are_numbers_ours() -> bool:
        """Return whether the table is that of our own namespace."""
        return True

    def users_of(_pid: int) -> frozenset[int]:
        """Return the users that a process acts for; always unknown here."""
        return frozenset()

    def rows() -> Iterator[ProcessRow]:
        """Return all visible processes, zombies included."""
        return _ask_ps("-A")

    def _ask_ps(*which: str) -> Iterator[ProcessRow]:
        if sys.platform == "win32":
            return
        columns = "pid=,ppid=,pgid=,stat=,lstart="
        answer = subprocess.run(
            ["/bin/ps", *which, "-o", columns],
            env={"LC_ALL": "C", "TZ": "UTC"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        for line in answer.stdout.splitlines():
            pid, parent_pid, group, state, started = line.split(maxsplit=4)
            yield ProcessRow(
                pid=int(pid),
                parent_pid=int(parent_pid),
                group=int(group),
                # What ps calls the session is an address on macOS. Our children lead both their group and session.
                session=int(group),
                state=state[0],
                threads=1,
                start_ticks=calendar.timegm(time.strptime(started, "%a %b %d %H:%M:%S %Y")),
            )


@frozen
class ProcessExit:
    """How a process ended: with a status or by a signal; neither if its parent ended before it."""

    status: int | None
    signal: int | None
    max_rss_bytes: int
    """Its memory peak. Forked work counts the pages that it shares with its zygote, too."""
    cpu_s: float
    """Of the process and of all children that it waited for."""

    @property
    def is_success(self) -> bool:
        return self.status == 0

    def __str__(self) -> str:
        if self.signal is None:
            return "unknown exit status" if self.status is None else f"exit status {self.status}"
        try:
            return f"signal {self.signal} ({signal.Signals(self.signal).name})"
        except ValueError:
            return f"signal {self.signal}"


def exit_from(wait_status: int, max_rss: int, cpu_s: float) -> ProcessExit:
    """Return the record for a result of `wait4`."""
    code = os.waitstatus_to_exitcode(wait_status)
    return ProcessExit(
        status=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        # macOS counts bytes where Linux counts KiB.
        max_rss_bytes=max_rss if sys.platform == "darwin" else max_rss * 1024,
        cpu_s=cpu_s,
    )


def hold_on(fd: int) -> None:
    """Tie this process, which leads its own group, and its children to the life line, a pipe that only its owner holds.

    On Linux the kernel itself kills the process the moment the other end closes, even if it is busy in native code.
    Elsewhere a thread waits for it.
    """
    if sys.platform != "linux":
        threading.Thread(target=_wait, args=(fd,), name="stoker-life-line", daemon=True).start()
        return
    # Negative: the group.
    _arm(fd, -os.getpgid(0))


@contextmanager
def held(fd: int) -> Iterator[None]:
    """Tie this process alone to the life line for a while. Linux only."""
    _arm(fd, os.getpid())
    try:
        yield
    finally:
        _disarm(fd)


def _arm(fd: int, whom: int) -> None:
    import fcntl  # noqa: PLC0415 - not everywhere

    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETOWN, whom)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([fd], [], [], 0)[0]:
        # It closed before the signal was set up, so the signal never comes.
        _end(whom)


def _disarm(fd: int) -> None:
    import fcntl  # noqa: PLC0415 - not everywhere

    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_ASYNC)


def _wait(fd: int) -> None:
    os.read(fd, 1)
    _end(-os.getpgid(0))


def _end(whom: int) -> None:
    os.kill(whom, signal.SIGKILL)
