"""What a response to a range request means: use it, restart, send it without a condition, retry later, fail. Pure.

A body is used only if its headers state exactly which bytes of which version it has. A response that contradicts itself
or what is known is never corrected by guessing.
"""

from __future__ import annotations

import re
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import unquote, urlsplit

from stoker.core.errors import (
    AuthRefused,
    BadAnswer,
    HashMismatch,
    NetworkFailed,
    NotOnServer,
    RateLimited,
    StokerError,
)
from stoker.core.frozen import frozen
from stoker.core.retry import NoRetry, RetryAfterDelay, pause_s
from stoker.core.text import counted, format_duration, one_line
from stoker.host.http.exchange import Headers, shown
from stoker.transfer.download.partial import strong_etag
from stoker.transfer.download.resumption import RangeRequest
from stoker.transfer.download.types import DownloadTimeouts

# Errors for HTTP statuses.

GONE = frozenset({404, 410, 451})
_BUSY = frozenset({408, 425, 429})
_LONGEST_SAYING = 200


def is_busy(status: int) -> bool:
    """Return True if the server failed or is busy: a later request may succeed."""
    return status in _BUSY or status >= 500


def refusal(where: str, status: int, headers: Headers) -> StokerError:
    """Return the error for a status from 400 on; `where` names the request in messages.

    Its data has the status, and as `error_code` the server's own error code, if there is one.
    """
    code = headers.get("X-Error-Code")
    data: dict[str, Any] = {"status": status}
    if code:
        data["error_code"] = one_line(code, _LONGEST_SAYING)
    if status in {401, 403}:
        hint = "check the address, and whether the server requires credentials"
        return AuthRefused(f"access denied ({status}): {where}{_said(headers)}", hint=hint, **data)
    if status in GONE:
        hint = "check the address" if status != 451 else "it is withheld for legal reasons"
        return NotOnServer(f"not on the server ({status}): {where}", hint=hint, **data)
    if status == 407:
        hint = "check the user and password in HTTPS_PROXY"
        return NetworkFailed(f"proxy authentication failed (407): {where}", hint=hint, **data)
    if status == 429:
        hint = "wait, then run the command again"
        return RateLimited(f"rate limit of the server exceeded (429): {where}", hint=hint, **data)
    if is_busy(status):
        hint = "server error: try again later"
        return NetworkFailed(f"the server returned {status}: {where}", hint=hint, **data)
    return BadAnswer(f"the server returned {status}: {where}{_said(headers)}", **data)


def _said(headers: Headers) -> str:
    said = headers.get("X-Error-Message") or ""
    return f": {one_line(said, _LONGEST_SAYING)}" if said else ""


# `Content-Range`, parsed strictly: anything but exactly one valid byte range counts as missing.

# File sizes are signed 64-bit numbers; eighteen digits stay below.
_RANGE = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18}|\*)", re.ASCII | re.IGNORECASE)


@frozen
class ContentRange:
    """The byte range of a response, and the total size; a 416 response has only the total."""

    first: int | None
    last: int | None
    total: int | None


def read_content_range(values: tuple[str, ...]) -> ContentRange | None:
    """Parse the field from all its values in a response. None: missing, repeated or invalid."""
    match = _RANGE.fullmatch(values[0].strip()) if len(values) == 1 else None
    if match is None:
        return None
    first, last, total = (None if text in {None, "*"} else int(text) for text in match.groups())
    if first is None or last is None:
        return None if total is None else ContentRange(first=None, last=None, total=total)
    if last < first or (total is not None and last >= total):
        return None
    return ContentRange(first=first, last=last, total=total)


# Body length, file size and date of a response, parsed strictly.

EXACT_DATE_S = 60.0
"""A date older than this identifies one version: dates have a resolution of one second, and clocks differ."""
_COUNT = re.compile(r"\d{1,18}", re.ASCII)


def read_count(text: str) -> int | None:
    """Parse a number of bytes; None if it is invalid."""
    return int(text) if _COUNT.fullmatch(text) else None


def length_of(headers: Headers) -> int | str | None:
    """Return the announced length of a body; None if there is none, a text with the fault if it is invalid."""
    values = {part.strip() for value in headers.all("Content-Length") for part in value.split(",")}
    if not values:
        return None
    value = values.pop()
    if values:
        return "two different lengths are announced"
    length = read_count(value)
    return f"invalid length {value[:40]!r}" if length is None else length


