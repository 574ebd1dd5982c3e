"""Sides of a gate that were measured earlier: what their numbers alone can decide.

What carries no noise is decided, a time hardly ever is: nothing was interleaved, so the machine may have changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from stoker.core.errors import Usage, WorkFailed
from stoker.core.frozen import changed, fresh, frozen
from stoker.core.text import counted
from stoker.crossval.gate import GateResult
from stoker.crossval.gate_rule import (
    MOST_NAMED_PAIRS,
    GateLimit,
    GateOutcome,
    GateRule,
    MetricVerdict,
    Weighed,
    decide_metrics,
    fewest_values,
    log_ratio,
    needed_text,
    normal,
    quantile_of,
    weigh_exact,
    weigh_non_finite,
    weigh_pairs,
)
from stoker.crossval.measures import LimitRequest, limits_for, lost_measure, notes_on, source_of
from stoker.crossval.scored_documents import PERPLEXITY, DocumentScore, decide_documents

_MAD_TO_SD = 1.4826


@frozen
class StoredSide:
    """What is known of a side without running it."""

    shown: str
    machine: str = ""
    samples: tuple[Mapping[str, float], ...] = ()
    """The measures of each run or trial."""
    labels: tuple[str, ...] = ()
    """Of the samples, if they can be paired with those of another side by them."""
    facts: Mapping[str, object] = fresh(factory=dict)
    """Where the numbers are from, for receipts."""
    subject: Mapping[str, object] = fresh(factory=dict)
    """What was measured, as a benchmark's result has it: what it takes to run it again."""
    documents: tuple[DocumentScore, ...] = ()

    def values(self, name: str) -> list[float]:
        return [one[name] for one in self.samples if name in one]

    def by_label(self, name: str) -> dict[str, float]:
        return {label: one[name] for label, one in zip(self.labels, self.samples, strict=False) if name in one}


def decide_stored(
    baseline: StoredSide, candidate: StoredSide, requests: Sequence[LimitRequest], rule: GateRule
) -> GateResult:
    """Decide from numbers alone.

    Raises `Usage` if the sides have nothing in common, and `WorkFailed` if the candidate lacks what has a limit.
    """
    if baseline.documents and candidate.documents:
        limits = limits_for([PERPLEXITY], requests)
        verdicts = decide_documents(baseline.documents, candidate.documents, limits[0], rule) if limits else ()
        return GateResult(verdicts=tuple(verdicts))
    ours = {name for one in candidate.samples for name in one}
    theirs = list(dict.fromkeys(name for one in baseline.samples for name in one))
    names = [name for name in theirs if name in ours]
    limits = limits_for(names, requests, [name for name in theirs if name not in ours])
    if not limits:
        raise Usage(
            f"{baseline.shown} and {candidate.shown} have no metric in common that has a limit",
            hint=f"measured on both: {', '.join(names)}; --limit NAME=5%" if names else "measure the same on both",
        )
    if lost := lost_measure(theirs, ours, requests):
        raise WorkFailed(f"{candidate.shown} has no {lost}, which {baseline.shown} has", hint=f"--limit {lost}=off")
    trouble = ""
    if not baseline.machine or baseline.machine != candidate.machine:
        trouble = f"measured on {baseline.machine or 'an unknown machine'} and {candidate.machine or 'an unknown one'}"
    weighed: dict[str, Weighed] = {}
    decided: dict[str, MetricVerdict] = {}
    for limit in limits:
        values = baseline.values(source_of(limit)), candidate.values(source_of(limit))
        if (odd := weigh_non_finite(limit, *values)) is not None:
            weighed[limit.metric] = odd
            continue
        if limit.share < 1.0:
            decided[limit.metric] = stored_verdict(limit, *values, rule, trouble=trouble)
            continue
        found = _weigh_labelled(limit, baseline, candidate, rule)
        if found is None:
            decided[limit.metric] = _unpaired(limit, *values)
        else:
            weighed[limit.metric] = found
    for name, one in decide_metrics(weighed, limits, rule).items():
        quantile = 0.5 if one.limit.quantile is None else one.limit.quantile
        middle, other = (quantile_of(side.values(source_of(one.limit)), quantile) for side in (baseline, candidate))
        decided[name] = changed(one, baseline=middle, candidate=other)
    return GateResult(verdicts=tuple(decided[limit.metric] for limit in limits), notes=notes_on(limits))


