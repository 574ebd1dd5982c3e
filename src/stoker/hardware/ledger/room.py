"""How much of a device is spoken for, and how much is left: integers, and nothing else.

Two truths bound what may be promised. By the ledger, what everybody holds together stays within what a device shares
out; a base that several have in common counts once. By the driver, what is free now must also cover what others were
promised and have not taken yet: memory that is free only because its holder has just started is not free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stoker.hardware.device_fit import added_bytes
from stoker.hardware.ledger.asking import Ask, Candidate
from stoker.hardware.ledger.entries import Entry, Share
from stoker.host.identity import ProcessIdentity, mine
from stoker.model.devices import usable_bytes
from stoker.model.frozen import frozen


@frozen
class Reading:
    """What the driver said of one device at one moment. `None`: nobody could say."""

    free_bytes: int | None = None
    used_by: Mapping[int, int] | None = None
    """Bytes by process number."""


@frozen
class Charge:
    """What one holder takes of one device."""

    charged_bytes: int
    base: str = ""
    base_bytes: int = 0


def charges_on(uuid: str, entries: Iterable[Entry]) -> list[Charge]:
    """Give what each reservation takes of one device."""
    return [
        Charge(charged_bytes=share.charged_bytes, base=entry.base, base_bytes=entry.base_bytes)
        for entry in entries
        for share in entry.shares
        if share.uuid == uuid
    ]


def promises_on(uuid: str, entries: Iterable[Entry]) -> list[Charge]:
    """Return what each reservation was promised of one device, whatever it really takes."""
    return [
        Charge(charged_bytes=share.promised_bytes, base=entry.base, base_bytes=entry.base_bytes)
        for entry in entries
        for share in entry.shares
        if share.uuid == uuid
    ]


def charge_of(ask: Ask) -> Charge:
    """Give what a wish would take of a device."""
    return Charge(charged_bytes=ask.vram_bytes, base=ask.base, base_bytes=ask.base_bytes)


def total_of(charges: Iterable[Charge]) -> int:
    """Return what charges are together, each base once: the largest size that any of them has for it."""
    total_bytes = 0
    bases: dict[str, int] = {}
    for charge in charges:
        resident_bytes = bases.get(charge.base, 0)
        total_bytes += added_bytes(charge.charged_bytes, charge.base_bytes, resident_bytes)
        if charge.base:
            bases[charge.base] = max(resident_bytes, min(charge.base_bytes, charge.charged_bytes))
    return total_bytes


def ceiling_of(entries: Sequence[Entry]) -> int | None:
    """Give the most that the one process behind these reservations may take of any of its devices.

    It is what they were promised and, in proportion, their part of what a device never promises: if all who share it
    keep to theirs, all have room. Nothing is given for a device that is held whole.
    """
    held: dict[str, list[Share]] = {}
    for entry in entries:
        for share in entry.shares:
            held.setdefault(share.uuid, []).append(share)
    ceilings = (_ceiling(shares, total_of(promises_on(uuid, entries))) for uuid, shares in held.items())
    return min((one for one in ceilings if one is not None), default=None)


def _ceiling(shares: Sequence[Share], promised_bytes: int) -> int | None:
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
    device: Candidate, entries: Sequence[Entry], reading: Reading, chains: Mapping[int, tuple[int, ...] | None]
) -> int:
    """Say how much of the memory in use on a device belongs to those who were promised it.

    `chains` are the processes above each process that uses the device; `None` for one that can't be seen from here, as
    in another container. What can't be told apart is taken for the holders' of whom nothing was seen: else memory that
    they have taken would be counted twice, as used and as promised, and who waits would wait for nothing.
    """
    if reading.free_bytes is None:
        return 0
    in_use = max(0, device.total_bytes - reading.free_bytes)
    groups: dict[ProcessIdentity, list[Charge]] = {}
    for entry in entries:
        groups.setdefault(entry.owner, []).extend(charges_on(device.uuid, (entry,)))
    here = mine().pid_space
    owners = {owner.pid: owner for owner in groups if owner.pid_space == here}
    seen: dict[ProcessIdentity, int] = {}
    told, unseen = 0, 0
    for pid, used_bytes in (reading.used_by or {}).items():
        told += used_bytes
        chain = chains.get(pid)
        owner = next((owners[one] for one in (pid, *(chain or ())) if one in owners), None)
        if owner is not None:
            seen[owner] = seen.get(owner, 0) + used_bytes
        elif chain is None:
            unseen += used_bytes
    taken = sum(min(used_bytes, total_of(groups[owner])) for owner, used_bytes in seen.items())
    of_unseen_holders = sum(total_of(charges) for owner, charges in groups.items() if owner not in seen)
    return taken + min(of_unseen_holders, unseen + max(0, in_use - told))
