"""`stoker jobs show` of a job of the fleet: what was asked, how it stands, each try at it, and how its stages went."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.fleet_job import SyncedAttempt, story_files
from stoker.cli.job_handle import job_story
from stoker.cli.job_names import FleetJob
from stoker.core.errors import NotFound, StokerError
from stoker.core.job import JobState
from stoker.core.text import outside
from stoker.jobs.program import is_found
from stoker.jobs.secret_mask import masked_args
from stoker.views.fleet_lines import JOB_HEADER, attempt_row, job_row, state_text, took_s
from stoker.views.recipe_lines import flat, value_text
from stoker.views.stage_lines import companies_lines, memory_text, metrics_text
from stoker.views.text_tables import ago, span, table

if TYPE_CHECKING:
    from stoker.jobs.job_history import NodeHistory
    from stoker.protocol.view_messages import JobDetails

_MOST_PACKAGES = 8
_SHORT = 12


def show_fleet_job(call: CommandContext, job: FleetJob) -> int:
    """Show one job of the fleet, or all points of a sweep."""
    if job.is_sweep:
        return _show_points(call, job)
    story, out = job.story, call.out
    stages = fleet_stages(call, job)
    args = masked_args(story.job.recipe, story.args)
    told = {
        **story.model_dump(mode="json"),
        "args": args,
        "where": "fleet",
        "stages": [one.to_json() for one in stages],
    }
    out.object(told)
    for line in _lines(call, story, args):
        out.line(line)
    now_s = call.parts.clock.wall_s()
    if story.attempts:
        rows = [attempt_row(attempt, now_s) for attempt in story.attempts]
        out.line()
        for line in table(rows, header=("try", "machine", "", "began", "took", ""), columns=out.columns):
            out.line(line)
    if stages:
        out.line()
        rows = [
            [
                one.node,
                one.ending,
                span(one.seconds),
                _memory(one),
                metrics_text(one.metrics, is_over=one.ending != "running"),
            ]
            for one in stages
        ]
        for line in table(rows, header=("stage", "", "took", "memory", ""), columns=out.columns):
            out.line(line)
        for line in companies_lines(story.job.name, stages):
            out.line(line)
    return 0


def fleet_stages(call: CommandContext, job: FleetJob) -> list[NodeHistory]:
    """Return how the stages of a job's last attempt went, as far as that is mirrored."""
    if not job.view.attempt:
        return []
    try:
        with closing(SyncedAttempt(job.client, job.view.id, job.view.attempt, wants=story_files)) as mirror:
            mirror.pull()
            return list(job_story(mirror.folder).nodes.values())
    except NotFound:
        return []
    except StokerError as error:
        call.out.note(f"note: how its stages went can't be said: {error.message}")
        return []


def _memory(node: NodeHistory) -> str:
    return memory_text(node.peak_rss_bytes, node.peak_gpu_bytes)


def _lines(call: CommandContext, story: JobDetails, args: dict[str, Any]) -> list[str]:
    view, now_s = story.job, call.parts.clock.wall_s()
    where = f" on {view.machine}" if view.machine and view.state in ("claimed", "running") else ""
    why = f" ({_inside(view.why)})" if view.why else ""
    took = took_s(view, now_s)
    by = f" by {view.submitter}" if view.submitter else ""
    verb = "took" if JobState(view.state).is_terminal else "runs for"
    when = f"submitted {ago(view.submitted_s, now_s)}{by}{f', {verb} {span(took)}' if took is not None else ''}"
    lines = [
        f"{call.out.paint(view.name, 'bold')}: {state_text(view)}{where}{why}",
        f"{when} · id {view.id[:12]} · priority {view.priority}",
        f"recipe  {view.recipe}",
        *(
            f"  {_inside(name)}={_inside(value_text(value))}"
            for name, value in flat(args).items()
            # What is empty is as everywhere.
            if not is_found(view.recipe, name) and value not in ("", None, [], {})
        ),
    ]
    if story.after:
        lines.append(f"after   {', '.join(story.after)}")
    if view.metrics:
        lines.append(f"metrics {metrics_text(view.metrics, is_over=view.state != 'running')}")
    lines += [*origin_lines(story), *python_lines(story)]
    if view.result:
        lines.append(f"result  stoker get {view.name}")
    hint = _inside(str(story.error.get("hint") or "")) if view.state == "failed" else ""
    return [*lines, *([f"hint: {hint}"] if hint else [])]


