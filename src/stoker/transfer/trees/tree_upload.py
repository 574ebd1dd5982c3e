"""Send a tree to the coordinator: only the files that it lacks, resumable, with retries.

    send_tree(client, tree, FolderFileSource(root), stop=stop, heed=count, on_outlook=show)

The coordinator returns the digests of the files that it lacks, so no file is sent twice, by any sender. Small files go
in packs, several at once; large files as uploads that resume after a broken connection. When this returns, the
coordinator has the tree, and jobs may name it.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import BinaryIO, Protocol, TypeVar

from stoker.core.digests import Digest, Tree, TreeEntry, digest_bytes
from stoker.core.errors import (
    Cancelled,
    CorruptBytes,
    HashMismatch,
    LockHeld,
    NoSpace,
    NotFound,
    Refused,
    StokerError,
    Unavailable,
)
from stoker.core.frozen import frozen
from stoker.host.durable import open_regular, translated
from stoker.protocol.client import FleetClient
from stoker.protocol.tree_messages import MOST_DIGESTS, PACKED_BYTES, PassResponse, frame, in_packs
from stoker.protocol.view_messages import UploadResponse
from stoker.store.archives.archive_members import check_tree, files_of, listing_bytes
from stoker.store.local_store import LocalStore
from stoker.store.records import Record
from stoker.store.trees import Heed
from stoker.transfer.trees.direct import DirectSender, direct_transport
from stoker.transfer.trees.tree_download import TreeFetchEstimate
from stoker.transfer.trees.tree_sources import StopEvent, TransferBackoff, do_all, is_later

PIECE_BYTES = 4 << 20
_MOST_MISMATCHES = 3
_MOST_RESTARTS = 10
_ROUNDS = 5
"""How often the tree is completed again if a prune removes files of it meanwhile."""

T = TypeVar("T")


class FileSource(Protocol):
    """Opens the files of a tree. Thread-safe."""

    is_verified: bool
    """True: what it opens was found to have the digest of its entry, and has it as long as its stamp stays."""

    def open(self, entry: TreeEntry) -> BinaryIO:
        """Open a file. Caller closes."""


class FolderFileSource:
    """Files at their paths below a folder."""

    is_verified = False

    def __init__(self, root: str) -> None:
        self._root = root

    def open(self, entry: TreeEntry) -> BinaryIO:
        path = os.path.join(self._root, entry.path)
        with translated(path):
            return open_regular(path)


class StoreFileSource:
    """Files of records in this machine's store, which verifies them when they are opened."""

    is_verified = True

    def __init__(self, store: LocalStore, *records: Record) -> None:
        self._store = store
        self._inline = {
            entry.sha256: record.inline[entry.path]
            for record in records
            for entry in record.tree.entries
            if entry.path in record.inline
        }

    def open(self, entry: TreeEntry) -> BinaryIO:
        if entry.sha256 in self._inline:
            return io.BytesIO(self._inline[entry.sha256])
        path = self._store.blob(entry)
        with translated(path):
            return open_regular(path)


@frozen
class TreeSendResult:
    """What was sent of a tree."""

    tree: str
    files: int
    size_bytes: int
    sent_files: int
    sent_bytes: int


def send_tree(  # noqa: PLR0913 - what to send where, until when, and what is called meanwhile
    client: FleetClient,
    tree: Tree,
    source: FileSource,
    *,
    stop: StopEvent | None = None,
    heed: Heed = lambda _: None,
    on_outlook: Callable[[TreeFetchEstimate], None] = lambda _: None,
    waits_for_space: bool = False,
) -> TreeSendResult:
    """Send a tree to the coordinator, whole; `heed` is called with the size of everything that was sent.

    Retries while the coordinator is unreachable or busy; while its disk is full, only if `waits_for_space`. Raises
    `InvalidArchive` if the tree has paths that can't be sent; `TooLarge` or `NoSpace` before any file is sent;
    `CorruptBytes` if a file is not what the tree says, because it was changed since; `Cancelled` if `stop` is set.
    """
    check_tree(tree)
    sending = _TreeSending(client, tree, source, stop or threading.Event(), heed, waits_for_space=waits_for_space)
    return sending.run(on_outlook)