def _weigh_labelled(limit: GateLimit, baseline: StoredSide, candidate: StoredSide, rule: GateRule) -> Weighed | None:
    """Weigh values that repeat exactly, or that are paired by their labels; None if they are neither."""
    one, other = set(baseline.values(limit.metric)), set(candidate.values(limit.metric))
    if len(one) == len(other) == 1:
        return weigh_exact(limit, one.pop(), other.pop())
    ours, theirs = baseline.by_label(limit.metric), candidate.by_label(limit.metric)
    if not ours or set(ours) != set(theirs):
        return None
    return weigh_pairs(limit, [(ours[label], theirs[label]) for label in ours], rule)


def _unpaired(limit: GateLimit, baseline: Sequence[float], candidate: Sequence[float]) -> MetricVerdict:
    counts = f"{counted(len(baseline), 'value')} and {counted(len(candidate), 'value')} that do not belong together"
    return MetricVerdict(
        limit=limit,
        outcome="undecided",
        reason=f"{counts}; repeat both sides with the same seeds, as a sweep of the same values",
        baseline=quantile_of(baseline, 0.5),
        candidate=quantile_of(candidate, 0.5),
    )


# Times that were not paired.

DRIFT = math.log(1.75)
"""How far times of one program moved within 11 minutes on a virtual machine with two cores: 66 to 116 ms."""


def stored_verdict(
    limit: GateLimit, baseline: Sequence[float], candidate: Sequence[float], rule: GateRule, *, trouble: str = ""
) -> MetricVerdict:
    """Decide a time or a throughput from runs that were not paired, where even a drift could not explain the change.

    `trouble` says why they can't be compared at all, such as another machine.
    """
    quantile = 0.5 if limit.quantile is None else limit.quantile
    middle = quantile_of(baseline, quantile), quantile_of(candidate, quantile)
    effect = log_ratio(limit, *middle)
    reach = DRIFT + _spread(baseline) + _spread(candidate)
    one = Weighed(
        count=min(len(baseline), len(candidate)),
        effect=effect,
        low=effect - reach,
        high=effect + reach,
        risk_worse=0.0 if effect - reach > limit.boundary else 1.0,
        risk_fine=0.0 if effect + reach < limit.boundary else 1.0,
        unit="run",
    )
    change = f"{limit.shown(effect)} between stored runs"
    outcome: GateOutcome = "undecided"
    needed = None
    fewest = fewest_values(rule.risk, limit.quantile)
    if trouble:
        reason = f"{change}: {trouble}"
    elif limit.quantile is not None and one.count < fewest:
        reason = f"{change}: {counted(one.count, 'run')} need not have one of the tail; limit {limit}"
    elif one.risk_worse == 0.0 or one.risk_fine == 0.0:
        outcome = "failed" if one.risk_worse == 0.0 else "passed"
        reason = f"{change}, more than a drift of the machine explains; limit {limit}"
    else:
        reason = f"{change}: times of another moment drift by up to {math.expm1(DRIFT) * 100:.0f} %; limit {limit}"
    if outcome == "undecided":
        needed = _pairs_by_noise(limit, baseline, candidate, rule)
        needed = None if needed is None else max(needed, fewest)
        asked = "run both sides again, interleaved" if needed is None else f"{needed_text(needed)}, run interleaved"
        reason = f"{reason}; {asked}"
    return MetricVerdict(
        limit=limit,
        outcome=outcome,
        reason=reason,
        baseline=middle[0],
        candidate=middle[1],
        weighed=one,
        pairs_needed=needed,
    )


def _spread(values: Sequence[float]) -> float:
    """Return how far the runs of one side are from their median, as a logarithm: that of 19 in 20."""
    middle = quantile_of(values, 0.5)
    low, high = quantile_of(values, 0.05), quantile_of(values, 0.95)
    if low <= 0.0 or not math.isfinite(high):
        return math.inf
    return max(math.log(high / middle), math.log(middle / low))


def _pairs_by_noise(
    limit: GateLimit, baseline: Sequence[float], candidate: Sequence[float], rule: GateRule
) -> int | None:
    """Return how many pairs tell no change from a change of the limit, by the noise from each run to the next.

    Neighbours differ as the two runs of a pair do: a drift is not in it.
    """
    steps = [abs(log_ratio(limit, one, other)) for side in (baseline, candidate) for one, other in pairwise(side)]
    if not steps:
        return None
    sd = _MAD_TO_SD * quantile_of(steps, 0.5)
    reach = normal().inv_cdf(1.0 - rule.risk) * math.sqrt(math.pi / 2.0) * sd
    needed = math.ceil((reach / min(limit.boundary, limit.log_limit - limit.boundary or limit.boundary)) ** 2)
    return max(fewest_values(rule.risk), needed) if needed <= MOST_NAMED_PAIRS else None
