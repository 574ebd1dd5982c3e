"""Which process, and not merely which number.

Numbers are reused, so a process is known by its number, the moment it started, the boot that moment belongs to and the
host. A recycled number is then a different process, a reboot ends everybody, and of another host's processes nothing
can be known from here. Linux reads `/proc`; macOS asks `ps` and `sysctl` (untested, start times to the second);
Windows (untested) always answers that it does not know.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from enum import Enum
from functools import cache

from stoker.core.frozen import frozen
from stoker.host.process_table import read_row

if sys.platform not in {"linux", "win32"}:
    import subprocess


class Liveness(Enum):
    """What can be said about a process from here and now."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


@frozen
class ProcessIdentity:
    """One process, among all that ever had its number."""

    pid: int
    start_ticks: int
    boot_id: str
    """Empty where the system has none; it is then not compared."""
    host: str
    pid_space: str = ""
    """The namespace of the number: two containers of one host may both have a process 7. Empty: not compared."""

    def __post_init__(self) -> None:
        # To kill, zero and negative numbers mean whole groups: ours first.
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
        """Read what `to_dict` gave. Raises `ValueError` on anything else."""
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
    """Return the process that has this number now, a zombie included; `None` if there is none that we can see."""
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
    """Return whether the number means here and now what it meant then, so that it may be looked up at all."""
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
    # It came into being between the two looks, or ended there and lingers: either way not the one we know.
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
        asked = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return asked.stdout.strip()


@cache
def _pid_space() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


# This computer and this interpreter as a job's record names them, so that two runs can be told apart later.


def surroundings() -> dict[str, str]:
    """Return what is worth knowing of where something ran; it never enters a key."""
    about = os.uname()
    return {
        "host": about.nodename,
        "system": f"{about.sysname} {about.release}",
        "machine": about.machine,
        "cpus": str(os.cpu_count() or "?"),
        "stoker's python": f"{sys.implementation.name} {'.'.join(map(str, sys.version_info[:3]))}",
    }
