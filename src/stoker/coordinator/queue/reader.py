"""The reading side of the queue, on its own connections: machines, symptoms, webhooks, results; jobs by `read_jobs`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Row, RowMapping, Select, func, select

from stoker.coordinator.database.database import Database, snapshot
from stoker.coordinator.database.tables import BUNDLES, COUNTERS, HOOKS, JOBS, LEASES, MACHINES, META, SYMPTOMS
from stoker.coordinator.queue.job_pages import JobPageRequest, read_page
from stoker.coordinator.queue.queue_state import ENDS
from stoker.coordinator.queue.read_jobs import (
    Limits,
    bundle_object,
    find_earlier,
    find_job,
    find_jobs,
    read_attempts,
    read_case,
    read_counts,
    read_events,
    read_known,
    read_names,
    read_newest_event,
    read_object,
    read_ready_numbers,
    read_story,
)
from stoker.coordinator.queue.read_screens import ChangesRead, OverviewRows, read_changes, read_overview
from stoker.coordinator.queue.read_sweeps import read_results, read_specs, read_sweep, read_sweeps, read_trainings
from stoker.coordinator.queue.sql import READY
from stoker.core.clock import Clock
from stoker.core.errors import NotFound
from stoker.core.frozen import fresh, frozen
from stoker.core.job import JobState
from stoker.core.jsontext import loads
from stoker.core.text import did_you_mean, point_name
from stoker.engine.metrics.metric_names import Direction, known_direction, preference
from stoker.protocol.view_messages import JobDetails, JobPage, Leaderboard, LeaderRow, SymptomView

_CLASS = "class:"
_LEASE_COLUMNS = (
    "seq", "recipe", "class_id", "state", "attempt", "epoch", "incarnation", "until_s", "started_s",
)  # fmt: skip


@frozen
class LeaseView:
    """One live lease of a machine."""

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
    """A stored machine, with its leases."""

    name: str
    incarnation: str
    boot_id: str
    version: str
    capability: dict[str, Any]
    capability_digest: str
    slots: int | None
    declared: dict[str, Any]
    first_seen_s: float
    last_seen_s: float
    left_s: float | None
    closed: str
    why: str
    until_s: float | None
    closed_devices: dict[str, str]
    report: dict[str, Any] = fresh(factory=dict)
    held: tuple[LeaseView, ...] = ()

    @property
    def ends_s(self) -> float | None:
        """When it leaves, as announced by its worker; None: no end is known."""
        return self.declared.get(ENDS)


@frozen
class JobQueuePosition:
    """Number of ready jobs ahead of a pending one."""

    alike: int = 0
    """With the same requirements."""
    by_class: Mapping[int, int] = fresh(factory=dict)

    @property
    def all(self) -> int:
        return sum(self.by_class.values())


def read_ready(connection: Connection) -> dict[int, int]:
    """Return the number of ready jobs of each class, as counted by the writer."""
    rows = connection.execute(select(COUNTERS).where(COUNTERS.c.key.startswith(_CLASS, autoescape=True)))
    return {int(row.key.removeprefix(_CLASS)): row.value for row in rows if row.value}


def read_before(connection: Connection, seq: int) -> JobQueuePosition:
    """Return the queue position of a job: ready jobs of higher priority, and older ones of the same."""
    row = connection.execute(select(JOBS.c.class_id, JOBS.c.priority, JOBS.c.state).where(JOBS.c.seq == seq)).one()
    if row.state != JobState.PENDING:
        return JobQueuePosition()
    counts = {class_id: _before_in(connection, class_id, row.priority, seq) for class_id in read_ready(connection)}
    return JobQueuePosition(alike=counts.get(row.class_id, 0), by_class=counts)


def _before_in(connection: Connection, class_id: int, priority: int, seq: int) -> int:
    """Count the jobs ahead in one class, along its index: only these are read."""
    ready = select(func.count()).select_from(JOBS).where(READY, JOBS.c.class_id == class_id)
    higher = ready.where(JOBS.c.priority > priority)
    older = ready.where(JOBS.c.priority == priority, JOBS.c.seq < seq)
    return int(connection.scalar(higher) or 0) + int(connection.scalar(older) or 0)


def read_machines(
    connection: Connection, name: str = "", *, among: Collection[str] | None = None
) -> tuple[MachineRow, ...]:
    """Return every machine by name, or one, or those `among` some names, each with its live leases."""
    leases = select(
        LEASES, JOBS.c.id, JOBS.c.name, JOBS.c.number, JOBS.c.recipe, JOBS.c.class_id, JOBS.c.state, JOBS.c.started_s
    ).join_from(LEASES, JOBS, JOBS.c.seq == LEASES.c.seq)
    machines = select(MACHINES).order_by(MACHINES.c.name)
    if name:
        leases = leases.where(LEASES.c.machine == name)
        machines = machines.where(MACHINES.c.name == name)
    if among is not None:
        leases = leases.where(LEASES.c.machine.in_(among))
        machines = machines.where(MACHINES.c.name.in_(among))
    held: dict[str, list[LeaseView]] = {}
    for row in connection.execute(leases.order_by(LEASES.c.seq)).mappings():
        held.setdefault(row["machine"], []).append(_held(row))
    return tuple(_machine(row, tuple(held.get(row["name"], ()))) for row in connection.execute(machines).mappings())


def read_machine_names(connection: Connection, after: str = "", limit: int | None = None) -> list[str]:
    """Return the names of machines behind one, in order."""
    asked = select(MACHINES.c.name).where(MACHINES.c.name > after).order_by(MACHINES.c.name).limit(limit)
    return list(connection.scalars(asked))


def read_meta(connection: Connection) -> dict[str, str]:
    """Return the database's meta data: its generation, its latest time."""
    return {row.key: row.value for row in connection.execute(select(META))}


