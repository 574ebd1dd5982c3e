"""The rule of gates: what pairs, documents and stored numbers decide."""

from __future__ import annotations

import math
import random

import pytest

from stoker.core.errors import BadInput
from stoker.core.frozen import changed
from stoker.crossval.gate_rule import (
    MOST_NAMED_PAIRS,
    Document,
    GateLimit,
    GateRule,
    MetricVerdict,
    decide_metrics,
    fewest_values,
    outcome_of,
    quantile_of,
    time_limit,
    weigh_documents,
    weigh_exact,
    weigh_pairs,
    weigh_quantile,
)
from stoker.crossval.stored_sides import stored_verdict
from stoker.engine.metrics.metric_names import Direction

RULE = GateRule()
LATENCY = time_limit("latency", 0.05, Direction.SMALLER)
THROUGHPUT = time_limit("throughput", 0.05, Direction.LARGER)
PERPLEXITY = GateLimit(metric="perplexity", change=0.02)


def noisy(count: int, factor: float, *, sd: float = 0.02, seed: int = 0) -> list[tuple[float, float]]:
    """Pairs whose candidate is slower by a factor, with noise and a drift of both."""
    draw = random.Random(seed)
    pairs = []
    for number in range(count):
        drift = 100.0 * (1.0 + 0.5 * math.sin(number / 9.0))
        pairs.append((drift * math.exp(draw.gauss(0, sd)), drift * factor * math.exp(draw.gauss(0, sd))))
    return pairs


def decided(limit: GateLimit, pairs: list[tuple[float, float]], rule: GateRule = RULE) -> MetricVerdict:
    return decide_metrics({limit.metric: weigh_pairs(limit, pairs, rule)}, [limit], rule)[limit.metric]


def test_equal_code_passes_a_slower_one_fails_and_one_between_is_undecided() -> None:
    assert decided(LATENCY, noisy(100, 1.0)).outcome == "passed"
    assert decided(LATENCY, noisy(100, 1.05)).outcome == "failed"
    assert decided(LATENCY, noisy(100, math.exp(LATENCY.boundary))).outcome == "undecided"


def test_a_throughput_fails_when_it_falls_and_passes_when_it_rises() -> None:
    assert decided(THROUGHPUT, noisy(100, 0.95)).outcome == "failed"
    assert decided(THROUGHPUT, noisy(100, 1.3)).outcome == "passed"
    assert "−" in decided(THROUGHPUT, noisy(100, 0.95)).reason


def test_a_few_pairs_decide_nothing_however_clear_they_look() -> None:
    few = decided(LATENCY, noisy(6, 2.0))
    assert few.outcome == "undecided"
    assert few.pairs_needed == 7
    assert decided(LATENCY, noisy(7, 2.0)).outcome == "failed"


def test_values_that_repeat_exactly_are_held_against_the_whole_limit() -> None:
    assert decided(PERPLEXITY, [(10.0, 10.2)] * 3).outcome == "passed"
    assert decided(PERPLEXITY, [(10.0, 10.21)] * 3).outcome == "failed"
    assert decided(LATENCY, [(10.0, 10.4)] * 3).outcome == "passed"
    assert decided(PERPLEXITY, [(10.0, 10.21)] * 2).outcome == "undecided"


def test_an_undecided_metric_says_how_many_pairs_it_would_take() -> None:
    one = decided(LATENCY, noisy(50, 1.02, sd=0.2))
    assert one.outcome == "undecided"
    assert one.pairs_needed is not None
    assert 50 < one.pairs_needed <= MOST_NAMED_PAIRS
    assert f"about {one.pairs_needed:,} pairs would decide" in one.reason
    assert decided(LATENCY, noisy(one.pairs_needed * 2, 1.0, sd=0.2)).outcome == "passed"


