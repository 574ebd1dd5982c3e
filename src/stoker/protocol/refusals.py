"""What a coordinator refuses, as the same errors on this side: by their code, or where there is none by the status.

The text comes from elsewhere: control codes in it are not obeyed, and its length is bounded.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from stoker.core import errors
from stoker.core.errors import (
    BadAnswer,
    BadInput,
    Conflict,
    Diagnostic,
    Forbidden,
    InternalError,
    InvalidInput,
    NetworkFailed,
    NoCoordinator,
    NotFound,
    RateLimited,
    Refused,
    StokerError,
    TooLarge,
    Unavailable,
    VersionSkew,
)
from stoker.core.jsontext import loads
from stoker.core.text import one_line
from stoker.host.http.http_errors import Reason

_LONGEST_MESSAGE = 4000
_MOST_FAULTS = 1000
# Those say something about this process, which a coordinator can't know.
_OURS_ALONE = frozenset({"cancelled", "terminated", "usage", "stoker"})


def refusal(status: int, body: bytes, *, is_ours: bool, url: str) -> StokerError:
    """Return the error that an answer with a status of 400 or more amounts to."""
    said = _error_body(body)
    if said is not None:
        return error_of(said, status)
    if is_ours or status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        kind = _BY_STATUS.get(status, Refused if status < HTTPStatus.INTERNAL_SERVER_ERROR else Unavailable)
        return kind(f"the coordinator at {url} answered {status}", status=status)
    if status in _GATEWAY:
        hint = "what stands between here and the coordinator answered in its place; try again in a moment"
        return NoCoordinator(f"nothing but a gateway answers at {url} ({status})", hint=hint, url=url, status=status)
    return no_coordinator_there(url, f"it answered {status} and not as one does", status=status)


def no_coordinator_there(url: str, why: str, **data: object) -> BadAnswer:
    """Make the error of an answer that no coordinator gives."""
    hint = "is that the address of a `stoker serve`, and of this version?"
    return BadAnswer(f"what answers at {url} is no coordinator that we understand: {why}", hint=hint, url=url, **data)


def _error_body(body: bytes) -> dict[str, Any] | None:
    try:
        said = loads(body)
    except ValueError:
        return None
    if isinstance(said, dict) and isinstance(said.get("error"), str) and isinstance(said.get("message"), str):
        return said
    return None


def error_of(said: dict[str, Any], status: int = 400) -> StokerError:
    """Return the error that `StokerError.to_dict` wrote, by its code; of an unknown code, by the status."""
    kind = _BY_CODE.get(said["error"]) or _BY_STATUS.get(
        status, Refused if status < HTTPStatus.INTERNAL_SERVER_ERROR else Unavailable
    )
    message = one_line(said["message"], _LONGEST_MESSAGE)
    hint = one_line(said["hint"], _LONGEST_MESSAGE) if isinstance(said.get("hint"), str) else ""
    data = {
        key: value
        for key, value in (said["data"] if isinstance(said.get("data"), dict) else {}).items()
        if key not in ("message", "hint", "faults", "count")
    }
    if issubclass(kind, InvalidInput):
        return kind(message, hint=hint, faults=_faults(said), **data)
    return kind(message, hint=hint, **data)


def _faults(said: dict[str, Any]) -> tuple[Diagnostic, ...]:
    data = said.get("data")
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
    for module in (errors, errors)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, StokerError) and kind.code not in _OURS_ALONE
}


# What to do where a coordinator and a member of its fleet do not trust each other's certificates.

_CLOCK_BEHIND = "the certificate is not valid yet: set this machine's clock (`timedatectl set-ntp true`)"
_EXPIRED = "check this machine's clock; a coordinator renews its certificate by itself while it runs"
_OTHER_CA = (
    "another CA than the fleet's has signed it: this is not the coordinator that was joined, or somebody stands in "
    "between; a fleet that is new, or not joined yet: stoker join CODE@HOST --again"
)
_OTHER_NAME = "ask it by a name that `stoker machines invite` printed, or `stoker serve --advertise NAME` there"
_REFUSED = "this machine's certificate no longer counts there: stoker join CODE@HOST --again"

# X509_V_ERR_… of OpenSSL.
_TRUST_HINTS_BY_CODE: dict[object, str] = {
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
    """Return the hint for a failure to trust; empty where it failed for something else."""
    if error.data.get("reason") == Reason.CERTIFICATE:
        return _TRUST_HINTS_BY_CODE.get(error.data.get("verify_code"), "")
    return _REFUSED if error.data.get("tls") in _ALERTS else ""
