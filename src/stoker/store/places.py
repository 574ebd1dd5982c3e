"""Where everything of a store lies on disk. The only file that knows.

A Stoker that lays things out differently must use another root: an older one would take what it can't read for damage.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from stoker.host.durable import translated
from stoker.model.digests import Digest


class Places:
    """Paths below one store root. All on one file system, since names are given by rename."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.blobs = os.path.join(root, "blobs")
        self.records = os.path.join(root, "records")
        self.staging = os.path.join(root, "staging")
        self.views = os.path.join(root, "views")
        self.quarantine = os.path.join(root, "quarantine")
        self.pins = os.path.join(root, "pins")
        self.refs = os.path.join(root, "refs")
        self.index = os.path.join(root, "index.jsonl")
        self.uploads = os.path.join(root, "uploads")
        self.incoming = os.path.join(root, "incoming")
        """Trees on their way here from other machines: their listings, and large files that grow."""
        self.held = os.path.join(root, "held")
        """A mark for each tree that came, and that other machines may get from here."""
        self.leases = os.path.join(root, "leases")
        self.memo = os.path.join(root, "memo.db")

    def make(self) -> None:
        """Create the folders that are missing."""
        with translated(self.root):
            for folder in (
                self.blobs, self.records, self.staging, self.views, self.quarantine, self.pins, self.refs, self.leases
            ):  # fmt: skip
                os.makedirs(folder, exist_ok=True)

    def blob_files(self) -> Iterator[tuple[str, str]]:
        """Give the name and the path of every file among the blobs, in the order of their names.

        A name that is no digest is no blob, and may be there all the same; what comes or goes meanwhile may be given.
        """
        for shard in _names(self.blobs):
            for name in _names(f"{self.blobs}/{shard}"):
                yield name, f"{self.blobs}/{shard}/{name}"

    def blob(self, digest: Digest) -> str:
        return f"{self.blobs}/{digest[0]}/{digest}"

    def record(self, key: Digest) -> str:
        return f"{self.records}/{key[0]}/{key}"

    def upload(self, upload_id: str) -> str:
        return f"{self.uploads}/{upload_id}"

    def view(self, digest: Digest) -> str:
        return f"{self.views}/{digest}"


def names_in(folder: str) -> list[str]:
    """Give the names in a folder, sorted; none if there is no such folder."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _names(folder: str) -> list[str]:
    with translated(folder):
        return names_in(folder)
