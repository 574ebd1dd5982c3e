"""Trees that the coordinator has: code and data of jobs, results, checkpoints.

Files are objects under their digest, and so is the listing that names them. A tree is named in the queue's database
once every file of it is here, so a job that names one finds it whole. What is too large, or does not fit on the disk,
is refused by its stated size, before its bytes come. While a tree is being named, a prune spares its files
(`arriving`); while a prune removes files, no tree is named that needs them.

Earlier versions kept results and checkpoints as archives. Such an archive is unpacked into a tree when the tree is
requested first.
"""

from __future__ import annotations

import math
import os
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from typing import BinaryIO

from sqlalchemy import select, text

from stoker.coordinator.database.database import Database, snapshot
from stoker.coordinator.database.tables import BUNDLES, CONTENTS, JOBS
from stoker.coordinator.queue.commands import Command, DropTrees, KeepTree, QueueCommandResult, WantTree
from stoker.coordinator.queue.writer import Queue
from stoker.coordinator.storage.attempt_files import UPLOAD_OPTION
from stoker.coordinator.storage.listed_files import read_files
from stoker.coordinator.storage.storage import CoordinatorStorage
from stoker.core.digests import Digest, OpenEntry, Tree, TreeEntry, is_digest
from stoker.core.errors import BadInput, Damaged, InternalError, NotFound, Refused, TooLarge
from stoker.core.frozen import fresh, frozen
from stoker.core.jsontext import loads
from stoker.core.text import format_duration, format_size
from stoker.host.durable import open_regular, translated
from stoker.protocol.tree_messages import HEAD_BYTES, PACKED_BYTES, head, in_packs, read_pack
from stoker.store.archives.archive_members import check_tree, files_of, listing_bytes
from stoker.store.archives.unpack import unpack
from stoker.store.objects.seam import Objects

_REMEMBERED = 1000
_PIECE_BYTES = 128 << 10
"""Of a response, in memory at once."""


# Which trees a prune removes: decided purely, with a reason for each.

UNUSED_S = 7 * 86400.0
"""How long a tree that no open job needs is kept: jobs that failed may be tried again."""
WANTED = "a job needs it"
PINNED = "pinned"
YOUNG = "used recently"


@frozen
class TreeRow:
    """One tree as the database names it."""

    tree: str
    listing: str
    files: int
    size_bytes: int
    at_s: float
    wanted_s: float
    is_pinned: bool


@frozen
class TreeRemoval:
    """One tree to remove, and why."""

    row: TreeRow
    why: str


@frozen
class TreeDecision:
    """Which trees to remove, and why others stay."""

    removals: tuple[TreeRemoval, ...] = ()
    """Unused trees."""
    released: tuple[TreeRow, ...] = ()
    """Trees of results that are removed."""
    kept_by_reason: dict[str, int] = fresh(factory=dict)

    @property
    def rows(self) -> tuple[TreeRow, ...]:
        """All trees to remove."""
        return (*self.released, *(removal.row for removal in self.removals))


def decide_trees(
    rows: Iterable[TreeRow], needed: frozenset[str], *, released: Mapping[str, float], unused_s: float, now_s: float
) -> TreeDecision:
    """Decide which trees to remove.

    `needed` are the trees of open jobs, and of results and checkpoints that stay. `released` are the trees of results
    that are removed, with the time of the newest such result: if no submission named the tree since, it is removed now.
    """
    removals, freed, kept = [], [], Counter[str]()
    for row in rows:
        idle_s = now_s - row.wanted_s
        if row.tree in needed:
            kept[WANTED] += 1
        elif row.is_pinned:
            kept[PINNED] += 1
        elif row.wanted_s <= released.get(row.tree, -math.inf):
            freed.append(row)
        elif idle_s <= unused_s:
            kept[YOUNG] += 1
        else:
            removals.append(TreeRemoval(row=row, why=f"no job needs it; last used {format_duration(idle_s)} ago"))
    return TreeDecision(removals=tuple(removals), released=tuple(freed), kept_by_reason=dict(kept))


