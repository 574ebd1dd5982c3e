"""Adapters that train together, for people: what is foreseen, how they go, and how they rank at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.faces.view.grounds import ground_text
from stoker.faces.view.signs import Signs, with_signs
from stoker.faces.view.stages import number
from stoker.faces.view.times import span
from stoker.model.frozen import fresh, frozen
from stoker.model.units import format_size
from stoker.worker.company_forecast import CompanyForecast
from stoker.worker.trials import TrialEnd

if TYPE_CHECKING:
    from stoker.worker.standings import Ranked

_SPEED = "tokens_per_s"
_THOUSAND = 1000
_MOST_RANKED = 20


def forecast_lines(one: CompanyForecast, signs: Signs) -> tuple[str, ...]:
    """Say over which base a company works, and what is foreseen of it."""
    return (*([with_signs(one.about, signs)] if one.about else []), forecast_text(one))


def forecast_text(one: CompanyForecast) -> str:
    """Say what is foreseen of one company."""
    adapters = "1 adapter" if one.members == 1 else f"{one.members:,} adapters, one base"
    free = "" if one.free_bytes is None else f", {format_size(one.free_bytes)} free"
    where = "" if one.members == 1 else ", one process"
    text = f"{adapters}{where}: predicted {format_size(one.predicted_bytes)}{free}"
    if one.free_bytes is not None and one.predicted_bytes > one.free_bytes:
        return f"{text}: more than is free now"
    return text if one.members == 1 else f"{text}, {_pace(one)}"


def _pace(one: CompanyForecast) -> str:
    if one.at_once == one.members:
        return "both at once" if one.members == 2 else f"all {one.members} at once"
    together = "one after the other" if one.at_once == 1 else f"{one.at_once} at once"
    return f"{together}, the rest as others leave"


def speed_text(tokens_per_s: float) -> str:
    """Give a speed of training: `31 k tokens/s`."""
    if tokens_per_s < 10 * _THOUSAND:
        return f"{tokens_per_s:,.0f} tokens/s"
    return f"{tokens_per_s / _THOUSAND:,.3g} k tokens/s"


class Speed:
    """How quickly the members of a company go together, from what each says of itself."""

    def __init__(self) -> None:
        self._now: dict[str, float] = {}
        self._heard_s = 0.0
        self._worked_s = 0.0
        self._tokens = 0.0

    def hear(self, member: str, metrics: Mapping[str, Any], at_s: float) -> None:
        """Take in what a member says."""
        told = metrics.get(_SPEED)
        if isinstance(told, int | float) and math.isfinite(told):
            self._pass(at_s)
            self._now[member] = float(told)

    def leave(self, member: str, at_s: float) -> None:
        """A member has ended."""
        if member in self._now:
            self._pass(at_s)
            del self._now[member]

    @property
    def members(self) -> int:
        """How many go at the moment."""
        return len(self._now)

    @property
    def now(self) -> float:
        """Tokens per second at the moment, of all of them."""
        return sum(self._now.values())

    @property
    def mean(self) -> float:
        """Tokens per second, over all the time in which somebody went."""
        return self._tokens / self._worked_s if self._worked_s > 0 else self.now

    def _pass(self, at_s: float) -> None:
        passed_s = max(0.0, at_s - self._heard_s) if self._now else 0.0
        self._worked_s += passed_s
        self._tokens += passed_s * self.now
        self._heard_s = at_s


@frozen
class CompanyNews:
    """What a run knows of those of its trials that work together."""

    lines: tuple[str, ...] = ()
    """What is foreseen."""
    is_solo: bool = False
    """Somebody wants each in a process of its own."""
    speed: Speed = fresh(factory=Speed)


def company_text(speed: Speed, width: int) -> str:
    """Say how those that work together go at the moment."""
    return f"{f'{speed.members} together':<{width}}  {speed_text(speed.now)}"


def ranking_lines(ranked: Ranked, near: str) -> list[str]:
    """List the trials that ended well, best first, each with its place among those that it may be compared with.

    Nothing if there are no two such. Files are called as they are seen from the folder `near`.
    """
    grounds, metric, total = ranked.grounds, ranked.measure.metric, len(ranked.standings)
    if len(grounds) == total:
        return []
    shown = [(ground, place, one) for ground in grounds for place, one in enumerate(ground.trials, 1)][:_MOST_RANKED]
    width = max(len(one.end.trial.label) for _, _, one in shown)
    digits = len(str(max(place for _, place, _ in shown)))
    lines = []
    for ground, place, one in shown:
        if place == 1 and ground.told_by:
            lines.append(f"{ground_text(ground.told_by, near)}:")
        value = one.metrics.get(metric)
        told = "" if value is None else f"{metric} {number(value)}"
        lines.append(f"{place:>{digits}} {one.end.trial.label:<{width}}  {told}".rstrip())
    if total > len(shown):
        lines.append(f"  and {total - len(shown):,} more")
    return lines


def unaffected_text(others: int) -> str:
    """Say that a member that failed took nobody with it."""
    return "" if not others else ", the other one unaffected" if others == 1 else f", the other {others} unaffected"


def end_text(ends: Sequence[TrialEnd], total: int, elapsed_s: float, tokens_per_s: float) -> str:
    """Say how many of a company ended well, how long that took, how quickly it went and what it took at most."""
    done = sum(end.state == "completed" for end in ends)
    told = [f"{done} of {total} in {span(elapsed_s)}"]
    if tokens_per_s:
        told.append(speed_text(tokens_per_s))
    on_device = max((end.peak_gpu_bytes or 0 for end in ends), default=0)
    peak = on_device or max((end.peak_bytes or 0 for end in ends), default=0)
    if peak:
        told.append(f"peak {format_size(peak)}{' GPU' if on_device else ''}")
    return ", ".join(told)
