"""Patience: is it worth starting a job here now, or had it better wait for a faster machine?

A long job that a slow board begins last is what everybody waits for in the end. So a job is not started where it would
be done later than if it waited its turn on the faster machines. While there is a long line for those, it is started: a
slow machine that works is better than one that waits.

    here: how long it would take here, by what its like took before and this machine's speed
    there: how long until the faster machines have worked off what waits before it, and then how long it takes on one

It is started if here is no longer than there. Nobody waits for ever: faster machines are only waited for while
something runs, they never are too slow themselves, and as they work off what waits, it is this job's turn.
"""

from __future__ import annotations

from stoker.model.frozen import frozen

CARE = 0.8
"""Durations are expectations: what is expected to take this part of the time may take all of it."""
SLACK = 1.25
"""A machine that is slower than the fastest by no more than this is never too slow to start on."""


@frozen
class Prospect:
    """What is known when a job might start: durations from now."""

    here_s: float
    """How long it would take here."""
    fastest_s: float
    """How long it would take on the fastest machine that takes it."""
    wait_s: float
    """How long until the faster machines have worked off what waits."""
    is_anything_running: bool = True


@frozen
class Patience:
    """Whether to start, and why not."""

    is_start: bool
    here_s: float
    there_s: float

    def reason(self, now_s: float) -> str:
        """Say why it waits, with times of day in UTC; empty if it need not."""
        if self.is_start:
            return ""
        here, there = _time(now_s + self.here_s), _time(now_s + self.there_s)
        return f"waits for a faster device: here until {here}, there until {there}"


def worth_starting(prospect: Prospect) -> Patience:
    """Decide whether a job starts here now."""
    is_start = (
        not prospect.is_anything_running
        or is_fast(prospect.here_s, prospect.fastest_s)
        or excess_s(prospect.here_s, prospect.fastest_s) <= prospect.wait_s
    )
    return Patience(is_start=is_start, here_s=prospect.here_s, there_s=prospect.wait_s + prospect.fastest_s)


def is_fast(here_s: float, fastest_s: float) -> bool:
    """Say whether here is about as fast as it gets."""
    return here_s <= fastest_s * SLACK


def excess_s(here_s: float, fastest_s: float) -> float:
    """Give the longest wait for the fastest machine that would still be too short to be worth it: start here above."""
    return here_s / CARE - fastest_s


def _time(at_s: float) -> str:
    minutes = int(at_s // 60)
    return f"{minutes // 60 % 24:02d}:{minutes % 60:02d}"