def _held(row: RowMapping) -> LeaseView:
    return LeaseView(
        **{name: row[name] for name in _LEASE_COLUMNS},
        job=row["id"],
        name=point_name(row["name"], row["number"]),
        devices=tuple(loads(row["devices"])),
        is_shared=bool(row["is_shared"]),
        progress=read_object(row["progress"]),
    )


def _machine(row: RowMapping, held: tuple[LeaseView, ...]) -> MachineRow:
    objects = {name: read_object(row[name]) for name in ("capability", "declared", "closed_devices", "report")}
    columns = {name: value for name, value in row.items() if name != "outdated"}
    return MachineRow(**{**columns, **objects}, held=held)


# Symptoms of machines, and webhooks.

_MOST = 1000


@frozen
class WebhookRow:
    """A stored webhook."""

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
    format: str = "stoker"

    def __repr__(self) -> str:
        # The secret must not appear in an error message.
        return f"WebhookRow({self.id})"


def read_symptoms(
    connection: Connection, machine: str = "", *, among: Collection[str] | None = None, most: int = _MOST
) -> tuple[SymptomView, ...]:
    """Return the present symptoms, of one machine or `among` some; of very many a part."""
    asked = select(SYMPTOMS).where(SYMPTOMS.c.over_s.is_(None))
    if machine:
        asked = asked.where(SYMPTOMS.c.machine == machine)
    if among is not None:
        asked = asked.where(SYMPTOMS.c.machine.in_(among))
    asked = asked.order_by(SYMPTOMS.c.machine, SYMPTOMS.c.symptom, SYMPTOMS.c.device).limit(most)
    return tuple(SymptomView.model_validate(row, from_attributes=True) for row in connection.execute(asked))


def read_hooks(connection: Connection, *, is_open: bool = False) -> tuple[WebhookRow, ...]:
    """Return the webhooks, the oldest first."""
    asked = select(HOOKS).order_by(HOOKS.c.id)
    if is_open:
        asked = asked.where(HOOKS.c.closed_s.is_(None))
    return tuple(_hook(row) for row in connection.execute(asked).mappings())


def _hook(row: RowMapping) -> WebhookRow:
    words, jobs = (tuple(loads(row[name])) if row[name] else () for name in ("kinds", "jobs"))
    columns = {name: value for name, value in row.items() if name not in ("kinds", "jobs", "is_inner")}
    return WebhookRow(**columns, words=words, jobs=jobs, is_inner=bool(row["is_inner"]))


# Results of finished jobs: the leaderboard and the index of results.

_CANDIDATES = 5_000
_MOST_ROWS = 1000
_LEADER_COLUMNS = ("seq", "id", "name", "number", "label", "recipe", "machine", "state", "started_s", "ended_s")


