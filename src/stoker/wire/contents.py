"""Code and data on their way: trees by their digest, files by theirs, and who has them.

A tree's listing says path, mode, size and digest of every file; the tree's own digest is made from it, so whoever has
the digest can check all the rest. Small files travel together, in packs of frames; large ones as uploads and ranges.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from stoker.wire.leasing import Count, Name
from stoker.wire.orders import JobId
from stoker.wire.protocol import Message

MOST_DIGESTS = 10_000
"""In one question."""
MOST_LISTING_BYTES = 128 << 20
"""Of one tree."""
PACKED_BYTES = 1 << 20
"""Files up to this size travel in packs."""
PACK_BYTES = 8 << 20
"""One pack, frames and all: for each file its digest (32 bytes), its size (8 bytes, big-endian), its bytes."""

Digests = Annotated[tuple[JobId, ...], Field(max_length=MOST_DIGESTS)]


class DigestsAsk(Message):
    """Which of these are not there; or: send these."""

    digests: Digests
    sizes: Annotated[tuple[Count, ...], Field(max_length=MOST_DIGESTS)] = ()
    """Of those that may be sent soon, as many as digests: what has no room is refused before a byte of it flows."""


class TreeAsk(Message):
    """A tree is wanted: keep it if it is there, or say whether it may come."""

    files: Count = 0
    size_bytes: Count = 0


class Missing(Message):
    """Of files that were asked about, those that are not there."""

    digests: tuple[str, ...]


class PackKept(Message):
    """What came of a pack."""

    kept: Count
    known: Count = 0


class TreeView(Message):
    """A tree, and whether the coordinator has it whole."""

    tree: str
    files: Count
    size_bytes: Count
    is_here: bool = True
    held_by: tuple[str, ...] = ()
    """The machines that have it too."""


class SourcesAsk(Message):
    """A worker is about to bring trees here: from where?"""

    worker: Name
    trees: Annotated[tuple[JobId, ...], Field(max_length=100)]
    failed: Annotated[tuple[str, ...], Field(max_length=100)] = ()
    """Places that did not answer, or sent something else: not again for now."""


class Place(Message):
    """Where a tree can be had: a machine of the fleet, or the coordinator itself (no machine)."""

    machine: str = ""
    url: str = ""
    is_partial: bool = False
    """It is still bringing it, and passes on what has come."""


class TreeSources(Message):
    """Where to get one tree, nearest first; none: nobody has it."""

    tree: str
    places: tuple[Place, ...] = ()


class Sources(Message):
    """The answer, tree by tree."""

    trees: tuple[TreeSources, ...]
