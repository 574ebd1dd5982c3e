"""Commands for one local or fleet job: `stoker logs`, `stoker cancel`, `stoker get`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stoker.api.local_job import LocalJob
from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar, Option, Positional, whole
from stoker.core.errors import NotFound, Refused, Usage
from stoker.core.job import JobState
from stoker.core.text import format_size, some_of
from stoker.jobs.trials import read_trials, trial_numbered
from stoker.views.text_tables import span

if TYPE_CHECKING:
    from stoker.api.fleet_job import FleetJob
    from stoker.api.job import Job
    from stoker.api.job_lookup import StoredItem
    from stoker.jobs.comparison import TrialFacts
    from stoker.protocol.view_messages import JobView
    from stoker.store.results import MaterialisedResult, ResultPart

_MOST_NAMED = 5
_WAITING = frozenset(str(state) for state in JobState if not state.is_terminal)

LOGS_GRAMMAR = Grammar(
    "logs",
    about=(
        "Print the output of a job's stages, of a local or a fleet job. A stage with a cached result has no output. "
        "For a fleet job, -f continues with the next attempt, also on another machine."
    ),
    positionals=(
        Positional(
            "NAME[/STAGE]", key="target", help="a job (a name, `last`, an id), one stage of it, or a trial (`last/3`)"
        ),
    ),
    options=(
        Option("-f", "--follow", help="print new output until the job ends"),
        Option("--stage", value="STAGE", help="only this stage"),
        Option("--attempt", value="N", read=whole(1), help="attempt of a fleet job (default: the last)"),
        AT,
    ),
    examples=(
        "stoker logs last",
        "stoker logs gbt/train_gbt",
        "stoker logs resnet/3 -f",
        "stoker logs gbt --attempt 1",
    ),
)


def perform_logs(call: CommandContext, given: dict[str, Any]) -> int:
    """Show a job's logs."""
    job, stage, out = call.lookup.job(given["target"], given["at"]), given["stage"] or "", call.out
    if isinstance(job, LocalJob):
        if given["attempt"] is not None:
            raise Usage("--attempt is only for fleet jobs", hint="stoker jobs")
        stage = "/".join(filter(None, (given["target"].partition("/")[2], stage)))
    elif job.is_sweep and len(points := job.points()) > 1:
        hint = f"stoker logs {points[0].name}"
        raise Usage(f"{job.ref} has {len(points):,} points; name one", hint=hint)
    out.is_watched = given["follow"]
    for one in job.logs(stage, attempt=given["attempt"], follow=given["follow"]):
        if isinstance(one, str):
            out.note(one)
            continue
        if one.heading:
            gap = "\n" if one.has_gap else ""
            out.line(f"{gap}==> {one.heading} <==")
        out.object({"node": one.node, "line": one.text})
        out.line(one.text)
    return 0


CANCEL_GRAMMAR = Grammar(
    "cancel",
    about=(
        "Stop a running job: its process gets SIGTERM and a grace period to clean up, then it is killed with all its "
        "children. Finished stages stay cached, so running the job again continues it. NAME/3 stops only the third "
        "trial of a sweep or an adapters file; NAME stops all. If the newest job of that name has ended, the newest "
        "running one on this machine is stopped. For a fleet job, the cancel request is durable before the command "
        "returns."
    ),
    positionals=(Positional("NAME", help="a job's name, `name/3`, `last`, or an id prefix"),),
    options=(Option("--no-wait", help="for a fleet job: do not wait until it has stopped"), AT),
    examples=("stoker cancel last", "stoker cancel resnet/3", "stoker cancel resnet --no-wait"),
)


def perform_cancel(call: CommandContext, given: dict[str, Any]) -> int:
    """Stop one job; report it only when it has stopped."""
    from stoker.jobs.stop import JobStopMethod, stop_job

    job = _running_of_name(call, call.lookup.job(given["name"], given["at"]), given)
    if not isinstance(job, LocalJob):
        return cancel_fleet_job(call, job, waits=not given["no_wait"])
    folder, name, clock, out = job.folder, job.spec.name, call.parts.clock, call.out
    point = given["name"].partition("/")[2]
    if point:
        return _cancel_trial(call, job, point)
    if not call.flags.json and folder.may_be_running():
        out.note(f"stopping {name}…")
    stopped = stop_job(folder, clock=clock)
    out.object({"name": name, "attempt": folder.attempt, "how": str(stopped.how), "seconds": stopped.seconds})
    how = {
        JobStopMethod.POLITE: "stopped in its grace period",
        JobStopMethod.FIRM: "killed after its grace period",
    }[stopped.how]
    out.line(f"cancelled {name}: {how} ({span(stopped.seconds)})")
    return 0


