"""Digests that were verified here, each with the stamp of its file; and data as trees.

A file whose (size, inode, mtime, ctime) are what they were when its bytes were hashed is not hashed again. This is
knowledge of one machine about its own disk: losing it costs time, never correctness, so no error of the database fails
the work. A damaged one is set aside and replaced; one that can't be used now (locked, read-only) turns the memo off.
`trouble` names the reason.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Sequence
from functools import partial

from stoker.core.clock import Clock
from stoker.core.digests import Digest, Tree, TreeEntry, is_digest
from stoker.core.errors import LocalFile, NoPermission, StokerError
from stoker.host.durable import SETTLED_NS, Stamp, stamp_of, translated
from stoker.store.trees import Hasher, Heed, hash_file, heed_now, scan_tree

__all__ = ["Memo", "Stamp", "stamp_of"]

_FLUSH_AT = 512
_MOST_PRELOADED = 100_000

# Our statements are right, so what SQLite calls an error in them is a table that is not ours.
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})


class Memo:
    """Digests by name, each with the stamp of the file it was computed from. Thread-safe."""

    def __init__(self, path: str, *, set_aside: Callable[[str, str], object]) -> None:
        """Make a memo in a database file. `set_aside(path, reason)` is called for a damaged one."""
        self._path = path
        self._set_aside = set_aside
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Stamp, str]] = {}
        self._fresh: dict[str, tuple[Stamp, str]] = {}
        self._db: sqlite3.Connection | None = None
        self._opened = False
        self.trouble = ""

    def recall(self, name: str, stamp: Stamp) -> Digest | None:
        """Return the digest known for a name, if the file still has the same stamp."""
        with self._lock:
            known = self._known.get(name)
            if known is None or known[0] != stamp:
                # Another process may have written it since.
                known = self._load(name)
        return Digest(known[1]) if known is not None and known[0] == stamp else None

    def preload(self, beginning: str) -> None:
        """Read all names with this prefix at once, for a caller that needs many of them."""
        with self._lock:
            db = self._open()
            if db is None:
                return
            try:
                query = "SELECT name, stamp, digest FROM verified WHERE name >= ? AND name < ? LIMIT ?"
                rows = db.execute(query, (beginning, f"{beginning}\U0010ffff", _MOST_PRELOADED)).fetchall()
            except sqlite3.Error as error:
                self._give_up(error)
                return
            for name, *row in rows:
                known = _read_row(*row)
                if known is not None:
                    self._known.setdefault(name, known)

    def remember(self, name: str, stamp: Stamp, digest: Digest) -> None:
        """Record that the file with this stamp has this digest."""
        with self._lock:
            self._known[name] = self._fresh[name] = (stamp, digest)
            if len(self._fresh) >= _FLUSH_AT:
                self._flush()

    def remember_settled(self, name: str, stamp: Stamp, digest: Digest, *, now_s: float) -> None:
        """Record a digest of a file that others may write, unless it changed a moment ago."""
        if now_s * 1e9 - max(stamp[2:]) >= SETTLED_NS:
            self.remember(name, stamp, digest)

    def forget(self, name: str) -> None:
        """Drop what is known under a name."""
        with self._lock:
            self._known.pop(name, None)
            self._fresh.pop(name, None)
            self._change("DELETE FROM verified WHERE name = ?", [(name,)])

    def write_down(self) -> None:
        """Write new rows, for other processes."""
        with self._lock:
            self._flush()

    def close(self) -> None:
        """Write new rows and close the database."""
        with self._lock:
            self._flush()
            if self._db is not None:
                self._db.close()
            self._db = None
            self._opened = False

    def _load(self, name: str) -> tuple[Stamp, str] | None:
        db = self._open()
        if db is None:
            return None
        try:
            row = db.execute("SELECT stamp, digest FROM verified WHERE name = ?", (name,)).fetchone()
        except sqlite3.Error as error:
            self._give_up(error)
            return None
        known = _read_row(*row) if row is not None else None
        if known is not None:
            self._known[name] = known
        return known

    def _flush(self) -> None:
        if self._fresh:
            rows = [(name, " ".join(map(str, stamp)), digest) for name, (stamp, digest) in self._fresh.items()]
            self._change("INSERT OR REPLACE INTO verified VALUES (?, ?, ?)", rows)
            self._fresh.clear()

    def _change(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        db = self._open()
        if db is None:
            return
        try:
            with db:
                db.executemany(statement, rows)
        except sqlite3.Error as error:
            self._give_up(error)

    def _open(self) -> sqlite3.Connection | None:
        if not self._opened:
            self._opened = True
            try:
                self._db = self._connect()
            except sqlite3.Error as error:
                self._give_up(error)
        return self._db

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, timeout=5.0, check_same_thread=False)
        try:
            # A power cut may lose the last moments, which only means hashing again. No write-ahead log: a read-only
            # store could not be read with one, and of many processes that start one at once some get errors.
            db.execute("PRAGMA synchronous=OFF")
            db.execute(
                "CREATE TABLE IF NOT EXISTS verified (name TEXT PRIMARY KEY, stamp TEXT, digest TEXT) WITHOUT ROWID"
            )
        except sqlite3.Error:
            db.close()
            raise
        return db

    def _give_up(self, error: sqlite3.Error) -> None:
        """Do without the database from here on; without this one only, if it is damaged."""
        reason = f"{self._path}: {error}"
        if self._db is not None:
            self._db.close()
            self._db = None
        # An error without a code comes from Python, about invalid text.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        is_something_else = os.path.lexists(self._path) and not os.path.isfile(self._path)
        if not self.trouble and (is_something_else or code in _DAMAGE):
            for suffix in ("", "-journal"):
                self._set_aside(f"{self._path}{suffix}", reason)
            self._opened = False
        self.trouble = reason


def _read_row(stamp_text: object, digest: object) -> tuple[Stamp, str] | None:
    # As text, because an inode's number may be larger than SQLite's integers. A flipped bit may show as any type.
    if not isinstance(stamp_text, str) or not isinstance(digest, str) or not is_digest(digest):
        return None
    try:
        size_bytes, inode, mtime_ns, ctime_ns = map(int, stamp_text.split())
    except ValueError:
        return None
    return (size_bytes, inode, mtime_ns, ctime_ns), digest


# Digests of the user's own files and folders, remembered while their stamps are the same.

_LOOK_BYTES = 1 << 14
"""A check of a known file takes as long as reading so many bytes."""


def refuse_unreadable(path: str, readable: tuple[str, ...] | None) -> None:
    """Raise `NoPermission` for a path that may not be read for a job. The disk is not accessed.

    `readable` are the only places whose files may be read for the job; None: any.
    """
    if not may_read(path, readable):
        hint = "data = { NAME = PATH } sends it along; files of this machine are not available to jobs"
        raise NoPermission(f"{path} did not come with the job, and jobs run as other users here", hint=hint)


def may_read(path: str, readable: tuple[str, ...] | None) -> bool:
    """Return True if a path is in one of the places whose files may be read for a job; None: any."""
    if readable is None:
        return True
    whole = os.path.abspath(path)
    return any(whole == place or whole.startswith(os.path.join(place, "")) for place in map(os.path.abspath, readable))


def digest_path(path: str, *, memo: Memo, clock: Clock) -> str:
    """Return the digest of a path: `sha256:…` of a file's bytes, `tree:…` of a folder. The path does not enter."""
    absolute = os.path.abspath(path)
    if os.path.isdir(absolute):
        return f"tree:{scan_tree(absolute, hasher=partial(_digest_file, memo=memo, clock=clock)).digest()}"
    return f"sha256:{_digest_file(absolute, memo=memo, clock=clock)[0]}"


