from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import BadAnswer, HashMismatch, NetworkFailed, RateLimited
from stoker.core.retry import NoRetry, RetryAfterDelay
from stoker.host.http.exchange import Headers
from stoker.transfer.download.response_rules import FailedAttempts, decide_again, is_outage, retry_after_s
from stoker.transfer.download.types import DownloadTimeouts

PATIENT = DownloadTimeouts()
NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)


def _decide(idle=1, *, unusable=0, silent_s=0.0, wait_s=None, jitter=0.5, patience=PATIENT):
    tries = FailedAttempts(idle=idle, unusable=unusable)
    return decide_again(patience, tries, silent_s=silent_s, wait_s=wait_s, jitter=jitter)


def _after(retry_after=None, date=None, *, now=NOW, longest_s=3600.0):
    fields = [(name, text) for name, text in (("Retry-After", retry_after), ("Date", date)) if text is not None]
    return retry_after_s(Headers(fields), now_s=now.timestamp(), longest_s=longest_s)


def test_an_outage_ends_a_download_by_time_alone_unless_attempts_were_limited():
    assert isinstance(_decide(1000, silent_s=1799.0), RetryAfterDelay)
    over = _decide(1000, silent_s=1800.0)
    assert isinstance(over, NoRetry)
    assert over.is_timeout
    assert over.why == "no new byte for 30m00s"


def test_a_limit_of_attempts_counts_those_without_a_new_byte_the_first_included():
    thrice = DownloadTimeouts(attempts=3)
    assert isinstance(_decide(2, patience=thrice), RetryAfterDelay)
    given_up = _decide(3, patience=thrice)
    assert isinstance(given_up, NoRetry)
    assert given_up.why == "3 attempts without a new byte"
    assert not given_up.is_timeout
    assert isinstance(_decide(1, patience=DownloadTimeouts(attempts=1)), NoRetry)


def test_answers_that_cannot_be_used_end_a_download_soon_without_a_limit_of_attempts():
    assert isinstance(_decide(40, unusable=2), RetryAfterDelay)
    assert isinstance(_decide(40, unusable=3), NoRetry)
    assert isinstance(_decide(3, unusable=3, patience=DownloadTimeouts(attempts=5)), RetryAfterDelay)


def test_a_new_byte_starts_every_count_again_and_an_outage_that_of_unusable_answers():
    away, strange = NetworkFailed("refused", reason="refused"), BadAnswer("nonsense")
    tries = FailedAttempts().after(away, has_progress=False).after(strange, has_progress=False)
    assert tries == FailedAttempts(idle=2, unusable=1)
    assert tries.after(strange, has_progress=False) == FailedAttempts(idle=3, unusable=2)
    assert tries.after(away, has_progress=False) == FailedAttempts(idle=3, unusable=0)
    assert tries.after(strange, has_progress=True) == FailedAttempts()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NetworkFailed("refused", reason="refused"), True),
        (NetworkFailed("no name server answers", reason="dns"), True),
        (NetworkFailed("no such name", reason="dns", is_unknown_name=True), False),
        (NetworkFailed("cut", reason="short_body"), True),
        (NetworkFailed("busy", status=503), True),
        (RateLimited("slower", status=429), True),
        (NetworkFailed("not implemented", status=501), False),
        (NetworkFailed("a link that has run out", status=403), False),
        (BadAnswer("nonsense"), False),
        (HashMismatch("another size"), False),
    ],
)
def test_an_outage_is_what_the_same_request_may_outlast(error, expected):
    assert is_outage(error) is expected


def test_an_attempt_that_brought_something_is_always_followed_by_another():
    assert isinstance(_decide(0, patience=DownloadTimeouts(attempts=1)), RetryAfterDelay)


def test_pauses_double_up_to_a_limit_and_are_spread_over_their_second_half():
    assert [_decide(n, jitter=1.0).delay_s for n in (0, 1, 2, 3, 7, 900)] == [1, 1, 2, 4, 30, 30]
    assert _decide(3, jitter=0.0).delay_s == 2.0
    assert _decide(3, jitter=0.5).delay_s == 3.0


def test_what_the_server_asks_for_takes_the_place_of_the_pause():
    assert _decide(wait_s=33.0).delay_s == 33.0


def test_the_last_pause_ends_with_the_longest_time_without_progress():
    assert _decide(900, silent_s=1795.0, jitter=1.0).delay_s == 5.0
    assert isinstance(_decide(silent_s=1800.0, jitter=0.0), NoRetry)


def test_a_pause_that_a_server_asks_for_is_not_begun_if_it_outlasts_patience():
    late = _decide(silent_s=1799.0, wait_s=2.0)
    assert isinstance(late, NoRetry)
    assert late.why == "no new byte for 29m59s, and the server requests a pause of 2.0s"
    assert isinstance(_decide(wait_s=1801.0), NoRetry)


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
