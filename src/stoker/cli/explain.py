"""`stoker explain`: why each stage ran or was reused, then and now, field by field.

The earlier decision is read from the job's journal. The current one comes from the function that a run calls, for the
same job with the current code and files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stoker.api.local_job import LocalJob
from stoker.cli.context import CommandContext
from stoker.cli.dry_run import forecast_as_json
from stoker.cli.grammar import AT, Grammar, Positional
from stoker.core.job import JobState
from stoker.engine.action import Difference
from stoker.engine.preview import NodeForecast
from stoker.jobs.job_history import NodeHistory
from stoker.jobs.trials import is_sweep, shared_nodes, trials_of_job
from stoker.views.stage_lines import companions_text
from stoker.views.text_tables import ago, span

if TYPE_CHECKING:
    from stoker.api.fleet_job import FleetJob

GRAMMAR = Grammar(
    "explain",
    about=(
        "Explain why each stage of a job ran or was reused: the differences from the stored results, field by field, "
        "and what a run would do now, with the current code and files. For a fleet job, explain its state: each "
        "machine and device with its score or the reason against it, the queue position, the estimated start, and "
        "what would change them."
    ),
    positionals=(
        Positional(
            "NAME[/STAGE]",
            key="target",
            help="a job (a name, `last`, an id), or one stage or trial of it",
            completes="job",
        ),
        Positional("KEY", help="a setting of the job: show all layers of its value", is_required=False),
    ),
    options=(AT,),
    examples=(
        "stoker explain last",
        "stoker explain resnet/3",
        "stoker explain gbt/train_gbt",
        "stoker explain last/3",
        "stoker explain last lr",
        "stoker explain last --json",
    ),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Explain a job or one of its stages."""
    job = call.lookup.job(given["target"], given["at"])
    if given["key"]:
        from stoker.cli.recipes import show_stacks

        layers, known, varying = job.layers_of(given["key"])
        return show_stacks(call, layers, given["key"], known, recipe=job.view.recipe, varying=varying)
    if isinstance(job, LocalJob):
        return _explain_stages(call, job)
    return _explain_points(call, job) if job.is_sweep else _explain_fleet_job(call, job)


def _explain_stages(call: CommandContext, job: LocalJob) -> int:
    """Explain why each stage of a local job ran or was reused, then and now."""
    out, reasons, view, trials = call.out, job.explain(), job.view, trials_of_job(job.folder)
    nodes = reasons.stages
    for node in nodes:
        now = reasons.forecast_of(node)
        out.object({"job": view.name, **node.to_json(), "now": forecast_as_json(now) if now else None})
    if reasons.trouble:
        out.note(f"note: no forecast for a run now: {reasons.trouble}")
    if job.stage:
        for node in nodes:
            _show_one(call, view.name, node, reasons.forecast_of(node))
        return 0
    when = ago(job.attempt.started_s, call.parts.clock.wall_s())
    out.line(f"{out.paint(view.name, 'bold')} ({view.attempt}, {when}, {view.state})\n")
    labels = {node: one.spec.label for one in trials for node in one.nodes.nodes} if is_sweep(trials) else {}
    shared = shared_nodes(trials)
    rows = []
    for node in nodes:
        base = node.node.partition("[")[0]
        label = [labels.get(base, "") if base not in shared else ""] if labels else []
        rows.append([node.node, *label, _then(node), _now_word(reasons.forecast_of(node)), _reason(node)])
    out.table(rows, header=("stage", *(["trial"] if labels else []), "then", "now", "why"))
    if nodes:
        out.line(f"\ndetails:  stoker explain {view.name}/{_telling(nodes)}")
    else:
        out.line("no stages: the job ended before the first one")
    return 0


def _then(node: NodeHistory) -> str:
    return f"{node.ending} {span(node.seconds)}".strip()


