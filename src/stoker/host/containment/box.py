"""A box: what one attempt runs in, so that its memory has an end and nobody gets away.

    box = containment.open("job-stage", Limits(memory_bytes=cap), mark)
    child = start(argv, entry=box.entry, …)    # inside before its first instruction
    box.took_in(child.identity)
    …
    box.kill_all(); box.read(); box.close()    # nobody left, and how much it needed

Nouns and seams; the mechanisms are beside this file.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
from enum import StrEnum
from typing import Protocol

from stoker.core.clock import Clock, SystemClock
from stoker.core.errors import ProcessLost
from stoker.core.frozen import frozen
from stoker.host import identity as host_identity
from stoker.host.box_entry import ChildSetup
from stoker.host.identity import Liveness, ProcessIdentity
from stoker.host.process_table import ProcessRow, living_rows, read_row
from stoker.host.processes import end_unseen, group_members, signal_one

__all__ = [
    "MARK",
    "ChildSetup",
    "ContainedGroup",
    "Containment",
    "ContainmentLimits",
    "ContainmentReading",
    "Mechanism",
]

MARK = "STOKER_MARK"
"""The variable by which strays are found where the kernel does not keep them together."""


class Mechanism(StrEnum):
    """Ways to contain, strongest first: the order in which they are tried."""

    SYSTEMD = "systemd"
    CGROUP2 = "cgroup2"
    CGROUP1 = "cgroup1"
    ADDRESS_SPACE = "address_space"
    WATCHDOG = "watchdog"
    BARE = "bare"


@frozen
class ContainmentLimits:
    """How much memory everybody in a box may hold together."""

    memory_bytes: int | None
    """Beyond it they are killed. `None`: no limit."""
    soft_memory_bytes: int | None = None
    """Beyond it they are slowed down and give back what they can."""
    swap_bytes: int = 0
    """Better killed than thrashing."""
    uses_gpu: bool = False
    """Drivers reserve far more address space than they use."""


@frozen
class ContainmentReading:
    """What a box says about those who were in it."""

    peak_bytes: int | None
    """The most memory they needed together: without what the kernel kept for them of files that were read or written,
    as far as that can be told. `None` where nobody counts."""
    was_out_of_memory: bool
    """Whether somebody in it was killed for memory. That need not be the program itself: a shell around it, or the
    parent of a killed reader of data, may end as if all were well."""
    how: str
    """Where these come from, for people."""
    charged_bytes: int | None = None
    """The most that was counted against the limit, cached files included."""


class ContainedGroup(Protocol):
    """What one attempt runs in."""

    mechanism: Mechanism
    entry: ChildSetup

    def took_in(self, identity: ProcessIdentity) -> None:
        """Learn who was started in it; call it right after the start. Raises `ContainmentUnavailable`."""

    def read(self) -> ContainmentReading:
        """Return peak and verdict so far; worth asking now and then, and once more before it is closed."""

    def members(self) -> tuple[int, ...]:
        """Give everybody inside who still runs, however often they forked or left their session."""

    def kill_all(self) -> None:
        """Kill everybody inside and see them gone. Raises `ProcessLost` if somebody stays."""

    def close(self) -> None:
        """Leave nothing behind: no process, folder or unit. Twice is fine. Raises `ProcessLost`."""


class Containment(Protocol):
    """A mechanism that works here."""

    mechanism: Mechanism
    warning: str
    """A line that a person has to see; empty where the kernel itself keeps the limit."""

    def open(self, name: str, limits: ContainmentLimits, mark: str) -> ContainedGroup:
        """Make a box. `name` says whose (`JOB-STAGE`), `mark` is unique per attempt and in its environment."""


# Names of boxes: whose work is inside, and who opened it.
#
# `stoker-JOB-STAGE.MARK.PID-TICKS-SPACE-COUNT`: the last part is the process that opened the box, so that the next
# one
# can tell which boxes nobody closes any more.

_OTHER = re.compile(r"[^A-Za-z0-9_-]")
_NAME = re.compile(r"stoker-[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*\.(\d+)-(\d+)-(\d*)-\d+")
_SPACE = re.compile(r"\d+")
# Names of folders and units end at 255 bytes.
_LONGEST_NAME = 120
_LONGEST_MARK = 60

_counter = itertools.count(1)


def box_name(name: str, mark: str) -> str:
    """Return a name that no other box has, on this machine, while either is open."""
    me = host_identity.mine()
    owner = f"{me.pid}-{me.start_ticks}-{_space_number(me)}-{next(_counter)}"
    return f"stoker-{_clean(name)[:_LONGEST_NAME]}.{_clean(mark)[:_LONGEST_MARK]}.{owner}"


def is_abandoned(name: str) -> bool:
    """Return whether this is the name of a box whose opener is certainly gone."""
    parsed = _NAME.fullmatch(name)
    if parsed is None:
        return False
    me = host_identity.mine()
    if parsed[3] != _space_number(me):
        # The number means nothing here: it was opened from within another container, or from outside of ours.
        return False
    owner = host_identity.identity_from(int(parsed[1]), int(parsed[2]))
    return host_identity.is_alive(owner) is Liveness.GONE


def _space_number(one: ProcessIdentity) -> str:
    found = _SPACE.search(one.pid_space)
    return found[0] if found else ""


def _clean(text: str) -> str:
    return _OTHER.sub("_", text)


# Everybody who belongs to an attempt, where no control group keeps them together.
#
# Found by group and session, by the mark in the environment they were started with (which a new session does not shed),
# and by descent from any of these. Who sheds all three, with an empty environment, its own session and its parents
# gone, is not found: only control groups know that one.

_END_WAIT_S = 5.0
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05


def find_strays(identity: ProcessIdentity | None, mark: str) -> tuple[ProcessRow, ...]:
    """Give everybody of an attempt who still runs."""
    everybody = list(living_rows())
    found = set() if identity is None else {row.pid for row in group_members(identity, everybody)}
    # Nobody of an attempt is older than its first process.
    oldest = 0 if identity is None else identity.start_ticks
    found |= {row.pid for row in everybody if mark and row.start_ticks >= oldest and _is_marked(row.pid, mark)}
    # Who asks is not meant, even if it carries the mark itself.
    found.discard(os.getpid())
    while more := {row.pid for row in everybody if row.parent_pid in found} - found:
        found |= more
    return tuple(row for row in everybody if row.pid in found)


def end_strays(identity: ProcessIdentity | None, mark: str, *, clock: Clock | None = None) -> None:
    """Kill everybody of an attempt and see them gone. Raises `ProcessLost`."""
    clock = clock or SystemClock()
    deadline_s = clock.monotonic_s() + _END_WAIT_S
    pause_s = _FIRST_PAUSE_S
    known: dict[int, ProcessRow] = {}
    while left := _still_there(known, identity, mark):
        # Some are known by their parents only, who are about to go.
        known.update(left)
        if identity is not None:
            # All of its group at once, so that nobody forks his way past us.
            end_unseen(identity)
        for row in left.values():
            signal_one(row, signal.SIGKILL)
        if clock.monotonic_s() >= deadline_s:
            raise ProcessLost(
                f"still there after SIGKILL: process {', '.join(map(str, sorted(left)))}",
                hint="it may belong to another user, or wait for a device or a network disk",
                pids=sorted(left),
            )
        clock.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
    if identity is not None:
        end_unseen(identity)


def _still_there(known: dict[int, ProcessRow], identity: ProcessIdentity | None, mark: str) -> dict[int, ProcessRow]:
    left = {row.pid: row for row in find_strays(identity, mark)}
    for pid, row in known.items():
        now = read_row(pid)
        if now is not None and now.start_ticks == row.start_ticks and not now.is_gone:
            left[pid] = now
    return left


def _is_marked(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{MARK}={mark}".encode() in file.read().split(b"\0")
    except OSError:
        return False
