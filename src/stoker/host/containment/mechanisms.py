"""Which mechanism keeps programs within their memory here: the strongest that works, or exactly the one named.

A mechanism works if it was tried: a tool that is installed, or a folder that is there, says nothing. Whoever is named
is never replaced by another one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from stoker.core.clock import Clock
from stoker.core.errors import ContainmentUnavailable, Usage
from stoker.host.containment.box import ContainedGroup, Containment, ContainmentLimits, Mechanism
from stoker.host.containment.cgroups import Cgroup1, Cgroup2
from stoker.host.containment.systemd import SystemdContainment
from stoker.host.containment.watchdog import AddressSpace, NoContainment, Watchdog

AUTO = "auto"


class ContainmentChoice:
    """The mechanism in use, and why no stronger one is."""

    def __init__(
        self, first: Containment, *, tried: tuple[tuple[Mechanism, str], ...] = (), for_gpu: Containment | None = None
    ) -> None:
        self._first = first
        self._for_gpu = for_gpu or first
        self.mechanism = first.mechanism
        self.warning = first.warning
        self.tried = tried
        """Stronger mechanisms, each with the reason against it."""

    def open(self, name: str, limits: ContainmentLimits, mark: str) -> ContainedGroup:
        """Make a box; for GPU work by the next mechanism if this one is not for it. Its box says which it was."""
        return (self._for_gpu if limits.uses_gpu else self._first).open(name, limits, mark)


def choose_mechanism(
    wanted: str | None, *, environment: Mapping[str, str], proc: str = "/proc", clock: Clock | None = None
) -> ContainmentChoice:
    """Return the mechanism to use: the one that is `wanted` by name, or by `None` or `auto` the strongest that works.

    Raises `ContainmentUnavailable` if the one that is named does not work, and `Usage` if there is none of that name.
    """
    probes = _probes(environment, proc, clock)
    if wanted is not None and wanted != AUTO:
        return ContainmentChoice(probes[_named(wanted)]())
    tried: list[tuple[Mechanism, str]] = []
    for mechanism, probe in probes.items():
        try:
            first = probe()
        except ContainmentUnavailable as error:
            tried.append((mechanism, str(error)))
            continue
        for_gpu = Watchdog(clock=clock) if mechanism is Mechanism.ADDRESS_SPACE else None
        return ContainmentChoice(first, tried=tuple(tried), for_gpu=for_gpu)
    return ContainmentChoice(NoContainment(clock=clock), tried=tuple(tried))


def _named(wanted: str) -> Mechanism:
    try:
        return Mechanism(wanted)
    except ValueError:
        names = ", ".join([AUTO, *Mechanism])
        raise Usage(f"there is no containment {wanted!r}", hint=f"one of {names}") from None


def _probes(
    environment: Mapping[str, str], proc: str, clock: Clock | None
) -> dict[Mechanism, Callable[[], Containment]]:
    """Return every mechanism with what tries it, strongest first."""
    return {
        Mechanism.SYSTEMD: lambda: SystemdContainment.probe(environment, proc=proc, clock=clock),
        Mechanism.CGROUP2: lambda: Cgroup2.probe(proc, clock=clock),
        Mechanism.CGROUP1: lambda: Cgroup1.probe(proc, clock=clock),
        Mechanism.ADDRESS_SPACE: lambda: _on_linux(AddressSpace(clock=clock)),
        Mechanism.WATCHDOG: lambda: _on_linux(Watchdog(clock=clock)),
        Mechanism.BARE: lambda: NoContainment(clock=clock),
    }


def _on_linux(found: Containment) -> Containment:
    if sys.platform != "linux":
        raise ContainmentUnavailable(f"{found.mechanism} is for Linux only")
    return found
