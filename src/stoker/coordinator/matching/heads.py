"""Nouns between the queue and matching: who waits first in each class, what live leases hold, and what was chosen."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.model.frozen import fresh, frozen


@frozen
class Head:
    """The first ready job of a requirement class at one priority."""

    class_id: int
    priority: int
    seq: int
    since_s: float
    """Since when it waits."""
    count: int = 1
    """How many of this class and priority wait, itself included."""


@frozen
class Seat:
    """What one live lease holds of a machine."""

    machine: str
    class_id: int
    devices: tuple[str, ...] = ()
    """UUIDs; none: it computes on the CPU."""
    is_shared: bool = False


@frozen
class Match:
    """A job for a machine, and where on it."""

    head: Head
    seat: Seat


@frozen
class NoMatch:
    """Nothing for this machine now; how many jobs wait for which reason (a `scheduler.fit.UnfitReason`, or `kept`)."""

    waiting: Mapping[str, int] = fresh(factory=dict)
    closed: str = ""
