"""The one seam for "where objects live": bytes under their plain SHA-256.

Every implementation promises, and `tests/contract/test_objects.py` holds it to that: nothing is seen under a digest but
the bytes that have it; what can't be finished leaves nothing under the name; equal objects may be put by many at once;
what is open stays whole while it is removed. It knows no records: whoever removes an object knows that nobody names it.

A text that is not a digest is `BadInput` everywhere, before it touches anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import BinaryIO, Protocol

from stoker.model.digests import Digest
from stoker.model.frozen import frozen


class PutOutcome(StrEnum):
    """What putting an object changed."""

    NEW = "new"
    KNOWN = "known"
    """It was there, whole, and is young again."""


class Condition(StrEnum):
    """What reading every byte of an object showed."""

    WHOLE = "whole"
    MISSING = "missing"
    DAMAGED = "damaged"
    """It had other bytes than its name says; they are set aside, and a new put repairs it."""


@frozen
class Stored:
    """One object that is there."""

    digest: Digest
    size_bytes: int
    touched_s: float
    """When it was last put, as seconds since 1970."""


@frozen
class Upload:
    """An object on its way in, over as many connections and processes as it takes."""

    id: str
    digest: Digest
    size_bytes: int
    offset: int
    """How many of its bytes have come to stay: the next `append` begins here."""
    owner: str = ""
    """Who began it, as they were named then. Whoever lets others in holds them to their own."""


class ObjectStore(Protocol):
    """Objects by digest. Safe to use from several threads and processes at once."""

    def size(self, digest: Digest) -> int | None:
        """Give an object's size in bytes, or nothing if it is not there."""

    def open(self, digest: Digest, *, start: int = 0, length: int | None = None) -> BinaryIO:
        """Open an object, or a range of it, to be read and closed by the caller.

        `NotFound` if it is not there. `BadInput` if it does not reach to `start`; a range may be longer than the rest.
        """

    def put(self, digest: Digest, stream: BinaryIO, *, size_bytes: int | None = None) -> PutOutcome:
        """Take an object in, durable on return. The stream is not read if the object is known.

        `HashMismatch` if the bytes (or their count, where it is given) are others. Whatever ends it, nothing half is
        left behind.
        """

    def put_all(self, objects: Iterable[tuple[str, bytes]]) -> int:
        """Take small objects in, together, durable on return; say how many were new.

        `HashMismatch` if one has other bytes than its digest says: none of them is kept then.
        """

    def begin(self, digest: Digest, size_bytes: int, *, owner: str = "") -> Upload:
        """Begin an upload that may be interrupted, or end with its process, and be gone on with."""

    def upload(self, upload_id: str) -> Upload:
        """Say how far an upload is. `NotFound` if there is none: never begun, finished, or swept."""

    def append(self, upload_id: str, offset: int, stream: BinaryIO) -> Upload:
        """Add bytes to an upload. What came stays, also if the stream breaks and its error is raised.

        A power cut may take the last of a long stream of large pieces; `upload` says what is left.

        `Refused` if `offset` is not where the upload is, `LockHeld` if somebody else adds to it now, `BadInput` if more
        comes than was announced: the upload stays where it was.
        """

    def finish(self, upload_id: str) -> PutOutcome:
        """Check an upload and give it its name. An object that is known by now needs no more bytes.

        `Refused` if bytes are missing. `HashMismatch` if they are the wrong ones; the upload is gone then.
        """

    def abandon(self, upload_id: str) -> bool:
        """Drop an upload. False if there is none."""

    def stale_uploads(self, *, grace_s: float) -> tuple[str, ...]:
        """Say to which uploads nobody has added anything for so long."""

    def sweep_uploads(self, *, grace_s: float) -> tuple[str, ...]:
        """Drop stale uploads, except those to which somebody adds just now, and say which."""

    def list(self) -> Iterator[Stored]:
        """Give all objects, in the order of their digests; one that comes or goes meanwhile may be among them."""

    def remove(self, digest: Digest, *, grace_s: float = 0.0) -> bool:
        """Remove an object that nobody has put for so long. False if it stays, or is not there."""

    def verify(self, digest: Digest) -> Condition:
        """Read every byte of an object again. A damaged one is set aside: no longer served, and not lost."""
