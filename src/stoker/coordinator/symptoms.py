"""Symptoms of machines and devices: decided purely from facts, each with a reason and the command to run.

Symptoms are shown to users, and a failing device is cordoned: so every rule compares. What fails or is slow everywhere
is the work, not the machine.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from statistics import median
from typing import Any

from sqlalchemy import Connection, select

from stoker.coordinator.database.database import snapshot
from stoker.coordinator.database.tables import ATTEMPTS, EVENTS, JOBS
from stoker.coordinator.queue.commands import (
    CloseMachine,
    InspectMachines,
    MachineCloseMode,
    MachineInspection,
    NoteSymptoms,
)
from stoker.coordinator.queue.read_jobs import read_newest_event, read_object
from stoker.coordinator.queue.writer import Queue
from stoker.coordinator.storage.telemetry import FleetTelemetry
from stoker.core.clock import Clock
from stoker.core.events import FleetKinds
from stoker.core.frozen import fresh, frozen
from stoker.core.jsontext import loads
from stoker.core.leases import Symptom, SymptomKind, is_skewed
from stoker.core.retry import BudgetCharge, FailureCause, charge_of
from stoker.core.text import format_duration, format_size
from stoker.host.background import RecurringTask
from stoker.protocol.telemetry_messages import AlertView


@frozen
class MachineHealthFacts:
    """The present state of one machine."""

    name: str
    version: str = ""
    last_seen_s: float
    has_left: bool = False
    """Its worker shut down in order."""
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
    """One ended attempt."""

    seq: int
    """Number of the job."""
    machine: str
    devices: tuple[str, ...] = ()
    recipe: str
    name: str
    """Of the job, without its number in a sweep."""
    ending: str
    """completed, failed, declined, expired …"""
    cause: str = ""
    message: str = ""
    seconds: float | None = None
    """From its start to its end; None: it never started."""

    @property
    def work(self) -> str:
        """The key of comparable jobs: the recipe; for programs with the job's name."""
        return f"{self.recipe} {self.name}" if self.recipe == "command" else self.recipe


@frozen
class FleetHealthFacts:
    """The facts about a fleet at one moment."""

    now_s: float
    version: str
    """Of the coordinator."""
    machines: tuple[MachineHealthFacts, ...] = ()
    comings: tuple[WorkerPresenceEvent, ...] = ()
    """Of the last hour."""
    endings: tuple[AttemptHealthFacts, ...] = fresh(factory=tuple)
    """The newest, oldest first."""
    alerts: Mapping[str, tuple[AlertView, ...]] = fresh(factory=dict)
    """Limits that devices have reached, by machine, as reported by their workers."""


HOUR_S = 3600.0
MOST_ENDINGS = 5000
MOST_EVENTS = 20_000
"""Read at one time: a reader that is further behind begins with the newest."""
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
    """Collects facts from new events by bounded reads, beside the writer. Not thread-safe.

    A bounded number of endings and an hour of worker starts are kept in memory; a restart reads the newest events
    again, with the same result.
    """

    def __init__(self, queue: Queue, *, clock: Clock, version: str, telemetry: FleetTelemetry | None = None) -> None:
        self._queue = queue
        self._telemetry = telemetry
        self._alert_count = 0
        self._clock = clock
        self._version = version
        self._cursor: int | None = None
        self._endings: deque[AttemptHealthFacts] = deque(maxlen=MOST_ENDINGS)
        self._comings: deque[WorkerPresenceEvent] = deque(maxlen=MOST_ENDINGS)
        self._has_device_failures = False

    def gather(self) -> FleetHealthFacts:
        """Return the present facts."""
        now_s = self._clock.wall_s()
        self._read_on()
        self._has_device_failures = False
        self._alert_count = 0 if self._telemetry is None else self._telemetry.alert_count
        while self._comings and self._comings[0].at_s < now_s - HOUR_S:
            self._comings.popleft()
        return FleetHealthFacts(
            now_s=now_s,
            version=self._version,
            machines=self._machines(),
            comings=tuple(self._comings),
            endings=tuple(self._endings),
            alerts={}
            if self._telemetry is None
            else {name: report.alerts for name, report in self._telemetry.all_latest().items() if report.alerts},
        )

    def sees_new_alerts(self) -> bool:
        """Return True if an alert of a device was raised or cleared since `gather`."""
        return self._telemetry is not None and self._telemetry.alert_count != self._alert_count

    def sees_device_failures(self) -> bool:
        """Read new events, and return True if an attempt failed on a device since `gather`."""
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
            # After a restore the ids of events start again.
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
        """Drop failures on devices that were opened again: they get a second chance."""
        fields = read_object(row.fields)
        devices = set(fields.get("devices", ()))
        if fields.get("what") != "opened" or not devices:
            return
        kept = [one for one in self._endings if one.machine != row.machine or not devices & set(one.devices)]
        self._endings = deque(kept, maxlen=MOST_ENDINGS)


