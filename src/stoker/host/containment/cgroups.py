"""Boxes of control groups, version 2: one group per attempt that limits, counts and kills.

They are made below a place that the memory controller reaches. Such a place has no processes of its own, so it is one
of these, the first that works:

1. the group we are in, if it already delegates memory control (the root group may, and so may a prepared group);
2. the group above ours, if ours has no limits that a box beside it would escape;
3. the group we are in after we and our children have moved one level down, if no other process is in it: a service or
   a container that was given its group.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

from stoker.core.clock import Clock, SystemClock
from stoker.core.errors import ContainmentUnavailable, ProcessLost
from stoker.core.frozen import frozen
from stoker.host.box_entry import ChildSetup
from stoker.host.containment.box import (
    CleanupShell,
    ContainmentLimits,
    ContainmentReading,
    Mechanism,
    box_name,
    is_abandoned,
)
from stoker.host.identity import ProcessIdentity, read_row, rows
from stoker.host.resources import own_group

PROCS = "cgroup.procs"
# Long enough for the kernel to release a process that has gigabytes mapped.
END_WAIT_S = 5.0
_FREEZE_WAIT_S = 0.5
# A process that escapes by forking would have to slip through this many checks.
_LOOKS = 4
_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.02


@frozen
class CgroupFolders:
    """How groups are made and removed; the kernel fills and empties a folder, a recorded tree does not."""

    make: Callable[[str], None] = os.mkdir
    remove: Callable[[str], None] = os.rmdir


class ControlGroup:
    """A group that we made, or found abandoned: its files, the processes in it and below it, their end, its removal.

    A group is a folder that the kernel fills. The processes inside may make groups of their own (Stoker within Stoker),
    so processes are searched, and folders removed, all the way down.
    """

    def __init__(self, folder: str, *, folders: CgroupFolders | None = None, clock: Clock | None = None) -> None:
        self.folder = folder
        self._folders = folders or CgroupFolders()
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
        """Return the content of one of its files, or nothing."""
        try:
            with open(os.path.join(self.folder, name), encoding="ascii") as file:
                return file.read()
        except OSError:
            return ""

    def number(self, name: str) -> int | None:
        """Return the number in a file; `None` if there is none, or it is `max`."""
        text = self.read(name).strip()
        return int(text) if text.isdigit() else None

    def table(self, name: str) -> dict[str, int]:
        """Return a file of names and numbers."""
        words = (line.split() for line in self.read(name).splitlines())
        return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}

    def write(self, name: str, value: object) -> None:
        """Write one of its files. Raises `OSError`."""
        # Never created by us: a file that the kernel does not offer is an error.
        fd = os.open(os.path.join(self.folder, name), os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(fd, str(value).encode())
        finally:
            os.close(fd)

    def try_write(self, name: str, value: object) -> bool:
        """Write one of its files if the kernel has it and allows it."""
        if not self.has(name):
            return False
        try:
            self.write(name, value)
        except OSError:
            return False
        return True

    def members(self) -> tuple[int, ...]:
        """Return the processes in it and below it that still run."""
        running: tuple[int, ...] = ()
        for _ in range(_LOOKS):
            found = {pid for folder in self._all_down() for pid in _pids_in(folder)}
            running = tuple(sorted(pid for pid in found if _still_runs(pid)))
            if running or not found:
                break
            # All listed processes have ended since: one of them may have left a child that is not in the list.
        return running

    def direct_members(self) -> tuple[int, ...]:
        """Return the processes in it, without those below."""
        return tuple(pid for pid in _pids_in(self.folder) if _still_runs(pid))

    def kill_once(self) -> None:
        """Kill all processes that are inside now; in one step if the kernel can."""
        if self.try_write("cgroup.kill", 1):
            return
        is_frozen = self._freeze()
        for pid in self.members():
            self._kill_one(pid)
        if is_frozen:
            self._thaw()

    def remove(self) -> None:
        """Remove it and every group below it. Raises `ProcessLost` if it stays busy."""
        deadline_s = self._clock.monotonic_s() + END_WAIT_S
        pause_s = _FIRST_PAUSE_S
        while (trouble := self._remove_once()) is not None:
            if self._clock.monotonic_s() >= deadline_s:
                raise ProcessLost(
                    f"the control group {self.folder} can't be removed: {trouble.strerror}",
                    hint="a process may still be in it",
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
        """Return the folder and those below it, parents first."""
        for folder, below, _ in os.walk(self.folder):
            below.sort()
            yield folder

    def _kill_one(self, pid: int) -> None:
        name = os.path.basename(self.folder)
        with suppress(ProcessLookupError, PermissionError):
            # The descriptor stays with the process it was opened for: what we check is what we kill.
            fd = os.pidfd_open(pid)
            try:
                if _is_in(pid, name):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
            finally:
                os.close(fd)

    def _freeze(self) -> bool:
        """Freeze all processes, so that none escapes by forking; without it we check more often."""
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
    """Kill all processes in any of these groups and confirm it. Raises `ProcessLost`."""
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
            # Zero stands for a process of another process namespace, which has no number here.
            return [int(word) for word in file.read().split() if word != "0"]
    except OSError:
        return []


def _still_runs(pid: int) -> bool:
    row = read_row(pid)
    return row is not None and not row.is_gone


def _is_in(pid: int, name: str) -> bool:
    """Return True if a process is in the group of that name, or below it; no two boxes share a name."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            return any(name in line.rstrip("\n").split("/") for line in file)
    except OSError:
        return False


