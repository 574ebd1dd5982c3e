"""One control group of ours: its files, everybody in it and below it, their end, and its own.

A group is a folder that the kernel fills. What is inside may make groups of its own (Stoker within Stoker), so people
are looked for, and folders removed, all the way down.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

from stoker.host.process_table import read_row
from stoker.model.clock import Clock, SystemClock
from stoker.model.errors import ProcessLost
from stoker.model.frozen import frozen

PROCS = "cgroup.procs"
# Long enough for the kernel to take a process apart that has gigabytes mapped.
END_WAIT_S = 5.0
_FREEZE_WAIT_S = 0.5
# Whoever runs away by forking would have to slip through as many looks as this.
_LOOKS = 4
_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.02


@frozen
class Folders:
    """How groups are made and unmade; the kernel fills and empties a folder, a recorded tree does not."""

    make: Callable[[str], None] = os.mkdir
    remove: Callable[[str], None] = os.rmdir


class ControlGroup:
    """A group that we made, or found abandoned."""

    def __init__(self, folder: str, *, folders: Folders | None = None, clock: Clock | None = None) -> None:
        self.folder = folder
        self._folders = folders or Folders()
        self._clock = clock or SystemClock()

    @property
    def procs_file(self) -> str:
        return os.path.join(self.folder, PROCS)

    def make(self) -> None:
        """Make it. Raises `OSError`."""
        self._folders.make(self.folder)

    def has(self, name: str) -> bool:
        return os.path.exists(os.path.join(self.folder, name))

    def read(self, name: str) -> str:
        """Give what a file of it says, or nothing."""
        try:
            with open(os.path.join(self.folder, name), encoding="ascii") as file:
                return file.read()
        except OSError:
            return ""

    def number(self, name: str) -> int | None:
        """Give the number in a file; `None` if there is none, or it says `max`."""
        text = self.read(name).strip()
        return int(text) if text.isdigit() else None

    def table(self, name: str) -> dict[str, int]:
        """Give a file of names and numbers."""
        words = (line.split() for line in self.read(name).splitlines())
        return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}

    def write(self, name: str, value: object) -> None:
        """Set a file of it. Raises `OSError`."""
        # Never made by us: a file that the kernel does not offer is an error.
        fd = os.open(os.path.join(self.folder, name), os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(fd, str(value).encode())
        finally:
            os.close(fd)

    def try_write(self, name: str, value: object) -> bool:
        """Set a file of it if the kernel has it and lets us."""
        if not self.has(name):
            return False
        try:
            self.write(name, value)
        except OSError:
            return False
        return True

    def members(self) -> tuple[int, ...]:
        """Give everybody in it and below it who still runs."""
        running: tuple[int, ...] = ()
        for _ in range(_LOOKS):
            found = {pid for folder in self._all_down() for pid in _pids_in(folder)}
            running = tuple(sorted(pid for pid in found if _still_runs(pid)))
            if running or not found:
                break
            # All that were listed have ended since: one of them may have left a child that the list did not have.
        return running

    def direct_members(self) -> tuple[int, ...]:
        """Give everybody in it, and not those below."""
        return tuple(pid for pid in _pids_in(self.folder) if _still_runs(pid))

    def kill_once(self) -> None:
        """Kill everybody who is inside at this moment; where the kernel can, all in one stroke."""
        if self.try_write("cgroup.kill", 1):
            return
        is_frozen = self._freeze()
        for pid in self.members():
            self._kill_one(pid)
        if is_frozen:
            self._thaw()

    def remove(self) -> None:
        """Remove it and whatever was made below it. Raises `ProcessLost` if it stays busy."""
        deadline_s = self._clock.monotonic_s() + END_WAIT_S
        pause_s = _FIRST_PAUSE_S
        while (trouble := self._remove_once()) is not None:
            if self._clock.monotonic_s() >= deadline_s:
                raise ProcessLost(
                    f"the control group {self.folder} can't be removed: {trouble.strerror}",
                    hint="somebody may still be in it",
                    folder=self.folder,
                    pids=list(self.members()),
                )
            self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _remove_once(self) -> OSError | None:
        for folder in reversed(list(self._all_down())):
            try:
                self._folders.remove(folder)
            except FileNotFoundError:
                continue
            except OSError as error:
                return error
        return None

    def _all_down(self) -> Iterator[str]:
        """Give the folder and those below it, each before what is below."""
        for folder, below, _ in os.walk(self.folder):
            below.sort()
            yield folder

    def _kill_one(self, pid: int) -> None:
        name = os.path.basename(self.folder)
        with suppress(ProcessLookupError, PermissionError):
            # The descriptor stays with the process it was opened for: what we ask about is what we kill.
            fd = os.pidfd_open(pid)
            try:
                if _is_in(pid, name):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
            finally:
                os.close(fd)

    def _freeze(self) -> bool:
        """Hold everybody still, so that nobody forks his way past us; without it we look more often."""
        if self.try_write("cgroup.freeze", 1):
            self._wait_frozen(lambda: "frozen 1" in self.read("cgroup.events"))
            return True
        if self.try_write("freezer.state", "FROZEN"):
            self._wait_frozen(lambda: self.read("freezer.state").startswith("FROZEN"))
            return True
        return False

    def _wait_frozen(self, is_frozen: Callable[[], bool]) -> None:
        deadline_s = self._clock.monotonic_s() + _FREEZE_WAIT_S
        while not is_frozen() and self._clock.monotonic_s() < deadline_s:
            self._clock.sleep(_FIRST_PAUSE_S)

    def _thaw(self) -> None:
        if not self.try_write("cgroup.freeze", 0):
            self.try_write("freezer.state", "THAWED")


def end_everybody(groups: tuple[ControlGroup, ...], *, clock: Clock | None = None) -> None:
    """Kill everybody in any of these groups and see them gone. Raises `ProcessLost`."""
    clock = clock or SystemClock()
    deadline_s = clock.monotonic_s() + END_WAIT_S
    pause_s = _FIRST_PAUSE_S
    while left := {pid for group in groups for pid in group.members()}:
        for group in groups:
            group.kill_once()
        if clock.monotonic_s() >= deadline_s:
            raise ProcessLost(
                f"still there after SIGKILL: process {', '.join(map(str, sorted(left)))}",
                hint="it may wait for a device or a network disk",
                pids=sorted(left),
            )
        clock.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def _pids_in(folder: str) -> list[int]:
    try:
        with open(os.path.join(folder, PROCS), encoding="ascii") as file:
            # Zero stands for somebody of another process namespace, whom we could not name.
            return [int(word) for word in file.read().split() if word != "0"]
    except OSError:
        return []


def _still_runs(pid: int) -> bool:
    row = read_row(pid)
    return row is not None and not row.is_gone


def _is_in(pid: int, name: str) -> bool:
    """Whether a process is in the group of that name, or below it; no two boxes share a name."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            return any(name in line.rstrip("\n").split("/") for line in file)
    except OSError:
        return False
