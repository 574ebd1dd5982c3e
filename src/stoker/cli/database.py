"""`stoker admin db` and `stoker admin objects`: the coordinator's database, and where it stores objects."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext, list_verbs
from stoker.cli.grammar import Grammar, Option, Positional
from stoker.core.errors import AuthRefused, BadInput, Conflict, HashMismatch, NetworkFailed, Usage
from stoker.core.text import counted, format_size
from stoker.host.folders import make_home

if TYPE_CHECKING:
    from stoker.coordinator.database.database import Database


DB = Option("--db", value="URL", help="sqlite:///PATH or postgresql://… (default: the file below STOKER_HOME)")


def address(call: CommandContext, given: dict[str, Any]) -> str:
    """Return the URL of the database to use."""
    return given["db"] or call.parts.settings.queue


def beside(call: CommandContext, given: dict[str, Any]) -> closing[Database]:
    """Open the database read-only; a coordinator may be running."""
    from stoker.coordinator.database.database import look_into

    return closing(look_into(address(call, given), clock=call.parts.clock))


def alone(call: CommandContext, url: str) -> closing[Database]:
    """Open the database exclusively; create or migrate it if needed. Refused while a coordinator runs."""
    from stoker.coordinator.database.database import open_database

    return closing(open_database(url, clock=call.parts.clock))


# `stoker admin db backup FILE`: the whole database in one file.

DB_BACKUP_GRAMMAR = Grammar(
    "admin db backup",
    about=(
        "Write a consistent snapshot of the database to a file; the coordinator may be running. The file contains a "
        "digest and can be restored to SQLite and PostgreSQL. Result files are not included: they are below "
        "STOKER_HOME/fleet."
    ),
    positionals=(Positional("FILE", help="the backup file"),),
    options=(DB, Option("--force", help="overwrite an existing file")),
    examples=(
        "stoker admin db backup queue.backup",
        "stoker admin db backup --force queue.backup --db postgresql://stoker@localhost/stoker",
    ),
)


def perform_db_backup(call: CommandContext, given: dict[str, Any]) -> int:
    """Write a backup and print its contents."""
    from stoker.cli.screens import show_progress
    from stoker.coordinator.database.backup import back_up
    from stoker.core.errors import LocalFile

    path = call.path(given["file"])
    if os.path.exists(path) and not given["force"]:
        raise LocalFile(f"{given['file']} already exists", hint="choose another name, or overwrite it with --force")
    with beside(call, given) as database, show_progress(call, "backing up", 1) as count:
        head = back_up(database, path, clock=call.parts.clock, progress=count.reach)
        shown = database.shown
    size_bytes = os.path.getsize(path)
    call.out.object(
        {"file": path, "bytes": size_bytes, "database": shown, "rows": head.rows, "generation": head.generation}
    )
    call.out.line(
        f"{given['file']}: {counted(head.rows['jobs'], 'job')}, {counted(head.total, 'row')}, {format_size(size_bytes)}"
    )
    call.out.note("hint: result files are not included; copy the folder fleet/ as well")
    return 0


DB_CHECK_GRAMMAR = Grammar(
    "admin db check",
    about=(
        "Read a consistent snapshot of the whole database (the coordinator may be running) and check each job: at "
        "most one active lease, increasing epochs, no writes under an old epoch, events that match its state, result "
        "files present. The database file and its counters are checked too. Lists all errors. Exit code 1 if there "
        "are any."
    ),
    options=(DB,),
    examples=("stoker admin db check", "stoker admin db check --json --db sqlite:///queue.db"),
)


def perform_db_check(call: CommandContext, given: dict[str, Any]) -> int:
    """Check the database and list all errors."""
    from stoker.cli.screens import show_progress
    from stoker.coordinator.database.database_check import check_database

    faults = jobs = 0
    with (
        beside(call, given) as database,
        _objects(call, database) as has_object,
        show_progress(call, "checking", 1) as count,
    ):

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
    unchecked = "" if has_object is not None else "; result files are stored elsewhere and were not checked"
    call.out.line(f"{shown}: {counted(jobs, 'job')}, {counted(faults, 'error') if faults else 'no errors'}{unchecked}")
    return 1 if faults else 0


@contextmanager
def _objects(call: CommandContext, database: Database) -> Iterator[Callable[[str], int | None] | None]:
    """Yield a function that returns the size of a stored result; None without a local store."""
    from stoker.coordinator.storage.storage import CoordinatorStorage
    from stoker.coordinator.storage.tree_storage import stored_sizes

    folder = call.parts.settings.fleet
    if not os.path.isdir(os.path.join(folder, "store")):
        yield None
        return
    keeping = CoordinatorStorage(folder, call.parts.clock, environment=call.parts.settings.environment)
    try:
        yield stored_sizes(keeping, database, is_thorough=True)
    finally:
        keeping.close()


# `stoker admin db`: list its verbs.

DB_LISTING_GRAMMAR = Grammar(
    "admin db",
    about="List the commands for the coordinator's database.",
    examples=("stoker admin db", "stoker admin db check", "stoker admin db backup queue.backup"),
)


def perform_db_listing(call: CommandContext, _given: dict[str, Any]) -> int:
    """List the verbs."""
    list_verbs(call, "admin db")
    return 0


# `stoker admin db migrate`: migrate the tables to this version.

DB_MIGRATE_GRAMMAR = Grammar(
    "admin db migrate",
    about=(
        "Migrate the tables to this version of Stoker in one transaction; an empty database gets new tables. A "
        "coordinator does this when it starts. Refused while a coordinator runs, and for tables of a newer version."
    ),
    options=(DB,),
    examples=("stoker admin db migrate", "stoker admin db migrate --db postgresql://stoker@localhost/stoker"),
)


def perform_db_migrate(call: CommandContext, given: dict[str, Any]) -> int:
    """Migrate and print the versions."""
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
        how = "is up to date at" if was == HEAD else f"migrated from {was} to" if was else "created at"
        call.out.line(f"{database.shown} {how} {HEAD}")
    return 0


# `stoker admin db move URL`: the same queue in another database, SQLite or PostgreSQL, compared row by row.

DB_MOVE_GRAMMAR = Grammar(
    "admin db move",
    about=(
        "Copy the database to another one and compare both. Generation, epochs and leases are preserved, so running "
        "jobs continue after `stoker serve --db URL`. Refused while a coordinator serves either database. The old "
        "database is not changed; do not serve it again."
    ),
    positionals=(Positional("URL", help="the target: sqlite:///PATH or postgresql://…"),),
    options=(DB, Option("--replace", help="delete the contents of the target first")),
    examples=(
        "stoker admin db move postgresql://stoker@localhost/stoker",
        "stoker admin db move --db postgresql://stoker@localhost/stoker sqlite:///queue.db",
    ),
)


def perform_db_move(call: CommandContext, given: dict[str, Any]) -> int:
    """Move the database, compare it, and print the next command."""
    from stoker.cli.screens import show_progress
    from stoker.coordinator.database.backup import move
    from stoker.coordinator.database.database import look_into

    url = address(call, given)
    # Fails before creating the target if there is no source.
    look_into(url, clock=call.parts.clock).close()
    with alone(call, url) as source, alone(call, given["url"]) as target, show_progress(call, "moving", 1) as count:
        head = move(source, target, clock=call.parts.clock, may_replace=given["replace"], progress=count.reach)
        shown = target.shown
    call.out.object({"database": shown, "rows": head.rows, "generation": head.generation})
    call.out.line(f"{shown}: {counted(head.rows['jobs'], 'job')}, {counted(head.total, 'row')}, compared")
    call.out.note(f"next: stoker serve --db {given['url']}")
    return 0


# `stoker admin db restore FILE`: restore a backup under a new generation.

DB_RESTORE_GRAMMAR = Grammar(
    "admin db restore",
    about=(
        "Restore a database from a backup, completely or not at all. The generation rises, so that writes of workers "
        "from after the backup are rejected; running jobs return to the queue when the coordinator starts. Refused "
        "while a coordinator runs, and for a database with jobs without --replace."
    ),
    positionals=(Positional("FILE", help="file written by `stoker admin db backup`"),),
    options=(DB, Option("--replace", help="delete the contents of the database first")),
    examples=(
        "stoker admin db restore queue.backup",
        "stoker admin db restore --replace queue.backup",
        "stoker admin db restore queue.backup --db postgresql://stoker@localhost/stoker",
    ),
)


def perform_db_restore(call: CommandContext, given: dict[str, Any]) -> int:
    """Restore a backup and print the contents."""
    from stoker.cli.screens import show_progress
    from stoker.coordinator.database.backup import restore
    from stoker.host.durable import open_regular, translated

    path = call.path(given["file"])
    with (
        translated(path),
        open_regular(path) as file,
        alone(call, address(call, given)) as database,
        show_progress(call, "restoring", 1) as count,
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
    back = f"; {done.live:,} running jobs return to the queue" if done.live else ""
    call.out.line(f"{shown}: {counted(done.head.rows['jobs'], 'job')}, generation {done.generation}{back}")
    call.out.note("next: stoker admin db check, then stoker serve")
    return 0


# `stoker admin objects`: where a coordinator stores objects, and moving them to S3 or back.


DISK = "disk"

OBJECTS_GRAMMAR = Grammar(
    "admin objects",
    about="Print where the coordinator of this home stores objects: results, checkpoints, code and data.",
    examples=("stoker admin objects", "stoker admin objects --json"),
)


def perform_objects(call: CommandContext, _given: dict[str, Any]) -> int:
    """Print the place."""
    from stoker.coordinator.storage.object_place import read_place

    place = read_place(call.parts.settings.fleet)
    call.out.object({"objects": place.url, "is_direct": place.is_direct})
    if not place.url:
        call.out.line(f"on disk, below {call.parts.settings.fleet}")
        call.out.note("next: stoker admin objects move --to s3://BUCKET/PREFIX")
        return 0
    how = "machines transfer bytes directly" if place.is_direct else "all bytes go through the coordinator"
    call.out.line(f"{place.url}: {how}")
    return 0


OBJECTS_CHECK_GRAMMAR = Grammar(
    "admin objects check",
    about=(
        "Check an S3 bucket: key and rights, conditional put, checksums of presigned requests. If one of the latter "
        "fails, the bucket can be used, but all bytes go through the coordinator. Writes and deletes two small "
        "objects. Address and key come from AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or from the credentials file of AWS. Exit code 1 if a check fails."
    ),
    positionals=(Positional("URL", help="s3://BUCKET/PREFIX (default: where the objects are)", is_required=False),),
    examples=("stoker admin objects check s3://bucket/stoker", "stoker admin objects check --json"),
    errors=(BadInput, AuthRefused, NetworkFailed),
)


def perform_objects_check(call: CommandContext, given: dict[str, Any]) -> int:
    """Check a bucket."""
    from stoker.coordinator.storage.object_place import check_site, read_place
    from stoker.store.objects.s3_passes import read_site

    environment = call.parts.settings.environment
    url = given["url"] or read_place(call.parts.settings.fleet).url
    if not url:
        message = "the objects are on disk; name a bucket to check"
        raise Usage(message, hint="stoker admin objects check s3://BUCKET/PREFIX")
    checks = check_site(read_site(url, environment), environment, clock=call.parts.clock)
    for one in checks:
        call.out.object({"check": one.name, "is_good": one.is_good, "detail": one.detail})
        call.out.line(f"{'ok  ' if one.is_good else 'FAIL'}  {one.name}: {one.detail}")
    is_good = all(one.is_good for one in checks)
    if not is_good:
        call.out.note("without these, all bytes go through the coordinator")
    return 0 if is_good else 1


OBJECTS_MOVE_GRAMMAR = Grammar(
    "admin objects move",
    about=(
        "Move all objects of the coordinator of this home to an S3 bucket, or back to disk. Every object is verified "
        "by its digest; then the new place is recorded, and `stoker serve` uses it. Objects stay at the old place: "
        "the same command with the old place is the way back. Refused while the coordinator runs. A move that was "
        "interrupted resumes if it is repeated."
    ),
    options=(
        Option("--to", value="PLACE", help=f"s3://BUCKET/PREFIX, or {DISK}: the coordinator's own disk"),
        DB,
    ),
    examples=("stoker admin objects move --to s3://bucket/stoker", f"stoker admin objects move --to {DISK}"),
    errors=(Usage, BadInput, Conflict, AuthRefused, NetworkFailed, HashMismatch),
)


def perform_objects_move(call: CommandContext, given: dict[str, Any]) -> int:
    """Move all objects."""
    from stoker.cli.screens import under_way
    from stoker.coordinator.storage.object_place import move_objects

    if not given["to"]:
        message = "no place to move to"
        raise Usage(message, hint=f"--to s3://BUCKET/PREFIX, or --to {DISK}")
    settings = call.parts.settings
    make_home(settings.home)
    os.makedirs(settings.fleet, mode=0o700, exist_ok=True)
    # Holding the database keeps a coordinator from starting.
    with alone(call, address(call, given)):
        url = "" if given["to"] == DISK else given["to"]
        with under_way(call, "moving objects", None) as amount:
            environment, clock = settings.environment, call.parts.clock
            moved = move_objects(settings.fleet, url, environment, clock=clock, progress=amount.reach)
    call.out.object(
        {
            "objects": moved.place.url,
            "is_direct": moved.place.is_direct,
            "count": moved.objects,
            "size_bytes": moved.size_bytes,
            "known": moved.known,
        }
    )
    shown = moved.place.url or f"disk, below {settings.fleet}"
    known = f", {moved.known} of them were there" if moved.known else ""
    call.out.line(f"moved {counted(moved.objects, 'object')}, {format_size(moved.size_bytes)}, to {shown}{known}")
    if moved.place.url and not moved.place.is_direct:
        call.out.note("this site lacks conditional puts or checksums: all bytes go through the coordinator")
    return 0


OBJECTS_ADOPT_GRAMMAR = Grammar(
    "admin objects adopt",
    about=(
        "Take over a bucket after the loss of the coordinator's disk: read what is there, record it below STOKER_HOME, "
        "and make the prefix that of this home. The coordinator that used it before must not run again."
    ),
    positionals=(Positional("URL", help="s3://BUCKET/PREFIX"),),
    options=(DB,),
    examples=("stoker admin objects adopt s3://bucket/stoker",),
    errors=(BadInput, AuthRefused, NetworkFailed),
)


def perform_objects_adopt(call: CommandContext, given: dict[str, Any]) -> int:
    """Take over a bucket."""
    from stoker.coordinator.storage.object_place import adopt_objects

    settings = call.parts.settings
    make_home(settings.home)
    os.makedirs(settings.fleet, mode=0o700, exist_ok=True)
    with alone(call, address(call, given)):
        count = adopt_objects(settings.fleet, given["url"], settings.environment, clock=call.parts.clock)
    call.out.object({"objects": given["url"], "count": count})
    call.out.line(f"{given['url']}: {counted(count, 'object')}")
    return 0