def read_leaderboard(
    connection: Connection,
    metric: str = "",
    *,
    recipe: str = "",
    name: str = "",
    limit: int = 20,
    is_live: bool = False,
) -> Leaderboard:
    """Rank completed jobs by a metric, best first (default: the most likely objective).

    With `is_live` running jobs are ranked too, by what they reported last. Of a long history the newest 5,000 are
    ranked.
    """
    asked = _completed(recipe, name).with_only_columns(JOBS.c.seq, JOBS.c.metrics).where(JOBS.c.metrics != "")
    jobs = [(row.seq, loads(row.metrics)) for row in connection.execute(asked.limit(_CANDIDATES))]
    jobs = (_live_metrics(connection, recipe, name) if is_live else []) + jobs
    known = sorted({key for _, metrics in jobs for key in metrics}, key=preference)
    if not known and not metric:
        return Leaderboard()
    if metric and metric not in known:
        listed = ", ".join(known[:12]) or "none"
        raise NotFound(
            f"no {'' if is_live else 'completed '}job has a metric {metric!r}",
            hint=did_you_mean(metric, known) or f"there are: {listed}",
        )
    # A metric that is the same in all of them ranks nothing.
    differing = (key for key in known if len({metrics[key] for _, metrics in jobs if key in metrics}) > 1)
    metric = metric or next(differing, known[0])
    is_lower_better = known_direction(metric) is not Direction.LARGER
    ranked = [(seq, metrics) for seq, metrics in jobs if math.isfinite(metrics.get(metric, math.nan))]
    # Stable: among equals the newest stays first.
    ranked.sort(key=lambda one: one[1][metric] if is_lower_better else -one[1][metric])
    rows = _leaders(connection, ranked[: max(1, min(limit, _MOST_ROWS))], metric)
    return Leaderboard(metric=metric, is_lower_better=is_lower_better, rows=rows, metrics=tuple(known))


def _live_metrics(connection: Connection, recipe: str, name: str) -> list[tuple[int, dict[str, float]]]:
    """Return the metrics that running jobs reported last, the newest job first."""
    asked = (
        select(JOBS.c.seq, LEASES.c.progress)
        .join_from(JOBS, LEASES, JOBS.c.seq == LEASES.c.seq)
        .where(JOBS.c.state.in_((JobState.CLAIMED.value, JobState.RUNNING.value)), LEASES.c.progress != "")
        .order_by(JOBS.c.seq.desc())
        .limit(_CANDIDATES)
    )
    asked = asked.where(JOBS.c.recipe == recipe) if recipe else asked
    asked = asked.where(JOBS.c.name == name) if name else asked
    found = ((row.seq, read_object(row.progress).get("metrics")) for row in connection.execute(asked))
    return [(seq, metrics) for seq, metrics in found if isinstance(metrics, dict) and metrics]


def read_bundles(
    connection: Connection, *, ref: str | None = None, after_id: int = 0, limit: int = 1000
) -> tuple[dict[str, Any], ...]:
    """Return rows of the index of results in its order, with their jobs; of one job or of all."""
    asked = (
        select(BUNDLES, JOBS.c.id.label("job"), JOBS.c.name, JOBS.c.number)
        .join_from(BUNDLES, JOBS, JOBS.c.seq == BUNDLES.c.seq)
        .where(BUNDLES.c.id > after_id)
        .order_by(BUNDLES.c.id)
        .limit(limit)
    )
    if ref is not None:
        asked = asked.where(BUNDLES.c.seq == find_job(connection, ref).seq)
    return tuple(
        {"id": row.id, "job": row.job, "name": point_name(row.name, row.number), **bundle_object(row)}
        for row in connection.execute(asked)
    )


def _leaders(connection: Connection, ranked: list[tuple[int, dict[str, float]]], metric: str) -> tuple[LeaderRow, ...]:
    # Not all columns: a job may be large, and there may be a thousand.
    columns = [JOBS.c[column] for column in _LEADER_COLUMNS]
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
            state=jobs[seq].state,
            value=metrics[metric],
            metrics=metrics,
            seconds=_took_s(jobs[seq]),
        )
        for place, (seq, metrics) in enumerate(ranked, 1)
    )


def _took_s(row: Row[Any]) -> float | None:
    """Return the duration of a job, from its start to its end."""
    return None if row.started_s is None or row.ended_s is None else max(0.0, row.ended_s - row.started_s)


