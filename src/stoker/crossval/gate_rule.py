"""Decide whether a candidate is worse than a baseline: a pure rule over pairs of measurements.

A pair is the baseline and the candidate measured directly after one another, so that what changes slowly on a machine
(heat, other programs, the clock of the processor) changes both. The ratio of each pair is judged, never the two medians
apart. After every batch of pairs the rule looks: a metric is decided as soon as the interval of its ratio is wholly on
one side of the boundary. A metric that is undecided after the most pairs stays so, with the pairs that it would take.

The boundary of times and throughputs is half their limit, since a true change of a whole limit must be found; two
copies of one program differ by up to a percent here. The boundary of a perplexity is its limit: the same text gives the
same number. Several metrics share the risk of a false alarm (Holm); that all are fine needs no such correction.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from stoker.core.errors import BadInput
from stoker.core.frozen import frozen
from stoker.core.text import counted
from stoker.engine.metrics.metric_names import Direction

if TYPE_CHECKING:
    from statistics import NormalDist

GateOutcome = Literal["passed", "failed", "undecided"]

RESAMPLES = 2000
"""Of a bootstrap."""
MOST_NAMED_PAIRS = 100_000
"""A larger number of pairs is not named: it would never be run."""
_MOST_BLOCKS = 1000
_FEWEST_EXACT = 3
"""Pairs after which values that repeat to the last digit count as exact."""
_ROUNDING = 1e-12


@frozen
class GateLimit:
    """How much worse one metric may be."""

    metric: str
    change: float
    """As a part of the baseline: 0.05 is 5 %."""
    direction: Direction = Direction.SMALLER
    """Which way it is better."""
    share: float = 1.0
    """Part of the limit at which the rule tells better from worse."""
    quantile: float | None = None
    """Compare this quantile over all runs instead of the median over pairs."""

    def __post_init__(self) -> None:
        if not 0.0 < self.change < 1.0:
            message = f"limit of {self.metric}: {self.change:.4g} is not between 0 and 100 %"
            raise BadInput(message, hint=f"--limit {self.metric}=5%")

    @property
    def log_limit(self) -> float:
        """The logarithm of the ratio that the limit is; above 0 whichever way the metric is better."""
        return math.log1p(self.change) if self.direction is Direction.SMALLER else -math.log1p(-self.change)

    @property
    def boundary(self) -> float:
        return self.log_limit * self.share

    def __str__(self) -> str:
        sign = "+" if self.direction is Direction.SMALLER else "−"
        return f"{sign}{self.change * 100:.4g} %"

    def shown(self, effect: float) -> str:
        """Return an effect (a logarithm, above 0 is worse) as the change of the metric."""
        worse = effect if self.direction is Direction.SMALLER else -effect
        percent = math.expm1(worse) * 100 if worse < 700.0 else math.inf
        return f"{round(percent, 2) + 0.0:+.2f} %".replace("-", "−")


def time_limit(metric: str, change: float, direction: Direction, quantile: float | None = None) -> GateLimit:
    """Return the limit of a time or a throughput, which vary from run to run."""
    return GateLimit(metric=metric, change=change, direction=direction, share=0.5, quantile=quantile)


@frozen
class GateRule:
    """How many pairs are measured, and how sure a decision is."""

    confidence: float = 0.98
    """Of an interval with two ends."""
    batch: int = 10
    most_pairs: int = 200

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1.0:
            message = f"confidence {self.confidence:g} is not between 0.5 and 1"
            raise BadInput(message, hint="--confidence 0.98")
        if self.batch < 1 or self.most_pairs < 1:
            message = "a gate needs at least one pair"
            raise BadInput(message, hint="--pairs 200")

    @property
    def risk(self) -> float:
        """The probability of a wrong decision on either side."""
        return (1.0 - self.confidence) / 2.0


@frozen
class Document:
    """What one document contributes to two perplexities: sums of negative log-likelihoods over the same tokens."""

    name: str
    tokens: int
    baseline_nll: float
    candidate_nll: float


@frozen
class Weighed:
    """What measurements say about a ratio, as logarithms; above 0 the candidate is worse."""

    count: int
    effect: float
    low: float
    high: float
    risk_worse: float
    """The probability of measurements such as these if the candidate were not beyond the boundary."""
    risk_fine: float
    """The same if it were beyond the boundary."""
    unit: str = "pair"
    is_exact: bool = False
    """The values repeat to the last digit, so there is no noise."""


@frozen
class MetricVerdict:
    """What was decided about one metric, and why."""

    limit: GateLimit
    outcome: GateOutcome
    reason: str
    baseline: float | None = None
    candidate: float | None = None
    weighed: Weighed | None = None
    pairs_needed: int | None = None
    """For an undecided one: how many it would take if the ratio stays as measured; None: more than can be named."""

    def to_row(self) -> dict[str, object]:
        """Return the numbers, as rows of reports have them."""
        one = self.weighed
        return {
            "metric": self.limit.metric,
            "baseline": self.baseline,
            "candidate": self.candidate,
            "change": None if one is None else _change(self.limit, one.effect),
            "low": None if one is None else _change(self.limit, one.low),
            "high": None if one is None else _change(self.limit, one.high),
            "limit": self.limit.change if self.limit.direction is Direction.SMALLER else -self.limit.change,
            "boundary": _change(self.limit, self.limit.boundary),
            "count": 0 if one is None else one.count,
            "unit": "pair" if one is None else one.unit,
            "needed": self.pairs_needed,
            "is_exact": one is not None and one.is_exact,
        }


def _change(limit: GateLimit, effect: float) -> float:
    worse = effect if limit.direction is Direction.SMALLER else -effect
    return math.expm1(worse) if worse < 700.0 else math.inf


def log_ratio(limit: GateLimit, baseline: float, candidate: float) -> float:
    """Return how much worse the candidate is, as a logarithm; infinite for a value that is no number.

    Raises `BadInput` for values that have no ratio.
    """
    if not math.isfinite(candidate) and math.isfinite(baseline):
        return math.inf
    if not math.isfinite(baseline):
        raise BadInput(f"{limit.metric} of the baseline is {baseline}", hint="check the baseline first")
    if baseline == candidate:
        return 0.0
    if baseline <= 0.0 or candidate <= 0.0:
        message = f"{limit.metric} has no ratio: {baseline:g} and {candidate:g}"
        raise BadInput(message, hint="a gate compares values above 0")
    ratio = math.log(candidate) - math.log(baseline)
    return ratio if limit.direction is Direction.SMALLER else -ratio


# What measurements say. Each function takes the limit for its boundary alone.


def weigh_non_finite(limit: GateLimit, baseline: Sequence[float], candidate: Sequence[float]) -> Weighed | None:
    """Weigh a candidate with a value that is no finite number, which no noise explains; None if all are finite.

    Raises `BadInput` for such a baseline.
    """
    if odd := [value for value in baseline if not math.isfinite(value)]:
        raise BadInput(f"{limit.metric} of the baseline is {odd[0]}", hint="check the baseline first")
    if all(map(math.isfinite, candidate)):
        return None
    return _exact(limit, math.inf, len(candidate))


def weigh_pairs(limit: GateLimit, pairs: Sequence[tuple[float, float]], rule: GateRule) -> Weighed:
    """Weigh the median of the pairs' ratios; its interval is that of order statistics, which no noise can mislead."""
    if (odd := weigh_non_finite(limit, *zip(*pairs, strict=True))) is not None:
        return odd
    ratios = sorted(log_ratio(limit, *pair) for pair in pairs)
    count = len(ratios)
    if _is_exact(pairs):
        return _exact(limit, ratios[0], count)
    outside = _order_below(count, rule.risk)
    return Weighed(
        count=count,
        effect=(ratios[(count - 1) // 2] + ratios[count // 2]) / 2.0,
        low=ratios[outside - 1] if outside else -math.inf,
        high=ratios[count - outside] if outside else math.inf,
        risk_worse=_tail(count, sum(one > limit.boundary for one in ratios)),
        risk_fine=_tail(count, sum(one < limit.boundary for one in ratios)),
    )


def weigh_quantile(limit: GateLimit, pairs: Sequence[tuple[float, float]], rule: GateRule, seed: int = 0) -> Weighed:
    """Weigh the ratio of two quantiles over all runs, by a bootstrap over pairs.

    Fewer pairs than `fewest_values` of the quantile decide nothing: they need not have a single run of the tail.
    """
    quantile = limit.quantile if limit.quantile is not None else 0.5
    if (odd := weigh_non_finite(limit, *zip(*pairs, strict=True))) is not None:
        return odd

    def ratio(picked: Sequence[tuple[float, float]]) -> float:
        baseline, candidate = zip(*picked, strict=True)
        return log_ratio(limit, quantile_of(baseline, quantile), quantile_of(candidate, quantile))

    draw = random.Random(seed)  # noqa: S311 - a bootstrap, the same for the same pairs
    drawn = sorted(ratio(draw.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    return _of_drawn(limit, ratio(pairs), drawn, rule, count=len(pairs), unit="pair")


def weigh_documents(limit: GateLimit, documents: Sequence[Document], rule: GateRule, seed: int = 0) -> Weighed:
    """Weigh the ratio of two perplexities over the same documents, by a paired bootstrap over documents.

    More than a thousand documents are drawn in a thousand blocks of neighbours.
    """
    differences, tokens = _in_blocks(documents)
    if not sum(tokens):
        raise BadInput("the documents have no tokens", hint="a perplexity needs at least one document of two tokens")
    if not math.isfinite(sum(one.baseline_nll for one in documents)):
        raise BadInput(f"{limit.metric} of the baseline is not finite", hint="check the baseline first")
    effect = sum(differences) / sum(tokens)
    if not math.isfinite(effect):
        return _exact(limit, math.inf, len(documents), unit="document")
    if not any(differences):
        return _exact(limit, 0.0, len(documents), unit="document")
    draw = random.Random(seed)  # noqa: S311 - a bootstrap, the same for the same documents
    places = range(len(tokens))
    drawn = []
    for _ in range(RESAMPLES):
        picked = draw.choices(places, k=len(tokens))
        drawn.append(sum(map(differences.__getitem__, picked)) / sum(map(tokens.__getitem__, picked)))
    return _of_drawn(limit, effect, sorted(drawn), rule, count=len(documents), unit="document")


def _in_blocks(documents: Sequence[Document]) -> tuple[list[float], list[int]]:
    size = max(1, math.ceil(len(documents) / _MOST_BLOCKS))
    blocks = [documents[start : start + size] for start in range(0, len(documents), size)]
    differences = [sum(one.candidate_nll - one.baseline_nll for one in block) for block in blocks]
    return differences, [sum(one.tokens for one in block) for block in blocks]


def _of_drawn(
    limit: GateLimit, effect: float, drawn: Sequence[float], rule: GateRule, *, count: int, unit: str
) -> Weighed:
    outside = max(1, math.floor(len(drawn) * rule.risk))
    few = count < fewest_values(rule.risk, limit.quantile)
    not_worse = sum(one <= limit.boundary for one in drawn)
    not_fine = sum(one >= limit.boundary for one in drawn)
    return Weighed(
        count=count,
        effect=effect,
        low=-math.inf if few else drawn[outside - 1],
        high=math.inf if few else drawn[-outside],
        risk_worse=1.0 if few else (not_worse + 1) / (len(drawn) + 1),
        risk_fine=1.0 if few else (not_fine + 1) / (len(drawn) + 1),
        unit=unit,
    )


def _is_exact(pairs: Sequence[tuple[float, float]]) -> bool:
    return len(pairs) >= _FEWEST_EXACT and all(one == pairs[0] for one in pairs)


def _exact(limit: GateLimit, effect: float, count: int, unit: str = "pair") -> Weighed:
    is_worse = effect > limit.log_limit + _ROUNDING
    return Weighed(
        count=count,
        effect=effect,
        low=effect,
        high=effect,
        risk_worse=0.0 if is_worse else 1.0,
        risk_fine=1.0 if is_worse else 0.0,
        unit=unit,
        is_exact=True,
    )


def weigh_exact(limit: GateLimit, baseline: float, candidate: float) -> Weighed:
    """Weigh two numbers that carry no noise against the whole limit."""
    return _exact(limit, log_ratio(limit, baseline, candidate), 1)


def quantile_of(values: Sequence[float], quantile: float) -> float:
    """Return a quantile with linear interpolation between the values next to it; NaN if one is not finite."""
    if not all(map(math.isfinite, values)):
        return math.nan
    ordered = sorted(values)
    place = quantile * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


# The sign test: probabilities of a fair coin, exact but for very many throws.

_EXACT_THROWS = 2000


def _tail(count: int, heads: int) -> float:
    """Return the probability of at least so many heads of `count`."""
    if count > _EXACT_THROWS:
        return 1.0 - normal().cdf((2 * heads - 1 - count) / math.sqrt(count))
    return sum(math.comb(count, k) for k in range(heads, count + 1)) / (1 << count)


def _order_below(count: int, risk: float) -> int:
    """Return how many of `count` ordered values may be left out at one end of an interval; 0: it has no end."""
    if count > _EXACT_THROWS:
        return math.floor((count + 1 + normal().inv_cdf(risk) * math.sqrt(count)) / 2)
    outside, total = 0, 0
    while outside < count and (total + math.comb(count, outside)) / (1 << count) <= risk:
        total += math.comb(count, outside)
        outside += 1
    return outside


def normal() -> NormalDist:
    """Return the standard normal distribution."""
    from statistics import NormalDist

    return NormalDist()


def fewest_values(risk: float, quantile: float | None = None) -> int:
    """Return the fewest values whose interval of a quantile (None: the median) has ends.

    With fewer, all of them may be on one side of the true quantile with more than this risk.
    """
    share = 0.5 if quantile is None else max(quantile, 1.0 - quantile)
    return math.ceil(math.log(risk) / math.log(share))


# The decision over all metrics.


def decide_metrics(
    weighed: Mapping[str, Weighed], limits: Sequence[GateLimit], rule: GateRule
) -> dict[str, MetricVerdict]:
    """Decide every metric that was weighed; a regression must also stand against the number of metrics (Holm)."""
    measured = [limit for limit in limits if limit.metric in weighed]
    ordered = sorted(measured, key=lambda one: weighed[one.metric].risk_worse)
    worse: set[str] = set()
    for place, limit in enumerate(ordered):
        if weighed[limit.metric].risk_worse > rule.risk / (len(ordered) - place):
            break
        worse.add(limit.metric)
    return {
        limit.metric: _verdict(limit, weighed[limit.metric], rule, is_worse=limit.metric in worse) for limit in measured
    }


def _verdict(limit: GateLimit, one: Weighed, rule: GateRule, *, is_worse: bool) -> MetricVerdict:
    change = limit.shown(one.effect)
    counts = f"{counted(one.count, one.unit)}"
    if one.effect == math.inf:
        interval = f"the candidate has a value that is no finite number ({counts})"
    elif one.is_exact:
        interval = f"{change} in {counts}, exactly" if one.count > 1 else f"{change}, one number each"
    else:
        ends = sorted((one.low, one.high), reverse=limit.direction is Direction.LARGER)
        between = f"{limit.shown(ends[0])} to {limit.shown(ends[1])}" if math.isfinite(one.low) else "no interval"
        interval = f"{change} ({between}, {rule.confidence * 100:g} % confidence, {counts})"
    if is_worse:
        return MetricVerdict(limit=limit, outcome="failed", reason=f"{interval}; limit {limit}", weighed=one)
    if one.risk_fine <= rule.risk:
        return MetricVerdict(limit=limit, outcome="passed", reason=f"{interval}; limit {limit}", weighed=one)
    needed = pairs_needed(limit, one, rule)
    return MetricVerdict(
        limit=limit,
        outcome="undecided",
        reason=f"{interval}; limit {limit}: the noise allows no answer; {needed_text(needed, one.unit)}",
        weighed=one,
        pairs_needed=needed,
    )


def pairs_needed(limit: GateLimit, one: Weighed, rule: GateRule) -> int | None:
    """Return about how many pairs would decide if the ratio and its noise stay as measured; None: too many to name.

    An interval shrinks with the root of the number of pairs.
    """
    fewest = fewest_values(rule.risk, limit.quantile)
    if not math.isfinite(one.low) or not math.isfinite(one.high):
        return max(fewest, one.count + 1)
    distance = abs(one.effect - limit.boundary)
    reach = max(one.high - one.effect, one.effect - one.low)
    if distance <= 0.0 or one.count * (reach / distance) ** 2 > MOST_NAMED_PAIRS:
        return None
    return max(one.count + 1, math.ceil(one.count * (reach / distance) ** 2))


def needed_text(needed: int | None, unit: str = "pair") -> str:
    """Return how many pairs it would take, in words."""
    if needed is None:
        return f"the ratio is so close to the limit's boundary that more than {MOST_NAMED_PAIRS:,} {unit}s would decide"
    return f"about {needed:,} {unit}s would decide"


def outcome_of(verdicts: Sequence[MetricVerdict]) -> GateOutcome:
    """Return the outcome of all metrics: a regression of one, else undecided if one is, else passed."""
    outcomes = {one.outcome for one in verdicts}
    if "failed" in outcomes:
        return "failed"
    return "passed" if outcomes == {"passed"} else "undecided"
