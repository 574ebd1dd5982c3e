"""What the time of a training went to."""

from __future__ import annotations

import pytest

from stoker.cookbooks.language.shared.time_shares import TimeShares, shares_text
from stoker.core.clock import FakeClock


def test_a_member_is_told_the_rate_while_updating_and_what_the_rest_went_to():
    clock = FakeClock()
    times = TimeShares(clock)
    with times.spent_on("evaluation"):
        clock.advance(100)
    begun = times.so_far()
    with times.spent_on("updates"):
        clock.advance(6)
    with times.spent_on("updates", lambda: "compiling"):
        clock.advance(2)
    with times.spent_on("files"):
        clock.advance(1)
    assert shares_text(times.since(begun), tokens=6000, took_s=10) == (
        "6,000 tokens in 10s: 600 tokens/s, 1,000 during updates "
        "(updates 60%, compiling and recording steps 20%, checkpoints and results 10%, other 10%)"
    )


def test_time_counts_also_if_the_work_fails():
    clock = FakeClock()
    times = TimeShares(clock)

    def fail() -> None:
        with times.spent_on("files"):
            clock.advance(3)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert times.so_far()["files"] == 3


def test_nothing_trained_is_no_rate():
    assert shares_text(TimeShares(FakeClock()).so_far(), tokens=0, took_s=0).startswith(
        "0 tokens in 0.0s: 0 tokens/s ("
    )
