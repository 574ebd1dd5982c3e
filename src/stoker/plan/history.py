"""What ran here before, per node: to say what changed, and what a miss will probably cost.

An index that can be deleted: it only makes explanations and estimates better, so a fault of the database turns it off
(`trouble` says why) and never fails the work.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Mapping
from typing import Any

from stoker.model.digests import Digest
from stoker.model.encoding import encode
from stoker.model.frozen import frozen
from stoker.model.json_text import dumps, loads
from stoker.plan.action import Action, Difference, differences
from stoker.plan.index_file import IndexFile

# How many earlier executions of a node a new one is compared with.
_COMPARED = 5
_FLUSH_AT = 256
# How many of a plan's executions, the newest first, estimates are taken from; and of how many the mean is taken.
_MOST_TIMED = 3_000
_AVERAGED = 10
# What only one trial of a sweep has is named after it: `3.train` is the `train` of the third.
_TRIAL = re.compile(r"^\d+\.")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS ran (
    plan TEXT, node TEXT, stage TEXT, key TEXT, at REAL, seconds REAL, action TEXT,
    PRIMARY KEY (plan, node, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS ran_stage ON ran (stage, at);
"""


@frozen
class Ran:
    """One execution as the history knows it."""

    key: Digest
    at_s: float
    seconds: float
    action: Action


@frozen
class Nearest:
    """The known execution of a node that differs least from what is wanted now."""

    ran: Ran
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

    def nearest(self, *, plan: str, node: str, action: Action) -> Nearest | None:
        """Find the earlier execution of this node that differs least from an action; the newest among equals."""
        best: Nearest | None = None
        for ran in self._recent(plan, node):
            found = tuple(differences(ran.action, action))
            if best is None or len(found) < len(best.differences):
                best = Nearest(ran=ran, differences=found)
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

    def _recent(self, plan: str, node: str) -> list[Ran]:
        asked = "SELECT key, at, seconds, action FROM ran WHERE plan = ? AND node = ? ORDER BY at DESC LIMIT ?"

        def read(db: sqlite3.Connection) -> list[Any]:
            return db.execute(asked, (plan, node, _COMPARED)).fetchall() if self._knows(db, plan) else []

        with self._lock:
            rows = self._index.do(read) or []
        found = []
        for key, at_s, seconds, action in rows:
            try:
                found.append(Ran(key=Digest(key), at_s=at_s, seconds=seconds, action=Action.from_json(loads(action))))
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
        """Whether anything of a plan was known when this process first asked: a new plan costs one question."""
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