@frozen
class TreeListingResult:
    """Whether a listing was accepted."""

    tree: str
    files: int
    size_bytes: int
    missing: int = 0
    """How many of its files are not here; if any, the tree is not named."""


class CoordinatorTrees:
    """The trees of one coordinator. Thread-safe."""

    def __init__(self, keeping: CoordinatorStorage, records: QueueTrees) -> None:
        self._keeping = keeping
        self._objects = keeping.objects
        self._limits = keeping.limits
        self._records = records
        self._turn = threading.Lock()
        self._unpacking = threading.Lock()
        self._listings: OrderedDict[str, TreeRow] = OrderedDict()
        self._arriving: Counter[str] = Counter()
        self._doubted: set[str] = set()

    def want(self, tree: str, *, files: int = 0, size_bytes: int = 0) -> TreeRow | None:
        """Return a tree that is here, and keep it for a while; None if it is not here. Raises `TooLarge`."""
        if self._records.want(tree) and (row := self._find(tree)) is not None and not self._lacks(row):
            return row
        self._forget(tree)
        limits = self._limits
        self._check_size(size_bytes)
        if files > limits.tree_files:
            raise TooLarge(
                f"a tree of {files} files: at most {limits.tree_files} are accepted",
                hint="pack them into fewer, larger files",
                most_files=limits.tree_files,
            )
        return None

    def missing(self, digests: Iterable[str], sizes: tuple[int, ...] = ()) -> tuple[str, ...]:
        """Return which files are not here, or are being removed. With sizes: raises `TooLarge` or `NoSpace`."""
        asked = tuple(digests)
        if sizes and len(sizes) != len(asked):
            raise BadInput(f"{len(asked)} digests and {len(sizes)} sizes")
        lacking = tuple(digest for digest in asked if self._keeping.has_archive(digest) is None)
        if sizes and lacking:
            by_digest = dict(zip(asked, sizes, strict=True))
            self._check_size(sum(by_digest.values()))
            self._keeping.check_object_room(sum(by_digest[digest] for digest in lacking))
        return lacking

    def _check_size(self, size_bytes: int) -> None:
        """Raise `TooLarge` for a tree over the limit, by its stated size, before its bytes come."""
        most = self._limits.tree_bytes
        if size_bytes > most:
            raise TooLarge(
                f"a tree of {format_size(size_bytes)}: this coordinator accepts at most {format_size(most)}",
                hint=f"put it where every machine can read it, or raise the limit: `{UPLOAD_OPTION}`",
                most_bytes=most,
            )

    def keep_pack(self, pack: bytes) -> tuple[int, int]:
        """Store the files of a pack, durable on return; return how many were new, and how many known.

        Raises `HashMismatch` or `BadInput` if the pack is invalid; files before the fault may have been stored.
        """
        files = dict(read_pack(pack))
        for digest in files:
            self._keeping.bundles.refuse_going(digest)
        self._keeping.check_object_room(sum(map(len, files.values())))
        new = self._objects.put_all(files.items())
        return new, len(files) - new

    def keep_tree(self, tree: str, listing: BinaryIO) -> TreeListingResult:
        """Name a tree by its listing, if all of its files are here; else return how many are not."""
        listed = read_files(listing, tree, most_entries=self._limits.tree_files)
        files = listed.files
        self._check_size(listed.size_bytes)
        if listed.largest_bytes > self._limits.archive_bytes:
            raise TooLarge(f"{listed.largest}: a file of {format_size(listed.largest_bytes)}")
        digest = listed.listing
        with self._arrival([*files, digest]):
            has_archive = self._keeping.has_archive
            missing = sum(has_archive(one) != its_bytes for one, its_bytes in files.items())
            kept = TreeListingResult(tree=tree, files=listed.entries, size_bytes=listed.size_bytes, missing=missing)
            if missing:
                return kept
            self._keeping.bundles.refuse_going(digest)
            self._keeping.check_object_room(listed.listing_bytes)
            listing.seek(0)
            self._objects.put(digest, listing, size_bytes=listed.listing_bytes)
            self._records.keep(tree, listing=digest, files=kept.files, size_bytes=kept.size_bytes)
        return kept

    def has(self, tree: str) -> bool:
        """Return True if a tree is here, or an archive of it. Cheap."""
        return self._find(tree) is not None or self._archive_of(tree) is not None

    def listing(self, tree: str) -> bytes:
        """Return the listing of a tree that is here. Raises `NotFound`."""
        with self.open_listing(tree)[1] as file:
            return file.read()

    def open_listing(self, tree: str) -> tuple[int, BinaryIO]:
        """Return the size of the listing of a tree that is here, and the listing to read. Caller closes.

        Raises `NotFound`.
        """
        row = self._find(tree) or self._unpack(tree)
        size_bytes = self._objects.size(Digest(row.listing)) if row is not None else None
        if row is None or size_bytes is None:
            raise NotFound(f"this coordinator has no tree {tree[:12]}", hint="it was never sent, or was pruned")
        return size_bytes, self._objects.open(Digest(row.listing))

    def frames(self, digests: Iterable[str]) -> tuple[int, Iterator[bytes]]:
        """Return the size of small files as frames, and the frames in pieces; files that are not here are left out."""
        found: list[tuple[str, int]] = []
        for digest in dict.fromkeys(digests):
            size_bytes = self._keeping.has_archive(digest)
            if size_bytes is None:
                self.missed(digest)
            elif size_bytes <= PACKED_BYTES:
                found.append((digest, size_bytes))
        return sum(HEAD_BYTES + size_bytes for _, size_bytes in found), self._pieces(found)

    def missed(self, digest: str) -> None:
        """Note that a requested file is not here. If a tree needs it, it was lost, and may be sent again."""
        with self._turn:
            if len(self._doubted) < _REMEMBERED:
                self._doubted.add(digest)

    def files_of(self, row: TreeRow) -> frozenset[str]:
        """Return all objects of a named tree, its listing included; only the listing if that can't be read."""
        try:
            with self._objects.open(Digest(row.listing)) as listing:
                listed = read_files(listing, row.tree, most_entries=row.files)
        except (NotFound, BadInput, Damaged):
            return frozenset({row.listing})
        return frozenset({row.listing, *listed.files})

    def arriving(self) -> frozenset[str]:
        """Return the objects of trees that are being named now."""
        with self._turn:
            return frozenset(self._arriving)

    def drop(self, trees: tuple[TreeRow, ...]) -> frozenset[str]:
        """Forget trees, except those that were wanted meanwhile; return which."""
        gone = self._records.drop(trees)
        for tree in gone:
            self._forget(tree)
        return gone

    @property
    def records(self) -> QueueTrees:
        return self._records

    @contextmanager
    def _arrival(self, digests: list[str]) -> Iterator[None]:
        with self._turn:
            self._arriving.update(digests)
        try:
            yield
        finally:
            with self._turn:
                self._arriving.subtract(digests)
                self._arriving += Counter()

    def _pieces(self, found: list[tuple[str, int]]) -> Iterator[bytes]:
        parts: list[bytes] = []
        waiting_bytes = 0
        for digest, size_bytes in found:
            parts.append(head(digest, size_bytes))
            with self._objects.open(Digest(digest)) as file:
                while piece := file.read(_PIECE_BYTES):
                    parts.append(piece)
                    waiting_bytes += len(piece)
                    if waiting_bytes >= _PIECE_BYTES:
                        yield b"".join(parts)
                        parts, waiting_bytes = [], 0
        yield b"".join(parts)

    def _lacks(self, row: TreeRow) -> bool:
        """Return True if a named tree lost its listing, or a file that was requested."""
        if self._keeping.has_archive(row.listing) is None:
            return True
        with self._turn:
            doubted = frozenset(self._doubted)
        if not doubted:
            return False
        lost = [digest for digest in doubted & self.files_of(row) if self._keeping.has_archive(digest) is None]
        with self._turn:
            self._doubted -= {digest for digest in doubted if self._keeping.has_archive(digest) is not None}
        return bool(lost)

    def _archive_of(self, tree: str) -> str | None:
        """Return the digest of the archive as which an earlier version kept a tree, if it is here."""
        archive = self._records.archive_of(tree)
        return archive if self._keeping.has_archive(archive) is not None else None

    def _unpack(self, tree: str) -> TreeRow | None:
        """Unpack the archive of a tree, name the tree, and return it; None if there is no archive of it."""
        with self._unpacking:
            row, archive = self._find(tree), self._archive_of(tree)
            if row is not None or archive is None:
                return row
            with self._keeping.staging() as folder, self._keeping.bundles.open(archive) as file:
                unpacked = unpack(file, os.path.join(folder, "tree"))
                if unpacked.tree.digest() != tree:
                    return None
                paths = {walked.entry.path: walked.path for walked in unpacked.found}
                keep_own_tree(
                    self,
                    self._objects,
                    unpacked.tree,
                    lambda entry: open_regular(paths[entry.path]),
                    shown=f"archive {archive[:12]}",
                )
            return self._find(tree)

    def _find(self, tree: str) -> TreeRow | None:
        with self._turn:
            row = self._listings.get(tree)
        if row is None:
            row = self._records.find(tree)
            if row is not None:
                with self._turn:
                    self._listings[tree] = row
                    while len(self._listings) > _REMEMBERED:
                        self._listings.popitem(last=False)
        return row

    def _forget(self, tree: str) -> None:
        with self._turn:
            self._listings.pop(tree, None)


