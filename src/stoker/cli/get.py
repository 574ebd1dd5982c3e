"""`stoker get`: a job's results, or what was put, as plain files in a folder of one's choice, or as one archive."""

from __future__ import annotations

import os
from typing import Any

from stoker.cli.context import CommandContext
from stoker.cli.coordinator_access import AT
from stoker.cli.grammar import Grammar, Option, Positional
from stoker.cli.job_handle import job_story, split_target
from stoker.cli.job_lookup import StoredItem, job_or_kept
from stoker.cli.job_names import meant_of_fleet
from stoker.cli.submit_exclusions import UnfinishedTrial, tell_left, trials_left
from stoker.core.errors import NotFound, Refused, Usage
from stoker.core.job import JobState
from stoker.core.text import format_size
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.results import part_of_record, parts_of_job
from stoker.store.results import ResultPart, lay_out

GRAMMAR = Grammar(
    "get",
    about=(
        "Copy a job's results, or what was put into the store, into a folder, as plain files that are yours: changing "
        "them changes nothing else. Or pack them into one archive that is the same bytes wherever it is made. Of a "
        "sweep, trials without a result are listed, the others are copied, and the command ends with 1."
    ),
    positionals=(
        Positional(
            "NAME",
            help="a job's name, `last`, or the beginning of an id; `last/3` is a sweep's third trial; else the name of "
            "what was put, or the beginning of a digest",
        ),
        Positional("DIR", help="where to; a folder named like the job unless told", is_required=False),
    ),
    options=(
        Option(
            "--metrics",
            value="FILE",
            help="write the curves instead of the results: FILE.csv, or a folder for Parquet files",
        ),
        Option("--stage", value="STAGE", help="what this stage made, instead of the job's result"),
        Option("--bundle", value="FILE", help="one archive (FILE.tar.zst) instead of a folder"),
        Option(
            "--force", help="also into a folder that has something in it; edited files are kept beside the new ones"
        ),
        AT,
    ),
    examples=(
        "stoker get last results",
        "stoker get last --metrics curves.csv",
        "stoker get last/3 best",
        "stoker get resnet results --at desk",
        "stoker get gbt models --stage train_gbt --force",
        "stoker get base --bundle base.tar.zst",
    ),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Copy results out."""
    parts = call.parts
    name, trial = split_target(given["name"])
    fleet = meant_of_fleet(call, given["name"], given["at"])
    if fleet is not None:
        from stoker.cli.fleet_job import get_fleet_job

        return get_fleet_job(call, fleet, given)
    found = job_or_kept(call, name)
    left: list[UnfinishedTrial] = []
    total = 0
    if isinstance(found, JobFolder):
        if given["metrics"] is not None:
            return _write_metrics(call, found, trial, os.path.join(parts.settings.folder, given["metrics"]))
        title, is_running = found.spec().name, found.state()[0] is JobState.RUNNING
        # Read once: a trial that completes meanwhile is listed, as it is not copied.
        story = job_story(found)
        if not given["stage"] and not trial:
            left, total = trials_left(found, story, is_running=is_running)
        wanted = parts_of_job(parts.store, found, story, stage=given["stage"] or "", trial=trial)
        if not wanted:
            raise NotFound(f"job {title} has no result", hint=f"stoker jobs show {title}")
    else:
        title, wanted = found.name, [_part_of_kept(call, found, given, trial)]
    if given["bundle"] is not None:
        _write_bundle(call, title, wanted, given)
    else:
        target = os.path.join(parts.settings.folder, given["dir"] or "/".join(filter(None, (title, trial))))
        _lay_out(call, title, wanted, target, is_forced=given["force"])
    tell_left(call, title, left, total)
    return 0


def _part_of_kept(call: CommandContext, kept: StoredItem, given: dict[str, Any], trial: str) -> ResultPart:
    """Return what was put, or lies under a digest, as it is laid out."""
    if given["metrics"] is not None or given["stage"] or trial:
        raise Usage(f"{kept.name} is no job: it has no stages, trials or metrics", hint=f"stoker get {kept.name} [DIR]")
    record = next((one for one in kept.records if not one.is_tombstone), kept.records[0])
    return part_of_record(call.parts.store, record.key, name=kept.name, again="put it again")


def _lay_out(call: CommandContext, name: str, wanted: list[ResultPart], target: str, *, is_forced: bool) -> None:
    out = call.out
    if os.path.lexists(target) and not os.path.isdir(target):
        raise Refused(
            f"{target} is there and no folder, and what is got comes into one",
            hint=f"say which one: stoker get {name} DIR",
        )
    if not is_forced and os.path.isdir(target) and os.listdir(target):
        raise Refused(f"{target} is not empty", hint="choose another folder, or say --force")
    laid_out = lay_out(call.parts.store, wanted, target)
    out.object(
        {
            "name": name,
            "folder": laid_out.folder,
            "files": list(laid_out.files),
            "kept_edits": list(laid_out.kept_edits),
        }
    )
    out.line(f"{len(laid_out.files)} file{'' if len(laid_out.files) == 1 else 's'} in {laid_out.folder}")
    for kept in laid_out.kept_edits:
        out.note(f"note: you had edited it, so it was kept: {kept}")


def _write_bundle(call: CommandContext, name: str, wanted: list[ResultPart], given: dict[str, Any]) -> None:
    """Pack what is wanted into one file."""
    from stoker.cli.screens import under_way
    from stoker.store.archives.pack import write_bundle

    path = os.path.join(call.parts.settings.folder, given["bundle"])
    if given["dir"]:
        raise Usage("a folder or an archive, not both", hint=f"stoker get {name} --bundle {given['bundle']}")
    if os.path.lexists(path) and not given["force"]:
        raise Refused(f"{path} is there already", hint="choose another name, or say --force")
    with under_way(call, f"packing {name}", None) as amount:
        bundle = write_bundle(call.parts.store, wanted, path, heed=amount.heed)
    call.out.object(
        {
            "name": name,
            "bundle": path,
            "digest": bundle.tree_digest,
            "archive_sha256": bundle.archive_sha256,
            "archive_bytes": bundle.archive_bytes,
            "bytes": bundle.size_bytes,
            "made_by": bundle.made_by,
        }
    )
    sizes = f"{format_size(bundle.archive_bytes)} for {format_size(bundle.size_bytes)}"
    call.out.line(f"{path}: {sizes}, tree {bundle.tree_digest[:12]}")
    call.out.line(f"sha256 {bundle.archive_sha256}")


def _write_metrics(call: CommandContext, folder: JobFolder, trial: str, path: str) -> int:
    from stoker.cli.metrics_export import write_metrics
    from stoker.jobs.comparison import JobFacts

    gathered = [one for one in JobFacts(folder, call.parts.store).trials() if trial in ("", str(one.end.trial.number))]
    return write_metrics(call, folder.spec().name, gathered, path)
