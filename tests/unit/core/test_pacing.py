from __future__ import annotations

from stoker.core.leases import BEATS_PER_S, FleetTimes, LeaseTiming, pace_of


def test_a_fleet_of_usual_size_keeps_the_usual_pace() -> None:
    assert pace_of(FleetTimes(), 3000) == LeaseTiming(heartbeat_s=30.0, lease_s=90.0)


def test_a_large_fleet_speaks_less_often_and_its_leases_last_longer() -> None:
    pace = pace_of(FleetTimes(), 12_000, settling_s=5.0)
    assert 12_000 / pace.heartbeat_s == BEATS_PER_S
    assert pace == LeaseTiming(heartbeat_s=120.0, lease_s=360.0, settling_s=5.0)