def _digest_file(path: str, *, memo: Memo, clock: Clock) -> tuple[Digest, int]:
    heed_now(_LOOK_BYTES)
    with translated(path):
        info = os.stat(path)
    if not stat.S_ISREG(info.st_mode):
        raise LocalFile(f"neither a file nor a folder: {path}", hint="copy what it gives into a file first", path=path)
    stamp = stamp_of(info)
    known = recall_file(path, info, memo=memo)
    if known is not None:
        return known, info.st_size
    digest, size_bytes = hash_file(path)
    with translated(path):
        is_same = stamp_of(os.stat(path)) == stamp
    if is_same:
        remember_file(path, info, digest, memo=memo, clock=clock)
    return digest, size_bytes


def recall_file(path: str, info: os.stat_result, *, memo: Memo) -> Digest | None:
    """Return the digest of a file, by its absolute path, if it is known and the stamp is the same."""
    return memo.recall(_name(path), stamp_of(info))


def recall_below(folder: str, *, memo: Memo) -> None:
    """Prepare for many files of a folder, by its absolute path: one query instead of many."""
    memo.preload(_name(os.path.join(folder, ""))[:-1])


def remember_file(path: str, info: os.stat_result, digest: Digest, *, memo: Memo, clock: Clock) -> None:
    """Record the digest of a file that had the same stamp before and after it was read."""
    memo.remember_settled(_name(path), stamp_of(info), digest, now_s=clock.wall_s())


