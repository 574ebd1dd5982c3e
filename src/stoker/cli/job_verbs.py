"""Commands for one local or fleet job: `stoker logs`, `stoker cancel`, `stoker get`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.api.job_lookup import StoredItem
from stoker.api.local_job import LocalJob
from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar, Option, Positional, whole
from stoker.cli.watch import FirstLines
from stoker.core.errors import NotFound, Refused, Usage
from stoker.core.job import JobState
from stoker.core.text import counted, format_size, some_of
from stoker.views.text_tables import span

if TYPE_CHECKING:
    from stoker.api.fleet_job import FleetJob
    from stoker.api.job import Job, JobStop, StageLogLine, StoredResult
    from stoker.core.job import JobSpec
    from stoker.store.results import ResultPart

_MOST_NAMED = 5
_HOW = {"": "", "polite": ": stopped in its grace period", "firm": ": killed after its grace period"}
_WAITING = frozenset(str(state) for state in JobState if not state.is_terminal)

LOGS_GRAMMAR = Grammar(
    "logs",
    about=(
        "Print the output of a job's stages, of a local or a fleet job. A stage with a cached result has no output. "
        "For a fleet job, -f continues with the next attempt, also on another machine."
    ),
    positionals=(
        Positional(
            "NAME[/STAGE]",
            key="target",
            help="a job (a name, `last`, an id), one stage of it, or a trial (`last/3`)",
            completes="job",
        ),
    ),
    options=(
        Option("-f", "--follow", help="print new output until the job ends"),
        Option("--stage", value="STAGE", help="only this stage"),
        Option("--attempt", value="N", read=whole(1), help="attempt of a fleet job (default: the last)"),
        Option("--metrics", help="only lines that metrics were read from, each with its step and values"),
        AT,
    ),
    examples=(
        "stoker logs last",
        "stoker logs gbt/train_gbt",
        "stoker logs resnet/3 -f",
        "stoker logs gbt --attempt 1",
        "stoker logs last --metrics",
    ),
)


def perform_logs(call: CommandContext, given: dict[str, Any]) -> int:
    """Show a job's logs."""
    job, out = call.lookup.job(given["target"], given["at"]), call.out
    out.is_watched = given["follow"]
    explain = _metric_lines(job.spec) if given["metrics"] else None
    for one in job.logs(given["stage"] or "", attempt=given["attempt"], follow=given["follow"]):
        if isinstance(one, str):
            out.note(one)
            continue
        if explain is not None:
            for found, text in explain(one):
                out.object(found)
                out.line(text)
            continue
        if one.heading:
            gap = "\n" if one.has_gap else ""
            out.line(f"{gap}==> {one.heading} <==")
        out.object({"node": one.node, "line": one.text})
        out.line(one.text)
    return 0


def _metric_lines(spec: JobSpec) -> Callable[[StageLogLine], Iterator[tuple[dict[str, Any], str]]]:
    """Return a function that returns what was read from a line of a program, as JSON and as text."""
    from stoker.engine.metrics.printed import PrintedMetrics
    from stoker.engine.runners.program.trainer_lines import OutputSteps

    readers: dict[str, tuple[PrintedMetrics, OutputSteps]] = {}

    def explain(line: StageLogLine) -> Iterator[tuple[dict[str, Any], str]]:
        if line.node not in readers:
            readers[line.node] = PrintedMetrics(spec.args.get("metrics", ())), OutputSteps()
        printed, steps = readers[line.node]
        for part in line.text.split("\r"):
            found = printed.read(part.encode())
            place = steps.place_plain(found) if found.values or found.step is not None else None
            if place is None or not found.values:
                continue
            read = {"step": place[0], "metrics": found.values, "spelt": found.spelt}
            values = [
                f"{name} = {value:.6g}" + (f" ({spelt})" if spelt != name else "")
                for name, value in found.values.items()
                for spelt in [found.spelt.get(name, name)]
            ]
            yield {"node": line.node, "line": part, **read}, f"{part}\n    → step {place[0]}: {', '.join(values)}"

    return explain


