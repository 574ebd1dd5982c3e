"""Trials as lines, named by their varied settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.core.frozen import fresh, frozen
from stoker.engine.metrics.metric_names import known_direction, preference
from stoker.engine.plan import Plan
from stoker.jobs.trials import Trial, is_sweep, shared_nodes
from stoker.views.adapter_lines import unaffected_text
from stoker.views.stage_lines import memory_text, metrics_text
from stoker.views.text_tables import near_path, span

_METRICS_OF_MEMBERS = 2


@frozen
class Titles:
    """The names of a plan's nodes on the screen."""

    names: Mapping[str, str] = fresh(factory=dict)
    """By node."""
    of_trials: frozenset[str] = frozenset()
    """Nodes that belong to one trial: the trial's end is shown instead of theirs."""
    width: int = 0
    job: str = ""
    """The job's name, for the command that shows a log."""
    together: frozenset[str] = frozenset()
    """Nodes that share a process."""
    trials: int = 0


_WIDEST = 40


def titles_of(plan: Plan, trials: Sequence[Trial], *, job: str = "", is_solo: bool = False) -> Titles:
    """Return the names of a plan's nodes."""
    together = frozenset(node.id for node in plan.nodes if node.stage.together and not is_solo)
    if not is_sweep(trials):
        plain = [f"{node.id}[0]" if node.fans_out else node.id for node in plan.nodes]
        width = min(_WIDEST, max(map(len, plain), default=0))
        return Titles(width=width, job=job, together=together)
    shared = shared_nodes(trials)
    names: dict[str, str] = {}
    for trial in trials:
        own = [node for node in trial.nodes.nodes if node not in shared]
        for node in own:
            stage = node.removeprefix(f"{trial.spec.number}.")
            names[node] = trial.spec.label if len(own) == 1 else f"{trial.spec.label} {stage}"
    widest = max((len(trial.spec.label) for trial in trials), default=0)
    return Titles(
        names=names,
        of_trials=frozenset(names),
        width=min(_WIDEST, widest),
        job=job,
        together=together,
        trials=len(trials),
    )


def trial_text(fields: Mapping[str, Any], titles: Titles, near: str, *, others: int = 0) -> str:
    """Return the end of a trial: label, time and details; `others` continue beside one that diverged."""
    width = titles.width
    label = f"{fields.get('label', ''):<{width}}"
    seconds = fields.get("seconds")
    took = f"{span(seconds) if isinstance(seconds, int | float) else '':>6}"
    if fields.get("state") == "failed":
        log = f"  hint: stoker logs {titles.job}/{fields.get('trial')}" if titles.job else ""
        alone = unaffected_text(others) if fields.get("cause") == "diverged" else ""
        return f"{label}  {took}  {fields.get('message') or fields.get('cause')}{alone}{log}"
    if fields.get("state") != "completed":
        return f"{label}  {took}  {fields.get('state')}"
    metrics = _shown(fields.get("metrics"))
    if titles.together:
        # The ranking metric comes first; memory is shown for the whole shared process.
        metrics = {name: metrics[name] for name in sorted(metrics, key=preference) if known_direction(name)}
        metrics = dict(list(metrics.items())[:_METRICS_OF_MEMBERS])
    shown = [text] if (text := metrics_text(metrics)) else []
    memory = memory_text(fields.get("peak_bytes"), fields.get("peak_gpu_bytes"))
    shown += [f"peak {memory}"] if memory else []
    if fields.get("is_kept"):
        shown.append("kept")
    if fields.get("out"):
        shown.append(f"→ {near_path(str(fields['out']), near)}")
    return "  ".join([label, took, *shown])


def _shown(metrics: Any) -> Mapping[str, Any]:
    return metrics if isinstance(metrics, Mapping) else {}
