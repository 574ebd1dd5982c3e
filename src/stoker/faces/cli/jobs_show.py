"""`stoker jobs show`: everything known of one job."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Positional
from stoker.faces.cli.job_facts import job_facts, job_story
from stoker.faces.view.arguments import value_text
from stoker.faces.view.stages import metrics_text, step_text
from stoker.faces.view.tables import table
from stoker.faces.view.times import ago, span
from stoker.model.units import format_size
from stoker.worker.story import NodeStory

GRAMMAR = Grammar(
    "jobs show",
    about="Show one job: what was asked, how it stands, and how each of its stages went.",
    positionals=(Positional("NAME", help="a job's name, `last`, or the beginning of an id"),),
    examples=("stoker jobs show last", "stoker jobs show last --json"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Show one job."""
    out, parts = call.out, call.parts
    folder = call.find_job(given["name"])
    facts, spec, end, story = job_facts(folder), folder.spec(), folder.ended(), job_story(folder)
    stages = [node.to_json() for node in story.nodes.values()]
    error = end.error if end else None
    more = {"args": spec.args, "options": spec.options, "folder": spec.folder, "stoker": spec.stoker, "error": error}
    out.object({**facts, **more, "journal": folder.status_path, "stages": stages})
    took = f", took {span(facts['elapsed_s'])}" if facts["elapsed_s"] is not None else ""
    why = f" ({facts['why']})" if facts["why"] else ""
    out.line(f"{out.paint(spec.name, 'bold')}: {facts['state']}{why}")
    out.line(f"started {ago(spec.started_s, parts.clock.wall_s())}{took} · id {spec.attempt} · Stoker {spec.stoker}")
    out.line(f"recipe  {spec.recipe}")
    for name, value in spec.args.items():
        out.line(f"  {name}={value_text(value)}")
    if facts["out"]:
        out.line(f"results {facts['out']}")
    out.line(f"journal {folder.status_path}\n")
    header = ("stage", "", "took", "memory", "")
    for line in table([_row(node) for node in story.nodes.values()], header=header, columns=out.columns):
        out.line(line)
    return 0


def _row(node: NodeStory) -> list[str]:
    memory = format_size(node.peak_rss_bytes) if node.peak_rss_bytes else ""
    told = [node.message, step_text(node) if node.ending == "running" else "", metrics_text(node)]
    return [node.node, node.ending, span(node.seconds), memory, "  ".join(text for text in told if text)]
