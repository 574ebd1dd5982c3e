"""`stoker admin db check`: prove that the queue kept its promises; list every fault with what shows it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext, list_verbs
from stoker.cli.grammar import Grammar, Option, Positional
from stoker.core.text import format_size

if TYPE_CHECKING:
    from stoker.coordinator.database.database import Database


# Which database is meant: what `--db` names, else this home's own.

DB = Option("--db", value="URL", help="sqlite:///PATH or postgresql://…; unless told, the file below STOKER_HOME")


def address(call: CommandContext, given: dict[str, Any]) -> str:
    """Return the address of the database that is meant."""
    return given["db"] or call.parts.settings.queue


def beside(call: CommandContext, given: dict[str, Any]) -> closing[Database]:
    """Open it only to read, beside the coordinator that serves it."""
    from stoker.coordinator.database.database import look_into

    return closing(look_into(address(call, given), clock=call.parts.clock))


def alone(call: CommandContext, url: str) -> closing[Database]:
    """Open it exclusively, made or migrated where needed; refused while a coordinator serves it."""
    from stoker.coordinator.database.database import open_database

    return closing(open_database(url, clock=call.parts.clock))


# `stoker admin db backup FILE`: everything that the queue's database holds, in one file.

DB_BACKUP_GRAMMAR = Grammar(
    "admin db backup",
    about=(
        "Write one moment of the database into a file, also while it is served; the file has a digest inside and fits "
        "SQLite and PostgreSQL alike. The bytes of results are not in it: they lie below STOKER_HOME/fleet."
    ),
    positionals=(Positional("FILE", help="where to write it"),),
    options=(DB, Option("--force", help="write over a file that is there")),
    examples=(
        "stoker admin db backup queue.backup",
        "stoker admin db backup --force queue.backup --db postgresql://stoker@localhost/stoker",
    ),
)


def perform_db_backup(call: CommandContext, given: dict[str, Any]) -> int:
    """Write it, and say what is in it."""
    from stoker.cli.screens import counted
    from stoker.coordinator.database.backup import back_up
    from stoker.core.errors import LocalFile

    path = call.path(given["file"])
    if os.path.exists(path) and not given["force"]:
        raise LocalFile(f"{given['file']} is there already", hint="choose another name, or say --force")
    with beside(call, given) as database, counted(call, "backing up", 1) as count:
        head = back_up(database, path, clock=call.parts.clock, progress=count.reach)
        shown = database.shown
    size_bytes = os.path.getsize(path)
    call.out.object(
        {"file": path, "bytes": size_bytes, "database": shown, "rows": head.rows, "generation": head.generation}
    )
    call.out.line(f"{given['file']}: {head.rows['jobs']:,} jobs, {head.total:,} rows, {format_size(size_bytes)}")
    call.out.note("hint: results' bytes are not in it; copy the folder fleet/ as well")
    return 0


DB_CHECK_GRAMMAR = Grammar(
    "admin db check",
    about=(
        "Read the whole database at one moment, also while it is served, and prove for every job: at most one live "
        "lease, epochs that only grow, nothing accepted under an old one, events that lead to the state it is in, "
        "results whose bytes are there. The file and the counters are checked too. Every fault is listed."
    ),
    options=(DB,),
    examples=("stoker admin db check", "stoker admin db check --json --db sqlite:///queue.db"),
)


def perform_db_check(call: CommandContext, given: dict[str, Any]) -> int:
    """Check, list what is wrong, and say whether anything is."""
    from stoker.cli.screens import counted
    from stoker.coordinator.database.database_check import check_database

    faults = jobs = 0
    with beside(call, given) as database, _objects(call) as has_object, counted(call, "checking", 1) as count:

        def reach(done: int, total: int) -> None:
            nonlocal jobs
            jobs = done
            count.reach(done, total)

        for fault in check_database(database, has_object=has_object, progress=reach):
            faults += 1
            call.out.object(fault.to_dict())
            about = f"job {fault.job[:12]}: " if fault.job else ""
            call.out.line(f"{fault.rule}: {about}{fault.message}")
        shown = database.shown
    call.out.object({"database": shown, "jobs": jobs, "faults": faults, "has_looked_for_bytes": has_object is not None})
    unlooked = "" if has_object is not None else "; results' bytes are kept elsewhere and were not looked for"
    call.out.line(f"{shown}: {jobs:,} jobs, {faults or 'no'} fault{'s' * (faults != 1)}{unlooked}")
    return 1 if faults else 0


@contextmanager
def _objects(call: CommandContext) -> Iterator[Callable[[str], int | None] | None]:
    """Return what says whether a result's bytes are here, if anything is kept here at all."""
    from stoker.coordinator.storage.storage import LocalCoordinatorStorage

    folder = call.parts.settings.fleet
    if not os.path.isdir(os.path.join(folder, "store")):
        yield None
        return
    keeping = LocalCoordinatorStorage(folder, call.parts.clock)
    try:
        yield keeping.has_archive
    finally:
        keeping.close()


# `stoker admin db`: what can be done with the queue's database, one line each.

