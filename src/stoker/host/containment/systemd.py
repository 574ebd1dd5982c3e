"""Boxes that the user's systemd makes: how an ordinary user gets a control group to give limits to.

A box is a transient scope, `stoker-JOB-STAGE….scope`, seen by `systemctl --user`. Systemd hands its inside over to us:

    stoker-….scope       the unit, with the cap that people see
    ├── keeper           a shell that does nothing: without anybody the unit would go, and what it counted with it
    └── stoker-…         the attempt: a version 2 group as in `cgroup2`

Only systemd may carry a process across from where we are, so the program waits at its gate until it has. The keeper
waits on a pipe of ours: if we are killed, it kills the attempt.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from typing import Any

from stoker.host.cgroup import group_at, own_group
from stoker.host.containment.box import BoxReading, Entry, Limits, Mechanism
from stoker.host.containment.cgroup2 import Cgroup2Box
from stoker.host.containment.control_group import END_WAIT_S, ControlGroup, end_everybody
from stoker.host.containment.keeper import Keeper
from stoker.host.containment.naming import box_name, is_abandoned
from stoker.host.containment.user_bus import UserBus
from stoker.host.entry import let_in
from stoker.host.identity import ProcessIdentity
from stoker.model.clock import Clock, SystemClock
from stoker.model.errors import ContainmentUnavailable, ProcessLost

_SUFFIX = ".scope"
_KEEPER_ROOM_BYTES = 16 << 20
_PAUSE_S = 0.001


class Systemd:
    """Boxes from the user's systemd."""

    mechanism = Mechanism.SYSTEMD
    warning = ""

    def __init__(self, environment: Mapping[str, str], *, proc: str = "/proc", clock: Clock | None = None) -> None:
        self._environment = environment
        self._proc = proc
        self._clock = clock or SystemClock()

    @classmethod
    def probe(cls, environment: Mapping[str, str], *, proc: str = "/proc", clock: Clock | None = None) -> Systemd:
        """Ask it, see that it has memory control to give, and try. Raises `ContainmentUnavailable` with the reason."""
        with closing(UserBus.connect(environment)) as bus:
            folder = group_at(bus.control_group(), proc)
        if folder is None:
            raise ContainmentUnavailable("the control groups of the user's systemd are not to be seen from here")
        if "memory" not in ControlGroup(folder).read("cgroup.controllers").split():
            raise ContainmentUnavailable(
                "the user's systemd has no memory control to give (cgroup version 1 holds it?)"
            )
        found = cls(environment, proc=proc, clock=clock)
        found.open("probe", Limits(memory_bytes=1 << 20), "").close()
        return found

    def open(self, name: str, limits: Limits, mark: str) -> SystemdBox:
        unit = box_name(name, mark) + _SUFFIX
        with ExitStack() as undoing:
            bus = UserBus.connect(self._environment)
            undoing.callback(bus.close)
            keeper = Keeper()
            undoing.callback(keeper.dismiss)
            bus.start_scope(unit, _properties(limits, keeper.pid))
            folder = self._scope_folder(unit, keeper.pid)
            undoing.pop_all()
        box = SystemdBox(unit, bus=bus, keeper=keeper, scope=ControlGroup(folder), clock=self._clock)
        try:
            box.make(limits)
        except ContainmentUnavailable:
            box.close()
            raise
        self._sweep_beside(folder)
        return box

    def _scope_folder(self, unit: str, keeper_pid: int) -> str:
        """Wait until the keeper is in its scope, and give the scope's folder."""
        deadline_s = self._clock.monotonic_s() + END_WAIT_S
        while self._clock.monotonic_s() < deadline_s:
            folder = own_group("", 2, self._proc, of=keeper_pid)
            if folder is not None and os.path.basename(folder) == unit:
                return folder
            self._clock.sleep(_PAUSE_S)
        raise ContainmentUnavailable(
            f"the user's systemd took {unit} and nothing came of it", hint=f"systemctl --user status {unit}"
        )

    def _sweep_beside(self, folder: str) -> None:
        """End whoever is left in scopes whose opener is gone; systemd removes an empty scope itself."""
        place = os.path.dirname(folder)
        for name in sorted(os.listdir(place)):
            if name.endswith(_SUFFIX) and is_abandoned(name.removesuffix(_SUFFIX)):
                with suppress(ProcessLost):
                    end_everybody((ControlGroup(os.path.join(place, name)),), clock=self._clock)


class SystemdBox:
    """One attempt's scope."""

    mechanism = Mechanism.SYSTEMD

    def __init__(self, unit: str, *, bus: UserBus, keeper: Keeper, scope: ControlGroup, clock: Clock) -> None:
        self.name = unit
        self._bus = bus
        self._keeper = keeper
        self._scope = scope
        self._leaf = ControlGroup(os.path.join(scope.folder, unit.removesuffix(_SUFFIX)), clock=clock)
        self._inner = Cgroup2Box(self._leaf, clock=clock)
        self._clock = clock
        self._ours, self._theirs = socket.socketpair()
        self.entry = Entry(gate_fd=self._theirs.fileno())

    def make(self, limits: Limits) -> None:
        """Make the group for the attempt within the scope. Raises `ContainmentUnavailable`."""
        aside = ControlGroup(os.path.join(self._scope.folder, "keeper"))
        try:
            aside.make()
            # A group that hands memory control on has no processes of its own.
            aside.write("cgroup.procs", self._keeper.pid)
            if limits.memory_bytes is not None:
                self._scope.write("cgroup.subtree_control", "+memory")
        except OSError as error:
            raise ContainmentUnavailable(
                f"the user's systemd gives no memory control: {error.strerror}: {error.filename or self._scope.folder}"
            ) from error
        self._inner.make(limits)
        self._keeper.guard_groups([self._leaf.folder])

    def took_in(self, identity: ProcessIdentity) -> None:
        # The child has its own copy by now; with ours open it would not notice our end.
        self._theirs.close()
        self._bus.attach(self.name, f"/{self._inner.name}", [identity.pid])
        let_in(self._ours)

    def read(self) -> BoxReading:
        return self._inner.read()

    def members(self) -> tuple[int, ...]:
        return self._inner.members()

    def kill_all(self) -> None:
        self._inner.kill_all()

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()
        self._inner.close()
        self._keeper.dismiss()
        with suppress(ContainmentUnavailable):
            # It would notice by itself that nobody is left, some 15 ms later. Perhaps it has.
            self._bus.stop_unit(self.name)
        self._see_unit_gone()
        self._bus.close()

    def _see_unit_gone(self) -> None:
        deadline_s = self._clock.monotonic_s() + END_WAIT_S
        while os.path.isdir(self._scope.folder):
            if self._clock.monotonic_s() >= deadline_s:
                raise ProcessLost(f"systemd keeps the unit {self.name}", hint=f"systemctl --user stop {self.name}")
            self._clock.sleep(_PAUSE_S)


def _properties(limits: Limits, keeper_pid: int) -> list[tuple[str, tuple[str, Any]]]:
    wanted: list[tuple[str, tuple[str, Any]]] = [
        ("Description", ("s", "An attempt of Stoker")),
        ("PIDs", ("au", [keeper_pid])),
        ("Delegate", ("b", True)),
        ("CollectMode", ("s", "inactive-or-failed")),
    ]
    if limits.memory_bytes is not None:
        # What is inside has the exact cap; this one makes room for the keeper, and is what `systemctl` shows.
        wanted.append(("MemoryMax", ("t", limits.memory_bytes + _KEEPER_ROOM_BYTES)))
        wanted.append(("MemorySwapMax", ("t", limits.swap_bytes)))
    return wanted
