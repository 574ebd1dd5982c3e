"""How much memory work really took here, per configuration: the most that was ever seen.

A configuration is a stage with its arguments, named by a digest that the caller makes. An index that can be deleted:
it makes caps and estimates better, so a fault of the database turns it off (`trouble` says why) and never fails the
work. Several processes may write at once; the larger number stays.
"""

from __future__ import annotations

import threading
from typing import Any

from stoker.model.digests import Digest
from stoker.model.frozen import frozen
from stoker.plan.index_file import IndexFile

_SCHEMA = """
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
    """Measured peaks. Safe to use from several threads."""

    def __init__(self, path: str) -> None:
        self._index = IndexFile(path, _SCHEMA)
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
        """Give the most that was ever measured on one device, or `None` if nothing was."""
        row = self._do("SELECT peak FROM gpu_footprint WHERE configuration = ?", (configuration,))
        return None if row is None else int(row[0])

    def known(self, configuration: Digest) -> Footprint | None:
        """Give what is known, or `None` if it never ran here."""
        row = self._do("SELECT runs, peak, killed_at FROM footprint WHERE configuration = ?", (configuration,))
        return None if row is None else Footprint(runs=row[0], peak_bytes=row[1], killed_at_bytes=row[2])

    def close(self) -> None:
        """Let go of the database; it opens again when it is needed."""
        with self._lock:
            self._index.close()

    def _do(self, statement: str, values: Any) -> Any:
        with self._lock:
            return self._index.do(lambda db: db.execute(statement, values).fetchone())
