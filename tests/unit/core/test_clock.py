import time
from datetime import UTC, datetime, timedelta

import pytest

from stoker.core.clock import Clock, FakeClock, SystemClock

EVERY_CLOCK = pytest.mark.parametrize("clock", [SystemClock(), FakeClock()], ids=["system", "fake"])


@EVERY_CLOCK
def test_now_is_aware_and_in_utc(clock: Clock):
    assert clock.now().utcoffset() == timedelta(0)


@EVERY_CLOCK
def test_both_ways_to_ask_for_the_wall_time_agree(clock: Clock):
    before_s = clock.wall_s()
    assert before_s - 0.001 <= clock.now().timestamp() <= clock.wall_s() + 0.001


@EVERY_CLOCK
def test_sleeping_lets_that_much_time_pass(clock: Clock):
    before_s = clock.monotonic_s()
    clock.sleep(0.002)
    assert clock.monotonic_s() - before_s >= 0.002


@EVERY_CLOCK
def test_sleeping_backwards_is_refused(clock: Clock):
    with pytest.raises(ValueError, match=r"negative|back"):
        clock.sleep(-1)


@pytest.mark.timing
def test_the_system_clock_is_the_computers():
    assert SystemClock().wall_s() == pytest.approx(time.time(), abs=5)
    assert SystemClock().monotonic_s() == pytest.approx(time.monotonic(), abs=5)


def test_a_fake_clock_stands_still_until_it_is_moved():
    clock = FakeClock(start_s=1000.0)
    assert [clock.wall_s(), clock.wall_s(), clock.monotonic_s()] == [1000.0, 1000.0, 0.0]
    clock.advance(2.5)
    assert [clock.wall_s(), clock.monotonic_s()] == [1002.5, 2.5]
    assert clock.now() == datetime(1970, 1, 1, 0, 16, 42, 500_000, tzinfo=UTC)


@pytest.mark.timing
def test_a_fake_sleep_takes_no_time_of_ours():
    clock, before_s = FakeClock(), time.monotonic()
    clock.sleep(86400)
    assert clock.monotonic_s() == 86400
    assert time.monotonic() - before_s < 5


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_the_monotonic_scale_does_not_notice_a_jump_of_the_wall_clock(jump_s):
    clock = FakeClock(start_s=10_000.0)
    clock.jump(jump_s)
    assert clock.wall_s() == 10_000.0 + jump_s
    assert clock.monotonic_s() == 0.0
