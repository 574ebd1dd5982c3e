"""Machines and jobs for tests of what the queue tells the scheduler, in few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.coordinator.queue.machines import joined, with_closed
from stoker.core.capability import Capability
from stoker.core.device import GIB, Backend, Device, TriState, TriStateAnswer
from stoker.core.machine import DevicePreference, Node, Requirements, SchedulableJob
from stoker.devices.admission import MachineMemory
from stoker.protocol.lease_messages import WorkerMeasurements
from stoker.scheduler.leases import HoldDecision, StartDecision
from stoker.scheduler.machine_index import MatchableMachine
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.ready_queue import ReadyHead
from stoker.scheduler.scheduler import Scheduler

YES = TriStateAnswer(verdict=TriState.YES)


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


def cpu_job(ram_gib: int = 4, **more: Any) -> SchedulableJob:
    """A job that computes on the CPU."""
    return SchedulableJob(name="prep", model="tabular/gbt", requirements=Requirements(ram_bytes=ram_gib * GIB), **more)


def gpu_job(
    vram_gib: int = 6, *, wish: DevicePreference = DevicePreference.REQUIRE, ram_gib: int = 4, **more: Any
) -> SchedulableJob:
    """A job that wants a device."""
    asked = Requirements(wish=wish, vram_bytes=vram_gib * GIB, ram_bytes=ram_gib * GIB, **more)
    return SchedulableJob(name="resnet", model="vision/resnet", requirements=asked)


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
        memory = MachineMemory(total_bytes=found.ram_total_bytes, available_bytes=found.ram_available_bytes)
        self.scheduler.put_machine(MatchableMachine(offer, memory.room_bytes, drift))
        return drift

    @property
    def offers(self) -> tuple[NodeOffer, ...]:
        return self.scheduler.offers()

    def wait(self, class_id: int, wanted: SchedulableJob, priority: int = 0, *, count: int = 1) -> ReadyHead:
        """Let jobs of a class be ready."""
        self._seq += 1
        self.scheduler.put_class(class_id, wanted)
        self.scheduler.ready.set_head(class_id, priority, self._seq, count)
        return ReadyHead(class_id=class_id, priority=priority, seq=self._seq, count=count)

    def ask(
        self, machine: str, now_s: float = 0.0, measured: WorkerMeasurements | None = None
    ) -> StartDecision | HoldDecision:
        """Ask what a machine gets."""
        if measured is not None:
            self.scheduler.measure(machine, measured)
        return self.scheduler.choose(machine, now_s, tells=True)

    def grant(self, machine: str, now_s: float = 0.0) -> StartDecision:
        """Grant a machine what it gets."""
        decision = self.ask(machine, now_s)
        assert isinstance(decision, StartDecision)
        self.scheduler.grant(decision, now_s)
        self.scheduler.ready.set_head(decision.head.class_id, decision.head.priority, 0, 0)
        return decision

    def grants(self, machine: str) -> Sequence[int]:
        """Grant a machine all that it gets now; return their classes."""
        found = []
        while isinstance(self.ask(machine), StartDecision):
            found.append(self.grant(machine).head.class_id)
        return found


def refused(decision: StartDecision | HoldDecision) -> HoldDecision:
    """Assert that nothing is granted."""
    assert isinstance(decision, HoldDecision)
    return decision
