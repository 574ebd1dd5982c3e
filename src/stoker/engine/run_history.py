"""What ran here before, per node: to say what changed, and what a miss will probably cost.

An index that can be deleted: it only makes explanations and estimates better, so a fault of the database turns it off
(`trouble` says why) and never fails the work.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from stoker.core.digests import Digest, encode
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps, loads
from stoker.core.text import lazy_pattern
from stoker.engine.action import Action, Difference, differences

# A small database that only makes things better: it may be deleted, and no fault of it ever fails the work.

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
        """Close the database; it is opened again when needed."""
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


# How many earlier executions of a node a new one is compared with.
_COMPARED = 5
_FLUSH_AT = 256
# How many of a plan's executions, the newest first, estimates are taken from; and of how many the mean is taken.
_MOST_TIMED = 3_000
_AVERAGED = 10
# What only one trial of a sweep has is named after it: `3.train` is the `train` of the third.
_TRIAL = lazy_pattern(r"^\d+\.")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS ran (
    plan TEXT, node TEXT, stage TEXT, key TEXT, at REAL, seconds REAL, action TEXT,
    PRIMARY KEY (plan, node, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS ran_stage ON ran (stage, at);
"""


@frozen
class PastExecution:
    """One execution as the history knows it."""

    key: Digest
    at_s: float
    seconds: float
    action: Action


@frozen
class NearestExecution:
    """The known execution of a node that differs least from what is wanted now."""

    ran: PastExecution
    differences: tuple[Difference, ...]


class _Timed:
    """How long one node ran, in whichever trial of a sweep."""

    def __init__(self) -> None:
        self._by_args: dict[bytes, float] = {}
        self._newest: list[float] = []

    def add(self, args: Mapping[str, Any], seconds: float) -> None:
        """Add an execution; the newest come first."""
        self._by_args.setdefault(encode(args), seconds)
        if len(self._newest) < _AVERAGED:
            self._newest.append(seconds)

    def estimate_s(self, args: Mapping[str, Any] | None) -> float:
        """Return what the newest execution with these arguments took, else the mean of the newest executions."""
        same = self._by_args.get(encode(args)) if args is not None else None
        return sum(self._newest) / len(self._newest) if same is None else same


class History:
    """Executions by plan and node. Safe to use from several threads."""

    def __init__(self, path: str) -> None:
        self._index = IndexFile(path, _SCHEMA)
        self._lock = threading.Lock()
        self._fresh: list[tuple[Any, ...]] = []
        self._plans: dict[str, bool] = {}
        self._timed: dict[str, dict[str, _Timed]] = {}
        """By plan and node, once an estimate was wanted; read again after something was written."""

    @property
    def trouble(self) -> str:
        """Why nothing is remembered; empty: it is."""
        return self._index.trouble

    def note(self, *, plan: str, node: str, action: Action, key: Digest, at_s: float, seconds: float) -> None:
        """Remember that a node ran."""
        with self._lock:
            row = (plan, node, action.facts.stage, key, at_s, seconds, dumps(action.to_json()))
            self._fresh.append(row)
            if len(self._fresh) >= _FLUSH_AT:
                self._flush()

    def nearest(self, *, plan: str, node: str, action: Action) -> NearestExecution | None:
        """Find the earlier execution of this node that differs least from an action; the newest among equals."""
        best: NearestExecution | None = None
        for ran in self._recent(plan, node):
            found = tuple(differences(ran.action, action))
            if best is None or len(found) < len(best.differences):
                best = NearestExecution(ran=ran, differences=found)
        return best

    def estimate_s(self, *, plan: str, node: str, stage: str, args: Mapping[str, Any] | None = None) -> float | None:
        """Estimate how long a node will run with these identity arguments, if they are known.

        A trial of a sweep is known by its arguments, not by its number: the newest execution of the node with the same
        arguments counts, in whichever trial; else the mean of its newest ones, else of its stage's. None: unknown.
        """
        timed = self._timed_of(plan).get(_TRIAL.sub("", node, count=1))
        if timed is not None:
            return timed.estimate_s(args)
        row = self._row(
            "SELECT avg(seconds) FROM (SELECT seconds FROM ran WHERE stage = ? ORDER BY at DESC LIMIT ?)",
            (stage, _AVERAGED),
        )
        return None if row is None else row[0]

    def close(self) -> None:
        """Write what is fresh and let go of the database. The history may be used again."""
        with self._lock:
            self._flush()
            self._index.close()
            self._plans.clear()
            self._timed.clear()

    def _recent(self, plan: str, node: str) -> list[PastExecution]:
        asked = "SELECT key, at, seconds, action FROM ran WHERE plan = ? AND node = ? ORDER BY at DESC LIMIT ?"

        def read(db: sqlite3.Connection) -> list[Any]:
            return db.execute(asked, (plan, node, _COMPARED)).fetchall() if self._knows(db, plan) else []

        with self._lock:
            rows = self._index.do(read) or []
        found = []
        for key, at_s, seconds, action in rows:
            try:
                found.append(
                    PastExecution(key=Digest(key), at_s=at_s, seconds=seconds, action=Action.from_json(loads(action)))
                )
            except (KeyError, TypeError, ValueError):
                continue
        return found

    def _timed_of(self, plan: str) -> dict[str, _Timed]:
        """Return by node how long it ran: read once, since a sweep asks for thousands of nodes."""
        asked = "SELECT node, seconds, action FROM ran WHERE plan = ? ORDER BY at DESC LIMIT ?"
        with self._lock:
            if plan in self._timed:
                return self._timed[plan]
            rows = self._index.do(lambda db: db.execute(asked, (plan, _MOST_TIMED)).fetchall()) or []
            found: dict[str, _Timed] = {}
            for node, seconds, action in rows:
                try:
                    args = loads(action)["args"]
                    found.setdefault(_TRIAL.sub("", node, count=1), _Timed()).add(args, seconds)
                except (KeyError, TypeError, ValueError):
                    continue
            self._timed[plan] = found
            return found

    def _knows(self, db: sqlite3.Connection, plan: str) -> bool:
        """Return whether anything of a plan was known when this process first asked: a new plan costs one question."""
        if plan not in self._plans:
            row = db.execute("SELECT 1 FROM ran WHERE plan = ? LIMIT 1", (plan,)).fetchone()
            self._plans[plan] = row is not None
        return self._plans[plan]

    def _row(self, statement: str, values: tuple[Any, ...]) -> Any:
        with self._lock:
            row = self._index.do(lambda db: db.execute(statement, values).fetchone())
        return None if row is None or row[0] is None else row

    def _flush(self) -> None:
        if self._fresh:
            written = "INSERT OR REPLACE INTO ran VALUES (?, ?, ?, ?, ?, ?, ?)"
            self._index.do(lambda db: db.executemany(written, self._fresh))
            self._fresh.clear()
            self._timed.clear()


