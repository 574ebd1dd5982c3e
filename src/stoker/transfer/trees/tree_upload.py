"""A tree on its way to the coordinator: what it lacks and nothing else, resumable, sent as often as it takes.

    send_tree(line, tree, InFolder(root), stop=stop, clock=clock, heed=count, on_outlook=show)

The coordinator is asked what is missing, by digest: unchanged files are never sent twice, whoever sent them first.
Small files go in packs, several at once; large ones as uploads that go on after any break. The tree is there, and may
be named by jobs, when this returns.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import BinaryIO, Protocol, TypeVar

from stoker.core.clock import Clock
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
from stoker.protocol.tree_messages import MOST_DIGESTS, PACKED_BYTES, PackResponse, TreeView, frame, in_packs
from stoker.protocol.view_messages import UploadResponse
from stoker.store.archives.archive_members import check_tree, files_of, listing_bytes
from stoker.store.local_store import LocalStore
from stoker.store.records import Record
from stoker.store.trees import Heed
from stoker.transfer.trees.tree_download import TreeFetchEstimate
from stoker.transfer.trees.tree_sources import (
    FleetConnection,
    StopEvent,
    TransferBackoff,
    TransferConnection,
    do_all,
    is_later,
)

PIECE_BYTES = 4 << 20
_MOST_MISMATCHES = 3
_MOST_RESTARTS = 10


class ArchiveSendOutcome(StrEnum):
    """What became of a sending."""

    NEW = "new"
    KNOWN = "known"
    """The coordinator had the bytes; none were sent."""
    STOPPED = "stopped"
    """Somebody said stop before it was there."""


@frozen
class Archive:
    """An archive that lies in a file."""

    path: str
    tree: str
    """Digest of the tree that it holds."""
    sha256: str
    size_bytes: int


def send(passage: TransferConnection, archive: Archive, *, heed: Heed = lambda _: None) -> ArchiveSendOutcome:
    """Bring an archive to the coordinator; `heed` is told of every piece that arrived.

    Waits and tries again while the coordinator can't be reached, is full or busy. `HashMismatch` if what arrives is
    something else again and again, `CorruptBytes` if the file is not as it was.
    """
    sending = _ObjectSending(passage, archive, heed)
    pauses = TransferBackoff(chance=passage.chance)
    with translated(archive.path), open_regular(archive.path) as file:
        while not passage.stop.is_set():
            try:
                return sending.go_on(file.fileno(), pauses.worked)
            except LockHeld:
                # Somebody else sends the same just now.
                pass
            except StokerError as error:
                if not sending.may_go_on_after(error):
                    raise
            if passage.stop.wait(pauses.failed()):
                break
    return ArchiveSendOutcome.STOPPED


class _ObjectSending:
    """One archive under way."""

    def __init__(self, passage: TransferConnection, archive: Archive, heed: Heed) -> None:
        self._line = passage.line
        self._archive = archive
        self._stop = passage.stop
        self._heed = heed
        self._upload: UploadResponse | None = None
        self._offset = 0
        self._mismatches = 0
        self._restarts = 0

    def go_on(self, descriptor: int, worked: Callable[[], None]) -> ArchiveSendOutcome:
        archive = self._archive
        if self._upload is None:
            begun = self._line.begin_upload(archive.sha256, archive.size_bytes)
            if begun.is_known:
                return ArchiveSendOutcome.KNOWN
            self._upload, self._offset = begun, begun.offset
        while self._offset < archive.size_bytes:
            if self._stop.is_set():
                return ArchiveSendOutcome.STOPPED
            data = os.pread(descriptor, PIECE_BYTES, self._offset)
            if not data:
                raise CorruptBytes(f"{archive.path} is shorter than it was", hint="it is packed again")
            there = self._line.append_upload(self._upload.id, data, offset=self._offset)
            self._heed(max(0, there - self._offset))
            self._offset = there
            self._restarts = 0
            worked()
        self._line.finish_upload(self._upload.id)
        return ArchiveSendOutcome.NEW

    def may_go_on_after(self, error: StokerError) -> bool:
        """Take note of what went wrong, and say whether to try again."""
        if isinstance(error, HashMismatch):
            self._upload = None
            self._mismatches += 1
            return self._mismatches < _MOST_MISMATCHES
        if isinstance(error, NotFound):
            # Swept, or lost with its disk; or finished, and only the answer was lost.
            self._upload = None
            self._restarts += 1
            return self._restarts < _MOST_RESTARTS
        if isinstance(error, Refused):
            offset = error.data.get("offset")
            self._restarts += 1
            if isinstance(offset, int) and 0 <= offset <= self._archive.size_bytes:
                self._offset = offset
                return self._restarts < _MOST_RESTARTS
            return False
        return is_later(error)


_ROUNDS = 5
"""How often a tree may turn out to lack something after all: somebody prunes beside us."""

T = TypeVar("T")


class TreeUploadConnection(FleetConnection, Protocol):
    """A coordinator that takes trees. `FleetClient` has it."""

    def want_tree(self, tree: str, *, files: int = 0, size_bytes: int = 0) -> TreeView:
        """Announce that a tree is wanted."""

    def missing(self, digests: Sequence[str], sizes: Sequence[int] = ()) -> tuple[str, ...]:
        """Return which files are not there."""

    def send_pack(self, pack: bytes) -> PackResponse:
        """Send small files."""

    def keep_tree(self, tree: str, listing: bytes) -> TreeView:
        """Send a tree's listing."""


