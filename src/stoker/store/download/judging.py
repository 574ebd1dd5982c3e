"""What an answer means: taken, taken from the start, asked again in another way, waited for, or refused.

Pure, and suspicious: a body is only taken where its head says exactly which bytes of which version it holds. An answer
that contradicts itself or what is known is never repaired by guessing.
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from stoker.host.http.addresses import shown
from stoker.host.http.exchange import Headers
from stoker.model.errors import BadAnswer, HashMismatch, NetworkFailed, NotOnServer, StokerError
from stoker.model.frozen import frozen
from stoker.store.download.content_range import ContentRange, read_content_range
from stoker.store.download.deciding import Ask
from stoker.store.download.heads import is_date_exact, length_of
from stoker.store.download.refusing import GONE, is_busy, refusal
from stoker.store.download.retrying import RATE_LIMIT_PAUSE_S, retry_after_s
from stoker.store.download.sidecar import strong_etag

_PAGES = frozenset({"text/html", "application/xhtml+xml"})
_PAGE_NAMES = (".html", ".htm", ".xhtml", ".xht", ".shtml")
_OTHER_DATE = "the file has changed on the server: its date is another"
_UNKNOWN_VERSION = "the server does not say which version it sends a part of"
_STALE_LINK = frozenset({400, 401, 403, 404, 410})


@frozen
class Known:
    """What is known beforehand of the bytes that were asked for."""

    label: str
    url: str
    size_bytes: int | None = None
    """Of the wanted file, from whoever listed it: an answer that differs is wrong."""
    partial_size_bytes: int | None = None
    """Of the version that the partial file is of, as its server said."""
    etag: str = ""
    """Of that version, as this server said, weak or strong."""
    last_modified: str = ""
    """Of that version, where it can tell two versions apart."""
    is_pinned: bool = False
    """Whether a digest is known, so that bytes of another version could not pass in the end."""
    longest_retry_after_s: float = 3600.0


@frozen
class Answer:
    """The head of an answer; `is_elsewhere`: redirects led to another server than the one that was asked."""

    status: int
    headers: Headers
    is_elsewhere: bool = False


@frozen
class Take:
    """The body holds the bytes from `offset` to the end; from 0 though a rest was asked for: start over with it."""

    offset: int
    size_bytes: int | None
    """Of the whole file, if anybody said."""
    etag: str = ""
    """As the server says it, weak or strong."""
    last_modified: str = ""
    is_date_exact: bool = False
    """Whether no other version can have the same date."""
    why: str


@frozen
class AskPlainly:
    """Ask for the same bytes once more, without a condition."""

    why: str


@frozen
class StartOver:
    """Throw away what is there and ask for everything."""

    why: str


@frozen
class AllThere:
    """Nothing is left to be fetched: check what is there."""

    why: str


@frozen
class TryAgain:
    """Ask again after a while; once patience is at its end, raise `error`."""

    error: StokerError
    wait_s: float | None = None
    """What the server asks for, if it does."""


@frozen
class Refuse:
    """Raise `error`: asking again is no use."""

    error: StokerError


Verdict = Take | AskPlainly | StartOver | AllThere | TryAgain | Refuse


def judge(ask: Ask, known: Known, answer: Answer, *, now_s: float) -> Verdict:
    """Say what the answer to a request means. `now_s` is the wall time, for a server without a clock of its own."""
    if answer.status in {200, 206}:
        fault = _coding_fault(answer.headers)
        if fault:
            return TryAgain(error=_bad(known, fault))
        if answer.status == 200 and (fault := _whole_fault(answer.headers)):
            return StartOver(why=fault) if ask.offset else TryAgain(error=_bad(known, fault))
        return _judge_whole(ask, known, answer.headers) if answer.status == 200 else _judge_part(ask, known, answer)
    if answer.status in {412, 416} and ask.offset:
        return _judge_refused_range(ask, known, answer)
    return _judge_status(known, answer, now_s)


def _judge_whole(ask: Ask, known: Known, headers: Headers) -> Verdict:
    length = length_of(headers)
    if isinstance(length, str):
        return TryAgain(error=_bad(known, length))
    etag, last_modified = headers.get("ETag") or "", headers.get("Last-Modified") or ""
    if known.size_bytes is not None and length not in {None, known.size_bytes}:
        return TryAgain(error=_wrong_size(known, length))
    if _is_page_instead(known, headers):
        message = f"the server answered a web page, not {_name(known)}: {shown(known.url)}"
        return Refuse(error=BadAnswer(message, hint="is it a login page?", reason="web_page"))
    if ask.offset and ask.if_range and strong_etag(etag) and etag == known.etag:
        return AskPlainly(why="the server answers a condition with everything although the version is the same")
    if ask.offset and ask.if_range and not (etag or last_modified) and length not in {None, known.partial_size_bytes}:
        fault = f"{length} bytes of no known version where {known.partial_size_bytes} are expected"
        return TryAgain(error=_bad(known, fault, reason="unknown_version"))
    size_bytes = length if known.size_bytes is None else known.size_bytes
    why = "the server sends everything" if not ask.offset else _why_from_start(ask, known, etag)
    return Take(
        offset=0,
        size_bytes=size_bytes,
        etag=etag,
        last_modified=last_modified,
        is_date_exact=is_date_exact(headers),
        why=why,
    )


def _whole_fault(headers: Headers) -> str:
    """Say why an answer that claims to be everything is not: some servers send a part under the wrong status."""
    if _has_several_parts(headers, "byteranges"):
        return "the server calls several parts everything"
    span = read_content_range(headers.all("Content-Range"))
    if span is None or span.first is None or span.last is None:
        return ""
    if span.first == 0 and span.total in {None, span.last + 1}:
        return ""
    return f"the server calls bytes {span.first} to {span.last} everything"


def _has_several_parts(headers: Headers, kind: str = "") -> bool:
    return (headers.get("Content-Type") or "").strip().lower().startswith(f"multipart/{kind}")


def _is_page_instead(known: Known, headers: Headers) -> bool:
    """Whether a page comes where a file was asked for, and nothing that is known of the file would find that out."""
    kind = (headers.get("Content-Type") or "").partition(";")[0].strip().lower()
    is_unknown = not known.is_pinned and known.size_bytes is None
    return is_unknown and kind in _PAGES and not _name(known).lower().endswith(_PAGE_NAMES)


def _name(known: Known) -> str:
    return unquote(urlsplit(known.url).path).rpartition("/")[2] or known.label


def _why_from_start(ask: Ask, known: Known, etag: str) -> str:
    if ask.if_range and etag != known.etag:
        return "the file has changed on the server"
    return "the server does not send parts of it" if not ask.if_range else "the server sends everything"


def _judge_part(ask: Ask, known: Known, answer: Answer) -> Verdict:
    fault = _part_fault(ask, known, answer.headers)
    if fault and ask.offset:
        return StartOver(why=fault)
    if fault:
        return TryAgain(error=_bad(known, fault))
    span = read_content_range(answer.headers.all("Content-Range"))
    total = known.size_bytes if span is None or span.total is None else span.total
    headers = answer.headers
    return Take(
        offset=ask.offset,
        size_bytes=known.partial_size_bytes if total is None else total,
        etag=headers.get("ETag") or known.etag,
        last_modified=headers.get("Last-Modified") or known.last_modified,
        # What counts is how old it was when its first bytes came.
        is_date_exact=bool(known.last_modified) if ask.offset else is_date_exact(headers),
        why=f"the server sends the rest from byte {ask.offset}",
    )


def _part_fault(ask: Ask, known: Known, headers: Headers) -> str:
    """Say why a part can't be added to what is there; nothing if it can."""
    if _has_several_parts(headers):
        return "the server sends several parts where one was asked for"
    span = read_content_range(headers.all("Content-Range"))
    if span is None or span.first is None or span.last is None:
        return "the server does not say which part it sends"
    if span.first != ask.offset:
        return f"the server sends a part from byte {span.first}, not from {ask.offset}"
    length = length_of(headers)
    if length not in {None, span.last - span.first + 1}:
        return f"the server announces {length} bytes for a part of {span.last - span.first + 1}"
    return _end_fault(known, span) or (_version_fault(known, headers) if ask.offset else "")