def file_size_of(status: int, headers: Headers) -> int | str | None:
    """Return the size of the file from a response to HEAD, or to a request for its first byte.

    None if it is not stated, a text with the fault if it is invalid.
    """
    if status == 206:
        span = read_content_range(headers.all("Content-Range"))
        return span.total if span is not None and (span.first, span.last) == (0, 0) else None
    is_plain = (headers.get("Content-Encoding") or "identity").lower() == "identity"
    return length_of(headers) if status == 200 and is_plain else None


def http_date_s(text: str) -> float | None:
    """Parse an HTTP date; None if it is invalid."""
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def is_date_exact(headers: Headers) -> bool:
    """Return True if `Last-Modified` is old enough, by the server's own clock, to identify one version."""
    changed_s, there_s = http_date_s(headers.get("Last-Modified") or ""), http_date_s(headers.get("Date") or "")
    return changed_s is not None and there_s is not None and there_s - changed_s >= EXACT_DATE_S


# Retries: whether to retry, and after which pause. Pure decisions, with reasons.
#
# An outage (connection refused, reset or silent, failing name servers, 5xx, 429) is retried until no byte arrived for
# `DownloadTimeouts.no_progress_s`, or for `DownloadTimeouts.attempts` attempts if a number was given. Every new byte
# resets both. Unusable responses are no outage, nor is a host name that does not exist and never resolved in this
# process: they are retried a few times only.
#
# Pauses have jitter, so that a thousand machines that lost their network together do not return together. `Retry-After`
# is respected within limits.

FIRST_PAUSE_S = 1.0
"""The longest pause after the first failure; it doubles with each failure."""
RATE_LIMIT_PAUSE_S = 5.0
"""The pause after a 429 without `Retry-After`."""
_SHORTEST_RETRY_AFTER_S = 1.0
_NEVER_SERVED = frozenset({501, 505})
"""The server has not implemented the request: a retry can't succeed."""


@frozen
class FailedAttempts:
    """Consecutive failed attempts, the latest included."""

    idle: int = 0
    """Attempts without a new byte; 0: the latest one received some."""
    unusable: int = 0
    """Attempts that failed by an unusable response or an unknown name, not by an outage."""

    def after(self, error: StokerError, *, has_progress: bool) -> FailedAttempts:
        """Return the count after one more failed attempt."""
        if has_progress:
            return FailedAttempts()
        return FailedAttempts(idle=self.idle + 1, unusable=0 if is_outage(error) else self.unusable + 1)


def is_outage(error: StokerError) -> bool:
    """Return True if the server or the network is unavailable or busy for now: the same request may succeed later."""
    status = error.data.get("status")
    is_away = not isinstance(status, int) or (is_busy(status) and status not in _NEVER_SERVED)
    is_named = not error.data.get("is_unknown_name")
    return isinstance(error, NetworkFailed | RateLimited) and is_away and is_named


def decide_again(
    patience: DownloadTimeouts, tries: FailedAttempts, *, silent_s: float, wait_s: float | None, jitter: float
) -> RetryAfterDelay | NoRetry:
    """Decide what follows a failed attempt.

    No byte arrived for `silent_s`; `wait_s` is the pause that the server requested, if any.
    """
    if patience.attempts is not None and tries.idle >= patience.attempts:
        return NoRetry(why=_attempts(tries.idle))
    if patience.attempts is None and tries.unusable >= patience.unusable_attempts:
        return NoRetry(why=_attempts(tries.unusable))
    left_s = patience.no_progress_s - silent_s
    # Our own pause is shortened for a last attempt at the limit; a server's pause beyond the limit is not waited for.
    own_s = pause_s(max(tries.idle - 1, 0), jitter, first_s=FIRST_PAUSE_S, longest_s=patience.longest_pause_s)
    delay_s = min(own_s, left_s) if wait_s is None else wait_s
    if left_s <= 0 or delay_s > left_s:
        asked = "" if wait_s is None else f", and the server requests a pause of {format_duration(wait_s)}"
        return NoRetry(why=f"no new byte for {format_duration(silent_s)}{asked}", is_timeout=True)
    return RetryAfterDelay(delay_s=delay_s, why=_attempts(tries.idle))