class FileSource(Protocol):
    """Where the files of a tree lie."""

    def place(self, entry: TreeEntry) -> str:
        """Return the path of a file, or nothing if it lies in memory."""

    def open(self, entry: TreeEntry) -> BinaryIO:
        """Open a file."""


class FolderFileSource:
    """Files at their paths below a folder."""

    def __init__(self, root: str) -> None:
        self._root = root

    def place(self, entry: TreeEntry) -> str:
        return os.path.join(self._root, entry.path)

    def open(self, entry: TreeEntry) -> BinaryIO:
        return open_regular(self.place(entry))


class StoreFileSource:
    """Files of a record in this machine's store."""

    def __init__(self, store: LocalStore, record: Record) -> None:
        self._store = store
        self._record = record

    def place(self, entry: TreeEntry) -> str:
        return "" if entry.path in self._record.inline else self._store.blob(entry)

    def open(self, entry: TreeEntry) -> BinaryIO:
        if entry.path in self._record.inline:
            return io.BytesIO(self._record.inline[entry.path])
        return open_regular(self._store.blob(entry))


@frozen
class TreeSendResult:
    """What a sending came to."""

    tree: str
    files: int
    size_bytes: int
    sent_files: int
    sent_bytes: int


def send_tree(  # noqa: PLR0913 - to whom, what, from where, until when, and who is told
    line: TreeUploadConnection,
    tree: Tree,
    source: FileSource,
    *,
    stop: StopEvent | None = None,
    clock: Clock,
    heed: Heed = lambda _: None,
    on_outlook: Callable[[TreeFetchEstimate], None] = lambda _: None,
) -> TreeSendResult:
    """Have a tree with the coordinator, whole; `heed` is told of every byte of it that was sent.

    `InvalidArchive` if it has names that can't travel; `TooLarge` or `NoSpace` before a byte flows, if it can't be kept
    there; `CorruptBytes` if a file is not what the tree says: it was changed since; `Cancelled` if somebody said stop.
    Waits and tries again while the coordinator is away or busy.
    """
    check_tree(tree)
    return _Sending(line, tree, source, stop or threading.Event(), clock, heed).run(on_outlook)


class _Either:
    """Somebody said stop, or one file could not be sent: the others end."""

    def __init__(self, stop: StopEvent, over: threading.Event) -> None:
        self._stop = stop
        self._over = over

    def is_set(self) -> bool:
        return self._over.is_set() or self._stop.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        return self._stop.is_set() or self._over.wait(timeout) or self._stop.is_set()


