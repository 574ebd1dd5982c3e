"""Best effort: a thread that looks at the memory of everybody in an attempt, and kills them all above the cap.

It looks several times a second, so a program that grows faster than that passes the cap before it is seen: the reserve
that admission leaves to the machine is what it grows into. With an address-space limit, each process has a hard end
of its own as well, and what the thread watches is their sum.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress

from stoker.core.clock import Clock, SystemClock
from stoker.core.errors import ContainmentUnavailable, ProcessLost
from stoker.host.box_entry import ChildSetup
from stoker.host.containment.box import MARK, ContainmentLimits, ContainmentReading, Mechanism, end_strays, find_strays
from stoker.host.identity import ProcessIdentity
from stoker.host.process_table import ProcessRow, read_row

# A shell beside a box that waits for us: if we go without a word, even by kill -9, it ends whoever is in the box.
#
# It waits on a pipe that nobody else holds. It costs a megabyte and no time, and lives as long as its box.

_DISMISS_WAIT_S = 5.0
# It hears lines: a group's folder to empty and remove; a session (leader, its start) to kill; a mark, to kill whoever
# was started with it; `end` when all is well. A number that has gone to another process since has another start, and is
# left alone.
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
    """The shell that goes on when we do not."""

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
        """Tell it which control groups to empty and remove. Those named last go first."""
        for folder in folders:
            self._say(f"group {folder}")

    def guard_session(self, identity: ProcessIdentity) -> None:
        """Tell it which process group to kill."""
        self._say(f"session {identity.pid} {identity.start_ticks}")

    def guard_mark(self, mark: str) -> None:
        """Tell it by which mark to find those who left their session."""
        if mark:
            self._say(f"mark {MARK}={mark}")

    def dismiss(self) -> None:
        """Tell it that all is well, and see it gone. Twice is fine."""
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
        # Nobody listens if somebody killed it; then it guards nothing, and the next run sweeps.
        with suppress(OSError):
            pipe.write(line.encode() + b"\n")
            pipe.flush()


# Boxes without walls: whoever is inside is found again by what they carry, and nothing stops them from growing.


class NoContainment:
    """No limit at all."""

    mechanism = Mechanism.BARE
    warning = "memory is NOT limited: nothing on this machine can; a program that eats it all takes the machine along"

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
        # It knows the mark before anybody carries it.
        self._keeper = CleanupShell()
        self._keeper.guard_mark(mark)

    def took_in(self, identity: ProcessIdentity) -> None:
        self._identity = identity
        self._keeper.guard_session(identity)

    def read(self) -> ContainmentReading:
        return ContainmentReading(peak_bytes=None, was_out_of_memory=False, how="nobody counts")

    def members(self) -> tuple[int, ...]:
        return tuple(row.pid for row in find_strays(self._identity, self._mark))

    def kill_all(self) -> None:
        end_strays(self._identity, self._mark, clock=self._clock)

    def close(self) -> None:
        self.kill_all()
        self._keeper.dismiss()


# Far below the cap it looks less often.
_CALM_S = 0.25
_TENSE_S = 0.02
# Looking for newcomers means reading the whole table of processes.
_CENSUS_S = 0.5
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Watchdog:
    """Boxes that are only watched."""

    mechanism = Mechanism.WATCHDOG
    warning = "memory is limited by watching only (best effort): a program that grows fast is seen late"

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock

    def open(self, name: str, limits: ContainmentLimits, mark: str) -> WatchedGroup:
        return WatchedGroup(limits, mark, clock=self._clock)


class AddressSpace:
    """Boxes in which each process has an end of its address space, and their sum is watched."""

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
    """One attempt under watch."""

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
        """Look once, act on it, and give how long to wait until the next look."""
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
                # Closing the box tells whoever waits for it.
                return _CALM_S
        return _TENSE_S if used_bytes * 2 > self._cap_bytes else _CALM_S

    def _census(self) -> tuple[ProcessRow, ...]:
        try:
            return find_strays(self._identity, self._mark)
        except ProcessLost:
            return self._known


def _together(members: tuple[ProcessRow, ...], cap_bytes: int | None) -> int:
    """Return the memory that these hold together.

    Pages that several share count for each of them in the quick sum. Only if that is above the cap are they told apart,
    which the kernel takes longer for.
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
