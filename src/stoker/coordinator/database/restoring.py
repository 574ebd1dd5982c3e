"""Go on from a backup, under a new generation: what the lost past granted can never be taken for the present."""

from __future__ import annotations

from typing import BinaryIO

from sqlalchemy import func, insert, select, text, update

from stoker.coordinator.database.filling import fill, generation_of, refuse_if_used
from stoker.coordinator.database.opening import Database
from stoker.coordinator.database.portable import Backup, Head, Progress, no_progress
from stoker.coordinator.database.prepared import Prepared
from stoker.coordinator.database.tables import CLAIMS, EVENTS, INVITES, LEASES, MACHINES, META
from stoker.coordinator.database.writer_connection import WriterConnection
from stoker.model.clock import Clock
from stoker.model.fleet_events import FleetKinds
from stoker.model.frozen import frozen
from stoker.model.json_text import dumps

_BEGAN_S = 1_577_836_800
"""2020-01-01: generations count seconds from there, and fit into 31 bits until 2088."""


@frozen
class Restored:
    """What a restore did."""

    head: Head
    generation: int
    live: int
    """Jobs that were held when the backup was made. The coordinator puts them back into the line when it starts."""


def restore(
    database: Database,
    file: BinaryIO,
    name: str,
    *,
    clock: Clock,
    may_replace: bool = False,
    progress: Progress = no_progress,
) -> Restored:
    """Fill a database that nobody serves from a backup, in one transaction.

    Raises `Conflict` if it holds work and may not be replaced, `Damaged` for a backup that is not whole (nothing was
    changed then), `AlreadyServing` while a coordinator has it.
    """
    backup = Backup(file, name)
    connection = database.connect_writer()
    try:
        connection.begin()
        if not may_replace:
            refuse_if_used(database, connection)
        was = generation_of(database, connection)
        fill(database, connection, backup, progress=progress)
        now_s = clock.wall_s()
        generation = next_generation(max(was, backup.head.generation), now_s)
        live = _renew(database, connection, backup.head, generation, now_s)
        connection.commit()
    finally:
        connection.close()
    return Restored(head=backup.head, generation=generation, live=live)


def next_generation(highest: int, now_s: float) -> int:
    """Give a generation that no restore has given before, also not one of the same backup that is forgotten since.

    Counting up alone would not do: a backup restored twice would be under the same generation twice.
    """
    return max(highest + 1, int(now_s) - _BEGAN_S)


def _renew(database: Database, connection: WriterConnection, head: Head, generation: int, now_s: float) -> int:
    dialect = database.dialect
    put = Prepared(update(META).where(text("key = 'generation'")), dialect, ("value",))
    if not connection.run(put, [{"value": str(generation)}]):
        connection.run(Prepared(insert(META), dialect), [{"key": "generation", "value": str(generation)}])
    connection.run(Prepared(CLAIMS.delete(), dialect), [{}])
    # Whoever has used a code since, or was to use it no more, must not use it again.
    connection.run(Prepared(update(INVITES), dialect, ("key",)), [{"key": ""}])
    # Workers may have been started anew since: one that the backup does not know is not an old one.
    connection.run(Prepared(update(MACHINES), dialect, ("incarnation",)), [{"incarnation": ""}])
    live = connection.read(Prepared(select(func.count()).select_from(LEASES), dialect))[0][0]
    newest = connection.read(Prepared(select(func.max(EVENTS.c.id), func.max(EVENTS.c.at_s)), dialect))[0]
    event = {
        "id": (newest[0] or 0) + 1,
        "at_s": max(now_s, newest[1] or 0.0),
        "kind": FleetKinds.DATABASE_RESTORED,
        "generation": generation,
        "fields": dumps({"made_s": head.made_s, "rows": head.total, "was_generation": head.generation, "live": live}),
    }
    connection.run(Prepared(insert(EVENTS), dialect, tuple(event)), [event])
    return int(live)
