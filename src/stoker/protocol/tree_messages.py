"""Packs: small files that travel together. A frame is a digest (32 bytes), a size (8 bytes, big-endian), the bytes.

Whoever takes one apart is given each file only if its bytes have the digest that they came under.
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

# Code and data on their way: trees by their digest, files by theirs, and who has them.
#
# A tree's listing says path, mode, size and digest of every file; the tree's own digest is made from it, so whoever has
# the digest can check all the rest. Small files travel together, in packs of frames; large ones as uploads and ranges.

MOST_DIGESTS = 10_000
"""In one question."""
MOST_LISTING_BYTES = 128 << 20
"""Of one tree."""
PACKED_BYTES = 1 << 20
"""Files up to this size travel in packs."""
PACK_BYTES = 8 << 20
"""One pack, frames and all: for each file its digest (32 bytes), its size (8 bytes, big-endian), its bytes."""

Digests = Annotated[tuple[JobId, ...], Field(max_length=MOST_DIGESTS)]


class DigestsRequest(WireMessage):
    """Which of these are not there; or: send these."""

    digests: Digests
    sizes: Annotated[tuple[Count, ...], Field(max_length=MOST_DIGESTS)] = ()
    """Of those that may be sent soon, as many as digests: what has no room is refused before a byte of it flows."""


class TreeRequest(WireMessage):
    """A tree is wanted: keep it if it is there, or say whether it may come."""

    files: Count = 0
    size_bytes: Count = 0


class MissingDigests(WireMessage):
    """Of files that were asked about, those that are not there."""

    digests: tuple[str, ...]


class PackResponse(WireMessage):
    """What came of a pack."""

    kept: Count
    known: Count = 0


class TreeView(WireMessage):
    """A tree, and whether the coordinator has it whole."""

    tree: str
    files: Count
    size_bytes: Count
    is_here: bool = True
    held_by: tuple[str, ...] = ()
    """The machines that have it too."""


class SourcesRequest(WireMessage):
    """A worker is about to bring trees here: from where?"""

    worker: Name
    trees: Annotated[tuple[JobId, ...], Field(max_length=100)]
    failed: Annotated[tuple[str, ...], Field(max_length=100)] = ()
    """Places that did not answer, or sent something else: not again for now."""


class TreeLocation(WireMessage):
    """Where a tree can be had: a machine of the fleet, or the coordinator itself (no machine)."""

    machine: str = ""
    url: str = ""
    is_partial: bool = False
    """It is still bringing it, and passes on what has come."""


class TreeSources(WireMessage):
    """Where to get one tree, nearest first; none: nobody has it."""

    tree: str
    places: tuple[TreeLocation, ...] = ()


class SourcesResponse(WireMessage):
    """The answer, tree by tree."""

    trees: tuple[TreeSources, ...]


HEAD_BYTES = 40
_DIGEST_BYTES = 32


def frame(digest: str, data: bytes) -> bytes:
    """Return the frame of one file."""
    return head(digest, len(data)) + data


def head(digest: str, size_bytes: int) -> bytes:
    """Return what stands before a file's bytes."""
    return bytes.fromhex(digest) + size_bytes.to_bytes(8, "big")


def read_pack(pack: bytes) -> Iterator[tuple[Digest, bytes]]:
    """Take a pack apart. `BadInput` if it is torn, `HashMismatch` if a file's bytes are others."""
    view, at = memoryview(pack), 0

    def read(count: int) -> bytes:
        nonlocal at
        piece = bytes(view[at : at + count])
        at += len(piece)
        return piece

    return read_frames(read)


def read_frames(
    read: Callable[[int], bytes], *, wanted: frozenset[str] | None = None
) -> Iterator[tuple[Digest, bytes]]:
    """Take frames apart as they come. `read` gives at most so many bytes, and nothing only at the end.

    With `wanted`, a file that was not asked for, or comes twice, is refused.
    """
    left = None if wanted is None else set(wanted)
    for count in range(MOST_DIGESTS + 1):
        start = _exactly(read, HEAD_BYTES, may_end=True)
        if not start:
            return
        if count == MOST_DIGESTS:
            raise BadInput(f"a pack of more than {MOST_DIGESTS} files")
        digest, size_bytes = Digest(start[:_DIGEST_BYTES].hex()), int.from_bytes(start[_DIGEST_BYTES:], "big")
        if size_bytes > PACKED_BYTES:
            raise BadInput(f"a file of {size_bytes} bytes in a pack: {PACKED_BYTES} are the most")
        if left is not None:
            if digest not in left:
                raise BadInput(f"a pack has file {digest[:12]}, which nobody asked for")
            left.discard(digest)
        data = _exactly(read, size_bytes)
        if (found := digest_bytes(data)) != digest:
            raise HashMismatch(
                f"file {digest[:12]} of a pack has other bytes (sha256 {found[:12]})",
                hint="send it again; nothing was kept",
                expected=digest,
                found=found,
            )
        yield digest, data


def in_packs(files: Iterable[tuple[str, int]]) -> Iterator[list[str]]:
    """Part small files (digest, size) into packs, in their order."""
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
            raise BadInput("a pack ends in the middle of a file")
        data += more
    return data
