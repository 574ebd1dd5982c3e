"""Put the user's own files into the store: copied, hashed during the copy, and named.

Order: every file is copied into staging and hashed meanwhile, blobs durable, record, ref, a line in the index. A crash
between any two leaves staging or bytes without a name, which `prune` sweeps, never a name without bytes. The user's
files are only read. What can't be stored is refused, all of it at once, before a byte is read; what changes while it is
read is refused, too.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from hashlib import sha256
from typing import Any, BinaryIO

from stoker.core.clock import Clock
from stoker.core.digests import Digest, Tree, TreeEntry, digest_value
from stoker.core.errors import Diagnostic, InvalidInput, LocalFile, NoSpace, Refused
from stoker.core.frozen import frozen
from stoker.core.text import format_size
from stoker.host.durable import NO_STEP, open_regular, remove_tree, stamp_of, sync_dir, translated, write_all
from stoker.host.locks import BriefLocks
from stoker.host.resources import free_bytes
from stoker.host.writers import reflink
from stoker.store.archives.unpack import unpack
from stoker.store.local_store import INLINE_FILE_BYTES, MOST_INLINE_FILES, LocalStore, RecordHit
from stoker.store.memo import recall_file, remember_file
from stoker.store.places import StorePaths
from stoker.store.records import BrokenSeal, Record, seal, unseal
from stoker.store.refs import PUT, Ref, check_ref_name, find_ref, refuse_taken, remove_ref, set_ref
from stoker.store.results import SIDECAR, is_sidecar
from stoker.store.trees import HashLane, Heed, WalkedEntry, walk_tree

_BLOCK_BYTES = 1 << 20
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class StagingCopy:
    """Files on their way into one staging folder, and from there into the store.

    A file is read once: it shares its blocks with the copy if the file system can, and is hashed, or it is copied and
    hashed in one pass. One that was hashed before, has the same stamp, and whose bytes the store has, is not read at
    all.
    """

    def __init__(
        self, store: LocalStore, staging: str, *, clock: Clock, heed: Heed, on_step: Callable[[str], None]
    ) -> None:
        self.added_bytes = 0
        """Bytes of new blobs."""
        self._store = store
        self._staging = staging
        self._clock = clock
        self._heed = heed
        self._on_step = on_step
        self._numbers = itertools.count()
        self._found: list[WalkedEntry] = []
        self._contents: dict[str, bytes] = {}
        self._passed_over: dict[str, WalkedEntry] = {}
        """What need not be copied because the store has its bytes, by its path in the tree."""
        self._blobs: set[Digest] = set()
        """What was staged and will become a blob."""
        self._shares_blocks: bool | None = None

    def copy_all(self, found: Sequence[WalkedEntry]) -> None:
        """Copy what the store does not have, hashing it meanwhile. `Refused` if something changes meanwhile."""
        left_bytes = size_of(found)
        with HashLane() as lane:
            for walked in found:
                if walked.entry.link_to is not None:
                    self._found.append(walked)
                    continue
                if not self._is_here(walked):
                    self._stage(walked, left_bytes, lane)
                left_bytes -= walked.info.st_size

    def keep_all(self) -> tuple[Tree, dict[str, bytes]]:
        """Take in what was staged. What was here already and is not any more is copied after all."""
        with HashLane() as lane:
            self._found = [self._still_here(walked, lane) for walked in self._found]
        tree, inline = self._store.keep(self._found, self._contents)
        self.added_bytes = blob_bytes((walked.entry for walked in self._found if walked.path), inline)
        return tree, inline

    def _still_here(self, walked: WalkedEntry, lane: HashLane) -> WalkedEntry:
        entry = walked.entry
        if walked.path or entry.sha256 in self._blobs or self._store.renew(entry):
            return walked
        staged, _ = self._copy(self._passed_over[entry.path], entry.size_bytes, lane)
        if staged.entry != entry:
            raise changed_meanwhile(entry.path)
        self._blobs.add(entry.sha256)
        return staged

    def _is_here(self, walked: WalkedEntry) -> bool:
        """Skip a file that was hashed before, has the same stamp, and whose bytes the store has."""
        digest = recall_file(walked.path, walked.info, memo=self._store.memo)
        if digest is None:
            return False
        entry = TreeEntry(walked.entry.path, walked.info.st_size, digest, walked.entry.executable)
        if not self._store.holds(entry):
            return False
        self._pass_over(walked, entry)
        self._heed(entry.size_bytes)
        return True

    def _stage(self, walked: WalkedEntry, left_bytes: int, lane: HashLane) -> None:
        staged, data = self._copy(walked, left_bytes, lane)
        digest = staged.entry.sha256
        remember_file(walked.path, walked.info, digest, memo=self._store.memo, clock=self._clock)
        if digest in self._blobs or self._store.holds(staged.entry):
            os.unlink(staged.path)
            self._pass_over(walked, staged.entry)
            return
        if data is not None and len(self._contents) < MOST_INLINE_FILES:
            self._contents[staged.path] = data
        else:
            self._blobs.add(digest)
        self._found.append(staged)

    def _pass_over(self, walked: WalkedEntry, entry: TreeEntry) -> None:
        self._passed_over[entry.path] = walked
        # Without a path, so that the user's own file is never taken for one that may be moved.
        self._found.append(WalkedEntry(entry, "", walked.info))

    def _copy(self, walked: WalkedEntry, left_bytes: int, lane: HashLane) -> tuple[WalkedEntry, bytes | None]:
        """Copy a file into staging; return the copy, and the content of a small one."""
        path = f"{self._staging}/{next(self._numbers)}"
        self._on_step("copy")
        with translated(walked.path):
            source = open_regular(walked.path)
        with source:
            if stamp_of(os.fstat(source.fileno())) != stamp_of(walked.info):
                raise changed_meanwhile(walked.entry.path)
            with translated(path), open(os.open(path, _CREATE, 0o600), "w+b", buffering=0) as copy:
                if self._shares_blocks is None:
                    self._shares_blocks = reflink(source, copy)
                    if not self._shares_blocks:
                        self._refuse_if_too_large(left_bytes)
                elif self._shares_blocks:
                    self._shares_blocks = reflink(source, copy)
                digest, size_bytes, data = self._read(walked, source, copy, lane)
            if stamp_of(os.fstat(source.fileno())) != stamp_of(walked.info) or size_bytes != walked.info.st_size:
                raise changed_meanwhile(walked.entry.path)
        entry = TreeEntry(walked.entry.path, size_bytes, digest, walked.entry.executable)
        return WalkedEntry(entry, path, os.lstat(path)), data

    def _read(
        self, walked: WalkedEntry, source: BinaryIO, copy: BinaryIO, lane: HashLane
    ) -> tuple[Digest, int, bytes | None]:
        """Hash the copy if it shares the source's blocks; otherwise write it, and hash what is written."""
        digest = sha256()
        size_bytes = 0
        small = b""
        is_small = walked.info.st_size <= INLINE_FILE_BYTES
        while block := _next_block(walked.path, copy if self._shares_blocks else source):
            lane.feed(digest, block)
            if not self._shares_blocks:
                write_all(copy.fileno(), block, size_bytes)
            size_bytes += len(block)
            small += block if is_small else b""
            self._heed(len(block))
        lane.wait()
        return Digest(digest.hexdigest()), size_bytes, small if is_small else None

    def _refuse_if_too_large(self, left_bytes: int) -> None:
        free = free_bytes(self._staging)
        if free < left_bytes:
            raise NoSpace(
                f"no space left: {format_size(left_bytes)} needed, {format_size(free)} free in "
                f"{self._store.places.root}",
                hint="`stoker clean` shows what can be removed",
                path=self._store.places.root,
            )


