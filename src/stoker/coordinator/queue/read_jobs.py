"""Reads of jobs from committed rows: lookup by name, one job's details, rows for an explanation; pages: `job_pages`.

Every function takes a connection with a snapshot of the database (`database.snapshot`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from sqlalchemy import Connection, Row, Select, func, literal, select, tuple_

from stoker.coordinator.database.tables import AFTER, ATTEMPTS, BUNDLES, COUNTERS, EVENTS, JOBS, LEASES
from stoker.coordinator.queue.queue_state import choices_in
from stoker.coordinator.queue.sql import READY
from stoker.core.errors import Ambiguous, BadInput, NotFound
from stoker.core.events import VERSION
from stoker.core.frozen import frozen
from stoker.core.job import EnvironmentChoice, JobInput, JobState
from stoker.core.jsontext import loads
from stoker.core.retry import FailureCause
from stoker.core.text import counted, did_you_mean, point_name
from stoker.protocol.job_messages import INPUT_BODY
from stoker.protocol.view_messages import AttemptView, JobDetails, JobView

# Lookup of a job: by name (the newest), `name/3`, the beginning of an id, or `last`.

SHORTEST_PREFIX = 4
_ID_LENGTH = 64
_HEX = frozenset("0123456789abcdef")
_SHOWN = 5
_NAMES = 500
_DIGITS = 10


@frozen
class JobMatch:
    """A job that was found."""

    seq: int
    id: str
    state: str
    name: str
    """`resnet/3` for a point of a sweep."""


def find_job(connection: Connection, ref: str) -> JobMatch:
    """Return a job. Raises `NotFound` with the nearest name, or `Ambiguous` with the candidates."""
    row = _last(connection) if ref == "last" else _by_name(connection, ref)
    begun = [row] if row is not None else _begun_by(connection, ref)
    if len(begun) == 1:
        return _match(begun[0])
    if begun:
        raise _several(ref, begun)
    if ref == "last":
        raise NotFound("no jobs yet", hint="stoker submit manifest.toml")
    raise NotFound(
        f"there is no job {ref!r}", hint=did_you_mean(ref, _names(connection, ref)) or "`stoker jobs` lists them"
    )


def find_jobs(connection: Connection, ref: str) -> tuple[JobMatch, ...]:
    """Return the jobs of a name: one job, or for a sweep's bare name all points in order, the newest of each."""
    newest = connection.execute(_newest(ref)).first()
    if newest is None or not newest.number:
        return (find_job(connection, ref),)
    points: dict[int, JobMatch] = {}
    named = _jobs().where(JOBS.c.name == ref, JOBS.c.number > 0).order_by(JOBS.c.seq.desc())
    for row in connection.execute(named):
        points.setdefault(row.number, _match(row))
    return tuple(points[number] for number in sorted(points))


def read_known(connection: Connection, names: Collection[str]) -> frozenset[str]:
    """Return those of a few names, such as `resnet` or `resnet/3`, that a job has: as the queue reads `after`."""
    points = [(base, int(number)) for base, _, number in (name.rpartition("/") for name in names) if _is_number(number)]
    named = select(JOBS.c.name, literal(0)).distinct().where(JOBS.c.name.in_(names))
    numbered = select(JOBS.c.name, JOBS.c.number).where(tuple_(JOBS.c.name, JOBS.c.number).in_(points))
    asked = [named, *([numbered] if points else [])]
    found = {point_name(name, number) for one in asked for name, number in connection.execute(one)}
    return frozenset(found.intersection(names))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < _DIGITS


def find_earlier(connection: Connection, job: JobMatch) -> JobMatch | None:
    """Return the job of the same name, and of a sweep's point the same number, that was submitted before one."""
    name, slash, number = job.name.rpartition("/")
    same = (JOBS.c.name == name, JOBS.c.number == int(number)) if slash else (JOBS.c.name == job.name,)
    row = connection.execute(_jobs().where(*same, JOBS.c.seq < job.seq).order_by(JOBS.c.seq.desc()).limit(1)).first()
    return None if row is None else _match(row)


def _match(row: Row[Any]) -> JobMatch:
    name = f"{row.name}/{row.number}" if row.number else row.name
    return JobMatch(seq=row.seq, id=row.id, state=row.state, name=name)


def _jobs() -> Select[Any]:
    return select(JOBS.c.seq, JOBS.c.id, JOBS.c.name, JOBS.c.number, JOBS.c.state)


def _last(connection: Connection) -> Row[Any] | None:
    return connection.execute(_jobs().order_by(JOBS.c.seq.desc()).limit(1)).first()


def _by_name(connection: Connection, ref: str) -> Row[Any] | None:
    row = connection.execute(_newest(ref)).first()
    name, _, number = ref.rpartition("/")
    if row is None and name and number.isascii() and number.isdigit():
        row = connection.execute(_newest(name).where(JOBS.c.number == int(number[:18]))).first()
    return row


