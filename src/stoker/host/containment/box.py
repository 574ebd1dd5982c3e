"""A box: what one attempt runs in, so that its memory is limited and none of its processes escapes.

    box = containment.open("job-stage", Limits(memory_bytes=cap), mark)
    child = start(argv, entry=box.entry, …)    # inside before its first instruction
    box.took_in(child.identity)
    …
    box.kill_all(); box.read(); box.close()    # no process left, and its memory peak

Types and protocols; the mechanisms are beside this file.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Protocol

from stoker.core.clock import Clock, SystemClock
from stoker.core.errors import ContainmentUnavailable, ProcessLost
from stoker.core.frozen import frozen
from stoker.host import identity as host_identity
from stoker.host.box_entry import ChildSetup
from stoker.host.identity import Liveness, ProcessIdentity, ProcessRow, living_rows, read_row
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
"""The variable by which orphans are found where the kernel does not keep them together."""


class Mechanism(StrEnum):
    """Mechanisms, strongest first: the order in which they are tried."""

    SYSTEMD = "systemd"
    CGROUP2 = "cgroup2"
    CGROUP1 = "cgroup1"
    ADDRESS_SPACE = "address_space"
    WATCHDOG = "watchdog"
    BARE = "bare"


@frozen
class ContainmentLimits:
    """How much memory all processes in a box may hold together."""

    memory_bytes: int | None
    """Beyond it they are killed. `None`: no limit."""
    swap_bytes: int = 0
    """Kill rather than swap."""
    uses_gpu: bool = False
    """Drivers reserve far more address space than they use."""


@frozen
class ContainmentReading:
    """What a box measured of the processes in it."""

    peak_bytes: int | None
    """Their memory peak together, without the page cache as far as that can be separated. `None` if not measured."""
    was_out_of_memory: bool
    """True if a process in it was killed for memory. That need not be the program itself: a shell around it, or the
    parent of a killed data loader, may exit with 0."""
    how: str
    """How these were measured, for people."""
    charged_bytes: int | None = None
    """The most that was counted against the limit, page cache included."""


class ContainedGroup(Protocol):
    """What one attempt runs in."""

    mechanism: Mechanism
    entry: ChildSetup

    def took_in(self, identity: ProcessIdentity) -> None:
        """Register the first process; call it right after the start. Raises `ContainmentUnavailable`."""

    def read(self) -> ContainmentReading:
        """Return peak and kill state so far; call it now and then, and once more before `close`."""

    def members(self) -> tuple[int, ...]:
        """Return the processes inside that still run, however often they forked or left their session."""

    def kill_all(self) -> None:
        """Kill all processes inside and confirm it. Raises `ProcessLost` if one survives."""

    def close(self) -> None:
        """Leave nothing behind: no process, folder or unit. Idempotent. Raises `ProcessLost`."""


class Containment(Protocol):
    """A mechanism that works here."""

    mechanism: Mechanism
    warning: str
    """A warning for people; empty where the kernel itself enforces the limit."""

    def open(self, name: str, limits: ContainmentLimits, mark: str) -> ContainedGroup:
        """Make a box. `name` is its owner (`JOB-STAGE`), `mark` is unique per attempt and in its environment."""


_OTHER = re.compile(r"[^A-Za-z0-9_-]")
_NAME = re.compile(r"stoker-[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*\.(\d+)-(\d+)-(\d*)-\d+")
_SPACE = re.compile(r"\d+")
# Names of folders and units are limited to 255 bytes.
_LONGEST_NAME = 120
_LONGEST_MARK = 60

_counter = itertools.count(1)


def box_name(name: str, mark: str) -> str:
    """Return a name that no other open box on this machine has.

    `stoker-JOB-STAGE.MARK.PID-TICKS-SPACE-COUNT`: the last part is the process that opened the box, so that a later run
    finds the boxes that were never closed.
    """
    me = host_identity.mine()
    owner = f"{me.pid}-{me.start_ticks}-{_space_number(me)}-{next(_counter)}"
    return f"stoker-{_clean(name)[:_LONGEST_NAME]}.{_clean(mark)[:_LONGEST_MARK]}.{owner}"


def is_abandoned(name: str) -> bool:
    """Return True if this is the name of a box whose opener is certainly gone."""
    parsed = _NAME.fullmatch(name)
    if parsed is None:
        return False
    me = host_identity.mine()
    if parsed[3] != _space_number(me):
        # The number has no meaning here: it was opened in another container, or outside of ours.
        return False
    owner = host_identity.identity_from(int(parsed[1]), int(parsed[2]))
    return host_identity.is_alive(owner) is Liveness.GONE


def _space_number(one: ProcessIdentity) -> str:
    found = _SPACE.search(one.pid_space)
    return found[0] if found else ""


def _clean(text: str) -> str:
    return _OTHER.sub("_", text)


_END_WAIT_S = 5.0
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05


def find_strays(identity: ProcessIdentity | None, mark: str) -> tuple[ProcessRow, ...]:
    """Return all processes of an attempt that still run, where no control group keeps them together.

    Found by group and session, by the mark in the environment they were started with (which a new session does not
    shed), and by descent from any of these. A process that sheds all three, with an empty environment, its own session
    and its parents gone, is not found: only control groups know that one.
    """
    rows = list(living_rows())
    found = set() if identity is None else {row.pid for row in group_members(identity, rows)}
    # No process of an attempt is older than its first one.
    oldest = 0 if identity is None else identity.start_ticks
    found |= {row.pid for row in rows if mark and row.start_ticks >= oldest and _is_marked(row.pid, mark)}
    # The calling process is left out, even if it carries the mark itself.
    found.discard(os.getpid())
    while more := {row.pid for row in rows if row.parent_pid in found} - found:
        found |= more
    return tuple(row for row in rows if row.pid in found)


def end_strays(identity: ProcessIdentity | None, mark: str, *, clock: Clock | None = None) -> None:
    """Kill all processes of an attempt and confirm it. Raises `ProcessLost`."""
    clock = clock or SystemClock()
    deadline_s = clock.monotonic_s() + _END_WAIT_S
    pause_s = _FIRST_PAUSE_S
    known: dict[int, ProcessRow] = {}
    while left := _still_there(known, identity, mark):
        # Some are known only by their parents, which are about to exit.
        known.update(left)
        if identity is not None:
            # The whole group at once, so that none escapes by forking.
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


_DISMISS_WAIT_S = 5.0
# It reads lines: a group's folder to empty and remove; a session (leader, its start) to kill; a mark, to kill every
# process started with it; `end` when all is well. A number that belongs to another process since then has another
# start, and is left alone.
_SCRIPT = r"""
groups= sessions= marks=
while read -r what first second; do
  case $what in
    end) exit 0 ;;
    group) groups="$first $groups" ;;
    session) sessions="$sessions $first:$second" ;;
    mark) marks="$marks $first" ;;
  esac