# Trees of files on the coordinator's own machine: code and data of its own manifest, results of system A's workers.


def keep_own_tree(contents: CoordinatorTrees, objects: Objects, tree: Tree, open_file: OpenEntry, shown: str) -> None:
    """Store and name a tree whose files are on this machine. Raises what `keep_tree` raises, or `HashMismatch`.

    `shown` names it in the error if its files changed meanwhile.
    """
    check_tree(tree)
    digest = tree.digest()
    if contents.want(digest, files=len(tree.entries), size_bytes=tree.size_bytes) is not None:
        return
    sizes = files_of(tree)
    entries: dict[str, TreeEntry] = {entry.sha256: entry for entry in tree.entries if entry.link_to is None}
    missing = set(contents.missing(sizes, tuple(sizes.values())))
    small = [(one, sizes[one]) for one in sizes if one in missing and sizes[one] <= PACKED_BYTES]
    for pack in in_packs(small):
        objects.put_all([(one, _read(entries[one], open_file)) for one in pack])
    for one in (one for one in sizes if one in missing and sizes[one] > PACKED_BYTES):
        with translated(entries[one].path), open_file(entries[one]) as file:
            objects.put(one, file, size_bytes=sizes[one])
    if contents.keep_tree(digest, BytesIO(listing_bytes(tree))).missing:
        raise Refused(f"files of {shown} changed while they were read", hint="try again when no program writes there")


