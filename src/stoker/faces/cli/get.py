"""`stoker get`: a job's results as plain files, in a folder of one's choice."""

from __future__ import annotations

import os
from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Option, Positional
from stoker.faces.cli.job_facts import job_story
from stoker.model.errors import NotFound, Refused
from stoker.store.results import lay_out
from stoker.worker.giving import parts_of_job

GRAMMAR = Grammar(
    "get",
    about="Copy a job's results into a folder, as plain files that are yours: changing them changes nothing else.",
    positionals=(
        Positional("NAME", help="a job's name, `last`, or the beginning of an id"),
        Positional("DIR", help="where to; a folder named like the job unless told", is_required=False),
    ),
    options=(
        Option("--stage", value="STAGE", help="what this stage made, instead of the job's result"),
        Option(
            "--force", help="also into a folder that has something in it; edited files are kept beside the new ones"
        ),
    ),
    examples=("stoker get last results", "stoker get gbt models --stage train_gbt --force"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Copy results out."""
    out, parts = call.out, call.parts
    folder = call.find_job(given["name"])
    spec = folder.spec()
    wanted = parts_of_job(parts.store, folder, job_story(folder), stage=given["stage"] or "")
    if not wanted:
        raise NotFound(f"job {spec.name} has no result", hint=f"stoker jobs show {spec.name}")
    target = os.path.join(parts.settings.folder, given["dir"] or spec.name)
    if not given["force"] and os.path.isdir(target) and os.listdir(target):
        raise Refused(f"{target} is not empty", hint="choose another folder, or say --force")
    laid_out = lay_out(parts.store, wanted, target)
    out.object(
        {
            "name": spec.name,
            "folder": laid_out.folder,
            "files": list(laid_out.files),
            "kept_edits": list(laid_out.kept_edits),
        }
    )
    out.line(f"{len(laid_out.files)} file{'' if len(laid_out.files) == 1 else 's'} in {laid_out.folder}")
    for kept in laid_out.kept_edits:
        out.note(f"note: you had edited it, so it was kept: {kept}")
    return 0