# Boxes of control groups, of either version.


@frozen
class MemoryFiles:
    """Names of the memory controller's files in one version of control groups."""

    current: str
    peak: str
    """Absent from kernels before 5.19 in version 2; then the peak is the most that was read."""
    cached: tuple[str, ...]
    """Lines of `memory.stat`."""
    events: str
    how: str
    refused: str
    hint: str
    limit: Callable[[ControlGroup, ContainmentLimits], None]


class ControlGroupBox:
    """One attempt's groups: the first one limits and counts, all of them are emptied together."""

    def __init__(
        self, mechanism: Mechanism, groups: tuple[ControlGroup, ...], files: MemoryFiles, *, clock: Clock | None = None
    ) -> None:
        self.mechanism = mechanism
        self._groups = groups
        self._memory = groups[0]
        self._files = files
        self._clock = clock
        self._shell: CleanupShell | None = None
        self._needed_bytes = 0
        self._charged_bytes = 0
        self._last = ContainmentReading(peak_bytes=None, was_out_of_memory=False, how=files.how)
        self.entry = ChildSetup(procs_files=tuple(group.procs_file for group in groups))

    @property
    def name(self) -> str:
        return os.path.basename(self._memory.folder)

    def make(self, limits: ContainmentLimits) -> None:
        """Make the groups with their limits. Raises `ContainmentUnavailable` and leaves nothing on failure."""
        try:
            for group in self._groups:
                group.make()
            self._files.limit(self._memory, limits)
        except OSError as error:
            self.close()
            refused = f"{self._files.refused}: {error.strerror}: {error.filename or self._memory.folder}"
            raise ContainmentUnavailable(refused, hint=self._files.hint) from error

    def have_kept(self) -> None:
        """Start a shell that kills all processes inside if we can't."""
        self._shell = CleanupShell()
        # The twin goes first: it can kill all processes at once.
        self._shell.guard_groups([group.folder for group in self._groups])

    def took_in(self, identity: ProcessIdentity) -> None:
        """Do nothing: the child entered by itself."""

    def read(self) -> ContainmentReading:
        memory, files = self._memory, self._files
        used_bytes = memory.number(files.current)
        if used_bytes is None:
            return self._last
        self._charged_bytes = max(self._charged_bytes, memory.number(files.peak) or used_bytes)
        counts = memory.table("memory.stat")
        cached_bytes = sum(counts.get(name, 0) for name in files.cached)
        self._needed_bytes = max(self._needed_bytes, self._charged_bytes - cached_bytes)
        self._last = ContainmentReading(
            peak_bytes=self._needed_bytes,
            was_out_of_memory=memory.table(files.events).get("oom_kill", 0) > 0,
            how=files.how,
            charged_bytes=self._charged_bytes,
        )
        return self._last

    def members(self) -> tuple[int, ...]:
        return tuple(sorted({pid for group in self._groups for pid in group.members()}))

    def kill_all(self) -> None:
        end_everybody(self._groups, clock=self._clock)

    def close(self) -> None:
        self.read()
        self.kill_all()
        for group in self._groups:
            group.remove()
        if self._shell is not None:
            self._shell.dismiss()


