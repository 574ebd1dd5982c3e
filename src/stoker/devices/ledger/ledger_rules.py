"""Whether a request for device memory is granted, and on which devices, with the reason. Pure.

A device fits if no earlier request waits for it and the rule of `devices.admission` allows it, both by what was
promised and by what the driver measures. No request is overtaken: a device that a request waits for is not granted to
a later one, even if the later one would fit. So none starves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stoker.core.device import usable_bytes
from stoker.core.frozen import fresh, frozen
from stoker.core.text import format_size
from stoker.devices.admission import DeviceBlock, added_bytes, alone_bytes, block_on, shared_bytes
from stoker.devices.ledger.reservations import (
    CandidateDevice,
    DeviceLimit,
    DeviceRequest,
    DevicesBusy,
    NeverFits,
    QueueTicket,
    Reservation,
    ReservationShare,
    Shortfall,
)
from stoker.host.identity import ProcessIdentity, mine

# How much of a device is promised, and how much is left: integers, and nothing else.
#
# Two bounds limit what may be promised. By the ledger, all reservations together stay within the usable part of a
# device; a base that several have in common counts once. By the driver, what is free now must also cover what was
# promised and not taken yet: memory that is free only because its holder has just started is not free.


@frozen
class DeviceReading:
    """The driver's measure of one device at one moment. `None`: unknown."""

    free_bytes: int | None = None
    used_by: Mapping[int, int] | None = None
    """Bytes by process number."""


@frozen
class DeviceCharge:
    """What one holder takes of one device."""

    charged_bytes: int
    base: str = ""
    base_bytes: int = 0


def charges_on(uuid: str, entries: Iterable[Reservation], *, as_promised: bool = False) -> list[DeviceCharge]:
    """Return what each reservation takes of one device; with `as_promised`, what it was promised of it."""
    return [
        DeviceCharge(
            charged_bytes=share.promised_bytes if as_promised else share.charged_bytes,
            base=entry.base,
            base_bytes=entry.base_bytes,
        )
        for entry in entries
        for share in entry.shares
        if share.uuid == uuid
    ]


def charge_of(ask: DeviceRequest) -> DeviceCharge:
    """Return what a request would take of a device."""
    return DeviceCharge(charged_bytes=ask.vram_bytes, base=ask.base, base_bytes=ask.base_bytes)


def total_of(charges: Iterable[DeviceCharge]) -> int:
    """Return the sum of charges, each base once: the largest size that any of them has for it."""
    total_bytes = 0
    bases: dict[str, int] = {}
    for charge in charges:
        resident_bytes = bases.get(charge.base, 0)
        total_bytes += added_bytes(charge.charged_bytes, charge.base_bytes, resident_bytes)
        if charge.base:
            bases[charge.base] = max(resident_bytes, min(charge.base_bytes, charge.charged_bytes))
    return total_bytes


def ceiling_of(entries: Sequence[Reservation]) -> int | None:
    """Return the most that the one process behind these reservations may take of any of its devices.

    It is what they were promised and, in proportion, their part of what a device never promises: if all that share it
    keep to theirs, all have room. Nothing is returned for a device that is held whole.
    """
    held: dict[str, list[ReservationShare]] = {}
    for entry in entries:
        for share in entry.shares:
            held.setdefault(share.uuid, []).append(share)
    ceilings = (
        _ceiling(shares, total_of(charges_on(uuid, entries, as_promised=True))) for uuid, shares in held.items()
    )
    return min((one for one in ceilings if one is not None), default=None)


def _ceiling(shares: Sequence[ReservationShare], promised_bytes: int) -> int | None:
    if any(share.is_exclusive or not share.promised_bytes for share in shares):
        return None
    device = shares[0]
    shared_out = max(1, usable_bytes(device.total_bytes, device.memory_type))
    return promised_bytes * device.total_bytes // shared_out


def left_for(charged_bytes: int, taken_bytes: int, free_bytes: int) -> int:
    """Return the measured free memory of a device, with what its holders have of it counted as free.

    `taken_bytes` is how much of the memory in use its holders were promised, `charged_bytes` is all that counts against
    the device for them: what two processes hold of one base counts once.
    """
    return free_bytes + min(taken_bytes, charged_bytes)


