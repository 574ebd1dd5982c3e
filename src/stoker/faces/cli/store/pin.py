"""`stoker store pin`: keep a job's results whatever is pruned."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Option, Positional
from stoker.faces.cli.job_facts import job_story, split_target
from stoker.model.errors import NotFound
from stoker.model.suggest import did_you_mean
from stoker.store.pins import list_pins, pin, unpin
from stoker.worker.giving import keys_of_job, keys_of_stage

GRAMMAR = Grammar(
    "store pin",
    about="Keep the results of a job, or of one stage of it, whatever is pruned, until the pin is taken away.",
    positionals=(Positional("NAME[/STAGE]", key="target", help="a job (a name, `last`, an id) or one stage of it"),),
    options=(Option("--remove", help="take the pin of that name away"),),
    examples=("stoker store pin gbt", "stoker store pin gbt --remove", "stoker store pins"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Pin, or take a pin away."""
    places, out = call.parts.store.places, call.out
    if given["remove"]:
        if not unpin(places, given["target"]):
            known = [one.name for one in list_pins(places)]
            hint = did_you_mean(given["target"], known) or "`stoker store pins` lists them"
            raise NotFound(f"there is no pin {given['target']!r}", hint=hint)
        out.object({"pin": given["target"], "removed": True})
        out.line(f"took the pin {given['target']} away")
        return 0
    name, stage = split_target(given["target"])
    folder = call.find_job(name)
    story = job_story(folder)
    keys = keys_of_stage(folder, story, stage) if stage else keys_of_job(folder, story)
    job = folder.spec().name
    if not keys:
        raise NotFound(f"job {job} has no results to keep", hint=f"stoker jobs show {job}")
    kept = pin(places, f"{job}/{stage}" if stage else job, tuple(dict.fromkeys(keys.values())))
    out.object({"pin": kept.name, "keys": list(kept.keys)})
    out.line(f"pinned {kept.name}: {len(kept.keys)} result{'' if len(kept.keys) == 1 else 's'} stay whatever is pruned")
    return 0
