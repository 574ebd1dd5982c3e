"""The cost rule: strictly more than five times the transfer, or faster than the CPU where that is known."""

from __future__ import annotations

from stoker.scheduler.score import CostRule


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