class _EitherEvent:
    """Set if either event is: the sender was stopped, or one file failed."""

    def __init__(self, stop: StopEvent, over: threading.Event) -> None:
        self._stop = stop
        self._over = over

    def is_set(self) -> bool:
        return self._over.is_set() or self._stop.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        return self._stop.is_set() or self._over.wait(timeout) or self._stop.is_set()


class _TreeSending:
    """One tree that is being sent."""

    def __init__(
        self, client: FleetClient, tree: Tree, source: FileSource, stop: StopEvent, heed: Heed, *, waits_for_space: bool
    ) -> None:
        self._client = client
        self._tree = tree
        self._digest = tree.digest()
        self._source = source
        self._over = threading.Event()
        self._stop = _EitherEvent(stop, self._over)
        self._heed = heed
        self._waits_for_space = waits_for_space
        self._entries = {entry.sha256: entry for entry in reversed(tree.entries) if entry.link_to is None}
        self._lock = threading.Lock()
        self._sent_files = self._sent_bytes = 0

    def run(self, on_outlook: Callable[[TreeFetchEstimate], None]) -> TreeSendResult:
        sizes = files_of(self._tree)
        files, size_bytes = len(self._tree.entries), self._tree.size_bytes
        view = self._retried(lambda: self._client.want_tree(self._digest, files=files, size_bytes=size_bytes))
        missing = {} if view.is_here else self._missing(sizes)
        on_outlook(
            TreeFetchEstimate(
                files=files, size_bytes=size_bytes, missing_files=len(missing), missing_bytes=sum(missing.values())
            )
        )
        listing = listing_bytes(self._tree)
        for _ in range(_ROUNDS):
            if view.is_here:
                return TreeSendResult(
                    tree=self._digest,
                    files=files,
                    size_bytes=size_bytes,
                    sent_files=self._sent_files,
                    sent_bytes=self._sent_bytes,
                )
            self._send_all(missing)
            view = self._retried(lambda: self._client.keep_tree(self._digest, listing))
            missing = {} if view.is_here else self._missing(sizes)
        raise Unavailable(
            f"the coordinator removes files of tree {self._digest[:12]} while they are sent",
            hint="try again when no prune runs there",
        )

    def _missing(self, sizes: dict[Digest, int]) -> dict[Digest, int]:
        digests = list(sizes)
        lacking: set[str] = set()
        for start in range(0, len(digests), MOST_DIGESTS):
            some = digests[start : start + MOST_DIGESTS]
            some_sizes = [sizes[digest] for digest in some]
            lacking.update(self._retried(partial(self._client.missing, some, some_sizes)))
        return {digest: size for digest, size in sizes.items() if digest in lacking}

    def _send_all(self, missing: dict[Digest, int]) -> None:
        small = [(digest, size) for digest, size in missing.items() if size <= PACKED_BYTES]
        large = [digest for digest, size in missing.items() if size > PACKED_BYTES]
        pieces = [partial(self._send_pack, pack) for pack in in_packs(small)]
        pieces += [partial(self._send_large, digest) for digest in large]
        do_all(pieces, name="sending", give_up=self._over.set)

    def _send_pack(self, digests: list[str]) -> None:
        pack = b"".join(self._frame(Digest(digest)) for digest in digests)
        self._retried(lambda: self._client.send_pack(pack))
        size_bytes = sum(self._entries[Digest(digest)].size_bytes for digest in digests)
        self._count(len(digests), size_bytes)
        self._heed(size_bytes)

    def _frame(self, digest: Digest) -> bytes:
        entry = self._entries[digest]
        with self._source.open(entry) as file, translated(entry.path):
            data = file.read(entry.size_bytes + 1)
        if digest_bytes(data) != digest:
            raise _changed(entry)
        return frame(digest, data)

    def _send_large(self, digest: Digest) -> None:
        entry = self._entries[digest]
        try:
            is_new = _FileUpload(self._client, entry, self._source, self._stop, self._heed).run()
        except (HashMismatch, CorruptBytes):
            raise _changed(entry) from None
        if is_new:
            self._count(1, entry.size_bytes)

    def _count(self, files: int, size_bytes: int) -> None:
        with self._lock:
            self._sent_files += files
            self._sent_bytes += size_bytes

    def _retried(self, call: Callable[[], T]) -> T:
        backoff = TransferBackoff()
        while not self._stop.is_set():
            try:
                return call()
            except StokerError as error:
                is_full = isinstance(error, NoSpace) and not self._waits_for_space
                if is_full or not is_later(error) or error.data.get("is_lasting"):
                    raise
            if self._stop.wait(backoff.failed()):
                break
        raise _stopped()