def _end_fault(known: Known, span: ContentRange) -> str:
    size_bytes = known.partial_size_bytes if known.size_bytes is None else known.size_bytes
    total = size_bytes if span.total is None else span.total
    if total is None or span.last != total - 1:
        return f"the server sends a part that ends at byte {span.last} of {total}"
    if size_bytes is not None and total != size_bytes:
        return f"the server says the file has {total} bytes, {size_bytes} are expected"
    return ""


def _version_fault(known: Known, headers: Headers) -> str:
    """Say why a part may be of another version. That it came on a condition proves nothing: servers ignore those."""
    etag, last_modified = headers.get("ETag") or "", headers.get("Last-Modified") or ""
    if known.is_pinned and not (strong_etag(known.etag) and etag):
        # In the end the digest decides; what is plainly another version need not be fetched first.
        return _OTHER_DATE if known.last_modified and last_modified not in {"", known.last_modified} else ""
    if known.etag and not etag:
        return "the server no longer says which version it sends a part of"
    if etag != known.etag:
        return "the file has changed on the server: its tag is another"
    if strong_etag(etag) or (known.last_modified and last_modified == known.last_modified):
        return ""
    return _OTHER_DATE if known.last_modified and last_modified else _UNKNOWN_VERSION


def _judge_refused_range(ask: Ask, known: Known, answer: Answer) -> Verdict:
    if answer.status == 412:
        return StartOver(why="the file has changed on the server (412)")
    size_bytes = known.partial_size_bytes if known.size_bytes is None else known.size_bytes
    if ask.offset == size_bytes:
        return AllThere(why="the server has nothing beyond what is there (416)")
    return StartOver(why=f"the server has no byte {ask.offset} (416)")


