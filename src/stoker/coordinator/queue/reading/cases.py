"""What an explanation needs of the rows: the job and what it comes after, and the numbers of ready jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, select, text

from stoker.coordinator.database.tables import AFTER, JOBS
from stoker.coordinator.queue.environments import choices_in
from stoker.coordinator.queue.reading.shaping import read_object
from stoker.model.frozen import frozen
from stoker.model.lifecycle import JobState
from stoker.model.names import point_name
from stoker.wire.orders import EnvironmentChoice, InputBody

# In the index's own words: a database uses it only where the question says the same literally.
_READY = text("state = 'pending' AND is_ready")


@frozen
class BeforeRow:
    """A job that another one comes after, and that has not completed."""

    seq: int
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


def read_case(connection: Connection, seq: int) -> CaseRow:
    """Give what is known of a job beside its story."""
    asked = select(JOBS.c.class_id, JOBS.c.not_before_s, JOBS.c.message, JOBS.c.spec).where(JOBS.c.seq == seq)
    row = connection.execute(asked).one()
    before = (
        select(JOBS.c.seq, JOBS.c.id, JOBS.c.name, JOBS.c.number, JOBS.c.state)
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
            BeforeRow(seq=one.seq, job=one.id, name=point_name(one.name, one.number), state=one.state)
            for one in connection.execute(before)
        ),
    )


def read_ready_numbers(
    connection: Connection, levels: Mapping[tuple[int, int], int]
) -> dict[tuple[int, int], list[int]]:
    """Return the numbers of the first ready jobs of each class and priority, as many as asked for, in order."""
    found = {}
    for (class_id, priority), most in levels.items():
        asked = select(JOBS.c.seq).where(_READY, JOBS.c.class_id == class_id, JOBS.c.priority == priority)
        found[class_id, priority] = list(connection.scalars(asked.order_by(JOBS.c.seq).limit(most)))
    return found


def read_names(connection: Connection, seqs: Collection[int]) -> dict[int, str]:
    """Return what jobs are called, by number."""
    asked = select(JOBS.c.seq, JOBS.c.name, JOBS.c.number).where(JOBS.c.seq.in_(seqs))
    return {row.seq: point_name(row.name, row.number) for row in connection.execute(asked)}
