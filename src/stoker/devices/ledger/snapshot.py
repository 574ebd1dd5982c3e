"""The ledger at one moment: devices, holders, queued requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

from stoker.core.device import Device
from stoker.core.frozen import changed, fresh, frozen
from stoker.core.text import format_size
from stoker.devices.ledger.ledger_rules import (
    DeviceReading,
    LedgerDecisionInputs,
    charges_on,
    decide,
    left_for,
    taken_of_promised,
    total_of,
)
from stoker.devices.ledger.liveness import ReservationLiveness, chain_of
from stoker.devices.ledger.reservations import (
    CandidateDevice,
    DeviceRequest,
    DevicesBusy,
    MeasuredDeviceUse,
    NeverFits,
    QueueTicket,
    Reservation,
    ReservationShare,
)
from stoker.devices.ledger.transactions import LedgerSnapshot
from stoker.host.identity import mine


@frozen
class DeviceHolder:
    """A reservation on a device."""

    entry: Reservation
    share: ReservationShare
    held_s: float
    is_late: bool
    """Its lease was not renewed in time; it counts because its process lives."""
    left_behind: int | None = None
    """Its owner has ended; this process of its group still runs."""

    @property
    def own_bytes(self) -> int:
        """What it was promised beside the base that it has in common with others."""
        return max(0, self.share.promised_bytes - self.entry.base_bytes)

    def to_dict(self) -> dict[str, Any]:
        owner = self.entry.owner
        return {
            "id": self.entry.id,
            "job": self.entry.job,
            "pid": owner.pid,
            "user": self.entry.user,
            "budget_bytes": self.share.promised_bytes or None,
            "actual_bytes": self.share.measured_bytes,
            "is_exclusive": self.share.is_exclusive,
            "base": self.entry.base or None,
            "base_bytes": self.entry.base_bytes,
            "own_bytes": self.own_bytes,
            "held_s": round(self.held_s, 3),
            "since_s": self.entry.since_wall_s,
            "is_late": self.is_late,
            "left_behind": self.left_behind,
        }


@frozen
class HeldBase:
    """What several on a device have in common: charged once."""

    base: str
    holders: tuple[DeviceHolder, ...]

    @property
    def base_bytes(self) -> int:
        return max(holder.entry.base_bytes for holder in self.holders)

    @property
    def promised_bytes(self) -> int:
        """What all of them were promised together, the base once."""
        return self.base_bytes + sum(holder.own_bytes for holder in self.holders)

    @property
    def actual_bytes(self) -> int | None:
        """Their measured use together; `None` until one was measured."""
        seen = [one for holder in self.holders if (one := holder.share.measured_bytes) is not None]
        base_bytes = min(self.base_bytes, max(seen, default=0))
        return base_bytes + sum(max(0, one - base_bytes) for one in seen) if seen else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "base": self.base,
            "base_bytes": self.base_bytes,
            "holders": len(self.holders),
            "budget_bytes": self.promised_bytes,
            "actual_bytes": self.actual_bytes,
        }


@frozen
class DeviceState:
    """One device."""

    device: CandidateDevice
    holders: tuple[DeviceHolder, ...]
    reserved_bytes: int
    """The whole device if it is held exclusively."""
    free_bytes: int | None
    """By the driver's measure."""
    taken_bytes: int = 0
    """How much of the memory in use its holders have, up to what counts against the device for them."""
    outside: Mapping[int, int] = fresh(factory=dict)
    """Processes that use it without a reservation, and how much."""
    unseen_bytes: int = 0
    """In use by processes that are not visible from here, such as those of another container."""

    @property
    def is_taken(self) -> bool:
        """True if it is held exclusively."""
        return any(holder.share.is_exclusive for holder in self.holders)

    @property
    def bases(self) -> tuple[HeldBase, ...]:
        """What holders have in common, in the order of the first holder of each."""
        grouped: dict[str, list[DeviceHolder]] = {}
        for holder in self.holders:
            if holder.entry.base and not holder.share.is_exclusive:
                grouped.setdefault(holder.entry.base, []).append(holder)
        return tuple(HeldBase(base=base, holders=tuple(holders)) for base, holders in grouped.items())

    @property
    def available_bytes(self) -> int:
        """What the ledger could still promise to jobs that share."""
        return 0 if self.is_taken else max(0, self.device.usable_bytes - self.reserved_bytes)

    @property
    def left_bytes(self) -> int | None:
        """What other programs leave of it: measured free, and what its holders have; `None` if not measured."""
        return None if self.free_bytes is None else left_for(self.reserved_bytes, self.taken_bytes, self.free_bytes)

    @property
    def room_bytes(self) -> int:
        """What a job that shares it could be promised now: by the ledger, and by the driver's measure."""
        if self.left_bytes is None:
            return self.available_bytes
        return min(self.available_bytes, max(0, self.left_bytes - self.reserved_bytes))

    def to_dict(self) -> dict[str, Any]:
        device = self.device
        return {
            "device": device.uuid,
            "name": device.name,
            "is_fake": device.is_fake,
            "memory_type": str(device.memory_type),
            "total_bytes": device.total_bytes,
            "usable_percent": device.memory_type.usable_percent,
            "usable_bytes": device.usable_bytes,
            "reserved_bytes": self.reserved_bytes,
            "available_bytes": self.available_bytes,
            "is_taken": self.is_taken,
            "free_bytes": self.free_bytes,
            "holders": [holder.to_dict() for holder in self.holders],
            "bases": [held.to_dict() for held in self.bases],
            "outside": [{"pid": pid, "bytes": size} for pid, size in sorted(self.outside.items())],
            "unseen_bytes": self.unseen_bytes,
        }


