"""The end of a sweep for people: how many went well, the best one, what to try next. Quiet, only where results lie."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.view.stages import number
from stoker.model.frozen import frozen
from stoker.plan.ranking import best_first, measure_for
from stoker.worker.execution import JobResult
from stoker.worker.ordering import Order
from stoker.worker.program_order import flat
from stoker.worker.sweep_end import count_ends
from stoker.worker.trials import TrialEnd


def show_sweep_outcome(call: Call, order: Order, job: JobResult, name: str) -> None:
    """Write what became of a sweep."""
    out = call.out
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
    best = best_text(job.trials, order.trials[0].args)
    out.line(f"{', '.join(told)}.{f' {best}' if best else ''}")
    following = []
    if counts["completed"] < len(order.trials):
        following.append(f"stoker run --failed {name}")
    if counts["completed"]:
        following.append(f"stoker compare {name}")
    if following:
        out.line(f"next: {' · '.join(following)}")


def best_text(ends: Sequence[TrialEnd], args: Mapping[str, Any]) -> str:
    """Name the best of some trials, with what it is best by; nothing if there is nothing to compare."""
    done = [_Ranked(n=end.trial.number, end=end) for end in ends if end.state == "completed"]
    # A program's own parameters stand among its recipe's arguments.
    params = args.get("params")
    settings = {**flat(args), **(flat(params) if isinstance(params, Mapping) else {})}
    measure = measure_for(done, settings) if len(done) > 1 else None
    if measure is None:
        return ""
    best = best_first(done, measure)[0]
    value = best.metrics.get(measure.metric)
    if value is None or not math.isfinite(value):
        return ""
    return f"Best {best.end.trial.label} ({measure.metric} {number(value)})."


@frozen
class _Ranked:
    n: int
    end: TrialEnd
    is_done: bool = True
    is_failed: bool = False

    @property
    def metrics(self) -> Mapping[str, float]:
        return {name: float(value) for name, value in self.end.metrics.items() if type(value) in (int, float)}
