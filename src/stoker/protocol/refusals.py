"""Errors as responses of a coordinator, and back: by their code, or without one by the status.

The text is untrusted: control codes are removed and its length is bounded.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from stoker.core import errors
from stoker.core.errors import (
    BadAnswer,
    BadInput,
    CodeNotAccepted,
    CommitMissing,
    Conflict,
    Damaged,
    Diagnostic,
    Forbidden,
    InternalError,
    InvalidInput,
    NetworkFailed,
    NoCoordinator,
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
from stoker.core.jsontext import loads
from stoker.core.text import one_line
from stoker.host.http.http_errors import Reason

_LONGEST_MESSAGE = 4000
_MOST_FAULTS = 1000
# Codes about this process, which a coordinator cannot know.
_OURS_ALONE = frozenset({"cancelled", "terminated", "usage", "stoker"})


def refusal(status: int, body: bytes, *, is_ours: bool, url: str) -> StokerError:
    """Return the error for a response with a status of 400 or more."""
    error = _error_body(body)
    if error is not None:
        return error_of(error, status)
    if is_ours or status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        kind = _BY_STATUS.get(status, Refused if status < HTTPStatus.INTERNAL_SERVER_ERROR else Unavailable)
        return kind(f"the coordinator at {url} answered {status}", status=status)
    if status in _GATEWAY:
        hint = "a gateway answered instead of the coordinator; try again in a moment"
        return NoCoordinator(f"a gateway answers at {url} with {status}", hint=hint, url=url, status=status)
    return no_coordinator_there(url, f"status {status} without our version header", status=status)


def no_coordinator_there(url: str, why: str, **data: object) -> BadAnswer:
    """Return the error for a response that no coordinator sends."""
    hint = "check that this is the address of a `stoker serve` of this version"
    return BadAnswer(f"{url} is not a compatible coordinator: {why}", hint=hint, url=url, **data)


def _error_body(body: bytes) -> dict[str, Any] | None:
    try:
        raw = loads(body)
    except ValueError:
        return None
    is_error = isinstance(raw, dict) and isinstance(raw.get("error"), str) and isinstance(raw.get("message"), str)
    return raw if is_error else None


def error_of(raw: dict[str, Any], status: int = 400) -> StokerError:
    """Return the error that `StokerError.to_dict` wrote, by its code; for an unknown code, by the status."""
    kind = _BY_CODE.get(raw["error"]) or _BY_STATUS.get(
        status, Refused if status < HTTPStatus.INTERNAL_SERVER_ERROR else Unavailable
    )
    message = one_line(raw["message"], _LONGEST_MESSAGE)
    hint = one_line(raw["hint"], _LONGEST_MESSAGE) if isinstance(raw.get("hint"), str) else ""
    data = {
        key: value
        for key, value in (raw["data"] if isinstance(raw.get("data"), dict) else {}).items()
        if key not in ("message", "hint", "faults", "count")
    }
    if issubclass(kind, InvalidInput):
        return kind(message, hint=hint, faults=_faults(raw), **data)
    return kind(message, hint=hint, **data)


def _faults(raw: dict[str, Any]) -> tuple[Diagnostic, ...]:
    data = raw.get("data")
    listed = data.get("faults") if isinstance(data, dict) else None
    found = []
    for one in (listed if isinstance(listed, list) else [])[:_MOST_FAULTS]:
        if isinstance(one, dict):
            where, message, hint = (one_line(str(one.get(key, ""))) for key in ("where", "message", "hint"))
            found.append(Diagnostic(where, message, hint))
    return tuple(found)


_BY_STATUS: dict[int, type[StokerError]] = {
    400: BadInput,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: VersionSkew,
    413: TooLarge,
    422: BadInput,
    429: RateLimited,
    500: InternalError,
}
_GATEWAY = frozenset({502, 503, 504})
_BY_CODE: dict[str, type[StokerError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, StokerError) and kind.code not in _OURS_ALONE
}


# Hints where a coordinator and a member of its fleet do not trust each other's certificates.

_CLOCK_BEHIND = "the certificate is not valid yet: set this machine's clock (`timedatectl set-ntp true`)"
_EXPIRED = "check this machine's clock; a running coordinator renews its certificate automatically"
_OTHER_CA = (
    "the certificate is not signed by the CA of the fleet that was joined: a different coordinator, or an "
    "intercepted connection; to join a new fleet: stoker join CODE@HOST --again"
)
_OTHER_NAME = "use a name that `stoker machines invite` printed, or start it with `stoker serve --advertise NAME`"
_REFUSED = "the coordinator no longer accepts this machine's certificate: stoker join CODE@HOST --again"

# X509_V_ERR_… of OpenSSL.
_HINTS_BY_VERIFY_CODE: dict[object, str] = {
    9: _CLOCK_BEHIND,
    10: _EXPIRED,
    62: _OTHER_NAME,
    64: _OTHER_NAME,
    **dict.fromkeys((2, 7, 18, 19, 20, 21, 30), _OTHER_CA),
}
_ALERTS = frozenset(
    {
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "TLSV1_ALERT_UNKNOWN_CA",
    }
)


def trust_hint(error: NetworkFailed) -> str:
    """Return the hint for an untrusted certificate; empty for any other failure."""
    if error.data.get("reason") == Reason.CERTIFICATE:
        return _HINTS_BY_VERIFY_CODE.get(error.data.get("verify_code"), "")
    return _REFUSED if error.data.get("tls") in _ALERTS else ""


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
