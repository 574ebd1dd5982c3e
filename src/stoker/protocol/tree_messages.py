"""Trees of code and data in transfer: trees and files by their digests, the machines that have them, and packs.

A tree's listing has path, mode, size and digest of every file; the tree's own digest is that of the listing, so it
verifies all the rest. Small files are sent together, in packs of frames; large ones as uploads and ranges. A frame is a
digest (32 bytes), a size (8 bytes, big-endian) and the bytes; a reader returns only files whose bytes have the digest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

from pydantic import Field

from stoker.core.digests import Digest, digest_bytes
from stoker.core.errors import BadInput, HashMismatch
from stoker.protocol.codec import WireMessage
from stoker.protocol.job_messages import JobId
from stoker.protocol.lease_messages import Count, Name

MOST_DIGESTS = 10_000
"""In one request."""
MOST_LISTING_BYTES = 128 << 20
"""Of one tree."""
PACKED_BYTES = 1 << 20
"""Files up to this size are sent in packs."""
PACK_BYTES = 8 << 20
"""Size of one pack, with its frames."""

Digests = Annotated[tuple[JobId, ...], Field(max_length=MOST_DIGESTS)]


class DigestsRequest(WireMessage):
    """Files by digest: which are missing, or which to send."""

    digests: Digests
    sizes: Annotated[tuple[Count, ...], Field(max_length=MOST_DIGESTS)] = ()
    """Sizes of files that may be sent soon, one per digest: refused before any byte is sent if there is no space."""


class TreeRequest(WireMessage):
    """Announce that a tree is needed: the coordinator keeps it, or says whether it may be sent."""

    files: Count = 0
    size_bytes: Count = 0


class MissingDigests(WireMessage):
    """The requested files that are missing."""

    digests: tuple[str, ...]


class PackResponse(WireMessage):
    """How many files of a pack were stored."""

    kept: Count
    known: Count = 0


class TreeView(WireMessage):
    """A tree, and whether the coordinator has all of it."""

    tree: str
    files: Count
    size_bytes: Count
    is_here: bool = True
    held_by: tuple[str, ...] = ()
    """The machines that have it too."""


class PassRequest(WireMessage):
    """An object or a part of one is about to be sent to the object store."""

    size_bytes: Count


class PassView(WireMessage):
    """A presigned URL for one object or part; valid for minutes, with one method."""

    digest: str
    size_bytes: Count
    url: str
    headers: dict[str, str] = {}
    """To be sent as they are."""


class PassResponse(WireMessage):
    """Passes for the requested bytes."""

    is_direct: bool
    """False: the bytes go through the coordinator."""
    passes: tuple[PassView, ...] = ()
    """To send: one; none if the bytes are there, or are more than a part. To fetch: one for each part, in order."""
    is_known: bool = False
    """The whole object is stored: nothing has to be sent."""
    part_bytes: Count = 0
    """Maximum size of a part."""


class PartsRequest(WireMessage):
    """An object was sent by passes: the parts of it, in order."""

    parts: Annotated[tuple[tuple[JobId, Count], ...], Field(min_length=1, max_length=1 << 20)]


class PartsResponse(WireMessage):
    """Whether the object is stored."""

    missing: tuple[str, ...] = ()
    """Parts that are not there; the object is not stored then."""


class SourcesRequest(WireMessage):
    """A worker is about to fetch trees and needs their sources."""

    worker: Name
    trees: Annotated[tuple[JobId, ...], Field(max_length=100)]
    failed: Annotated[tuple[str, ...], Field(max_length=100)] = ()
    """Sources that did not answer or sent wrong bytes; not used for now."""


class TreeLocation(WireMessage):
    """A source of a tree: a machine of the fleet, or the coordinator itself (no machine)."""

    machine: str = ""
    url: str = ""
    is_partial: bool = False
    """It is still fetching the tree, and serves what it has."""


class TreeSources(WireMessage):
    """The sources of one tree, nearest first; none: not available."""

    tree: str
    places: tuple[TreeLocation, ...] = ()


class SourcesResponse(WireMessage):
    """The sources of each requested tree."""

    trees: tuple[TreeSources, ...]


HEAD_BYTES = 40
_DIGEST_BYTES = 32


def frame(digest: str, data: bytes) -> bytes:
    """Return the frame of one file."""
    return head(digest, len(data)) + data


def head(digest: str, size_bytes: int) -> bytes:
    """Return the header of a frame."""
    return bytes.fromhex(digest) + size_bytes.to_bytes(8, "big")


def read_pack(pack: bytes) -> Iterator[tuple[Digest, bytes]]:
    """Return the files of a pack. Raises `BadInput` if it is truncated, `HashMismatch` if bytes and digest differ."""
    view, at = memoryview(pack), 0

    def read(count: int) -> bytes:
        nonlocal at
        piece = bytes(view[at : at + count])
        at += len(piece)
        return piece

    return read_frames(read)


def read_frames(
    read: Callable[[int], bytes], *, requested: frozenset[str] | None = None
) -> Iterator[tuple[Digest, bytes]]:
    """Yield the files of frames as they arrive. `read` returns at most so many bytes, and b"" only at the end.

    With `requested`, a file that is not among them, or arrives twice, is refused.
    """
    left = None if requested is None else set(requested)
    for count in range(MOST_DIGESTS + 1):
        start = _exactly(read, HEAD_BYTES, may_end=True)
        if not start:
            return
        if count == MOST_DIGESTS:
            raise BadInput(f"pack has more than {MOST_DIGESTS} files")
        digest, size_bytes = Digest(start[:_DIGEST_BYTES].hex()), int.from_bytes(start[_DIGEST_BYTES:], "big")
        if size_bytes > PACKED_BYTES:
            raise BadInput(f"pack has a file of {size_bytes} bytes; the limit is {PACKED_BYTES}")
        if left is not None:
            if digest not in left:
                raise BadInput(f"pack has file {digest[:12]}, which was not requested")
            left.discard(digest)
        data = _exactly(read, size_bytes)
        if (found := digest_bytes(data)) != digest:
            raise HashMismatch(
                f"file {digest[:12]} of a pack has sha256 {found[:12]}",
                hint="send the pack again; nothing of this file was stored",
                expected=digest,
                found=found,
            )
        yield digest, data


def in_packs(files: Iterable[tuple[str, int]]) -> Iterator[list[str]]:
    """Group small files (digest, size) into packs, in their order."""
    pack: list[str] = []
    packed_bytes = 0
    for digest, size_bytes in files:
        framed_bytes = HEAD_BYTES + size_bytes
        if pack and (packed_bytes + framed_bytes > PACK_BYTES or len(pack) >= MOST_DIGESTS):
            yield pack
            pack, packed_bytes = [], 0
        pack.append(digest)
        packed_bytes += framed_bytes
    if pack:
        yield pack


def _exactly(read: Callable[[int], bytes], count: int, *, may_end: bool = False) -> bytes:
    data = read(count) if count else b""
    while len(data) < count:
        more = read(count - len(data))
        if not more:
            if may_end and not data:
                return b""
            raise BadInput("pack is truncated in the middle of a file")
        data += more
    return data