def given_up(error: StokerError, decision: NoRetry) -> StokerError:
    """Return the error to raise after giving up: the last one, with the reason that no attempt follows."""
    error.data["timed_out"] = decision.is_timeout
    if isinstance(error, NetworkFailed):
        hint = error.hint or "check this computer's network and the server"
        return NetworkFailed(f"{error.message} ({decision.why})", hint=hint, **error.data)
    return error


def _attempts(count: int) -> str:
    return f"{counted(count, 'attempt')} without a new byte"


def retry_after_s(headers: Headers, *, now_s: float, longest_s: float) -> float | None:
    """Return the pause that a server requests, from one second to `longest_s`; None if it requests none or is invalid.

    A date is compared with the server's own `Date`: its clock and ours may be hours apart.
    """
    text = (headers.get("Retry-After") or "").strip()
    if text.isascii() and text.isdigit():
        asked_s = float(text[:9])
    else:
        until_s, there_s = http_date_s(text), http_date_s(headers.get("Date") or "")
        if until_s is None:
            return None
        asked_s = until_s - (now_s if there_s is None else there_s)
    return min(max(asked_s, _SHORTEST_RETRY_AFTER_S), longest_s)


_PAGES = frozenset({"text/html", "application/xhtml+xml"})
_PAGE_NAMES = (".html", ".htm", ".xhtml", ".xht", ".shtml")
_OTHER_DATE = "the file has changed on the server: different date"
_UNKNOWN_VERSION = "the server does not state the version of a part"
_STALE_LINK = frozenset({400, 401, 403, 404, 410})


@frozen
class ExpectedContent:
    """What is known of the requested bytes."""

    label: str
    url: str
    size_bytes: int | None = None
    """Size of the requested file by its listing: a response that differs is wrong."""
    partial_size_bytes: int | None = None
    """Size of the partial file's version, as its server stated it."""
    etag: str = ""
    """ETag of that version, as this server stated it, weak or strong."""
    last_modified: str = ""
    """Date of that version, if it identifies the version."""
    is_pinned: bool = False
    """True if a digest is known, so that bytes of another version are detected in the end."""
    longest_retry_after_s: float = 3600.0


@frozen
class RangeResponse:
    """Status and headers of a response; `is_elsewhere` if redirects led to another server."""

    status: int
    headers: Headers
    is_elsewhere: bool = False


@frozen
class UsableResponse:
    """The body has the bytes from `offset` to the end. Offset 0 after a request for the rest: start again with it."""

    offset: int
    size_bytes: int | None
    """Of the whole file, if known."""
    etag: str = ""
    """As the server states it, weak or strong."""
    last_modified: str = ""
    is_date_exact: bool = False
    """True if no other version can have the same date."""
    why: str


@frozen
class UnconditionalRetry:
    """Request the same bytes again, without a condition."""

    why: str


@frozen
class DownloadRestart:
    """Discard the existing bytes and request everything."""

    why: str


@frozen
class DownloadComplete:
    """All bytes were received: verify them."""

    why: str


@frozen
class RetryableResponse:
    """Retry after a pause; after the timeout, raise `error`."""

    error: StokerError
    wait_s: float | None = None
    """The pause that the server requests, if any."""


@frozen
class FatalResponse:
    """Raise `error`: a retry can't succeed."""

    error: StokerError


ResponseVerdict = (
    UsableResponse | UnconditionalRetry | DownloadRestart | DownloadComplete | RetryableResponse | FatalResponse
)


def judge(ask: RangeRequest, known: ExpectedContent, answer: RangeResponse, *, now_s: float) -> ResponseVerdict:
    """Return what a response means. `now_s` is the wall time, for a server without a `Date`."""
    if answer.status in {200, 206}:
        fault = _coding_fault(answer.headers)
        if fault:
            return RetryableResponse(error=_bad(known, fault))
        if answer.status == 200 and (fault := _whole_fault(answer.headers)):
            return DownloadRestart(why=fault) if ask.offset else RetryableResponse(error=_bad(known, fault))
        return _judge_whole(ask, known, answer.headers) if answer.status == 200 else _judge_part(ask, known, answer)
    if answer.status in {412, 416} and ask.offset:
        return _judge_refused_range(ask, known, answer)
    return _judge_status(known, answer, now_s)