def _page(connection: Connection, after: int, until: int) -> list[Any]:
    """Return a range of events along their key, with the attempts that ended in it."""
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


BROKEN_JOBS = 3
"""Different jobs that failed with hardware errors."""
ALIKE_JOBS = 5
"""Different jobs that failed with the same message, in a row."""

DevicePlace = tuple[str, str]
"""A machine and one of its devices."""

_SIGN_CHARS = 80
_WHY_CHARS = 200
_OF_SIZE = frozenset({FailureCause.OOM_DEVICE, FailureCause.OOM_HOST})
# Messages of drivers and runtimes. Running out of memory is not among them: that is the job's size.
_DEVICE_LIKE = re.compile(
    r"cuda error|cuda(?:_|\s)?(?:driver|runtime) error|cudnn_status|cublas_status|hip error|hipErr|\bXid\b|\bECC\b"
    r"|uncorrectable|illegal memory access|unspecified launch failure|device-side assert|misaligned address"
    r"|fallen off the bus|device (?:is )?(?:lost|unavailable|not ready)|no cuda-capable device|nvml|nccl.*(?:unhandled|"
    r"internal) error|mps backend.*(?:failed|error)|gpu is lost|bus error",
    re.IGNORECASE,
)


def devices_at_fault(endings: Sequence[AttemptHealthFacts]) -> dict[DevicePlace, str]:
    """Return the failing devices, each with the reason; `endings` are oldest first. Pure.

    Two signs count, each since the last success there: three different jobs failed with hardware errors; or five in a
    row failed with the same message, which occurs on no other device. What fails everywhere, or never succeeded, is the
    code; a job on several devices blames none of them.
    """
    failed: dict[DevicePlace, list[AttemptHealthFacts]] = {}
    for one in endings:
        if len(one.devices) == 1:
            _note(failed.setdefault((one.machine, one.devices[0]), []), one)
    found: dict[DevicePlace, str] = {}
    for place, here in failed.items():
        if len({one.seq for one in here}) >= min(BROKEN_JOBS, ALIKE_JOBS):
            elsewhere = [one for one in endings if one.machine != place[0] or one.devices != place[1:]]
            why = _why_broken(here, elsewhere) or _why_alike(here, elsewhere)
            if why:
                found[place] = why
    return found


def _note(failed: list[AttemptHealthFacts], one: AttemptHealthFacts) -> None:
    """Add a failure since the last success; cancelled and lost attempts say nothing about a device."""
    if one.ending == "completed":
        failed.clear()
    elif one.ending == "failed" and one.cause != FailureCause.CANCELLED and charge_of(one.cause) is BudgetCharge.USER:
        failed.append(one)


def _why_broken(failed: Sequence[AttemptHealthFacts], elsewhere: Sequence[AttemptHealthFacts]) -> str:
    hardware = [one for one in failed if _is_device_like(one)]
    jobs = {one.seq for one in hardware}
    if len(jobs) < BROKEN_JOBS:
        return ""
    well = {one.work for one in elsewhere if one.ending == "completed"}
    if not any(one.work in well for one in hardware):
        return ""
    last = hardware[-1].message.strip().splitlines()[-1][:_WHY_CHARS]
    return f"{len(jobs)} different jobs failed on it, and jobs succeed elsewhere: {last}"


