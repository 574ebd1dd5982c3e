"""The files that this machine serves to other machines: files by digest, complete or arriving, and listings of trees.

A file that is still arriving is sent as far as it is here, and on as it arrives: the receiver verifies it, as we do.
Only files under their digest in this machine's store, or below `incoming`, are served.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

from stoker.core.clock import Clock
from stoker.core.digests import Digest, is_digest
from stoker.core.errors import NotFound, StokerError
from stoker.core.frozen import frozen
from stoker.host.durable import open_regular, read_regular
from stoker.host.folders import AnchoredFolder
from stoker.protocol.tree_messages import (
    HEAD_BYTES,
    MOST_LISTING_BYTES,
    PACK_BYTES,
    PACKED_BYTES,
)
from stoker.store.archives.archive_members import listing_bytes
from stoker.store.local_store import LocalStore
from stoker.store.objects.local import LocalObjects
from stoker.store.records import Record
from stoker.transfer.download.partial import PART, SIDECAR, Sidecar, read_beside
from stoker.transfer.trees.holdings import named_tree

_REMEMBERED = 64


@frozen
class ServedFile:
    """A file opened for sending. Caller closes."""

    file: BinaryIO
    size_bytes: int
    """Of the complete file; a growing one has fewer so far."""
    is_growing: bool = False


class PeerFiles:
    """The served files of one machine. Thread-safe."""

    def __init__(self, store: LocalStore, *, clock: Clock) -> None:
        self._store = store
        self._objects = LocalObjects(store, clock=clock)
        self._turn = threading.Lock()
        # Small files that are stored in a record and not in a file of their own, of trees that were requested lately.
        self._inline: OrderedDict[str, dict[str, bytes]] = OrderedDict()

    def listing(self, tree: str) -> bytes:
        """Return a tree's listing. Raises `NotFound` if the tree is neither here nor arriving."""
        if is_digest(tree):
            found = named_tree(self._store, tree)
            if found is not None:
                self._remember(found)
                return listing_bytes(found.tree)
            with suppress(OSError):
                return read_regular(os.path.join(self._store.places.incoming, f"{tree}.listing"), MOST_LISTING_BYTES)
        raise NotFound(f"no tree {tree[:12]} here")

    def is_coming(self) -> bool:
        """Return True if any tree is arriving: a missing file may be here soon."""
        try:
            with os.scandir(self._store.places.incoming) as entries:
                return any(entry.name.endswith(".listing") for entry in entries)
        except OSError:
            return False

    def find(self, digest: str) -> ServedFile | None:
        """Open a file; None if no byte of it is here."""
        if not is_digest(digest):
            return None
        with suppress(NotFound):
            size_bytes = self._objects.size(Digest(digest))
            if size_bytes is not None:
                return ServedFile(file=self._objects.open(Digest(digest)), size_bytes=size_bytes)
        return self._find_growing(digest)

    def small(self, digests: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
        """Return those of these small files that are here, as many as fit into a pack; the client requests the rest."""
        given_bytes = 0
        for digest in dict.fromkeys(digests):
            data = self._of_record(digest)
            if data is None:
                with suppress(StokerError):
                    size_bytes = self._objects.size(Digest(digest))
                    if size_bytes is not None and size_bytes <= PACKED_BYTES:
                        with self._objects.open(Digest(digest)) as file:
                            data = file.read()
            if data is not None:
                given_bytes += HEAD_BYTES + len(data)
                if given_bytes > PACK_BYTES:
                    return
                yield digest, data

    def _find_growing(self, digest: str) -> ServedFile | None:
        incoming = self._store.places.incoming
        try:
            with AnchoredFolder.open(incoming, makes=False) as folder:
                sidecar = read_beside(folder, f"{digest}{SIDECAR}")
        except StokerError:
            return None
        # Verified, and about to become a blob; or growing, with the size in its record.
        for name, is_growing in ((digest, False), (f"{digest}{PART}", True)):
            with suppress(OSError):
                file = open_regular(os.path.join(incoming, name))
                if not is_growing:
                    return ServedFile(file=file, size_bytes=os.fstat(file.fileno()).st_size)
                if isinstance(sidecar, Sidecar) and sidecar.size_bytes is not None:
                    return ServedFile(file=file, size_bytes=sidecar.size_bytes, is_growing=True)
                file.close()
        return None

    def _remember(self, record: Record) -> None:
        by_digest = {
            entry.sha256: record.inline[entry.path] for entry in record.tree.entries if entry.path in record.inline
        }
        with self._turn:
            self._inline[record.digest] = {str(digest): data for digest, data in by_digest.items()}
            self._inline.move_to_end(record.digest)
            while len(self._inline) > _REMEMBERED:
                self._inline.popitem(last=False)

    def _of_record(self, digest: str) -> bytes | None:
        with self._turn:
            return next((files[digest] for files in self._inline.values() if digest in files), None)