done
end_group() {
  { echo 1 > "$1/cgroup.kill"; } 2> /dev/null && return
  while read -r pid; do kill -s KILL "$pid"; done < "$1/cgroup.procs"
}
start_of() {
  read -r row < "/proc/$1/stat" || return
  set -- ${row##*) }
  echo "${20}"
}
for session in $sessions; do
  pid=${session%:*}
  start=$(start_of "$pid")
  if [ -z "$start" ] || [ "$start" = "${session#*:}" ]; then kill -s KILL -- "-$pid"; fi
done
for mark in $marks; do
  rounds=100
  while found=$(grep -lsF "$mark" /proc/[0-9]*/environ); [ -n "$found" ] && [ "$rounds" -gt 0 ]; do
    for one in $found; do
      one=${one#/proc/}
      kill -s KILL "${one%/environ}"
    done
    rounds=$((rounds - 1))
    sleep 0.01
  done
done
rounds=100
while [ "$rounds" -gt 0 ] && [ -n "$groups" ]; do
  left=
  for group in $groups; do
    end_group "$group"
    rmdir "$group" || { [ -d "$group" ] && left="$left $group"; }
  done
  groups=$left rounds=$((rounds - 1))
  [ -z "$groups" ] || sleep 0.05
done
"""


class CleanupShell:
    """A shell beside a box that kills all processes in it if this process is killed, even by kill -9.

    It waits on a pipe that no other process holds. It costs a megabyte and no time, and lives as long as its box.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin"},
            cwd="/",
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def guard_groups(self, folders: Sequence[str]) -> None:
        """Name the control groups to empty and remove. Those named last are removed first."""
        for folder in folders:
            self._say(f"group {folder}")

    def guard_session(self, identity: ProcessIdentity) -> None:
        """Name the process group to kill."""
        self._say(f"session {identity.pid} {identity.start_ticks}")

    def guard_mark(self, mark: str) -> None:
        """Name the mark that identifies processes which left their session."""
        if mark:
            self._say(f"mark {MARK}={mark}")

    def dismiss(self) -> None:
        """Report a clean end, and wait until the shell has exited. Idempotent."""
        self._say("end")
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(_DISMISS_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _say(self, line: str) -> None:
        pipe = self._process.stdin
        if pipe is None or pipe.closed:
            return
        # The pipe is broken if the shell was killed; then it guards nothing, and the next run sweeps.
        with suppress(OSError):
            pipe.write(line.encode() + b"\n")
            pipe.flush()


class NoContainment:
    """No limit: processes inside are found by group, session and mark, and may grow without bound."""

    mechanism = Mechanism.BARE
    warning = "memory is NOT limited: no mechanism works on this machine; a program can use all of its memory"

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock

    def open(self, name: str, limits: ContainmentLimits, mark: str) -> UnlimitedGroup:
        return UnlimitedGroup(mark, clock=self._clock)


class UnlimitedGroup:
    """One attempt, known by its first process and its mark."""

    mechanism = Mechanism.BARE

    def __init__(self, mark: str, *, entry: ChildSetup | None = None, clock: Clock | None = None) -> None:
        self.entry = entry or ChildSetup()
        self._mark = mark
        self._clock = clock
        self._identity: ProcessIdentity | None = None
        # It knows the mark before any process carries it.
        self._shell = CleanupShell()
        self._shell.guard_mark(mark)

    def took_in(self, identity: ProcessIdentity) -> None:
        self._identity = identity
        self._shell.guard_session(identity)

    def read(self) -> ContainmentReading:
        return ContainmentReading(peak_bytes=None, was_out_of_memory=False, how="not measured")

    def members(self) -> tuple[int, ...]:
        return tuple(row.pid for row in find_strays(self._identity, self._mark))

    def kill_all(self) -> None:
        end_strays(self._identity, self._mark, clock=self._clock)

    def close(self) -> None:
        self.kill_all()
        self._shell.dismiss()


# Far below the cap it checks less often.
_CALM_S = 0.25
_TENSE_S = 0.02
# A search for new processes reads the whole process table.
_CENSUS_S = 0.5
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Watchdog:
    """Boxes whose memory is polled."""

    mechanism = Mechanism.WATCHDOG
    warning = "memory is limited by watching only (best effort): a program that grows fast is seen late"

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock

    def open(self, name: str, limits: ContainmentLimits, mark: str) -> WatchedGroup:
        return WatchedGroup(limits, mark, clock=self._clock)


class AddressSpace:
    """Boxes in which each process has an address-space limit, and their sum is polled."""

    mechanism = Mechanism.ADDRESS_SPACE
    warning = ""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock

    def open(self, name: str, limits: ContainmentLimits, mark: str) -> WatchedGroup:
        if limits.uses_gpu:
            raise ContainmentUnavailable(
                "an address-space limit is not for GPU work: drivers reserve more than any machine has",
                hint="choose watchdog, or let the mechanism be chosen",
            )
        return WatchedGroup(limits, mark, has_end=True, clock=self._clock)


class WatchedGroup(UnlimitedGroup):
    """One attempt whose memory is polled."""

    def __init__(
        self, limits: ContainmentLimits, mark: str, *, has_end: bool = False, clock: Clock | None = None
    ) -> None:
        super().__init__(
            mark, entry=ChildSetup(address_space_bytes=limits.memory_bytes) if has_end else None, clock=clock
        )
        self.mechanism = Mechanism.ADDRESS_SPACE if has_end else Mechanism.WATCHDOG
        self._cap_bytes = limits.memory_bytes
        self._time = clock or SystemClock()
        self._known: tuple[ProcessRow, ...] = ()
        self._census_s = float("-inf")
        self._peak_bytes: int | None = None
        self._was_killed = False
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stoker-watchdog", daemon=True)

    def took_in(self, identity: ProcessIdentity) -> None:
        super().took_in(identity)
        self._thread.start()

    def read(self) -> ContainmentReading:
        return ContainmentReading(
            peak_bytes=self._peak_bytes,
            was_out_of_memory=self._was_killed,
            how="watched from outside, several times a second",
            charged_bytes=self._peak_bytes,
        )

    def close(self) -> None:
        self._is_closed.set()
        if self._thread.is_alive():
            self._thread.join()
        super().close()

    def _watch(self) -> None:
        pause_s = 0.0
        while not self._is_closed.wait(pause_s):
            pause_s = self._look()

    def _look(self) -> float:
        """Check once, act on it, and return how long to wait until the next check."""
        now_s = self._time.monotonic_s()
        if now_s - self._census_s >= _CENSUS_S:
            self._census_s = now_s
            self._known = self._census()
        used_bytes = _together(self._known, self._cap_bytes)
        if used_bytes:
            self._peak_bytes = max(self._peak_bytes or 0, used_bytes)
        if self._cap_bytes is None:
            return _CALM_S
        if used_bytes > self._cap_bytes:
            self._was_killed = True
            try:
                self.kill_all()
            except ProcessLost:
                # Closing the box reports it to the waiting caller.
                return _CALM_S
        return _TENSE_S if used_bytes * 2 > self._cap_bytes else _CALM_S

    def _census(self) -> tuple[ProcessRow, ...]:
        try:
            return find_strays(self._identity, self._mark)
        except ProcessLost:
            return self._known


def _together(members: tuple[ProcessRow, ...], cap_bytes: int | None) -> int:
    """Return the memory that these processes hold together.

    Shared pages count for each process in the quick sum. Only if that is above the cap are they counted once, which
    takes the kernel longer.
    """
    members = tuple(row for row in members if _is_same(row))
    quick_bytes = sum(_resident_bytes(row.pid) for row in members)
    if cap_bytes is None or quick_bytes <= cap_bytes:
        return quick_bytes
    return sum(_fair_share_bytes(row.pid) for row in members)


def _is_same(row: ProcessRow) -> bool:
    now = read_row(row.pid)
    return now is not None and now.start_ticks == row.start_ticks


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def _fair_share_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return _resident_bytes(pid)
