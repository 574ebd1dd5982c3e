from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.retry import (
    LONGEST_BACKOFF_S,
    FailureCause,
    NoRetry,
    RetryAfterDelay,
    RetryOn,
    RetryPolicy,
    decide_retry,
)
from tests.lengths import examples

NEVER: set[str] = set()
OUT_OF_MEMORY = {"transient", "all", "out_of_memory", "interrupted"}
TRANSIENT = {"transient", "all"}
INTERRUPTED = {*TRANSIENT, "interrupted"}
# Which policies try again after which cause; a new cause has to choose its row.
RETRIED_BY = {
    "user": {"all"},
    "input": NEVER,
    "validation": NEVER,
    "io": INTERRUPTED,
    "oom_host": OUT_OF_MEMORY,
    "oom_device": OUT_OF_MEMORY,
    "timeout": TRANSIENT,
    "diverged": TRANSIENT,
    "preempted": INTERRUPTED,
    "lost": INTERRUPTED,
    "cancelled": NEVER,
    "upstream": NEVER,
}


def test_every_cause_has_its_row():
    assert set(RETRIED_BY) == set(FailureCause)


@pytest.mark.parametrize(("cause", "on"), list(product(FailureCause, RetryOn)))
def test_a_policy_retries_its_causes_and_no_others(cause, on):
    decision = decide_retry(RetryPolicy(attempts=3, on=on), cause, 1)
    if on in RETRIED_BY[cause]:
        assert decision == RetryAfterDelay(delay_s=1.0, why=f"{cause}, attempt 1 of 3")
    elif RETRIED_BY[cause]:
        assert decision == NoRetry(why=f"the policy retries {on}, and this was {cause}")
    else:
        assert decision == NoRetry(why=f"{cause} is never retried")


@pytest.mark.parametrize(("cause", "on"), list(product(FailureCause, RetryOn)))
def test_nothing_is_retried_after_the_last_attempt(cause, on):
    assert isinstance(decide_retry(RetryPolicy(attempts=2, on=on), cause, 2), NoRetry)


def test_attempts_include_the_first():
    policy = RetryPolicy(attempts=2)
    assert isinstance(decide_retry(policy, FailureCause.IO, 1), RetryAfterDelay)
    assert decide_retry(policy, FailureCause.IO, 2) == NoRetry(why="attempt 2 of 2")


def test_without_a_word_there_is_one_attempt():
    assert decide_retry(RetryPolicy(), FailureCause.IO, 1) == NoRetry(why="attempt 1 of 1")


@pytest.mark.parametrize(
    ("attempt", "delay_s"), [(1, 2.0), (2, 4.0), (3, 8.0), (8, 256.0), (9, 300.0), (40, 300.0), (4999, 300.0)]
)
def test_the_pause_doubles_up_to_five_minutes(attempt, delay_s):
    decision = decide_retry(RetryPolicy(attempts=5000, backoff_s=2.0), FailureCause.IO, attempt)
    assert isinstance(decision, RetryAfterDelay)
    assert decision.delay_s == delay_s


def test_a_policy_without_pause_never_pauses():
    assert decide_retry(RetryPolicy(attempts=9000, backoff_s=0.0), FailureCause.IO, 8000) == RetryAfterDelay(
        delay_s=0.0, why="io, attempt 8000 of 9000"
    )


@settings(max_examples=examples(40, 100), deadline=None)
@given(backoff_s=st.floats(min_value=0, max_value=1e308), attempts=st.integers(min_value=2, max_value=3000))
def test_a_pause_never_shrinks_and_never_passes_the_cap(backoff_s, attempts):
    policy = RetryPolicy(attempts=attempts, backoff_s=backoff_s)
    tried = sorted({1, 2, attempts // 2, attempts - 1} - {0})
    decisions = [decide_retry(policy, FailureCause.LOST, attempt) for attempt in tried if attempt < attempts]
    delays_s = [decision.delay_s for decision in decisions if isinstance(decision, RetryAfterDelay)]
    assert len(delays_s) == len(decisions)
    assert all(before <= after for before, after in pairwise(delays_s))
    assert all(0 <= delay_s <= LONGEST_BACKOFF_S == 300 for delay_s in delays_s)