@frozen
class DeviceWaiter:
    """A queued request."""

    ticket: QueueTicket
    place: int
    """Queue position among the requests for any of the same devices; 1 is next."""
    waited_s: float
    is_asleep: bool
    """It was not polled lately, and blocks no other."""

    def to_dict(self) -> dict[str, Any]:
        ticket = self.ticket
        return {
            "waiting": ticket.job,
            "pid": ticket.owner.pid,
            "user": ticket.user,
            "place": self.place,
            "devices": list(ticket.uuids),
            "count": ticket.count,
            "vram_bytes": ticket.vram_bytes or None,
            "may_share": ticket.may_share,
            "waited_s": round(self.waited_s, 3),
            "is_asleep": self.is_asleep,
        }


@frozen
class LedgerState:
    """Everything."""

    devices: tuple[DeviceState, ...]
    waiting: tuple[DeviceWaiter, ...]
    warnings: tuple[str, ...]


def state_of(
    book: LedgerSnapshot,
    devices: tuple[CandidateDevice, ...],
    readings: Mapping[str, DeviceReading],
    living: ReservationLiveness,
    chain_of: Callable[[int], tuple[int, ...] | None] = chain_of,
) -> LedgerState:
    """Build it."""
    return LedgerState(
        devices=tuple(_device(device, book.entries, readings[device.uuid], living, chain_of) for device in devices),
        waiting=tuple(_waiter(ticket, book, living) for ticket in book.tickets),
        warnings=book.warnings,
    )


def _device(
    device: CandidateDevice,
    entries: tuple[Reservation, ...],
    reading: DeviceReading,
    living: ReservationLiveness,
    chain_of: Callable[[int], tuple[int, ...] | None],
) -> DeviceState:
    now_s = living.since_boot_s()
    holders = tuple(
        DeviceHolder(
            entry=entry,
            share=share,
            held_s=max(0.0, now_s - entry.since_s),
            is_late=living.is_late(entry),
            left_behind=_left_behind(entry, living),
        )
        for entry in entries
        for share in entry.shares
        if share.uuid == device.uuid
    )
    is_taken = any(holder.share.is_exclusive for holder in holders)
    here = mine().pid_space
    owners = {holder.entry.owner.pid for holder in holders if holder.entry.owner.pid_space == here}
    used_by = reading.used_by or {}
    chains = {pid: chain_of(pid) for pid in used_by}
    return DeviceState(
        device=device,
        holders=holders,
        reserved_bytes=device.total_bytes if is_taken else total_of(charges_on(device.uuid, entries)),
        free_bytes=reading.free_bytes,
        taken_bytes=taken_of_promised(device, [holder.entry for holder in holders], reading, chains),
        outside={
            pid: size
            for pid, size in used_by.items()
            if (chain := chains[pid]) is not None and not owners & {pid, *chain}
        },
        unseen_bytes=sum(size for pid, size in used_by.items() if chains[pid] is None),
    )


def _left_behind(entry: Reservation, living: ReservationLiveness) -> int | None:
    if living.is_here(entry.owner):
        return None
    found = living.left_behind(entry.owner)
    return None if found is None else found.pid


def _waiter(ticket: QueueTicket, book: LedgerSnapshot, living: ReservationLiveness) -> DeviceWaiter:
    ahead = [one for one in book.awake(living) if one.number < ticket.number and set(one.uuids) & set(ticket.uuids)]
    return DeviceWaiter(
        ticket=ticket,
        place=len(ahead) + 1,
        waited_s=max(0.0, living.since_boot_s() - ticket.since_s),
        is_asleep=living.is_asleep(ticket),
    )


# What an owner uses, beside what it was promised: always recorded, with a warning above 120 %.

WARN_PERCENT = 120


def with_measured(entry: Reservation, measured_bytes: Mapping[str, int]) -> Reservation:
    """Return the reservation with the measured use, if that is a new peak."""
    return changed(
        entry,
        shares=tuple(
            changed(share, measured_bytes=max(share.measured_bytes or 0, measured_bytes[share.uuid]))
            if share.uuid in measured_bytes
            else share
            for share in entry.shares
        ),
    )


def judge_measured(entry: Reservation, limit_percent: int | None = None) -> MeasuredDeviceUse:
    """Compare the measured use with the promise, on the device where it exceeds that most."""
    share = max(entry.shares, key=_percent)
    percent = _percent(share)
    return MeasuredDeviceUse(
        uuid=share.uuid,
        promised_bytes=_promise(share),
        measured_bytes=share.measured_bytes or 0,
        percent=percent,
        is_over=percent > WARN_PERCENT,
        is_past_limit=limit_percent is not None and percent > limit_percent,
    )


