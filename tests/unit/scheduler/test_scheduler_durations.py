"""Durations: what a class took counts before what was stated, and that before what its like took."""

from __future__ import annotations

from stoker.scheduler.job_types import ENOUGH, Durations


def test_nothing_is_known_of_a_class_without_estimate_or_runs() -> None:
    durations = Durations()
    durations.put_class(1, "lora", None)
    assert durations.expected_s(1) is None
    assert durations.based_on(1) == ""
    assert durations.expected_s(2) is None


def test_a_stated_estimate_counts_until_enough_jobs_of_the_class_have_run() -> None:
    durations = Durations()
    durations.put_class(1, "lora", 100.0)
    assert durations.based_on(1) == "stated by its submitter"
    for _ in range(ENOUGH - 1):
        assert not durations.learn(1, 900.0)
    assert durations.expected_s(1) == 100.0
    assert durations.learn(1, 900.0)
    assert durations.changed() == [1]
    assert durations.changed() == []
    assert durations.expected_s(1) == 900.0
    assert durations.based_on(1) == "median of 3 runs"


def test_what_is_alike_is_expected_to_take_as_long() -> None:
    durations = Durations()
    durations.put_class(1, "lora", None)
    durations.put_class(2, "lora", None)
    durations.put_class(3, "gbt", None)
    for took_s in (10.0, 1000.0, 20.0):
        durations.learn(1, took_s)
    assert sorted(durations.changed()) == [1, 2]
    assert durations.expected_s(2) == 20.0
    assert durations.based_on(2) == "runs of lora"
    assert durations.expected_s(3) is None
    durations.put_class(4, "lora", None)
    assert durations.expected_s(4) == 20.0


def test_one_run_that_took_a_hundred_times_as_long_changes_nothing() -> None:
    durations = Durations()
    durations.put_class(1, "", None)
    for took_s in (100.0, 110.0, 90.0, 10_000.0):
        durations.learn(1, took_s)
    durations.changed()
    assert durations.expected_s(1) == 100.0


def test_an_estimate_that_changes_by_little_stays_as_it_is() -> None:
    durations = Durations()
    durations.put_class(1, "", 100.0)
    for _ in range(20):
        durations.learn(1, 140.0)
    assert durations.changed() == []
    assert durations.expected_s(1) == 100.0


def test_an_estimate_follows_a_class_that_takes_longer_and_longer() -> None:
    durations = Durations()
    durations.put_class(1, "", None)
    for _ in range(15):
        durations.learn(1, 100.0)
    for _ in range(30):
        durations.learn(1, 1000.0)
    assert durations.expected_s(1) == 1000.0


def test_a_run_that_took_no_time_is_not_learned_from() -> None:
    durations = Durations()
    durations.put_class(1, "", 50.0)
    for took_s in (0.0, -3600.0, 0.0):
        assert not durations.learn(1, took_s)
    assert durations.expected_s(1) == 50.0


def test_a_class_that_is_put_again_takes_its_new_statement() -> None:
    durations = Durations()
    durations.put_class(1, "", 50.0)
    durations.put_class(1, "", 70.0)
    assert durations.expected_s(1) == 70.0
    durations.put_class(1, "lora", None)
    assert durations.expected_s(1) is None
    durations.put_class(2, "lora", None)
    for _ in range(ENOUGH):
        durations.learn(2, 30.0)
    assert durations.expected_s(1) == 30.0
