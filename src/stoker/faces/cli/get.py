"""`stoker get`: a job's results as plain files, in a folder of one's choice."""

from __future__ import annotations

import os
from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Option, Positional
from stoker.faces.cli.job_facts import job_story, split_target
from stoker.model.errors import NotFound, Refused
from stoker.store.results import lay_out
from stoker.worker.giving import parts_of_job
from stoker.worker.job_folder import JobFolder

GRAMMAR = Grammar(
    "get",
    about="Copy a job's results into a folder, as plain files that are yours: changing them changes nothing else.",
    positionals=(
        Positional("NAME", help="a job's name, `last`, or the beginning of an id; `last/3` is a sweep's third trial"),
        Positional("DIR", help="where to; a folder named like the job unless told", is_required=False),
    ),
    options=(
        Option(
            "--metrics",
            value="FILE",
            help="write the curves instead of the results: FILE.csv, or a folder for Parquet files",
        ),
        Option("--stage", value="STAGE", help="what this stage made, instead of the job's result"),
        Option(
            "--force", help="also into a folder that has something in it; edited files are kept beside the new ones"
        ),
    ),
    examples=(
        "stoker get last results",
        "stoker get last --metrics curves.csv",
        "stoker get last/3 best",
        "stoker get gbt models --stage train_gbt --force",
    ),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Copy results out."""
    out, parts = call.out, call.parts
    name, trial = split_target(given["name"])
    folder = call.find_job(name)
    spec = folder.spec()
    if given["metrics"] is not None:
        return _write_metrics(call, folder, trial, os.path.join(parts.settings.folder, given["metrics"]))
    wanted = parts_of_job(parts.store, folder, job_story(folder), stage=given["stage"] or "", trial=trial)
    if not wanted:
        raise NotFound(f"job {spec.name} has no result", hint=f"stoker jobs show {spec.name}")
    target = os.path.join(parts.settings.folder, given["dir"] or os.path.join(spec.name, trial))
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


def _write_metrics(call: Call, folder: JobFolder, trial: str, path: str) -> int:
    """Write every value that a job's trials measured, one a row."""
    from stoker.plan.metrics_export import Series, export_csv, export_parquet
    from stoker.worker.gathering import Gathering

    gathered = Gathering(folder, call.parts.store).trials()
    series = [
        Series(paths=one.curve_files, labels={"trial": str(one.end.trial.number), "label": one.end.trial.label})
        for one in gathered
        if trial in ("", str(one.end.trial.number))
    ]
    if not any(one.paths for one in series):
        raise NotFound(
            f"job {folder.spec().name} measured nothing", hint="print name=number, or use stoker_trainer: see the guide"
        )
    if not path.endswith(".csv") and os.path.isdir(path) and os.listdir(path):
        raise Refused(f"{path} is not empty", hint="choose another folder, or FILE.csv")
    written = export_csv(series, path) if path.endswith(".csv") else export_parquet(series, path)
    call.out.object({"files": list(written.files), "rows": written.rows, "lost": written.lost})
    call.out.line(f"{written.rows:,} values in {path}")
    if written.lost:
        call.out.note(f"note: {written.lost:,} values were dropped when they were measured")
    return 0
