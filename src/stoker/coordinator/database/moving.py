"""Move a queue from one database into another, SQLite or PostgreSQL: the same rows, compared afterwards.

Nothing changes on the way: generation, epochs and leases stay what they are, so running work goes on once the
coordinator serves the new place. The old one stays as it is; nobody must serve it again.
"""

from __future__ import annotations

import tempfile

from stoker.coordinator.database.filling import fill, refuse_if_used
from stoker.coordinator.database.opening import Database
from stoker.coordinator.database.portable import Backup, Head, Progress, no_progress, table_digests, write_backup
from stoker.coordinator.database.snapshots import snapshot
from stoker.model.clock import Clock
from stoker.model.errors import Damaged


def move(
    source: Database, target: Database, *, clock: Clock, may_replace: bool = False, progress: Progress = no_progress
) -> Head:
    """Copy everything and compare; neither may be served. Raises `Conflict` if the target holds work."""
    with tempfile.TemporaryFile() as file:
        with snapshot(source) as connection:
            head = write_backup(connection, file, made_s=clock.wall_s(), progress=progress)
        file.seek(0)
        writer = target.connect_writer()
        try:
            writer.begin()
            if not may_replace:
                refuse_if_used(target, writer)
            fill(target, writer, Backup(file, "the copy on its way"), progress=progress)
            writer.commit()
        finally:
            writer.close()
    with snapshot(source) as before, snapshot(target) as after:
        there, here = table_digests(before), table_digests(after)
    wrong = sorted(name for name in there if there[name] != here[name])
    if wrong:
        raise Damaged(
            f"{target.shown} does not hold what {source.shown} holds: {', '.join(wrong)}",
            hint="stay with the old one; move again with --replace",
            tables=wrong,
        )
    return head
