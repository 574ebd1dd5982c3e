"""Speeds by device names, and the cost rule. Scores of places are in `test_scheduler_fixed_points`."""

from __future__ import annotations

import pytest

from stoker.scheduler.score import CPU_SPEED, CostRule, speed_of


@pytest.mark.parametrize(
    ("name", "speed"),
    [
        ("rtx-4090", 1.0),
        ("NVIDIA GeForce RTX 4090", 1.0),
        ("RTX4090", 1.0),
        ("RTX 4080", 0.72),
        ("NVIDIA GeForce RTX 3090", 0.55),
        ("rtx_3080", 0.45),
        ("NVIDIA A100-SXM4-80GB", 1.2),
        ("NVIDIA H100 80GB HBM3", 2.0),
        ("Jetson AGX Orin", 0.06),
        ("jetson-orin", 0.06),
        ("NVIDIA Jetson Orin Nano", 0.06),
        ("Jetson Nano", 0.02),
        ("something new", 0.5),
        ("", 0.5),
        ("NVIDIA H200", 2.0),
        ("NVIDIA GeForce RTX 3080 Ti", 0.51),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 0.4),
        ("NVIDIA RTX 6000 Ada Generation", 1.1),
        ("NVIDIA L40S", 1.11),
        ("AMD Instinct MI300X", 2.64),
    ],
)
def test_a_name_says_how_fast_a_device_is(name: str, speed: float) -> None:
    assert speed_of(name) == speed


def test_a_slice_of_a_device_is_that_part_of_it() -> None:
    assert speed_of("NVIDIA A100-SXM4-40GB MIG 2g.10gb") == pytest.approx(1.2 * 2 / 7)


def test_a_cpu_is_a_hundredth() -> None:
    assert CPU_SPEED == 0.01


def test_system_b_s_figures_decide_as_they_did() -> None:
    rule = CostRule()
    assert rule.advise(1, 100).is_worth is False
    assert rule.advise(1, 1_000_000).is_worth is True


def test_exactly_five_times_is_not_more_than_five_times() -> None:
    rule = CostRule(us_per_mb=64.0, us_per_mflop=1.0)
    assert rule.advise(1, 320).is_worth is False
    assert rule.advise(1, 321).is_worth is True


def test_where_the_cpu_is_known_it_is_compared_with() -> None:
    rule = CostRule(cpu_us_per_mflop=1.0)
    assert rule.advise(1, 41).is_worth is True
    assert rule.advise(1, 40).is_worth is False
    assert rule.advise(1, 41).rule == "device beats cpu"
    assert "41 µs on the CPU" in str(rule.advise(1, 41))


def test_of_work_that_nobody_declared_it_says_nothing() -> None:
    for advice in (CostRule().advise(0, 100), CostRule().advise(1, 0)):
        assert advice.is_worth is None
        assert not advice.is_against
        assert "no opinion" in str(advice)
