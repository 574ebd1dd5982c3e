"""Where everything of a store lies on disk. The only file that knows.

A Stoker that lays things out differently must use another root: an older one would take what it can't read for damage.
"""

from __future__ import annotations

import os

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
        self.leases = os.path.join(root, "leases")
        self.memo = os.path.join(root, "memo.db")

    def make(self) -> None:
        """Create the folders that are missing."""
        with translated(self.root):
            for folder in (
                self.blobs, self.records, self.staging, self.views, self.quarantine, self.pins, self.leases
            ):  # fmt: skip
                os.makedirs(folder, exist_ok=True)

    def blob(self, digest: Digest) -> str:
        return f"{self.blobs}/{digest[0]}/{digest}"

    def record(self, key: Digest) -> str:
        return f"{self.records}/{key[0]}/{key}"

    def view(self, digest: Digest) -> str:
        return f"{self.views}/{digest}"
