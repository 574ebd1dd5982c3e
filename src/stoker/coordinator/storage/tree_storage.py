"""Trees of code and data with the coordinator: files under their digest, beside archives, and listings that name them.

A tree is named in the queue's database once every file of it is here, so a job that is pointed at one finds it whole.
What is too large, or has no room on the disk, is refused by what it says of itself, before its bytes flow. While a tree
is being named, a prune spares its files (`arriving`); while a prune takes files, no tree is named that needs them.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import BinaryIO

from sqlalchemy import select, text

from stoker.coordinator.database.database import Database, snapshot
from stoker.coordinator.database.tables import CONTENTS, JOBS
from stoker.coordinator.queue.commands import Command, DropTrees, KeepTree, QueueCommandResult, WantTree
from stoker.coordinator.queue.writer import Queue
from stoker.coordinator.storage.attempt_files import UPLOAD_OPTION
from stoker.coordinator.storage.listed_files import read_files
from stoker.coordinator.storage.storage import CoordinatorStorage
from stoker.core.digests import Digest, OpenEntry, Tree, TreeEntry
from stoker.core.errors import BadInput, Damaged, InternalError, NotFound, Refused, TooLarge
from stoker.core.frozen import fresh, frozen
from stoker.core.text import format_duration, format_size
from stoker.host.durable import translated
from stoker.protocol.tree_messages import HEAD_BYTES, PACKED_BYTES, head, in_packs, read_pack
from stoker.store.archives.archive_members import check_tree, files_of, listing_bytes
from stoker.store.objects import ObjectStore

_REMEMBERED = 1000
_PIECE_BYTES = 128 << 10
"""Of an answer that is not read yet, in memory."""


# Which trees of code and data a prune would let go of: decided purely, with a reason for each.

UNUSED_S = 7 * 86400.0
"""A tree that no job waits for stays so long after somebody last wanted it: jobs that failed may be tried again."""
WANTED = "a job needs it"
PINNED = "pinned"
YOUNG = "wanted lately"


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
    """One tree that goes, and why."""

    row: TreeRow
    why: str


@frozen
class TreeDecision:
    """Which trees go, and why others stay."""

    removals: tuple[TreeRemoval, ...] = ()
    kept_by_reason: dict[str, int] = fresh(factory=dict)


def decide_trees(
    rows: Iterable[TreeRow], wanted_by_jobs: frozenset[str], *, unused_s: float, now_s: float
) -> TreeDecision:
    """Decide which trees nobody waits for any more."""
    removals, kept = [], Counter[str]()
    for row in rows:
        idle_s = now_s - row.wanted_s
        reason = (
            WANTED if row.tree in wanted_by_jobs else PINNED if row.is_pinned else YOUNG if idle_s <= unused_s else ""
        )
        if reason:
            kept[reason] += 1
        else:
            removals.append(
                TreeRemoval(row=row, why=f"no job needs it, and nobody wanted it for {format_duration(idle_s)}")
            )
    return TreeDecision(removals=tuple(removals), kept_by_reason=dict(kept))


@frozen
class TreeListingResult:
    """What became of a listing."""

    tree: str
    files: int
    size_bytes: int
    missing: int = 0
    """So many of its files are not here: it is not named."""


class CoordinatorTrees:
    """The trees of one coordinator. Safe to use from several threads."""

    def __init__(self, keeping: CoordinatorStorage, records: QueueTrees) -> None:
        self._keeping = keeping
        self._objects = keeping.objects
        self._limits = keeping.limits
        self._records = records
        self._turn = threading.Lock()
        self._listings: OrderedDict[str, TreeRow] = OrderedDict()
        self._arriving: Counter[str] = Counter()
        self._doubted: set[str] = set()

    def want(self, tree: str, *, files: int = 0, size_bytes: int = 0) -> TreeRow | None:
        """Give a tree that is here, to stay for a while; nothing if it is not. `TooLarge` if it may not come either."""
        if self._records.want(tree) and (row := self._find(tree)) is not None and not self._lacks(row):
            return row
        self._forget(tree)
        limits = self._limits
        self._check_size(size_bytes)
        if files > limits.tree_files:
            raise TooLarge(
                f"a tree of {files} files: {limits.tree_files} are the most",
                hint="pack them into fewer, larger files",
                most_files=limits.tree_files,
            )
        return None

    def missing(self, digests: Iterable[str], sizes: tuple[int, ...] = ()) -> tuple[str, ...]:
        """Say which files are not here, or on their way out. With sizes: `TooLarge`, `NoSpace` if those can't come."""
        asked = tuple(digests)
        if sizes and len(sizes) != len(asked):
            raise BadInput(f"{len(asked)} digests and {len(sizes)} sizes")
        lacking = tuple(digest for digest in asked if self._keeping.has_archive(digest) is None)
        if sizes and lacking:
            by_digest = dict(zip(asked, sizes, strict=True))
            self._check_size(sum(by_digest.values()))
            self._keeping.check_room(sum(by_digest[digest] for digest in lacking))
        return lacking

    def _check_size(self, size_bytes: int) -> None:
        """Refuse a tree that is larger than any may be, by what is said of it, before its bytes come."""
        most = self._limits.tree_bytes
        if size_bytes > most:
            raise TooLarge(
                f"a tree of {format_size(size_bytes)}: {format_size(most)} are the most that this coordinator keeps",
                hint=f"put it where every machine can read it, or let the coordinator take more: `{UPLOAD_OPTION}`",
                most_bytes=most,
            )

    def keep_pack(self, pack: bytes) -> tuple[int, int]:
        """Take the files of a pack in, durable on return: how many were new, and how many known.

        `HashMismatch` or `BadInput` if it is not what it says; files before the fault may have been kept.
        """
        files = dict(read_pack(pack))
        for digest in files:
            self._keeping.bundles.refuse_going(digest)
        self._keeping.check_room(sum(map(len, files.values())))
        new = self._objects.put_all(files.items())
        return new, len(files) - new

    def keep_tree(self, tree: str, listing: BinaryIO) -> TreeListingResult:
        """Name a tree by its listing, if all of its files are here; else say how many are not."""
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
            self._keeping.check_room(listed.listing_bytes)
            listing.seek(0)
            self._objects.put(digest, listing, size_bytes=listed.listing_bytes)
            self._records.keep(tree, listing=digest, files=kept.files, size_bytes=kept.size_bytes)
        return kept

    def has(self, tree: str) -> bool:
        """Return whether a tree is here. Cheap."""
        return self._find(tree) is not None

    def listing(self, tree: str) -> bytes:
        """Return the listing of a tree that is here. Raises `NotFound`."""
        with self.open_listing(tree)[1] as file:
            return file.read()

    def open_listing(self, tree: str) -> tuple[int, BinaryIO]:
        """Return the size of the listing of a tree that is here, and the listing to read. Caller closes.

        Raises `NotFound`.
        """
        row = self._find(tree)
        size_bytes = self._objects.size(Digest(row.listing)) if row is not None else None
        if row is None or size_bytes is None:
            raise NotFound(f"no tree {tree[:12]} lies with this coordinator", hint="it never came, or was pruned")
        return size_bytes, self._objects.open(Digest(row.listing))

    def frames(self, digests: Iterable[str]) -> tuple[int, Iterator[bytes]]:
        """Return small files as frames, in pieces, and how many bytes that are; what is not here is left out."""
        found: list[tuple[str, int]] = []
        for digest in dict.fromkeys(digests):
            size_bytes = self._keeping.has_archive(digest)
            if size_bytes is None:
                self.missed(digest)
            elif size_bytes <= PACKED_BYTES:
                found.append((digest, size_bytes))
        return sum(HEAD_BYTES + size_bytes for _, size_bytes in found), self._pieces(found)

    def missed(self, digest: str) -> None:
        """Note that somebody asked for a file that is not here. If a tree needs it, it was lost, and may come again."""
        with self._turn:
            if len(self._doubted) < _REMEMBERED:
                self._doubted.add(digest)

    def files_of(self, row: TreeRow) -> frozenset[str]:
        """Return everything that a named tree needs, its listing included; only that where it can't be read."""
        try:
            with self.open_listing(row.tree)[1] as listing:
                listed = read_files(listing, row.tree, most_entries=row.files)
        except (NotFound, BadInput, Damaged):
            return frozenset({row.listing})
        return frozenset({row.listing, *listed.files})

    def arriving(self) -> frozenset[str]:
        """Return what trees need that are being named just now."""
        with self._turn:
            return frozenset(self._arriving)

    def drop(self, trees: tuple[TreeRow, ...]) -> frozenset[str]:
        """Forget trees, except those that were wanted meanwhile, and say which."""
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
        """Return whether a tree that is named lost a file since: looked at only where somebody missed one."""
        with self._turn:
            doubted = frozenset(self._doubted)
        if not doubted:
            return False
        lost = [digest for digest in doubted & self.files_of(row) if self._keeping.has_archive(digest) is None]
        with self._turn:
            self._doubted -= {digest for digest in doubted if self._keeping.has_archive(digest) is not None}
        return bool(lost)

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


