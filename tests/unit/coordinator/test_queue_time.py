from __future__ import annotations

from stoker.coordinator.queue.queue_state import CoordinatorTime
from stoker.core.clock import FakeClock


def test_stored_time_never_goes_back_and_goes_on_at_least_as_fast_as_the_monotonic_clock() -> None:
    clock = FakeClock(start_s=1000.0)
    time = CoordinatorTime(clock, stored_s=0.0)
    clock.jump(-500.0)
    clock.advance(10.0)
    assert time.now_s() == 1010.0
    clock.jump(+600.0)
    assert time.now_s() == 1110.0


def test_time_goes_on_from_what_was_stored() -> None:
    clock = FakeClock(start_s=1000.0)
    time = CoordinatorTime(clock, stored_s=5000.0)
    clock.advance(1.0)
    assert time.now_s() == 5001.0


def test_leases_are_judged_on_a_scale_that_no_jump_moves() -> None:
    clock = FakeClock()
    time = CoordinatorTime(clock, stored_s=0.0)
    before_s = time.tick_s()
    clock.jump(1e6)
    clock.advance(3.0)
    assert time.tick_s() - before_s == 3.0