def measured_by(
    entry: Reservation,
    readings: Mapping[str, DeviceReading],
    chain_of: Callable[[int], tuple[int, ...] | None] = chain_of,
) -> dict[str, int]:
    """Return what the owner and its children use on each device whose driver reports processes."""
    owner = entry.owner.pid
    used: dict[str, int] = {}
    for uuid, reading in readings.items():
        if reading.used_by is not None:
            theirs = [size for pid, size in reading.used_by.items() if owner == pid or owner in (chain_of(pid) or ())]
            if theirs:
                used[uuid] = sum(theirs)
    return used


def shared_out(entry: Reservation, entries: Iterable[Reservation], measured_bytes: Mapping[str, int]) -> dict[str, int]:
    """Return this reservation's part of one process's memory, if the process serves several with one base.

    The base belongs to all, and is counted once in sums. The rest is divided in proportion to the promises, so that all
    parts together are what was measured.
    """
    if not entry.base:
        return dict(measured_bytes)
    members = same_process(entry, entries)
    return {uuid: _part(entry, members, uuid, size_bytes) for uuid, size_bytes in measured_bytes.items()}


def beside_base(members: list[Reservation], uuid: str, size_bytes: int) -> tuple[int, int]:
    """Return what of one process's memory is not its base, and what all of them were promised beside it."""
    here = [(one, share) for one in members if (share := one.share_of(uuid)) is not None]
    base_bytes = max((one.base_bytes for one, _ in here), default=0)
    return max(0, size_bytes - base_bytes), sum(share.promised_bytes - one.base_bytes for one, share in here)


def same_process(entry: Reservation, entries: Iterable[Reservation]) -> list[Reservation]:
    """Return the reservations that one process serves with one base, this one among them."""
    others = (one for one in entries if one.id != entry.id and (one.owner, one.base) == (entry.owner, entry.base))
    return [entry, *others]


def _part(entry: Reservation, members: list[Reservation], uuid: str, size_bytes: int) -> int:
    share = entry.share_of(uuid)
    rest_bytes, together = beside_base(members, uuid, size_bytes)
    if share is None or len(members) < 2 or not rest_bytes or together <= 0:
        return size_bytes
    return entry.base_bytes + -(-rest_bytes * (share.promised_bytes - entry.base_bytes) // together)


def _promise(share: ReservationShare) -> int:
    return share.promised_bytes or share.total_bytes


def _percent(share: ReservationShare) -> int:
    # Rounded up, so that one byte above a limit is above it.
    return -(-(share.measured_bytes or 0) * 100 // max(1, _promise(share)))


# Whether a training fits on a device: now, alone, or never, by the rule of the ledger.


class Fit(StrEnum):
    """When it fits."""

    NOW = "now"
    """A run would start at once."""
    ALONE = "alone"
    """When the others have ended."""
    NEVER = "never"
    UNKNOWN = "unknown"
    """The size of the device is unknown."""


@frozen
class DeviceFit:
    """The answer for one device, with its reason."""

    device: Device
    fit: Fit
    why: str

    def to_dict(self) -> dict[str, Any]:
        return {"uuid": self.device.uuid, "name": self.device.name, "fits": str(self.fit), "why": self.why}


def fits(need_bytes: int, device: Device, books: LedgerDecisionInputs) -> DeviceFit:
    """Return whether a run that declares so much and does not share would get this device."""
    candidate = CandidateDevice.of(device)
    if candidate is None:
        return DeviceFit(device=device, fit=Fit.UNKNOWN, why="memory size unknown")
    total = format_size(candidate.total_bytes)
    answer = decide(DeviceRequest(job="the training", devices=(candidate,), vram_bytes=need_bytes), books)
    if isinstance(answer, NeverFits):
        why = f"{format_size(need_bytes - candidate.total_bytes)} more than its {total}"
        return DeviceFit(device=device, fit=Fit.NEVER, why=why)
    if isinstance(answer, DevicesBusy):
        return DeviceFit(device=device, fit=Fit.ALONE, why=answer.why)
    free_bytes = books.free_bytes.get(device.uuid)
    if free_bytes is None:
        why = f"of {total}; free memory unknown"
        return DeviceFit(device=device, fit=Fit.ALONE, why=why)
    return DeviceFit(device=device, fit=Fit.NOW, why=f"{format_size(free_bytes)} of {total} are free")


def books_of(state: LedgerState) -> LedgerDecisionInputs:
    """Return the state of the ledger as input of its rule."""
    entries = {one.entry.id: one.entry for device in state.devices for one in device.holders}
    free = {one.device.uuid: one.free_bytes for one in state.devices if one.free_bytes is not None}
    taken = {one.device.uuid: one.taken_bytes for one in state.devices}
    ahead = tuple(one.ticket for one in state.waiting if not one.is_asleep)
    return LedgerDecisionInputs(entries=tuple(entries.values()), ahead=ahead, free_bytes=free, taken_bytes=taken)
