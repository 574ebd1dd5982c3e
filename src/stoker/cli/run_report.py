"""The progress of a run, and the report at its end: metrics, result folder, next commands; or the logs of failures."""

from __future__ import annotations

import os
import re
import shlex
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from stoker.cli.context import CliOutput, CommandContext
from stoker.cli.screens import Screen
from stoker.config.values import text_of
from stoker.core.display_width import filled, text_width
from stoker.core.errors import StokerError
from stoker.core.events import Event, Kinds
from stoker.core.jsontext import loads
from stoker.core.text import BEST, counted, lazy_pattern
from stoker.engine.args import ArgsSchema
from stoker.engine.plan import Plan
from stoker.engine.types import NodeEnding, RunResult
from stoker.jobs.builder import JobBuild
from stoker.jobs.execution import JobResult
from stoker.jobs.job_history import NodeHistory, RunHistory
from stoker.jobs.program import RECIPE
from stoker.jobs.results import count_ends, has_best
from stoker.jobs.trials import TrialEnd
from stoker.store.weight_files.safetensors import ADAPTER_CONFIG
from stoker.views.stage_lines import StageStepRate, finished_text, number, running_text, sign_of, waiting_text
from stoker.views.text_tables import near_path, no_finite_text, not_compared_text, span, table
from stoker.views.trial_lines import (
    SharedProcessRunView,
    Titles,
    end_text,
    ranking_lines,
    shared_speed_text,
    trial_text,
)

SUMMARY = "summary.json"
_FILES_NAMED = 5
_RECIPE_OF = lazy_pattern(r"stoker run (\S+)")
_PLACEHOLDER = lazy_pattern(r"(?<!\S)(\w+)=(?:FILE(?:\.\w+)?(?!\S)|PATH/\S*)")


def show_outcome(call: CommandContext, build: JobBuild, job: JobResult) -> None:
    """Print the outcome of a run."""
    out, plan, name = call.out, build.plan, build.spec.name
    if job.result is not None:
        out.line(counts_text(job.result))
        for line in _summary_lines(call, plan, job.result):
            out.line(line)
    if job.laid_out is not None:
        tops = list(dict.fromkeys(f"{path.partition('/')[0]}{'/' * ('/' in path)}" for path in job.laid_out.files))
        named = ", ".join(tops[:_FILES_NAMED]) + (", …" if len(tops) > _FILES_NAMED else "")
        what = named or ("no files in $STOKER_OUT" if _is_program(plan) else "no files")
        out.line(f"results: {near_path(job.laid_out.folder, call.parts.settings.folder)}  ({what})")
        for kept in job.laid_out.kept_edits:
            out.note(f"note: kept an edited file: {kept}")
    if job.result is not None and job.error is None:
        steps = _summary(call, plan, job.result).get("next")
        proposed = [_proposed(call, str(step), build) for step in steps] if isinstance(steps, list) else []
        for line in ("next:", *(f"  {step}" for step in [*proposed, f"stoker explain {name}"])):
            out.line(line)


def failure_lines(job: JobResult, name: str) -> list[str]:
    """Return the logs command of each failed stage."""
    if job.result is None:
        return []
    return [f"log:  stoker logs {name}/{node}" for node, _ in job.result.failures()]


def counts_text(result: RunResult) -> str:
    """Return in one line how many stages were cached and how many ran."""
    took = span(result.elapsed_s)
    by_ending = {ending: result.count(ending) for ending in NodeEnding}
    count = sum(by_ending.values())
    if by_ending[NodeEnding.HIT] == count:
        what = "the only stage was cached" if count == 1 else f"all {count} stages were cached"
        return f"{what}: nothing ran ({took})"
    words = {
        NodeEnding.RAN: "ran",
        NodeEnding.HIT: "cached",
        NodeEnding.FAILED: "failed",
        NodeEnding.DIVERGED: "diverged",
        NodeEnding.CANCELLED: "cancelled",
        NodeEnding.PRUNED: "skipped",
    }
    parts = ", ".join(f"{by_ending[ending]} {word}" for ending, word in words.items() if by_ending[ending])
    return f"{counted(count, 'stage')}: {parts} ({took})"