_FOOTPRINTS_SCHEMA = """
CREATE TABLE IF NOT EXISTS footprint (
    configuration TEXT PRIMARY KEY, runs INTEGER NOT NULL, peak INTEGER, killed_at INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gpu_footprint (configuration TEXT PRIMARY KEY, peak INTEGER NOT NULL) WITHOUT ROWID;
"""
_NOTE = """
INSERT INTO footprint VALUES (:configuration, 1, :peak, :killed_at)
ON CONFLICT DO UPDATE SET
    runs = runs + 1,
    peak = CASE WHEN peak IS NULL OR excluded.peak > peak THEN ifnull(excluded.peak, peak) ELSE peak END,
    killed_at = CASE WHEN killed_at IS NULL OR excluded.killed_at > killed_at
        THEN ifnull(excluded.killed_at, killed_at) ELSE killed_at END
"""
_NOTE_GPU = """
INSERT INTO gpu_footprint VALUES (?, ?) ON CONFLICT DO UPDATE SET peak = max(peak, excluded.peak)
"""


@frozen
class Footprint:
    """What is known about one configuration."""

    runs: int
    peak_bytes: int | None
    """The most that was measured. Of work that was killed for memory it is less than it wanted."""
    killed_at_bytes: int | None
    """The highest cap at which it was killed for memory."""


class Footprints:
    """The largest memory that work took here, per configuration. Thread-safe.

    A configuration is a stage with its arguments, named by a digest that the caller makes. An index that can be
    deleted: it makes caps and estimates better, so a fault of the database turns it off (`trouble` says why) and never
    fails the work. Several processes may write at once; the larger number stays.
    """

    def __init__(self, path: str) -> None:
        self._index = IndexFile(path, _FOOTPRINTS_SCHEMA)
        self._lock = threading.Lock()

    @property
    def trouble(self) -> str:
        """Why nothing is remembered; empty: it is."""
        return self._index.trouble

    def note(
        self, configuration: Digest, *, peak_bytes: int | None, was_out_of_memory: bool, cap_bytes: int | None
    ) -> None:
        """Remember one run."""
        killed_at = cap_bytes if was_out_of_memory else None
        self._do(_NOTE, {"configuration": configuration, "peak": peak_bytes, "killed_at": killed_at})

    def note_gpu(self, configuration: Digest, peak_bytes: int) -> None:
        """Remember what one run held of a device."""
        self._do(_NOTE_GPU, (configuration, peak_bytes))

    def known_gpu(self, configuration: Digest) -> int | None:
        """Return the most that was ever measured on one device, or `None` if nothing was."""
        row = self._do("SELECT peak FROM gpu_footprint WHERE configuration = ?", (configuration,))
        return None if row is None else int(row[0])

    def known(self, configuration: Digest) -> Footprint | None:
        """Return what is known, or `None` if it never ran here."""
        row = self._do("SELECT runs, peak, killed_at FROM footprint WHERE configuration = ?", (configuration,))
        return None if row is None else Footprint(runs=row[0], peak_bytes=row[1], killed_at_bytes=row[2])

    def close(self) -> None:
        """Close the database; it is opened again when needed."""
        with self._lock:
            self._index.close()

    def _do(self, statement: str, values: Any) -> Any:
        with self._lock:
            return self._index.do(lambda db: db.execute(statement, values).fetchone())
