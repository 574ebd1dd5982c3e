"""Machines and jobs for tests of matching, in few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoker.coordinator.matching.heads import Head, Match, NoMatch
from stoker.coordinator.matching.matcher import Matcher
from stoker.model.capability import Capability
from stoker.model.devices import Answer, Backend, Device, Verdict
from stoker.model.requirements import Requirements, WantedJob, Wish
from stoker.model.resources import GIB
from stoker.wire.leasing import Measured

YES = Answer(verdict=Verdict.YES)


def card(uuid: str, gib: int = 24, **more: Any) -> Device:
    """A device of the usual sort."""
    said: dict[str, Any] = {
        "backend": Backend.CUDA,
        "name": "NVIDIA GeForce RTX 4090",
        "total_bytes": gib * GIB,
        "installed": YES,
        "visible": YES,
        "usable": YES,
    }
    return Device(uuid=uuid, **(said | more))


def box(name: str, *devices: Device, ram_gib: int = 32, **more: Any) -> Capability:
    """A machine as it was found."""
    said: dict[str, Any] = {"cpu_cores": 8, "ram_total_bytes": ram_gib * GIB}
    return Capability(hostname=name, os="linux", arch="x86_64", devices=tuple(devices), **(said | more))


def cpu_job(ram_gib: int = 4, **more: Any) -> WantedJob:
    """A job that computes on the CPU."""
    return WantedJob(name="prep", model="tabular/gbt", requirements=Requirements(ram_bytes=ram_gib * GIB), **more)


def gpu_job(vram_gib: int = 6, *, wish: Wish = Wish.REQUIRE, ram_gib: int = 4, **more: Any) -> WantedJob:
    """A job that wants a device."""
    asked = Requirements(wish=wish, vram_bytes=vram_gib * GIB, ram_bytes=ram_gib * GIB, **more)
    return WantedJob(name="resnet", model="vision/resnet", requirements=asked)


class Driven:
    """A matcher, and jobs that are told apart by their class."""

    def __init__(self, *machines: Capability, **more: Any) -> None:
        self.matcher = Matcher(**more)
        self._seq = 0
        for machine in machines:
            self.matcher.put_machine(machine.hostname, machine)

    def wait(
        self, class_id: int, wanted: WantedJob, priority: int = 0, *, since_s: float = 0.0, count: int = 1
    ) -> Head:
        """Let jobs of a class wait."""
        self._seq += 1
        self.matcher.put_class(class_id, wanted)
        head = Head(class_id=class_id, priority=priority, seq=self._seq, since_s=since_s, count=count)
        self.matcher.line.put(head)
        return head

    def ask(self, machine: str, now_s: float = 0.0, measured: Measured | None = None) -> Match | NoMatch:
        """Ask what a machine gets."""
        return self.matcher.choose(machine, self.matcher.line, now_s, measured)

    def grant(self, machine: str, now_s: float = 0.0) -> Match:
        """Give a machine what it gets."""
        found = self.ask(machine, now_s)
        assert isinstance(found, Match)
        self.matcher.seat(found.seat)
        self.matcher.line.drop(found.head.class_id, found.head.priority)
        return found

    def grants(self, machine: str) -> Sequence[int]:
        """Give a machine all that it takes now; gives their classes."""
        found = []
        while isinstance(self.ask(machine), Match):
            found.append(self.grant(machine).head.class_id)
        return found


def refused(found: Match | NoMatch) -> NoMatch:
    """Hold that nothing was given."""
    assert isinstance(found, NoMatch)
    return found
