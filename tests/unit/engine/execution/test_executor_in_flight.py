"""What was noticed about devices, as the loop takes it. Asking and killing are tested with the executor."""

from __future__ import annotations

from stoker.core.clock import FakeClock
from stoker.engine.device_gate import NOTHING_TAKEN, DeviceNotice
from stoker.engine.execution.stage_attempts import InFlightAttempts


def test_what_is_about_nobody_is_told_as_it_is() -> None:
    flight = InFlightAttempts(clock=FakeClock(), grace_s=1.0)
    assert flight.notice(DeviceNotice(message="the ledger was mended")) == "the ledger was mended"


def test_of_work_that_is_over_nothing_is_told() -> None:
    """Its message says "it", and there is nobody left who that could be."""
    flight = InFlightAttempts(clock=FakeClock(), grace_s=1.0)
    assert flight.notice(DeviceNotice(message="it holds 7.0 GiB", taken=NOTHING_TAKEN, is_over_limit=True)) == ""