def test_several_metrics_share_the_risk_of_a_false_alarm() -> None:
    # The chance of 19 or more heads of 25 is 0.7 %: enough for one metric, not for the first of five.
    pairs = [(1.0, 1.1 + number / 1000) for number in range(19)] + [(1.0, 0.9 - number / 1000) for number in range(6)]
    alone = decide_metrics({"latency": weigh_pairs(LATENCY, pairs, RULE)}, [LATENCY], RULE)
    assert alone["latency"].outcome == "failed"
    others = [time_limit(f"latency_{number}", 0.05, Direction.SMALLER) for number in range(4)]
    limits = [LATENCY, *others]
    weighed = {one.metric: weigh_pairs(one, noisy(25, 0.9) if one in others else pairs, RULE) for one in limits}
    together = decide_metrics(weighed, limits, RULE)
    assert together["latency"].outcome == "undecided"
    assert all(together[one.metric].outcome == "passed" for one in others)


def test_one_regression_decides_all_and_one_open_metric_keeps_the_rest_open() -> None:
    passed, failed = decided(LATENCY, noisy(100, 1.0)), decided(LATENCY, noisy(100, 1.1))
    undecided = decided(LATENCY, noisy(6, 1.0))
    assert outcome_of([passed, failed, undecided]) == "failed"
    assert outcome_of([passed, undecided]) == "undecided"
    assert outcome_of([passed, passed]) == "passed"
    assert outcome_of([]) == "undecided"


def test_a_candidate_that_is_no_number_is_a_regression_and_such_a_baseline_is_refused() -> None:
    assert decided(PERPLEXITY, [(10.0, math.nan)] * 7).outcome == "failed"
    assert decided(PERPLEXITY, [(10.0, math.inf)] * 3).outcome == "failed"
    with pytest.raises(BadInput, match="of the baseline is nan"):
        weigh_pairs(PERPLEXITY, [(math.nan, 1.0)], RULE)
    with pytest.raises(BadInput, match="has no ratio"):
        weigh_pairs(PERPLEXITY, [(-1.0, 1.0)], RULE)


TAIL = time_limit("p95 of latency", 0.2, Direction.SMALLER, quantile=0.95)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("limit", [LATENCY, THROUGHPUT, PERPLEXITY, TAIL])
def test_one_value_that_is_no_number_in_many_pairs_is_a_regression(limit: GateLimit, odd: float) -> None:
    pairs = [(10.0, 10.0)] * 19 + [(10.0, odd)]
    weigh = weigh_pairs if limit.quantile is None else weigh_quantile
    verdict = decide_metrics({limit.metric: weigh(limit, pairs, RULE)}, [limit], RULE)[limit.metric]
    assert verdict.outcome == "failed"
    assert "no finite number" in verdict.reason
    for bad in (pairs[::-1], pairs):
        with pytest.raises(BadInput, match="of the baseline is"):
            weigh(limit, [(candidate, baseline) for baseline, candidate in bad], RULE)


def test_documents_without_a_finite_loss_fail_a_candidate_and_refuse_a_baseline() -> None:
    fine, odd = documents(20, 0.0), changed(documents(1, 0.0)[0], candidate_nll=math.nan)
    verdict = decide_metrics({"perplexity": weigh_documents(PERPLEXITY, [*fine, odd], RULE)}, [PERPLEXITY], RULE)
    assert verdict["perplexity"].outcome == "failed"
    with pytest.raises(BadInput, match="of the baseline is not finite"):
        weigh_documents(PERPLEXITY, [*fine, changed(odd, baseline_nll=math.nan)], RULE)


def test_too_few_pairs_to_see_a_tail_decide_nothing_about_it() -> None:
    # The chance that none of 10 runs is of the slowest twentieth is 60 %; that none of 90 is, 1 %.
    for factor in (0.3, 3.0):
        few = decide_metrics({TAIL.metric: weigh_quantile(TAIL, noisy(89, factor), RULE)}, [TAIL], RULE)[TAIL.metric]
        assert (few.outcome, few.pairs_needed) == ("undecided", 90)
        assert "about 90 pairs would decide" in few.reason
    enough = decide_metrics({TAIL.metric: weigh_quantile(TAIL, noisy(90, 3.0), RULE)}, [TAIL], RULE)[TAIL.metric]
    assert enough.outcome == "failed"
    assert [fewest_values(RULE.risk, one) for one in (None, 0.5, 0.95, 0.05)] == [7, 7, 90, 90]
    stored = stored_verdict(TAIL, [1.0] * 20, [3.0] * 20, RULE)
    assert (stored.outcome, stored.pairs_needed) == ("undecided", 90)


