"""`stoker jobs`: what ran here and what the fleet has, the newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.coordinator_access import AT, reach_if_any
from stoker.cli.fleet_status import JobFilter, JobListItem, first, list_jobs
from stoker.cli.grammar import Grammar, Option, Positional, duration, whole
from stoker.cli.job_handle import job_facts, job_story, job_table, trial_ends
from stoker.cli.job_names import FleetJob, fleet_job, meant
from stoker.cli.screens import LineScreen, Screen
from stoker.cli.watch import FirstLines, ended_text
from stoker.core.errors import InvalidTransition, Usage
from stoker.core.job import JobState
from stoker.core.machine import MOST_PRIORITY
from stoker.core.text import did_you_mean, format_duration
from stoker.devices.this_machine import host_name
from stoker.host.durable import remove_tree
from stoker.jobs.job_history import NodeHistory, RunHistory
from stoker.jobs.program import is_found
from stoker.jobs.rerun_spec import trials_of_job
from stoker.jobs.secret_mask import masked_args
from stoker.jobs.submitter import who_asks
from stoker.jobs.trials import KnownMetrics, TrialEnd, is_sweep, shared_nodes
from stoker.views.fleet_lines import JOB_HEADER
from stoker.views.recipe_lines import flat, value_text
from stoker.views.stage_lines import companies_lines, memory_text, metrics_text, step_text
from stoker.views.text_tables import ASCII, UNICODE, ago, span, table

if TYPE_CHECKING:
    from stoker.cli.context import CliOutput
    from stoker.core.clock import Clock
    from stoker.jobs.job_folder import JobFolder
    from stoker.protocol.client import FleetClient
    from stoker.protocol.view_messages import JobView


_LISTED = 20
_AT_ONCE = 500


def _states(text: str) -> str:
    known = [str(state) for state in JobState]
    for state in text.split(","):
        if state not in known:
            message = f"there is no state {state!r}; {did_you_mean(state, known) or ', '.join(known)}"
            raise ValueError(message)
    return text


GRAMMAR = Grammar(
    "jobs",
    about=(
        "List jobs, the newest first: those of the fleet, if there is one, and those that ran here. A job of this "
        "machine whose process is gone without a word has failed."
    ),
    options=(
        Option(
            "--status", value="STATE", read=_states, help="only these: pending, running, failed; a comma for several"
        ),
        Option("--recipe", value="NAME", help="only jobs of this recipe"),
        Option("--machine", value="NAME", help="only jobs that run, or ran last, there; `here` is this one"),
        Option("--limit", value="N", read=whole(1), help=f"how many, {_LISTED} unless told"),
        Option("--all", help="every one, page by page"),
        AT,
    ),
    examples=(
        "stoker jobs",
        "stoker jobs --status failed",
        "stoker jobs --status pending,running --machine desk",
        "stoker jobs --all --json",
    ),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """List the jobs."""
    if given["all"] and given["limit"]:
        raise Usage("--all and --limit: all of them, or so many?", hint="one of them")
    settings = call.parts.settings
    client = reach_if_any(call, given["at"])
    asked = JobFilter(state=given["status"] or "", recipe=given["recipe"] or "", machine=given["machine"] or "")
    limit = given["limit"] or _LISTED
    page = _AT_ONCE if given["all"] else min(limit + 1, _AT_ONCE)
    jobs = list_jobs(settings.runs, client, asked, here=host_name(settings.environment)[0], page=page)
    if given["all"]:
        count = 0
        while True:
            listed, is_more = first(jobs, _AT_ONCE)
            _show(call, listed, client)
            count += len(listed)
            if not is_more:
                return _none(call, asked, client) if not count else 0
    listed, is_more = first(jobs, limit)
    if not listed:
        return _none(call, asked, client)
    _show(call, listed, client)
    if is_more:
        call.out.note(f"note: older ones are not shown; --limit {limit * 5} shows more")
    return 0


def _show(call: CommandContext, listed: list[JobListItem], client: FleetClient | None) -> None:
    out, now_s = call.out, call.parts.clock.wall_s()
    for one in listed:
        out.object(one.body)
    if client is None:
        lines = job_table([one.body for one in listed], now_s=now_s, columns=out.columns)
    else:
        lines = table([one.row(now_s) for one in listed], header=JOB_HEADER, columns=out.columns)
    for line in lines:
        out.line(line)


def _none(call: CommandContext, asked: JobFilter, client: FleetClient | None) -> int:
    if asked == JobFilter() and client is not None:
        call.out.line("the fleet has no jobs yet, and nothing has run here")
        call.out.note("hint: stoker submit manifest.toml")
    elif asked == JobFilter():
        call.out.line("nothing has run here yet")
        call.out.note("hint: stoker recipes")
    else:
        call.out.line("no job is like that")
    return 0


# `stoker jobs show`: everything known of one job.

JOBS_SHOW_GRAMMAR = Grammar(
    "jobs show",
    about="Show one job: what was asked, how it stands, and how each of its stages went.",
    positionals=(Positional("NAME", help="a job's name, `name/3`, `last`, or the beginning of an id"),),
    options=(AT,),
    examples=("stoker jobs show last", "stoker jobs show resnet/3", "stoker jobs show last --json"),
)


def perform_jobs_show(call: CommandContext, given: dict[str, Any]) -> int:
    """Show one job."""
    folder = meant(call, given["name"], given["at"])
    if isinstance(folder, FleetJob):
        from stoker.cli.jobs_show_fleet import show_fleet_job

        return show_fleet_job(call, folder)
    out, parts = call.out, call.parts
    facts, spec, end, story = job_facts(folder), folder.spec(), folder.ended(), job_story(folder)
    trials = trials_of_job(folder)
    ends = trial_ends(trials, story, is_running=facts["state"] == "running") if is_sweep(trials) else []
    metrics = KnownMetrics(parts.store)
    ends = [metrics.added_to(one) for one in ends]
    stages = [node.to_json() for node in story.nodes.values()]
    error = end.error if end else None
    args = masked_args(spec.recipe, spec.args)
    more: dict[str, Any] = {
        "args": args,
        "options": spec.options,
        "folder": spec.folder,
        "stoker": spec.stoker,
        "error": error,
    }
    told = [_trial_as_json(one) for one in ends]
    more |= {"where": "here", "journal": folder.status_path, "warnings": story.warnings}
    more |= {"dropped_warnings": story.dropped_warnings}
    out.object({**facts, **more, "stages": stages, "trials": told})
    took = f", took {span(facts['elapsed_s'])}" if facts["elapsed_s"] is not None else ""
    why = f" ({facts['why']})" if facts["why"] else ""
    out.line(f"{out.paint(spec.name, 'bold')}: {facts['state']}{why}")
    out.line(f"started {ago(spec.started_s, parts.clock.wall_s())}{took} · id {spec.attempt} · Stoker {spec.stoker}")
    out.line(f"recipe  {spec.recipe}")
    for name, value in flat(args).items():
        if not is_found(spec.recipe, name):
            out.line(f"  {name}={value_text(value)}")
    if facts["out"]:
        out.line(f"results {facts['out']}")
    out.line(f"journal {folder.status_path}\n")
    nodes = list(story.nodes.values())
    if ends:
        shared = shared_nodes(trials)
        nodes = [node for node in nodes if node.node.partition("[")[0] in shared]
    header = ("stage", "", "took", "memory", "")
    for line in table([_row(node) for node in nodes], header=header, columns=out.columns) if nodes else ():
        out.line(line)
    if nodes and ends:
        out.line()
    rows = [_trial_row(one) for one in ends]
    told_of_trials = table(rows, header=("", "trial", *header[1:]), columns=out.columns) if rows else []
    for line in (*told_of_trials, *companies_lines(spec.name, story.nodes.values())):
        out.line(line)
    _show_warnings(call, story)
    return 0


def _show_warnings(call: CommandContext, story: RunHistory) -> None:
    for warning in story.warnings:
        call.out.note(f"warning: {warning}")
    if story.dropped_warnings:
        call.out.note(f"note: {story.dropped_warnings:,} more warnings are in the journal")


def _trial_row(end: TrialEnd) -> list[str]:
    memory = memory_text(end.peak_bytes, end.peak_gpu_bytes)
    state = "kept" if end.is_kept else end.state
    told = [end.message, metrics_text(end.metrics)]
    return [str(end.trial.number), end.trial.label, state, span(end.seconds), memory, "  ".join(filter(None, told))]


def _trial_as_json(end: TrialEnd) -> dict[str, Any]:
    return {
        "trial": end.trial.number,
        "label": end.trial.label,
        "point": dict(end.trial.point),
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
    told = [node.message, "" if is_over else step_text(node), metrics_text(node.metrics, is_over=is_over)]
    return [node.node, node.ending, span(node.seconds), memory, "  ".join(text for text in told if text)]


# `stoker jobs wait`: until a job has ended; its end is the command's answer.

_LOOK_AGAIN_S = 0.2

JOBS_WAIT_GRAMMAR = Grammar(
    "jobs wait",
    about=(
        "Wait until a job has ended, or all points of a sweep. Ends with 0 if everything completed and with 1 if "
        "something did not, or if the time that was given is over first."
    ),
    positionals=(Positional("NAME", help="a job's name, `name/3`, `last`, or the beginning of an id"),),
    options=(Option("--timeout", value="TIME", read=duration, help="wait no longer: 90s, 15m, 8h"), AT),
    examples=("stoker jobs wait resnet", "stoker jobs wait last --timeout 10m"),
)


def perform_jobs_wait(call: CommandContext, given: dict[str, Any]) -> int:
    """Wait."""
    found = meant(call, given["name"], given["at"])
    if isinstance(found, FleetJob):
        return _wait_for_fleet(call, found, given["timeout"])
    return _wait_here(call, found, given["timeout"])


def _wait_for_fleet(call: CommandContext, job: FleetJob, limit_s: float | None) -> int:
    from stoker.cli.job_wait import wait_for

    out = call.out
    signs = UNICODE if out.is_unicode else ASCII
    points = job.points()
    is_good = True
    clock, ends = call.parts.clock, list[str]()
    began_s = clock.monotonic_s()

    def ended(view: JobView) -> None:
        nonlocal is_good
        is_good = is_good and view.state == JobState.COMPLETED
        ends.append(view.name)
        out.object({**view.model_dump(mode="json"), "where": "fleet"})
        sign = signs.ran if view.state == JobState.COMPLETED else signs.failed
        screen.lasting(f"{sign} {ended_text(view, JobState(view.state))}")

    def waiting(_now_s: float, _at_least_s: float) -> list[str]:
        done = len(ends)
        on = f"{done:,} of {len(points):,} ended" if len(points) > 1 else f"waits for {points[0].name}"
        return [_waits(on, clock.monotonic_s() - began_s)]

    screen = _screen(out, clock)
    screen.begin(waiting)
    try:
        found = wait_for(job.client, points, clock=clock, limit_s=limit_s, ended=ended)
    finally:
        screen.close()
    left = len(points) - len(found)
    if left:
        who = points[0].name if len(points) == 1 else f"{left:,} of {len(points):,} points of {job.ref}"
        out.complain(f"{who} had not ended after {format_duration(limit_s or 0.0)}")
        return 1
    return 0 if is_good else 1


def _waits(what: str, waited_s: float) -> str:
    return f"{what}  {span(waited_s)}  (Ctrl-C stops waiting, not the job)"


def _screen(out: CliOutput, clock: Clock) -> Screen:
    """Return a line that lives on a terminal; elsewhere only what lasts is written."""
    if out.is_terminal and not (out.is_json or out.is_quiet):
        from stoker.cli.screens import LiveScreen

        return LiveScreen(out, clock)
    return LineScreen(out)


def _wait_here(call: CommandContext, folder: JobFolder, limit_s: float | None) -> int:
    clock, out = call.parts.clock, call.out
    began_s = clock.monotonic_s()
    name, screen = folder.spec().name, _screen(out, clock)
    screen.begin(lambda _now_s, _at_least_s: [_waits(f"waits for {name}", clock.monotonic_s() - began_s)])
    try:
        while folder.may_be_running():
            if limit_s is not None and clock.monotonic_s() >= began_s + limit_s:
                out.complain(f"{name} had not ended after {format_duration(limit_s)}")
                return 1
            clock.sleep(_LOOK_AGAIN_S)
    finally:
        screen.close()
    facts = job_facts(folder)
    out.object({**facts, "where": "here"})
    why = f": {facts['why']}" if facts["why"] else ""
    out.line(f"{facts['name']} {facts['state']} {span(facts['elapsed_s'])}{why}")
    return 0 if facts["state"] == JobState.COMPLETED else 1


# `stoker jobs priority`: put jobs of the fleet elsewhere in the line.

# `stoker jobs rm`: forget a job. Its results stay in the store and in the folder where they were laid out.

JOBS_RM_GRAMMAR = Grammar(
    "jobs rm",
    about=(
        "Forget a job of this machine: its journal and logs are removed. Results stay, in the store and where they "
        "were laid out. Jobs of a fleet are never removed."
    ),
    positionals=(Positional("NAME", help="a job's name, `last`, or the beginning of an id"),),
    examples=("stoker jobs rm last",),
)


def perform_jobs_rm(call: CommandContext, given: dict[str, Any]) -> int:
    """Forget one job."""
    folder = meant(call, given["name"], "")
    if isinstance(folder, FleetJob):
        has_ended = JobState(folder.view.state).is_terminal
        raise InvalidTransition(
            f"{folder.ref} is a job of the fleet: jobs of a fleet are never removed, their history is kept",
            hint=f"{'' if has_ended else f'stoker cancel {folder.ref} ends it; '}a job of this machine goes by its id",
        )
    name = folder.spec().name
    if folder.state()[0] is JobState.RUNNING:
        raise InvalidTransition(f"job {name} is running", hint=f"stoker cancel {name}", job=name)
    remove_tree(folder.path)
    call.out.object({"name": name, "attempt": folder.attempt, "removed": True})
    call.out.line(f"forgot {name} ({folder.attempt}); its results stay")
    return 0


PRIORITY_GRAMMAR = Grammar(
    "jobs priority",
    about=(
        "Put a job elsewhere in the line: the higher number goes first, strictly; 0 is where jobs begin. One that runs "
        "goes on; the number counts if it comes back. A negative number stands behind --."
    ),
    positionals=(
        Positional("NAME", help="a job's name, `name/3`, `last`, or the beginning of an id"),
        Positional("N", key="priority", help=f"from -{MOST_PRIORITY:,} to {MOST_PRIORITY:,}"),
    ),
    options=(AT,),
    examples=("stoker jobs priority resnet 10", "stoker jobs priority gbt -- -5"),
)


def perform_priority(call: CommandContext, given: dict[str, Any]) -> int:
    """Set it."""
    priority = _read(given["priority"])
    job = fleet_job(call, given["name"], given["at"])
    live = [point for point in job.points() if not JobState(point.state).is_terminal]
    if not live:
        state = f"is {job.view.state}" if not job.is_sweep else "has ended, all of its points"
        hint = f"stoker jobs show {job.ref}; stoker jobs requeue {job.ref} puts it back into the line"
        raise InvalidTransition(f"{job.ref} {state}: it does not wait in line", hint=hint, state=job.view.state)
    job.client.set_priority_of_jobs(
        [point.id for point in live], priority, by=who_asks(call.parts.settings.environment)
    )
    lines = FirstLines(call)
    for point in live:
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


# `stoker jobs requeue`: start jobs of the fleet again that have ended. What they made before stays in history.

REQUEUE_GRAMMAR = Grammar(
    "jobs requeue",
    about=(
        "Start a job of the fleet again that has failed, was cancelled or has completed: a new attempt, under a higher "
        "epoch, so that nothing old can come back. Of a sweep all points that did not complete, unless --all."
    ),
    positionals=(Positional("NAME", help="a job's name, `name/3`, `last`, or the beginning of an id"),),
    options=(Option("--all", help="of a sweep also the points that completed"), AT),
    examples=("stoker jobs requeue resnet/3", "stoker jobs requeue resnet", "stoker jobs requeue gbt --json"),
)


def perform_requeue(call: CommandContext, given: dict[str, Any]) -> int:
    """Queue it again."""
    out = call.out
    job = fleet_job(call, given["name"], given["at"])
    points = job.points()
    again = [
        point
        for point in points
        if JobState(point.state).is_terminal and (len(points) == 1 or given["all"] or point.state != JobState.COMPLETED)
    ]
    if not again:
        state = points[0].state if len(points) == 1 else "no point of it has failed or was cancelled"
        raise InvalidTransition(f"{job.ref} can't be queued again: {state}", hint=f"stoker jobs show {job.ref}")
    done = job.client.requeue_jobs([point.id for point in again], by=who_asks(call.parts.settings.environment))
    lines = FirstLines(call)
    for point in again:
        out.object({"name": point.name, "job": point.id, "state": "pending", "was": point.state})
        lines.say(f"{point.name} is queued again ({_was(point.state)})")
    lines.end()
    for note in done.notes:
        out.note(f"note: {note}")
    return 0


def _was(state: str) -> str:
    return "it was cancelled" if state == JobState.CANCELLED else f"it had {state}"