class _FileUpload:
    """One large file that is being sent."""

    def __init__(self, client: FleetClient, entry: TreeEntry, source: FileSource, stop: StopEvent, heed: Heed) -> None:
        self._client = client
        self._entry = entry
        self._source = source
        self._stop = stop
        self._heed = heed
        self._upload: UploadResponse | None = None
        self._offset = 0
        self._mismatches = 0
        self._restarts = 0
        self._is_direct: bool | None = None
        """Bytes go to the coordinator's object store; None: not known yet."""

    def run(self) -> bool:
        """Send the file; return False if the coordinator had it.

        Retries while the coordinator is unreachable, full or busy. Raises `HashMismatch` if the coordinator receives
        something else again and again, `CorruptBytes` if the file is shorter than it was, `Cancelled` on stop.
        """
        backoff = TransferBackoff()
        with self._source.open(self._entry) as file, translated(self._entry.path):
            while not self._stop.is_set():
                try:
                    return self._resume(file.fileno(), backoff.worked)
                except LockHeld:
                    # Another sender sends the same file now.
                    pass
                except StokerError as error:
                    if not self._may_retry_after(error):
                        raise
                if self._stop.wait(backoff.failed()):
                    break
        raise _stopped()

    def _resume(self, descriptor: int, worked: Callable[[], None]) -> bool:
        entry = self._entry
        if self._is_direct is not False:
            try:
                offered = self._client.pass_to_send(entry.sha256, entry.size_bytes)
            except NotFound:
                # A coordinator of an earlier version.
                offered = PassResponse(is_direct=False)
            self._is_direct = offered.is_direct
            if offered.is_known:
                return False
            if offered.is_direct:
                self._send_direct(descriptor, offered.part_bytes)
                return True
        if self._upload is None:
            begun = self._client.begin_upload(entry.sha256, entry.size_bytes)
            if begun.is_known:
                return False
            self._upload, self._offset = begun, begun.offset
        while self._offset < entry.size_bytes:
            if self._stop.is_set():
                raise _stopped()
            data = os.pread(descriptor, PIECE_BYTES, self._offset)
            if not data:
                raise CorruptBytes(f"{entry.path} is shorter than it was")
            received_bytes = self._client.append_upload(self._upload.id, data, offset=self._offset)
            self._heed(max(0, received_bytes - self._offset))
            self._offset = received_bytes
            self._restarts = 0
            worked()
        self._client.finish_upload(self._upload.id)
        return True

    def _send_direct(self, descriptor: int, part_bytes: int) -> None:
        with closing(direct_transport(self._client)) as transport:
            sender = DirectSender(self._client, transport, self._entry, stop=self._stop, heed=self._heed)
            sender.run(descriptor, part_bytes, is_verified=self._source.is_verified)

    def _may_retry_after(self, error: StokerError) -> bool:
        """Note what went wrong; return True to try again."""
        if isinstance(error, HashMismatch):
            self._upload = None
            self._mismatches += 1
            return self._mismatches < _MOST_MISMATCHES
        if isinstance(error, NotFound):
            # Removed as idle, or lost with its disk; or finished, and only the response was lost.
            self._upload = None
            self._restarts += 1
            return self._restarts < _MOST_RESTARTS
        if isinstance(error, Refused):
            offset = error.data.get("offset")
            self._restarts += 1
            if isinstance(offset, int) and 0 <= offset <= self._entry.size_bytes:
                self._offset = offset
                return self._restarts < _MOST_RESTARTS
            return False
        return is_later(error)


def _stopped() -> Cancelled:
    return Cancelled("the tree was not sent completely", hint="the same command continues where it stopped")


def _changed(entry: TreeEntry) -> CorruptBytes:
    return CorruptBytes(f"{entry.path} changed while it was sent", hint="try again when no program writes to it")
