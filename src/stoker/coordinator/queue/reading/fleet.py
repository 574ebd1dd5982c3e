"""The whole fleet in numbers: jobs by state, who waits before whom, machines and what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, func, select, text

from stoker.coordinator.database.tables import COUNTERS, JOBS, LEASES, MACHINES, META
from stoker.coordinator.queue.book import ENDS
from stoker.coordinator.queue.reading.shaping import read_object
from stoker.model.frozen import fresh, frozen
from stoker.model.json_text import loads
from stoker.model.lifecycle import JobState
from stoker.model.names import point_name

_STATE = "state:"
_CLASS = "class:"
# In the index's own words: a database uses it only where the question says the same literally.
_READY = text("state = 'pending' AND is_ready")


@frozen
class Held:
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
    held: tuple[Held, ...] = ()


@frozen
class Before:
    """How many ready jobs go before one that waits."""

    alike: int = 0
    """That ask for the same."""
    by_class: Mapping[int, int] = fresh(factory=dict)

    @property
    def all(self) -> int:
        return sum(self.by_class.values())


def read_counts(connection: Connection) -> dict[str, int]:
    """Give how many jobs are in each state, as the writer counts them."""
    rows = connection.execute(select(COUNTERS).where(COUNTERS.c.key.startswith(_STATE, autoescape=True)))
    kept = {row.key.removeprefix(_STATE): row.value for row in rows}
    return {str(state): kept.get(state.value, 0) for state in JobState}


def read_ready(connection: Connection) -> dict[int, int]:
    """Give how many jobs of each requirement class are ready, as the writer counts them; none where none is."""
    rows = connection.execute(select(COUNTERS).where(COUNTERS.c.key.startswith(_CLASS, autoescape=True)))
    return {int(row.key.removeprefix(_CLASS)): row.value for row in rows if row.value}


def read_before(connection: Connection, seq: int) -> Before:
    """Count the ready jobs that stand before one in the line: higher priorities, and its own priority's older ones."""
    row = connection.execute(select(JOBS.c.class_id, JOBS.c.priority, JOBS.c.state).where(JOBS.c.seq == seq)).one()
    if row.state != JobState.PENDING:
        return Before()
    counts = {class_id: _before_in(connection, class_id, row.priority, seq) for class_id in read_ready(connection)}
    return Before(alike=counts.get(row.class_id, 0), by_class=counts)


def _before_in(connection: Connection, class_id: int, priority: int, seq: int) -> int:
    """Count in one class, along its index: only those that are before are touched."""
    ready = select(func.count()).select_from(JOBS).where(_READY, JOBS.c.class_id == class_id)
    higher = ready.where(JOBS.c.priority > priority)
    older = ready.where(JOBS.c.priority == priority, JOBS.c.seq < seq)
    return int(connection.scalar(higher) or 0) + int(connection.scalar(older) or 0)


def read_machines(connection: Connection, name: str = "") -> tuple[MachineRow, ...]:
    """Give every machine by name, or one, each with its live leases."""
    leases = select(
        LEASES, JOBS.c.id, JOBS.c.name, JOBS.c.number, JOBS.c.recipe, JOBS.c.class_id, JOBS.c.state, JOBS.c.started_s
    ).join_from(LEASES, JOBS, JOBS.c.seq == LEASES.c.seq)
    machines = select(MACHINES).order_by(MACHINES.c.name)
    if name:
        leases = leases.where(LEASES.c.machine == name)
        machines = machines.where(MACHINES.c.name == name)
    held: dict[str, list[Held]] = {}
    for row in connection.execute(leases.order_by(LEASES.c.seq)):
        held.setdefault(row.machine, []).append(_held(row))
    return tuple(_machine(row, tuple(held.get(row.name, ()))) for row in connection.execute(machines))


def read_meta(connection: Connection) -> dict[str, str]:
    """Give what the database says of itself: its generation, its latest time."""
    return {row.key: row.value for row in connection.execute(select(META))}


def _held(row: Row[Any]) -> Held:
    return Held(
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


def _machine(row: Row[Any], held: tuple[Held, ...]) -> MachineRow:
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