def _newest(name: str) -> Select[Any]:
    return _jobs().where(JOBS.c.name == name).order_by(JOBS.c.seq.desc()).limit(1)


def _begun_by(connection: Connection, ref: str) -> list[Row[Any]]:
    text = ref.lower()
    if not SHORTEST_PREFIX <= len(text) <= _ID_LENGTH or not _HEX.issuperset(text):
        return []
    # `g` comes after every digit of an id, in every collation.
    begun = _jobs().where(JOBS.c.id >= text, JOBS.c.id < text + "g").order_by(JOBS.c.id).limit(_SHOWN + 1)
    return list(connection.execute(begun))


def _several(ref: str, rows: list[Row[Any]]) -> Ambiguous:
    shown = [f"{row.id[:12]} ({point_name(row.name, row.number)}, {row.state})" for row in rows[:_SHOWN]]
    more = ", …" if len(rows) > _SHOWN else ""
    return Ambiguous(
        f"{ref!r} begins the ids of several jobs: {', '.join(shown)}{more}",
        hint="type more digits",
        candidates=[
            {"id": row.id, "name": point_name(row.name, row.number), "state": row.state} for row in rows[:_SHOWN]
        ],
    )


def _names(connection: Connection, ref: str) -> list[str]:
    """Return different names, those with the same first letter first."""
    return list(dict.fromkeys([*_names_from(connection, ref[:1]), *_names_from(connection, "")]))


def _names_from(connection: Connection, low: str) -> list[str]:
    """Return different names in order. Each costs one step in the index, however many jobs have it."""
    walk = select(func.min(JOBS.c.name).label("name")).where(JOBS.c.name >= low).cte("walk", recursive=True)
    following = select(func.min(JOBS.c.name)).where(JOBS.c.name > walk.c.name).scalar_subquery()
    walk = walk.union_all(select(following).where(walk.c.name.is_not(None)))
    return list(connection.scalars(select(walk.c.name).where(walk.c.name.is_not(None)).limit(_NAMES)))


# Numbers of jobs by state.

_STATE = "state:"


def read_counts(connection: Connection) -> dict[str, int]:
    """Return the number of jobs in each state, as counted by the writer."""
    rows = connection.execute(select(COUNTERS).where(COUNTERS.c.key.startswith(_STATE, autoescape=True)))
    kept = {row.key.removeprefix(_STATE): row.value for row in rows}
    return {str(state): kept.get(state.value, 0) for state in JobState}


def states_of(text: str) -> tuple[str, ...]:
    """Read `failed`, or several: `claimed,running`; none: all."""
    states = tuple(dict.fromkeys(part.strip() for part in text.split(","))) if text else ()
    known = [str(state) for state in JobState]
    for state in states:
        if state not in known:
            raise BadInput(
                f"there is no state {state!r}", hint=did_you_mean(state, known) or f"there are {', '.join(known)}"
            )
    return states


# Rows as views: the mapping of columns to fields.

_LISTED = (
    "seq", "id", "name", "number", "label", "recipe", "mode", "state", "is_ready", "blockers", "not_before_s",
    "is_cancelling", "priority", "epoch", "attempt", "machine", "submitter", "submitted_s", "changed_s", "started_s",
    "ended_s", "cause", "message", "tree", "metrics", "class_id",
)  # fmt: skip


def listed_jobs() -> Select[Any]:
    """Return the statement for jobs in lists, with their leases."""
    columns = [JOBS.c[name] for name in _LISTED]
    lease = (LEASES.c.devices.label("held_devices"), LEASES.c.progress)
    return select(*columns, *lease).select_from(JOBS.outerjoin(LEASES, LEASES.c.seq == JOBS.c.seq))


Limits = Callable[[int], str]
"""Returns what keeps jobs of a class from starting, a limit of their user or no machine; empty: nothing is known."""


def job_view(row: Row[Any], *, now_s: float, limits: Limits) -> JobView:
    """Return a job as a list shows it."""
    progress = read_object(row.progress)
    return JobView(
        id=row.id,
        name=point_name(row.name, row.number),
        label=row.label,
        recipe=row.recipe,
        mode=row.mode,
        state=row.state,
        is_cancelling=bool(row.is_cancelling),
        priority=row.priority,
        epoch=row.epoch,
        attempt=row.attempt,
        # It was lost or released there.
        machine="" if row.state == JobState.PENDING else row.machine,
        devices=tuple(loads(row.held_devices)) if row.held_devices else (),
        submitter=row.submitter,
        submitted_s=row.submitted_s,
        changed_s=row.changed_s,
        started_s=row.started_s,
        ended_s=row.ended_s,
        step=progress.get("step"),
        of=progress.get("of"),
        metrics=progress.get("metrics") or read_object(row.metrics),
        says=progress.get("says", ""),
        why=_why(row, now_s, limits),
        result=row.tree,
    )


