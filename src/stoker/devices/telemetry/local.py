"""Telemetry of this machine for a command: one sample now, and what a worker here recorded of the last hour."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from stoker.core.clock import Clock
from stoker.core.device import Device
from stoker.core.frozen import frozen
from stoker.devices.telemetry.recorder import FOLDER
from stoker.devices.telemetry.samples import DeviceSample, DeviceSampler
from stoker.devices.telemetry.series import ON_THE_MACHINE, TENS, TelemetryRow, stored_rings

BETWEEN_S = 0.1
"""Between the two samples that the processors' utilisation needs."""
STALE_S = 20.0
"""After so long the utilisation since the sample before is not that of now."""
SPAN_S = 3600.0


@frozen
class LocalTelemetry:
    """The present state of this machine, and its last hour."""

    samples: tuple[DeviceSample, ...]
    """The host first."""
    rows: Mapping[str, tuple[TelemetryRow, ...]]
    """Rows of ten seconds, by UUID; empty: no worker runs here."""


class LocalSampler:
    """Samples this machine on request. Caller closes. Not thread-safe."""

    def __init__(
        self, devices: Sequence[Device], environment: Mapping[str, str], state: str, *, clock: Clock, files: str = "/"
    ) -> None:
        self._sampler = DeviceSampler(lambda: devices, environment, files=files)
        self._state = state
        self._clock = clock
        self._sampled_s = float("-inf")

    def sample(self) -> tuple[DeviceSample, ...]:
        """Sample; after a while without a sample twice within a tenth of a second. Blocks."""
        clock = self._clock
        if clock.monotonic_s() - self._sampled_s > STALE_S:
            self._sampler.sample(clock.monotonic_s())
            clock.sleep(BETWEEN_S)
        self._sampled_s = clock.monotonic_s()
        return tuple(self._sampler.sample(self._sampled_s))

    def look(self) -> LocalTelemetry:
        """Sample, and read what a worker recorded. Blocks."""
        samples = self.sample()
        now_s = self._clock.wall_s()
        rings = stored_rings(os.path.join(self._state, FOLDER), ON_THE_MACHINE)
        rows = {ring.about().get("uuid", ""): tuple(ring.read(TENS.period_s, now_s - SPAN_S, now_s)) for ring in rings}
        return LocalTelemetry(samples=samples, rows={uuid: some for uuid, some in rows.items() if some})

    def close(self) -> None:
        """End the child that calls a vendor's library."""
        self._sampler.close()


def look_here(
    devices: Sequence[Device], environment: Mapping[str, str], state: str, *, clock: Clock, files: str = "/"
) -> LocalTelemetry:
    """Return the present state of this machine and what a worker recorded. Blocks."""
    sampler = LocalSampler(devices, environment, state, clock=clock, files=files)
    try:
        return sampler.look()
    finally:
        sampler.close()
