"""What finished jobs left: how good they were, and which bundles there are."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import Connection, Row, Select, select

from stoker.coordinator.database.tables import BUNDLES, JOBS
from stoker.coordinator.queue.reading.stories import bundle_object
from stoker.model.errors import NotFound
from stoker.model.json_text import loads
from stoker.model.lifecycle import JobState
from stoker.model.names import point_name
from stoker.model.suggest import did_you_mean
from stoker.plan.ranking import Direction, known_direction, preference
from stoker.wire.asking import Leaderboard, LeaderRow

_CANDIDATES = 5_000
_MOST_ROWS = 1000
_SHOWN = ("seq", "id", "name", "number", "label", "recipe", "machine", "started_s", "ended_s")


def read_leaderboard(
    connection: Connection, metric: str = "", *, recipe: str = "", name: str = "", limit: int = 20
) -> Leaderboard:
    """Rank completed jobs by one of their metrics, best first; without one, by the metric that most likely matters.

    Of a long history the newest five thousand take part.
    """
    asked = _completed(recipe, name).with_only_columns(JOBS.c.seq, JOBS.c.metrics).where(JOBS.c.metrics != "")
    jobs = [(row.seq, loads(row.metrics)) for row in connection.execute(asked.limit(_CANDIDATES))]
    known = sorted({key for _, metrics in jobs for key in metrics}, key=preference)
    if not known and not metric:
        return Leaderboard()
    if metric and metric not in known:
        listed = ", ".join(known[:12]) or "none"
        raise NotFound(
            f"no completed job has a metric {metric!r}", hint=did_you_mean(metric, known) or f"there are: {listed}"
        )
    metric = metric or known[0]
    is_lower_better = known_direction(metric) is not Direction.LARGER
    ranked = [(seq, metrics) for seq, metrics in jobs if math.isfinite(metrics.get(metric, math.nan))]
    # Stable: among equals the newest stays first.
    ranked.sort(key=lambda one: one[1][metric] if is_lower_better else -one[1][metric])
    rows = _leaders(connection, ranked[: max(1, min(limit, _MOST_ROWS))], metric)
    return Leaderboard(metric=metric, is_lower_better=is_lower_better, rows=rows, metrics=tuple(known))


def read_bundles(
    connection: Connection, *, seq: int | None = None, after_id: int = 0, limit: int = 1000
) -> tuple[dict[str, Any], ...]:
    """Give rows of the index of results in its order, with their jobs; of one job or of all."""
    asked = (
        select(BUNDLES, JOBS.c.id.label("job"), JOBS.c.name, JOBS.c.number)
        .join_from(BUNDLES, JOBS, JOBS.c.seq == BUNDLES.c.seq)
        .where(BUNDLES.c.id > after_id)
        .order_by(BUNDLES.c.id)
        .limit(limit)
    )
    if seq is not None:
        asked = asked.where(BUNDLES.c.seq == seq)
    return tuple(
        {"id": row.id, "job": row.job, "name": point_name(row.name, row.number), **bundle_object(row)}
        for row in connection.execute(asked)
    )


def _leaders(connection: Connection, ranked: list[tuple[int, dict[str, float]]], metric: str) -> tuple[LeaderRow, ...]:
    # Not all of a job: each may be large, and there may be a thousand.
    columns = [JOBS.c[column] for column in _SHOWN]
    asked = select(*columns).where(JOBS.c.seq.in_([seq for seq, _ in ranked]))
    jobs = {row.seq: row for row in connection.execute(asked)}
    return tuple(
        LeaderRow(
            place=place,
            job=jobs[seq].id,
            name=point_name(jobs[seq].name, jobs[seq].number),
            label=jobs[seq].label,
            recipe=jobs[seq].recipe,
            machine=jobs[seq].machine,
            value=metrics[metric],
            metrics=metrics,
            seconds=_took_s(jobs[seq]),
        )
        for place, (seq, metrics) in enumerate(ranked, 1)
    )


def _took_s(row: Row[Any]) -> float | None:
    """Say how long a job took, as every list of jobs does: from its start to its end."""
    return None if row.started_s is None or row.ended_s is None else max(0.0, row.ended_s - row.started_s)


def _completed(recipe: str = "", name: str = "") -> Select[Any]:
    """Give the statement for completed jobs, newest first: along the index of recipes, or of states."""
    asked = select(JOBS.c.seq).where(JOBS.c.state == JobState.COMPLETED.value).order_by(JOBS.c.seq.desc())
    if name:
        # Chosen by themselves first: in their own index they are few, among the completed ones they may be rare.
        named = select(JOBS.c.seq).where(JOBS.c.name == name).order_by(JOBS.c.seq.desc()).limit(_CANDIDATES)
        asked = asked.where(JOBS.c.seq.in_(named))
    return asked.where(JOBS.c.recipe == recipe) if recipe else asked
