"""`stoker jobs`: list, show, wait for, reprioritise, requeue and delete local and fleet jobs."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

from stoker.api.job import LocalJobView, job_story, view_as_json
from stoker.api.job_lists import JobFilter, list_jobs
from stoker.api.local_job import LocalJob
from stoker.cli.completion_words import remember
from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar, Option, Positional, duration, whole
from stoker.cli.screens import show_progress, waiting_screen
from stoker.cli.watch import FirstLines, ended_text
from stoker.core.errors import NotFound, Usage
from stoker.core.job import JobSpec, JobState
from stoker.core.machine import MOST_PRIORITY
from stoker.core.text import did_you_mean, format_duration
from stoker.devices.this_machine import host_name
from stoker.jobs.job_history import NodeHistory
from stoker.jobs.trials import KnownMetrics, TrialEnd, shared_nodes
from stoker.views.fleet_lines import JOB_HEADER, LOCAL_JOB_HEADER, job_row, local_job_row, local_row, spec_lines
from stoker.views.stage_lines import memory_text, metrics_text, shared_process_lines, step_text
from stoker.views.text_tables import ago, flat, span

if TYPE_CHECKING:
    from stoker.api.fleet_job import FleetJob
    from stoker.api.job import AnyJobView
    from stoker.protocol.client import FleetClient
    from stoker.views.leaderboard import RankedJob

_STAGE_HEADER = ("stage", "", "took", "memory", "")
_LISTED = 20
_AT_ONCE = 500


def _states(text: str) -> str:
    known = [str(state) for state in JobState]
    for state in text.split(","):
        if state not in known:
            message = f"unknown state {state!r}; {did_you_mean(state, known) or ', '.join(known)}"
            raise ValueError(message)
    return text


GRAMMAR = Grammar(
    "jobs",
    about=(
        "List jobs, newest first: those of the fleet, if there is one, and those of this machine. A job of this "
        "machine whose process has disappeared counts as failed."
    ),
    options=(
        Option(
            "--status",
            value="STATE",
            read=_states,
            help="only jobs in these states, comma-separated: pending,running",
            completes=tuple(JobState),
        ),
        Option("--recipe", value="NAME", help="only jobs of this recipe", completes="recipe"),
        Option(
            "--machine", value="NAME", help="only jobs of this machine; `here` is the local one", completes="machine"
        ),
        Option(
            "--rank",
            value="METRIC",
            help="list completed and running jobs and trials by this metric, best first; ~ marks live values",
        ),
        Option("--limit", value="N", read=whole(1), help=f"maximum number of jobs (default: {_LISTED})"),
        Option("--all", help="list all jobs"),
        AT,
    ),
    examples=(
        "stoker jobs",
        "stoker jobs --status failed",
        "stoker jobs --status pending,running --machine desk",
        "stoker jobs --rank val_loss --recipe tabular/gbt",
        "stoker jobs --all --json",
    ),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """List jobs."""
    if given["all"] and given["limit"]:
        raise Usage("--all and --limit exclude each other", hint="stoker jobs --all")
    if given["rank"] is not None:
        return _rank(call, given)
    settings = call.parts.settings
    client = call.client_if_any(given["at"])
    wanted = JobFilter(state=given["status"] or "", recipe=given["recipe"] or "", machine=given["machine"] or "")
    limit = given["limit"] or _LISTED
    page = _AT_ONCE if given["all"] else min(limit + 1, _AT_ONCE)
    jobs = list_jobs(settings.runs, client, wanted, here=host_name(settings.environment)[0], page=page)
    count = 0
    while listed := list(islice(jobs, _AT_ONCE if given["all"] else limit)):
        if client is not None and not count:
            remember(settings.state, "jobs", (view.name for view in listed if not isinstance(view, LocalJobView)))
        _show(call, listed, client)
        count += len(listed)
        if not given["all"]:
            break
    if not count:
        return _print_none(call, wanted, client)
    if not given["all"] and next(jobs, None) is not None:
        call.out.note(f"note: older jobs are not shown; show more: --limit {limit * 5}")
    return 0


def _rank(call: CommandContext, given: dict[str, Any]) -> int:
    """List jobs by a metric, those of this machine and of the fleet together."""
    from stoker.api.leaderboard import MOST_FOLDERS, fleet_values, local_values
    from stoker.views.leaderboard import RANK_HEADER, rank_jobs, rank_rows

    if given["status"] or given["machine"]:
        raise Usage("--rank lists jobs of all states and machines", hint=f"stoker jobs --rank {given['rank']}")
    metric, recipe, parts = given["rank"], given["recipe"] or "", call.parts
    client = call.client_if_any(given["at"])
    found: list[RankedJob] = []
    missing: NotFound | None = None
    with show_progress(call, "reading metrics of jobs", None) as progress:
        try:
            found += () if client is None else fleet_values(client, metric, recipe=recipe)
        except NotFound as error:
            missing = error
        found += local_values(
            parts.settings.runs, parts.store, recipe=recipe, with_attempts=client is None, looked=progress.reach
        )
    if missing is not None and not found:
        # It names the metrics of the fleet.
        raise missing
    rows = rank_jobs(found, metric)
    shown = rows if given["all"] else rows[: given["limit"] or _LISTED]
    for row in shown:
        call.out.object(row.to_json())
    header = [metric if place == RANK_HEADER.index("", 1) else name for place, name in enumerate(RANK_HEADER)]
    call.out.table(rank_rows(shown), header=header)
    if len(rows) > len(shown):
        call.out.note(f"note: {len(rows) - len(shown):,} more have this metric; --all lists them")
    if progress.done >= MOST_FOLDERS:
        call.out.note(f"note: the newest {MOST_FOLDERS} jobs of this machine are ranked")
    return 0


def _show(call: CommandContext, listed: list[AnyJobView], client: FleetClient | None) -> None:
    out, now_s = call.out, call.parts.clock.wall_s()
    for view in listed:
        out.object(view_as_json(view))
    if client is None:
        out.table([local_job_row(view_as_json(view), now_s) for view in listed], header=LOCAL_JOB_HEADER)
        return
    rows = [
        local_row(view.to_json(), now_s) if isinstance(view, LocalJobView) else job_row(view, now_s) for view in listed
    ]
    out.table(rows, header=JOB_HEADER)


def _print_none(call: CommandContext, wanted: JobFilter, client: FleetClient | None) -> int:
    if wanted == JobFilter() and client is not None:
        call.out.line("no jobs in the fleet or on this machine")
        call.out.note("hint: stoker submit manifest.toml")
    elif wanted == JobFilter():
        call.out.line("no jobs on this machine")
        call.out.note("hint: stoker recipes")
    else:
        call.out.line("no matching jobs")
    return 0


# `stoker jobs show`: the details of one job.

JOBS_SHOW_GRAMMAR = Grammar(
    "jobs show",
    about="Show one job: its arguments, its state, and each of its stages.",
    positionals=(Positional("NAME", help="a job's name, `name/3`, `last`, or an id prefix", completes="job"),),
    options=(AT,),
    examples=("stoker jobs show last", "stoker jobs show resnet/3", "stoker jobs show last --json"),
)


def perform_jobs_show(call: CommandContext, given: dict[str, Any]) -> int:
    """Show one job."""
    job = call.lookup.job(given["name"], given["at"])
    if not isinstance(job, LocalJob):
        return _show_points(call, job) if job.is_sweep else _show_fleet_job(call, job)
    out, folder, spec = call.out, job.folder, job.spec
    view, end, story = job.view, folder.ended(), job_story(folder)
    metrics = KnownMetrics(call.parts.store)
    ends = [metrics.added_to(one) for one in job.ends(story, is_running=view.state == "running")]
    out.object(
        {
            **_spec_as_json(spec),
            **view_as_json(view),
            "options": job.attempt.options,
            "folder": spec.folder,
            "stoker": job.attempt.stoker,
            "error": end.error if end else None,
            "journal": folder.status_path,
            "warnings": story.warnings,
            "dropped_warnings": story.dropped_warnings,
            "stages": [node.to_json() for node in story.nodes.values()],
            "trials": [_trial_as_json(one) for one in ends],
        }
    )
    _show_local_head(call, job, view)
    nodes = list(story.nodes.values())
    if ends:
        shared = shared_nodes([one.trial for one in ends])
        nodes = [node for node in nodes if node.node.partition("[")[0] in shared]
    if nodes:
        out.table([_row(node) for node in nodes], header=_STAGE_HEADER)
    if nodes and ends:
        out.line()
    if ends:
        out.table([_trial_row(one) for one in ends], header=("", "trial", *_STAGE_HEADER[1:]))
    out.lines(shared_process_lines(spec.name, story.nodes.values()))
    for warning in story.warnings:
        out.note(f"warning: {warning}")
    if story.dropped_warnings:
        out.note(f"note: {story.dropped_warnings:,} more warnings are in the journal")
    return 0


def _spec_as_json(spec: JobSpec) -> dict[str, Any]:
    """Return the fields of a job that are set. Its identity would have what is masked in its arguments."""
    from stoker.jobs.trial_settings import masked_args

    fields = {name: value for name, value in spec.to_json().items() if name not in ("id", "identity")}
    return {**fields, "args": masked_args(spec.recipe, spec.args)}


def _shown_args(spec: JobSpec) -> dict[str, Any]:
    """Return the arguments of a job to show, by path: without those that Stoker found out for a program."""
    from stoker.jobs.program import RECIPE, is_found, shown_argv
    from stoker.jobs.trial_settings import masked_args

    args = flat(masked_args(spec.recipe, spec.args))
    if spec.recipe == RECIPE and "argv" in args:
        args["argv"] = shown_argv(args["argv"])
    return {name: value for name, value in args.items() if not is_found(spec.recipe, name)}


def _show_local_head(call: CommandContext, job: LocalJob, view: LocalJobView) -> None:
    out, spec = call.out, job.spec
    now_s = call.parts.clock.wall_s()
    took = f", took {span(view.elapsed_s)}" if view.elapsed_s is not None else ""
    why = f" ({view.why})" if view.why else ""
    out.line(f"{out.paint(spec.name, 'bold')}: {view.state}{why}")
    out.line(f"started {ago(job.attempt.started_s, now_s)}{took} · id {job.attempt.id} · Stoker {job.attempt.stoker}")
    out.lines(spec_lines(spec, _shown_args(spec)))
    if view.out:
        out.line(f"results {view.out}")
    out.line(f"journal {job.folder.status_path}\n")


def _show_fleet_job(call: CommandContext, job: FleetJob) -> int:
    """Show a fleet job: arguments, state, attempts and stages."""
    from stoker.jobs.trial_settings import masked_args
    from stoker.views.fleet_lines import ATTEMPT_HEADER, attempt_row, job_lines

    story, out, now_s = job.story, call.out, call.parts.clock.wall_s()
    stages, args = job.stages(), masked_args(story.spec.recipe, story.spec.args)
    hint = job.hint()
    more = {"args": args, "where": "fleet", "stages": [one.to_json() for one in stages], "hint": hint}
    out.object({**story.model_dump(mode="json"), **more})
    out.lines(job_lines(story, _shown_args(story.spec), now_s, paint=out.paint))
    if hint:
        out.line(f"hint: {hint}")
    if story.attempts:
        out.line()
        out.table([attempt_row(attempt, now_s) for attempt in story.attempts], header=ATTEMPT_HEADER)
    if stages:
        rows = [
            [
                one.node,
                one.ending,
                span(one.seconds),
                memory_text(one.peak_rss_bytes, one.peak_gpu_bytes),
                metrics_text(one.metrics, is_over=one.ending != "running"),
            ]
            for one in stages
        ]
        out.line()
        out.table(rows, header=_STAGE_HEADER)
        out.lines(shared_process_lines(story.job.name, stages))
    return 0


def _show_points(call: CommandContext, job: FleetJob) -> int:
    from stoker.views.fleet_lines import job_row

    out, now_s, points = call.out, call.parts.clock.wall_s(), job.points()
    for point in points:
        out.object(view_as_json(point))
    counts = ", ".join(f"{count:,} {state}" for state, count in Counter(point.state for point in points).items())
    out.line(f"{out.paint(job.ref, 'bold')}: {len(points):,} points, {counts}\n")
    out.table([job_row(point, now_s) for point in points], header=JOB_HEADER)
    return 0


def _trial_row(end: TrialEnd) -> list[str]:
    memory = memory_text(end.peak_bytes, end.peak_gpu_bytes)
    state = "kept" if end.is_kept else end.state
    texts = [end.message, metrics_text(end.metrics)]
    return [
        str(end.trial.spec.number),
        end.trial.spec.label,
        state,
        span(end.seconds),
        memory,
        "  ".join(filter(None, texts)),
    ]


def _trial_as_json(end: TrialEnd) -> dict[str, Any]:
    return {
        "trial": end.trial.spec.number,
        "label": end.trial.spec.label,
        "point": dict(end.trial.spec.point),
        "state": end.state,
        "is_kept": end.is_kept,
        "seconds": end.seconds,
        "metrics": dict(end.metrics),
        "peak_bytes": end.peak_bytes,
        "peak_gpu_bytes": end.peak_gpu_bytes,
        "cause": end.cause,
        "message": end.message,
    }


def _row(node: NodeHistory) -> list[str]:
    memory = memory_text(node.peak_rss_bytes, node.peak_gpu_bytes)
    is_over = node.ending != "running"
    texts = [node.message, "" if is_over else step_text(node), metrics_text(node.metrics, is_over=is_over)]
    return [node.node, node.ending, span(node.seconds), memory, "  ".join(text for text in texts if text)]


# `stoker jobs wait`: wait until a job has ended.

JOBS_WAIT_GRAMMAR = Grammar(
    "jobs wait",
    about=(
        "Wait until a job, or all points of a sweep, have ended. Exit code 0 if all completed; 1 if one did not, or "
        "after the timeout."
    ),
    positionals=(Positional("NAME", help="a job's name, `name/3`, `last`, or an id prefix", completes="job"),),
    options=(
        Option("--timeout", value="TIME", read=duration, help="maximum wait, such as 90s, 15m, 8h (default: none)"),
        AT,
    ),
    examples=("stoker jobs wait resnet", "stoker jobs wait last --timeout 10m"),
)


def perform_jobs_wait(call: CommandContext, given: dict[str, Any]) -> int:
    """Wait for a job; return 0 if it completed."""
    job, limit_s = call.lookup.job(given["name"], given["at"]), given["timeout"]
    out, clock = call.out, call.parts.clock
    began_s = clock.monotonic_s()
    points = job.points()
    states: list[str] = []

    def waiting(_now_s: float, _at_least_s: float) -> list[str]:
        on = f"{len(states):,} of {len(points):,} ended" if len(points) > 1 else f"waiting for {points[0].name}"
        return [f"{on}  {span(clock.monotonic_s() - began_s)}  (Ctrl-C stops waiting; the job continues)"]

    def ended(view: AnyJobView) -> None:
        states.append(view.state)
        out.object(view_as_json(view))
        if isinstance(view, LocalJobView):
            why = f": {view.why}" if view.why else ""
            screen.lasting(f"{view.name} {view.state} {span(view.elapsed_s)}{why}")
        else:
            sign = out.signs.ran if view.state == JobState.COMPLETED else out.signs.failed
            screen.lasting(f"{sign} {ended_text(view, JobState(view.state))}")

    screen = waiting_screen(call, points[0].name if len(points) == 1 else job.ref, len(points), lambda: len(states))
    screen.begin(waiting)
    try:
        left = job.wait(limit_s, ended)
    finally:
        screen.close()
    if left:
        who = points[0].name if len(points) == 1 else f"{left:,} of {len(points):,} points of {job.ref}"
        out.complain(f"{who} did not end within {format_duration(limit_s or 0.0)}")
        return 1
    return 0 if set(states) <= {JobState.COMPLETED} else 1


# `stoker jobs rm`: delete the record of a local job. Its results stay in the store and in its result folder.

JOBS_RM_GRAMMAR = Grammar(
    "jobs rm",
    about=(
        "Delete the journal and logs of a job of this machine. Results stay in the store and in the result folder. "
        "Fleet jobs can't be deleted."
    ),
    positionals=(Positional("NAME", help="a job's name, `last`, or an id prefix", completes="job"),),
    examples=("stoker jobs rm last",),
)


def perform_jobs_rm(call: CommandContext, given: dict[str, Any]) -> int:
    """Delete the record of one job."""
    job = call.lookup.job(given["name"])
    view = job.view
    job.remove()
    call.out.object({"name": view.name, "attempt": view.attempt, "removed": True})
    call.out.line(f"deleted {view.name} ({view.attempt}); its results remain")
    return 0


PRIORITY_GRAMMAR = Grammar(
    "jobs priority",
    about=(
        "Change the queue priority of a fleet job; higher starts first (default of new jobs: 0). A running job "
        "continues; the priority counts if it is queued again. Write a negative number after --."
    ),
    positionals=(
        Positional("NAME", help="a job's name, `name/3`, `last`, or an id prefix", completes="job"),
        Positional("N", key="priority", help=f"from -{MOST_PRIORITY:,} to {MOST_PRIORITY:,}"),
    ),
    options=(AT,),
    examples=("stoker jobs priority resnet 10", "stoker jobs priority gbt -- -5"),
)


def perform_priority(call: CommandContext, given: dict[str, Any]) -> int:
    """Set the priority of a job."""
    priority = _read(given["priority"])
    job = call.lookup.fleet_job(given["name"], given["at"])
    lines = FirstLines(call)
    for point in job.set_priority(priority)[0]:
        call.out.object({"name": point.name, "job": point.id, "priority": priority, "was": point.priority})
        lines.say(f"{point.name}: priority {priority}, was {point.priority}")
    lines.end()
    return 0


def _read(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = MOST_PRIORITY + 1
    if abs(number) > MOST_PRIORITY:
        raise Usage(
            f"{text!r} is not a whole number from -{MOST_PRIORITY:,} to {MOST_PRIORITY:,}",
            hint="stoker jobs priority NAME 10",
        )
    return number


# `stoker jobs requeue`: start fleet jobs again that have ended. Earlier attempts stay in the history.

REQUEUE_GRAMMAR = Grammar(
    "jobs requeue",
    about=(
        "Start a fleet job again that failed, completed or was cancelled: a new attempt under a higher epoch, so that "
        "late writes of older attempts are rejected. For a sweep, all points that did not complete."
    ),
    positionals=(Positional("NAME", help="a job's name, `name/3`, `last`, or an id prefix", completes="job"),),
    options=(Option("--all", help="for a sweep, also completed points"), AT),
    examples=("stoker jobs requeue resnet/3", "stoker jobs requeue resnet", "stoker jobs requeue gbt --json"),
)


def perform_requeue(call: CommandContext, given: dict[str, Any]) -> int:
    """Queue a job again."""
    out = call.out
    job = call.lookup.fleet_job(given["name"], given["at"])
    again, done = job.requeue(with_completed=given["all"])
    lines = FirstLines(call)
    for point in again:
        out.object({"name": point.name, "job": point.id, "state": "pending", "was": point.state})
        lines.say(f"{point.name} requeued (was {point.state})")
    lines.end()
    for note in done.notes:
        out.note(f"note: {note}")
    return 0