def _summary_lines(call: CommandContext, plan: Plan, result: RunResult) -> list[str]:
    summary = _summary(call, plan, result)
    lines = []
    if isinstance(summary.get("headline"), str):
        lines += ["", summary["headline"]]
    scores = summary.get("table")
    if isinstance(scores, dict) and isinstance(scores.get("columns"), list) and isinstance(scores.get("rows"), list):
        header = [str(column) for column in scores["columns"]]
        rows = [[str(cell) for cell in row] for row in scores["rows"] if isinstance(row, list)]
        lines += ["", *table(rows, header=header, columns=call.out.columns, indent="  "), ""]
    return lines


def _proposed(call: CommandContext, step: str, build: JobBuild) -> str:
    named = _RECIPE_OF.match(step)
    try:
        recipe = call.parts.catalogue.load(named[1] if named else build.spec.recipe)
    except StokerError:
        return step
    return filled_in(step, build.spec.args, recipe.args, is_same=recipe.name == build.spec.recipe)


def filled_in(step: str, args: Mapping[str, Any], schema: ArgsSchema, *, is_same: bool) -> str:
    """Replace the placeholders of a proposed command with the paths of this run, and add what this run was given.

    The proposal is part of a cached result, which does not depend on paths. `schema` is that of the proposed recipe;
    of another recipe than that of the run (`is_same`) only arguments are added on which its metrics depend.
    """

    def given(found: re.Match[str]) -> str:
        return _typed(schema, found[1], args.get(found[1])) or found[0]

    more = [
        _typed(schema, name, args[name])
        for name, spec in schema.specs.items()
        if (spec.is_measured_on or (is_same and not spec.is_runtime))
        and args.get(name, spec.default) != spec.default
        and f" {name}=" not in step
    ]
    return " ".join([_PLACEHOLDER.sub(given, step), *filter(None, more)])


def _typed(schema: ArgsSchema, name: str, value: Any) -> str:
    """Return an argument as it is typed in a shell; empty if it has no value, or can't be typed there."""
    if value in (None, "", (), [], {}) or name not in schema.specs:
        return ""
    text = text_of(schema.specs[name].type.brief(value))
    return f"{name}={shlex.quote(text)}" if text.isprintable() else ""


