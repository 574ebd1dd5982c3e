"""What to do with the bytes that an earlier run left, and what to ask for: decided purely, with reasons.

The rule behind all of it: bytes are only ever added to bytes of the same version. A version is pinned by its digest if
that is known, else by a validator of the same url. Whatever can't be shown to be of the version that is wanted is
thrown away, never built upon.
"""

from __future__ import annotations

from enum import StrEnum

from stoker.host.http.addresses import shown
from stoker.host.http.exchange import Request
from stoker.model.frozen import frozen
from stoker.store.download.sidecar import Sidecar
from stoker.store.download.wanted import Wanted


class Move(StrEnum):
    """What to do with what is there."""

    FRESH = "fresh"
    """Nothing is there: fetch from the start."""
    RESUME = "resume"
    """Fetch from an offset on."""
    FINISH = "finish"
    """All bytes are there: check them and give them their name."""
    RESTART = "restart"
    """What is there is of no use: throw it away and fetch from the start."""


@frozen
class Resumption:
    """What to do with a partial file, and why. Bytes from `offset` on are not to be believed."""

    move: Move
    offset: int = 0
    why: str


@frozen
class Ask:
    """What to ask for: the bytes from an offset on, under a validator or not."""

    offset: int = 0
    if_range: str = ""
    """The validator under which the rest is wanted; without it a server may answer with the rest of another version."""


def decide_partial(wanted: Wanted, length: int | None, sidecar: Sidecar | str | None, *, boot_id: str) -> Resumption:
    """Decide what a partial file of this length is good for; `None` is no partial, a text an unreadable sidecar."""
    if length is None:
        return Resumption(move=Move.FRESH, why="nothing is there yet")
    if sidecar is None or isinstance(sidecar, str):
        why = sidecar or "no record says which version the partial file is of"
        return Resumption(move=Move.RESTART, why=why)
    stranger = _why_another_version(wanted, sidecar)
    if stranger:
        return Resumption(move=Move.RESTART, why=stranger)
    size_bytes = sidecar.size_bytes if wanted.size_bytes is None else wanted.size_bytes
    if size_bytes is None:
        return Resumption(move=Move.RESTART, why="its size is not known, so its end could not be recognised")
    if length > size_bytes:
        return Resumption(move=Move.RESTART, why=f"the partial file has {length} bytes, the whole only {size_bytes}")
    return _decide_by_length(length, size_bytes, sidecar, boot_id)


def ask_for(wanted: Wanted, sidecar: Sidecar | None, offset: int) -> Ask:
    """Decide how to ask for the bytes from an offset on, of the version that a sidecar tells of."""
    if offset == 0 or sidecar is None or sidecar.url != shown(wanted.url):
        # Another server's validators mean nothing here; a digest is what pins the version then.
        return Ask(offset=offset)
    return Ask(offset=offset, if_range=sidecar.condition)


def request_for(wanted: Wanted, ask: Ask) -> Request:
    """Write the request."""
    headers = dict(wanted.headers)
    if ask.offset:
        headers["Range"] = f"bytes={ask.offset}-"
        if ask.if_range:
            headers["If-Range"] = ask.if_range
    return Request(url=wanted.url, headers=headers)


def digests_match(wanted: Wanted, sha256: str, git_sha1: str) -> bool:
    """Whether bytes with these digests are those wanted; true if no digest is known beforehand."""
    return (wanted.sha256 is None or wanted.sha256.lower() == sha256) and (
        not wanted.git_sha1 or wanted.git_sha1.lower() == git_sha1
    )


def _decide_by_length(length: int, size_bytes: int, sidecar: Sidecar, boot_id: str) -> Resumption:
    offset, lost = length, ""
    if not boot_id or sidecar.boot_id != boot_id:
        offset = min(length, sidecar.durable_bytes)
        lost = f"; {length - offset} bytes are in doubt since the machine was started anew" if offset < length else ""
    if offset == size_bytes:
        return Resumption(move=Move.FINISH, offset=offset, why="all bytes are there")
    if offset == 0:
        return Resumption(move=Move.RESTART, why=f"no byte of it is certain{lost}")
    return Resumption(move=Move.RESUME, offset=offset, why=f"{offset} of {size_bytes} bytes are there{lost}")


def _why_another_version(wanted: Wanted, sidecar: Sidecar) -> str:
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


def _why_not_known(wanted: Wanted, sidecar: Sidecar) -> str:
    """Say why no validator ties a partial file to what is wanted; nothing if one does."""
    if sidecar.url != shown(wanted.url):
        return "the partial file is from another address"
    if wanted.sha256 is None and not wanted.git_sha1 and (sidecar.sha256 or sidecar.git_sha1):
        # Under a digest bytes may be added that only the digest can vouch for.
        return "the partial file was put together for a digest that nobody asks for now"
    if sidecar.commit != wanted.commit:
        return f"the partial file is of commit {sidecar.commit or 'unknown'}, not {wanted.commit or 'unknown'}"
    if not sidecar.has_validator:
        return "nothing says that the server still has the version that the partial file is of"
    return ""