def origin_lines(story: JobDetails) -> list[str]:
    """Tell which code, data and environment it runs with, by digest: as the last try that ended says, else as ordered.

    A job that goes on may have been ordered anew since its last try.
    """
    facts = story.attempts[-1].facts if story.attempts and JobState(story.job.state).is_terminal else {}
    tree, commit, data = facts.get("code_tree"), facts.get("commit"), facts.get("data")
    if not isinstance(tree, str) or not tree:
        tree, commit = story.code_tree, story.commit
    lines = []
    if tree:
        stands = f"  {_inside(commit_text(commit))}" if isinstance(commit, str) and commit else ""
        lines.append(f"code    tree {_inside(tree[:_SHORT])}{stands}")
    if not isinstance(data, dict) or not data:
        data = _ordered_data(story)
    lines += [f"data    {_inside(str(name))} {_inside(_short(str(held)))}" for name, held in data.items()]
    return [*lines, *(f"env     {_inside(_choice_text(one))}" for one in story.environment)]


def _ordered_data(story: JobDetails) -> dict[str, str]:
    """Return what is to be brought: the variable or argument → the digest, or the repository at its commit."""
    return {
        str(one.get("where", "")).partition(":")[2]: str(one.get("repo") or f"tree:{one.get('tree', '')}")
        for one in story.inputs
    }


def _choice_text(choice: dict[str, Any]) -> str:
    """Return which way to an interpreter was ordered: `linux-aarch64: uv.lock 0123456789ab, Python >=3.10`."""
    path, digest, python = (str(choice.get(name) or "") for name in ("path", "digest", "python"))
    way = path or "the machine's own Python"
    if choice.get("kind") != "python" and digest:
        way += f" {digest[:_SHORT]}"
    platform = str(choice.get("platform") or "")
    return (f"{platform}: " if platform else "") + way + (f", Python {python}" if python else "")


def commit_text(commit: str) -> str:
    """Say on which commit code stands, and in how many files it differs: `COMMIT+2`."""
    whole, _, uncommitted = commit.partition("+")
    files = "1 file" if uncommitted == "1" else f"{uncommitted} files"
    return f"commit {whole[:_SHORT]}" + (f", {files} changed since" if uncommitted else "")


def _short(held: str) -> str:
    kind, _, digest = held.partition(":")
    return f"{kind} {digest[:_SHORT]}" if kind == "tree" else held


def python_lines(story: JobDetails) -> list[str]:
    """Tell with which interpreter and packages the last try ran, if it was one of its own."""
    told = story.attempts[-1].facts.get("python") if story.attempts else None
    if not isinstance(told, dict):
        return []
    packages = told.get("packages")
    names = [f"{name} {version}" for name, version in packages.items()] if isinstance(packages, dict) else []
    shown = ", ".join(names[:_MOST_PACKAGES]) + (
        f" and {len(names) - _MOST_PACKAGES} more" if names[_MOST_PACKAGES:] else ""
    )
    lines = [f"python  {_inside(str(told.get('python', '')))}  {_inside(str(told.get('interpreter', '')))}"]
    return [*lines, f"        {_inside(shown)}"] if names else lines


def _inside(text: str) -> str:
    """Return what somebody wrote so that each of its lines is seen to be a part of ours."""
    return "\n      ".join(outside(line) for line in text.split("\n"))


def _show_points(call: CommandContext, job: FleetJob) -> int:
    out, now_s = call.out, call.parts.clock.wall_s()
    points = job.points()
    counts: dict[str, int] = {}
    for point in points:
        counts[point.state] = counts.get(point.state, 0) + 1
        out.object({**point.model_dump(mode="json"), "where": "fleet"})
    said = ", ".join(f"{count:,} {state}" for state, count in counts.items())
    out.line(f"{out.paint(job.ref, 'bold')}: {len(points):,} points, {said}\n")
    for line in table([job_row(point, now_s) for point in points], header=JOB_HEADER, columns=out.columns):
        out.line(line)
    return 0
