"""What an explanation needs of the rows: the job and what it comes after, and how long runs like others took."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, and_, func, select, text

from stoker.coordinator.database.tables import AFTER, ATTEMPTS, JOBS
from stoker.coordinator.queue.environments import choices_in
from stoker.coordinator.queue.reading.shaping import read_object
from stoker.model.frozen import frozen
from stoker.model.json_text import loads
from stoker.model.lifecycle import JobState
from stoker.model.names import point_name
from stoker.wire.orders import EnvironmentChoice, InputBody

MOST_AHEAD = 10_000
_RUNS = 100
"""Of each recipe, the newest."""
# In the index's own words: a database uses it only where the question says the same literally.
_READY = text("state = 'pending' AND is_ready")


@frozen
class BeforeRow:
    """A job that another one comes after, and that has not completed."""

    job: str
    name: str
    state: str


@frozen
class CaseRow:
    """A job, as an explanation asks about it."""

    seq: int
    class_id: int
    not_before_s: float
    message: str
    attempts: int
    """How many failures of its own it may have."""
    after: tuple[BeforeRow, ...] = ()
    environment: tuple[EnvironmentChoice, ...] = ()
    inputs: tuple[InputBody, ...] = ()


@frozen
class RunRow:
    """A completed run."""

    recipe: str
    name: str
    class_id: int
    seconds: float
    devices: tuple[str, ...] = ()


def read_case(connection: Connection, seq: int) -> CaseRow:
    """Give what is known of a job beside its story."""
    asked = select(JOBS.c.class_id, JOBS.c.not_before_s, JOBS.c.message, JOBS.c.spec).where(JOBS.c.seq == seq)
    row = connection.execute(asked).one()
    before = (
        select(JOBS.c.id, JOBS.c.name, JOBS.c.number, JOBS.c.state)
        .join_from(AFTER, JOBS, JOBS.c.seq == AFTER.c.before_seq)
        .where(AFTER.c.seq == seq, JOBS.c.state != JobState.COMPLETED.value)
        .order_by(AFTER.c.before_seq)
    )
    spec = read_object(row.spec)
    return CaseRow(
        seq=seq,
        class_id=row.class_id,
        not_before_s=row.not_before_s,
        message=row.message,
        attempts=int(spec.get("attempts", 1)),
        environment=choices_in(spec),
        inputs=tuple(InputBody(**one) for one in spec.get("inputs", ())),
        after=tuple(
            BeforeRow(job=one.id, name=point_name(one.name, one.number), state=one.state)
            for one in connection.execute(before)
        ),
    )


def read_ahead(connection: Connection, priority: int) -> dict[int, int]:
    """Say by class how many ready jobs go before a new one of this priority; of very many, only that there are."""
    ready = select(JOBS.c.class_id).where(_READY, JOBS.c.priority >= priority).limit(MOST_AHEAD).subquery()
    counted = select(ready.c.class_id, func.count().label("jobs")).group_by(ready.c.class_id)
    return {row.class_id: row.jobs for row in connection.execute(counted)}


def read_runs(connection: Connection, recipes: Collection[str]) -> list[RunRow]:
    """Give the newest completed runs of some recipes, and on which devices they ran."""
    found = []
    for recipe in recipes:
        asked = (
            select(JOBS.c.name, JOBS.c.class_id, JOBS.c.seconds, ATTEMPTS.c.devices)
            .join_from(JOBS, ATTEMPTS, and_(ATTEMPTS.c.seq == JOBS.c.seq, ATTEMPTS.c.attempt == JOBS.c.attempt))
            .where(JOBS.c.state == JobState.COMPLETED.value, JOBS.c.recipe == recipe, JOBS.c.seconds.is_not(None))
            .order_by(JOBS.c.seq.desc())
            .limit(_RUNS)
        )
        found += [
            RunRow(
                recipe=recipe,
                name=row.name,
                class_id=row.class_id,
                seconds=row.seconds,
                devices=tuple(loads(row.devices)),
            )
            for row in connection.execute(asked)
        ]
    return found
