"""Whether a wish for room is granted, and on which devices: decided here, with the reason. Pure.

A device does if nobody who came earlier waits for it and the rule of `hardware.device_fit` allows it, both by what was
promised and by what the driver measures. Nobody is overtaken: a device that somebody waits for is not given to who came
later, even if it has room for the later one. So nobody starves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stoker.hardware.device_fit import DeviceBlock, alone_bytes, block_on, shared_bytes
from stoker.hardware.ledger.answers import Bound, NeverFits, NoRoomNow, Shortfall
from stoker.hardware.ledger.asking import Ask, Candidate
from stoker.hardware.ledger.entries import Entry, Share, Ticket
from stoker.hardware.ledger.room import Charge, charge_of, charges_on, left_for, promises_on, total_of
from stoker.model.frozen import fresh, frozen
from stoker.model.units import format_size

_LISTED = 3


@frozen
class Books:
    """Everything that a decision looks at."""

    entries: tuple[Entry, ...] = ()
    """Reservations that count."""
    ahead: tuple[Ticket, ...] = ()
    """Who came earlier and is still waiting, in order."""
    free_bytes: Mapping[str, int] = fresh(factory=dict)
    """What the driver has free, by device; one that is not listed was not measured."""
    taken_bytes: Mapping[str, int] = fresh(factory=dict)
    """How much of the memory in use belongs to reservations, by device."""
    unreadable: tuple[str, ...] = ()
    """Reservations of living processes that can't be read: they may hold anything."""


@frozen
class Grant:
    """These devices, in the order of the wish."""

    devices: tuple[Candidate, ...]


def decide(ask: Ask, books: Books) -> Grant | NoRoomNow | NeverFits:
    """Decide."""
    too_small = {device.uuid: short for device in ask.devices if (short := _too_small(ask, device)) is not None}
    could = [device for device in ask.devices if device.uuid not in too_small]
    if len(could) < ask.count:
        return _never(ask, tuple(too_small.values()))
    wanted = {uuid for ticket in books.ahead for uuid in ticket.uuids}
    ahead = sum(1 for ticket in books.ahead if any(device.uuid in ticket.uuids for device in could))
    shortfalls: list[Shortfall] = []
    fits: list[tuple[tuple[bool, int, int], Candidate]] = []
    for index, device in enumerate(could):
        short = _lacks(ask, device, books)
        if short is None and device.uuid in wanted:
            short = Shortfall(uuid=device.uuid, bound=Bound.LINE, why=f"{device.uuid} is waited for")
        if short is None:
            fits.append((_preference(ask, device, index, books.entries), device))
        else:
            shortfalls.append(short)
    if len(fits) >= ask.count:
        chosen = {device.uuid for _, device in sorted(fits, key=lambda fit: fit[0])[: ask.count]}
        return Grant(devices=tuple(device for device in could if device.uuid in chosen))
    return _not_now(ask, tuple(shortfalls), fitting=len(fits), ahead=ahead)


def still_fits(entry: Entry, entries: Sequence[Entry]) -> bool:
    """Say whether a reservation that was taken for gone can stand beside what was promised since. Promises only."""
    others = [one for one in entries if one.id != entry.id]
    return all(_stands(entry, share, others) for share in entry.shares)


def could_hold(ask: Ask) -> tuple[str, ...]:
    """Give the devices that could hold a wish if they were empty."""
    return tuple(device.uuid for device in ask.devices if _too_small(ask, device) is None)


def first_for(uuids: Iterable[str], line: Iterable[Ticket]) -> list[Ticket]:
    """Give who is first in line for any of these devices: nobody else can be granted one of them.

    The line is in order, and read no further than it has to be.
    """
    left = set(uuids)
    first: list[Ticket] = []
    if left:
        for ticket in line:
            if left & set(ticket.uuids):
                first.append(ticket)
                left -= set(ticket.uuids)
            if not left:
                break
    return first


def unclaimed(ticket: Ticket, books: Books) -> list[str]:
    """Give the devices that a place in line is first for."""
    wanted = {uuid for one in books.ahead for uuid in one.uuids}
    return [uuid for uuid in ticket.uuids if uuid not in wanted]


def in_the_way(ticket: Ticket, books: Books) -> tuple[list[Entry], list[Ticket]]:
    """Say whose end may change the answer for a place in line.

    Where it is first, that is who holds the device; where it is not, who is right before it. Who is further ahead is
    watched by the one behind him, so that an end is heard of by one and not by everybody.
    """
    first_of = set(unclaimed(ticket, books))
    holders = [entry for entry in books.entries if first_of & {share.uuid for share in entry.shares}]
    before = {uuid: one for one in books.ahead for uuid in one.uuids if uuid in ticket.uuids}
    return holders, list({one.id: one for one in before.values()}.values())


def _too_small(ask: Ask, device: Candidate) -> Shortfall | None:
    """Return what an empty device lacks of all that is asked; `None` if it could hold it."""
    if _ask_block(ask, device, ()) is None:
        return None
    why = f"{device.uuid} has {format_size(device.total_bytes)}, and {format_size(ask.vram_bytes)} are needed"
    room_bytes = device.total_bytes
    return Shortfall(uuid=device.uuid, bound=Bound.SIZE, why=why, needed_bytes=ask.vram_bytes, room_bytes=room_bytes)


