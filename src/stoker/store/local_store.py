"""The store on this machine's disk.

Order of every commit: blobs durable → record durable → event (by the caller). A crash between any two leaves bytes
without a name, which `prune` sweeps, never a name without bytes. No lock is taken to read or to write: blobs and
records appear whole, by rename and by link. Only removing or replacing a record locks its shard for that moment, so
that two processes that found the same damage do not undo each other's repair.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence

from stoker.core.clock import Clock
from stoker.core.digests import Digest, Tree, TreeEntry, digest_bytes
from stoker.core.errors import CorruptBytes, Diagnostic, InvalidInput, NotFound, StokerError
from stoker.core.frozen import frozen
from stoker.host.durable import (
    NO_STEP,
    create_file,
    move_into,
    remove_tree,
    stamp_of,
    sync_dir,
    translate,
    translated,
    write_file,
)
from stoker.host.locks import BriefLocks
from stoker.store.memo import Memo
from stoker.store.places import StorePaths, set_aside
from stoker.store.records import BadRecord, Record, parse_record, read_file, read_record
from stoker.store.trees import Heed, WalkedEntry, hash_afresh, hash_file, walk_tree

INLINE_FILE_BYTES = 4096
INLINE_TOTAL_BYTES = 32 * 1024
MOST_INLINE_FILES = 256

# A use is recorded at most this often per record, so that a hit is not a write.
_USED_AGAIN_S = 3600.0

_TRIES = 5

# One for the process: two stores on one root must not return one folder twice.
_staging_counter = itertools.count(1)


@frozen
class RecordHit:
    """The record under the key. `lost` names the files whose bytes are not here any more."""

    record: Record
    lost: tuple[str, ...] = ()

    @property
    def has_bytes(self) -> bool:
        return not self.lost and not self.record.is_tombstone


@frozen
class RecordMiss:
    """No record under the key; `damage` names what was there and was set aside."""

    damage: str = ""


@frozen
class PublishedRecord:
    """The record under a key after publishing, and the one before."""

    record: Record
    is_ours: bool
    before: Record | None = None


class LocalStore:
    """Blobs, trees and records below one root. Safe from several threads and processes."""

    def __init__(self, root: str, *, clock: Clock, on_step: Callable[[str], None] = NO_STEP) -> None:
        self.places = StorePaths(root)
        self.memo = Memo(self.places.memo, set_aside=self._set_aside)
        self._clock = clock
        self._on_step = on_step
        self._made_folders: set[str] = set()

    def open(self) -> None:
        """Create missing folders."""
        self.places.make()

    def close(self) -> None:
        """Close the memo. The store may be used again."""
        self.memo.close()

    def lookup(self, key: Digest) -> RecordHit | RecordMiss:
        """Return the record under a key and record its use; blobs are checked by size and memo, re-hashed if in doubt.

        Damage is set aside: a damaged record becomes a `RecordMiss`, a damaged blob becomes lost.
        """
        path = self.places.record(key)
        data: bytes | None = None
        try:
            read = read_file(path)
            if read is None:
                return RecordMiss()
            data = read[0]
            record = read_record(data, key)
            self._note_use(path, read[1].st_mtime)
            if record.flags != "B":
                return RecordHit(record=record)
            lost = tuple(entry.path for entry in record.blobs() if not self.holds(entry))
        except OSError as error:
            raise translate(error, path) from error
        except (BadRecord, CorruptBytes) as error:
            return self._missing(key, str(error), data)
        return RecordHit(record=record, lost=lost)

    def peek(self, key: Digest) -> Record | RecordMiss:
        """Read the record under a key without using it: its blobs are not checked."""
        path = self.places.record(key)
        data: bytes | None = None
        try:
            with translated(path):
                read = read_file(path)
            if read is None:
                return RecordMiss()
            data = read[0]
            return parse_record(data, key)
        except BadRecord as error:
            return self._missing(key, str(error), data)

    def verify_record(self, key: Digest, *, holds: Callable[[TreeEntry], bool] | None = None) -> RecordHit | RecordMiss:
        """Return the record under a key, hashing every byte again whatever the memo says. Does not count as use.

        `holds` checks a blob instead, for callers that know better or need less.
        """
        record = self.peek(key)
        if isinstance(record, RecordMiss):
            return record
        inline = record.inline
        for entry in record.tree.entries:
            if entry.path in inline and digest_bytes(inline[entry.path]) != entry.sha256:
                return self._missing(key, f"holds other bytes than it says for {entry.path}", record.to_bytes())
        if record.tree.digest() != record.digest:
            return self._missing(key, "names a tree that has another digest", record.to_bytes())
        judge = holds or (lambda entry: self.holds(entry, heed=_go_on))
        return RecordHit(record=record, lost=tuple(entry.path for entry in record.blobs() if not judge(entry)))

    def holds(self, entry: TreeEntry, *, heed: Heed | None = None, info: os.stat_result | None = None) -> bool:
        """Return True if the blob of an entry is here and whole. A damaged one is set aside.

        With `heed` every byte is hashed again, whatever the memo says. `info` is the blob's `lstat` of this moment.
        """
        path = self.places.blob(entry.sha256)
        if info is None:
            try:
                info = os.lstat(path)
            except OSError:
                return False
        is_likely = info.st_size == entry.size_bytes and stat.S_ISREG(info.st_mode)
        if is_likely and heed is None and self.memo.recall(entry.sha256, stamp_of(info)) == entry.sha256:
            return True
        try:
            if is_likely and (hash_file(path) if heed is None else hash_afresh(path, heed))[0] == entry.sha256:
                self.memo.remember(entry.sha256, stamp_of(info), entry.sha256)
                return True
        except StokerError:
            # Pruned meanwhile, or unreadable: there is no evidence of it.
            return False
        reason = f"blob {entry.sha256[:12]} ({entry.path}) does not have the bytes it is named by"
        self._set_aside(path, reason, info)
        self.memo.forget(entry.sha256)
        return False

    def blob(self, entry: TreeEntry) -> str:
        """Return the path of an entry's blob, to be read only. `CorruptBytes` if it is not here or not whole."""
        if not self.holds(entry):
            raise CorruptBytes(
                f"{entry.path}: its bytes are gone or damaged", hint="run again: only this is computed again"
            )
        return self.places.blob(entry.sha256)

    def read_bytes(self, record: Record, path: str) -> bytes:
        """Read one file of a record's tree, verified."""
        if path in record.inline:
            return record.inline[path]
        entry = next((entry for entry in record.blobs() if entry.path == path), None)
        if entry is None:
            raise NotFound(f"record {record.key[:12]} has no bytes of {path}")
        blob = self.blob(entry)
        with translated(blob), open(blob, "rb") as file:
            return file.read()

    def _note_use(self, path: str, last_s: float) -> None:
        now_s = self._clock.wall_s()
        if now_s - last_s <= _USED_AGAIN_S:
            return
        try:
            os.utime(path, (now_s, now_s))
        except OSError:
            # A read-only store can't record uses; that only makes pruning less exact.
            return

    def _missing(self, key: Digest, what: str, data: bytes | None) -> RecordMiss:
        """Set a damaged record aside, if it is still the one that was checked: those bytes, or unreadable (None)."""
        reason = f"record {key[:12]} {what}"
        path = self.places.record(key)
        # What can't be removed (a read-only store) is just not used.
        with contextlib.suppress(StokerError), self._replacing(path):
            if _still_is(path, data):
                self._set_aside(path, reason)
        return RecordMiss(damage=reason)

    def _set_aside(self, path: str, reason: str, seen: os.stat_result | None = None) -> None:
        set_aside(path, self.places.quarantine, reason=reason, now_s=self._clock.wall_s(), seen=seen)

    def new_staging(self, name: str) -> str:
        """Make an empty folder for one attempt, `.PID.COUNT.NAME`; only the cleanup looks there."""
        path = f"{self.places.staging}/.{os.getpid()}.{next(_staging_counter)}.{name}"
        with translated(path):
            try:
                os.mkdir(path)
            except FileExistsError:
                # Left by a dead process that had our number.
                remove_tree(path)
                os.mkdir(path)
        return path

    def take_in(self, folder: str) -> tuple[Tree, dict[str, bytes]]:
        """Take the files of a folder into the store: small ones are read, the others become blobs, durable.

        Afterwards the folder's content is undefined. Returns the tree and the inline contents for a record.
        """
        if not os.path.isdir(folder) or os.path.islink(folder):
            fault = Diagnostic(os.path.basename(folder), "the output folder was removed or replaced")
            raise InvalidInput(fault.message, faults=(fault,))
        small = _SmallFiles()
        return self.keep(walk_tree(folder, hasher=small.read_and_hash), small.contents)

    def keep(
        self, found: Sequence[WalkedEntry], contents: Mapping[str, bytes], *, are_settled: bool = False
    ) -> tuple[Tree, dict[str, bytes]]:
        """Take in files that were found and hashed; their paths are undefined afterwards. Returns what `take_in` does.

        Small ones whose contents are given, by path, go into the record while there is room. A file without a path must
        be here already (`renew`). `are_settled`: they are on the disk, read-only (`host.folders.settle_files`).
        """
        inline: dict[str, bytes] = {}
        room = INLINE_TOTAL_BYTES
        touched: set[str] = set()
        for walked in found:
            entry = walked.entry
            if entry.link_to is not None:
                continue
            if not walked.path:
                touched.add(self._shard(self.places.blob(entry.sha256)))
            elif entry.size_bytes <= room and walked.path in contents:
                inline[entry.path] = contents[walked.path]
                room -= entry.size_bytes
            else:
                touched.add(self._keep_blob(walked, is_settled=are_settled))
        for folder_path in touched:
            self._on_step("sync_blobs")
            sync_dir(folder_path)
        return Tree(tuple(walked.entry for walked in found)), inline

    def _keep_blob(self, walked: WalkedEntry, *, is_settled: bool) -> str:
        target = self.places.blob(walked.entry.sha256)
        folder = self._shard(target)
        self._on_step("keep_blob")
        if not self.renew(walked.entry):
            self._move_in(walked, target, is_settled=is_settled)
        return folder

    def renew(self, entry: TreeEntry) -> bool:
        """Make a blob young again, so that no prune removes it before a record names it. False: gone or damaged."""
        target = self.places.blob(entry.sha256)
        if not self.holds(entry):
            return False
        try:
            os.utime(target)
            info = os.lstat(target)
        except OSError:
            return False
        self.memo.remember(entry.sha256, stamp_of(info), entry.sha256)
        return True

    def _move_in(self, walked: WalkedEntry, target: str, *, is_settled: bool) -> None:
        path, size_bytes, mtime_ns = walked.path, walked.entry.size_bytes, walked.info.st_mtime_ns
        with translated(path):
            if walked.info.st_nlink > 1:
                path, mtime_ns = _own_copy(walked)
            looked = os.lstat(path)
            if (looked.st_size, looked.st_mtime_ns) != (size_bytes, mtime_ns):
                raise _changed(walked.entry)
        if is_settled and path == walked.path:
            self._on_step("rename")
            with translated(target):
                os.replace(path, target)
        else:
            move_into(path, target, mode=0o444, on_step=self._on_step)
        with translated(target):
            info = os.lstat(target)
        # Otherwise another process brought in the same, or wrote to ours: the next reader has to hash it.
        if (info.st_ino, info.st_size, info.st_mtime_ns) == (looked.st_ino, size_bytes, mtime_ns):
            self.memo.remember(walked.entry.sha256, stamp_of(info), walked.entry.sha256)

    def publish(self, record: Record, *, replace: bool = False) -> PublishedRecord:
        """Name a record, durably. The first writer wins, unless its bytes are gone or `replace` is set.

        Call only when all its blobs are in: the record is the only proof that the work was done.
        """
        path = self.places.record(record.key)
        self._shard(path)
        data = record.to_bytes()
        self._on_step("publish")
        for _ in range(_TRIES):
            if create_file(path, data, mode=0o444, on_step=self._on_step):
                return PublishedRecord(record=record, is_ours=True)
            other = self.lookup(record.key)
            # A missing one was damaged and is set aside now: another process may be first again.
            if isinstance(other, RecordHit):
                if other.has_bytes and not replace:
                    return PublishedRecord(record=other.record, is_ours=False, before=other.record)
                if self.swap(other.record, record):
                    return PublishedRecord(record=record, is_ours=True, before=other.record)
        # Something that can't be moved is in the way, or others replace it all the time, too.
        write_file(path, data, mode=0o444, on_step=self._on_step)
        return PublishedRecord(record=record, is_ours=True)

    def swap(self, old: Record, new: Record | None, *, used_s: float = math.inf) -> bool:
        """Replace a record under its key by another, or by nothing.

        False: the old one is not there any more, or was used after the given time.
        """
        path = self.places.record(old.key)
        with self._replacing(path):
            if not _still_is(path, old.to_bytes()) or os.stat(path).st_mtime > used_s:
                return False
            if new is not None:
                write_file(path, new.to_bytes(), mode=0o444, on_step=self._on_step)
            else:
                os.unlink(path)
        return True

    def renew_record(self, key: Digest) -> bool:
        """Record a use, so that no prune removes the record. False: it is not here, or a tombstone."""
        path = self.places.record(key)
        self._shard(path)
        with self._replacing(path):
            try:
                read = read_file(path)
                if read is None or read_record(read[0], key).is_tombstone:
                    return False
            except BadRecord:
                return False
            # Later than before in any case: clocks tick coarsely, and are set back.
            used_ns = max(read[1].st_mtime_ns + 1000, int(self._clock.wall_s() * 1e9))
            os.utime(path, ns=(used_ns, used_ns))
        return True

    @contextlib.contextmanager
    def _replacing(self, path: str) -> Iterator[None]:
        with contextlib.closing(BriefLocks()) as locks, locks.hold(f"{os.path.dirname(path)}/.lock"), translated(path):
            yield

    def _shard(self, path: str) -> str:
        folder = os.path.dirname(path)
        if folder not in self._made_folders:
            with translated(folder):
                if not os.path.isdir(folder):
                    os.makedirs(folder, exist_ok=True)
                    sync_dir(os.path.dirname(folder))
            self._made_folders.add(folder)
        return folder


