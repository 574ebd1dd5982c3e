"""The end of a sweep for people: how many went well, the best one, what to try next. Quiet, only where results lie."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from stoker.config.adapters import BEST
from stoker.faces.cli.call import Call
from stoker.faces.view.company import CompanyNews, end_text, ranking_lines
from stoker.faces.view.grounds import not_compared_text
from stoker.faces.view.near import near_path
from stoker.faces.view.stages import number
from stoker.worker.best_link import has_best
from stoker.worker.execution import JobResult
from stoker.worker.ordering import Order
from stoker.worker.standings import rank_trials
from stoker.worker.sweep_end import count_ends
from stoker.worker.trials import TrialEnd

_ADAPTER = "adapter_config.json"
"""What PEFT looks for in a folder."""


def show_sweep_outcome(call: Call, order: Order, job: JobResult, company: CompanyNews) -> None:
    """Write what became of a sweep."""
    out, name = call.out, order.spec.name
    if out.is_quiet:
        for end in sorted(job.trials, key=lambda end: end.trial.number):
            if end.out:
                out.line(end.out)
        return
    counts = count_ends(job.trials, len(order.trials))
    told = [f"{counts['completed']} ok" + (f" ({counts['kept']} kept)" if counts["kept"] else "")]
    told += [f"{counts[state]} {state}" for state in ("failed", "cancelled") if counts[state]]
    if counts["not_run"]:
        told.append(f"{counts['not_run']} not run")
    is_together = any(node.stage.together for node in order.plan.nodes)
    best = best_text(job.trials, order.trials[0].args)
    for line in _ranking(job, order, call.parts.settings.folder) if is_together else ():
        out.line(line)
    out.line(f"{', '.join(told)}.{f' {best}' if best else ''}")
    if is_together:
        _show_company(call, order, job, company)
    following = []
    if counts["completed"] < len(order.trials):
        following.append(f"stoker run --failed {name}")
    if counts["completed"]:
        following.append(f"stoker compare {name}")
    if following:
        out.line(f"next: {' · '.join(following)}")


def _ranking(job: JobResult, order: Order, near: str) -> list[str]:
    ranked = rank_trials(job.trials, order.trials[0].args)
    return [] if ranked is None else ranking_lines(ranked, near)


def _show_company(call: Call, order: Order, job: JobResult, company: CompanyNews) -> None:
    """Say how quickly they went together, what they took, and where the best one lies."""
    total = len(order.trials)
    ran = [end for end in job.trials if not end.is_kept]
    if ran and job.result is not None:
        kept = len(job.trials) - len(ran)
        text = end_text(ran, total - kept, job.result.elapsed_s, company.speed.mean)
        is_done = any(end.state == "completed" for end in ran)
        # What is known is not trained again, unless that is asked for.
        trained = next((node.stage.name.rpartition("/")[2] for node in order.plan.nodes if node.stage.together), "")
        again = f"   same {total} one by one: --solo --rerun {trained}"
        solo = "" if company.is_solo or total < 2 or not is_done else again
        call.out.line(f"{text}{solo}")
    out = next((os.path.dirname(end.out) for end in job.trials if end.out), None)
    if out is None or not has_best(out):
        return
    best = near_path(os.path.join(out, BEST), call.parts.settings.folder)
    is_adapter = os.path.exists(os.path.join(out, BEST, _ADAPTER))
    call.out.line(where_text(best, {str(trial.args.get("base")) for trial in order.trials} if is_adapter else ()))


def where_text(best: str, bases: Collection[str]) -> str:
    """Say where the best result lies; of an adapter over one of some bases how it is loaded."""
    from stoker.cookbooks.language.bundled import BASES

    # A bundled base lies in no folder that somebody could load as `base`.
    is_loaded = any(base not in BASES for base in bases)
    return f'best: PeftModel.from_pretrained(base, "{best}")' if is_loaded else f"best: {best}"


def best_text(ends: Sequence[TrialEnd], args: Mapping[str, Any]) -> str:
    """Name the best of some trials, with what it is best by; nothing if there is nothing to compare.

    Of trials that were measured on different things nobody is the best, and it says why.
    """
    ranked = rank_trials(ends, args)
    if ranked is None:
        return ""
    best, metric, grounds = ranked.best, ranked.measure.metric, ranked.grounds
    if len(grounds) > 1:
        return f"No best of all: {not_compared_text(metric, grounds)}."
    if best is None:
        return ""
    return f"Best {best.end.trial.label} ({metric} {number(best.metrics[metric])})."
