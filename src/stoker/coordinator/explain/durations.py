"""When a running job ends, by how far it says that it is. Pure."""

from __future__ import annotations

_LEAST_PROGRESS = 0.02
"""Less than this part done says nothing about the rest: starting up takes its own time."""


def progress_end_s(started_s: float, step: int | None, of: int | None, now_s: float) -> float | None:
    """Return when a run ends if it goes on as fast as until now; None if it does not say how far it is.

    Whatever it says, the end is not in the past, and not later than 1 / `_LEAST_PROGRESS` times what it took until now.
    """
    if step is None or of is None or step <= 0 or of <= 0:
        return None
    # Workers send whole numbers of any size: a quotient below 1 is always a float.
    part = step / of if step < of else 1.0
    if part < _LEAST_PROGRESS:
        return None
    return now_s + max(0.0, now_s - started_s) * (1 - part) / part
