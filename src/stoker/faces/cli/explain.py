"""`stoker explain`: why each stage ran or did not, then and now, field by field.

What was decided then is read from the job's journal. What would happen now is asked of the same function that a run
asks, about the same order with today's code and files.
"""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.dry_run import forecast_as_json
from stoker.faces.cli.grammar import Grammar, Positional
from stoker.faces.cli.job_facts import job_facts, job_story, nodes_named, split_target
from stoker.faces.view.tables import table
from stoker.faces.view.times import ago, span
from stoker.model.errors import StokerError
from stoker.plan.action import Difference
from stoker.plan.preview import Forecast, preview
from stoker.worker.job_folder import JobFolder
from stoker.worker.ordering import reorder
from stoker.worker.story import NodeStory

GRAMMAR = Grammar(
    "explain",
    about=(
        "Say why each stage of a job ran or did not: the difference between what was wanted and what was known, field "
        "by field. And say what would happen if the same job were run now, with today's code and files."
    ),
    positionals=(Positional("NAME[/STAGE]", key="target", help="a job (a name, `last`, an id) or one stage of it"),),
    examples=("stoker explain last", "stoker explain gbt/train_gbt", "stoker explain last --json"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Explain a job or one of its stages."""
    name, stage = split_target(given["target"])
    folder = call.find_job(name)
    facts, story = job_facts(folder), job_story(folder)
    forecasts, trouble = _now(call, folder)
    nodes = nodes_named(story, stage, facts["name"]) if stage else list(story.nodes.values())
    for node in nodes:
        now = _of(forecasts, node)
        call.out.object({"job": facts["name"], **node.to_json(), "now": forecast_as_json(now) if now else None})
    if trouble:
        call.out.note(f"note: what would happen now can't be said: {trouble}")
    if stage:
        for node in nodes:
            _show_one(call, facts["name"], node, _of(forecasts, node))
        return 0
    when = ago(facts["started_s"], call.parts.clock.wall_s())
    call.out.line(f"{call.out.paint(facts['name'], 'bold')} ({facts['attempt']}, {when}, {facts['state']})\n")
    rows = []
    for node in nodes:
        then = f"{node.ending} {span(node.seconds)}".strip()
        rows.append([node.node, then, _now_word(_of(forecasts, node)), _reason(node)])
    for line in table(rows, header=("stage", "then", "now", "why"), columns=call.out.columns):
        call.out.line(line)
    if nodes:
        call.out.line(f"\nfield by field:  stoker explain {facts['name']}/{_telling(nodes)}")
    else:
        call.out.line("its journal names no stage: it ended before the first one")
    return 0


def _now(call: Call, folder: JobFolder) -> tuple[dict[str, Forecast], str]:
    try:
        plan = reorder(call.desk(), folder.spec()).plan
        seen = preview(plan, cache=call.parts.cache, history=call.parts.history)
    except StokerError as error:
        return {}, str(error)
    return {forecast.node: forecast for forecast in seen.forecasts}, ""


def _of(forecasts: dict[str, Forecast], node: NodeStory) -> Forecast | None:
    """Give what is foreseen of a node; the instances of a fan-out are foreseen together."""
    return forecasts.get(node.node) or forecasts.get(node.node.partition("[")[0])


def _show_one(call: Call, job: str, node: NodeStory, now: Forecast | None) -> None:
    out = call.out
    out.line(f"{out.paint(f'{job}/{node.node}', 'bold')} · stage {node.stage}")
    took = f" in {span(node.seconds)}" if node.seconds is not None else ""
    out.line(f"then  {node.ending}{took}: {'changed' if node.changes else _reason(node)}")
    for change in node.changes:
        out.line(f"        {Difference(**change)}")
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


def _reason(node: NodeStory) -> str:
    return "; ".join(text for text in (node.why, node.message) if text) or node.ending


def _now_word(now: Forecast | None) -> str:
    return {"hit": "hit", "miss": "would run", "unknown": "may run"}[str(now.verdict)] if now else "?"


def _telling(nodes: list[NodeStory]) -> str:
    """Name the stage that is most worth asking about."""
    told = [node for node in nodes if node.changes or node.message] or [node for node in nodes if node.ending == "ran"]
    return (told or nodes)[-1].node
