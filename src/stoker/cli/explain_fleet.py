"""`stoker explain` of a job of the fleet: why it is where it is, every machine with its reason; and how it went."""

from __future__ import annotations

from stoker.cli.context import CommandContext
from stoker.cli.job_names import FleetJob
from stoker.cli.jobs_show_fleet import fleet_stages
from stoker.core.job import JobState
from stoker.jobs.job_history import NodeHistory
from stoker.views.fleet_lines import attempt_row, story_texts
from stoker.views.placement_lines import explanation_lines
from stoker.views.stage_lines import companions_text
from stoker.views.text_tables import ago, span, table

_MOST_EVENTS = 12
_MOST_POINTS = 50


def explain_fleet_job(call: CommandContext, job: FleetJob) -> int:
    """Explain one job of the fleet, or in a line each the points of a sweep."""
    if job.is_sweep:
        return _explain_points(call, job)
    out, now_s = call.out, call.parts.clock.wall_s()
    told = job.client.explain(job.view.id)
    stages = fleet_stages(call, job) if JobState(told.job.state).is_terminal else []
    out.object({**told.model_dump(mode="json"), "where": "fleet", "stages": [node.to_json() for node in stages]})
    for line in explanation_lines(told, now_s=now_s, columns=out.columns):
        out.line(line)
    if job.story.attempts:
        rows = [attempt_row(attempt, now_s) for attempt in job.story.attempts]
        out.line()
        for line in table(rows, header=("try", "machine", "", "began", "took", ""), columns=out.columns):
            out.line(line)
    if stages:
        out.line()
        rows = [[node.node, f"{node.ending} {span(node.seconds)}".strip(), _why(node)] for node in stages]
        for line in table(rows, header=("stage", "then", "why"), columns=out.columns):
            out.line(line)
    events = job.story.events
    if events:
        out.line()
        told_events = list(zip(events, story_texts(events), strict=True))
        for event, text in told_events[-_MOST_EVENTS:]:
            at_s = event.get("ts")
            when = ago(at_s, now_s) if isinstance(at_s, float | int) else ""
            out.line(f"{when:>12}  {text}")
    return 0


def _why(node: NodeHistory) -> str:
    return "; ".join(filter(None, (node.message, companions_text(node))))


def _explain_points(call: CommandContext, job: FleetJob) -> int:
    out = call.out
    points = job.points()
    waiting = [point for point in points if not JobState(point.state).is_terminal]
    rows = []
    for point in waiting[:_MOST_POINTS]:
        told = job.client.explain(point.id)
        out.object({**told.model_dump(mode="json"), "where": "fleet"})
        rows.append([point.name, point.label, told.verdict])
    if not waiting:
        out.line(f"all {len(points):,} points of {job.ref} have ended: stoker jobs show {job.ref}")
        return 0
    for line in table(rows, header=("job", "point", ""), columns=out.columns):
        out.line(line)
    if len(waiting) > _MOST_POINTS:
        out.note(f"note: {len(waiting) - _MOST_POINTS:,} more wait")
    out.note(f"every machine, with its reason: stoker explain {waiting[0].name}")
    return 0
