"""The whole fleet in numbers: jobs by state, who waits before whom, machines and what they hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select, text

from stoker.coordinator.database.tables import BUNDLES, COUNTERS, HOOKS, JOBS, LEASES, MACHINES, META, SYMPTOMS
from stoker.coordinator.queue.queue_state import ENDS
from stoker.coordinator.queue.read_details import bundle_object, read_object
from stoker.core.errors import NotFound
from stoker.core.frozen import fresh, frozen
from stoker.core.job import JobState
from stoker.core.jsontext import loads
from stoker.core.text import did_you_mean, point_name
from stoker.engine.ranking import Direction, known_direction, preference
from stoker.protocol.view_messages import Leaderboard, LeaderRow, SymptomView

_STATE = "state:"
_CLASS = "class:"
# In the index's own words: a database uses it only where the question says the same literally.
_READY = text("state = 'pending' AND is_ready")


@frozen
class LeaseView:
    """One live lease, as its machine's row shows it."""

    seq: int
    job: str
    name: str
    recipe: str
    class_id: int
    state: str
    attempt: int
    epoch: int
    incarnation: str
    until_s: float
    started_s: float | None
    devices: tuple[str, ...] = ()
    is_shared: bool = False
    progress: dict[str, Any] = fresh(factory=dict)


@frozen
class MachineRow:
    """A machine as it is written down, and what it holds."""

    name: str
    incarnation: str
    boot_id: str
    version: str
    capability: dict[str, Any]
    capability_digest: str
    slots: int | None
    declared: dict[str, Any]
    ends_s: float | None
    first_seen_s: float
    last_seen_s: float
    left_s: float | None
    closed: str
    why: str
    until_s: float | None
    closed_devices: dict[str, str]
    report: dict[str, Any] = fresh(factory=dict)
    held: tuple[LeaseView, ...] = ()


@frozen
class JobQueuePosition:
    """How many ready jobs go before one that waits."""

    alike: int = 0
    """That ask for the same."""
    by_class: Mapping[int, int] = fresh(factory=dict)

    @property
    def all(self) -> int:
        return sum(self.by_class.values())


def read_counts(connection: Connection) -> dict[str, int]:
    """Return how many jobs are in each state, as the writer counts them."""
    rows = connection.execute(select(COUNTERS).where(COUNTERS.c.key.startswith(_STATE, autoescape=True)))
    kept = {row.key.removeprefix(_STATE): row.value for row in rows}
    return {str(state): kept.get(state.value, 0) for state in JobState}


def read_ready(connection: Connection) -> dict[int, int]:
    """Return how many jobs of each requirement class are ready, as the writer counts them; none where none is."""
    rows = connection.execute(select(COUNTERS).where(COUNTERS.c.key.startswith(_CLASS, autoescape=True)))
    return {int(row.key.removeprefix(_CLASS)): row.value for row in rows if row.value}


def read_before(connection: Connection, seq: int) -> JobQueuePosition:
    """Count the ready jobs that stand before one in the line: higher priorities, and its own priority's older ones."""
    row = connection.execute(select(JOBS.c.class_id, JOBS.c.priority, JOBS.c.state).where(JOBS.c.seq == seq)).one()
    if row.state != JobState.PENDING:
        return JobQueuePosition()
    counts = {class_id: _before_in(connection, class_id, row.priority, seq) for class_id in read_ready(connection)}
    return JobQueuePosition(alike=counts.get(row.class_id, 0), by_class=counts)


def _before_in(connection: Connection, class_id: int, priority: int, seq: int) -> int:
    """Count in one class, along its index: only those that are before are touched."""
    ready = select(func.count()).select_from(JOBS).where(_READY, JOBS.c.class_id == class_id)
    higher = ready.where(JOBS.c.priority > priority)
    older = ready.where(JOBS.c.priority == priority, JOBS.c.seq < seq)
    return int(connection.scalar(higher) or 0) + int(connection.scalar(older) or 0)


def read_machines(connection: Connection, name: str = "") -> tuple[MachineRow, ...]:
    """Return every machine by name, or one, each with its live leases."""
    leases = select(
        LEASES, JOBS.c.id, JOBS.c.name, JOBS.c.number, JOBS.c.recipe, JOBS.c.class_id, JOBS.c.state, JOBS.c.started_s
    ).join_from(LEASES, JOBS, JOBS.c.seq == LEASES.c.seq)
    machines = select(MACHINES).order_by(MACHINES.c.name)
    if name:
        leases = leases.where(LEASES.c.machine == name)
        machines = machines.where(MACHINES.c.name == name)
    held: dict[str, list[LeaseView]] = {}
    for row in connection.execute(leases.order_by(LEASES.c.seq)):
        held.setdefault(row.machine, []).append(_held(row))
    return tuple(_machine(row, tuple(held.get(row.name, ()))) for row in connection.execute(machines))


