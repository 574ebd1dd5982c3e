"""Machines and jobs for tests of what the queue tells the scheduler, in few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.coordinator.matching.joining import joined, with_closed
from stoker.hardware.admission import Memory
from stoker.model.capability import Capability
from stoker.model.devices import Answer, Backend, Device, Verdict
from stoker.model.nodes import Node
from stoker.model.requirements import Requirements, WantedJob, Wish
from stoker.model.resources import GIB
from stoker.scheduler.decisions import Grant, Hold
from stoker.scheduler.machine import Machine
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.ready_queue import Head
from stoker.scheduler.scheduler import Scheduler
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
    """A scheduler, and jobs that are told apart by their class."""

    def __init__(self, *machines: Capability) -> None:
        self.scheduler = Scheduler()
        self._seq = 0
        for machine in machines:
            self.put(machine)

    def put(
        self,
        found: Capability,
        declared: Node | None = None,
        slots: int | None = None,
        *,
        closed: str = "",
        closed_devices: Mapping[str, str] | None = None,
        unable: Mapping[str, str] | None = None,
        **said: Any,
    ) -> tuple[str, ...]:
        """Offer a machine as the queue does; return where it differs from its declaration."""
        agreed = joined(found.hostname, found, declared, slots, **said)
        offer = with_closed(agreed.offer, closed, closed_devices or {}, unable=unable or {})
        drift = tuple(one.message for one in agreed.drift)
        memory = Memory(total_bytes=found.ram_total_bytes, available_bytes=found.ram_available_bytes)
        self.scheduler.put_machine(Machine(offer, memory.room_bytes, drift))
        return drift

    @property
    def offers(self) -> tuple[NodeOffer, ...]:
        return self.scheduler.offers()

    def wait(self, class_id: int, wanted: WantedJob, priority: int = 0, *, count: int = 1) -> Head:
        """Let jobs of a class be ready."""
        self._seq += 1
        self.scheduler.put_class(class_id, wanted)
        self.scheduler.ready.set_head(class_id, priority, self._seq, count)
        return Head(class_id=class_id, priority=priority, seq=self._seq, count=count)

    def ask(self, machine: str, now_s: float = 0.0, measured: Measured | None = None) -> Grant | Hold:
        """Ask what a machine gets."""
        if measured is not None:
            self.scheduler.measure(machine, measured)
        return self.scheduler.choose(machine, now_s, tells=True)

    def grant(self, machine: str, now_s: float = 0.0) -> Grant:
        """Grant a machine what it gets."""
        decision = self.ask(machine, now_s)
        assert isinstance(decision, Grant)
        self.scheduler.grant(decision, now_s)
        self.scheduler.ready.set_head(decision.head.class_id, decision.head.priority, 0, 0)
        return decision

    def grants(self, machine: str) -> Sequence[int]:
        """Grant a machine all that it gets now; return their classes."""
        found = []
        while isinstance(self.ask(machine), Grant):
            found.append(self.grant(machine).head.class_id)
        return found


def refused(decision: Grant | Hold) -> Hold:
    """Assert that nothing is granted."""
    assert isinstance(decision, Hold)
    return decision