def _summary(call: CommandContext, plan: Plan, result: RunResult) -> dict[str, Any]:
    node = result.nodes.get(plan.final)
    if node is None or not node.products or not node.has_bytes:
        return {}
    record = node.products[0].record
    if not any(entry.path == SUMMARY for entry in record.tree.entries):
        return {}
    try:
        summary = loads(call.parts.store.read_bytes(record, SUMMARY))
    except (StokerError, OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def _is_program(plan: Plan) -> bool:
    return plan.node(plan.final).stage.name.startswith(f"{RECIPE}/")


# The report of a sweep: counts, the best trial, next commands. With --quiet only the result folders.


def show_sweep_outcome(call: CommandContext, build: JobBuild, job: JobResult, shared: SharedProcessRunView) -> None:
    """Print the outcome of a sweep."""
    out, name = call.out, build.spec.name
    if out.is_quiet:
        for end in sorted(job.trials, key=lambda end: end.trial.spec.number):
            if end.out:
                out.line(end.out)
        return
    counts = count_ends(job.trials, len(build.trials))
    parts = [f"{counts['completed']} ok" + (f" ({counts['kept']} kept)" if counts["kept"] else "")]
    parts += [f"{counts[state]} {state}" for state in ("failed", "cancelled") if counts[state]]
    if counts["not_run"]:
        parts.append(f"{counts['not_run']} not run")
    is_together = any(node.stage.together for node in build.plan.nodes)
    best = best_text(job.trials, build.trials[0].spec.args)
    for line in _ranking(job, build, call.parts.settings.folder) if is_together else ():
        out.line(line)
    out.line(f"{', '.join(parts)}.{f' {best}' if best else ''}")
    if is_together:
        _show_shared_process(call, build, job, shared)
    following = []
    if counts["completed"] < len(build.trials):
        following.append(f"stoker run --failed {name}")
    if counts["completed"]:
        following.append(f"stoker compare {name}")
    if following:
        out.line(f"next: {' · '.join(following)}")


def _ranking(job: JobResult, build: JobBuild, near: str) -> list[str]:
    from stoker.jobs.trial_watch import rank_trials

    ranked = rank_trials(job.trials, build.trials[0].spec.args)
    return [] if ranked is None else ranking_lines(ranked, near)


def _show_shared_process(call: CommandContext, build: JobBuild, job: JobResult, shared: SharedProcessRunView) -> None:
    """Print the speed and memory of the shared process, and the folder of the best result."""
    total = len(build.trials)
    ran = [end for end in job.trials if not end.is_kept]
    if ran and job.result is not None:
        kept = len(job.trials) - len(ran)
        text = end_text(ran, total - kept, job.result.elapsed_s, shared.speed.mean)
        is_done = any(end.state == "completed" for end in ran)
        # Without --rerun, cached trials would not be trained again.
        trained = next((node.stage.name.rpartition("/")[2] for node in build.plan.nodes if node.stage.together), "")
        again = f"   same {total} one by one: --solo --rerun {trained}"
        solo = "" if shared.is_solo or total < 2 or not is_done else again
        call.out.line(f"{text}{solo}")
    out = next((os.path.dirname(end.out) for end in job.trials if end.out), None)
    if out is None or not has_best(out):
        return
    best = near_path(os.path.join(out, BEST), call.parts.settings.folder)
    is_adapter = os.path.exists(os.path.join(out, BEST, ADAPTER_CONFIG))
    call.out.line(where_text(best, {str(trial.spec.args.get("base")) for trial in build.trials} if is_adapter else ()))


def where_text(best: str, bases: Collection[str]) -> str:
    """Return the folder of the best result; for an adapter, the call that loads it."""
    from stoker.cookbooks.language.bundled import BASES

    # A bundled base has no folder that could be loaded as `base`.
    is_loaded = any(base not in BASES for base in bases)
    return f'best: PeftModel.from_pretrained(base, "{best}")' if is_loaded else f"best: {best}"


def best_text(ends: Sequence[TrialEnd], args: Mapping[str, Any]) -> str:
    """Return the best of some trials with its metric; "" if there is nothing to compare.

    Trials that were measured on different data have no best one; the text gives the reason.
    """
    from stoker.jobs.trial_watch import rank_trials

    ranked = rank_trials(ends, args)
    if ranked is None:
        return ""
    best, metric, grounds = ranked.best, ranked.measure.metric, ranked.grounds
    if len(grounds) > 1:
        return f"No overall best: {not_compared_text(metric, grounds)}."
    if best is None:
        return f"No best: {no_finite_text(metric)}."
    return f"Best {best.end.trial.spec.label} ({metric} {number(best.metrics[metric])})."


# The progress of a run as lines: finished work stays on the screen, running work is redrawn.
#
# Cached results are held back until a stage runs, so that a run of only hits prints one line. On a terminal a live
# screen draws running work; elsewhere each end is a plain line, and long work prints a line now and then. Listens to
# the journal: called from several threads, one at a time.


_HITS_LISTED = 8


class ProgressLines:
    """Prints the events of a run as lines."""

    def __init__(
        self, screen: Screen, out: CliOutput, titles: Titles, *, near: str, shared: SharedProcessRunView | None = None
    ) -> None:
        self._screen = screen
        self._out = out
        self._signs = out.signs
        self._story = RunHistory()
        self._lock = threading.Lock()
        self._known: list[NodeHistory] = []
        self._kept: list[dict[str, Any]] = []
        self._paces: dict[str, StageStepRate] = {}
        self._has_begun = False
        self._apart = 0
        self._shared = shared or SharedProcessRunView()
        self._is_introduced = False
        self._shown_together: set[str] = set()
        self._titles = titles
        self._width = titles.width
        self._near = near

    def take(self, event: Event, at_s: float, _seq: int) -> None:
        """Handle one event of the journal."""
        with self._lock:
            node = self._story.take({"kind": event.kind, "ts": at_s, **event.fields})
            if node is not None:
                node.title = self._titles.names.get(node.node, "")
                self._keep_pace(event.kind, node, at_s)
            is_hit = event.kind == Kinds.STAGE_SKIPPED and node is not None
            if is_hit and node is not None and not self._has_begun and node.node not in self._titles.of_trials:
                self._known.append(node)
                return
            if event.kind == Kinds.TRIAL_END and event.fields.get("is_kept"):
                self._kept.append(event.fields)
                self._apart += 1
                return
            lines = list(self._lines(event.kind, event.fields, node))
            if self._kept and (lines or event.kind == Kinds.RUN_END):
                lines = [*self._kept_lines(), *lines]
            if event.kind == Kinds.STAGE_BEGIN or lines:
                self._begin()
        for line in lines:
            self._screen.lasting(line)

    def running(self, now_s: float, at_least_s: float) -> list[str]:
        """Return a line for each stage that has been running, or waiting for devices, for `at_least_s`."""
        with self._lock:
            nodes = self._story.nodes.values()
            waiting = [
                waiting_text(node, self._width, now_s)
                for node in nodes
                if node.ending == "waiting" and now_s - (node.waits_since_s or now_s) >= max(at_least_s, 0.1)
            ]
            shown = [
                node
                for node in nodes
                if node.ending == "running" and node.instances is None and now_s - (node.began_s or now_s) >= at_least_s
            ]
            # For a trial with several stages, the name includes the stage.
            width = max((self._width, *(text_width(node.title or node.node) for node in shown)))
            speed = [shared_speed_text(self._shared.speed, width)] if self._shared.speed.members > 1 else []
            return [
                *waiting,
                *speed,
                *(running_text(node, width, now_s, self._paces.get(node.node)) for node in shown),
            ]

    def _keep_pace(self, kind: str, node: NodeHistory, at_s: float) -> None:
        if kind == Kinds.STAGE_STEP and isinstance(node.step, int):
            self._paces.setdefault(node.node, StageStepRate(node.step, at_s)).hear(node.step, at_s)
        elif kind == Kinds.STAGE_BEGIN or kind in _ENDS:
            self._paces.pop(node.node, None)
        if node.node in self._titles.together:
            if kind == Kinds.STAGE_STEP:
                self._shared.speed.hear(node.node, node.metrics, at_s)
            elif kind in _ENDS:
                self._shared.speed.leave(node.node, at_s)

    def _begin(self) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        if len(self._known) > _HITS_LISTED:
            self._screen.lasting(f"{self._signs.hit} {len(self._known)} stages cached")
        else:
            for node in self._known:
                self._screen.lasting(self._finished(node))
        self._screen.begin(self.running)

    def _kept_lines(self) -> list[str]:
        """Return lines for cached trials: each of a few, or the number of many."""
        kept, self._kept = self._kept, []
        if len(kept) > _HITS_LISTED:
            return [f"{self._signs.hit} {len(kept):,} trials cached"]
        return [self._trial(fields) for fields in kept]

    def _lines(self, kind: str, fields: dict[str, Any], node: NodeHistory | None) -> Iterable[str]:
        if node is not None:
            yield from self._lines_about(node, kind, fields)
        elif kind == Kinds.TRIAL_END:
            yield self._trial(fields)
        elif kind == Kinds.WARNING:
            yield self._warning("", str(fields.get("message", "")))

    def _lines_about(self, node: NodeHistory, kind: str, fields: dict[str, Any]) -> Iterable[str]:
        if kind == Kinds.STAGE_BEGIN and node.node in self._titles.together and not self._is_introduced:
            self._is_introduced = True
            yield from self._shared.lines
        if kind == Kinds.STAGE_TOLD:
            yield from self._message_lines(node, fields)
        elif kind in _ENDS:
            # The end of a trial has its own line, with label and result folder.
            if node.node not in self._titles.of_trials:
                yield self._finished(node)
        elif kind == Kinds.STAGE_RETRYING:
            pause = span(float(fields.get("delay_s", 0.0)))
            yield f"{self._signs.again} {filled(node.node, self._width)}  {node.message}; retry in {pause}"
        elif kind == Kinds.STAGE_WAITING:
            why = str(fields.get("why", ""))
            text = why if why.startswith("waits ") else f"waits: {why}"
            yield f"{self._signs.again} {filled(node.title or node.node, self._width)}  {text}"
        elif kind == Kinds.STAGE_REWIND:
            text = f"runs again: its result was pruned and {fields.get('wanted_by')} needs it"
            yield f"{self._signs.again} {filled(node.node, self._width)}  {text}"
        elif kind == Kinds.CACHE_CORRUPT:
            yield self._warning(node.node, f"{fields.get('damage')}; quarantined, runs again")
        elif kind == Kinds.CACHE_DIFFERS and not fields.get("expected"):
            kept = "new" if fields.get("kept") == fields.get("ours") else "first"
            yield self._warning(node.node, f"different result from the same inputs; the {kept} one is kept")

    def _message_lines(self, node: NodeHistory, fields: dict[str, Any]) -> Iterable[str]:
        """Yield a stage's message, except if its end shows it; once for stages that share a process."""
        if fields.get("at_once"):
            yield f"  {filled(node.title or node.node, self._width)}  {fields.get('text', '')}"
        elif node.node in self._titles.together:
            if node.status_text not in self._shown_together:
                self._shown_together.add(node.status_text)
                yield node.status_text
        elif node.node in self._titles.of_trials:
            yield f"  {filled(node.title, self._width)}  {node.status_text}"

    def _finished(self, node: NodeHistory) -> str:
        sign = sign_of(node, self._signs)
        colour = {self._signs.ran: "green", self._signs.failed: "red"}.get(sign, "dim")
        is_shown = node.node in self._titles.together
        return f"{self._out.paint(sign, colour)} {finished_text(node, self._width, is_message_shown=is_shown)}"

    def _trial(self, fields: dict[str, Any]) -> str:
        state = fields.get("state")
        signs = self._signs
        sign = {"completed": signs.hit if fields.get("is_kept") else signs.ran, "failed": signs.failed}.get(
            str(state), signs.left
        )
        colour = {"completed": "green", "failed": "red"}.get(str(state), "dim")
        self._apart += state == "failed"
        # Failed and cached trials can not be affected.
        others = max(0, self._titles.trials - self._apart) if self._titles.together else 0
        return f"{self._out.paint(sign, colour)} {trial_text(fields, self._titles, self._near, others=others)}"

    def _warning(self, name: str, text: str) -> str:
        sign = self._out.paint(self._signs.warned, "yellow")
        return f"{sign} {filled(name, self._width)}  {text}" if name else f"{sign} {text}"


_ENDS = frozenset(
    {
        Kinds.STAGE_END,
        Kinds.STAGE_SKIPPED,
        Kinds.STAGE_FAILED,
        Kinds.STAGE_PRUNED,
        Kinds.STAGE_CANCELLED,
    }
)
