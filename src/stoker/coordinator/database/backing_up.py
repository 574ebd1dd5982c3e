"""Back up a queue while it is served: one moment of it, in one file, durably."""

from __future__ import annotations

from stoker.coordinator.database.opening import Database
from stoker.coordinator.database.portable import Head, Progress, no_progress, write_backup
from stoker.coordinator.database.snapshots import snapshot
from stoker.host.durable import writing
from stoker.model.clock import Clock


def back_up(database: Database, path: str, *, clock: Clock, progress: Progress = no_progress) -> Head:
    """Write a backup. When this returns the file is whole and durable; before, what lay there still does.

    The bytes of results are not in it: they lie in the object store, under their digests.
    """
    with writing(path, mode=0o600) as file, snapshot(database) as connection:
        return write_backup(connection, file, made_s=clock.wall_s(), progress=progress)