def _read(entry: TreeEntry, open_file: OpenEntry) -> bytes:
    with translated(entry.path), open_file(entry) as file:
        return file.read()


def stored_sizes(
    keeping: CoordinatorStorage, database: Database, *, is_thorough: bool = False
) -> Callable[[str], int | None]:
    """Return a function that returns the size of an archive or a tree by its digest; None if it is not here, or going.

    Of a tree only the listing is looked for, which is cheap; if `is_thorough`, each of its files as well.
    """

    def size_of(digest: str) -> int | None:
        size_bytes = keeping.has_archive(digest)
        if size_bytes is None and is_digest(digest) and not keeping.bundles.is_going(digest):
            row = find_tree(database, digest)
            if row is not None and keeping.has_archive(row.listing) is not None:
                return row.size_bytes if not is_thorough or _has_files(keeping, row) else None
        return size_bytes

    return size_of


def _has_files(keeping: CoordinatorStorage, row: TreeRow) -> bool:
    """Return True if each file of a tree is stored."""
    try:
        with keeping.objects.open(Digest(row.listing)) as listing:
            files = read_files(listing, row.tree, most_entries=row.files).files
    except (NotFound, BadInput, Damaged):
        return False
    return all(keeping.has_archive(digest) == size_bytes for digest, size_bytes in files.items())