def _judge_whole(ask: RangeRequest, known: ExpectedContent, headers: Headers) -> ResponseVerdict:
    length = length_of(headers)
    if isinstance(length, str):
        return RetryableResponse(error=_bad(known, length))
    etag, last_modified = headers.get("ETag") or "", headers.get("Last-Modified") or ""
    if known.size_bytes is not None and length not in {None, known.size_bytes}:
        return RetryableResponse(error=_wrong_size(known, length))
    if _is_page_instead(known, headers):
        message = f"the server sent a web page, not {_name(known)}: {shown(known.url)}"
        return FatalResponse(error=BadAnswer(message, hint="is it a login page?", reason="web_page"))
    if ask.offset and ask.if_range and strong_etag(etag) and etag == known.etag:
        return UnconditionalRetry(why="the server ignores If-Range although the version is the same")
    if ask.offset and ask.if_range and not (etag or last_modified) and length not in {None, known.partial_size_bytes}:
        fault = f"{length} bytes of no known version where {known.partial_size_bytes} are expected"
        return RetryableResponse(error=_bad(known, fault, reason="unknown_version"))
    size_bytes = length if known.size_bytes is None else known.size_bytes
    why = "the server sends everything" if not ask.offset else _why_from_start(ask, known, etag)
    return UsableResponse(
        offset=0,
        size_bytes=size_bytes,
        etag=etag,
        last_modified=last_modified,
        is_date_exact=is_date_exact(headers),
        why=why,
    )


def _whole_fault(headers: Headers) -> str:
    """Return why a response with status 200 is not the whole file: some servers send a part under the wrong status."""
    if _has_several_parts(headers, "byteranges"):
        return "the server sends several parts with status 200"
    span = read_content_range(headers.all("Content-Range"))
    if span is None or span.first is None or span.last is None:
        return ""
    if span.first == 0 and span.total in {None, span.last + 1}:
        return ""
    return f"the server sends bytes {span.first} to {span.last} with status 200"


def _has_several_parts(headers: Headers, kind: str = "") -> bool:
    return (headers.get("Content-Type") or "").strip().lower().startswith(f"multipart/{kind}")


def _is_page_instead(known: ExpectedContent, headers: Headers) -> bool:
    """Return True if the server sent a web page, and neither size nor digest are known to detect that."""
    kind = (headers.get("Content-Type") or "").partition(";")[0].strip().lower()
    is_unknown = not known.is_pinned and known.size_bytes is None
    return is_unknown and kind in _PAGES and not _name(known).lower().endswith(_PAGE_NAMES)


def _name(known: ExpectedContent) -> str:
    return unquote(urlsplit(known.url).path).rpartition("/")[2] or known.label


def _why_from_start(ask: RangeRequest, known: ExpectedContent, etag: str) -> str:
    if ask.if_range and etag != known.etag:
        return "the file has changed on the server"
    return "the server does not support ranges" if not ask.if_range else "the server sends everything"


def _judge_part(ask: RangeRequest, known: ExpectedContent, answer: RangeResponse) -> ResponseVerdict:
    fault = _part_fault(ask, known, answer.headers)
    if fault and ask.offset:
        return DownloadRestart(why=fault)
    if fault:
        return RetryableResponse(error=_bad(known, fault))
    span = read_content_range(answer.headers.all("Content-Range"))
    total = known.size_bytes if span is None or span.total is None else span.total
    headers = answer.headers
    return UsableResponse(
        offset=ask.offset,
        size_bytes=known.partial_size_bytes if total is None else total,
        etag=headers.get("ETag") or known.etag,
        last_modified=headers.get("Last-Modified") or known.last_modified,
        # What counts is its age when the first bytes arrived.
        is_date_exact=bool(known.last_modified) if ask.offset else is_date_exact(headers),
        why=f"the server sends the rest from byte {ask.offset}",
    )


def _part_fault(ask: RangeRequest, known: ExpectedContent, headers: Headers) -> str:
    """Return why a part can't be added to the existing bytes; empty if it can."""
    if _has_several_parts(headers):
        return "the server sends several parts instead of one"
    span = read_content_range(headers.all("Content-Range"))
    if span is None or span.first is None or span.last is None:
        return "the server does not state which part it sends"
    if span.first != ask.offset:
        return f"the server sends a part from byte {span.first}, not from {ask.offset}"
    length = length_of(headers)
    if length not in {None, span.last - span.first + 1}:
        return f"the server announces {length} bytes for a part of {span.last - span.first + 1}"
    return _end_fault(known, span) or (_version_fault(known, headers) if ask.offset else "")