def _why_alike(failed: Sequence[AttemptHealthFacts], elsewhere: Sequence[AttemptHealthFacts]) -> str:
    if not failed or _is_of_size(failed[-1]):
        return ""
    sign = _sign(failed[-1])
    jobs: set[int] = set()
    for one in reversed(failed):
        if _sign(one) != sign:
            break
        jobs.add(one.seq)
    if len(jobs) < ALIKE_JOBS:
        return ""
    fails_elsewhere = any(one.ending == "failed" and _sign(one) == sign for one in elsewhere)
    # On another device: success without a device proves nothing.
    is_done_elsewhere = any(
        one.ending == "completed" and one.devices and one.work == failed[-1].work for one in elsewhere
    )
    if fails_elsewhere or not is_done_elsewhere:
        return ""
    return f"{len(jobs)} different jobs in a row failed on it in the same way, and succeed elsewhere: {sign}"


def _is_device_like(ending: AttemptHealthFacts) -> bool:
    return not _is_of_size(ending) and _DEVICE_LIKE.search(ending.message) is not None


def _is_of_size(ending: AttemptHealthFacts) -> bool:
    return ending.cause in _OF_SIZE


def _sign(ending: AttemptHealthFacts) -> str:
    """Return the key of equal failures."""
    return f"{ending.cause}: {ending.message.partition(chr(10))[0][:_SIGN_CHARS]}"


KNOWN_S = 24 * 3600.0
"""A machine that was silent for longer is gone, without a symptom."""
QUIET_S = 30 * 60.0
FLAPS = 4
"""Starts, or silences, within an hour."""
SLOWER = 2.0
"""Factor to the others' median."""
SLOWER_S = 1.0
"""Minimum difference: very short jobs take twice as long by chance."""
LEAST_RUNS = 3
FATAL = 5
"""Attempts in a row without success."""
LEAST_DISK_BYTES = 5 * 1024**3

_BAD = frozenset({"failed", "declined"})


def symptoms_of(facts: FleetHealthFacts) -> list[Symptom]:
    """Return all symptoms: machine by machine, then of devices."""
    gone = {machine.name for machine in facts.machines if facts.now_s - machine.last_seen_s > KNOWN_S}
    among = _Among(facts)
    found: list[Symptom] = []
    for machine in facts.machines:
        if machine.name not in gone:
            for rule in _RULES:
                found += rule(among, machine)
    found += [one for one in failing_devices(facts) if one.machine not in gone]
    return found + alert_symptoms(facts.alerts, {one.name for one in facts.machines if not one.has_left})


def failing_devices(facts: FleetHealthFacts) -> list[Symptom]:
    """Return the symptoms of failing devices of known machines."""
    known = {machine.name for machine in facts.machines}
    return [
        Symptom(
            machine=machine,
            device=device,
            ailment=SymptomKind.FAILING,
            message=why,
            hint=f"`stoker doctor --smoke` there, then `stoker machines open {machine} --device {device}`",
        )
        for (machine, device), why in sorted(devices_at_fault(facts.endings).items())
        if machine in known
    ]


class _Among:
    """Facts, indexed to compare one machine with all others."""

    def __init__(self, facts: FleetHealthFacts) -> None:
        self.now_s, self.version = facts.now_s, facts.version
        self.comings: dict[str, list[WorkerPresenceEvent]] = defaultdict(list)
        self.endings: dict[str, list[AttemptHealthFacts]] = defaultdict(list)
        """By machine, like `comings`."""
        self.done_by: dict[str, set[str]] = defaultdict(set)
        """Work → the machines that completed it."""
        self.durations: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        """Work → machine → how long it took there."""
        for coming in facts.comings:
            self.comings[coming.machine].append(coming)
        for one in facts.endings:
            self.endings[one.machine].append(one)
            if one.ending == "completed":
                self.done_by[one.work].add(one.machine)
                if one.seconds is not None:
                    self.durations[one.work][one.machine].append(one.seconds)

    def durations_elsewhere(self, work: str, machine: str) -> list[float]:
        return [one for name, some in self.durations[work].items() if name != machine for one in some]

    @cached_property
    def usual_s(self) -> dict[str, float]:
        """Work → how long it takes, over all machines."""
        return {
            work: median([one for some in by_machine.values() for one in some])
            for work, by_machine in self.durations.items()
        }


