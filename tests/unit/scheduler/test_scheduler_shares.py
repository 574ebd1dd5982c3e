"""Shares: usage halves in a day, weights divide it, limits bound it, and clocks may jump."""

from __future__ import annotations

import pytest

from stoker.core.machine import UserPolicy
from stoker.scheduler.leases import HALF_LIFE_S, Shares

DAY_S = 24 * 3600.0
YEAR_S = 365 * DAY_S


def test_usage_halves_in_a_half_life() -> None:
    shares = Shares()
    shares.charge("ada", 100.0, 0.0)
    assert shares.views(["ada"], 0.0)["ada"].usage_s == pytest.approx(100.0)
    assert shares.views(["ada"], HALF_LIFE_S)["ada"].usage_s == pytest.approx(50.0)
    assert shares.views(["ada"], 3 * HALF_LIFE_S)["ada"].usage_s == pytest.approx(12.5)


def test_a_running_job_is_charged_for_its_part_of_the_fleet() -> None:
    shares = Shares()
    shares.start("ada", 0.5, 1, 0.0)
    shares.end("ada", 0.5, 1, 1000.0)
    assert shares.views(["ada"], 1000.0)["ada"].usage_s == pytest.approx(500.0, rel=0.01)
    assert shares.views(["ada"], 1000.0)["ada"].jobs == 0


def test_the_user_with_the_least_usage_goes_first_and_names_decide_between_equals() -> None:
    shares = Shares()
    shares.charge("ada", 10.0, 0.0)
    shares.charge("bob", 5.0, 0.0)
    assert shares.order(["eve", "ada", "bob", "dan"], 0.0) == ["dan", "eve", "bob", "ada"]


def test_a_user_with_twice_the_weight_may_use_twice_as_much() -> None:
    shares = Shares({"ada": UserPolicy(weight=2.0)})
    shares.charge("ada", 10.0, 0.0)
    shares.charge("bob", 6.0, 0.0)
    assert shares.order(["ada", "bob"], 0.0) == ["ada", "bob"]
    views = shares.views(["ada", "bob"], 0.0)
    assert views["ada"].fair_share == pytest.approx(2 / 3)
    assert views["ada"].share == pytest.approx(10 / 16)


def test_recent_usage_counts_more_than_old_usage() -> None:
    shares = Shares()
    shares.charge("ada", 100.0, 0.0)
    shares.charge("bob", 30.0, 2 * DAY_S)
    assert shares.order(["ada", "bob"], 2 * DAY_S) == ["ada", "bob"]


def test_limits_leave_room_for_jobs_and_devices() -> None:
    shares = Shares({"ada": UserPolicy(most_jobs=2, most_devices=3), "*": UserPolicy(most_jobs=1)})
    assert shares.has_limits
    assert shares.room("ada") == (True, 3)
    shares.start("ada", 0.1, 2, 0.0)
    assert shares.room("ada") == (True, 1)
    shares.start("ada", 0.1, 2, 0.0)
    assert shares.room("ada") == (False, 0)
    shares.end("ada", 0.1, 2, 1.0)
    assert shares.room("ada") == (True, 1)
    assert shares.room("bob") == (True, None)
    shares.start("bob", 0.1, 1, 0.0)
    assert shares.room("bob") == (False, None)
    shares.set_policies({})
    assert not shares.has_limits
    assert shares.room("bob") == (True, None)


@pytest.mark.parametrize("first_s", [0.0, 1.8e9])
def test_usage_stays_comparable_after_a_hundred_days(first_s: float) -> None:
    shares = Shares()
    shares.charge("old", 1e6, first_s)
    late_s = first_s + 100 * DAY_S
    shares.charge("ada", 20.0, late_s)
    shares.charge("bob", 10.0, late_s)
    assert shares.order(["ada", "bob", "old"], late_s) == ["old", "bob", "ada"]
    views = shares.views(["ada", "bob", "old"], late_s)
    assert views["ada"].usage_s == pytest.approx(20.0)
    assert views["old"].usage_s == pytest.approx(1e6 / 2.0**100, abs=1e-9)


def test_a_job_that_runs_for_a_hundred_days_does_not_bring_back_older_usage() -> None:
    shares = Shares()
    shares.charge("ada", 1000.0, 0.0)
    shares.start("ada", 1.0, 1, 0.0)
    late_s = 100 * DAY_S
    shares.end("ada", 1.0, 1, late_s)
    steady_s = HALF_LIFE_S / 0.6931471805599453
    assert shares.views(["ada"], late_s)["ada"].usage_s == pytest.approx(steady_s, rel=0.001)


def test_the_order_is_the_same_whoever_is_looked_at_first_after_a_long_time() -> None:
    for names in (["ada", "bob"], ["bob", "ada"]):
        shares = Shares()
        shares.charge("ada", 10.0, 0.0)
        shares.charge("bob", 20.0, 0.0)
        assert shares.order(names, 40 * DAY_S) == ["ada", "bob"]


@pytest.mark.parametrize("jump_s", [10 * YEAR_S, -10 * YEAR_S, 1000 * YEAR_S, -1000 * YEAR_S])
def test_clocks_may_jump_by_years(jump_s: float) -> None:
    shares = Shares()
    shares.start("ada", 0.5, 1, 1.8e9)
    shares.charge("bob", 10.0, 1.8e9)
    for at_s in (1.8e9 + jump_s, 1.8e9 + 60.0):
        assert sorted(shares.order(["ada", "bob"], at_s)) == ["ada", "bob"]
        assert shares.views(["ada", "bob"], at_s)["ada"].jobs == 1
    shares.end("ada", 0.5, 1, 1.8e9 + 120.0)
    assert shares.views(["ada"], 1.8e9 + 120.0)["ada"].jobs == 0