class _Sending:
    """One tree under way."""

    def __init__(
        self, line: TreeUploadConnection, tree: Tree, source: FileSource, stop: StopEvent, clock: Clock, heed: Heed
    ) -> None:
        self._line = line
        self._tree = tree
        self._digest = tree.digest()
        self._source = source
        self._over = threading.Event()
        self._stop = _Either(stop, self._over)
        self._clock = clock
        self._heed = heed
        self._entries: dict[Digest, TreeEntry] = {}
        self._turn = threading.Lock()
        self._sent_files = self._sent_bytes = 0

    def run(self, on_outlook: Callable[[TreeFetchEstimate], None]) -> TreeSendResult:
        sizes = files_of(self._tree)
        self._entries = {entry.sha256: entry for entry in reversed(self._tree.entries) if entry.link_to is None}
        files, size_bytes = len(self._tree.entries), self._tree.size_bytes
        view = self._patiently(lambda: self._line.want_tree(self._digest, files=files, size_bytes=size_bytes))
        is_told = False
        for _ in range(_ROUNDS):
            missing = {} if view.is_here else self._missing(sizes)
            if not is_told:
                missing_bytes = sum(missing.values())
                on_outlook(
                    TreeFetchEstimate(
                        files=files, size_bytes=size_bytes, missing_files=len(missing), missing_bytes=missing_bytes
                    )
                )
                is_told = True
            if view.is_here:
                return TreeSendResult(
                    tree=self._digest,
                    files=files,
                    size_bytes=size_bytes,
                    sent_files=self._sent_files,
                    sent_bytes=self._sent_bytes,
                )
            self._send_all(missing)
            listing = listing_bytes(self._tree)
            view = self._patiently(lambda: self._line.keep_tree(self._digest, listing))  # noqa: B023 - called at once
        raise Unavailable("the coordinator loses files of the tree as they come", hint="is somebody pruning there?")

    def _missing(self, sizes: dict[Digest, int]) -> dict[Digest, int]:
        digests = list(sizes)
        lacking: set[str] = set()
        for start in range(0, len(digests), MOST_DIGESTS):
            some = digests[start : start + MOST_DIGESTS]
            told = [sizes[digest] for digest in some]
            lacking.update(self._patiently(lambda: self._line.missing(some, told)))  # noqa: B023 - called at once
        return {digest: size for digest, size in sizes.items() if digest in lacking}

    def _send_all(self, missing: dict[Digest, int]) -> None:
        small = [(digest, size) for digest, size in missing.items() if size <= PACKED_BYTES]
        large = [digest for digest, size in missing.items() if size > PACKED_BYTES]
        pieces = [partial(self._send_pack, pack) for pack in in_packs(small)]
        pieces += [partial(self._send_large, digest) for digest in large]
        do_all(pieces, name="sending", give_up=self._over.set)

    def _send_pack(self, digests: list[str]) -> None:
        pack = b"".join(self._frame(Digest(digest)) for digest in digests)
        self._patiently(lambda: self._line.send_pack(pack))
        self._count(len(digests), sum(self._entries[Digest(digest)].size_bytes for digest in digests))

    def _frame(self, digest: Digest) -> bytes:
        entry = self._entries[digest]
        with translated(self._source.place(entry) or entry.path), self._source.open(entry) as file:
            data = file.read(entry.size_bytes + 1)
        if digest_bytes(data) != digest:
            raise _changed(entry)
        return frame(digest, data)

    def _send_large(self, digest: Digest) -> None:
        entry = self._entries[digest]
        archive = Archive(path=self._source.place(entry), tree="", sha256=digest, size_bytes=entry.size_bytes)
        passage = TransferConnection(line=self._line, stop=self._stop, clock=self._clock)
        try:
            sent = send(passage, archive, heed=self._heed)
        except (HashMismatch, CorruptBytes):
            raise _changed(entry) from None
        if sent is ArchiveSendOutcome.STOPPED:
            raise _stopped()
        if sent is ArchiveSendOutcome.NEW:
            with self._turn:
                self._sent_files += 1
                self._sent_bytes += entry.size_bytes

    def _count(self, files: int, size_bytes: int) -> None:
        with self._turn:
            self._sent_files += files
            self._sent_bytes += size_bytes
        self._heed(size_bytes)

    def _patiently(self, ask: Callable[[], T]) -> T:
        pauses = TransferBackoff()
        while not self._stop.is_set():
            try:
                return ask()
            except StokerError as error:
                # A disk that is full stays so; whoever sends sits before a screen and can do something about it.
                if not is_later(error) or isinstance(error, NoSpace) or error.data.get("is_lasting"):
                    raise
            if self._stop.wait(pauses.failed()):
                break
        raise _stopped()


def _stopped() -> Cancelled:
    return Cancelled("the tree was not sent to its end", hint="the same line goes on where it stopped")


def _changed(entry: TreeEntry) -> CorruptBytes:
    return CorruptBytes(f"{entry.path} is not what it was a moment ago", hint="submit again when nobody writes to it")
