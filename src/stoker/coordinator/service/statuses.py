"""Which HTTP status an error is told with. The error itself is the body, as `StokerError.to_dict()` gives it."""

from __future__ import annotations

from stoker.model.errors import (
    BadInput,
    Bug,
    Damaged,
    Faults,
    NoSpace,
    NotFound,
    RateLimited,
    Refused,
    StokerError,
    Unavailable,
    WorkFailed,
)
from stoker.model.fleet_errors import CodeNotAccepted, CommitMissing, NotAllowed, TooLarge, VersionSkew
from stoker.model.frozen import frozen

# The first that fits counts, so leaves stand before their branches.
_STATUSES: tuple[tuple[type[StokerError], int], ...] = (
    (NotAllowed, 403),
    (NotFound, 404),
    (VersionSkew, 412),
    (CommitMissing, 400),
    (CodeNotAccepted, 412),
    (TooLarge, 413),
    (Faults, 422),
    (RateLimited, 429),
    (NoSpace, 507),
    (BadInput, 400),
    (Refused, 409),
    (Damaged, 422),
    (Unavailable, 503),
    (WorkFailed, 409),
    (Bug, 500),
)


@frozen
class Told:
    """An error on its way out: with which status, and with which headers beside the usual ones."""

    error: StokerError
    status: int
    headers: tuple[tuple[bytes, bytes], ...] = ()


def told(error: StokerError, status: int = 0) -> Told:
    """Say how an error is told; whoever knows better gives the status."""
    status = status or next((code for kind, code in _STATUSES if isinstance(error, kind)), 500)
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if status in {429, 503}:
        wait_s = error.data.get("retry_after_s")
        headers = ((b"retry-after", b"%d" % wait_s if isinstance(wait_s, int) else b"1"),)
    if status == 401:
        headers = ((b"www-authenticate", b"X-Operator-Token"),)
    return Told(error=error, status=status, headers=headers)