def _judge_status(known: Known, answer: Answer, now_s: float) -> Verdict:
    status = answer.status
    is_named = not known.label or known.label == _name(known)
    where = shown(known.url) if is_named else f"{shown(known.url)} ({known.label})"
    if answer.is_elsewhere and status in _STALE_LINK:
        # A signed link that has run out: the first server gives a new one.
        kind = NotOnServer if status in GONE else NetworkFailed
        return TryAgain(error=kind(f"the link that {where} led to is refused ({status})", status=status))
    if is_busy(status):
        return _judge_busy(known, answer, where, now_s)
    if status < 400:
        return TryAgain(error=BadAnswer(f"the server answers {status} to a plain request: {where}", status=status))
    return Refuse(error=refusal(where, status, answer.headers))


def _judge_busy(known: Known, answer: Answer, where: str, now_s: float) -> Verdict:
    wait_s = retry_after_s(answer.headers, now_s=now_s, longest_s=known.longest_retry_after_s)
    if answer.status == 429 and wait_s is None:
        wait_s = RATE_LIMIT_PAUSE_S
    return TryAgain(error=refusal(where, answer.status, answer.headers), wait_s=wait_s)


def _coding_fault(headers: Headers) -> str:
    for name in ("Content-Encoding", "Transfer-Encoding"):
        words = {word.strip().lower() for value in headers.all(name) for word in value.split(",")}
        strange = words - {"", "identity"} - ({"chunked"} if name == "Transfer-Encoding" else set())
        if strange:
            return f"its body is {min(strange)[:40]!r}-encoded although nobody asked for that"
    return ""


def _wrong_size(known: Known, length: int | None) -> HashMismatch:
    return HashMismatch(
        f"the server offers {length} bytes, {known.size_bytes} are expected: {known.label or shown(known.url)}",
        hint="the server has another file there, or a page in its place (a login page, a proxy's message)",
        expected_bytes=known.size_bytes,
        offered_bytes=length,
    )


def _bad(known: Known, fault: str, **data: str) -> BadAnswer:
    hint = "the server, or a proxy on the way, is broken"
    return BadAnswer(f"an answer that can't be used: {fault}: {shown(known.url)}", hint=hint, **data)