def _end_fault(known: ExpectedContent, span: ContentRange) -> str:
    size_bytes = known.partial_size_bytes if known.size_bytes is None else known.size_bytes
    total = size_bytes if span.total is None else span.total
    if total is None or span.last != total - 1:
        return f"the server sends a part that ends at byte {span.last} of {total}"
    if size_bytes is not None and total != size_bytes:
        return f"the server states {total} bytes, {size_bytes} are expected"
    return ""


def _version_fault(known: ExpectedContent, headers: Headers) -> str:
    """Return why a part may be of another version. A conditional request proves nothing: some servers ignore it."""
    etag, last_modified = headers.get("ETag") or "", headers.get("Last-Modified") or ""
    if known.is_pinned and not (strong_etag(known.etag) and etag):
        # In the end the digest decides; an obviously different version need not be downloaded first.
        return _OTHER_DATE if known.last_modified and last_modified not in {"", known.last_modified} else ""
    if known.etag and not etag:
        return "the server no longer states the version of a part"
    if etag != known.etag:
        return "the file has changed on the server: different ETag"
    if strong_etag(etag) or (known.last_modified and last_modified == known.last_modified):
        return ""
    return _OTHER_DATE if known.last_modified and last_modified else _UNKNOWN_VERSION


def _judge_refused_range(ask: RangeRequest, known: ExpectedContent, answer: RangeResponse) -> ResponseVerdict:
    if answer.status == 412:
        return DownloadRestart(why="the file has changed on the server (412)")
    size_bytes = known.partial_size_bytes if known.size_bytes is None else known.size_bytes
    if ask.offset == size_bytes:
        return DownloadComplete(why="the server has no more bytes (416)")
    return DownloadRestart(why=f"the server has no byte {ask.offset} (416)")


def _judge_status(known: ExpectedContent, answer: RangeResponse, now_s: float) -> ResponseVerdict:
    status = answer.status
    is_named = not known.label or known.label == _name(known)
    where = shown(known.url) if is_named else f"{shown(known.url)} ({known.label})"
    if answer.is_elsewhere and status in _STALE_LINK:
        # A signed link has expired: the first server returns a new one.
        kind = NotOnServer if status in GONE else NetworkFailed
        return RetryableResponse(error=kind(f"redirect target of {where} refused ({status})", status=status))
    if is_busy(status):
        return _judge_busy(known, answer, where, now_s)
    if status < 400:
        return RetryableResponse(error=BadAnswer(f"unexpected status {status}: {where}", status=status))
    return FatalResponse(error=refusal(where, status, answer.headers))


def _judge_busy(known: ExpectedContent, answer: RangeResponse, where: str, now_s: float) -> ResponseVerdict:
    wait_s = retry_after_s(answer.headers, now_s=now_s, longest_s=known.longest_retry_after_s)
    if answer.status == 429 and wait_s is None:
        wait_s = RATE_LIMIT_PAUSE_S
    return RetryableResponse(error=refusal(where, answer.status, answer.headers), wait_s=wait_s)


def _coding_fault(headers: Headers) -> str:
    for name in ("Content-Encoding", "Transfer-Encoding"):
        words = {word.strip().lower() for value in headers.all(name) for word in value.split(",")}
        strange = words - {"", "identity"} - ({"chunked"} if name == "Transfer-Encoding" else set())
        if strange:
            return f"encoding {min(strange)[:40]!r} was not requested"
    return ""


def _wrong_size(known: ExpectedContent, length: int | None) -> HashMismatch:
    return HashMismatch(
        f"the server offers {length} bytes, {known.size_bytes} are expected: {known.label or shown(known.url)}",
        hint="the server has another file there, or sends a page instead (login page, message of a proxy)",
        expected_bytes=known.size_bytes,
        offered_bytes=length,
    )


def _bad(known: ExpectedContent, fault: str, **data: str) -> BadAnswer:
    hint = "the server or a proxy sends invalid responses"
    return BadAnswer(f"unusable response: {fault}: {shown(known.url)}", hint=hint, **data)
