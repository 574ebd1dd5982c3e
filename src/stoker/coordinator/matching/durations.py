"""When will it end? From how long its like took, how long it runs already, and how far it says that it is.

Pure. Whoever reads finished runs hands them in. An estimate always says what it is from; where nothing is known there
is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from stoker.model.frozen import frozen

ENOUGH = 3
"""So many runs of the nearest likeness are enough; fewer, and less alike ones are asked."""
_LEAST_PROGRESS = 0.02
"""Less than this part done says nothing about the rest: starting up takes its own time."""


@frozen
class Run:
    """One finished run."""

    like: str
    """By what runs are alike before all else: the recipe; of programs, which have one recipe, the job's name."""
    seconds: float
    class_id: int | None = None
    device_type: str = ""
    """What it ran on; empty: the CPU."""


@frozen
class Estimate:
    """How long something takes, and what that is from."""

    seconds: float
    based_on: str


@frozen
class Running:
    """A job that runs, and what it says of itself."""

    like: str
    class_id: int | None = None
    device_type: str = ""
    started_s: float | None = None
    step: int | None = None
    of: int | None = None


class Durations:
    """What finished runs took, the nearest likeness first: what they are, what they ask for and on what; then less."""

    def __init__(self, runs: Sequence[Run] = ()) -> None:
        self._seconds: dict[tuple[object, ...], list[float]] = {}
        for run in runs:
            for key in _likenesses(run.like, run.class_id, run.device_type):
                self._seconds.setdefault(key, []).append(run.seconds)

    def whole(
        self, like: str, class_id: int | None = None, device_type: str = "", *, over_s: float = 0.0
    ) -> Estimate | None:
        """Say how long a run takes from its start, given that it takes longer than `over_s`."""
        few: Estimate | None = None
        for key, also in _likenesses(like, class_id, device_type).items():
            known = [seconds for seconds in self._seconds.get(key, ()) if seconds > over_s]
            if known:
                based_on = f"median of {len(known)} run{'' if len(known) == 1 else 's'} of {like}{also}"
                estimate = Estimate(seconds=median(known), based_on=based_on)
                if len(known) >= ENOUGH:
                    return estimate
                few = few or estimate
        return few

    def ends_s(self, running: Running, now_s: float) -> Estimate | None:
        """Say at which time a run ends; nothing, if it takes longer than any of its like did.

        What it says of its own progress counts before what others took.
        """
        if running.started_s is None:
            return None
        elapsed_s = max(0.0, now_s - running.started_s)
        part = _part(running)
        if part is not None:
            left_s = elapsed_s * (1 - part) / part
            return Estimate(seconds=now_s + left_s, based_on=f"its own progress, {running.step} of {running.of}")
        whole = self.whole(running.like, running.class_id, running.device_type, over_s=elapsed_s)
        if whole is None:
            return None
        return Estimate(seconds=running.started_s + whole.seconds, based_on=whole.based_on)


def _likenesses(like: str, class_id: int | None, device_type: str) -> dict[tuple[object, ...], str]:
    on = f" on {device_type}" if device_type else " on the CPU"
    return {
        (like, class_id, device_type): f" that ask for the same{on}",
        (like, class_id): " that ask for the same",
        (like, "on", device_type): on,
        (like,): "",
    }


def _part(running: Running) -> float | None:
    if running.step is None or not running.of or running.of < 0:
        return None
    part = min(1.0, running.step / running.of)
    return part if part >= _LEAST_PROGRESS else None
