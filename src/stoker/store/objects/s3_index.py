"""What an S3 store has, as rows on the coordinator's disk: a size is known without asking the store.

The index says less than the store, never more: a row is written when the bytes are durable there, and deleted before
them. Lost, it is made again from a listing of the bucket (`S3Objects.rebuild`), all of it or nothing: bytes that no row
names are deleted after a day.

An object is stored in one of three ways: under its own digest; in a pack of small ones; as parts, each a blob under its
own digest. A *blob* is what is stored under `objects/DIGEST`: an object, a part, or both.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from stoker.core.digests import Digest
from stoker.core.frozen import frozen
from stoker.host.durable import translated

Parts = tuple[tuple[Digest, int], ...]
"""Digest and size of each part, in order."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS blobs (digest TEXT PRIMARY KEY, size_bytes INTEGER NOT NULL, touched_s REAL NOT NULL)
  WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS objects (
  digest TEXT PRIMARY KEY, size_bytes INTEGER NOT NULL, touched_s REAL NOT NULL,
  pack TEXT NOT NULL, start INTEGER NOT NULL, parts TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS objects_pack ON objects (pack) WHERE pack != '';
CREATE TABLE IF NOT EXISTS part_of (part TEXT, file TEXT, PRIMARY KEY (part, file)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS part_of_file ON part_of (file);
"""
_PAGE = 1000
_COMPLETE = 1
"""The `user_version` of an index that was listed to its end."""


@frozen
class IndexedObject:
    """Where the bytes of an object are."""

    digest: Digest
    size_bytes: int
    touched_s: float
    pack: str = ""
    """The pack that contains it; empty: it is under its own digest, or in parts."""
    start: int = 0
    """In its pack."""
    parts: Parts = ()


class S3Index:
    """The rows. Thread-safe; a reader never waits for a writer."""

    def __init__(self, path: str) -> None:
        with translated(path):
            self._writer = _connect(path)
            self._writer.executescript(_SCHEMA)
            self._reader = _connect(path)
        self._writing, self._reading = threading.Lock(), threading.Lock()

    def close(self) -> None:
        """Close the file."""
        with self._writing, self._reading:
            self._writer.close()
            self._reader.close()

    @property
    def is_complete(self) -> bool:
        """False if what is in the bucket was never listed to its end."""
        ((version,),) = self._read("PRAGMA user_version", ())
        return version == _COMPLETE

    def find(self, digest: str) -> IndexedObject | None:
        """Return an object."""
        rows = self._read("SELECT * FROM objects WHERE digest = ?", (digest,))
        return _object(rows[0]) if rows else None

    def size(self, digest: str) -> int | None:
        """Return the size of an object."""
        rows = self._read("SELECT size_bytes FROM objects WHERE digest = ?", (digest,))
        return int(str(rows[0][0])) if rows else None

    def blob_size(self, digest: str) -> int | None:
        """Return the size of a blob."""
        rows = self._read("SELECT size_bytes FROM blobs WHERE digest = ?", (digest,))
        return int(str(rows[0][0])) if rows else None

    def all(self) -> Iterator[IndexedObject]:
        """Return all objects in the order of their digests."""
        after = ""
        while rows := self._read("SELECT * FROM objects WHERE digest > ? ORDER BY digest LIMIT ?", (after, _PAGE)):
            for row in rows:
                yield _object(row)
            after = str(rows[-1][0])

    def loose_blobs(self, before_s: float) -> list[Digest]:
        """Return blobs that were not touched since, and that are neither an object nor a part of one."""
        return [
            Digest(str(digest))
            for (digest,) in self._read(
                "SELECT digest FROM blobs AS b WHERE touched_s < ?"
                " AND NOT EXISTS (SELECT 1 FROM part_of WHERE part = b.digest)"
                " AND NOT EXISTS (SELECT 1 FROM objects WHERE digest = b.digest AND pack = '' AND parts = '')",
                (before_s,),
            )
        ]

    def has_pack(self, pack: str) -> bool:
        """Return True if an object is in a pack."""
        return bool(self._read("SELECT 1 FROM objects WHERE pack = ? LIMIT 1", (pack,)))

    def add_blob(self, digest: str, size_bytes: int, now_s: float) -> None:
        """Note a blob that is stored, or touch it."""
        with self._write() as db:
            db.execute("INSERT OR REPLACE INTO blobs VALUES (?, ?, ?)", (digest, size_bytes, now_s))

    def touch_blob(self, digest: str, now_s: float) -> int | None:
        """Keep a blob from being swept for a while; return its size, or None if it is not noted."""
        with self._write() as db:
            db.execute("UPDATE blobs SET touched_s = ? WHERE digest = ?", (now_s, digest))
        return self.blob_size(digest)

    def add(self, objects: Iterable[IndexedObject]) -> None:
        """Note objects, all together."""
        with self._write() as db:
            _insert(db, objects)

    def replace(self, objects: Iterable[IndexedObject]) -> None:
        """Note these objects instead of all others: what a whole listing of the bucket found."""
        with self._write() as db:
            for table in ("objects", "part_of", "blobs"):
                db.execute(f"DELETE FROM {table}")  # noqa: S608 - our own names
            _insert(db, objects)
            db.execute(f"PRAGMA user_version = {_COMPLETE}")

    def touch(self, digest: str, now_s: float) -> None:
        """Note that an object was put again."""
        with self._write() as db:
            db.execute("UPDATE objects SET touched_s = ? WHERE digest = ?", (now_s, digest))

    def drop(self, digest: str) -> None:
        """Forget an object; its blobs stay."""
        with self._write() as db:
            db.execute("DELETE FROM objects WHERE digest = ?", (digest,))
            db.execute("DELETE FROM part_of WHERE file = ?", (digest,))

    def drop_blobs(self, digests: Sequence[str]) -> None:
        """Forget blobs."""
        with self._write() as db:
            db.executemany("DELETE FROM blobs WHERE digest = ?", [(digest,) for digest in digests])

    def _read(self, statement: str, values: Sequence[object]) -> list[tuple[object, ...]]:
        with self._reading:
            return self._reader.execute(statement, values).fetchall()

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._writing, self._writer:
            yield self._writer


def _insert(db: sqlite3.Connection, objects: Iterable[IndexedObject]) -> None:
    for one in objects:
        if not one.pack and not one.parts:
            db.execute("INSERT OR REPLACE INTO blobs VALUES (?, ?, ?)", (one.digest, one.size_bytes, one.touched_s))
        db.execute("DELETE FROM part_of WHERE file = ?", (one.digest,))
        db.executemany("INSERT OR IGNORE INTO part_of VALUES (?, ?)", [(part, one.digest) for part, _ in one.parts])
        parts = json.dumps(one.parts) if one.parts else ""
        db.execute(
            "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?)",
            (one.digest, one.size_bytes, one.touched_s, one.pack, one.start, parts),
        )


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30.0, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _object(row: Sequence[object]) -> IndexedObject:
    digest, size_bytes, touched_s, pack, start, parts = row
    return IndexedObject(
        digest=Digest(str(digest)),
        size_bytes=int(str(size_bytes)),
        touched_s=float(str(touched_s)),
        pack=str(pack),
        start=int(str(start)),
        parts=tuple((Digest(part), size) for part, size in json.loads(str(parts))) if parts else (),
    )
