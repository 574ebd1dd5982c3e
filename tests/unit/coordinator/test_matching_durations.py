"""An estimate is from what was measured, says from what, and is none where nothing was."""

from __future__ import annotations

import pytest

from stoker.coordinator.matching.durations import Durations, Run, Running


def runs(*seconds: float, like: str = "gbt", class_id: int = 1, device_type: str = "") -> list[Run]:
    return [Run(like=like, seconds=one, class_id=class_id, device_type=device_type) for one in seconds]


def test_nothing_is_known_of_what_never_ran():
    durations = Durations(runs(10.0))
    assert durations.whole("knn") is None
    assert durations.ends_s(Running(like="knn", started_s=0.0), 5.0) is None


def test_the_nearest_likeness_with_enough_runs_counts():
    durations = Durations(
        runs(10, 20, 30, class_id=1, device_type="rtx-4090") + runs(100, 200, 300, class_id=1) + runs(1000, class_id=2)
    )
    whole = durations.whole("gbt", 1, "rtx-4090")
    assert whole is not None
    assert (whole.seconds, whole.based_on) == (20, "median of 3 runs of gbt that ask for the same on rtx-4090")
    other_card = durations.whole("gbt", 1, "a100")
    assert other_card is not None
    assert (other_card.seconds, other_card.based_on) == (65, "median of 6 runs of gbt that ask for the same")
    other_class = durations.whole("gbt", 9, "a100")
    assert other_class is not None
    assert other_class.based_on == "median of 7 runs of gbt"


def test_few_runs_are_better_than_none_and_the_nearest_of_them_counts():
    durations = Durations(runs(10, class_id=1) + runs(50, class_id=2))
    whole = durations.whole("gbt", 1)
    assert whole is not None
    assert (whole.seconds, whole.based_on) == (10, "median of 1 run of gbt that ask for the same on the CPU")


def test_time_that_has_passed_is_taken_off():
    end = Durations(runs(60, 60, 60)).ends_s(Running(like="gbt", class_id=1, started_s=100.0), 130.0)
    assert end is not None
    assert end.seconds == 160.0


def test_who_runs_longer_than_most_is_measured_by_those_who_took_longer_still():
    durations = Durations(runs(10, 10, 10, 50))
    end = durations.ends_s(Running(like="gbt", class_id=1, started_s=0.0), 20.0)
    assert end is not None
    assert end.seconds == 50.0
    assert durations.ends_s(Running(like="gbt", class_id=1, started_s=0.0), 60.0) is None


def test_a_jobs_own_progress_counts_first():
    running = Running(like="gbt", class_id=1, started_s=0.0, step=25, of=100)
    end = Durations(runs(1000, 1000, 1000)).ends_s(running, 50.0)
    assert end is not None
    assert (end.seconds, end.based_on) == (200.0, "its own progress, 25 of 100")


@pytest.mark.parametrize(("step", "of"), [(1, 1000), (0, 10), (5, None), (5, 0), (5, -3), (-5, 10)], ids=str)
def test_progress_that_says_nothing_is_passed_over(step: int, of: int | None):
    end = Durations(runs(60, 60, 60)).ends_s(Running(like="gbt", class_id=1, started_s=0.0, step=step, of=of), 10.0)
    assert end is not None
    assert end.seconds == 60.0


def test_more_steps_than_there_should_be_means_that_it_ends_now():
    end = Durations().ends_s(Running(like="gbt", started_s=0.0, step=12, of=10), 50.0)
    assert end is not None
    assert end.seconds == 50.0


def test_what_has_not_started_ends_nobody_knows_when():
    assert Durations(runs(60)).ends_s(Running(like="gbt"), 0.0) is None