def _completed(recipe: str = "", name: str = "") -> Select[Any]:
    """Return the statement for completed jobs, newest first: along the index of recipes, or of states."""
    asked = select(JOBS.c.seq).where(JOBS.c.state == JobState.COMPLETED.value).order_by(JOBS.c.seq.desc())
    if name:
        # Selected by name first: few in that index, while they may be rare among all completed jobs.
        named = select(JOBS.c.seq).where(JOBS.c.name == name).order_by(JOBS.c.seq.desc()).limit(_CANDIDATES)
        asked = asked.where(JOBS.c.seq.in_(named))
    return asked.where(JOBS.c.recipe == recipe) if recipe else asked


P = ParamSpec("P")
T = TypeVar("T")


def _reading(read: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[QueueReader, P], T]:
    """Return a method that reads in a snapshot of the database."""

    def method(self: QueueReader, /, *args: P.args, **named: P.kwargs) -> T:
        with snapshot(self.database) as connection:
            return read(connection, *args, **named)

    return method


class QueueReader:
    """Reads committed rows. Thread-safe.

    `ref` is a job's name (the newest), `name/3`, the beginning of an id, or `last`; `NotFound` and `Ambiguous` have
    the nearest names.
    """

    def __init__(self, database: Database, *, clock: Clock, limits: Limits = lambda _class_id: "") -> None:
        self.database = database
        self._clock = clock
        self._limit_reached = limits
        self._never: tuple[float, Mapping[int, str]] = (float("-inf"), {})

    def note_never(self, never: Mapping[int, str], for_s: float) -> None:
        """Take from a forecast, by class, why no machine of the fleet could run its jobs; it is shown for so long."""
        self._never = self._clock.monotonic_s() + for_s, never

    def _limits(self, class_id: int) -> str:
        until_s, never = self._never
        if self._clock.monotonic_s() < until_s and (why := never.get(class_id)):
            return f"no machine of the fleet fits: {why}"
        limit = self._limit_reached(class_id)
        return f"waits: {limit}" if limit else ""

    def page(
        self, *, sort: str = "", after: str = "", limit: int = 100, has_marks: bool = False, **filters: str
    ) -> JobPage:
        """Return a page of jobs, newest first, or in another order (`job_pages.SORTS`; `-name` reverses).

        Filters: `state` (may be several: `claimed,running`), `name`, `recipe`, `machine`, `submitter`, `sweep` (its
        bare name), `q` (a part of name or label), `ids` (separated by commas). Empty ones do not matter.

        With several filters that match little, a page may be short or empty: there are more while it has `next`.
        """
        given = {word: value for word, value in filters.items() if value}
        asked = JobPageRequest(filters=given, sort=sort, after=after, limit=limit, has_marks=has_marks)
        with snapshot(self.database) as connection:
            return read_page(connection, asked, clock=self._clock, limits=self._limits)

    def story(self, ref: str) -> JobDetails:
        """Return everything about one job."""
        with snapshot(self.database) as connection:
            return read_story(connection, ref, now_s=self._clock.wall_s(), limits=self._limits)

    def overview(self) -> OverviewRows:
        """Return what an overview shows of jobs."""
        with snapshot(self.database) as connection:
            return read_overview(connection, now_s=self._clock.wall_s(), limits=self._limits)

    def changes(
        self, after: int, more: Callable[[Connection], Collection[int]] = lambda _connection: ()
    ) -> ChangesRead:
        """Return what changed after an event, with the jobs whose numbers `more` returns."""
        with snapshot(self.database) as connection:
            return read_changes(connection, after, now_s=self._clock.wall_s(), limits=self._limits, more=more)

    find = _reading(find_job)
    find_all = _reading(find_jobs)
    find_earlier = _reading(find_earlier)
    known = _reading(read_known)
    attempts_of = _reading(read_attempts)
    events = _reading(read_events)
    newest_event = _reading(read_newest_event)
    case = _reading(read_case)
    ready_numbers = _reading(read_ready_numbers)
    names = _reading(read_names)
    leaderboard = _reading(read_leaderboard)
    bundles = _reading(read_bundles)
    sweeps = _reading(read_sweeps)
    sweep = _reading(read_sweep)
    specs = _reading(read_specs)
    results = _reading(read_results)
    trainings = _reading(read_trainings)
    counts = _reading(read_counts)
    ready_by_class = _reading(read_ready)
    waiting_before = _reading(read_before)
    machines = _reading(read_machines)
    machine_names = _reading(read_machine_names)
    symptoms = _reading(read_symptoms)
    hooks = _reading(read_hooks)
    meta = _reading(read_meta)