class ControlGroups:
    """Boxes of control groups: in each of some places, a group of the same name."""

    mechanism: Mechanism
    files: MemoryFiles
    warning = ""

    def __init__(
        self, places: tuple[str, ...], *, folders: CgroupFolders | None = None, clock: Clock | None = None
    ) -> None:
        self._places = places
        self._folders = folders
        self._clock = clock

    def open(self, name: str, limits: ContainmentLimits, mark: str) -> ControlGroupBox:
        self.sweep_stale()
        box = self.make(name, limits, mark)
        box.have_kept()
        return box

    def sweep_stale(self) -> tuple[str, ...]:
        """Remove boxes whose opener is gone, and kill the processes left in them. Return the names of those removed."""
        names = sorted({name for place in self._places for name in _entries(place) if is_abandoned(name)})
        return tuple(name for name in names if self._is_swept(name))

    def make(self, name: str, limits: ContainmentLimits, mark: str) -> ControlGroupBox:
        """Make a box that only its opener ends. Raises `ContainmentUnavailable`."""
        box = ControlGroupBox(self.mechanism, self._groups(box_name(name, mark)), self.files, clock=self._clock)
        box.make(limits)
        return box

    def _is_swept(self, name: str) -> bool:
        groups = self._groups(name)
        try:
            end_everybody(groups, clock=self._clock)
            for group in groups:
                group.remove()
        except ProcessLost:
            # A failure here is not the caller's; the next run tries again.
            return False
        return True

    def _groups(self, name: str) -> tuple[ControlGroup, ...]:
        return tuple(
            ControlGroup(os.path.join(place, name), folders=self._folders, clock=self._clock) for place in self._places
        )


def _set_limits(memory: ControlGroup, limits: ContainmentLimits) -> None:
    # By default, old kernels count a group below ours on its own.
    memory.try_write("memory.use_hierarchy", 1)
    if limits.memory_bytes is None:
        return
    memory.write("memory.limit_in_bytes", limits.memory_bytes)
    # The kernel counts memory and swap together, if it counts swap at all.
    counts_swap = memory.try_write("memory.memsw.limit_in_bytes", limits.memory_bytes + limits.swap_bytes)
    if not counts_swap and not limits.swap_bytes:
        memory.try_write("memory.swappiness", 0)


class Cgroup1(ControlGroups):
    """Boxes below the groups that we are in: of the memory controller, and of the twin if there is one.

    The memory controller limits and counts but can't stop processes. The twin can: a version 2 group with `cgroup.kill`
    where both versions are mounted, otherwise a freezer. Without either, processes are killed one by one until none is
    left.

    When memory runs out the kernel kills one process here and not all of them.
    """

    mechanism = Mechanism.CGROUP1
    files = MemoryFiles(
        current="memory.max_usage_in_bytes",
        peak="memory.max_usage_in_bytes",
        cached=("total_inactive_file", "total_active_file"),
        events="memory.oom_control",
        how="the kernel's count for its control group (version 1)",
        refused="cgroup version 1 can't be used",
        hint="only root, or a user to whom root delegated a group, may use it",
        limit=_set_limits,
    )

    @classmethod
    def probe(cls, proc: str = "/proc", *, clock: Clock | None = None) -> Cgroup1:
        """Find it and try it. Raises `ContainmentUnavailable` with the reason."""
        memory_folder = own_group("memory", 1, proc)
        if memory_folder is None:
            raise ContainmentUnavailable("no memory controller of cgroup version 1 is mounted")
        found = cls((memory_folder,), clock=clock)
        found.make("probe", ContainmentLimits(memory_bytes=1 << 20), "").close()
        for twin_folder in (own_group("", 2, proc), own_group("freezer", 1, proc)):
            if twin_folder is not None and _is_good_twin(twin_folder, clock):
                return cls((memory_folder, twin_folder), clock=clock)
        return found


def _is_good_twin(folder: str, clock: Clock | None) -> bool:
    """Return True if groups can be made there that can stop all processes in them."""
    group = ControlGroup(os.path.join(folder, box_name("probe", "")), clock=clock)
    try:
        group.make()
    except OSError:
        return False
    is_good = group.has("cgroup.kill") or group.has("freezer.state")
    group.remove()
    return is_good


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


_MEMORY = "memory"
_CONTROLLERS = "cgroup.controllers"
_HANDED_ON = "cgroup.subtree_control"
# Where this process moves after a group had to be freed of processes.
_OWN_FLOOR = "stoker-itself"
_LIMITS_OF_OURS = ("memory.max", "memory.high", "memory.swap.max", "cpu.max", "pids.max")