def _lacks(ask: Ask, device: Candidate, books: Books) -> Shortfall | None:
    """Return what a device lacks now, apart from the line: by what was promised, then by the driver's measure."""
    on_it = _on(device.uuid, books.entries)
    if books.unreadable:
        why = f"what {', '.join(books.unreadable[:_LISTED])} holds can't be read"
        return Shortfall(uuid=device.uuid, bound=Bound.TAKEN, why=why, needed_bytes=ask.vram_bytes)
    block = _ask_block(ask, device, on_it)
    return _measured_lacks(ask, device, on_it, books) if block is None else _promised_lacks(ask, device, on_it, block)


def _promised_lacks(ask: Ask, device: Candidate, on_it: Sequence[Entry], block: DeviceBlock) -> Shortfall:
    uuid = device.uuid
    if block is DeviceBlock.HELD:
        why = f"{uuid} is held whole by {_holders([entry for entry in on_it if _is_alone(entry, uuid)])}"
        return Shortfall(uuid=uuid, bound=Bound.TAKEN, why=why, needed_bytes=ask.vram_bytes)
    if block is DeviceBlock.IN_USE:
        why = f"{uuid} is wanted whole, and {_holders(on_it)} hold{'s' if len(on_it) == 1 else ''} some of it"
        return Shortfall(uuid=uuid, bound=Bound.OCCUPIED, why=why, needed_bytes=ask.vram_bytes)
    if block is DeviceBlock.DEVICE_SLOTS:
        why = f"{uuid} takes {device.slots} at once: {_holders(on_it)}"
        return Shortfall(uuid=uuid, bound=Bound.SLOTS, why=why, needed_bytes=ask.vram_bytes)
    needed_bytes, before_bytes = _amounts(ask, device, on_it)
    room_bytes = max(0, device.usable_bytes - before_bytes)
    why = (
        f"{uuid} has {format_size(room_bytes)} left of {format_size(device.usable_bytes)} to share, and "
        f"{format_size(needed_bytes)} are needed: held by {_holders(on_it)}"
    )
    return Shortfall(uuid=uuid, bound=Bound.LEDGER, why=why, needed_bytes=needed_bytes, room_bytes=room_bytes)


def _measured_lacks(ask: Ask, device: Candidate, on_it: Sequence[Entry], books: Books) -> Shortfall | None:
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
    return Shortfall(uuid=device.uuid, bound=Bound.MEASURED, why=why, needed_bytes=needed_bytes, room_bytes=room_bytes)


def _amounts(ask: Ask, device: Candidate, on_it: Sequence[Entry]) -> tuple[int, int]:
    """Return what a wish would add to a device, and what counts against it before."""
    charges = charges_on(device.uuid, on_it)
    before_bytes = total_of(charges)
    return total_of((*charges, charge_of(ask))) - before_bytes, before_bytes


def _ask_block(
    ask: Ask, device: Candidate, on_it: Sequence[Entry], left_bytes: int | None = None
) -> DeviceBlock | None:
    """Return why a wish can't have a device beside these reservations."""
    return _block(
        charge_of(ask),
        charges_on(device.uuid, on_it),
        device,
        is_shared=ask.shares(device),
        is_held=any(_is_alone(entry, device.uuid) for entry in on_it),
        left_bytes=left_bytes,
    )


def _stands(entry: Entry, share: Share, others: Sequence[Entry]) -> bool:
    block = _block(
        promises_on(share.uuid, (entry,))[0],
        promises_on(share.uuid, others),
        Candidate(uuid=share.uuid, total_bytes=share.total_bytes, memory_type=share.memory_type),
        is_shared=not share.is_exclusive,
        is_held=any(_is_alone(other, share.uuid) for other in others),
    )
    return block is None


def _block(
    wanted: Charge,
    held: Sequence[Charge],
    device: Candidate,
    *,
    is_shared: bool,
    is_held: bool,
    left_bytes: int | None = None,
) -> DeviceBlock | None:
    """Return what the one rule says. Without `left_bytes`, what other programs hold is not counted."""
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


def _is_alone(entry: Entry, uuid: str) -> bool:
    share = entry.share_of(uuid)
    return share is not None and share.is_exclusive


def _preference(ask: Ask, device: Candidate, index: int, entries: Sequence[Entry]) -> tuple[bool, int, int]:
    """Sort devices that fit: where the base is, then where those who share leave the smallest rest, then as listed."""
    if not ask.shares(device):
        return (True, 0, index)
    on_it = _on(device.uuid, entries)
    has_base = bool(ask.base) and any(entry.base == ask.base for entry in on_it)
    charges = charges_on(device.uuid, on_it)
    return (not has_base, device.usable_bytes - total_of((*charges, charge_of(ask))), index)


def _not_now(ask: Ask, shortfalls: tuple[Shortfall, ...], *, fitting: int, ahead: int) -> NoRoomNow:
    # Something that is lacked is worth more to know than that others wait for it, too.
    nearest = min(shortfalls, key=lambda short: (short.bound is Bound.LINE, short.missing_bytes))
    line = f"{ahead} wait{'s' if ahead == 1 else ''} before you" if ahead else ""
    some = f"{fitting} of {ask.count} devices have room" if fitting else ""
    lack = "" if nearest.bound is Bound.LINE else nearest.why
    return NoRoomNow(
        why="; ".join(part for part in (some, lack, line) if part),
        bound=nearest.bound,
        nearest=nearest,
        shortfalls=shortfalls,
        ahead=ahead,
    )


def _never(ask: Ask, too_small: tuple[Shortfall, ...]) -> NeverFits:
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


def _on(uuid: str, entries: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.share_of(uuid) is not None]


def _holders(entries: Sequence[Entry]) -> str:
    told = [f"{entry.job} (process {entry.owner.pid})" for entry in entries[:_LISTED]]
    more = len(entries) - _LISTED
    return ", ".join(told) + (f" and {more} more" if more > 0 else "")