# What the queue's database records of trees: read beside the writer, changed through it.

_AT_ONCE = 500
# As `JobSpec` is stored: its code and its inputs.
_NAMED = re.compile(r'"(?:code_tree|tree)":\s*"([0-9a-f]{64})"')
_IS_OPEN = text("jobs.state IN ('pending', 'claimed', 'running')")


def find_tree(database: Database, tree: str) -> TreeRow | None:
    """Return a tree that is named."""
    with snapshot(database) as connection:
        row = connection.execute(select(CONTENTS).where(CONTENTS.c.tree == tree)).mappings().first()
    return None if row is None else TreeRow(**row)


class QueueTrees:
    """What the queue's database records of trees: read beside the writer, changed through it."""

    def __init__(self, queue: Queue, database: Database) -> None:
        self._queue = queue
        self._database = database

    def find(self, tree: str) -> TreeRow | None:
        """Return a tree that is named."""
        return find_tree(self._database, tree)

    def archive_of(self, tree: str) -> str:
        """Return the digest of the archive as which a result or an open job's checkpoint was sent; empty: none."""
        results = select(BUNDLES.c.archive_sha256).where(BUNDLES.c.tree == tree, BUNDLES.c.pruned_s.is_(None))
        checkpoints = select(JOBS.c.checkpoint).where(_IS_OPEN, JOBS.c.checkpoint.contains(tree))
        with snapshot(self._database) as connection:
            archive = connection.execute(results).scalar()
            if archive is None:
                checkpoint = connection.execute(checkpoints).scalar()
                archive = loads(checkpoint)["archive_sha256"] if checkpoint is not None else ""
        return str(archive)

    def all(self) -> tuple[TreeRow, ...]:
        """Return all trees that are named."""
        with snapshot(self._database) as connection:
            rows = connection.execute(select(CONTENTS).order_by(CONTENTS.c.tree)).mappings().all()
        return tuple(TreeRow(**row) for row in rows)

    def keep(self, tree: str, *, listing: str, files: int, size_bytes: int) -> None:
        """Name a tree, durably."""
        self._ask(KeepTree(tree=tree, listing=listing, files=files, size_bytes=size_bytes))

    def want(self, tree: str) -> bool:
        """Note that a tree is wanted; return False if it is not named."""
        return bool(self._ask(WantTree(tree=tree)).changed)

    def drop(self, trees: tuple[TreeRow, ...]) -> frozenset[str]:
        """Forget trees, except those that were wanted since; return which.

        On return, every earlier command to the queue is durable too.
        """
        gone: set[str] = set()
        # Also with nothing to drop: earlier commands are durable once the writer answers.
        for start in range(0, max(1, len(trees)), _AT_ONCE):
            some = tuple((row.tree, row.wanted_s) for row in trees[start : start + _AT_ONCE])
            gone.update(self._ask(DropTrees(trees=some)).changed)
        return frozenset(gone)

    def wanted_by_jobs(self) -> frozenset[str]:
        """Return the trees that open jobs name as code or data."""
        found: set[str] = set()
        specs = select(JOBS.c.spec).where(_IS_OPEN).execution_options(yield_per=1000)
        with snapshot(self._database) as connection:
            for spec in connection.execute(specs).scalars():
                found.update(_NAMED.findall(spec))
        return frozenset(found)

    def _ask(self, command: Command) -> QueueCommandResult:
        done = self._queue.ask(command)
        if not isinstance(done, QueueCommandResult):
            raise InternalError(f"a command about trees was answered by {done!r}")
        return done
