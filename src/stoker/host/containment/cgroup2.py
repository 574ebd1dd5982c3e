"""Boxes of control groups, version 2: one group per attempt that limits, counts and kills.

They are made below a place that the memory controller reaches. Such a place has no processes of its own, so it is one
of these, the first that works:

1. the group we are in, if it already hands memory control on (the root of everything may, and so may a group that
   somebody prepared);
2. the group above ours, if ours has no limits that a box beside it would escape;
3. the group we are in after we and what we started have moved one floor down, if nobody else is in it: a service or a
   container that was given its group.
"""

from __future__ import annotations

import errno
import os

from stoker.host.cgroup import own_group
from stoker.host.containment.box import BoxReading, Entry, Limits, Mechanism
from stoker.host.containment.control_group import ControlGroup, Folders, end_everybody
from stoker.host.containment.keeper import Keeper
from stoker.host.containment.naming import box_name, is_abandoned
from stoker.host.identity import ProcessIdentity
from stoker.host.process_table import rows
from stoker.model.clock import Clock
from stoker.model.errors import ContainmentUnavailable, ProcessLost

_MEMORY = "memory"
_CONTROLLERS = "cgroup.controllers"
_HANDED_ON = "cgroup.subtree_control"
# Where we live ourselves once a group had to be freed of processes.
_OWN_FLOOR = "stoker-itself"
_LIMITS_OF_OURS = ("memory.max", "memory.high", "memory.swap.max", "cpu.max", "pids.max")


class Cgroup2:
    """Boxes below a place that has memory control to give."""

    mechanism = Mechanism.CGROUP2
    warning = ""

    def __init__(self, place: str, *, folders: Folders | None = None, clock: Clock | None = None) -> None:
        self._place = place
        self._folders = folders
        self._clock = clock

    @classmethod
    def probe(cls, proc: str = "/proc", *, folders: Folders | None = None, clock: Clock | None = None) -> Cgroup2:
        """Find a place and try it. Raises `ContainmentUnavailable` with the reason."""
        found = cls(find_place(proc, folders=folders), folders=folders, clock=clock)
        found._make("probe", Limits(memory_bytes=1 << 20), "").close()
        return found

    def open(self, name: str, limits: Limits, mark: str) -> Cgroup2Box:
        self.sweep_stale()
        box = self._make(name, limits, mark)
        box.have_kept()
        return box

    def sweep_stale(self) -> tuple[str, ...]:
        """Remove boxes whose opener is gone, and end whoever is left in them. Give the names of those removed."""
        try:
            names = sorted(name for name in os.listdir(self._place) if is_abandoned(name))
        except OSError:
            return ()
        return tuple(name for name in names if self._is_swept(name))

    def _make(self, name: str, limits: Limits, mark: str) -> Cgroup2Box:
        box = Cgroup2Box(self._group(box_name(name, mark)), clock=self._clock)
        box.make(limits)
        return box

    def _is_swept(self, name: str) -> bool:
        group = self._group(name)
        try:
            end_everybody((group,), clock=self._clock)
            group.remove()
        except ProcessLost:
            # It was not ours to fail on; the next one tries again.
            return False
        return True

    def _group(self, name: str) -> ControlGroup:
        return ControlGroup(os.path.join(self._place, name), folders=self._folders, clock=self._clock)


