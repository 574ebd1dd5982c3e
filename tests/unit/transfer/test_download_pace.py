from __future__ import annotations

from stoker.transfer.download.download_events import ConnectionSpeed, ProgressThrottle
from stoker.transfer.download.types import DownloadTimeouts

PATIENCE = DownloadTimeouts(slow_bytes_per_s=1000, slow_s=60.0)


def _paced(rate, seconds, *, pace=None, start_s=0):
    pace = pace or ConnectionSpeed(0.0, PATIENCE)
    for second in range(start_s + 1, start_s + seconds + 1):
        pace.got(rate, float(second))
    return pace


def test_a_connection_is_too_slow_only_after_a_while():
    assert _paced(10, 59).complaint == ""
    assert _paced(10, 60).complaint == "too slow: 10 B/s over 60s, less than 1000 B/s"


def test_a_connection_that_is_fast_enough_is_left_alone():
    assert _paced(1000, 600).complaint == ""
    assert _paced(999, 61).complaint != ""


def test_a_connection_that_slows_down_is_noticed_however_fast_it_was():
    pace = _paced(10_000_000, 120)
    assert pace.complaint == ""
    assert _paced(1, 59, pace=pace, start_s=120).complaint == ""
    assert _paced(1, 3, pace=pace, start_s=179).complaint != ""


def test_a_burst_within_the_while_is_enough():
    pace = _paced(1, 30)
    pace.got(100_000, 31.0)
    assert _paced(1, 40, pace=pace, start_s=31).complaint == ""


def test_bytes_that_trickle_many_times_a_second_are_counted_too():
    pace = ConnectionSpeed(0.0, PATIENCE)
    for tenth in range(1, 601):
        pace.got(1, tenth / 10)
    assert pace.complaint != ""


def test_rate_and_time_left_come_from_the_last_seconds():
    pace = _paced(100, 30)
    assert pace.rate_bytes_per_s == 100.0
    assert pace.eta_s(1000) == 10.0
    assert pace.eta_s(None) is None
    _paced(1000, 20, pace=pace, start_s=30)
    assert pace.rate_bytes_per_s == 1000.0


def test_there_is_no_rate_before_time_has_passed():
    pace = ConnectionSpeed(5.0, PATIENCE)
    assert pace.rate_bytes_per_s is None
    pace.got(100, 5.0)
    assert pace.rate_bytes_per_s is None
    assert pace.eta_s(1000) is None
    pace.got(0, 6.0)
    assert pace.rate_bytes_per_s == 100.0


def test_progress_is_told_at_once_and_then_at_most_four_times_a_second():
    rhythm = ProgressThrottle()
    told = [millisecond for millisecond in range(2000) if rhythm.is_due(millisecond / 1000)]
    assert told == [0, 250, 500, 750, 1000, 1250, 1500, 1750]