def _go_on(_size_bytes: int) -> None:
    """Neither count nor wait."""


def _still_is(path: str, data: bytes | None) -> bool:
    try:
        read = read_file(path)
    except BadRecord:
        return data is None
    return read is not None and read[0] == data


def _own_copy(walked: WalkedEntry) -> tuple[str, int]:
    """Copy a file that has other names too: through those a blob could be changed, and they would become read-only."""
    import shutil  # noqa: PLC0415 - milliseconds that a cached run never needs

    copy = os.path.join(os.path.dirname(walked.path), f".stoker-own-{os.urandom(8).hex()}")
    shutil.copyfile(walked.path, copy)
    if hash_file(copy)[0] != walked.entry.sha256:
        raise _changed(walked.entry)
    return copy, os.lstat(copy).st_mtime_ns


def _changed(entry: TreeEntry) -> CorruptBytes:
    hint = "something still writes to it: a stage waits for what it starts"
    return CorruptBytes(f"{entry.path} changed while it was taken in", hint=hint)


class _SmallFiles:
    """Reads small files once, for their digest and for the record alike."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    def read_and_hash(self, path: str) -> tuple[Digest, int]:
        # More of them than could ever be inline need not be kept.
        if len(self.contents) < MOST_INLINE_FILES:
            with translated(path), open(path, "rb", buffering=0) as file:
                data = file.read(INLINE_FILE_BYTES + 1)
            if len(data) <= INLINE_FILE_BYTES:
                self.contents[path] = data
                return digest_bytes(data), len(data)
        return hash_file(path)