def _set_limits_cgroup2(group: ControlGroup, limits: ContainmentLimits) -> None:
    if limits.memory_bytes is None:
        return
    group.write("memory.max", limits.memory_bytes)
    # Absent where the machine has no swap.
    group.try_write("memory.swap.max", limits.swap_bytes)
    # All or none: a program that has lost one of its processes mostly hangs.
    group.try_write("memory.oom.group", 1)


class Cgroup2(ControlGroups):
    """Boxes of control groups, version 2: one group per attempt that limits, counts and kills."""

    mechanism = Mechanism.CGROUP2
    files = MemoryFiles(
        current="memory.current",
        peak="memory.peak",
        cached=("inactive_file", "active_file"),
        events="memory.events",
        how="the kernel's count for its control group",
        refused="cgroup version 2 can't be used",
        hint="only root, or a user to whom a group with memory control was delegated, may use it",
        limit=_set_limits_cgroup2,
    )

    @classmethod
    def probe(cls, proc: str = "/proc", *, folders: CgroupFolders | None = None, clock: Clock | None = None) -> Cgroup2:
        """Find a place and try it. Raises `ContainmentUnavailable` with the reason."""
        found = cls((find_place(proc, folders=folders),), folders=folders, clock=clock)
        found.make("probe", ContainmentLimits(memory_bytes=1 << 20), "").close()
        return found


def find_place(proc: str = "/proc", *, folders: CgroupFolders | None = None) -> str:
    """Return a folder below which boxes can be made. Raises `ContainmentUnavailable` with the reason."""
    folder = own_group("", 2, proc)
    if folder is None:
        raise ContainmentUnavailable("cgroup version 2 is not mounted")
    own = ControlGroup(folder, folders=folders)
    if _MEMORY not in own.read(_CONTROLLERS).split():
        raise ContainmentUnavailable(
            "the memory controller of cgroup version 2 is not delegated to this process",
            hint="version 1 may hold it, or the parent process did not delegate it",
        )
    if not _hands_on(own):
        # Refused where processes are, except in the root group.
        own.try_write(_HANDED_ON, f"+{_MEMORY}")
    if _hands_on(own):
        return folder
    above = ControlGroup(os.path.dirname(folder), folders=folders)
    if _hands_on(above) and _may_enter(above) and not _is_limited(own):
        return above.folder
    return _after_moving_down(own, folders)


def _hands_on(group: ControlGroup) -> bool:
    """Return True if a group delegates memory control to those below it."""
    return _MEMORY in group.read(_HANDED_ON).split()


def _may_enter(group: ControlGroup) -> bool:
    """Return True if we may make groups there and move ourselves between them."""
    return os.access(group.procs_file, os.W_OK) and os.access(group.folder, os.W_OK | os.X_OK)


def _is_limited(group: ControlGroup) -> bool:
    values = (group.read(name).split() for name in _LIMITS_OF_OURS)
    return any(words and words[0] != "max" for words in values)


def _after_moving_down(own: ControlGroup, folders: CgroupFolders | None) -> str:
    strangers = _strangers(set(own.direct_members()))
    if strangers:
        raise ContainmentUnavailable(
            f"the control group {own.folder} is shared with process {min(strangers)} and others",
            hint="a group of our own is needed: a service with Delegate=yes, or a user session of systemd",
        )
    floor = ControlGroup(os.path.join(own.folder, _OWN_FLOOR), folders=folders)
    try:
        if not os.path.isdir(floor.folder):
            floor.make()
        for pid in own.direct_members():
            _move(pid, floor)
        own.write(_HANDED_ON, f"+{_MEMORY}")
    except OSError as error:
        raise ContainmentUnavailable(
            f"no control groups can be made: {error.strerror}: {error.filename or own.folder}"
        ) from error
    return own.folder


def _move(pid: int, group: ControlGroup) -> None:
    try:
        group.write("cgroup.procs", pid)
    except OSError as error:
        # It has ended.
        if error.errno != errno.ESRCH:
            raise


def _strangers(pids: set[int]) -> set[int]:
    """Return the processes that are neither this process nor its descendants."""
    parents = {row.pid: row.parent_pid for row in rows()}

    def is_ours(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return {pid for pid in pids if not is_ours(pid)}