def _silent(among: _Among, machine: MachineHealthFacts) -> Iterator[Symptom]:
    quiet_s = among.now_s - machine.last_seen_s
    if quiet_s > QUIET_S and not machine.has_left:
        yield Symptom(
            machine=machine.name,
            ailment=SymptomKind.SILENT,
            message=f"no request for {format_duration(quiet_s)}",
            hint=f"start `stoker work` there, or remove it: `stoker machines forget {machine.name}`",
        )


def _flapping(among: _Among, machine: MachineHealthFacts) -> Iterator[Symptom]:
    mine = among.comings[machine.name]
    starts = sum(coming.is_new_start for coming in mine)
    silences = len(mine) - starts
    # A crash is often both, a silence and then a start: they are not added.
    if max(starts, silences) >= FLAPS:
        fell = f" and fell silent {silences} times" if silences else ""
        yield Symptom(
            machine=machine.name,
            ailment=SymptomKind.FLAPPING,
            message=f"the worker started {starts} times within an hour" + fell,
            hint=f"run `stoker doctor` there; until it is fixed: `stoker machines cordon {machine.name}`",
        )


def _slow(among: _Among, machine: MachineHealthFacts) -> Iterator[Symptom]:
    for work in dict.fromkeys(one.work for one in among.endings[machine.name]):
        durations = among.durations.get(work, {}).get(machine.name, [])
        # Twice the others' median is not below that of all: most jobs end here.
        if len(durations) < LEAST_RUNS or (its := median(durations)) < among.usual_s[work]:
            continue
        others = among.durations_elsewhere(work, machine.name)
        if len(others) < LEAST_RUNS:
            continue
        theirs = median(others)
        if its >= SLOWER * theirs and its - theirs >= SLOWER_S:
            yield Symptom(
                machine=machine.name,
                ailment=SymptomKind.SLOW,
                message=(
                    f"{work} takes {format_duration(its)} there and {format_duration(theirs)} elsewhere "
                    f"(medians of {len(durations)} and {len(others)} jobs)"
                ),
                hint=f"check other load and throttling: `stoker machines show {machine.name}`",
            )
            return


def _fatal_only(among: _Among, machine: MachineHealthFacts) -> Iterator[Symptom]:
    # A released or cancelled job says nothing about the machine.
    ended = [one for one in among.endings[machine.name] if one.ending in _BAD or one.ending == "completed"][-FATAL:]
    if len(ended) < FATAL or any(one.ending == "completed" for one in ended):
        return
    if any(among.done_by.get(one.work, set()) - {machine.name} for one in ended):
        last = ended[-1]
        why = last.message.strip().splitlines()[-1][:200] if last.message.strip() else last.cause or last.ending
        yield Symptom(
            machine=machine.name,
            ailment=SymptomKind.FATAL_ONLY,
            message=f"the last {len(ended)} attempts failed or were declined; other machines complete the same: {why}",
            hint=f"run `stoker doctor` there; until it is fixed: `stoker machines cordon {machine.name}`",
        )


def _skewed(among: _Among, machine: MachineHealthFacts) -> Iterator[Symptom]:
    if not is_skewed(machine.version, among.version) or machine.has_left:
        return
    its = f"version {machine.version}" if machine.version else "unknown version"
    yield Symptom(
        machine=machine.name,
        ailment=SymptomKind.SKEWED,
        message=f"{its}; the coordinator has {among.version}",
        hint=f"install {among.version} there, then restart its worker",
    )


