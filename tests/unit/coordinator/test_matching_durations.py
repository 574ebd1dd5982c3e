"""When will it end? From how far it says that it is."""

from __future__ import annotations

import pytest

from stoker.scheduler.leases import progress_end_s


@pytest.mark.parametrize(("step", "of", "end_s"), [(10**400, 1, 10.0), (1, 10**400, None), (10**400, 10**401, 100.0)])
def test_whole_numbers_of_any_size_are_progress(step: int, of: int, end_s: float | None):
    assert progress_end_s(0.0, step, of, 10.0) == (None if end_s is None else pytest.approx(end_s))


@pytest.mark.parametrize(("step", "of"), [(1, 100), (0, 10), (5, None), (None, 10), (5, -1)])
def test_progress_that_says_nothing_is_passed_over(step: int | None, of: int | None):
    assert progress_end_s(0.0, step, of, 10.0) is None


def test_more_steps_than_there_should_be_means_that_it_ends_now():
    assert progress_end_s(0.0, 12, 10, 50.0) == 50.0
