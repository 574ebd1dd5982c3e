"""Which numbers of a program's output are measures, and which limit each gets."""

from __future__ import annotations

import math

import pytest

from stoker.core.errors import Usage
from stoker.crossval.gate_rule import GateLimit
from stoker.crossval.measures import (
    LimitRequest,
    in_one_number,
    limits_for,
    parse_limit,
    read_measures,
    sort_of,
)
from stoker.engine.metrics.metric_names import Direction


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("latency_ms=3.5", {"latency_ms": 3.5}),
        ("throughput: 12.5 tokens/s", {"throughput": 12.5}),
        ("tokens_per_second=812.4, latency_ms=3.1", {"tokens_per_second": 812.4, "latency_ms": 3.1}),
        ('{"latency_ms": [3.0, 4.0], "other": 1, "perplexity": 9}', {"latency_ms": (3.0, 4.0), "perplexity": 9.0}),
        ("perplexity = 1.2e1", {"perplexity": 12.0}),
        ("perplexity=nan", {"perplexity": pytest.approx(float("nan"), nan_ok=True)}),
        ("the latency was fine in 2026", {}),
        ("--latency=fast", {}),
        ("speed=3", {}),
        (f'{{"latency_ms": {"9" * 400}}}', {"latency_ms": math.inf}),
        (f'{{"latency_ms": [1, -{"9" * 400}]}}', {"latency_ms": (1.0, -math.inf)}),
        (f'{{"latency_ms": {"9" * 5000}}}', {"latency_ms": math.inf}),
        ('{"latency_ms": []}', {}),
        ('{"latency_ms": "3"}', {}),
        ('{"latency_ms": 3', {"latency_ms": 3.0}),
        ("time_per_token_ms=1 x latency=2", {"latency": 2.0}),
    ],
)
def test_a_line_gives_the_measures_whose_names_mean_one(line: str, found: dict) -> None:
    assert read_measures(line) == found


def test_the_last_value_of_a_name_counts_and_named_measures_are_read_too() -> None:
    assert read_measures("latency=1\nlatency=2\n") == {"latency": 2.0}
    assert read_measures("accuracy=0.9 latency=1", ["accuracy"]) == {"accuracy": 0.9, "latency": 1.0}


def test_a_list_becomes_its_median_and_its_95th_percentile() -> None:
    values = tuple(float(value) for value in range(1, 102))
    assert in_one_number({"latency_ms": values, "throughput": 5.0}) == {
        "latency_ms": 51.0,
        "latency_ms_p95": 96.0,
        "throughput": 5.0,
    }


@pytest.mark.parametrize(
    ("name", "sort"),
    [
        ("seconds", "latency"),
        ("latency_p95_ms", "p95"),
        ("val_ppl", "perplexity"),
        ("samples_per_second", "throughput"),
        ("time_per_token_ms", ""),
        ("loss", ""),
    ],
)
def test_a_name_says_what_is_measured(name: str, sort: str) -> None:
    assert sort_of(name) == sort


def shown(limits: list[GateLimit]) -> list[tuple[str, str, float]]:
    return [(one.metric, str(one), one.share) for one in limits]


def test_the_defaults_are_two_percent_of_perplexity_and_five_of_times() -> None:
    names = ["seconds", "perplexity", "latency_ms", "latency_ms_p95", "throughput", "loss"]
    assert shown(limits_for(names, [])) == [
        ("perplexity", "+2 %", 1.0),
        ("latency_ms", "+5 %", 0.5),
        ("throughput", "−5 %", 0.5),
    ]
    assert shown(limits_for(["seconds", "loss"], [])) == [("seconds", "+5 %", 0.5)]


def test_a_limit_is_of_a_sort_or_of_a_name_and_can_be_off() -> None:
    names = ["seconds", "latency_ms", "latency_ms_p95", "throughput", "accuracy"]
    requests = [parse_limit(one) for one in ("latency=3%", "throughput=off", "p95=20%", "accuracy=1%")]
    assert shown(limits_for(names, requests)) == [
        ("latency_ms", "+3 %", 0.5),
        ("latency_ms_p95", "+20 %", 0.5),
        ("accuracy", "−1 %", 1.0),
    ]
    assert shown(limits_for(names, [parse_limit("seconds=10%"), parse_limit("latency=off")]))[0][0] == "seconds"


def test_p95_of_a_program_that_prints_none_is_over_its_runs() -> None:
    limit = limits_for(["seconds"], [parse_limit("p95=20%")])[1]
    assert (limit.metric, limit.quantile) == ("p95 of seconds", 0.95)


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([LimitRequest(name="accuracy", change=0.05)], "no such metric was measured"),
        ([parse_limit("latncy=off")], "--limit latncy: no such metric was measured"),
        ([LimitRequest(name="mystery", change=0.05)], "does not say whether more is better"),
    ],
)
def test_a_limit_that_can_not_be_held_is_refused(requests: list[LimitRequest], message: str) -> None:
    with pytest.raises(Usage, match=message):
        limits_for(["seconds", "mystery"], requests)


def test_a_sign_says_which_way_is_worse() -> None:
    assert limits_for(["mystery"], [parse_limit("mystery=-5%")])[0].direction is Direction.LARGER
    assert limits_for(["mystery"], [parse_limit("mystery=+5%")])[0].direction is Direction.SMALLER


@pytest.mark.parametrize(
    "text", ["latency", "=5%", "latency=fast", "latency=0%", "latency=200%", "latency=-5%", "latency=5"]
)
def test_a_limit_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as|between|better") as raised:
        parse_limit(text)
    assert ("5% is written with its sign" in str(raised.value)) == (text == "latency=5")
