"""`stoker crossval JOB JOB`: in what do two jobs differ first, and do their numbers agree?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from stoker.api.job import Job, job_story
from stoker.api.local_job import LocalJob
from stoker.cli.compare import read_side
from stoker.cli.context import CommandContext
from stoker.cli.screens import busy
from stoker.core.errors import ParityFailed, ParityUndecided, StokerError, Usage
from stoker.core.jsontext import loads
from stoker.crossval.ladder import Outcome
from stoker.crossval.report_folder import ReportFolder
from stoker.crossval.report_formats import CheckReport, ReportedCheck
from stoker.crossval.run_difference import RunDifference, WeightFiles, run_difference, weight_files
from stoker.jobs.job_diff import compare_sides
from stoker.jobs.trials import read_trials, trial_numbered
from stoker.store.results import digests_shown
from stoker.store.tree_views import open_view
from stoker.views.text_tables import near_path


def compare_runs(call: CommandContext, given: dict[str, Any], reports: ReportFolder) -> int:
    """Compare two jobs; return 0 if their numbers agree."""
    names = given["jobs_compared"]
    if len(names) != 2:
        raise Usage(f"two jobs are compared, not {len(names)}", hint="stoker crossval before after")
    tolerance = _tolerance(given["limit"])
    with busy(call, "reading jobs"):
        sides = [read_side(call, name) for name in names]
        facts = compare_sides(sides)
        jobs = [call.lookup.job(name) for name in names]
        results = [_weights(call, one) for one in jobs]
        found = run_difference(facts, list(map(_hardware, jobs)), results, tolerance=tolerance)
    out = call.out
    folder = reports.folder
    reports.write(_report(call, names, found))
    out.object({"jobs": names, "report": folder, **found.to_json()})
    words = {Outcome.PASSED: "same", Outcome.FAILED: "differs", Outcome.SKIPPED: "unknown"}
    out.table([(one.name, words[one.outcome], one.text) for one in found.layers], header=("LAYER", "", ""))
    if found.first is not None:
        out.line(f"first difference: {found.first.name}: {found.first.text}")
    out.line(f"report: {os.path.join(near_path(folder, call.parts.settings.folder), 'parity.html')}")
    if found.outcome is Outcome.PASSED:
        return 0
    numbers = found.layers[-1]
    if found.outcome is Outcome.UNDECIDED:
        raise ParityUndecided(f"{names[0]} and {names[1]}: {numbers.text}", report=folder)
    message = f"the numbers of {names[0]} and {names[1]} differ: {numbers.text}"
    raise ParityFailed(message, report=folder)


def _tolerance(limits: list[str]) -> float:
    """Return the tolerance of `--limit numbers=1e-6`."""
    value = 0.0
    for text in limits:
        name, _, number = text.partition("=")
        try:
            value = float(number)
        except ValueError:
            name = ""
        if name != "numbers" or not 0.0 <= value <= 1.0:
            raise Usage(f"--limit {text!r}: of two jobs, only `numbers` has a limit", hint="--limit numbers=1e-6")
    return value


def _hardware(job: Job) -> Mapping[str, Any]:
    """Return what a job's receipt says of its machine; nothing if it has none."""
    try:
        found: Any = loads(job.receipts()[0].data)
        return dict(found["predicate"]["stoker_hardware"])
    except (StokerError, KeyError, TypeError, ValueError):
        return {}


def _weights(call: CommandContext, job: Job) -> WeightFiles:
    """Return the files with weights in a job's result, which is fetched if it is elsewhere."""
    store = call.parts.store
    try:
        results = job.results()
        folders = [
            (os.path.join(one.folder, part.folder), open_view(store, part.record))
            for one in results.found
            for part in one.fetch(lambda _size_bytes: None)
        ]
    except StokerError as error:
        folder = _laid_out(job)
        return weight_files([("", folder)]) if folder else WeightFiles(missing=error.message)
    return weight_files(folders)


def _laid_out(job: Job) -> str:
    """Return the folder that still shows the result of a local job, or of its trial; empty: there is none.

    The store keeps one result of a stage with equal inputs, and a later run may have replaced that of this job.
    """
    if not isinstance(job, LocalJob) or not job.view.out:
        return ""
    label = trial_numbered(read_trials(job.folder), job.stage, job.spec.name).spec.label if job.stage else ""
    folder = os.path.join(job.view.out, label)
    digests = {node.digest for node in job_story(job.folder).nodes.values()}
    return folder if (shown := digests_shown(folder)) and shown <= digests else ""


def _report(call: CommandContext, names: list[str], found: RunDifference) -> CheckReport:
    numbers = found.layers[-1]
    return CheckReport(
        kind="crossval",
        title=f"{names[0]} and {names[1]}",
        outcome=str(found.outcome),  # type: ignore[arg-type]  # the same words
        reason=numbers.text,
        # Only numbers decide: a difference above them explains, and fails nothing.
        checks=tuple(
            ReportedCheck(name=one.name, outcome=_shown(one.outcome, is_last=one is numbers), reason=one.text)
            for one in found.layers
        ),
        about={"first difference": found.first.name if found.first else "none"},
        made_at=datetime.fromtimestamp(call.parts.clock.wall_s(), tz=UTC).isoformat(timespec="seconds"),
        details=found.to_json(),
    )


def _shown(outcome: Outcome, *, is_last: bool) -> Any:
    return "skipped" if outcome is Outcome.FAILED and not is_last else str(outcome)
