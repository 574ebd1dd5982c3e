"""Whether this computer's clock is kept in step with the world's, as its kernel knows."""

from __future__ import annotations

import sys

from stoker.model.devices import Answer, Verdict


def is_clock_synchronised() -> Answer:
    """Ask the kernel; where there is no way to, the answer is unknown."""
    if sys.platform != "linux":
        return Answer(verdict=Verdict.UNKNOWN, why="only Linux says")
    from stoker.host.linux_calls import is_clock_kept  # noqa: PLC0415 - it loads ctypes

    try:
        is_kept = is_clock_kept()
    except OSError as error:
        return Answer(verdict=Verdict.UNKNOWN, why=error.strerror or str(error))
    if is_kept:
        return Answer(verdict=Verdict.YES)
    return Answer(verdict=Verdict.NO, why="nothing has told the kernel the time of the world")
