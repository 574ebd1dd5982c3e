"""What an owner really takes, beside what it was promised: always recorded, worth a warning above a fifth more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from stoker.hardware.ledger.answers import Measured
from stoker.hardware.ledger.entries import Entry, Share
from stoker.hardware.ledger.living import chain_of
from stoker.hardware.ledger.room import Reading
from stoker.model.frozen import changed

WARN_PERCENT = 120


def with_measured(entry: Entry, measured_bytes: Mapping[str, int]) -> Entry:
    """Give the reservation with what was measured, where that is more than before."""
    return changed(
        entry,
        shares=tuple(
            changed(share, measured_bytes=max(share.measured_bytes or 0, measured_bytes[share.uuid]))
            if share.uuid in measured_bytes
            else share
            for share in entry.shares
        ),
    )


def judge_measured(entry: Entry, limit_percent: int | None = None) -> Measured:
    """Compare what was measured with the promise, on the device where it is furthest beyond."""
    share = max(entry.shares, key=_percent)
    percent = _percent(share)
    return Measured(
        uuid=share.uuid,
        promised_bytes=_promise(share),
        measured_bytes=share.measured_bytes or 0,
        percent=percent,
        is_over=percent > WARN_PERCENT,
        is_past_limit=limit_percent is not None and percent > limit_percent,
    )


def measured_by(
    entry: Entry,
    readings: Mapping[str, Reading],
    chain_of: Callable[[int], tuple[int, ...] | None] = chain_of,
) -> dict[str, int]:
    """Give what the owner and its children take on each device of which the driver says who uses it."""
    owner = entry.owner.pid
    used: dict[str, int] = {}
    for uuid, reading in readings.items():
        if reading.used_by is not None:
            theirs = [size for pid, size in reading.used_by.items() if owner == pid or owner in (chain_of(pid) or ())]
            if theirs:
                used[uuid] = sum(theirs)
    return used


def shared_out(entry: Entry, entries: Iterable[Entry], measured_bytes: Mapping[str, int]) -> dict[str, int]:
    """Give what of one process's memory is this reservation's, where the process works for several with one base.

    The base is everybody's, and counted once by who adds up. The rest is shared out as it was promised, so that all
    parts together are what was measured.
    """
    if not entry.base:
        return dict(measured_bytes)
    company = company_of(entry, entries)
    return {uuid: _part(entry, company, uuid, size_bytes) for uuid, size_bytes in measured_bytes.items()}


def beside_base(company: list[Entry], uuid: str, size_bytes: int) -> tuple[int, int]:
    """Give what of one process's memory is not its base, and what all of them were promised beside it."""
    here = [(one, share) for one in company if (share := one.share_of(uuid)) is not None]
    base_bytes = max((one.base_bytes for one, _ in here), default=0)
    return max(0, size_bytes - base_bytes), sum(share.promised_bytes - one.base_bytes for one, share in here)


def company_of(entry: Entry, entries: Iterable[Entry]) -> list[Entry]:
    """Give the reservations that one process works for with one base, this one among them."""
    others = (one for one in entries if one.id != entry.id and (one.owner, one.base) == (entry.owner, entry.base))
    return [entry, *others]


def _part(entry: Entry, company: list[Entry], uuid: str, size_bytes: int) -> int:
    share = entry.share_of(uuid)
    rest_bytes, together = beside_base(company, uuid, size_bytes)
    if share is None or len(company) < 2 or not rest_bytes or together <= 0:
        return size_bytes
    return entry.base_bytes + -(-rest_bytes * (share.promised_bytes - entry.base_bytes) // together)


def _promise(share: Share) -> int:
    return share.promised_bytes or share.total_bytes


def _percent(share: Share) -> int:
    # Rounded up, so that one byte above a limit is above it.
    return -(-(share.measured_bytes or 0) * 100 // max(1, _promise(share)))