def test_a_quantile_is_compared_over_all_runs() -> None:
    tail = TAIL
    slow = [(one, other * (4.0 if number % 8 == 0 else 1.0)) for number, (one, other) in enumerate(noisy(200, 1.0))]
    fine = weigh_quantile(tail, noisy(200, 1.0), RULE)
    worse = weigh_quantile(tail, slow, RULE)
    assert decide_metrics({tail.metric: fine}, [tail], RULE)[tail.metric].outcome == "passed"
    assert decide_metrics({tail.metric: worse}, [tail], RULE)[tail.metric].outcome == "failed"
    assert weigh_quantile(tail, slow, RULE) == worse, "the same pairs always give the same answer"


def documents(count: int, more: float, *, sd: float = 0.01) -> list[Document]:
    draw = random.Random(1)
    found = []
    for number in range(count):
        tokens = draw.randint(50, 400)
        nll = tokens * draw.uniform(1.5, 3.5)
        found.append(
            Document(
                name=str(number),
                tokens=tokens,
                baseline_nll=nll,
                candidate_nll=nll + tokens * (more + draw.gauss(0, sd)),
            )
        )
    return found


@pytest.mark.parametrize(
    ("more", "outcome"), [(0.0, "passed"), (0.015, "passed"), (0.025, "failed"), (math.log(1.02), "undecided")]
)
def test_perplexities_are_compared_document_by_document(more: float, outcome: str) -> None:
    one = weigh_documents(PERPLEXITY, documents(200, more), RULE)
    assert one.low <= one.effect <= one.high
    verdict = decide_metrics({"perplexity": one}, [PERPLEXITY], RULE)["perplexity"]
    assert verdict.outcome == outcome, verdict.reason


def test_equal_perplexities_have_no_noise_and_many_documents_take_no_longer() -> None:
    assert weigh_documents(PERPLEXITY, documents(3, 0.0, sd=0.0), RULE).is_exact
    many = weigh_documents(PERPLEXITY, documents(20_000, 0.03), RULE)
    assert many.count == 20_000
    assert many.low > PERPLEXITY.boundary
    assert weigh_documents(PERPLEXITY, documents(4, 0.5), RULE).risk_worse == 1.0


def test_stored_times_are_decided_only_beyond_any_drift() -> None:
    base = [100.0, 101.0, 99.0, 100.5, 100.2]
    near = stored_verdict(LATENCY, base, [one * 1.2 for one in base], RULE)
    assert near.outcome == "undecided"
    assert near.pairs_needed is not None
    assert "run interleaved" in near.reason
    assert stored_verdict(LATENCY, base, [one * 3 for one in base], RULE).outcome == "failed"
    assert stored_verdict(LATENCY, base, [one / 3 for one in base], RULE).outcome == "passed"
    elsewhere = stored_verdict(LATENCY, base, [one * 3 for one in base], RULE, trouble="measured on two machines")
    assert elsewhere.outcome == "undecided"
    assert "measured on two machines" in elsewhere.reason


def test_numbers_without_noise_are_held_against_the_limit() -> None:
    assert decide_metrics({"perplexity": weigh_exact(PERPLEXITY, 10.0, 10.2)}, [PERPLEXITY], RULE)[
        "perplexity"
    ].reason.startswith("+2.00 %, one number each")
    assert weigh_exact(PERPLEXITY, 10.0, 10.3).risk_worse == 0.0
    assert GateLimit(metric="accuracy", change=0.01, direction=Direction.LARGER).shown(0.0) == "+0.00 %"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GateLimit(metric="latency", change=0.0), "not between 0 and 100 %"),
        (lambda: GateRule(confidence=1.0), "confidence 1"),
        (lambda: GateRule(batch=0), "at least one pair"),
    ],
)
def test_limits_that_mean_nothing_are_refused(make, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make()


def test_a_quantile_lies_between_its_neighbours() -> None:
    assert quantile_of([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile_of([1.0, 2.0], 0.95) == pytest.approx(1.95)
    assert quantile_of([7.0], 0.99) == 7.0
    for values in ([math.nan, 1.0, 2.0], [1.0, math.nan, 2.0], [1.0, 2.0, math.inf]):
        assert math.isnan(quantile_of(values, 0.5))