def _running_of_name(call: CommandContext, found: LocalJob | FleetJob, given: dict[str, Any]) -> LocalJob | FleetJob:
    """Return the job to stop: `found`, or if it has ended, the newest local job of its name that runs."""
    if found.folder.may_be_running() if isinstance(found, LocalJob) else given["at"]:
        return found
    running = call.lookup.running_job(given["name"].partition("/")[0])
    if running is None:
        return found
    if not isinstance(found, LocalJob) and not all(JobState(point.state).is_terminal for point in found.points()):
        return found
    call.out.note(f"note: the newest job of that name has ended; {running.folder.attempt} is still running")
    return running


def _cancel_trial(call: CommandContext, job: LocalJob, point: str) -> int:
    """Stop one trial of a local sweep; return 1 if it had ended otherwise."""
    from stoker.jobs.stop import stop_trial

    folder, name, out = job.folder, job.spec.name, call.out
    trial = trial_numbered(read_trials(folder), point, name)
    title = f"{name}/{trial.spec.number}  {trial.spec.label}"
    if not call.flags.json and folder.may_be_running():
        out.note(f"stopping {title}…")
    stopped = stop_trial(folder, trial, clock=call.parts.clock)
    fields = {"name": f"{name}/{trial.spec.number}", "label": trial.spec.label, "attempt": folder.attempt}
    out.object({**fields, "state": stopped.state, "seconds": stopped.seconds})
    if stopped.state == JobState.CANCELLED:
        out.line(f"cancelled {title} ({span(stopped.seconds)}); the other trials continue")
        return 0
    out.line(f"{title}: already {stopped.state}")
    return 1


def cancel_fleet_job(call: CommandContext, job: FleetJob, *, waits: bool) -> int:
    """Cancel a fleet job: one point of a sweep, or all unfinished points; return 1 if none was cancelled."""
    from stoker.cli.watch import FirstLines

    out, clock = call.out, call.parts.clock
    started_s = clock.monotonic_s()
    live = job.cancel()
    lines = FirstLines(call)

    def called(view: JobView) -> str:
        return f"{view.name}  {view.label}" if view.label else view.name

    if not waits:
        for point in live:
            out.object({"name": point.name, "job": point.id, "state": point.state, "is_cancelling": True})
            lines.say(f"cancelling {called(point)}")
        lines.end()
        out.note(f"hint: wait until it has stopped: stoker jobs wait {job.ref}")
        return 0
    running = [point for point in live if point.state != JobState.PENDING]
    if running:
        names = running[0].name if len(running) == 1 else f"{len(running)} jobs"
        out.note(f"stopping {names}; Ctrl-C stops waiting, the cancel request remains")
    cancelled = 0

    def ended(view: JobView) -> None:
        nonlocal cancelled
        took = clock.monotonic_s() - started_s
        out.object({"name": view.name, "job": view.id, "state": view.state, "seconds": round(took, 6)})
        if view.state == JobState.CANCELLED:
            cancelled += 1
            lines.say(f"cancelled {called(view)}{f' on {view.machine}' if view.machine else ''} ({span(took)})")
        else:
            lines.say(f"{called(view)}: already {view.state}")

    job.wait(None, ended, live)
    lines.end()
    return 0 if cancelled else 1