def _disk(_: _Among, machine: MachineHealthFacts) -> Iterator[Symptom]:
    free = machine.disk_free_bytes
    if free is not None and free < LEAST_DISK_BYTES and not machine.has_left:
        yield Symptom(
            machine=machine.name,
            ailment=SymptomKind.DISK,
            message=f"{format_size(free)} free on its disk",
            hint="`stoker store prune` there",
        )


_RULES: tuple[Callable[[_Among, MachineHealthFacts], Iterator[Symptom]], ...] = (
    _silent,
    _flapping,
    _slow,
    _fatal_only,
    _skewed,
    _disk,
)


EVERY_S = 60.0
SOON_S = 3.0
"""Interval of checks for failures on devices."""
BY = "the coordinator"


class HealthWatch(RecurringTask):
    """Gathers facts, stores symptoms, and cordons a failing device, during a with-block.

    Every minute, and within seconds of a failure on a device: a broken one fails jobs as fast as it gets them. Runs in
    a separate thread; errors here are retried and block nothing.
    """

    def __init__(self, queue: Queue, gatherer: Gatherer, *, every_s: float = EVERY_S, soon_s: float = SOON_S) -> None:
        super().__init__("health", first_s=soon_s, retry_s=soon_s)
        self._queue = queue
        self._gatherer = gatherer
        self._soon_s = soon_s
        self._looks_each = max(1, round(every_s / soon_s))
        self._waited = 0

    def look(self) -> list[Symptom]:
        """Check once, act, and return the symptoms."""
        facts = self._gatherer.gather()
        found = symptoms_of(facts)
        self._queue.ask(NoteSymptoms(symptoms=tuple(found)))
        for symptom in to_cordon(facts, found):
            closing = CloseMachine(
                machine=symptom.machine,
                how=MachineCloseMode.CORDON,
                devices=(symptom.device,),
                why=symptom.message,
                by=BY,
            )
            self._queue.ask(closing)
        return found

    def act(self) -> float:
        """Check if it is time, or if a device fails; return the seconds until the next time."""
        self._waited += 1
        if self._waited >= self._looks_each or self._gatherer.sees_new_alerts() or self._has_to_cordon():
            self._waited = 0
            self.look()
        return self._soon_s

    def _has_to_cordon(self) -> bool:
        """Return True if a failing device is still open; the queue is asked only after failures on devices."""
        if not self._gatherer.sees_device_failures():
            return False
        facts = self._gatherer.gather()
        return bool(to_cordon(facts, failing_devices(facts)))


def to_cordon(facts: FleetHealthFacts, found: list[Symptom]) -> list[Symptom]:
    """Return the failing devices that are still open."""
    closed = {machine.name: machine.closed_devices for machine in facts.machines}
    return [one for one in found if one.ailment is SymptomKind.FAILING and one.device not in closed[one.machine]]


# Devices that have reached a limit: heat, memory, power, idleness.

LEAST_SEVERITY = 50
"""A less severe alert is shown with the machine, and nowhere else."""
_HINTS = {
    SymptomKind.HOT: "check its cooling; until it is fixed: `stoker machines cordon {machine} --device {device}`",
    SymptomKind.MEMORY: "see which processes use it: `stoker machines memory` there",
    SymptomKind.POWER: "check its power supply: `stoker machines show {machine}`",
    SymptomKind.IDLE: "see what its job waits for: `stoker machines show {machine}`, then `stoker logs NAME`",
}


def alert_symptoms(alerts: Mapping[str, Sequence[AlertView]], machines: Collection[str]) -> list[Symptom]:
    """Return the symptoms of these machines; `alerts` are what their workers report now, by machine."""
    found: dict[tuple[str, str, str], Symptom] = {}
    for machine in sorted(alerts.keys() & set(machines)):
        for one in alerts[machine]:
            if one.severity < LEAST_SEVERITY or one.kind not in _HINTS:
                continue
            kind = SymptomKind(one.kind)
            symptom = Symptom(
                machine=machine,
                device=one.device,
                ailment=kind,
                message=f"{one.message} (severity {one.severity})",
                hint=_HINTS[kind].format(machine=machine, device=one.device),
            )
            found[symptom.key] = symptom
    return list(found.values())
