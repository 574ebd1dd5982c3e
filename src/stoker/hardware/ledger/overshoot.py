"""What an owner really takes, beside what it was promised: always recorded, worth a warning above a fifth more."""

from __future__ import annotations

from collections.abc import Callable, Mapping

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


def _promise(share: Share) -> int:
    return share.promised_bytes or share.total_bytes


def _percent(share: Share) -> int:
    # Rounded up, so that one byte above a limit is above it.
    return -(-(share.measured_bytes or 0) * 100 // max(1, _promise(share)))
