"""One machine as the scheduler sees it: what it offers, what was measured there, and the leases that it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from stoker.core.device import MIB
from stoker.core.frozen import changed
from stoker.protocol.lease_messages import WorkerMeasurements
from stoker.scheduler.job_types import JobType
from stoker.scheduler.node_index import PlacedJob
from stoker.scheduler.node_state import NodeUsage
from stoker.scheduler.node_table import NodeTable
from stoker.scheduler.offers import MeasuredNode, NodeOffer, Sharing
from stoker.scheduler.shapes import PlacementShape

_RAM_STEP_BYTES = 64 * MIB
"""RAM that other programs hold changes by less all the time."""


class LeaseAllocation(NamedTuple):
    """What one live lease holds of a machine."""

    machine: str
    class_id: int
    devices: tuple[str, ...] = ()
    """UUIDs; none: it runs on the CPU."""
    is_shared: bool = False


class MachineLease:
    """A lease on a machine, and what is expected of it."""

    __slots__ = (
        "allocation",
        "cost_rate",
        "devices",
        "placed",
        "shape",
        "started_s",
        "type",
        "until_s",
        "usage_rate",
        "user",
        "work_rate",
    )

    def __init__(self, allocation: LeaseAllocation, job_type: JobType, shape: PlacementShape, user: str) -> None:
        self.allocation = allocation
        self.type = job_type
        self.shape = shape
        self.user = user
        self.placed: PlacedJob | None = None
        """None while the machine is not known."""
        self.started_s = 0.0
        self.until_s = 0.0
        """When it is expected to end."""
        self.cost_rate = 0.0
        """What it adds per second to the work that is left, in seconds of the fleet."""
        self.work_rate = 1.0
        """Its speed relative to a device of speed 1."""
        self.usage_rate = 0.0
        """The part of the fleet that it uses."""


class MatchableMachine:
    """One machine."""

    __slots__ = (
        "again_s",
        "asked_stamp",
        "beside_kept",
        "busy_until_s",
        "called_s",
        "closed",
        "deferred",
        "drift",
        "empty",
        "ends_s",
        "ever",
        "ever_version",
        "fits",
        "fits_version",
        "free_bytes",
        "is_called",
        "is_counted",
        "is_doubted",
        "is_parked",
        "is_silent",
        "kept",
        "leases",
        "name",
        "offer",
        "refused",
        "reserved",
        "seen_bytes",
        "shares",
        "speed",
        "speeds",
        "table",
        "told",
    )

    empty: NodeUsage | None
    reserved: NodeUsage | None
    beside_kept: int | None

    def __init__(
        self,
        offer: NodeOffer,
        room_bytes: int | None = None,
        drift: tuple[str, ...] = (),
        ends_s: float | None = None,
    ) -> None:
        self.name = offer.node
        self.offer = offer
        self.drift = drift
        """Where its declaration and what was detected disagree."""
        self.ends_s = ends_s
        """When it goes away; None: nobody knows of an end."""
        self.table: NodeTable
        self.seen_bytes = room_bytes
        """RAM, as it was measured last: what the machine would admit, and what our jobs were promised then."""
        self.free_bytes = [device.free_bytes for device in offer.devices]
        self.told: Mapping[str, str] = {}
        """What the machine itself says is closed, and why; "" is all of it."""
        self.closed = offer.closed
        """Why it gets nothing now."""
        self.is_doubted = self.is_silent = False
        """It declined something lately, or did not answer a call: others do not wait for it."""
        self.is_counted = False
        """Others may wait for it: it is not closed, and neither of these."""
        self.leases: list[MachineLease] = []
        self.speeds = {device.uuid: device.speed for device in offer.devices}
        self.speed = next(iter(self.speeds.values())) if len(set(self.speeds.values())) == 1 else None
        """Of all its devices, if they are alike."""
        self.shares = any(device.sharing is not Sharing.NEVER for device in offer.devices)
        self.fits, self.fits_version = 0, -1
        """The job types of which one could start here now, and what was known then; -1: something changed since."""
        self.ever, self.ever_version = 0, -1
        """The same if none of our jobs ran here."""
        self.empty = self.reserved = self.beside_kept = None
        """Its state as if none of our jobs ran here; without what it is kept for; the job types that take nothing of
        that. None: something changed since."""
        self.busy_until_s = self.called_s = 0.0
        """When the last of its jobs is expected to end; when it was last called."""
        self.kept: Any = None
        """For whom it is kept."""
        self.is_parked = self.is_called = False
        """It asked, got nothing and waits to be called; it was called, and has not asked since."""
        self.again_s: float | None = None
        """When it asks again at the latest: what it was refused for is expected to end."""
        self.asked_stamp = -1
        self.refused = self.deferred = 0
        """What fitted and was not granted when it last asked; and what a better machine that is free should have."""

    def change(self) -> None:
        """Note that what fits here now has to be found again."""
        self.fits_version = -1
        self.reserved = self.beside_kept = None

    def idle(self) -> NodeOffer:
        """Return it with nothing running on it, as it was measured last."""
        measured = self.measured()
        return changed(
            self.offer,
            ram_bytes=measured.ram_bytes,
            closed=measured.closed,
            devices=tuple(
                changed(device, free_bytes=free_bytes, closed=closed)
                for device, (free_bytes, closed) in zip(self.offer.devices, measured.devices, strict=True)
            ),
        )

    def measure(self, measured: WorkerMeasurements, held_bytes: int) -> bool:
        """Take in what its worker measured while its jobs were promised so much RAM; return whether that is news."""
        seen_bytes, free_bytes = self.seen_bytes, self.free_bytes
        told = measured.closed
        room_bytes = measured.ram_available_bytes if measured.ram_room_bytes is None else measured.ram_room_bytes
        if room_bytes is not None:
            # Our own jobs have their part already.
            seen_bytes = max(0, room_bytes) // _RAM_STEP_BYTES * _RAM_STEP_BYTES + held_bytes
        if measured.free_bytes:
            free_bytes = [
                _clamped(measured.free_bytes.get(device.uuid, known), device.total_bytes)
                for device, known in zip(self.offer.devices, free_bytes, strict=True)
            ]
        if seen_bytes == self.seen_bytes and free_bytes == self.free_bytes and told == self.told:
            return False
        self.seen_bytes, self.free_bytes = seen_bytes, free_bytes
        self.hear(told)
        return True

    def hear(self, told: Mapping[str, str]) -> None:
        """Take in what the machine itself says is closed."""
        self.told = told
        self.closed = self.offer.closed or told.get("", "")

    def measured(self) -> MeasuredNode:
        """Return what was measured: of RAM the smaller of what it has and what was seen."""
        known = [size for size in (self.offer.ram_bytes, self.seen_bytes) if size is not None]
        return MeasuredNode(
            min(known, default=None),
            self.closed,
            tuple(
                [
                    (free_bytes, device.closed or self.told.get(device.uuid, ""))
                    for device, free_bytes in zip(self.offer.devices, self.free_bytes, strict=True)
                ]
            ),
        )


def _clamped(free_bytes: int | None, total_bytes: int) -> int | None:
    return None if free_bytes is None else max(0, min(free_bytes, total_bytes)) // MIB * MIB
