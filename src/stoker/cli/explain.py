"""`stoker explain`: why each stage ran or did not, then and now, field by field.

What was decided then is read from the job's journal. What would happen now is asked of the same function that a run
asks, about the same order with today's code and files.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from stoker.cli.context import CommandContext
from stoker.cli.coordinator_access import AT
from stoker.cli.dry_run import forecast_as_json
from stoker.cli.grammar import Grammar, Positional
from stoker.cli.job_handle import job_facts, job_story, nodes_named, split_target
from stoker.cli.job_names import FleetJob, meant
from stoker.cli.jobs_show_fleet import fleet_stages
from stoker.config.values import refers
from stoker.core.errors import StokerError
from stoker.core.job import JobState
from stoker.core.jsontext import dumps
from stoker.engine.action import Difference
from stoker.engine.preview import NodeForecast, preview
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.job_history import NodeHistory
from stoker.jobs.rerun import go_on
from stoker.jobs.rerun_spec import reorder, trials_of_job
from stoker.jobs.secret_mask import read_config
from stoker.jobs.trial_settings import JobSetting, settings_of
from stoker.jobs.trials import Trial, is_sweep, shared_nodes, trial_numbered
from stoker.views.fleet_lines import attempt_row, story_texts
from stoker.views.placement_lines import explanation_lines
from stoker.views.stage_lines import companions_text
from stoker.views.text_tables import ago, span, table

GRAMMAR = Grammar(
    "explain",
    about=(
        "Say why each stage of a job ran or did not: the difference between what was wanted and what was known, field "
        "by field. And say what would happen if the same job were run now, with today's code and files. Of a job of "
        "the fleet, say why it is where it is: every machine and device with its score or its exact reason, its place "
        "in line, when it may start, and what would change that."
    ),
    positionals=(
        Positional("NAME[/STAGE]", key="target", help="a job (a name, `last`, an id), or one stage or trial of it"),
        Positional("KEY", help="a setting of the job: the layers behind its value", is_required=False),
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
    folder = meant(call, given["target"], given["at"])
    if isinstance(folder, FleetJob):
        return explain_fleet_job(call, folder)
    stage = split_target(given["target"])[1]
    if given["key"]:
        return _explain_setting(call, folder, stage, given["key"])
    facts, story, trials = job_facts(folder), job_story(folder), trials_of_job(folder)
    forecasts, trouble = _now(call, folder)
    nodes = nodes_named(story, stage, facts["name"], trials) if stage else list(story.nodes.values())
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
    labels = {node: one.label for one in trials for node in one.nodes.nodes} if is_sweep(trials) else {}
    shared = shared_nodes(trials)
    rows = []
    for node in nodes:
        then = f"{node.ending} {span(node.seconds)}".strip()
        base = node.node.partition("[")[0]
        label = [labels.get(base, "") if base not in shared else ""] if labels else []
        rows.append([node.node, *label, then, _now_word(_of(forecasts, node)), _reason(node)])
    header = ("stage", *(["trial"] if labels else []), "then", "now", "why")
    for line in table(rows, header=header, columns=call.out.columns):
        call.out.line(line)
    if nodes:
        call.out.line(f"\nfield by field:  stoker explain {facts['name']}/{_telling(nodes)}")
    else:
        call.out.line("its journal names no stage: it ended before the first one")
    return 0


def _explain_setting(call: CommandContext, folder: JobFolder, trial: str, key: str) -> int:
    """Show the layers behind a value of a job, and what its trials made of it."""
    from stoker.cli.config import show_stacks

    config, spec = read_config(folder), folder.spec()
    origins, swept_by = (one if isinstance(one := config.get(name), dict) else {} for name in ("origins", "sweep"))
    trials = trials_of_job(folder)
    if trial:
        trials = [trial_numbered(trials, trial.partition("/")[0], spec.name)]
    swept = {path for one in trials for path in one.point}
    told = [(one, settings_of(spec, config, one)) for one in trials]
    base = settings_of(spec, config)
    varying = set(swept) if len(trials) > 1 else set()
    stacks: list[tuple[str, list[tuple[str, Any]]]] = []
    added = (path for _, settings in told for path in settings if path != "program" and not _is_in_one(path, origins))
    known = dict.fromkeys([*origins, *added])
    for path in (one for one in known if _is_below(one, key)):
        stack = [(str(one.get("from")), one.get("value")) for one in origins.get(path, ())]
        here = [(one, settings[path]) for one, settings in told if path in settings]
        if path in swept:
            stack += [(_said_by(one, swept_by.get(path, "")), one.point[path]) for one, _ in here if path in one.point]
        elif here and (len(here) < len(told) or len({dumps(setting.value) for _, setting in here}) > 1):
            varying.add(path)
            stack += [(_said_by(one, setting.origin), setting.value) for one, setting in here]
        elif here:
            stack = _with_own(stack, here[0][1])
        elif path in base:
            # Another trial has it, from the option of a group that this one does not choose.
            continue
        stacks.append((path, stack))
    return show_stacks(call, stacks, key, [one for one in known if one != key], recipe=spec.recipe, varying=varying)


def _with_own(stack: list[tuple[str, Any]], own: JobSetting) -> list[tuple[str, Any]]:
    """End a stack with the value that was used: what references led to, or what the trial chose instead."""
    if not stack:
        return [(own.origin, own.value)]
    where, said = stack[-1]
    if own.origin != where:
        return [*stack[:-1], (own.origin, own.value)]
    return [*stack, (f"{where}, resolved", own.value)] if refers(said) else stack


def _is_in_one(path: str, origins: Container[str]) -> bool:
    """Return whether a path is one of these, or lies in one that is a map."""
    steps = path.split(".")
    return any(".".join(steps[:count]) in origins for count in range(1, len(steps) + 1))


def _said_by(trial: Trial, origin: str) -> str:
    what = f"trial {trial.number} ({trial.label})"
    return f"{origin}, {what}" if origin else what


def _is_below(path: str, key: str) -> bool:
    return path == key or path.startswith(f"{key}.")


def _now(call: CommandContext, folder: JobFolder) -> tuple[dict[str, NodeForecast], str]:
    try:
        order, cache = reorder(call.desk(), folder), call.parts.cache
        kept = go_on(order, cache, call.sweeps_folder()).kept
        seen = preview(order.plan, cache=cache, history=call.parts.history, kept=kept)
    except StokerError as error:
        return {}, str(error)
    return {forecast.node: forecast for forecast in seen.forecasts}, ""


def _of(forecasts: dict[str, NodeForecast], node: NodeHistory) -> NodeForecast | None:
    """Return what is foreseen of a node; the instances of a fan-out are foreseen together."""
    return forecasts.get(node.node) or forecasts.get(node.node.partition("[")[0])


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


def _telling(nodes: list[NodeHistory]) -> str:
    """Name the stage that is most worth asking about."""
    told = [node for node in nodes if node.changes or node.message] or [node for node in nodes if node.ending == "ran"]
    return (told or nodes)[-1].node


# `stoker explain` of a job of the fleet: why it is where it is, every machine with its reason; and how it went.

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