CANCEL_GRAMMAR = Grammar(
    "cancel",
    about=(
        "Stop a running job: its process gets SIGTERM and a grace period to clean up, then it is killed with all its "
        "children. Finished stages stay cached, so running the job again continues it. NAME/3 stops only the third "
        "trial of a sweep or an adapters file; NAME stops all. If the newest job of that name has ended, the newest "
        "running one on this machine is stopped. For a fleet job, the cancel request is durable before the command "
        "returns."
    ),
    positionals=(Positional("NAME", help="a job's name, `name/3`, `last`, or an id prefix", completes="job"),),
    options=(Option("--no-wait", help="for a fleet job: do not wait until it has stopped"), AT),
    examples=("stoker cancel last", "stoker cancel resnet/3", "stoker cancel resnet --no-wait"),
)


def perform_cancel(call: CommandContext, given: dict[str, Any]) -> int:
    """Stop one job; report it only when it has stopped."""
    job = call.lookup.live_job(given["name"], given["at"])
    if given["no_wait"] and not isinstance(job, LocalJob):
        return request_cancel(call, job)
    out, lines, cancelled = call.out, FirstLines(call), 0

    def stopping(names: Sequence[str]) -> None:
        if not isinstance(job, LocalJob):
            several = names[0] if len(names) == 1 else f"{len(names)} jobs"
            out.note(f"stopping {several}; Ctrl-C stops waiting, the cancel request remains")
        elif not call.flags.json:
            out.note(f"stopping {names[0]}…")

    def ended(stop: JobStop) -> None:
        nonlocal cancelled
        out.object(dict(stop.body))
        title = _title(stop.name, stop.label)
        if stop.state != JobState.CANCELLED:
            lines.say(f"{title}: already {stop.state}")
            return
        cancelled += 1
        on = f" on {stop.machine}" if stop.machine else ""
        others = "; the other trials continue" if stop.leaves_others else ""
        lines.say(f"cancelled {title}{_HOW[stop.how]}{on} ({span(stop.seconds)}){others}")

    from stoker.cli.screens import busy

    with busy(call, f"stopping {given['name']}"):
        job.cancel(stopping=stopping, ended=ended)
    lines.end()
    return 0 if cancelled else 1


def request_cancel(call: CommandContext, job: FleetJob) -> int:
    """Request that a fleet job is cancelled, without waiting until it has stopped."""
    lines = FirstLines(call)
    for point in job.cancel(waits=False):
        call.out.object({"name": point.name, "job": point.id, "state": point.state, "is_cancelling": True})
        lines.say(f"cancelling {_title(point.name, point.label)}")
    lines.end()
    call.out.note(f"hint: wait until it has stopped: stoker jobs wait {job.ref}")
    return 0


def _title(name: str, label: str) -> str:
    return f"{name}  {label}" if label else name


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
            completes="job ref",
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
    found = call.lookup.fleet_job_if_meant(given["name"], given["at"]) or call.lookup.job_or_stored(given["name"])
    if isinstance(found, StoredItem):
        return _get_stored(call, found, given)
    if given["metrics"] is not None:
        return _write_metrics(call, found, given["metrics"])
    results = found.results(given["stage"] or "")
    if given["bundle"] is not None:
        if found.is_sweep and results.total > 1:
            hint = f"one archive per point: stoker get {found.ref}/N --bundle FILE"
            raise Usage(f"{found.ref} is a sweep of {results.total} points", hint=hint)
        # Before anything is fetched.
        _archive_path(call, found.ref, given)
        for result in results.found:
            _write_bundle(call, result.name, fetched(call, result), given)
    else:
        folder = os.path.join(call.parts.settings.folder, given["dir"] or found.result_folder)
        counts = [_get_result(call, result, folder, is_forced=given["force"]) for result in results.found]
        if not all(counts):
            call.out.note("note: results are the files in $STOKER_OUT and those that `outputs` names")
    _report_left(call, found.ref, results.missing, results.total)
    return 0