def note_file(path: str, info: os.stat_result, digest: Digest, *, memo: Memo) -> None:
    """Record the digest of a file that only we wrote, and that was verified meanwhile."""
    memo.remember(_name(path), stamp_of(info), digest)


def _name(path: str) -> str:
    # In ASCII, because a name that is not Unicode can't be stored as text.
    return f"path:{path!a}"


# Data as trees: a folder is its tree, a file a tree of one entry under its own name.
#
# Used to submit data and to detect changes. Each file is read once; after that the memo has its digest, and a check
# costs one stat per file.


_BLOCK_BYTES = 1 << 20


def tree_at(path: str, name: str, hasher: Hasher = hash_file) -> Tree:
    """Return the tree of a path; a file is called `name` in it. The mode of a file is not part of its content."""
    if os.path.isdir(path):
        return scan_tree(path, hasher=hasher)
    digest, size_bytes = hasher(path)
    return Tree((TreeEntry(name, size_bytes, digest),))


def read_tree(path: str, name: str, *, memo: Memo, clock: Clock, heed: Heed = lambda _: None) -> Tree:
    """Return the tree of a path; `heed` is called with the number of bytes read."""
    return tree_at(path, name, partial(_read, memo=memo, clock=clock, heed=heed))


def known_tree(path: str, name: str, *, memo: Memo) -> Tree | None:
    """Return the tree of a path if it is known without reading a file; otherwise None."""
    try:
        return tree_at(path, name, partial(_recalled, memo=memo))
    except (_Unknown, StokerError, OSError):
        return None


def unread_bytes(path: str, *, memo: Memo, heed: Heed = lambda _: None) -> int:
    """Return how many bytes must be read to know the tree; `heed` is called with the size of each file."""
    found = 0

    def count(file: str) -> tuple[Digest, int]:
        nonlocal found
        with translated(file):
            info = os.stat(file)
        if recall_file(file, info, memo=memo) is None:
            found += info.st_size
        heed(info.st_size)
        return Digest(""), info.st_size

    tree_at(path, "", count)
    return found


class _Unknown(Exception):
    """A file must be read."""


def _recalled(path: str, *, memo: Memo) -> tuple[Digest, int]:
    info = os.stat(path)
    digest = recall_file(path, info, memo=memo)
    if digest is None:
        raise _Unknown
    return digest, info.st_size


def _read(path: str, *, memo: Memo, clock: Clock, heed: Callable[[int], None]) -> tuple[Digest, int]:
    with translated(path):
        info = os.stat(path)
    if not stat.S_ISREG(info.st_mode):
        raise LocalFile(f"neither a file nor a folder: {path}", hint="copy what it gives into a file first", path=path)
    known = recall_file(path, info, memo=memo)
    if known is not None:
        return known, info.st_size
    digest, size_bytes = _hashed(path, heed)
    with translated(path):
        is_same = stamp_of(os.stat(path)) == stamp_of(info)
    if is_same:
        remember_file(path, info, digest, memo=memo, clock=clock)
    return digest, size_bytes


def _hashed(path: str, heed: Callable[[int], None]) -> tuple[Digest, int]:
    from hashlib import sha256  # noqa: PLC0415 - what is known needs none

    digest, size_bytes = sha256(), 0
    with translated(path), open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size_bytes += len(block)
            heed(len(block))
    return Digest(digest.hexdigest()), size_bytes
