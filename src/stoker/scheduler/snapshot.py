"""The state of a scheduler as plain data: what `take` reads in one go, and `restore` puts into another scheduler.

A forecast runs a restored scheduler forward on a clock of its own (`simulation.simulator`). Times are seconds from the
moment of the snapshot: negative ones have passed. Reservations of machines, and how often jobs were passed, are not
part of it: a restored scheduler finds them again. The ready jobs of a class and priority are numbers in the order of
the queue; of very long lines only the first are numbered, and the others counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from stoker.core.errors import BadInput
from stoker.core.frozen import frozen
from stoker.core.jsontext import MOST_WHOLE, ReadRules, from_plain, to_plain
from stoker.core.machine import SchedulableJob, UserPolicy
from stoker.scheduler.machine_index import LeaseAllocation, MachineLease, MatchableMachine
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.prices import RESOURCES
from stoker.scheduler.scheduler import Scheduler

FORMAT = 1
_MOMENT_S = 1e-3
MOST_NUMBERED = 20_000
"""So many ready jobs are numbered, of all classes together."""


@frozen
class MachineRecord:
    """One machine: what it offers with nothing running, and what was measured there."""

    offer: NodeOffer
    seen_bytes: int | None = None
    """RAM that jobs may have, by what was measured."""
    free_bytes: tuple[int | None, ...] = ()
    """Measured free memory of each device."""
    told: tuple[tuple[str, str], ...] = ()
    """What the machine itself says is closed, and why; "" is all of it."""
    ends_s: float | None = None
    """When it goes away."""
    is_doubted: bool = False
    """It declined something lately."""
    is_silent: bool = False
    """It did not answer a call: it is not expected to ask."""
    declined: tuple[tuple[int, float], ...] = ()
    """Jobs that it declined, by number, and until when it is not offered them."""


@frozen
class LeaseRecord:
    """A live lease."""

    job: int
    """The number of its job."""
    machine: str
    class_id: int
    devices: tuple[str, ...] = ()
    is_shared: bool = False
    started_s: float
    until_s: float
    """When it is expected to end."""
    is_estimated: bool = True
    """That is an estimate; otherwise nothing is known of its duration."""
    cost_rate: float = 0.0
    """What it adds per second to the work that is left, in seconds of the fleet."""


@frozen
class ClassRecord:
    """Jobs that ask for the same, are of one user, and are expected to take equally long."""

    class_id: int
    wanted: SchedulableJob
    user: str = ""
    like: str = ""
    expected_s: float | None = None
    """On a device of speed 1; `None`: no estimate."""
    based_on: str = ""
    """What the estimate is from."""


@frozen
class ReadyRecord:
    """The ready jobs of a class at a priority."""

    class_id: int
    priority: int
    runs: tuple[tuple[int, int], ...] = ()
    """Their numbers in order: (first, how many without a gap)."""
    more: int = 0
    """How many follow that are not numbered."""
    come_s: float = 0.0
    """When they become ready."""
    is_new: bool = False
    """They come at the moment of the snapshot; the others came before."""

    @property
    def numbered(self) -> int:
        return sum(count for _, count in self.runs)

    @property
    def count(self) -> int:
        return self.numbered + self.more

    def numbers(self) -> list[int]:
        """Return the numbers one by one."""
        return [number for first, count in self.runs for number in range(first, first + count)]


@frozen
class HoldRecord:
    """Since when the jobs of some classes are held back for a faster machine."""

    user: str
    priority: int
    class_ids: tuple[int, ...]
    since_s: float


@frozen
class Snapshot:
    """All of it."""

    now_s: float
    """The time at which it was taken."""
    format: int = FORMAT
    machines: tuple[MachineRecord, ...] = ()
    leases: tuple[LeaseRecord, ...] = ()
    classes: tuple[ClassRecord, ...] = ()
    ready: tuple[ReadyRecord, ...] = ()
    held: tuple[HoldRecord, ...] = ()
    priced: tuple[tuple[int, int], ...] = ()
    """How many jobs of which classes were ready when prices were last found; none: they have to be found."""
    prices: tuple[tuple[str, tuple[float, ...]], ...] = ()
    """Prices (`prices.RESOURCES`) of each node type, by a machine of it."""
    bound_s: float = 0.0
    """What the prices say of the time that the waiting work takes."""
    arrivals: tuple[tuple[str, float, float | None], ...] = ()
    """By a machine of each node type: when jobs came for which it is fast, and how far apart such arrivals are."""
    users: tuple[tuple[str, UserPolicy], ...] = ()
    """What the operator allows users; the name `*` is for users without an entry."""
    usage_s: tuple[tuple[str, float], ...] = ()
    """Users and what they have had of the fleet (`shares`)."""
    likes: tuple[tuple[str, float], ...] = ()
    """How long runs of a recipe or program take, for classes that are new."""

    @property
    def ready_count(self) -> int:
        """How many jobs are ready."""
        return sum(level.count for level in self.ready)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        plain: dict[str, Any] = to_plain(self)
        return plain


def snapshot_from_dict(said: object) -> Snapshot:
    """Return the snapshot that JSON describes.

    Raises:
        BadInput: it is none, it is of another format, or its parts do not belong together.

    """
    if isinstance(said, Mapping) and said.get("format") != FORMAT:
        message = f"schedule.format: {said.get('format')!r}, and this program reads {FORMAT}"
        raise BadInput(message, hint="use the same version of Stoker here and on the coordinator")
    snapshot = from_plain(Snapshot, said, "schedule", ReadRules(bounds={"priority": (-MOST_WHOLE, MOST_WHOLE)}))
    classes = {one.class_id for one in snapshot.classes}
    named = sorted(_used_ids(snapshot))
    named += [class_id for held in snapshot.held for class_id in held.class_ids]
    for class_id in named:
        if class_id not in classes:
            message = f"schedule: there is no class {class_id}"
            raise BadInput(message)
    machines = [one.offer.node for one in snapshot.machines]
    for name, row in snapshot.prices:
        if name not in machines or len(row) != len(RESOURCES):
            message = f"schedule.prices: not those of a machine: {name}"
            raise BadInput(message)
    for name, _, _ in snapshot.arrivals:
        if name not in machines:
            message = f"schedule.arrivals: there is no machine {name}"
            raise BadInput(message)
    if len(set(machines)) < len(machines):
        message = "schedule.machines: two machines of one name"
        raise BadInput(message)
    return snapshot


def take(
    scheduler: Scheduler,
    now_s: float,
    *,
    running: Iterable[tuple[int, LeaseAllocation]] = (),
    declined: Mapping[str, Mapping[int, float]] | None = None,
) -> Snapshot:
    """Return the state of a scheduler; what is `running` has its job's number. `declined` is until when, by machine.

    Costs a moment for each machine, lease and class. Of the ready jobs only the first of each class and priority is
    numbered: `changed(snapshot, ready=…)` adds more.
    """
    shares, barred = scheduler.shares, declined or {}
    found = {id(one.allocation): one for one in scheduler.machines.leases()}
    return Snapshot(
        now_s=now_s,
        machines=tuple(
            [_machine(one, barred.get(name, {}), now_s) for name, one in scheduler.machines.machines.items()]
        ),
        leases=tuple([_lease(found[id(allocation)], job, now_s) for job, allocation in running]),
        classes=tuple(
            [
                ClassRecord(
                    class_id=class_id,
                    wanted=scheduler.wanted[class_id],
                    user=one.user,
                    like=scheduler.durations.like(class_id),
                    expected_s=scheduler.durations.expected_s(class_id),
                    based_on=scheduler.durations.based_on(class_id),
                )
                for class_id, one in scheduler.ready.classes.items()
            ]
        ),
        ready=tuple(
            [
                ReadyRecord(class_id=head.class_id, priority=head.priority, runs=((head.seq, 1),), more=head.count - 1)
                for head in scheduler.ready.heads()
            ]
        ),
        held=tuple(_held(scheduler, now_s)),
        priced=tuple(_priced(scheduler).items()),
        prices=tuple(_prices(scheduler)),
        bound_s=scheduler.tables.prices.bound_s if scheduler.tables.prices is not None else 0.0,
        arrivals=tuple(
            [
                (one.offer.node, one.arrived_s - now_s, one.gap_s if one.gap_s < inf else None)
                for one in scheduler.tables.tables
                if one.count and one.arrived_s > -inf
            ]
        ),
        users=tuple(shares.policies.items()),
        usage_s=tuple(shares.usage(now_s).items()),
        likes=tuple(scheduler.durations.likes().items()),
    )


def restore(scheduler: Scheduler, snapshot: Snapshot) -> dict[int, LeaseAllocation]:
    """Put machines, classes, users and leases into an empty scheduler, at time 0; return the leases by job number.

    The caller adds ready jobs (`Scheduler.ready.set_head`), then calls `restore_waiting`.
    """
    scheduler.set_policies(dict(snapshot.users))
    for record in snapshot.machines:
        scheduler.put_machine(_restored(record))
        if record.is_doubted:
            scheduler.doubt(record.offer.node, is_doubted=True)
        if record.is_silent:
            scheduler.machines.set_silent(scheduler.machines.machines[record.offer.node], is_silent=True)
    for one in used_classes(snapshot):
        scheduler.put_class(one.class_id, one.wanted, user=one.user, expected_s=one.expected_s)
    for user, usage_s in snapshot.usage_s:
        scheduler.shares.charge(user, usage_s, 0.0)
    leases: dict[int, LeaseAllocation] = {}
    for lease in snapshot.leases:
        allocation = LeaseAllocation(lease.machine, lease.class_id, lease.devices, lease.is_shared)
        _resume(scheduler, allocation, lease)
        leases[lease.job] = allocation
    return leases


def restore_waiting(scheduler: Scheduler, snapshot: Snapshot) -> None:
    """Take over prices, and remember when jobs came and since when ready ones are held back."""
    new = {level.class_id for level in snapshot.ready if level.is_new}
    scheduler.ready.came &= sum({scheduler.ready.classes[class_id].type.bits for class_id in new})
    if snapshot.prices:
        _take_over_prices(scheduler, snapshot)
    for name, arrived_s, gap_s in snapshot.arrivals:
        table = scheduler.machines.machines[name].table
        table.arrived_s, table.gap_s = arrived_s, inf if gap_s is None else gap_s
    for held in snapshot.held:
        queue = scheduler.ready.levels.get(held.priority, {}).get(held.user)
        if queue is not None:
            bits = 0
            for class_id in held.class_ids:
                known = scheduler.ready.classes.get(class_id)
                bits |= 0 if known is None else known.type.bits
            scheduler.ready.hold(queue, bits, held.since_s)


def used_classes(snapshot: Snapshot) -> tuple[ClassRecord, ...]:
    """Return the classes of jobs that run or are ready, or were when prices were found."""
    used = _used_ids(snapshot)
    return tuple([one for one in snapshot.classes if one.class_id in used])


def _used_ids(snapshot: Snapshot) -> set[int]:
    """Return the numbers of the classes of jobs that run or are ready, or were when prices were found."""
    named = {one.class_id for one in snapshot.leases} | {one.class_id for one in snapshot.ready}
    return named | {class_id for class_id, _ in snapshot.priced}


def runs_of(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return sorted numbers as runs without gaps."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and sum(runs[-1]) == number:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((number, 1))
    return tuple(runs)


def _machine(machine: MatchableMachine, declined: Mapping[int, float], now_s: float) -> MachineRecord:
    return MachineRecord(
        offer=machine.offer,
        seen_bytes=machine.seen_bytes,
        free_bytes=tuple(machine.free_bytes),
        told=tuple(machine.closed_by_worker.items()),
        ends_s=None if machine.ends_s is None else machine.ends_s - now_s,
        is_doubted=machine.is_doubted,
        is_silent=machine.is_silent,
        declined=tuple([(job, until_s - now_s) for job, until_s in declined.items()]),
    )


def _restored(record: MachineRecord) -> MatchableMachine:
    machine = MatchableMachine(record.offer, record.seen_bytes, ends_s=record.ends_s)
    if len(record.free_bytes) == len(record.offer.devices):
        machine.free_bytes = list(record.free_bytes)
    machine.set_closed_by_worker(dict(record.told))
    return machine


def _lease(lease: MachineLease, job: int, now_s: float) -> LeaseRecord:
    allocation = lease.allocation
    takes_s = lease.type.expected_s / lease.work_rate
    return LeaseRecord(
        job=job,
        machine=allocation.machine,
        class_id=allocation.class_id,
        devices=allocation.devices,
        is_shared=allocation.is_shared,
        started_s=lease.started_s - now_s,
        until_s=lease.until_s - now_s,
        cost_rate=lease.cost_rate,
        # Its own progress may tell where its class has no estimate.
        is_estimated=lease.type.is_known or abs(lease.until_s - lease.started_s - takes_s) > _MOMENT_S,
    )


def _resume(scheduler: Scheduler, allocation: LeaseAllocation, record: LeaseRecord) -> None:
    """Count a lease as the other scheduler expects it."""
    scheduler.leases.restore(allocation, 0.0, record.started_s, ends_s=record.until_s, cost_rate=record.cost_rate)


def _take_over_prices(scheduler: Scheduler, snapshot: Snapshot) -> None:
    types, machines = scheduler.types.types, scheduler.machines.machines
    counts = [0] * len(types)
    for class_id, count in snapshot.priced:
        counts[scheduler.ready.classes[class_id].type.index] += count
    scheduler.priced_counts, scheduler.priced_at = counts, sum(counts)
    scheduler.tables.refresh(0.0)
    scheduler.tables.set_prices(
        {machines[name].table.number: row for name, row in snapshot.prices},
        snapshot.bound_s,
        [count * one.expected_s for count, one in zip(counts, types, strict=True)],
    )
    scheduler.recount()


def _priced(scheduler: Scheduler) -> dict[int, int]:
    """Return how many jobs were ready when prices were last found, by a class of their type."""
    class_of: dict[int, int] = {}
    for class_id, one in scheduler.ready.classes.items():
        class_of.setdefault(one.type.index, class_id)
    counts = enumerate(scheduler.priced_counts)
    return {class_of[index]: count for index, count in counts if count and index in class_of}


def _prices(scheduler: Scheduler) -> Iterable[tuple[str, tuple[float, ...]]]:
    prices, width = scheduler.tables.prices, len(RESOURCES)
    for table in scheduler.tables.tables:
        first = table.number * width
        if prices is not None and table.count and table.number < len(prices.counts):
            yield table.offer.node, prices.rows[first : first + width]


def _held(scheduler: Scheduler, now_s: float) -> Iterable[HoldRecord]:
    ready = scheduler.ready
    for queue in ready.holding:
        for since_s, mask in queue.since:
            class_ids = [
                class_id for index in scheduler.types.in_mask(mask & queue.bits) for class_id in queue.heads[index]
            ]
            if class_ids:
                yield HoldRecord(
                    user=queue.user, priority=queue.priority, class_ids=tuple(class_ids), since_s=since_s - now_s
                )
