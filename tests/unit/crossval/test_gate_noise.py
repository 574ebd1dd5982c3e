"""How often the rule of gates is wrong, with the noise of real machines (`tests/recordings/gate_pairs`).

Both sides of a recorded pair are the same program. A draw is a stretch of consecutive pairs, so that drifts and bursts
stay what they were; a regression is made by multiplying the times of one side. Nothing is random: every tenth pair
begins a stretch, with either side as the candidate.
"""

from __future__ import annotations

import csv
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from stoker.core.text import counted
from stoker.crossval.gate_rule import GateLimit, GateRule, MetricVerdict, decide_metrics, time_limit, weigh_pairs
from stoker.engine.metrics.metric_names import Direction

RECORDINGS = Path(__file__).parents[2] / "recordings" / "gate_pairs"
RULE = GateRule()
LATENCY = time_limit("latency", 0.05, Direction.SMALLER)
THROUGHPUT = time_limit("throughput", 0.05, Direction.LARGER)
STEP, NOISY = 10, 40
BUSY, OTHER = "two_cores_busy", "sixteen_cores"


@cache
def recorded(name: str, column: str) -> tuple[tuple[float, float], ...]:
    with (RECORDINGS / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    return tuple((float(row[f"a_{column}_us"]), float(row[f"b_{column}_us"])) for row in rows)


def drawn(name: str, column: str, limit: GateLimit, factor: float, step: int = STEP) -> list[MetricVerdict]:
    """Decide every draw, with the candidate's values multiplied by a factor. The recording is a ring."""
    pairs, found = recorded(name, column), []
    for start in range(0, len(pairs), step):
        stretch = [pairs[(start + number) % len(pairs)] for number in range(RULE.most_pairs)]
        for sides in (stretch, [(other, one) for one, other in stretch]):
            times = [(1e6 / one, 1e6 / other) for one, other in sides] if limit is THROUGHPUT else sides
            found.append(decided(limit, [(one, other * factor) for one, other in times]))
    return found


def decided(limit: GateLimit, pairs: list[tuple[float, float]]) -> MetricVerdict:
    """Look after each batch, as a gate does."""
    for count in range(RULE.batch, RULE.most_pairs + 1, RULE.batch):
        weighed = {limit.metric: weigh_pairs(limit, pairs[:count], RULE)}
        verdict = decide_metrics(weighed, [limit], RULE)[limit.metric]
        if verdict.outcome != "undecided" or count + RULE.batch > RULE.most_pairs:
            return verdict
    raise AssertionError(RULE)


def share(verdicts: list[MetricVerdict], outcome: str) -> float:
    return Counter(str(one.outcome) for one in verdicts)[outcome] / len(verdicts)


@pytest.mark.parametrize(("limit", "factor"), [(LATENCY, 1.05), (THROUGHPUT, 0.95)])
def test_a_median_latency_and_its_throughput_are_decided_beside_busy_neighbours(
    limit: GateLimit, factor: float
) -> None:
    equal, worse = (drawn(BUSY, "median", limit, one) for one in (1.0, factor))
    assert share(equal, "failed") <= 0.02
    assert share(worse, "failed") >= 0.95
    assert share(worse, "passed") == 0.0


@pytest.mark.parametrize("name", [BUSY, OTHER])
@pytest.mark.parametrize("column", ["wall", "median"])
def test_noise_that_is_too_strong_makes_a_gate_undecided_not_wrong(name: str, column: str) -> None:
    equal, worse = (drawn(name, column, LATENCY, one, NOISY) for one in (1.0, 1.05))
    assert share(equal, "failed") <= 0.02
    assert share(worse, "passed") <= 0.02
    for one in equal + worse:
        if one.outcome == "undecided" and one.pairs_needed is not None:
            assert one.pairs_needed > RULE.most_pairs
            assert (
                counted(one.pairs_needed, "pair").replace(str(one.pairs_needed), f"{one.pairs_needed:,}") in one.reason
            )


@pytest.mark.parametrize("name", [BUSY, OTHER])
def test_a_regression_of_half_is_found_in_any_noise(name: str) -> None:
    limit = time_limit("latency", 0.5, Direction.SMALLER)
    assert share(drawn(name, "wall", limit, 1.0, NOISY), "passed") >= 0.98
    assert share(drawn(name, "wall", limit, 1.5, NOISY), "failed") >= 0.95
