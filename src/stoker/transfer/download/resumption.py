"""How a download resumes: what to do with a partial file, and which bytes to request. Pure decisions, with reasons.

Bytes are added only to bytes of the same version. A version is pinned by its digest if that is known, otherwise by a
validator of the same URL. A partial file that may be of another version is discarded.
"""

from __future__ import annotations

from enum import StrEnum

from stoker.core.frozen import frozen
from stoker.host.http.exchange import Request, shown
from stoker.transfer.download.partial import Sidecar
from stoker.transfer.download.types import DownloadRequest


class ResumeAction(StrEnum):
    """What to do with the existing bytes."""

    FRESH = "fresh"
    """No bytes exist: download from the start."""
    RESUME = "resume"
    """Download from an offset on."""
    FINISH = "finish"
    """All bytes exist: verify them and rename the file."""
    RESTART = "restart"
    """The existing bytes are unusable: discard them and download from the start."""


@frozen
class Resumption:
    """What to do with a partial file, and why. Bytes from `offset` on are not trusted."""

    move: ResumeAction
    offset: int = 0
    why: str


@frozen
class RangeRequest:
    """The bytes to request: from an offset on, with an optional validator."""

    offset: int = 0
    if_range: str = ""
    """The validator of the existing bytes; without it a server may send the rest of another version."""


def decide_partial(
    wanted: DownloadRequest, length: int | None, sidecar: Sidecar | str | None, *, boot_id: str
) -> Resumption:
    """Decide how to use a partial file of this length; None: no partial file. A text is the fault of its sidecar."""
    if length is None:
        return Resumption(move=ResumeAction.FRESH, why="no partial file")
    if sidecar is None or isinstance(sidecar, str):
        why = sidecar or "the partial file has no record of its version"
        return Resumption(move=ResumeAction.RESTART, why=why)
    stranger = _why_another_version(wanted, sidecar)
    if stranger:
        return Resumption(move=ResumeAction.RESTART, why=stranger)
    size_bytes = sidecar.size_bytes if wanted.size_bytes is None else wanted.size_bytes
    if size_bytes is None:
        return Resumption(move=ResumeAction.RESTART, why="size unknown: its end can't be detected")
    if length > size_bytes:
        return Resumption(
            move=ResumeAction.RESTART, why=f"the partial file has {length} bytes, the whole only {size_bytes}"
        )
    return _decide_by_length(length, size_bytes, sidecar, boot_id)


def ask_for(wanted: DownloadRequest, sidecar: Sidecar | None, offset: int) -> RangeRequest:
    """Return the request for the bytes from an offset on, of the version in a sidecar."""
    if offset == 0 or sidecar is None or sidecar.url != shown(wanted.url):
        # Validators of another server mean nothing here; a digest pins the version then.
        return RangeRequest(offset=offset)
    return RangeRequest(offset=offset, if_range=sidecar.condition)


def request_for(wanted: DownloadRequest, ask: RangeRequest) -> Request:
    """Return the HTTP request."""
    headers = dict(wanted.headers)
    if ask.offset:
        headers["Range"] = f"bytes={ask.offset}-"
        if ask.if_range:
            headers["If-Range"] = ask.if_range
    return Request(url=wanted.url, headers=headers)


def digests_match(wanted: DownloadRequest, sha256: str, git_sha1: str) -> bool:
    """Return True if these digests are the requested ones, or none is requested."""
    return (wanted.sha256 is None or wanted.sha256.lower() == sha256) and (
        not wanted.git_sha1 or wanted.git_sha1.lower() == git_sha1
    )


def _decide_by_length(length: int, size_bytes: int, sidecar: Sidecar, boot_id: str) -> Resumption:
    offset, lost = length, ""
    if not boot_id or sidecar.boot_id != boot_id:
        offset = min(length, sidecar.durable_bytes)
        lost = f"; {length - offset} bytes are not trusted: the machine was restarted" if offset < length else ""
    if offset == size_bytes:
        return Resumption(move=ResumeAction.FINISH, offset=offset, why="all bytes are there")
    if offset == 0:
        return Resumption(move=ResumeAction.RESTART, why=f"no durable bytes{lost}")
    return Resumption(move=ResumeAction.RESUME, offset=offset, why=f"{offset} of {size_bytes} bytes are there{lost}")


def _why_another_version(wanted: DownloadRequest, sidecar: Sidecar) -> str:
    sha256 = (wanted.sha256 or "").lower()
    pairs = (
        ("size", wanted.size_bytes, sidecar.size_bytes),
        ("sha256", sha256, sidecar.sha256),
        ("git sha1", wanted.git_sha1.lower(), sidecar.git_sha1),
    )
    for name, now, then in pairs:
        if now not in {None, ""} and then not in {None, ""} and now != then:
            return f"the partial file is of another version: its {name} was to be {then}, now {now}"
    is_same_digest = bool((sha256 and sha256 == sidecar.sha256) or (wanted.git_sha1 and sidecar.git_sha1))
    return "" if is_same_digest else _why_not_known(wanted, sidecar)


def _why_not_known(wanted: DownloadRequest, sidecar: Sidecar) -> str:
    """Return why no validator proves the version of a partial file; empty if one does."""
    if sidecar.url != shown(wanted.url):
        return "the partial file is from another URL"
    if wanted.sha256 is None and not wanted.git_sha1 and (sidecar.sha256 or sidecar.git_sha1):
        # Bytes collected under a digest may be of several versions, which only the digest detects.
        return "the partial file was assembled for a digest that is no longer requested"
    if sidecar.commit != wanted.commit:
        return f"the partial file is of commit {sidecar.commit or 'unknown'}, not {wanted.commit or 'unknown'}"
    if not sidecar.has_validator:
        return "the server may no longer have the version of the partial file"
    return ""
