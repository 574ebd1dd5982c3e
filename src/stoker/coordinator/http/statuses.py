"""The HTTP status of an error. The body is `StokerError.to_dict()`. Imports no library of the service."""

from __future__ import annotations

from stoker.core.errors import (
    BadInput,
    CodeNotAccepted,
    CommitMissing,
    Damaged,
    Forbidden,
    InternalError,
    InvalidInput,
    NoSpace,
    NotFound,
    RateLimited,
    Refused,
    StokerError,
    TooLarge,
    Unavailable,
    VersionSkew,
    WorkFailed,
)

# The first match applies, so subclasses come first.
_STATUSES: tuple[tuple[type[StokerError], int], ...] = (
    (Forbidden, 403),
    (NotFound, 404),
    (VersionSkew, 412),
    (CommitMissing, 400),
    (CodeNotAccepted, 412),
    (TooLarge, 413),
    (InvalidInput, 422),
    (RateLimited, 429),
    (NoSpace, 507),
    (BadInput, 400),
    (Refused, 409),
    (Damaged, 422),
    (Unavailable, 503),
    (WorkFailed, 409),
    (InternalError, 500),
)


def status_of(error: StokerError) -> int:
    """Return the status of an error by its class."""
    return next((code for kind, code in _STATUSES if isinstance(error, kind)), 500)
