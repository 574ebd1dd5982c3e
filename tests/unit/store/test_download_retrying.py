from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.host.http.exchange import Headers
from stoker.model.retry import Again, GiveUp
from stoker.store.download.patience import Patience
from stoker.store.download.retrying import decide_again, retry_after_s

PATIENT = Patience()
NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)


def _decide(idle_attempts=1, *, silent_s=0.0, wait_s=None, jitter=0.5, patience=PATIENT):
    return decide_again(patience, idle_attempts=idle_attempts, silent_s=silent_s, wait_s=wait_s, jitter=jitter)


def _after(retry_after=None, date=None, *, now=NOW, longest_s=3600.0):
    fields = [(name, text) for name, text in (("Retry-After", retry_after), ("Date", date)) if text is not None]
    return retry_after_s(Headers(fields), now_s=now.timestamp(), longest_s=longest_s)


def test_attempts_without_progress_are_counted_the_first_included():
    assert isinstance(_decide(2), Again)
    given_up = _decide(3)
    assert isinstance(given_up, GiveUp)
    assert given_up.why == "attempt 3 of 3 without progress"
    assert isinstance(_decide(1, patience=Patience(attempts=1)), GiveUp)


def test_an_attempt_that_brought_something_is_always_followed_by_another():
    assert isinstance(_decide(0, patience=Patience(attempts=1)), Again)


def test_pauses_double_up_to_a_limit_and_are_spread_over_their_whole_length():
    many = Patience(attempts=1000)
    assert [_decide(n, jitter=1.0, patience=many).delay_s for n in (0, 1, 2, 3, 7, 900)] == [1, 1, 2, 4, 60, 60]
    assert _decide(3, jitter=0.0, patience=many).delay_s == 0.0
    assert _decide(3, jitter=0.25, patience=many).delay_s == 1.0


def test_what_the_server_asks_for_takes_the_place_of_the_pause():
    assert _decide(wait_s=33.0).delay_s == 33.0


def test_no_pause_goes_beyond_the_longest_time_without_progress():
    assert isinstance(_decide(silent_s=1800.0, jitter=0.0), Again)
    late = _decide(silent_s=1799.0, wait_s=2.0)
    assert isinstance(late, GiveUp)
    assert late.why.startswith("no byte for 29m59s")
    assert isinstance(_decide(wait_s=1801.0), GiveUp)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("7", 7.0), ("0", 1.0), ("99999999999999999999", 3600.0), (" 12 ", 12.0)],
)
def test_seconds_are_kept_within_bounds(text, expected):
    assert _after(text) == expected


@pytest.mark.parametrize("text", [None, "", "soon", "-5", "1.5", "٣", "Wed, 99 Nov 2026 12:00:00 GMT", "1e3"])
def test_what_is_neither_seconds_nor_a_date_is_not_said(text):
    assert _after(text) is None


@pytest.mark.parametrize("skew", [timedelta(hours=-1), timedelta(0), timedelta(hours=1)])
def test_a_date_is_held_against_the_clock_of_the_server(skew):
    there = NOW + skew
    until = format_datetime(there + timedelta(seconds=90), usegmt=True)
    assert _after(until, format_datetime(there, usegmt=True)) == 90.0


def test_a_date_is_held_against_our_clock_where_the_server_has_none():
    until = format_datetime(NOW + timedelta(seconds=90), usegmt=True)
    assert _after(until) == 90.0
    assert _after(until, "never") == 90.0


def test_a_date_is_kept_within_bounds():
    assert _after(format_datetime(NOW - timedelta(days=1), usegmt=True)) == 1.0
    assert _after(format_datetime(NOW + timedelta(days=1), usegmt=True)) == 3600.0
    assert _after("600", longest_s=60.0) == 60.0


@given(st.text(), st.text())
def test_nothing_that_a_server_says_breaks_it(retry_after, date):
    found = _after(retry_after, date)
    assert found is None or 1.0 <= found <= 3600.0
