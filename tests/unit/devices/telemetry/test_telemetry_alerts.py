"""Alerts at their limits: raised late, cleared later, and never about what is normal."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.core.device import GIB
from stoker.devices.telemetry.alerts import AlertKind, AlertTracker, DeviceAlert
from stoker.devices.telemetry.samples import DeviceSample

GPU = "GPU-1"
TOTAL = 100 * GIB


def sample(**values: Any) -> DeviceSample:
    return DeviceSample(uuid=GPU, **values)


def memory(percent: float) -> DeviceSample:
    return sample(memory_total_bytes=TOTAL, memory_used_bytes=int(TOTAL * percent / 100))


class Watched:
    """A tracker with a clock that moves by seconds."""

    def __init__(self) -> None:
        self.tracker = AlertTracker()
        self.now_s = 1000.0

    def run(self, seconds: int, one: DeviceSample, *, reserved: int | None = None) -> list[tuple[AlertKind, int]]:
        """Take so many samples, one a second; return the alerts after the last."""
        found: tuple[DeviceAlert, ...] = ()
        for _ in range(seconds):
            found = self.tracker.update([one], {} if reserved is None else {GPU: reserved}, self.now_s)
            self.now_s += 1.0
        return [(one.kind, one.severity) for one in found]


def test_heat_is_raised_after_ten_seconds_and_cleared_a_minute_after_five_degrees_less():
    watched = Watched()
    assert watched.run(10, sample(temperature_c=80.0)) == []
    assert watched.run(1, sample(temperature_c=80.0)) == [(AlertKind.HOT, 60)]
    assert watched.run(300, sample(temperature_c=76.0)) == [(AlertKind.HOT, 60)]
    assert watched.run(60, sample(temperature_c=74.0)) == [(AlertKind.HOT, 60)]
    assert watched.run(1, sample(temperature_c=74.0)) == []


def test_one_cool_second_starts_the_wait_again():
    watched = Watched()
    watched.run(9, sample(temperature_c=85.0))
    watched.run(1, sample(temperature_c=70.0))
    assert watched.run(10, sample(temperature_c=85.0)) == []


@pytest.mark.parametrize(
    ("celsius", "slowdown_c", "severity"),
    [(89.0, None, 60), (90.0, None, 80), (87.0, 89.0, 80), (85.0, 89.0, 60), (90.0, 105.0, 80)],
    ids=["hot", "critical", "near_its_slowdown", "below_it", "slows_down_late"],
)
def test_heat_is_critical_at_ninety_or_three_degrees_before_the_slowdown(
    celsius: float, slowdown_c: float | None, severity: int
):
    assert Watched().run(11, sample(temperature_c=celsius, slowdown_c=slowdown_c)) == [(AlertKind.HOT, severity)]


def test_a_device_that_heat_slows_down_is_critical_whatever_its_sensor_says():
    one = sample(temperature_c=70.0, throttle=("heat (hardware)",))
    assert Watched().run(11, one) == [(AlertKind.HOT, 80)]


@pytest.mark.parametrize(("percent", "severity"), [(90.0, 60), (95.0, 80), (99.0, 100)])
def test_memory_beyond_the_reservation_is_severe_by_how_full_it_is(percent: float, severity: int):
    assert Watched().run(11, memory(percent), reserved=10 * GIB) == [(AlertKind.MEMORY, severity)]


def test_memory_within_the_reservation_is_no_alert():
    assert Watched().run(60, memory(99.5), reserved=TOTAL) == []
    assert Watched().run(60, memory(89.0)) == []


def test_a_busy_card_at_its_power_limit_is_information_and_a_slowed_one_is_not():
    busy = {"power_w": 440.0, "power_limit_w": 450.0}
    assert Watched().run(11, sample(**busy, throttle=("power limit",))) == [(AlertKind.POWER, 20)]
    assert Watched().run(11, sample(**busy, throttle=("power brake",))) == [(AlertKind.POWER, 60)]


def test_idleness_is_reported_after_thirty_seconds_and_severe_after_a_minute_while_a_job_holds_it():
    watched, idle = Watched(), sample(utilisation_percent=0.0)
    assert watched.run(30, idle, reserved=GIB) == []
    assert watched.run(1, idle, reserved=GIB) == [(AlertKind.IDLE, 60)]
    assert watched.run(30, idle, reserved=GIB) == [(AlertKind.IDLE, 90)]
    assert watched.run(61, idle) == []
    assert Watched().run(600, idle) == []


def test_what_is_not_measured_raises_nothing_and_a_device_that_vanished_has_no_alerts():
    watched = Watched()
    assert watched.run(60, sample(), reserved=GIB) == []
    assert watched.run(11, sample(temperature_c=95.0)) == [(AlertKind.HOT, 80)]
    watched.now_s += 119.0
    assert [one.kind for one in watched.tracker.update([], {}, watched.now_s)] == [AlertKind.HOT]
    assert watched.tracker.update([], {}, watched.now_s + 2.0) == ()
