"""Artifacts as nouns: what a stage made, as kind, digest and tree of files.

A tree is sorted entries. Its digest covers path, executable bit, size and content of each, nothing else: no owner, no
time, no place on disk. Inner symlinks are entries of their own, stored as text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from stoker.model.digests import Digest, digest_value
from stoker.model.frozen import frozen_by_position


@frozen_by_position
class KindRef:
    """The name and version of a kind: what two ends of an edge must agree on."""

    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


@frozen_by_position
class TreeEntry:
    """One file (or inner symlink) of a tree."""

    path: str
    """Relative, `/`-separated, normalised."""
    size_bytes: int
    sha256: Digest
    """Plain SHA-256 of the content; of the target's text for a symlink."""
    executable: bool = False
    link_to: str | None = None


OpenEntry = Callable[[TreeEntry], BinaryIO]
"""Opens a file of a tree, wherever it lies."""


@frozen_by_position
class Tree:
    """Entries sorted by path."""

    entries: tuple[TreeEntry, ...]

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)

    def digest(self) -> Digest:
        """Give the tree's digest."""
        return digest_value(
            "tree",
            [[entry.path, entry.executable, entry.link_to, entry.size_bytes, entry.sha256] for entry in self.entries],
        )

    def below(self, folder: str) -> Tree:
        """Give the part of the tree below a folder, with paths relative to it."""
        prefix = f"{folder}/"
        return Tree(
            tuple(
                TreeEntry(entry.path[len(prefix) :], entry.size_bytes, entry.sha256, entry.executable, entry.link_to)
                for entry in self.entries
                if entry.path.startswith(prefix)
            )
        )


@frozen_by_position
class ArtifactRef:
    """An artifact without its bytes: enough to key on, to check an edge, to find the bytes."""

    kind: KindRef
    digest: Digest
