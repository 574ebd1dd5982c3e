"""What an error of an S3 store means: try again, give up, already there, or not there. One pure function."""

from __future__ import annotations

import re
from enum import StrEnum

from stoker.core.errors import (
    AuthRefused,
    BadAnswer,
    HashMismatch,
    NetworkFailed,
    NoSpace,
    NotOnServer,
    RateLimited,
    StokerError,
    TooLarge,
    Unavailable,
)
from stoker.core.frozen import frozen

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")


class S3Meaning(StrEnum):
    """What to do after an error."""

    RETRY = "retry"
    REFUSE = "refuse"
    EXISTS = "exists"
    """The object is there: a conditional put has nothing to do."""
    MISSING = "missing"
    """There is no such object."""


@frozen
class S3Fault:
    """An error as the store sent it."""

    status: int | None
    """Of the response; None: there was none (no connection, a timeout)."""
    code: str = ""
    """The store's own name of the error."""


@frozen
class S3Verdict:
    """What an error means, and the error that a caller gets if it does not go away."""

    meaning: S3Meaning
    error: StokerError


def read_fault(text: str, *, status: int | None = None) -> S3Fault:
    """Read an error from the text of a response, or of an error of obstore."""
    found = _STATUS.search(text)
    code = _CODE.search(text)
    return S3Fault(
        status=status if status is not None or found is None else int(found[1]), code=code[1] if code else ""
    )


def judge_fault(fault: S3Fault, site: str) -> S3Verdict:
    """Return what an error of the store at `site` means."""
    kind = _BY_CODE.get(fault.code) or _by_status(fault.status)
    meaning, error, message, hint = _KINDS[kind]
    cause = fault.code or fault.status
    shown = f"{site}: {message} ({cause})" if cause else f"{site}: {message}"
    return S3Verdict(meaning=meaning, error=error(shown, hint=hint, is_lasting=meaning is S3Meaning.REFUSE))


def _by_status(status: int | None) -> str:
    if status is None:
        return "silent"
    return _BY_STATUS.get(status) or ("failed" if status >= _SERVER_ERROR else "strange")


_SERVER_ERROR = 500
_BY_CODE = {
    "PreconditionFailed": "exists",
    "RequestTimeTooSkewed": "skewed",
    "RequestInTheFuture": "skewed",
    "BadDigest": "other bytes",
    "InvalidDigest": "other bytes",
    "XAmzContentSHA256Mismatch": "other bytes",
    "XAmzContentChecksumMismatch": "other bytes",
    "SlowDown": "busy",
    "ServiceUnavailable": "busy",
    "Throttling": "busy",
    "RequestLimitExceeded": "busy",
    "QuotaExceeded": "full",
    "XMinioStorageFull": "full",
    "RequestTimeout": "failed",
    "ConditionalRequestConflict": "failed",
    "OperationAborted": "failed",
    "InternalError": "failed",
    "NoSuchBucket": "no bucket",
    "EntityTooLarge": "size",
}
_BY_STATUS = {
    401: "denied",
    403: "denied",
    404: "missing",
    408: "failed",
    409: "failed",
    412: "exists",
    413: "size",
    429: "busy",
    503: "busy",
    507: "full",
}
_LATER = "try again later"
_KINDS: dict[str, tuple[S3Meaning, type[StokerError], str, str]] = {
    "silent": (
        S3Meaning.RETRY,
        NetworkFailed,
        "no response from the object store",
        "is its address right (AWS_ENDPOINT_URL), and is it up?",
    ),
    "busy": (S3Meaning.RETRY, RateLimited, "the object store is busy", _LATER),
    "failed": (S3Meaning.RETRY, Unavailable, "the object store failed", _LATER),
    "exists": (S3Meaning.EXISTS, Unavailable, "the object exists", ""),
    "missing": (S3Meaning.MISSING, NotOnServer, "there is no such object", ""),
    "skewed": (
        S3Meaning.REFUSE,
        AuthRefused,
        "the clocks of this machine and of the object store differ too much",
        "set the time, for example by NTP",
    ),
    "denied": (
        S3Meaning.REFUSE,
        AuthRefused,
        "the object store refuses access",
        "check the key (AWS_ACCESS_KEY_ID) and its rights on this bucket: stoker admin objects check",
    ),
    "no bucket": (S3Meaning.REFUSE, NotOnServer, "there is no such bucket", "create it, or name another one"),
    "other bytes": (
        S3Meaning.REFUSE,
        HashMismatch,
        "the object store received other bytes",
        "try again; nothing was stored",
    ),
    "full": (
        S3Meaning.REFUSE,
        NoSpace,
        "the object store is full",
        "free some space there, or raise its quota",
    ),
    "size": (S3Meaning.REFUSE, TooLarge, "the object store refuses an object of this size", ""),
    "strange": (
        S3Meaning.REFUSE,
        BadAnswer,
        "unexpected response of the object store",
        "is AWS_ENDPOINT_URL the address of an S3 service?",
    ),
}