GET_GRAMMAR = Grammar(
    "get",
    about=(
        "Copy a job's results, or a stored tree, into a folder as plain files; or pack them into one reproducible "
        "archive. For a sweep, trials without a result are listed, the others are copied, and the exit code is 1."
    ),
    positionals=(
        Positional(
            "NAME",
            help="a job's name, `last`, or an id prefix; `last/3` for the third trial of a sweep; or the name or "
            "digest prefix of a stored tree",
        ),
        Positional("DIR", help="target folder (default: the job's name)", is_required=False),
    ),
    options=(
        Option(
            "--metrics",
            value="FILE",
            help="write metrics instead of results: FILE.csv, or a folder for Parquet files",
        ),
        Option("--stage", value="STAGE", help="the result of this stage instead of the job's"),
        Option("--bundle", value="FILE", help="write one archive (FILE.tar.zst) instead of a folder"),
        Option("--force", help="write into a non-empty folder; edited files are kept beside the new ones"),
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


def perform_get(call: CommandContext, given: dict[str, Any]) -> int:
    """Copy results out."""
    name, _, trial = given["name"].partition("/")
    fleet = call.lookup.fleet_job_if_meant(given["name"], given["at"])
    if fleet is not None:
        return get_fleet_job(call, fleet, given)
    found = call.lookup.job_or_stored(name)
    if not isinstance(found, LocalJob):
        _get_parts(call, found.name, [_part_of_stored(call, found, given, trial)], given)
        return 0
    title = found.spec.name
    if given["metrics"] is not None:
        return _write_metrics(call, title, found, given["metrics"], trial)
    parts, ends = found.results(stage=given["stage"] or "", trial=trial)
    _get_parts(call, title, parts, given, trial)
    left = [
        (f"{title}/{end.trial.spec.number}", end.trial.spec.label, end.state)
        for end in ends
        if end.state != JobState.COMPLETED
    ]
    _report_left(call, title, left, len(ends))
    return 0


def _get_parts(
    call: CommandContext, title: str, parts: list[ResultPart], given: dict[str, Any], trial: str = ""
) -> None:
    """Copy from this machine's store into a folder or one archive."""
    if given["bundle"] is not None:
        _write_bundle(call, title, parts, given)
        return
    from stoker.store.results import lay_out

    target = os.path.join(call.parts.settings.folder, given["dir"] or "/".join(filter(None, (title, trial))))
    _refuse_target(target, title, is_forced=given["force"])
    laid_out = lay_out(call.parts.store, parts, target)
    call.out.object({"name": title, **_laid_out(laid_out)})
    call.out.line(f"{len(laid_out.files)} file{'' if len(laid_out.files) == 1 else 's'} in {laid_out.folder}")
    _note_edits(call, laid_out)


def _part_of_stored(call: CommandContext, kept: StoredItem, given: dict[str, Any], trial: str) -> ResultPart:
    """Return a stored tree as a result part."""
    from stoker.jobs.results import part_of_record

    if given["metrics"] is not None or given["stage"] or trial:
        raise Usage(
            f"{kept.name} is not a job: it has no stages, trials or metrics", hint=f"stoker get {kept.name} [DIR]"
        )
    record = next((one for one in kept.records if not one.is_tombstone), kept.records[0])
    return part_of_record(call.parts.store, record.key, name=kept.name, again="put it again")


def get_fleet_job(call: CommandContext, job: FleetJob, given: dict[str, Any]) -> int:
    """Copy the result of a job, or of all completed points of a sweep, each into its own folder.

    Points without a result are listed, and the exit code is 1.
    """
    from stoker.api.fleet_job import folder_name

    if given["stage"]:
        hint = f"get its result: stoker get {job.ref}; results of stages stay on the worker"
        raise Usage(f"{job.ref} is a fleet job: the coordinator has only its final result", hint=hint)
    if given["metrics"] is not None:
        return _write_metrics(call, job.ref, job, given["metrics"])
    everyone = job.points()
    points = [point for point in everyone if not job.is_sweep or point.state == JobState.COMPLETED]
    if not points:
        raise Refused(f"no point of {job.ref} has completed", hint=f"stoker jobs show {job.ref}")
    if given["bundle"] is not None:
        if len(everyone) > 1:
            hint = f"one archive per point: stoker get {points[0].name} --bundle FILE"
            raise Usage(f"{job.ref} is a sweep of {len(everyone)} points", hint=hint)
        return _get_archive(call, job, points[0], given)
    folder = os.path.join(call.parts.settings.folder, given["dir"] or folder_name(job.ref).replace("/", os.sep))
    is_any_empty = False
    for point in points:
        target = os.path.join(folder, job.folder_of(point)) if job.is_sweep else folder
        is_any_empty |= not _get_point(call, job, point, target, is_forced=given["force"])
    if is_any_empty:
        call.out.note("note: results are the files in $STOKER_OUT and those that `outputs` names")
    copied = {point.id for point in points}
    left = [(one.name, one.label, one.state) for one in everyone if one.id not in copied]
    _report_left(call, job.ref, left, len(everyone))
    return 0


def _get_point(call: CommandContext, job: FleetJob, point: JobView, target: str, *, is_forced: bool) -> int:
    """Fetch one result; return the number of files."""
    from stoker.cli.screens import under_way
    from stoker.store.results import lay_out

    _refuse_target(target, point.name, is_forced=is_forced)
    wanted, out = job.result_of(point), call.out
    with under_way(call, f"fetching {point.name}", wanted.size_bytes) as amount:
        part = job.fetch(wanted, amount.heed)
    laid_out = lay_out(call.parts.store, [part], target)
    out.object({"name": point.name, "job": point.id, "state": point.state, "tree": wanted.tree, **_laid_out(laid_out)})
    count = len(laid_out.files)
    files = f"{count} file{'' if count == 1 else 's'} in {laid_out.folder}"
    out.line(f"{point.name}: {files}" if count else f"{point.name} has no result files")
    _note_edits(call, laid_out)
    return count


def _get_archive(call: CommandContext, job: FleetJob, point: JobView, given: dict[str, Any]) -> int:
    from stoker.cli.screens import under_way

    # Before anything is fetched.
    _archive_path(call, job.ref, given)
    wanted = job.result_of(point)
    with under_way(call, f"fetching {point.name}", wanted.size_bytes) as amount:
        part = job.fetch(wanted, amount.heed)
    _write_bundle(call, point.name, [part], given)
    return 0


def _write_bundle(call: CommandContext, name: str, wanted: list[ResultPart], given: dict[str, Any]) -> None:
    """Pack results into one file."""
    from stoker.cli.screens import under_way
    from stoker.store.archives.pack import write_bundle

    path = _archive_path(call, name, given)
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


def _archive_path(call: CommandContext, name: str, given: dict[str, Any]) -> str:
    """Return the path of an archive. Raises `Refused` if it exists."""
    path = os.path.join(call.parts.settings.folder, given["bundle"])
    if given["dir"]:
        raise Usage("DIR and --bundle exclude each other", hint=f"stoker get {name} --bundle {given['bundle']}")
    if os.path.lexists(path) and not given["force"]:
        raise Refused(f"{path} already exists", hint="choose another name, or overwrite it with --force")
    return path


def _refuse_target(target: str, name: str, *, is_forced: bool) -> None:
    if os.path.lexists(target) and not os.path.isdir(target):
        raise Refused(f"{target} is not a folder", hint=f"stoker get {name} DIR")
    if not is_forced and os.path.isdir(target) and os.listdir(target):
        raise Refused(f"{target} is not empty", hint="choose another folder, or use --force")


def _laid_out(done: MaterialisedResult) -> dict[str, Any]:
    return {"folder": done.folder, "files": list(done.files), "kept_edits": list(done.kept_edits)}


def _note_edits(call: CommandContext, done: MaterialisedResult) -> None:
    for kept in done.kept_edits:
        call.out.note(f"note: kept an edited file: {kept}")


def _report_left(call: CommandContext, sweep: str, left: Sequence[tuple[str, str, str]], total: int) -> None:
    """Report trials without a result (name, label, state); the exit code is then 1."""
    if not left:
        return
    for name, label, state in left:
        call.out.object({"name": name, "label": label, "state": state, "folder": None, "files": []})
    named = some_of([f"{name} ({label}) is {state}" for name, label, state in left], _MOST_NAMED)
    ended = next((name for name, _, state in left if state not in _WAITING), "")
    hints = [f"stoker logs {ended}"] if ended else []
    if any(state in _WAITING for _, _, state in left):
        hints.append(f"stoker jobs wait {sweep}, then `stoker get` again with --force")
    lack = "has no result and was" if len(left) == 1 else "have no result and were"
    message = f"{len(left):,} of {total:,} trials of {sweep} {lack} not copied: {named}"
    call.incomplete = NotFound(message, hint="; ".join(hints))


def _write_metrics(call: CommandContext, name: str, job: Job, file: str, trial: str = "") -> int:
    """Write the metrics of a job's trials, also of a running or failed one: FILE.csv, or an empty folder."""
    from stoker.engine.metrics.curves import MetricSeries, export_csv, export_parquet

    path = os.path.join(call.parts.settings.folder, file)
    gathered: list[TrialFacts] = [one for one in job.gather()[1] if trial in ("", str(one.end.trial.spec.number))]
    series = [
        MetricSeries(
            paths=one.curve_files, labels={"trial": str(one.end.trial.spec.number), "label": one.end.trial.spec.label}
        )
        for one in gathered
    ]
    if not any(one.paths for one in series):
        raise NotFound(f"job {name} has no metrics", hint="print name=number, or use stoker_trainer")
    if not path.endswith(".csv") and os.path.isdir(path) and os.listdir(path):
        raise Refused(f"{path} is not empty", hint="choose another folder, or FILE.csv")
    written = export_csv(series, path) if path.endswith(".csv") else export_parquet(series, path)
    call.out.object({"files": list(written.files), "rows": written.rows, "lost": written.lost})
    call.out.line(f"{written.rows:,} values in {path}")
    lacking = [f"{name}/{one.end.trial.spec.number} ({one.end.state})" for one in gathered if not one.curve_files]
    if lacking:
        call.out.note(f"note: no metrics of {some_of(lacking, _MOST_NAMED)}")
    if written.lost:
        call.out.note(f"note: {written.lost:,} values were dropped during the run")
    return 0
