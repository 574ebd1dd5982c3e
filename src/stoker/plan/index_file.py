"""A small database that only makes things better: it may be deleted, and no fault of it ever fails the work."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_MOST_OPENING = 100
"""Processes that open a new database in the same moment."""


class IndexFile:
    """Opened when it is first asked something. A fault turns it off, and `trouble` says why. For one thread at a time.

    Losing the last moments at a power cut is fine, so nothing is waited for.
    """

    def __init__(self, path: str, schema: str) -> None:
        self._path = path
        self._schema = schema
        self._db: sqlite3.Connection | None = None
        self._is_opened = False
        self.trouble = ""

    def do(self, act: Callable[[sqlite3.Connection], T]) -> T | None:
        """Ask or change something, in one transaction; nothing where it is off, or this turns it off."""
        try:
            db = self._open()
            if db is None:
                return None
            with db:
                return act(db)
        except sqlite3.Error as error:
            self.trouble = f"{self._path}: {error}"
            self._let_go()
            return None

    def close(self) -> None:
        """Let go of the database; it is opened again when it is needed."""
        self._let_go()
        self._is_opened = False

    def _open(self) -> sqlite3.Connection | None:
        if not self._is_opened:
            self._is_opened = True
            self._db = db = sqlite3.connect(self._path, timeout=5.0, check_same_thread=False)
            _use_write_ahead_log(db)
            db.execute("PRAGMA synchronous=OFF")
            db.executescript(self._schema)
        return self._db

    def _let_go(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db = None


def _use_write_ahead_log(db: sqlite3.Connection) -> None:
    """Switch to the write-ahead log, which stays. SQLite does not wait for others who do so, but for a transaction."""
    for _ in range(_MOST_OPENING):
        try:
            db.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            db.execute("BEGIN IMMEDIATE")
            db.rollback()
        else:
            return
    db.execute("PRAGMA journal_mode=WAL")
