from __future__ import annotations

import pytest

from stoker.scheduler.patience import CARE, SLACK, Prospect, worth_starting

HOUR_S = 3600.0


def test_a_long_job_waits_for_a_faster_device_and_says_until_when() -> None:
    patience = worth_starting(Prospect(here_s=2.5 * HOUR_S, fastest_s=0.5 * HOUR_S, wait_s=0.5 * HOUR_S))
    assert not patience.is_start
    assert patience.reason(13 * HOUR_S + 40 * 60) == "waits for a faster device: here until 16:10, there until 14:40"


def test_it_starts_here_while_the_line_there_is_long() -> None:
    patience = worth_starting(Prospect(here_s=2.5 * HOUR_S, fastest_s=0.5 * HOUR_S, wait_s=10 * HOUR_S))
    assert patience.is_start
    assert patience.reason(0.0) == ""


def test_what_is_about_as_fast_as_the_fastest_never_waits() -> None:
    assert worth_starting(Prospect(here_s=SLACK * 100, fastest_s=100, wait_s=0)).is_start
    assert not worth_starting(Prospect(here_s=SLACK * 100 + 1, fastest_s=100, wait_s=0)).is_start


def test_nobody_waits_where_nothing_runs() -> None:
    assert worth_starting(Prospect(here_s=1e9, fastest_s=1, wait_s=0, is_anything_running=False)).is_start


@pytest.mark.parametrize("wait_s", [0.0, 10.0, 1000.0])
def test_the_border_is_exact(wait_s: float) -> None:
    here_s = (wait_s + 100) * CARE
    border = Prospect(here_s=max(here_s, SLACK * 100 + 1), fastest_s=100, wait_s=wait_s)
    assert worth_starting(border).is_start is (here_s >= SLACK * 100 + 1)