def read_meta(connection: Connection) -> dict[str, str]:
    """Return what the database says of itself: its generation, its latest time."""
    return {row.key: row.value for row in connection.execute(select(META))}


def _held(row: Row[Any]) -> LeaseView:
    return LeaseView(
        seq=row.seq,
        job=row.id,
        name=point_name(row.name, row.number),
        recipe=row.recipe,
        class_id=row.class_id,
        state=row.state,
        attempt=row.attempt,
        epoch=row.epoch,
        incarnation=row.incarnation,
        until_s=row.until_s,
        started_s=row.started_s,
        devices=tuple(loads(row.devices)),
        is_shared=bool(row.is_shared),
        progress=read_object(row.progress),
    )


def _machine(row: Row[Any], held: tuple[LeaseView, ...]) -> MachineRow:
    declared = read_object(row.declared)
    return MachineRow(
        name=row.name,
        incarnation=row.incarnation,
        boot_id=row.boot_id,
        version=row.version,
        capability=read_object(row.capability),
        capability_digest=row.capability_digest,
        slots=row.slots,
        declared=declared,
        ends_s=declared.get(ENDS),
        first_seen_s=row.first_seen_s,
        last_seen_s=row.last_seen_s,
        left_s=row.left_s,
        closed=row.closed,
        why=row.why,
        until_s=row.until_s,
        closed_devices=read_object(row.closed_devices),
        report=read_object(row.report),
        held=held,
    )


# What is wrong with machines, and who is told of events elsewhere.

_MOST = 1000


@frozen
class WebhookRow:
    """A hook as it is written down."""

    id: int
    url: str
    secret: str
    words: tuple[str, ...]
    jobs: tuple[int, ...]
    """Numbers; none: all."""
    cursor: int
    is_inner: bool
    failures: int
    failing_since_s: float | None
    not_before_s: float
    last_error: str
    made_s: float
    closed_s: float | None
    by: str

    def __repr__(self) -> str:
        # A secret must not come into a message by way of an error.
        return f"HookRow({self.id})"


def read_symptoms(connection: Connection, machine: str = "") -> tuple[SymptomView, ...]:
    """Return what is wrong now; of very much a part."""
    asked = select(SYMPTOMS).where(SYMPTOMS.c.over_s.is_(None))
    if machine:
        asked = asked.where(SYMPTOMS.c.machine == machine)
    asked = asked.order_by(SYMPTOMS.c.machine, SYMPTOMS.c.symptom, SYMPTOMS.c.device).limit(_MOST)
    return tuple(
        SymptomView(
            machine=row.machine,
            device=row.device,
            symptom=row.symptom,
            since_s=row.since_s,
            message=row.message,
            hint=row.hint,
        )
        for row in connection.execute(asked)
    )


def read_hooks(connection: Connection, *, is_open: bool = False) -> tuple[WebhookRow, ...]:
    """Return the hooks, the oldest first."""
    asked = select(HOOKS).order_by(HOOKS.c.id)
    if is_open:
        asked = asked.where(HOOKS.c.closed_s.is_(None))
    return tuple(
        WebhookRow(
            id=row.id,
            url=row.url,
            secret=row.secret,
            words=tuple(loads(row.kinds)) if row.kinds else (),
            jobs=tuple(loads(row.jobs)) if row.jobs else (),
            cursor=row.cursor,
            is_inner=bool(row.is_inner),
            failures=row.failures,
            failing_since_s=row.failing_since_s,
            not_before_s=row.not_before_s,
            last_error=row.last_error,
            made_s=row.made_s,
            closed_s=row.closed_s,
            by=row.by,
        )
        for row in connection.execute(asked)
    )


# What finished jobs left: how good they were, and which bundles there are.

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
    """Return rows of the index of results in its order, with their jobs; of one job or of all."""
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
    """Return how long a job took, as every list of jobs does: from its start to its end."""
    return None if row.started_s is None or row.ended_s is None else max(0.0, row.ended_s - row.started_s)


def _completed(recipe: str = "", name: str = "") -> Select[Any]:
    """Return the statement for completed jobs, newest first: along the index of recipes, or of states."""
    asked = select(JOBS.c.seq).where(JOBS.c.state == JobState.COMPLETED.value).order_by(JOBS.c.seq.desc())
    if name:
        # Chosen by themselves first: in their own index they are few, among the completed ones they may be rare.
        named = select(JOBS.c.seq).where(JOBS.c.name == name).order_by(JOBS.c.seq.desc()).limit(_CANDIDATES)
        asked = asked.where(JOBS.c.seq.in_(named))
    return asked.where(JOBS.c.recipe == recipe) if recipe else asked