def taken_of_promised(
    device: CandidateDevice,
    entries: Sequence[Reservation],
    reading: DeviceReading,
    chains: Mapping[int, tuple[int, ...] | None],
) -> int:
    """Return how much of the memory in use on a device belongs to its holders.

    `chains` are the processes above each process that uses the device; `None` for one that can't be seen from here, as
    in another container. Memory of unknown processes is counted for the holders of which nothing was seen: otherwise
    memory that they have taken would be counted twice, as used and as promised, and requests would wait for nothing.
    """
    if reading.free_bytes is None:
        return 0
    in_use = max(0, device.total_bytes - reading.free_bytes)
    groups: dict[ProcessIdentity, list[DeviceCharge]] = {}
    for entry in entries:
        groups.setdefault(entry.owner, []).extend(charges_on(device.uuid, (entry,)))
    here = mine().pid_space
    owners = {owner.pid: owner for owner in groups if owner.pid_space == here}
    seen: dict[ProcessIdentity, int] = {}
    reported_bytes, unseen = 0, 0
    for pid, used_bytes in (reading.used_by or {}).items():
        reported_bytes += used_bytes
        chain = chains.get(pid)
        owner = next((owners[one] for one in (pid, *(chain or ())) if one in owners), None)
        if owner is not None:
            seen[owner] = seen.get(owner, 0) + used_bytes
        elif chain is None:
            unseen += used_bytes
    taken = sum(min(used_bytes, total_of(groups[owner])) for owner, used_bytes in seen.items())
    of_unseen_holders = sum(total_of(charges) for owner, charges in groups.items() if owner not in seen)
    return taken + min(of_unseen_holders, unseen + max(0, in_use - reported_bytes))


_LISTED = 3


@frozen
class LedgerDecisionInputs:
    """Everything that a decision depends on."""

    entries: tuple[Reservation, ...] = ()
    """Reservations that count."""
    ahead: tuple[QueueTicket, ...] = ()
    """Earlier requests that still wait, in order."""
    free_bytes: Mapping[str, int] = fresh(factory=dict)
    """Measured free memory by device; a missing device was not measured."""
    taken_bytes: Mapping[str, int] = fresh(factory=dict)
    """How much of the memory in use belongs to reservations, by device."""
    unreadable: tuple[str, ...] = ()
    """Reservations of living processes that can't be read: they may hold anything."""


@frozen
class DeviceAssignment:
    """These devices, in the order of the request."""

    devices: tuple[CandidateDevice, ...]


def decide(ask: DeviceRequest, books: LedgerDecisionInputs) -> DeviceAssignment | DevicesBusy | NeverFits:
    """Decide on a request."""
    too_small = {device.uuid: short for device in ask.devices if (short := _too_small(ask, device)) is not None}
    could = [device for device in ask.devices if device.uuid not in too_small]
    if len(could) < ask.count:
        return _never(ask, tuple(too_small.values()))
    wanted = {uuid for ticket in books.ahead for uuid in ticket.uuids}
    ahead = sum(1 for ticket in books.ahead if any(device.uuid in ticket.uuids for device in could))
    shortfalls: list[Shortfall] = []
    fits: list[tuple[tuple[bool, int, int], CandidateDevice]] = []
    for index, device in enumerate(could):
        short = _lacks(ask, device, books)
        if short is None and device.uuid in wanted:
            short = Shortfall(uuid=device.uuid, bound=DeviceLimit.LINE, why=f"{device.uuid} is waited for")
        if short is None:
            fits.append((_preference(ask, device, index, books.entries), device))
        else:
            shortfalls.append(short)
    if len(fits) >= ask.count:
        chosen = {device.uuid for _, device in sorted(fits, key=lambda fit: fit[0])[: ask.count]}
        return DeviceAssignment(devices=tuple(device for device in could if device.uuid in chosen))
    return _not_now(ask, tuple(shortfalls), fitting=len(fits), ahead=ahead)


def still_fits(entry: Reservation, entries: Sequence[Reservation]) -> bool:
    """Return True if a reservation that counted as gone can stand beside what was promised since. Promises only."""
    others = [one for one in entries if one.id != entry.id]
    return all(_stands(entry, share, others) for share in entry.shares)


def could_hold(ask: DeviceRequest) -> tuple[str, ...]:
    """Return the devices that could hold a request if they were empty."""
    return tuple(device.uuid for device in ask.devices if _too_small(ask, device) is None)


def first_for(uuids: Iterable[str], line: Iterable[QueueTicket]) -> list[QueueTicket]:
    """Return the first queued request for any of these devices: no other can be granted one of them.

    The queue is in order, and read no further than necessary.
    """
    left = set(uuids)
    first: list[QueueTicket] = []
    if left:
        for ticket in line:
            if left & set(ticket.uuids):
                first.append(ticket)
                left -= set(ticket.uuids)
            if not left:
                break
    return first


def unclaimed(ticket: QueueTicket, books: LedgerDecisionInputs) -> list[str]:
    """Return the devices for which a queued request is first."""
    wanted = {uuid for one in books.ahead for uuid in one.uuids}
    return [uuid for uuid in ticket.uuids if uuid not in wanted]