class Cgroup2Box:
    """One attempt's group."""

    mechanism = Mechanism.CGROUP2

    def __init__(self, group: ControlGroup, *, clock: Clock | None = None) -> None:
        self._group = group
        self._clock = clock
        self._keeper: Keeper | None = None
        self._needed_bytes = 0
        self._charged_bytes = 0
        self._last = BoxReading(peak_bytes=None, was_out_of_memory=False, how=_HOW)
        self.entry = Entry(procs_files=(group.procs_file,))

    @property
    def name(self) -> str:
        return os.path.basename(self._group.folder)

    def make(self, limits: Limits) -> None:
        """Make the group with its limits. Raises `ContainmentUnavailable` and leaves nothing if it can't."""
        try:
            self._group.make()
            _set_limits(self._group, limits)
        except OSError as error:
            self.close()
            raise ContainmentUnavailable(
                f"cgroup version 2 can't be used: {error.strerror}: {error.filename or self._group.folder}",
                hint="only root, or whom a group with memory control was delegated to, may",
            ) from error

    def have_kept(self) -> None:
        """Have somebody end whoever is inside if we can't."""
        self._keeper = Keeper()
        self._keeper.guard_groups([self._group.folder])

    def took_in(self, identity: ProcessIdentity) -> None:
        """It went in by itself."""

    def read(self) -> BoxReading:
        used_bytes = self._group.number("memory.current")
        if used_bytes is None:
            return self._last
        # Kernels before 5.19 keep no peak; then it is the most that we saw.
        self._charged_bytes = max(self._charged_bytes, self._group.number("memory.peak") or used_bytes)
        files = self._group.table("memory.stat")
        cached_bytes = files.get("inactive_file", 0) + files.get("active_file", 0)
        self._needed_bytes = max(self._needed_bytes, self._charged_bytes - cached_bytes)
        self._last = BoxReading(
            peak_bytes=self._needed_bytes,
            was_out_of_memory=self._group.table("memory.events").get("oom_kill", 0) > 0,
            how=_HOW,
            charged_bytes=self._charged_bytes,
        )
        return self._last

    def members(self) -> tuple[int, ...]:
        return self._group.members()

    def kill_all(self) -> None:
        end_everybody((self._group,), clock=self._clock)

    def close(self) -> None:
        self.read()
        self.kill_all()
        self._group.remove()
        if self._keeper is not None:
            self._keeper.dismiss()


_HOW = "the kernel's count for its control group"


def find_place(proc: str = "/proc", *, folders: Folders | None = None) -> str:
    """Give a folder below which boxes can be made. Raises `ContainmentUnavailable` with the reason."""
    folder = own_group("", 2, proc)
    if folder is None:
        raise ContainmentUnavailable("cgroup version 2 is not mounted")
    own = ControlGroup(folder, folders=folders)
    if _MEMORY not in own.read(_CONTROLLERS).split():
        raise ContainmentUnavailable(
            "the memory controller of cgroup version 2 is not handed to us",
            hint="version 1 may hold it, or whoever started us kept it",
        )
    if not _hands_on(own):
        # Refused where processes are, except at the root of everything.
        own.try_write(_HANDED_ON, f"+{_MEMORY}")
    if _hands_on(own):
        return folder
    above = ControlGroup(os.path.dirname(folder), folders=folders)
    if _hands_on(above) and _may_enter(above) and not _is_limited(own):
        return above.folder
    return _after_moving_down(own, folders)


def _hands_on(group: ControlGroup) -> bool:
    """Whether a group gives memory control to those below it."""
    return _MEMORY in group.read(_HANDED_ON).split()


def _may_enter(group: ControlGroup) -> bool:
    """Whether we may make groups there and move ourselves between them."""
    return os.access(group.procs_file, os.W_OK) and os.access(group.folder, os.W_OK | os.X_OK)


def _is_limited(group: ControlGroup) -> bool:
    values = (group.read(name).split() for name in _LIMITS_OF_OURS)
    return any(words and words[0] != "max" for words in values)


def _after_moving_down(own: ControlGroup, folders: Folders | None) -> str:
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
        # It ended meanwhile.
        if error.errno != errno.ESRCH:
            raise


def _strangers(pids: set[int]) -> set[int]:
    """Give those who are neither this process nor descend from it."""
    parents = {row.pid: row.parent_pid for row in rows()}

    def is_ours(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return {pid for pid in pids if not is_ours(pid)}


def _set_limits(group: ControlGroup, limits: Limits) -> None:
    if limits.memory_bytes is None:
        return
    group.write("memory.max", limits.memory_bytes)
    # Absent where the machine has no swap.
    group.try_write("memory.swap.max", limits.swap_bytes)
    if limits.soft_memory_bytes is not None:
        group.try_write("memory.high", limits.soft_memory_bytes)
    # All or nobody: a program that has lost one of its processes mostly hangs.
    group.try_write("memory.oom.group", 1)