def _attempt_view(row: Row[Any]) -> AttemptView:
    return AttemptView(
        number=row.attempt,
        epoch=row.epoch,
        generation=row.generation,
        machine=row.machine,
        incarnation=row.incarnation,
        devices=tuple(loads(row.devices)) if row.devices else (),
        granted_s=row.granted_s,
        started_s=row.started_s,
        ended_s=row.ended_s,
        ending=row.ending,
        cause=row.cause,
        message=row.message,
        hint=row.hint,
        exit_code=row.exit_code,
        facts=read_object(row.facts),
    )


def told_events() -> Select[Any]:
    """Return the statement that reads events together with the names of their jobs."""
    return select(EVENTS, JOBS.c.id.label("job"), JOBS.c.name, JOBS.c.number).select_from(
        EVENTS.outerjoin(JOBS, JOBS.c.seq == EVENTS.c.seq)
    )


def event_object(row: Row[Any]) -> dict[str, Any]:
    """Return an event in the envelope of all our streams; `seq` is its id, by which a client resumes."""
    event: dict[str, Any] = {
        "v": VERSION,
        "ts": round(row.at_s, 6),
        "seq": row.id,
        "source": "coordinator",
        "kind": row.kind,
    }
    if row.job is not None:
        event |= {"job": row.job, "name": point_name(row.name, row.number)}
    optional = {name: getattr(row, name) for name in ("machine", "attempt", "epoch")}
    event |= {name: value for name, value in optional.items() if value not in (None, "")}
    event["generation"] = row.generation
    if row.to_state:
        event |= {"from": row.from_state, "to": row.to_state}
    # An event's own fields never replace those of the envelope.
    return event | {name: value for name, value in read_object(row.fields).items() if name not in event}


def read_object(text: str | None) -> dict[str, Any]:
    """Read a column that holds a JSON object or nothing."""
    return loads(text) if text else {}


def _why(row: Row[Any], now_s: float, limits: Limits) -> str:
    """Return in one line why a job is pending, or why it failed."""
    if row.state == JobState.PENDING:
        return pending_why(row, now_s, limits)
    if row.state == JobState.FAILED:
        # A failure of its own program is the usual cause; any other is shown.
        cause = "" if row.cause == FailureCause.USER and row.message else row.cause
        return ": ".join(part for part in (cause, row.message) if part)
    return row.message if row.state == JobState.CANCELLED else ""


def pending_why(row: Row[Any], now_s: float, limits: Limits) -> str:
    """Return in one line why a pending job has not started."""
    if row.blockers:
        return f"waits for {counted(row.blockers, 'job')} to complete first"
    if not row.is_ready and row.not_before_s > now_s:
        return f"retry in {row.not_before_s - now_s:.0f} s" + (f": {row.message}" if row.message else "")
    return (limits(row.class_id) or "waits for a machine") + (f"; before: {row.message}" if row.message else "")


# Details of one job, and events in order.

_NEWEST_EVENTS = 100
_MOST_ATTEMPTS = 1000
MOST_EVENTS = 10_000


def read_story(connection: Connection, ref: str, *, now_s: float, limits: Limits) -> JobDetails:
    """Return everything about one job."""
    seq = find_job(connection, ref).seq
    more = ("spec", "error", "user_failures", "lost", "declined")
    row = connection.execute(listed_jobs().add_columns(*(JOBS.c[name] for name in more)).where(JOBS.c.seq == seq)).one()
    newest = told_events().where(EVENTS.c.seq == seq).order_by(EVENTS.c.id.desc()).limit(_NEWEST_EVENTS)
    own = {
        "job": job_view(row, now_s=now_s, limits=limits),
        "after": _before_it(connection, seq),
        "attempts": _attempts(connection, seq),
        "counts": {"user": row.user_failures, "lost": row.lost, "declined": row.declined},
        "events": tuple(event_object(event) for event in reversed(connection.execute(newest).all())),
        "bundle": _bundle(connection, seq),
        "error": read_object(row.error),
    }
    return JobDetails.model_validate({**read_object(row.spec), **own})


def read_attempts(connection: Connection, ref: str) -> tuple[AttemptView, ...]:
    """Return the attempts of a job, oldest first; of very many the newest."""
    return _attempts(connection, find_job(connection, ref).seq)


def _attempts(connection: Connection, seq: int) -> tuple[AttemptView, ...]:
    newest = select(ATTEMPTS).where(ATTEMPTS.c.seq == seq).order_by(ATTEMPTS.c.attempt.desc()).limit(_MOST_ATTEMPTS)
    return tuple(_attempt_view(row) for row in reversed(connection.execute(newest).all()))


