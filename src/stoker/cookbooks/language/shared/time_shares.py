"""What the time of a training was spent on: updates, compiling, evaluations, files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from stoker.core.clock import Clock
from stoker.core.text import format_duration

Activity = Literal["updates", "compiling", "evaluation", "files"]
_NAMES: dict[Activity, str] = {
    "updates": "updates",
    "compiling": "compiling and recording steps",
    "evaluation": "evaluation",
    "files": "checkpoints and results",
}
_LEAST = 0.01
"""The smallest share that is mentioned."""


class TimeShares:
    """Seconds of a shared process by activity."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds: dict[Activity, float] = dict.fromkeys(_NAMES, 0.0)

    @contextmanager
    def spent_on(self, activity: Activity, unless: Callable[[], Activity | None] = lambda: None) -> Iterator[None]:
        """Count the time of a block. `unless` returns at its end another activity that it was, or None."""
        begun_s = self._clock.monotonic_s()
        try:
            yield
        finally:
            self._seconds[unless() or activity] += self._clock.monotonic_s() - begun_s

    def so_far(self) -> dict[Activity, float]:
        """Return the seconds until now."""
        return dict(self._seconds)

    def since(self, begun: Mapping[Activity, float]) -> dict[Activity, float]:
        """Return the seconds since `so_far` was `begun`."""
        return {activity: seconds - begun[activity] for activity, seconds in self._seconds.items()}


def shares_text(spent: Mapping[Activity, float], *, tokens: int, took_s: float) -> str:
    """Return the tokens per second of a training, those while it updated, and what the rest of the time went to."""
    took_s = max(took_s, 1e-9)
    text = f"{tokens:,} tokens in {format_duration(took_s)}: {tokens / took_s:,.0f} tokens/s"
    updating_s = spent["updates"]
    if updating_s > 0:
        text += f", {tokens / updating_s:,.0f} during updates"
    other_s = took_s - sum(spent.values())
    parts = [(name, spent[activity] / took_s) for activity, name in _NAMES.items()]
    parts.append(("other", other_s / took_s))
    shown = ", ".join(f"{name} {share:.0%}" for name, share in parts if share >= _LEAST)
    return f"{text} ({shown})" if shown else text
