"""How often workers speak, and how long a lease lasts without a word: longer in a large fleet, to bound the talk."""

from __future__ import annotations

from stoker.model.frozen import frozen
from stoker.model.leases import FleetTimes

BEATS_PER_S = 100.0
"""A coordinator hears this many heartbeats a second before it asks for fewer: 3,000 machines at 30 s."""


@frozen
class Pace:
    """What holds now. The price of longer leases is that a lost worker is noticed later, so it is shown."""

    heartbeat_s: float
    lease_s: float
    settling_s: float = 0.0
    """How much longer nothing expires, after a start."""


def pace_of(times: FleetTimes, machines: int, *, settling_s: float = 0.0) -> Pace:
    """Lengthen heartbeat and lease alike once that many machines would speak too often."""
    factor = max(1.0, machines / BEATS_PER_S / times.heartbeat_s)
    return Pace(heartbeat_s=times.heartbeat_s * factor, lease_s=times.lease_s * factor, settling_s=settling_s)