DB_LISTING_GRAMMAR = Grammar(
    "admin db",
    about="List what can be done with the database that a coordinator keeps its queue in.",
    examples=("stoker admin db", "stoker admin db check", "stoker admin db backup queue.backup"),
)


def perform_db_listing(call: CommandContext, _given: dict[str, Any]) -> int:
    """List the verbs."""
    list_verbs(call, "admin db")
    return 0


# `stoker admin db migrate`: bring the queue's tables to this program's version.

DB_MIGRATE_GRAMMAR = Grammar(
    "admin db migrate",
    about=(
        "Bring a database's tables to this program's version, in one transaction; an empty database gets them. A "
        "coordinator does the same when it starts. Refused while one serves it, and for tables of a newer program."
    ),
    options=(DB,),
    examples=("stoker admin db migrate", "stoker admin db migrate --db postgresql://stoker@localhost/stoker"),
)


def perform_db_migrate(call: CommandContext, given: dict[str, Any]) -> int:
    """Migrate, and say from where to where."""
    from stoker.coordinator.database.database import look_into
    from stoker.coordinator.database.migrate import HEAD
    from stoker.core.errors import NotFound, VersionSkew

    url = address(call, given)
    try:
        look_into(url, clock=call.parts.clock).close()
        was = HEAD
    except NotFound:
        was = ""
    except VersionSkew as skew:
        was = str(skew.data["found"])
    with alone(call, url) as database:
        call.out.object({"database": database.shown, "was": was or None, "is": HEAD})
        how = "is up to date at" if was == HEAD else f"went from {was} to" if was else "was made at"
        call.out.line(f"{database.shown} {how} {HEAD}")
    return 0


# `stoker admin db move URL`: the same queue in another database, SQLite or PostgreSQL, compared row by row.

DB_MOVE_GRAMMAR = Grammar(
    "admin db move",
    about=(
        "Copy everything into another database and compare it afterwards. Generation, epochs and leases stay what they "
        "are, so running work goes on once `stoker serve --db URL` serves the new one. Refused while a coordinator "
        "serves either. The old one stays as it is; nobody may serve it again."
    ),
    positionals=(Positional("URL", help="where to: sqlite:///PATH or postgresql://…"),),
    options=(DB, Option("--replace", help="throw away what the new database holds now")),
    examples=(
        "stoker admin db move postgresql://stoker@localhost/stoker",
        "stoker admin db move --db postgresql://stoker@localhost/stoker sqlite:///queue.db",
    ),
)


def perform_db_move(call: CommandContext, given: dict[str, Any]) -> int:
    """Move, compare, and say how to serve it."""
    from stoker.cli.screens import counted
    from stoker.coordinator.database.backup import move
    from stoker.coordinator.database.database import look_into

    url = address(call, given)
    # Nothing is made where there is nothing to move.
    look_into(url, clock=call.parts.clock).close()
    with alone(call, url) as source, alone(call, given["url"]) as target, counted(call, "moving", 1) as count:
        head = move(source, target, clock=call.parts.clock, may_replace=given["replace"], progress=count.reach)
        shown = target.shown
    call.out.object({"database": shown, "rows": head.rows, "generation": head.generation})
    call.out.line(f"{shown}: {head.rows['jobs']:,} jobs, {head.total:,} rows, compared")
    call.out.note(f"next: stoker serve --db {given['url']}")
    return 0


# `stoker admin db restore FILE`: go on from a backup, under a new generation.

DB_RESTORE_GRAMMAR = Grammar(
    "admin db restore",
    about=(
        "Fill a database from a backup, all of it or nothing. The generation rises, so that no worker of the time "
        "after the backup can write; what was running goes back into the line when the coordinator starts. Refused "
        "while a coordinator serves the database, and for one that holds jobs unless --replace is said."
    ),
    positionals=(Positional("FILE", help="what `stoker admin db backup` wrote"),),
    options=(DB, Option("--replace", help="throw away what the database holds now")),
    examples=(
        "stoker admin db restore queue.backup",
        "stoker admin db restore --replace queue.backup",
        "stoker admin db restore queue.backup --db postgresql://stoker@localhost/stoker",
    ),
)


def perform_db_restore(call: CommandContext, given: dict[str, Any]) -> int:
    """Restore, and say what is there now."""
    from stoker.cli.screens import counted
    from stoker.coordinator.database.backup import restore
    from stoker.host.durable import open_regular, translated

    path = call.path(given["file"])
    with (
        translated(path),
        open_regular(path) as file,
        alone(call, address(call, given)) as database,
        counted(call, "restoring", 1) as count,
    ):
        done = restore(
            database,
            file,
            given["file"],
            clock=call.parts.clock,
            may_replace=given["replace"],
            progress=count.reach,
        )
        shown = database.shown
    call.out.object({"database": shown, "rows": done.head.rows, "generation": done.generation, "live": done.live})
    back = f"; {done.live:,} that ran go back into the line" if done.live else ""
    call.out.line(f"{shown}: {done.head.rows['jobs']:,} jobs, generation {done.generation}{back}")
    call.out.note("next: stoker admin db check, then stoker serve")
    return 0
