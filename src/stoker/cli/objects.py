"""`stoker admin objects`: where a coordinator stores objects, and moving them to S3 or back."""

from __future__ import annotations

import os
from typing import Any

from stoker.cli.context import CommandContext
from stoker.cli.database import DB, address, alone
from stoker.cli.grammar import Grammar, Option, Positional
from stoker.core.errors import AuthRefused, BadInput, Conflict, HashMismatch, NetworkFailed, Usage
from stoker.core.text import counted, format_size

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
    from stoker.coordinator.storage.object_place import move_objects

    if not given["to"]:
        message = "no place to move to"
        raise Usage(message, hint=f"--to s3://BUCKET/PREFIX, or --to {DISK}")
    settings = call.parts.settings
    os.makedirs(settings.fleet, mode=0o700, exist_ok=True)
    # Holding the database keeps a coordinator from starting.
    with alone(call, address(call, given)):
        url = "" if given["to"] == DISK else given["to"]
        moved = move_objects(settings.fleet, url, settings.environment, clock=call.parts.clock)
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
    os.makedirs(settings.fleet, mode=0o700, exist_ok=True)
    with alone(call, address(call, given)):
        count = adopt_objects(settings.fleet, given["url"], settings.environment, clock=call.parts.clock)
    call.out.object({"objects": given["url"], "count": count})
    call.out.line(f"{given['url']}: {counted(count, 'object')}")
    return 0
