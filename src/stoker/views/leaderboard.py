"""Jobs by one of their metrics, best first: of this machine and of a fleet, completed ones and those that run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.core.errors import NotFound
from stoker.core.frozen import changed, fields_of, fresh, frozen
from stoker.core.text import did_you_mean
from stoker.engine.metrics.metric_names import Direction, known_direction, preference
from stoker.views.stage_lines import number
from stoker.views.text_tables import span

if TYPE_CHECKING:
    from stoker.protocol.view_messages import LeaderRow

RANK_HEADER = ("", "job", "point", "state", "", "took", "machine", "recipe")
_NAMED = 12


@frozen
class RankedJob:
    """One job, or one trial of a sweep, in a ranking. Its fields are those of its JSON."""

    name: str
    id: str
    state: str
    where: str
    """`here` or `fleet`."""
    label: str = ""
    recipe: str = ""
    machine: str = ""
    metrics: Mapping[str, float] = fresh(factory=dict)
    seconds: float | None = None
    place: int = 0
    metric: str = ""
    value: float = math.nan

    @property
    def is_live(self) -> bool:
        """True if its value may still change."""
        return self.state not in ("completed", "failed", "cancelled")

    def to_json(self) -> dict[str, Any]:
        return {**fields_of(self), "metrics": dict(self.metrics), "is_live": self.is_live}

    @classmethod
    def of_fleet(cls, row: LeaderRow) -> RankedJob:
        """Return a row of a coordinator's leaderboard."""
        same = {name: getattr(row, name) for name in ("name", "label", "recipe", "machine", "state", "seconds")}
        return cls(**same, id=row.job, where="fleet", metrics=dict(row.metrics))


def rank_jobs(jobs: Iterable[RankedJob], metric: str, direction: Direction | None = None) -> list[RankedJob]:
    """Return the jobs that have a finite value of a metric, best first, each with its place.

    Raises `NotFound` if none has it. Which values are better is known by the metric's name; smaller ones otherwise.
    """
    found = list(jobs)
    known = sorted({name for job in found for name in job.metrics}, key=preference)
    if metric not in known:
        listed = ", ".join(known[:_NAMED]) or "none"
        raise NotFound(f"no job has a metric {metric!r}", hint=did_you_mean(metric, known) or f"there are: {listed}")
    is_smaller_better = (direction or known_direction(metric)) is not Direction.LARGER
    with_value = [job for job in found if math.isfinite(job.metrics.get(metric, math.nan))]
    with_value.sort(key=lambda job: job.metrics[metric] if is_smaller_better else -job.metrics[metric])
    return [
        changed(job, place=place, metric=metric, value=job.metrics[metric]) for place, job in enumerate(with_value, 1)
    ]


def rank_rows(jobs: Sequence[RankedJob]) -> list[list[str]]:
    """Return a ranking as rows under `RANK_HEADER`; `~` marks a value that may still change."""
    return [
        [
            str(job.place),
            job.name,
            job.label,
            job.state,
            f"{'~' if job.is_live else ''}{number(job.value)}",
            span(job.seconds),
            job.machine or job.where,
            job.recipe,
        ]
        for job in jobs
    ]
