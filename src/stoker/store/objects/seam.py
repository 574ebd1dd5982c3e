"""Objects: bytes under their plain SHA-256, each of them once, wherever they are stored.

Guarantees (`tests/contract/test_objects.py`): nothing is visible under a digest but the bytes that have it; an
interrupted write leaves nothing under the name; equal objects may be put concurrently; an open object stays whole while
it is removed. It knows no records: the caller removes an object only if no record names it. A text that is not a digest
is `BadInput` everywhere, before it touches anything.

`size` is cheap and never waits for a network: the queue's writer calls it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import BinaryIO, Protocol

from stoker.core.digests import Digest, digest_bytes, is_digest
from stoker.core.errors import BadInput, HashMismatch, NotFound
from stoker.core.frozen import frozen


class PutOutcome(StrEnum):
    """Result of a put."""

    NEW = "new"
    KNOWN = "known"
    """It was there, whole, and is young again."""


class Condition(StrEnum):
    """Result of reading every byte of an object."""

    WHOLE = "whole"
    MISSING = "missing"
    DAMAGED = "damaged"
    """It had other bytes than its name; they are set aside, and a new put repairs it."""


@frozen
class StoredObject:
    """One existing object."""

    digest: Digest
    size_bytes: int
    touched_s: float
    """When it was last put, as seconds since 1970."""


@frozen
class Upload:
    """An upload of an object, over any number of connections and processes."""

    id: str
    digest: Digest
    size_bytes: int
    offset: int
    """Number of bytes received and kept: the next `append` starts here."""
    owner: str = ""
    """The name of the client that began it. The caller checks it."""


class Objects(Protocol):
    """Objects by digest, and uploads that become objects. Thread-safe."""

    def size(self, digest: Digest) -> int | None:
        """Return an object's size in bytes, or nothing if it is not there."""

    def open(self, digest: Digest, *, start: int = 0, length: int | None = None) -> BinaryIO:
        """Open an object, or a range of it. Caller closes.

        `NotFound` if it is not there. `BadInput` if it is shorter than `start`; a range may be longer than the rest.
        """

    def put(self, digest: Digest, stream: BinaryIO, *, size_bytes: int | None = None) -> PutOutcome:
        """Put an object, durable on return. The stream is not read if the object is known.

        `HashMismatch` if the bytes (or their number, if given) differ. In every case nothing partial is left
        behind.
        """

    def put_all(self, objects: Iterable[tuple[str, bytes]]) -> int:
        """Put small objects together, durable on return; return how many were new.

        `HashMismatch` if one has other bytes than its digest: none of them is kept then.
        """

    def list(self) -> Iterator[StoredObject]:
        """Return all objects, in the order of their digests; concurrent changes may be among them."""

    def remove(self, digest: Digest, *, grace_s: float = 0.0) -> bool:
        """Remove an object that was not put for so long. Returns False if it stays, or is not there."""

    def verify(self, digest: Digest) -> Condition:
        """Read every byte of an object again. A damaged one is no longer served."""

    def begin(self, digest: Digest, size_bytes: int, *, owner: str = "") -> Upload:
        """Begin an upload that may be interrupted, or end with its process, and be continued."""

    def upload(self, upload_id: str) -> Upload:
        """Return the state of an upload. `NotFound` if there is none: never begun, finished, or swept."""

    def append(self, upload_id: str, offset: int, stream: BinaryIO) -> Upload:
        """Append bytes to an upload. Received bytes stay, also if the stream breaks and its error is raised."""

    def finish(self, upload_id: str) -> PutOutcome:
        """Check an upload and name it. An object that is known by now needs no more bytes."""

    def abandon(self, upload_id: str) -> bool:
        """Delete an upload. Returns False if there is none."""

    def stale_uploads(self, *, grace_s: float) -> tuple[str, ...]:
        """Return the uploads that have been idle for so long."""

    def sweep_uploads(self, *, grace_s: float) -> tuple[str, ...]:
        """Delete stale uploads, except those to which a process appends now, and return them."""


def wrong_bytes(digest: Digest, found: Digest, came_bytes: int, size_bytes: int | None) -> HashMismatch:
    """Return the error for bytes that do not have their digest or size."""
    of_how_many = f" of {size_bytes}" if size_bytes is not None and size_bytes != came_bytes else ""
    return HashMismatch(
        f"object {digest[:12]}: other bytes received ({came_bytes}{of_how_many} bytes, sha256 {found[:12]})",
        hint="send it again; nothing was kept",
        expected=digest,
        found=found,
        size_bytes=came_bytes,
    )


def not_here(digest: Digest) -> NotFound:
    """Return the error for an object that is not there."""
    return NotFound(f"no object {digest[:12]} here", digest=digest)


def check_digest(digest: str) -> None:
    """Raise `BadInput` for a text that is not a digest."""
    if not is_digest(digest):
        raise BadInput(f"not a digest: {digest[:80]!r}", hint="it is written as 64 lower-case hex digits")


def checked(objects: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    """Return small objects by their digests. Raises `HashMismatch` if one has other bytes than its digest."""
    wanted = dict(objects)
    for name, data in wanted.items():
        check_digest(name)
        if (found := digest_bytes(data)) != name:
            raise wrong_bytes(Digest(name), found, len(data), None)
    return wanted