def in_the_way(ticket: QueueTicket, books: LedgerDecisionInputs) -> tuple[list[Reservation], list[QueueTicket]]:
    """Return the processes whose end may change the answer for a queued request.

    If it is first, those are the holders of the device; if not, the one right before it. Requests further ahead are
    watched by the one behind them, so that an end wakes one request and not all.
    """
    first_of = set(unclaimed(ticket, books))
    holders = [entry for entry in books.entries if first_of & {share.uuid for share in entry.shares}]
    before = {uuid: one for one in books.ahead for uuid in one.uuids if uuid in ticket.uuids}
    return holders, list({one.id: one for one in before.values()}.values())


def _too_small(ask: DeviceRequest, device: CandidateDevice) -> Shortfall | None:
    """Return what an empty device lacks of the request; `None` if it could hold it."""
    if _ask_block(ask, device, ()) is None:
        return None
    why = f"{device.uuid} has {format_size(device.total_bytes)}, and {format_size(ask.vram_bytes)} are needed"
    room_bytes = device.total_bytes
    return Shortfall(
        uuid=device.uuid, bound=DeviceLimit.SIZE, why=why, needed_bytes=ask.vram_bytes, room_bytes=room_bytes
    )


def _lacks(ask: DeviceRequest, device: CandidateDevice, books: LedgerDecisionInputs) -> Shortfall | None:
    """Return what a device lacks now, apart from the queue: by what was promised, then by the driver's measure."""
    on_it = on_device(device.uuid, books.entries)
    if books.unreadable:
        why = f"the record of {', '.join(books.unreadable[:_LISTED])} can't be read"
        return Shortfall(uuid=device.uuid, bound=DeviceLimit.TAKEN, why=why, needed_bytes=ask.vram_bytes)
    block = _ask_block(ask, device, on_it)
    return _measured_lacks(ask, device, on_it, books) if block is None else _promised_lacks(ask, device, on_it, block)


def _promised_lacks(
    ask: DeviceRequest, device: CandidateDevice, on_it: Sequence[Reservation], block: DeviceBlock
) -> Shortfall:
    uuid = device.uuid
    if block is DeviceBlock.HELD:
        why = f"{uuid} is held whole by {_holders([entry for entry in on_it if _is_alone(entry, uuid)])}"
        return Shortfall(uuid=uuid, bound=DeviceLimit.TAKEN, why=why, needed_bytes=ask.vram_bytes)
    if block is DeviceBlock.IN_USE:
        why = f"{uuid} is wanted whole, and {_holders(on_it)} hold{'s' if len(on_it) == 1 else ''} some of it"
        return Shortfall(uuid=uuid, bound=DeviceLimit.OCCUPIED, why=why, needed_bytes=ask.vram_bytes)
    if block is DeviceBlock.DEVICE_SLOTS:
        why = f"{uuid} takes {device.slots} at once: {_holders(on_it)}"
        return Shortfall(uuid=uuid, bound=DeviceLimit.SLOTS, why=why, needed_bytes=ask.vram_bytes)
    needed_bytes, before_bytes = _amounts(ask, device, on_it)
    room_bytes = max(0, device.usable_bytes - before_bytes)
    why = (
        f"{uuid} has {format_size(room_bytes)} left of {format_size(device.usable_bytes)} to share, and "
        f"{format_size(needed_bytes)} are needed: held by {_holders(on_it)}"
    )
    return Shortfall(uuid=uuid, bound=DeviceLimit.LEDGER, why=why, needed_bytes=needed_bytes, room_bytes=room_bytes)


def _measured_lacks(
    ask: DeviceRequest, device: CandidateDevice, on_it: Sequence[Reservation], books: LedgerDecisionInputs
) -> Shortfall | None:
    free_bytes = books.free_bytes.get(device.uuid)
    if free_bytes is None:
        return None
    needed_bytes, before_bytes = _amounts(ask, device, on_it)
    left_bytes = left_for(before_bytes, books.taken_bytes.get(device.uuid, 0), free_bytes)
    if _ask_block(ask, device, on_it, left_bytes) is None:
        return None
    room_bytes = max(0, left_bytes - before_bytes)
    promised = "" if room_bytes == free_bytes else f", of which {format_size(free_bytes - room_bytes)} are promised"
    why = (
        f"{device.uuid} has {format_size(free_bytes)} free by the driver's measure{promised}, and "
        f"{format_size(needed_bytes)} are needed"
    )
    return Shortfall(
        uuid=device.uuid, bound=DeviceLimit.MEASURED, why=why, needed_bytes=needed_bytes, room_bytes=room_bytes
    )


def _amounts(ask: DeviceRequest, device: CandidateDevice, on_it: Sequence[Reservation]) -> tuple[int, int]:
    """Return what a request would add to a device, and what counts against it before."""
    charges = charges_on(device.uuid, on_it)
    before_bytes = total_of(charges)
    return total_of((*charges, charge_of(ask))) - before_bytes, before_bytes


