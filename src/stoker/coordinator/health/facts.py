"""What is known of machines when their health is judged. Nouns alone; `gathering` makes them, `symptoms` reads them."""

from __future__ import annotations

from collections import deque
from typing import Any

from sqlalchemy import Connection, select

from stoker.coordinator.database.database import snapshot
from stoker.coordinator.database.tables import ATTEMPTS, EVENTS, JOBS
from stoker.coordinator.queue.commands import InspectMachines, MachineInspection
from stoker.coordinator.queue.queue import Queue
from stoker.coordinator.queue.read_jobs import read_newest_event, read_object
from stoker.core.clock import Clock
from stoker.core.events import FleetKinds
from stoker.core.frozen import fresh, frozen
from stoker.core.jsontext import loads


@frozen
class MachineHealthFacts:
    """One machine, as it stands."""

    name: str
    version: str = ""
    last_seen_s: float
    has_left: bool = False
    """Its worker said goodbye."""
    disk_free_bytes: int | None = None
    closed_devices: frozenset[str] = frozenset()


@frozen
class WorkerPresenceEvent:
    """A machine's worker was started, or it fell silent."""

    machine: str
    at_s: float
    is_new_start: bool


@frozen
class AttemptHealthFacts:
    """One attempt that has ended."""

    seq: int
    """The job's number."""
    machine: str
    devices: tuple[str, ...] = ()
    recipe: str
    name: str
    """The job's, without its number in a sweep."""
    ending: str
    """completed, failed, declined, expired …"""
    cause: str = ""
    message: str = ""
    seconds: float | None = None
    """From its start to its end; nothing: it never started."""

    @property
    def work(self) -> str:
        """What jobs that can be compared have in common; programs only within one job's name."""
        return f"{self.recipe} {self.name}" if self.recipe == "command" else self.recipe


@frozen
class FleetHealthFacts:
    """All of it, at one moment."""

    now_s: float
    version: str
    """The coordinator's."""
    machines: tuple[MachineHealthFacts, ...] = ()
    comings: tuple[WorkerPresenceEvent, ...] = ()
    """Of the last hour."""
    endings: tuple[AttemptHealthFacts, ...] = fresh(factory=tuple)
    """The newest, oldest first."""


# Facts for a judgement of machines' health, gathered from the journal as it grows: bounded reads, beside the writer.
#
# What was read is kept in memory, a bounded number of endings and an hour of comings; a restart reads the newest part
# of the journal again, and comes to the same.

HOUR_S = 3600.0
MOST_ENDINGS = 5000
MOST_EVENTS = 20_000
"""Read at one time: whoever is further behind begins with the newest."""
_PAGE = 2000
_ENDINGS = (
    FleetKinds.JOB_FINISHED,
    FleetKinds.JOB_FAILED,
    FleetKinds.JOB_RETRYING,
    FleetKinds.JOB_DECLINED,
)
_KINDS = (*_ENDINGS, FleetKinds.MACHINE_JOINED, FleetKinds.MACHINE_LOST, FleetKinds.MACHINE_CHANGED)
_LONGEST_MESSAGE = 2000


