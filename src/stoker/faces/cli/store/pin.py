"""`stoker store pin`: keep a job's results, or anything by its digest, whatever is pruned."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.naming import FleetJob, meant_of_fleet
from stoker.faces.cli.fleet.reaching import AT
from stoker.faces.cli.grammar import Grammar, Option, Positional
from stoker.faces.cli.job_facts import job_story, split_target
from stoker.faces.cli.kept import job_or_kept
from stoker.model.digests import Digest
from stoker.model.errors import NotFound
from stoker.model.suggest import did_you_mean
from stoker.store.pins import list_pins, pin, unpin
from stoker.worker.giving import keys_of_job, keys_of_stage
from stoker.worker.job_folder import JobFolder
from stoker.worker.submitting.person import who_asks

GRAMMAR = Grammar(
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


def perform(call: Call, given: dict[str, Any]) -> int:
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


def _pin_on_fleet(call: Call, job: FleetJob, *, is_pinned: bool) -> int:
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


def _chosen(call: Call, target: str) -> tuple[str, list[Digest]]:
    """Give what a pin is to be called, and the keys that it keeps."""
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