def _ask_block(
    ask: DeviceRequest, device: CandidateDevice, on_it: Sequence[Reservation], left_bytes: int | None = None
) -> DeviceBlock | None:
    """Return why a request can't have a device beside these reservations."""
    return _block(
        charge_of(ask),
        charges_on(device.uuid, on_it),
        device,
        is_shared=ask.shares(device),
        is_held=any(_is_alone(entry, device.uuid) for entry in on_it),
        left_bytes=left_bytes,
    )


def _stands(entry: Reservation, share: ReservationShare, others: Sequence[Reservation]) -> bool:
    block = _block(
        charges_on(share.uuid, (entry,), as_promised=True)[0],
        charges_on(share.uuid, others, as_promised=True),
        share.device,
        is_shared=not share.is_exclusive,
        is_held=any(_is_alone(other, share.uuid) for other in others),
    )
    return block is None


def _block(
    wanted: DeviceCharge,
    held: Sequence[DeviceCharge],
    device: CandidateDevice,
    *,
    is_shared: bool,
    is_held: bool,
    left_bytes: int | None = None,
) -> DeviceBlock | None:
    """Return the result of the one rule. Without `left_bytes`, what other programs hold is not counted."""
    before_bytes = total_of(held)
    has_bytes = shared_bytes if is_shared else alone_bytes
    free_bytes = device.total_bytes if left_bytes is None else left_bytes
    return block_on(
        wanted.charged_bytes,
        total_of((*held, wanted)) - before_bytes,
        is_shared=is_shared,
        most_bytes=has_bytes(device.total_bytes, device.memory_type, free_bytes),
        promised_bytes=before_bytes,
        jobs=len(held),
        is_held=is_held,
        slots=device.slots or None,
    )


def _is_alone(entry: Reservation, uuid: str) -> bool:
    share = entry.share_of(uuid)
    return share is not None and share.is_exclusive


def _preference(
    ask: DeviceRequest, device: CandidateDevice, index: int, entries: Sequence[Reservation]
) -> tuple[bool, int, int]:
    """Sort fitting devices: where the base is, then where sharing leaves the smallest rest, then as listed."""
    if not ask.shares(device):
        return (True, 0, index)
    on_it = on_device(device.uuid, entries)
    has_base = bool(ask.base) and any(entry.base == ask.base for entry in on_it)
    charges = charges_on(device.uuid, on_it)
    return (not has_base, device.usable_bytes - total_of((*charges, charge_of(ask))), index)


def _not_now(ask: DeviceRequest, shortfalls: tuple[Shortfall, ...], *, fitting: int, ahead: int) -> DevicesBusy:
    # A shortfall is more useful to know than that others wait for it, too.
    nearest = min(shortfalls, key=lambda short: (short.bound is DeviceLimit.LINE, short.missing_bytes))
    line = f"{ahead} wait{'s' if ahead == 1 else ''} before you" if ahead else ""
    some = f"{fitting} of {ask.count} devices have room" if fitting else ""
    lack = "" if nearest.bound is DeviceLimit.LINE else nearest.why
    return DevicesBusy(
        why="; ".join(part for part in (some, lack, line) if part),
        bound=nearest.bound,
        nearest=nearest,
        shortfalls=shortfalls,
        ahead=ahead,
    )


def _never(ask: DeviceRequest, too_small: tuple[Shortfall, ...]) -> NeverFits:
    if len(ask.devices) < ask.count:
        wanted = "a device is wanted" if ask.count == 1 else f"{ask.count} devices are wanted"
        have = (
            "there is none"
            if not ask.devices
            else f"there {'is' if len(ask.devices) == 1 else 'are'} {len(ask.devices)}"
        )
        return NeverFits(why=f"{wanted}, and {have}", shortfalls=too_small, hint="stoker doctor shows what is here")
    largest = max(too_small, key=lambda short: short.room_bytes)
    fitting = len(ask.devices) - len(too_small)
    some = f"{fitting} of {ask.count} devices could hold it; " if ask.count > 1 else ""
    return NeverFits(why=f"{some}{largest.why}", shortfalls=too_small)


def on_device(uuid: str, entries: Sequence[Reservation]) -> list[Reservation]:
    """Return the reservations on a device."""
    return [entry for entry in entries if entry.share_of(uuid) is not None]


def _holders(entries: Sequence[Reservation]) -> str:
    listed = [f"{entry.job} (process {entry.owner.pid})" for entry in entries[:_LISTED]]
    more = len(entries) - _LISTED
    return ", ".join(listed) + (f" and {more} more" if more > 0 else "")