def read_events(
    connection: Connection, after_id: int = 0, limit: int = 1000, ref: str | None = None
) -> tuple[dict[str, Any], ...]:
    """Return the events after one, oldest first, of one job or of all, in the envelope of every stream."""
    asked = told_events().where(EVENTS.c.id > after_id).order_by(EVENTS.c.id).limit(max(0, min(limit, MOST_EVENTS)))
    if ref is not None:
        asked = asked.where(EVENTS.c.seq == find_job(connection, ref).seq)
    return tuple(event_object(row) for row in connection.execute(asked))


def read_newest_event(connection: Connection) -> int:
    """Return the id of the newest event; 0 before the first."""
    return connection.execute(select(func.max(EVENTS.c.id))).scalar() or 0


def bundle_object(row: Row[Any]) -> dict[str, Any]:
    """Return a row of the index of results."""
    return {
        "attempt": row.attempt,
        "tree": row.tree,
        "archive_sha256": row.archive_sha256,
        "size_bytes": row.size_bytes,
        "at_s": row.at_s,
        "is_pinned": bool(row.is_pinned),
        "pruned_s": row.pruned_s,
    }


def _before_it(connection: Connection, seq: int) -> tuple[str, ...]:
    """Return the names of the jobs that one depends on."""
    asked = (
        select(JOBS.c.name, JOBS.c.number)
        .join_from(AFTER, JOBS, JOBS.c.seq == AFTER.c.before_seq)
        .where(AFTER.c.seq == seq)
        .order_by(AFTER.c.before_seq)
    )
    return tuple(point_name(row.name, row.number) for row in connection.execute(asked))


def _bundle(connection: Connection, seq: int) -> dict[str, Any]:
    asked = select(BUNDLES).where(BUNDLES.c.seq == seq).order_by(BUNDLES.c.attempt.desc()).limit(1)
    row = connection.execute(asked).first()
    return bundle_object(row) if row is not None else {}


# Rows for an explanation: the job and its dependencies, and the numbers of ready jobs.


@frozen
class PrerequisiteRow:
    """An uncompleted job that another one depends on."""

    seq: int
    job: str
    name: str
    state: str


@frozen
class JobExplainRow:
    """A job's fields for an explanation."""

    seq: int
    class_id: int
    not_before_s: float
    message: str
    attempts: int
    """Maximum number of its own failures."""
    expected_s: float | None = None
    """Its duration as its submitter states it; None: not stated."""
    after: tuple[PrerequisiteRow, ...] = ()
    environment: tuple[EnvironmentChoice, ...] = ()
    inputs: tuple[JobInput, ...] = ()


def read_case(connection: Connection, ref: str) -> JobExplainRow:
    """Return what an explanation needs of a job besides its details."""
    seq = find_job(connection, ref).seq
    asked = select(JOBS.c.class_id, JOBS.c.not_before_s, JOBS.c.message, JOBS.c.spec).where(JOBS.c.seq == seq)
    row = connection.execute(asked).one()
    before = (
        _jobs()
        .join_from(AFTER, JOBS, JOBS.c.seq == AFTER.c.before_seq)
        .where(AFTER.c.seq == seq, JOBS.c.state != JobState.COMPLETED.value)
        .order_by(AFTER.c.before_seq)
    )
    spec = read_object(row.spec)
    return JobExplainRow(
        seq=seq,
        class_id=row.class_id,
        not_before_s=row.not_before_s,
        message=row.message,
        attempts=int(spec.get("attempts", 1)),
        expected_s=spec.get("expected_s"),
        environment=choices_in(spec),
        inputs=tuple(INPUT_BODY.validate_python(one) for one in spec.get("inputs", ())),
        after=tuple(
            PrerequisiteRow(seq=one.seq, job=one.id, name=point_name(one.name, one.number), state=one.state)
            for one in connection.execute(before)
        ),
    )


def read_ready_numbers(
    connection: Connection, levels: Mapping[tuple[int, int], int]
) -> dict[tuple[int, int], list[int]]:
    """Return the numbers of the first ready jobs of each class and priority, up to the given count, in order."""
    found = {}
    for (class_id, priority), most in levels.items():
        asked = select(JOBS.c.seq).where(READY, JOBS.c.class_id == class_id, JOBS.c.priority == priority)
        found[class_id, priority] = list(connection.scalars(asked.order_by(JOBS.c.seq).limit(most)))
    return found


def read_names(connection: Connection, seqs: Collection[int]) -> dict[int, str]:
    """Return the names of jobs, by number."""
    asked = select(JOBS.c.seq, JOBS.c.name, JOBS.c.number).where(JOBS.c.seq.in_(seqs))
    return {row.seq: point_name(row.name, row.number) for row in connection.execute(asked)}
