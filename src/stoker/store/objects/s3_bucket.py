"""Requests of the coordinator to an S3 store, by obstore. Each error is judged; some are retried."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

from stoker.core.clock import Clock
from stoker.core.errors import (
    AuthRefused,
    BadAnswer,
    HashMismatch,
    MissingExtra,
    NetworkFailed,
    NoSpace,
    NotOnServer,
    RateLimited,
    StokerError,
    TooLarge,
    Unavailable,
)
from stoker.core.frozen import frozen
from stoker.core.retry import pause_s
from stoker.host.install import pip_install
from stoker.store.objects.s3_passes import S3Site

_PAGE = 1000
"""Number of names that a store lists at once."""
_TRIES = 4
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_CONNECT_S = 10
_REQUEST_S = 120
"""Of one request with all of its bytes: 64 MiB at 0.5 MiB/s."""

T = TypeVar("T")


class S3Bucket:
    """One site. Thread-safe."""

    def __init__(self, site: S3Site, *, clock: Clock, request_s: float = _REQUEST_S) -> None:
        try:
            import obstore  # noqa: PLC0415 - needed with an S3 store only
            from obstore.store import S3Store  # noqa: PLC0415 - as above
        except ImportError:
            raise MissingExtra("S3 needs obstore", hint=pip_install("stoker[s3]"), extra="s3") from None
        self.site = site
        self._clock = clock
        self._library = obstore
        self._store = S3Store(
            site.bucket,
            prefix=site.prefix or None,
            endpoint=site.endpoint,
            region=site.region,
            access_key_id=site.keys.id,
            secret_access_key=site.keys.secret,
            config={"session_token": site.keys.session} if site.keys.session else None,
            virtual_hosted_style_request=False,
            checksum_algorithm="SHA256",
            client_options={
                "allow_http": site.endpoint.startswith("http://"),
                "connect_timeout": timedelta(seconds=_CONNECT_S),
                "timeout": timedelta(seconds=request_s),
            },
            # Retries are ours, so that every error is judged in one place.
            retry_config={"max_retries": 0},
        )

    def put(self, name: str, data: bytes | memoryview) -> bool:
        """Put an object if it is not there, durable on return; return False if it was there."""

        def once() -> bool:
            self._library.put(self._store, name, bytes(data), mode="create", use_multipart=False)
            return True

        return self._do(once, exists=lambda: False)

    def replace(self, name: str, data: bytes) -> None:
        """Put an object in any case."""
        self._do(lambda: self._library.put(self._store, name, data, use_multipart=False))

    def size(self, name: str) -> int | None:
        """Return the size of an object; None if it is not there."""
        return self._do(lambda: int(self._library.head(self._store, name)["size"]), missing=lambda: None)

    def get(self, name: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        """Return an object or a range of it; None if it is not there."""
        if length == 0:
            return b""

        def once() -> bytes:
            if length is None:
                return bytes(self._library.get(self._store, name).bytes())
            return bytes(self._library.get_range(self._store, name, start=start, length=length))

        return self._do(once, missing=lambda: None)

    def stream(self, name: str, *, start: int, length: int) -> Iterator[bytes] | None:
        """Return a range of an object in pieces; None if it is not there. A piece may raise what `fault` translates."""

        def once() -> Iterator[bytes]:
            found = self._library.get(self._store, name, options={"range": (start, start + length)})
            return (bytes(piece) for piece in found.stream(min_chunk_size=1 << 20))

        return self._do(once, missing=lambda: None)

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; those that are not there do not matter."""
        for name in names:
            self._do(lambda name=name: self._library.delete(self._store, name), missing=lambda: None)  # type: ignore[misc]

    def list(self, prefix: str) -> Iterator[tuple[str, int, float]]:
        """Return name, size and time of change of the objects below a prefix, in the order of their names."""
        last = None
        while page := self._do(partial(self._page, prefix, last)):
            for one in page:
                last = one["path"]
                yield last, one["size"], one["last_modified"].timestamp()

    def _page(self, prefix: str, after: str | None) -> Any:
        """Return some entries behind a name, None at the end. Each request is one of its own, so it can be retried."""
        return next(iter(self._library.list(self._store, prefix, offset=after, chunk_size=_PAGE)), None)

    def fault(self, error: Exception) -> StokerError:
        """Return our error for an error of the library."""
        return judge_fault(read_fault(str(error)), self.site.url).error

    def _do(
        self,
        once: Callable[[], T],
        *,
        exists: Callable[[], T] | None = None,
        missing: Callable[[], T] | None = None,
    ) -> T:
        failures = 0
        while True:
            try:
                return once()
            except StokerError:
                raise
            except Exception as error:  # noqa: BLE001 - the library's errors have several roots
                verdict = judge_fault(read_fault(str(error)), self.site.url)
            if verdict.meaning is S3Meaning.EXISTS and exists is not None:
                return exists()
            if verdict.meaning is S3Meaning.MISSING and missing is not None:
                return missing()
            failures += 1
            if verdict.meaning is not S3Meaning.RETRY or failures >= _TRIES:
                raise verdict.error
            chance = random.SystemRandom().random()
            self._clock.sleep(pause_s(failures - 1, chance, first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S))


# What an error of an S3 store means: try again, give up, already there, or not there. One pure function.


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