def blob_bytes(entries: Iterable[TreeEntry], inline: Mapping[str, bytes]) -> int:
    """Add up the blobs of these entries, each once; inline files do not count."""
    return sum({
        entry.sha256: entry.size_bytes
        for entry in entries if entry.link_to is None and entry.path not in inline
    }.values())  # fmt: skip


def size_of(found: Sequence[WalkedEntry]) -> int:
    """Add up the sizes of files."""
    return sum(walked.info.st_size for walked in found if walked.entry.link_to is None)


def changed_meanwhile(path: str) -> Refused:
    """Return the error for a file that changed since the start."""
    return Refused(f"{path} changed while it was read", hint="put it again when no program writes to it", path=path)


def _next_block(path: str, file: BinaryIO) -> bytes:
    with translated(path):
        return file.read(_BLOCK_BYTES)


# The index of stored trees: one line of JSON for each put and each removed name, append-only.
#
# It is a log: refs and records are the truth. Each line has its own check (`records.seal`), so one that was torn by a
# crash or edited is recognised and skipped; the next line starts behind it.

_SEAL = "put/1"


@frozen
class PutIndexRow:
    """One line of the index; `damage` is why it has no fields."""

    fields: dict[str, Any]
    damage: str = ""


def add_row(places: StorePaths, fields: dict[str, Any], *, on_step: Callable[[str], None] = NO_STEP) -> None:
    """Write one line, durably."""
    append_line(places.index, seal(_SEAL, fields), lock=os.path.join(places.refs, ".lock"), on_step=on_step)


