"""Boxes of control groups, version 1: a group of the memory controller, and a twin that everybody is killed by.

The memory controller limits and counts but can't stop anybody. The twin can: a version 2 group with the kernel's own
"kill everybody" where both versions are mounted, else a freezer. Without either, people are killed one by one until
nobody is left.

When memory runs out the kernel kills one process here and not all of them.
"""

from __future__ import annotations

import os

from stoker.host.cgroup import own_group
from stoker.host.containment.box import BoxReading, Entry, Limits, Mechanism
from stoker.host.containment.control_group import ControlGroup, Folders, end_everybody
from stoker.host.containment.keeper import Keeper
from stoker.host.containment.naming import box_name, is_abandoned
from stoker.host.identity import ProcessIdentity
from stoker.model.clock import Clock
from stoker.model.errors import ContainmentUnavailable, ProcessLost


class Cgroup1:
    """Boxes below the groups that we are in ourselves."""

    mechanism = Mechanism.CGROUP1
    warning = ""

    def __init__(
        self, memory_folder: str, twin_folder: str | None, *, folders: Folders | None = None, clock: Clock | None = None
    ) -> None:
        self._memory_folder = memory_folder
        self._twin_folder = twin_folder
        self._folders = folders
        self._clock = clock

    @classmethod
    def probe(cls, proc: str = "/proc", *, clock: Clock | None = None) -> Cgroup1:
        """Find it and try it. Raises `ContainmentUnavailable` with the reason."""
        memory_folder = own_group("memory", 1, proc)
        if memory_folder is None:
            raise ContainmentUnavailable("no memory controller of cgroup version 1 is mounted")
        found = cls(memory_folder, None, clock=clock)
        found._make("probe", Limits(memory_bytes=1 << 20), "").close()
        for twin_folder in (own_group("", 2, proc), own_group("freezer", 1, proc)):
            if twin_folder is not None and _is_good_twin(twin_folder, clock):
                return cls(memory_folder, twin_folder, clock=clock)
        return found

    def open(self, name: str, limits: Limits, mark: str) -> Cgroup1Box:
        self.sweep_stale()
        box = self._make(name, limits, mark)
        box.have_kept()
        return box

    def sweep_stale(self) -> tuple[str, ...]:
        """Remove boxes whose opener is gone, and end whoever is left in them. Give the names of those removed."""
        places = [place for place in (self._memory_folder, self._twin_folder) if place]
        names = sorted({name for place in places for name in _entries(place) if is_abandoned(name)})
        return tuple(name for name in names if self._is_swept(places, name))

    def _make(self, name: str, limits: Limits, mark: str) -> Cgroup1Box:
        unit = box_name(name, mark)
        memory = self._group(self._memory_folder, unit)
        twin = self._group(self._twin_folder, unit) if self._twin_folder else None
        box = Cgroup1Box(memory, twin, clock=self._clock)
        try:
            memory.make()
            _set_limits(memory, limits)
            if twin is not None:
                twin.make()
        except OSError as error:
            box.close()
            raise ContainmentUnavailable(
                f"cgroup version 1 can't be used: {error.strerror}: {error.filename or memory.folder}",
                hint="only root, or whom root gave a group, may",
            ) from error
        return box

    def _is_swept(self, places: list[str], name: str) -> bool:
        groups = tuple(self._group(place, name) for place in places)
        try:
            end_everybody(groups, clock=self._clock)
            for group in groups:
                group.remove()
        except ProcessLost:
            # It was not ours to fail on; the next one tries again.
            return False
        return True

    def _group(self, place: str, name: str) -> ControlGroup:
        return ControlGroup(os.path.join(place, name), folders=self._folders, clock=self._clock)


class Cgroup1Box:
    """One attempt's group and its twin."""

    mechanism = Mechanism.CGROUP1

    def __init__(self, memory: ControlGroup, twin: ControlGroup | None, *, clock: Clock | None = None) -> None:
        self._memory = memory
        self._groups = (memory,) if twin is None else (memory, twin)
        self._clock = clock
        self._keeper: Keeper | None = None
        self._needed_bytes: int | None = None
        self._last = BoxReading(peak_bytes=None, was_out_of_memory=False, how=_HOW)
        self.entry = Entry(procs_files=tuple(group.procs_file for group in self._groups))

    @property
    def name(self) -> str:
        return os.path.basename(self._memory.folder)

    def have_kept(self) -> None:
        """Have somebody end whoever is inside if we can't."""
        self._keeper = Keeper()
        # The twin goes first: it can end everybody at once.
        self._keeper.guard_groups([group.folder for group in self._groups])

    def took_in(self, identity: ProcessIdentity) -> None:
        """It went in by itself."""

    def read(self) -> BoxReading:
        charged_bytes = self._memory.number("memory.max_usage_in_bytes")
        if charged_bytes is None:
            return self._last
        files = self._memory.table("memory.stat")
        cached_bytes = files.get("total_inactive_file", 0) + files.get("total_active_file", 0)
        self._needed_bytes = max(self._needed_bytes or 0, charged_bytes - cached_bytes)
        self._last = BoxReading(
            peak_bytes=self._needed_bytes,
            was_out_of_memory=self._memory.table("memory.oom_control").get("oom_kill", 0) > 0,
            how=_HOW,
            charged_bytes=charged_bytes,
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
        if self._keeper is not None:
            self._keeper.dismiss()


_HOW = "the kernel's count for its control group (version 1)"


def _set_limits(memory: ControlGroup, limits: Limits) -> None:
    # Old kernels count a group below ours on its own unless told.
    memory.try_write("memory.use_hierarchy", 1)
    if limits.soft_memory_bytes is not None:
        memory.try_write("memory.soft_limit_in_bytes", limits.soft_memory_bytes)
    if limits.memory_bytes is None:
        return
    memory.write("memory.limit_in_bytes", limits.memory_bytes)
    # The kernel counts memory and swap together, if it counts swap at all.
    counts_swap = memory.try_write("memory.memsw.limit_in_bytes", limits.memory_bytes + limits.swap_bytes)
    if not counts_swap and not limits.swap_bytes:
        memory.try_write("memory.swappiness", 0)


def _is_good_twin(folder: str, clock: Clock | None) -> bool:
    """Whether groups can be made there that can stop everybody in them."""
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