def _get_result(call: CommandContext, result: StoredResult, folder: str, *, is_forced: bool) -> int:
    """Copy one result into a folder, or its own folder below it; return the number of files."""
    target = os.path.join(folder, result.folder) if result.folder else folder
    _refuse_target(target, result.name, is_forced=is_forced)
    return _lay_out(call, result.name, fetched(call, result), target, result.body)


def fetched(call: CommandContext, result: StoredResult) -> list[ResultPart]:
    """Return a result from this machine's store, into which it is fetched first if it is elsewhere."""
    if result.size_bytes is None:
        return result.fetch(lambda _size_bytes: None)
    from stoker.cli.screens import under_way

    with under_way(call, f"fetching {result.name}", result.size_bytes) as amount:
        return result.fetch(amount.heed)


def _lay_out(call: CommandContext, name: str, parts: list[ResultPart], target: str, body: Mapping[str, Any]) -> int:
    """Copy from this machine's store into a folder; return the number of files."""
    from stoker.cli.screens import under_way
    from stoker.store.results import lay_out, tree_of

    out = call.out
    with under_way(call, f"copying {name}", tree_of(parts).size_bytes) as amount:
        done = lay_out(call.parts.store, parts, target, on_file=amount.heed)
    out.object(
        {"name": name, **body, "folder": done.folder, "files": list(done.files), "kept_edits": list(done.kept_edits)}
    )
    count = len(done.files)
    files = f"{counted(count, 'file')} in {done.folder}"
    out.line(f"{name}: {files}" if count else f"{name} has no result files")
    for kept in done.kept_edits:
        out.note(f"note: kept an edited file: {kept}")
    return count


def _get_stored(call: CommandContext, stored: StoredItem, given: dict[str, Any]) -> int:
    """Copy a stored tree into a folder or one archive."""
    from stoker.jobs.results import part_of_record

    name = stored.name
    if given["metrics"] is not None or given["stage"] or "/" in given["name"]:
        raise Usage(f"{name} is not a job: it has no stages, trials or metrics", hint=f"stoker get {name} [DIR]")
    record = next((one for one in stored.records if not one.is_tombstone), stored.records[0])
    parts = [part_of_record(call.parts.store, record.key, name=name, again="put it again")]
    if given["bundle"] is not None:
        _write_bundle(call, name, parts, given)
        return 0
    target = os.path.join(call.parts.settings.folder, given["dir"] or name)
    _refuse_target(target, name, is_forced=given["force"])
    _lay_out(call, name, parts, target, {})
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


def _write_metrics(call: CommandContext, job: Job, file: str) -> int:
    """Write the metrics of a job's trials, also of a running or failed one: FILE.csv, or an empty folder."""
    from stoker.cli.screens import busy, show_progress
    from stoker.engine.metrics.curves import MetricSeries, export_csv, export_parquet

    name, path = job.ref, os.path.join(call.parts.settings.folder, file)
    with show_progress(call, "reading trials", None) as progress:
        gathered = job.gather(progress.reach)[1]
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
    with busy(call, "writing metrics"):
        written = export_csv(series, path) if path.endswith(".csv") else export_parquet(series, path)
    call.out.object({"files": list(written.files), "rows": written.rows, "lost": written.lost})
    call.out.line(f"{written.rows:,} values in {path}")
    lacking = [f"{name}/{one.end.trial.spec.number} ({one.end.state})" for one in gathered if not one.curve_files]
    if lacking:
        call.out.note(f"note: no metrics of {some_of(lacking, _MOST_NAMED)}")
    if written.lost:
        call.out.note(f"note: {written.lost:,} values were dropped during the run")
    return 0