def append_line(path: str, line: bytes, *, lock: str, on_step: Callable[[str], None] = NO_STEP) -> None:
    """Append a line to a file of lines, durably and under a lock: whole, or not at all if the disk is full."""
    with closing(BriefLocks()) as locks, locks.hold(lock), translated(path):
        is_new = not os.path.lexists(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            size_bytes = os.fstat(descriptor).st_size
            if size_bytes and os.pread(descriptor, 1, size_bytes - 1) != b"\n":
                # The last writer did not finish its line.
                line = b"\n" + line
            on_step("index")
            _write_whole(descriptor, line, size_bytes)
            on_step("index_sync")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_dir(os.path.dirname(path))


def read_index(places: StorePaths) -> Iterator[PutIndexRow]:
    """Return every line, the oldest first; empty if there is no index."""
    try:
        file = open_regular(places.index)
    except FileNotFoundError:
        return
    except OSError as error:
        yield PutIndexRow(fields={}, damage=str(error))
        return
    with file, translated(places.index):
        for line in file:
            yield _read(line)


def _read(line: bytes) -> PutIndexRow:
    try:
        return PutIndexRow(fields=unseal(_SEAL, line))
    except BrokenSeal as broken:
        return PutIndexRow(fields={}, damage=f"the line {broken}")


def _write_whole(descriptor: int, line: bytes, size_bytes: int) -> None:
    try:
        if os.write(descriptor, line) == len(line):
            return
    except OSError:
        os.ftruncate(descriptor, size_bytes)
        raise
    # The disk became full in the middle of a line: a partial line is worthless.
    os.ftruncate(descriptor, size_bytes)
    os.fsync(descriptor)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


_TRIES = 3


@frozen
class _TakenIn:
    """A tree whose bytes are stored."""

    tree: Tree
    inline: dict[str, bytes]
    """The small files, for its record."""
    new_bytes: int
    """Blobs that the store did not have."""
    archive_sha256: str = ""
    """Of the archive that contained it."""


@frozen
class PutSurvey:
    """A file or folder that was checked and may be put; nothing of it was read."""

    path: str
    found: tuple[WalkedEntry, ...]

    @property
    def size_bytes(self) -> int:
        return size_of(self.found)


@frozen
class PutRequest:
    """Options of a put."""

    name: str
    kind: str = ""
    replace: bool = False
    """True if the name may be moved from another tree."""
    source: str = ""
    """Its origin, for the index."""


@frozen
class StoredTree:
    """A stored tree, durable and named."""

    ref: Ref
    added_bytes: int
    """Bytes that the store did not have before."""
    is_known: bool
    """True if the very same tree was there already."""
    before: Ref | None = None
    """The tree of the name until now."""
    archive_sha256: str = ""
    """Of the archive that it was unpacked from."""


def survey(path: str) -> PutSurvey:
    """Check a file or a folder that is to be put; all faults at once.

    A path that is a symlink is followed. Our sidecar at the top of a result's folder is no part of it, so that a result
    has the same digest when it is put again. `LocalFile` for anything else, `InvalidInput` for what a tree can't
    contain.
    """
    real = os.path.realpath(path)
    with translated(path):
        info = os.stat(real)
    if stat.S_ISDIR(info.st_mode):
        found = walk_tree(real, hasher=_unread)
        return PutSurvey(path=real, found=tuple(walked for walked in found if not _is_our_list(walked)))
    if not stat.S_ISREG(info.st_mode):
        raise LocalFile(f"neither a file nor a folder: {path}", hint="copy what it gives into a file first", path=path)
    name = os.path.basename(os.path.abspath(path))
    try:
        name.encode()
    except UnicodeEncodeError:
        fault = Diagnostic(repr(name), "the name is not valid Unicode")
        raise InvalidInput(str(fault), faults=(fault,)) from None
    entry = TreeEntry(name, 0, Digest(""), executable=bool(info.st_mode & stat.S_IXUSR))
    return PutSurvey(path=real, found=(WalkedEntry(entry, real, info),))


class StoreWriter:
    """Puts into one store; `heed` is called for every byte."""

    def __init__(
        self, store: LocalStore, *, clock: Clock, heed: Heed, on_step: Callable[[str], None] = NO_STEP
    ) -> None:
        self._store = store
        self._clock = clock
        self._heed = heed
        self._on_step = on_step

    def put(self, surveyed: PutSurvey, wish: PutRequest, *, staging_name: str = PUT) -> StoredTree:
        """Take in a checked file or folder. In every case nothing is left in staging."""
        _refuse_overlap(surveyed.path, self._store.places.root)

        def take_in(staging: str) -> _TakenIn:
            copying = StagingCopy(self._store, staging, clock=self._clock, heed=self._heed, on_step=self._on_step)
            copying.copy_all(surveyed.found)
            _refuse_changed(surveyed)
            tree, inline = copying.keep_all()
            return _TakenIn(tree=tree, inline=inline, new_bytes=copying.added_bytes)

        return self._put(wish, staging_name, take_in)

    def put_unpacked(self, path: str, wish: PutRequest, *, staging_name: str = PUT) -> StoredTree:
        """Take in the content of an archive, unpacked and checked in staging: all of it, or nothing."""

        def take_in(staging: str) -> _TakenIn:
            with translated(path):
                archive = open_regular(path)
            with archive, io.BufferedReader(_Heeded(archive, self._heed), _BLOCK_BYTES) as stream:
                unpacked = unpack(stream, os.path.join(staging, "tree"))
            new = {walked.entry for walked in unpacked.found if not self._store.holds(walked.entry)}
            tree, inline = self._store.keep(unpacked.found, unpacked.small)
            return _TakenIn(
                tree=tree,
                inline=inline,
                new_bytes=blob_bytes(new, inline),
                archive_sha256=unpacked.archive_sha256,
            )

        return self._put(wish, staging_name, take_in)

    def _put(self, wish: PutRequest, staging_name: str, take_in: Callable[[str], _TakenIn]) -> StoredTree:
        """Take in and name, again if a prune comes between the two."""
        before = find_ref(self._store.places, check_ref_name(wish.name))
        for _ in range(_TRIES):
            staging = self._store.new_staging(staging_name)
            try:
                done = self._enter(take_in(staging), wish)
            finally:
                # Only now: while something is in staging, a prune knows that a put is running.
                remove_tree(staging)
            if done is not None:
                return done
        if before is None:
            remove_ref(self._store.places, wish.name)
        else:
            set_ref(self._store.places, before, replace=True)
        raise Refused(f"{wish.name} was pruned each time it was stored", hint="put it again when no prune runs")

    def _enter(self, taken_in: _TakenIn, wish: PutRequest) -> StoredTree | None:
        """Name a tree whose bytes are stored: record, ref, line of the index. None: it was pruned."""
        store, tree, inline = self._store, taken_in.tree, taken_in.inline
        digest = tree.digest()
        key = put_key(digest)
        ref = Ref(
            name=wish.name,
            digest=digest,
            key=key,
            kind=wish.kind,
            files=len(tree.entries),
            size_bytes=tree.size_bytes,
            at_s=self._clock.wall_s(),
        )
        refuse_taken(find_ref(store.places, wish.name), key, replace=wish.replace)
        body = {"stage": PUT, "kind": wish.kind, "made_at": ref.at_s}
        published = store.publish(Record.of(key=key, tree=tree, inline=inline, body=body))
        added_bytes = taken_in.new_bytes + (sum(map(len, inline.values())) if published.is_ours else 0)
        before = set_ref(store.places, ref, replace=wish.replace, on_step=self._on_step)
        # A later prune sees the name; an earlier one sees that the record was used since.
        if not store.renew_record(key):
            return None
        found = store.lookup(key)
        if not isinstance(found, RecordHit) or not found.has_bytes:
            return None
        row = {"did": PUT, **ref.to_json(), "added_bytes": added_bytes, "source": wish.source}
        if taken_in.archive_sha256:
            row["archive_sha256"] = taken_in.archive_sha256
        add_row(store.places, row, on_step=self._on_step)
        return StoredTree(
            ref=ref,
            added_bytes=added_bytes,
            is_known=not published.is_ours and not taken_in.new_bytes,
            before=before,
            archive_sha256=taken_in.archive_sha256,
        )


class _Heeded(io.RawIOBase):
    """A file that reports every byte that is read."""

    def __init__(self, file: BinaryIO, heed: Heed) -> None:
        self._file = file
        self._heed = heed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        count = int(self._file.readinto(buffer))  # type: ignore[attr-defined]  # every file opened to be read has it
        self._heed(count)
        return count


def put_key(digest: Digest) -> Digest:
    """Return the key of a stored tree: its content decides, and nothing else."""
    return digest_value(PUT, digest)


def _is_our_list(walked: WalkedEntry) -> bool:
    return walked.entry.path == SIDECAR and is_sidecar(walked.path)


def _unread(_path: str) -> tuple[Digest, int]:
    return Digest(""), 0


def _refuse_overlap(path: str, root: str) -> None:
    store = os.path.realpath(root)
    if os.path.commonpath([path, store]) in (path, store):
        raise Refused(f"{path} and the store are inside one another", hint="put a folder that is not the store's")


def _refuse_changed(surveyed: PutSurvey) -> None:
    """Check again: a tree is put as of one moment, or not at all."""
    if len(surveyed.found) == 1 and surveyed.found[0].path == surveyed.path:
        return
    before, now = (
        {walked.entry.path: (walked.entry.link_to, stamp_of(walked.info)) for walked in one.found}
        for one in (surveyed, survey(surveyed.path))
    )
    different = sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))
    if different:
        raise changed_meanwhile(different[0])
