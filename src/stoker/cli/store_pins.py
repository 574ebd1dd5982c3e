"""`stoker store pin`: keep a job's results, or anything by its digest, whatever is pruned."""

from __future__ import annotations

from typing import Any

from stoker.cli.context import CommandContext
from stoker.cli.coordinator_access import AT
from stoker.cli.grammar import Grammar, Option, Positional
from stoker.cli.job_handle import job_story, split_target
from stoker.cli.job_lookup import job_or_kept
from stoker.cli.job_names import FleetJob, meant_of_fleet
from stoker.core.digests import Digest
from stoker.core.errors import NotFound, Usage
from stoker.core.text import did_you_mean, format_size
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.results import keys_of_job, keys_of_stage
from stoker.jobs.submitter import who_asks
from stoker.store.prune import resolve
from stoker.store.put import add_row
from stoker.store.refs import list_pins, list_refs, pin, remove_ref, unpin
from stoker.views.text_tables import ago, table

PIN_GRAMMAR = Grammar(
    "store pin",
    about=(
        "Keep the results of a job, of one stage of it, or what a name or a digest stands for, whatever is pruned, "
        "until the pin is taken away."
    ),
    positionals=(
        Positional(
            "NAME[/STAGE]",
            key="target",
            help="a job (a name, `last`, an id), here or of the fleet, or one stage of it; else what was put under a "
            "name, or a digest",
        ),
    ),
    options=(Option("--remove", help="take the pin of that name away"), AT),
    examples=(
        "stoker store pin gbt",
        "stoker store pin 3fa9c1d2",
        "stoker store pin gbt --remove",
        "stoker store pins",
    ),
)


def perform_pin(call: CommandContext, given: dict[str, Any]) -> int:
    """Pin, or take a pin away."""
    fleet = meant_of_fleet(call, given["target"], given["at"])
    if fleet is not None:
        return _pin_on_fleet(call, fleet, is_pinned=not given["remove"])
    places, out = call.parts.store.places, call.out
    if given["remove"]:
        if not unpin(places, given["target"]):
            known = [one.name for one in list_pins(places)]
            hint = did_you_mean(given["target"], known) or "`stoker store pins` lists them"
            raise NotFound(f"there is no pin {given['target']!r}", hint=hint)
        out.object({"pin": given["target"], "removed": True})
        out.line(f"took the pin {given['target']} away")
        return 0
    name, keys = _chosen(call, given["target"])
    kept = pin(places, name, tuple(dict.fromkeys(keys)))
    out.object({"pin": kept.name, "keys": list(kept.keys)})
    count = "1 result stays" if len(kept.keys) == 1 else f"{len(kept.keys)} results stay"
    out.line(f"pinned {kept.name}: {count} whatever is pruned")
    return 0


def _pin_on_fleet(call: CommandContext, job: FleetJob, *, is_pinned: bool) -> int:
    """Pin what the coordinator has of a job, or of every point of a sweep."""
    out = call.out
    for point in job.points():
        done = (job.client.pin if is_pinned else job.client.unpin)(
            point.id, by=who_asks(call.parts.settings.environment)
        )
        for note in done.notes:
            out.note(f"note: {note}")
        if done.changed:
            out.object({"name": point.name, "job": point.id, "pinned": is_pinned})
            out.line(f"{point.name}: its result stays whatever is pruned" if is_pinned else f"{point.name}: unpinned")
    return 0


def _chosen(call: CommandContext, target: str) -> tuple[str, list[Digest]]:
    """Return what a pin is to be called, and the keys that it keeps."""
    name, stage = split_target(target)
    found = job_or_kept(call, name)
    if not isinstance(found, JobFolder):
        if stage:
            raise NotFound(f"{name} is no job, so it has no stage {stage!r}", hint="`stoker jobs` lists the jobs")
        return found.name, [record.key for record in found.records]
    story = job_story(found)
    keys = keys_of_stage(found, story, stage) if stage else keys_of_job(found, story)
    job = found.spec().name
    if not keys:
        raise NotFound(f"job {job} has no results to keep", hint=f"stoker jobs show {job}")
    return f"{job}/{stage}" if stage else job, list(keys.values())


# `stoker store refs`: what was put, by name; what is in one of them; take a name away.

_LISTED = 50

REFS_GRAMMAR = Grammar(
    "store refs",
    about=(
        "List what was put into the store, by name, or the files of one thing. A name keeps its thing from pruning; "
        "when it is taken away, the next prune takes the bytes that nothing else needs."
    ),
    positionals=(Positional("NAME", help="a name, or the beginning of a digest", is_required=False),),
    options=(Option("--remove", help="take the name away"),),
    examples=("stoker store refs", "stoker store refs base", "stoker store refs base --remove"),
)


def perform_refs(call: CommandContext, given: dict[str, Any]) -> int:
    """List, show or take away."""
    if given["remove"]:
        return _remove(call, given["name"])
    return _show(call, given["name"]) if given["name"] else _list(call)


def _list(call: CommandContext) -> int:
    out, now_s = call.out, call.parts.clock.wall_s()
    refs = list_refs(call.parts.store.places)
    rows = []
    for ref in refs:
        out.object({**ref.to_json(), "damage": ref.damage or None})
        told = [ref.digest[:12], format_size(ref.size_bytes), str(ref.files), ago(ref.at_s, now_s), ref.kind]
        rows.append([ref.name, *(told if not ref.damage else ["damaged", "", "", "", ref.damage])])
    header = ("name", "digest", "size", "files", "put", "kind")
    lines = table(rows, header=header, columns=out.columns) if rows else ["nothing was put; stoker store put PATH"]
    for line in lines:
        out.line(line)
    return 0


def _show(call: CommandContext, name: str) -> int:
    out = call.out
    record = resolve(call.parts.store, name)[0]
    entries = record.tree.entries
    for entry in entries:
        out.object(
            {
                "path": entry.path,
                "bytes": entry.size_bytes,
                "sha256": entry.sha256,
                "executable": entry.executable,
                "link_to": entry.link_to,
            }
        )
    rows = [
        [
            format_size(entry.size_bytes),
            entry.sha256[:12],
            f"{entry.path} -> {entry.link_to}" if entry.link_to else entry.path,
        ]
        for entry in entries[:_LISTED]
    ]
    for line in table(rows, header=("size", "sha256", "file")) if rows else ["it is empty"]:
        out.line(line)
    if len(entries) > _LISTED:
        out.line(f"… and {len(entries) - _LISTED:,} more")
    return 0


def _remove(call: CommandContext, name: str) -> int:
    places, out = call.parts.store.places, call.out
    if not name:
        raise Usage("--remove needs the name to take away", hint="stoker store refs lists them")
    if not remove_ref(places, name):
        known = [ref.name for ref in list_refs(places)]
        raise NotFound(
            f"nothing was put as {name!r}", hint=did_you_mean(name, known) or "`stoker store refs` lists the names"
        )
    add_row(places, {"did": "remove", "name": name, "at_s": call.parts.clock.wall_s()})
    out.object({"name": name, "removed": True})
    out.line(f"took the name {name} away; `stoker store prune` frees what nothing else needs")
    return 0
