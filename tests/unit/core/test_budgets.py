from __future__ import annotations

import pytest

from stoker.core.leases import Budgets
from stoker.core.retry import (
    DECLINE_PAUSE_S,
    LONGEST_BACKOFF_S,
    POISON,
    BudgetCharge,
    BudgetUsage,
    FailureCause,
    JobCancellation,
    JobFailure,
    JobRetry,
    after_failure,
    charge_of,
    pause_after,
    pause_after_decline,
)


def decided(
    cause: str, spent: BudgetUsage, *, attempts: int = 1, is_cancelling: bool = False
) -> JobRetry | JobFailure | JobCancellation:
    return after_failure(cause, spent, Budgets(), attempts=attempts, is_cancelling=is_cancelling, randomness=0.5)


def test_a_jobs_own_failure_is_final_by_default() -> None:
    assert decided("user", BudgetUsage(user_failures=1)) == JobFailure(cause="user", why="failure 1 of 1")


def test_a_job_may_allow_itself_more_failures() -> None:
    then = decided("oom_host", BudgetUsage(user_failures=2), attempts=3)
    assert isinstance(then, JobRetry)
    assert then.pause_s == pytest.approx(7.5)
    assert isinstance(decided("oom_host", BudgetUsage(user_failures=3), attempts=3), JobFailure)


@pytest.mark.parametrize("cause", ["input", "validation", "upstream", "cancelled"])
def test_what_would_fail_again_is_not_tried_again(cause: str) -> None:
    assert isinstance(decided(cause, BudgetUsage(user_failures=1), attempts=9), JobFailure)


def test_a_lost_worker_is_charged_to_a_budget_of_its_own() -> None:
    assert decided("lost", BudgetUsage(lost=1)) == JobRetry(pause_s=0.0, why="its process or worker was lost, 1 of 3")
    assert isinstance(decided("lost", BudgetUsage(lost=2, user_failures=9)), JobRetry)
    assert decided("lost", BudgetUsage(lost=3)) == JobFailure(
        cause="lost", why="its process or worker was lost 3 times of 3"
    )


def test_two_different_workers_lost_under_a_job_make_it_poison() -> None:
    then = decided("lost", BudgetUsage(lost=2, workers_lost=2))
    assert isinstance(then, JobFailure)
    assert then.cause == POISON


def test_preemption_costs_nothing_however_often() -> None:
    assert decided("preempted", BudgetUsage(user_failures=9, lost=9)) == JobRetry(
        pause_s=0.0, why="preempted costs nothing"
    )


@pytest.mark.parametrize("cause", list(FailureCause))
def test_cancel_beats_every_retry(cause: FailureCause) -> None:
    assert isinstance(decided(cause, BudgetUsage(), attempts=100, is_cancelling=True), JobCancellation)


def test_a_cause_that_nobody_knows_is_the_jobs_own() -> None:
    assert charge_of("gremlins") is BudgetCharge.USER


def test_pauses_double_are_bounded_and_spread() -> None:
    assert [pause_after(failures, 1.0) for failures in (1, 2, 3)] == [5.0, 10.0, 20.0]
    assert pause_after(10_000, 1.0) == LONGEST_BACKOFF_S
    assert pause_after(2, 0.0) == 5.0


def test_only_every_so_many_declines_make_a_job_wait() -> None:
    pauses = [pause_after_decline(declined, Budgets()) for declined in range(1, 41)]
    assert [at for at, pause_s in enumerate(pauses, 1) if pause_s == DECLINE_PAUSE_S] == [20, 40]
    assert sum(pauses) == 2 * DECLINE_PAUSE_S
