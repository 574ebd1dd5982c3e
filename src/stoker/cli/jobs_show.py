"""`stoker jobs show`: everything known of one job."""

from __future__ import annotations

from typing import Any

from stoker.cli.context import CommandContext
from stoker.cli.coordinator_access import AT
from stoker.cli.grammar import Grammar, Positional
from stoker.cli.job_handle import job_facts, job_story, trial_ends
from stoker.cli.job_names import FleetJob, meant
from stoker.jobs.job_history import NodeHistory, RunHistory
from stoker.jobs.program import is_found
from stoker.jobs.rerun_spec import trials_of_job
from stoker.jobs.secret_mask import masked_args
from stoker.jobs.trials import KnownMetrics, TrialEnd, is_sweep, shared_nodes
from stoker.views.recipe_lines import flat, value_text
from stoker.views.stage_lines import companies_lines, memory_text, metrics_text, step_text
from stoker.views.text_tables import ago, span, table

GRAMMAR = Grammar(
    "jobs show",
    about="Show one job: what was asked, how it stands, and how each of its stages went.",
    positionals=(Positional("NAME", help="a job's name, `name/3`, `last`, or the beginning of an id"),),
    options=(AT,),
    examples=("stoker jobs show last", "stoker jobs show resnet/3", "stoker jobs show last --json"),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
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
