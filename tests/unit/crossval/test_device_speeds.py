"""The speed of a device by a benchmark that ran on it and on a device of known speed."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.core.errors import Usage
from stoker.crossval.bench import BenchResult, BenchRun
from stoker.crossval.device_speeds import measured_speed

SUBJECT = {"kind": "model", "digest": {"sha256": "ab"}, "device": "cuda", "prompt_tokens": 128}


def result(device: str = "NVIDIA GeForce RTX 4090", subject: dict[str, Any] = SUBJECT, **values: float) -> BenchResult:
    runs = tuple(BenchRun(at_s=0.0, measures=values) for _ in range(3))
    devices = [{"name": name} for name in device.split("+") if name]
    return BenchResult(subject=subject, machine={"devices": devices}, versions={}, runs=runs)


BASE = result(prompt_tokens_per_second=1000.0, tokens_per_second=50.0)


def test_the_speed_is_that_of_the_known_device_times_the_ratio_of_what_training_is_like() -> None:
    found = measured_speed(result("Card X", prompt_tokens_per_second=700.0, tokens_per_second=90.0), BASE, shown="b")
    assert (found.device, found.measure, found.base_speed) == ("Card X", "prompt_tokens_per_second", 1.0)
    assert found.speed == pytest.approx(0.7)
    half = result("NVIDIA H100", prompt_tokens_per_second=1000.0)
    assert measured_speed(result("X", prompt_tokens_per_second=500.0), half, shown="b").speed == pytest.approx(1.0)


def test_a_program_without_a_throughput_is_compared_by_its_time() -> None:
    program = {"kind": "program", "argv": ["train"]}
    found = measured_speed(result("X", program, seconds=4.0), result(subject=program, seconds=2.0), shown="b")
    assert found.speed == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("ours", "base", "message"),
    [
        (result("", prompt_tokens_per_second=1.0), BASE, "0 sorts of devices"),
        (result("A+B", prompt_tokens_per_second=1.0), BASE, "2 sorts of devices"),
        (result("A", {**SUBJECT, "device": "cpu"}, prompt_tokens_per_second=1.0), BASE, "on the CPU"),
        (result("A", prompt_tokens_per_second=1.0), result("B", prompt_tokens_per_second=1.0), "of B is not known"),
        (result("A", {**SUBJECT, "digest": {}}, prompt_tokens_per_second=1.0), BASE, "its digest differs"),
        (result("A", perplexity=1.0), BASE, "no throughput or time in common"),
    ],
)
def test_what_can_not_be_compared_is_named(ours: BenchResult, base: BenchResult, message: str) -> None:
    with pytest.raises(Usage, match=message):
        measured_speed(ours, base, shown="base.json")