# Trees of files on the coordinator's own machine: code and data of its own manifest, taken in without a line.


def keep_own_tree(
    contents: CoordinatorTrees, objects: ObjectStore, tree: Tree, open_file: OpenEntry, shown: str
) -> None:
    """Have a tree here whose files this machine has. Raises what keeping it raises, or `HashMismatch`.

    `shown` is what it is called where its files changed meanwhile.
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
        raise Refused(f"files of {shown} changed while they were read", hint="say it again when nobody writes there")


def _read(entry: TreeEntry, open_file: OpenEntry) -> bytes:
    with translated(entry.path), open_file(entry) as file:
        return file.read()


# What the queue's database says of trees: read beside the writer, changed through it.

_AT_ONCE = 500
# As `JobSpec` is stored: its code and its inputs.
_NAMED = re.compile(r'"(?:code_tree|tree)":\s*"([0-9a-f]{64})"')
_IS_OPEN = text("jobs.state IN ('pending', 'claimed', 'running')")


class QueueTrees:
    """What the queue's database says of trees: read beside the writer, changed through it."""

    def __init__(self, queue: Queue, database: Database) -> None:
        self._queue = queue
        self._database = database

    def find(self, tree: str) -> TreeRow | None:
        """Return a tree that is named."""
        with snapshot(self._database) as connection:
            row = connection.execute(select(CONTENTS).where(CONTENTS.c.tree == tree)).mappings().first()
        return None if row is None else TreeRow(**row)

    def all(self) -> tuple[TreeRow, ...]:
        """Return all trees that are named."""
        with snapshot(self._database) as connection:
            rows = connection.execute(select(CONTENTS).order_by(CONTENTS.c.tree)).mappings().all()
        return tuple(TreeRow(**row) for row in rows)

    def keep(self, tree: str, *, listing: str, files: int, size_bytes: int) -> None:
        """Name a tree, durably."""
        self._ask(KeepTree(tree=tree, listing=listing, files=files, size_bytes=size_bytes))

    def want(self, tree: str) -> bool:
        """Note that a tree is wanted. False: there is none."""
        return bool(self._ask(WantTree(tree=tree)).changed)

    def drop(self, trees: tuple[TreeRow, ...]) -> frozenset[str]:
        """Forget trees, except those that were wanted since, and return which.

        On return, whatever was asked of the queue before is durable too.
        """
        gone: set[str] = set()
        # Also with nothing to drop: what the writer was asked before is durable once it answers.
        for start in range(0, max(1, len(trees)), _AT_ONCE):
            some = tuple((row.tree, row.wanted_s) for row in trees[start : start + _AT_ONCE])
            gone.update(self._ask(DropTrees(trees=some)).changed)
        return frozenset(gone)

    def wanted_by_jobs(self) -> frozenset[str]:
        """Return the trees that jobs name which have not ended."""
        return frozenset(self._named())

    def _named(self) -> Iterator[str]:
        asked = select(JOBS.c.spec).where(_IS_OPEN)
        with snapshot(self._database) as connection:
            for spec in connection.execute(asked.execution_options(yield_per=1000)).scalars():
                yield from _NAMED.findall(spec)

    def _ask(self, command: Command) -> QueueCommandResult:
        done = self._queue.ask(command)
        if not isinstance(done, QueueCommandResult):
            raise InternalError(f"a command about trees was answered by {done!r}")
        return done
