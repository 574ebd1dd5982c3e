"""What this machine can give to others: files by digest, whole or still growing, and listings of trees.

A file that is still on its way here is given as far as it has come, and on as it comes: whoever takes it verifies it,
as we do. Nothing is given that does not lie under its digest in this machine's store, or below `incoming`.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

from stoker.host.anchored import AnchoredFolder
from stoker.host.durable import open_regular, read_regular
from stoker.model.clock import Clock
from stoker.model.digests import Digest, is_digest
from stoker.model.errors import NotFound, StokerError
from stoker.model.frozen import frozen
from stoker.store.download.partial import read_beside
from stoker.store.download.places import PART, SIDECAR
from stoker.store.download.sidecar import Sidecar
from stoker.store.held import named_tree
from stoker.store.listing import listing_bytes
from stoker.store.local import LocalStore
from stoker.store.objects.local import LocalObjects
from stoker.store.records import Record
from stoker.wire.contents import MOST_LISTING_BYTES, PACK_BYTES, PACKED_BYTES
from stoker.wire.packs import HEAD_BYTES

_REMEMBERED = 64


@frozen
class Given:
    """A file that is open to be given away, and closed by whoever asked."""

    file: BinaryIO
    size_bytes: int
    """Of the whole; a growing one has fewer so far."""
    is_growing: bool = False


class Shelf:
    """One machine's. Safe to use from several threads."""

    def __init__(self, store: LocalStore, *, clock: Clock) -> None:
        self._store = store
        self._objects = LocalObjects(store, clock=clock)
        self._turn = threading.Lock()
        # Small files that lie in a record and not in a file of their own, of trees that were asked for lately.
        self._inline: OrderedDict[str, dict[str, bytes]] = OrderedDict()

    def listing(self, tree: str) -> bytes:
        """Give a tree's listing. `NotFound` if it is neither here nor on its way."""
        if is_digest(tree):
            found = named_tree(self._store, tree)
            if found is not None:
                self._remember(found)
                return listing_bytes(found.tree)
            with suppress(OSError):
                return read_regular(os.path.join(self._store.places.incoming, f"{tree}.listing"), MOST_LISTING_BYTES)
        raise NotFound(f"no tree {tree[:12]} here")

    def is_coming(self) -> bool:
        """Say whether any tree is on its way here: what is not there yet may be soon."""
        try:
            with os.scandir(self._store.places.incoming) as entries:
                return any(entry.name.endswith(".listing") for entry in entries)
        except OSError:
            return False

    def find(self, digest: str) -> Given | None:
        """Open a file; nothing if no byte of it is here."""
        if not is_digest(digest):
            return None
        with suppress(NotFound):
            size_bytes = self._objects.size(Digest(digest))
            if size_bytes is not None:
                return Given(file=self._objects.open(Digest(digest)), size_bytes=size_bytes)
        return self._find_growing(digest)

    def small(self, digests: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
        """Give those of these small files that are here, as many as a pack has room for: who wants more asks again."""
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

    def _find_growing(self, digest: str) -> Given | None:
        incoming = self._store.places.incoming
        try:
            with AnchoredFolder.open(incoming, makes=False) as folder:
                sidecar = read_beside(folder, f"{digest}{SIDECAR}")
        except StokerError:
            return None
        # Checked, and about to become a blob; or growing, of a size that its record tells.
        for name, is_growing in ((digest, False), (f"{digest}{PART}", True)):
            with suppress(OSError):
                file = open_regular(os.path.join(incoming, name))
                if not is_growing:
                    return Given(file=file, size_bytes=os.fstat(file.fileno()).st_size)
                if isinstance(sidecar, Sidecar) and sidecar.size_bytes is not None:
                    return Given(file=file, size_bytes=sidecar.size_bytes, is_growing=True)
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