def _show_one(call: CommandContext, job: str, node: NodeHistory, now: NodeForecast | None) -> None:
    out = call.out
    out.line(f"{out.paint(f'{job}/{node.node}', 'bold')} · stage {node.stage}")
    took = f" in {span(node.seconds)}" if node.seconds is not None else ""
    out.line(f"then  {node.ending}{took}: {'changed' if node.changes else _reason(node)}")
    for change in node.changes:
        out.line(f"        {Difference(**change)}")
    if node.changes and (companions := companions_text(node)):
        out.line(f"      {companions}")
    if node.hint:
        out.line(f"      hint: {node.hint}")
    if node.key:
        out.line(f"      key {node.key}")
    if now is None:
        return
    out.line(f"now   {_now_word(now)}: {'changed' if now.changes else now.why}")
    for difference in now.changes:
        out.line(f"        {difference}")
    if now.key:
        out.line(f"      key {now.key}{' (the same)' if now.key == node.key else ''}")


def _reason(node: NodeHistory) -> str:
    return "; ".join(text for text in (node.why, node.message, companions_text(node)) if text) or node.ending


def _now_word(now: NodeForecast | None) -> str:
    return {"hit": "hit", "miss": "would run", "unknown": "may run"}[str(now.verdict)] if now else "?"


def _telling(nodes: Sequence[NodeHistory]) -> str:
    """Return the stage with the most to explain."""
    shown = [node for node in nodes if node.changes or node.message] or [node for node in nodes if node.ending == "ran"]
    return (shown or nodes)[-1].node


# Fleet jobs: the state with the reason of every machine, and the history.

_MOST_EVENTS = 12
_MOST_POINTS = 50


def _explain_fleet_job(call: CommandContext, job: FleetJob) -> int:
    """Explain the state of a fleet job, with the reason of every machine, and its history."""
    from stoker.views.fleet_lines import ATTEMPT_HEADER, attempt_row, story_texts
    from stoker.views.placement_lines import explanation_lines

    out, now_s, reasons = call.out, call.parts.clock.wall_s(), job.explain()
    stages = reasons.stages
    out.object({**reasons.body, "stages": [node.to_json() for node in stages]})
    if job.stage:
        for node in stages:
            _show_one(call, job.view.name, node, None)
        return 0
    if reasons.placement is not None:
        out.lines(explanation_lines(reasons.placement, now_s=now_s, columns=out.columns))
    if reasons.hint:
        out.line(f"hint: {reasons.hint}")
    if job.story.attempts:
        out.line()
        out.table([attempt_row(attempt, now_s) for attempt in job.story.attempts], header=ATTEMPT_HEADER)
    if stages:
        out.line()
        rows = [[one.node, _then(one), "; ".join(filter(None, (one.message, companions_text(one))))] for one in stages]
        out.table(rows, header=("stage", "then", "why"))
    events = job.story.events
    if events:
        out.line()
    for event, text in list(zip(events, story_texts(events), strict=True))[-_MOST_EVENTS:]:
        at_s = event.get("ts")
        when = ago(at_s, now_s) if isinstance(at_s, float | int) else ""
        out.line(f"{when:>12}  {text}")
    return 0


def _explain_points(call: CommandContext, job: FleetJob) -> int:
    """Explain the unfinished points of a sweep, one line each."""
    out, points = call.out, job.points()
    waiting = [point for point in points if not JobState(point.state).is_terminal]
    rows = []
    for point in waiting[:_MOST_POINTS]:
        reasons = job.explain(point.id)
        out.object(reasons.body)
        rows.append([point.name, point.label, reasons.verdict])
    if not waiting:
        out.line(f"all {len(points):,} points of {job.ref} have ended: stoker jobs show {job.ref}")
        return 0
    out.table(rows, header=("job", "point", ""))
    if len(waiting) > _MOST_POINTS:
        out.note(f"note: {len(waiting) - _MOST_POINTS:,} more are unfinished")
    out.note(f"reasons per machine: stoker explain {waiting[0].name}")
    return 0