class Gatherer:
    """Reads on from where it was. One thread at a time."""

    def __init__(self, queue: Queue, *, clock: Clock, version: str) -> None:
        self._queue = queue
        self._clock = clock
        self._version = version
        self._cursor: int | None = None
        self._endings: deque[AttemptHealthFacts] = deque(maxlen=MOST_ENDINGS)
        self._comings: deque[WorkerPresenceEvent] = deque(maxlen=MOST_ENDINGS)
        self._has_device_failures = False

    def gather(self) -> FleetHealthFacts:
        """Return what is known now."""
        now_s = self._clock.wall_s()
        self._read_on()
        self._has_device_failures = False
        while self._comings and self._comings[0].at_s < now_s - HOUR_S:
            self._comings.popleft()
        return FleetHealthFacts(
            now_s=now_s,
            version=self._version,
            machines=self._machines(),
            comings=tuple(self._comings),
            endings=tuple(self._endings),
        )

    def sees_device_failures(self) -> bool:
        """Read on, and say whether an attempt has failed on a device since facts were last given."""
        self._read_on()
        return self._has_device_failures

    def _machines(self) -> tuple[MachineHealthFacts, ...]:
        looked = self._queue.ask(InspectMachines())
        free = looked.disk_free_bytes if isinstance(looked, MachineInspection) else {}
        return tuple(
            MachineHealthFacts(
                name=row.name,
                version=row.version,
                last_seen_s=row.last_seen_s,
                has_left=row.left_s is not None,
                disk_free_bytes=free.get(row.name),
                closed_devices=frozenset(row.closed_devices),
            )
            for row in self._queue.reader.machines()
        )

    def _read_on(self) -> None:
        with snapshot(self._queue.reader.database) as connection:
            newest = read_newest_event(connection)
            oldest = max(0, newest - MOST_EVENTS)
            # A database that was restored counts its events anew.
            cursor = oldest if self._cursor is None or self._cursor > newest else max(self._cursor, oldest)
            while cursor < newest:
                until = min(newest, cursor + _PAGE)
                for row in _page(connection, cursor, until):
                    self._take(row)
                cursor = until
            self._cursor = cursor

    def _take(self, row: Any) -> None:
        if row.kind == FleetKinds.MACHINE_CHANGED:
            self._take_opening(row)
        elif row.kind in _ENDINGS:
            if row.ending:
                ending = _ending(row)
                self._endings.append(ending)
                self._has_device_failures |= ending.ending == "failed" and bool(ending.devices)
        else:
            is_start = row.kind == FleetKinds.MACHINE_JOINED
            self._comings.append(WorkerPresenceEvent(machine=row.machine, at_s=row.at_s, is_new_start=is_start))

    def _take_opening(self, row: Any) -> None:
        """Forget what failed on devices that somebody has opened again: they get a second chance."""
        told = read_object(row.fields)
        devices = set(told.get("devices", ()))
        if told.get("what") != "opened" or not devices:
            return
        kept = [one for one in self._endings if one.machine != row.machine or not devices & set(one.devices)]
        self._endings = deque(kept, maxlen=MOST_ENDINGS)


def _page(connection: Connection, after: int, until: int) -> list[Any]:
    """Read a range of the journal along its key, with the attempts that ended in it."""
    asked = (
        select(
            EVENTS.c.kind,
            EVENTS.c.at_s,
            EVENTS.c.machine,
            EVENTS.c.fields,
            EVENTS.c.seq,
            ATTEMPTS.c.machine.label("ran_on"),
            ATTEMPTS.c.devices,
            ATTEMPTS.c.ending,
            ATTEMPTS.c.cause,
            ATTEMPTS.c.message,
            ATTEMPTS.c.started_s,
            ATTEMPTS.c.ended_s,
            JOBS.c.recipe,
            JOBS.c.name,
        )
        .select_from(
            EVENTS.outerjoin(
                ATTEMPTS, (ATTEMPTS.c.seq == EVENTS.c.seq) & (ATTEMPTS.c.attempt == EVENTS.c.attempt)
            ).outerjoin(JOBS, JOBS.c.seq == EVENTS.c.seq)
        )
        .where(EVENTS.c.id > after, EVENTS.c.id <= until, EVENTS.c.kind.in_(_KINDS))
        .order_by(EVENTS.c.id)
    )
    return list(connection.execute(asked))


def _ending(row: Any) -> AttemptHealthFacts:
    is_timed = row.started_s is not None and row.ended_s is not None
    return AttemptHealthFacts(
        seq=row.seq,
        machine=row.ran_on,
        devices=tuple(loads(row.devices)) if row.devices else (),
        recipe=row.recipe,
        name=row.name,
        ending=row.ending,
        cause=row.cause,
        message=row.message[:_LONGEST_MESSAGE],
        seconds=row.ended_s - row.started_s if is_timed else None,
    )
