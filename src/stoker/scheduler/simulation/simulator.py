"""A simulation: the scheduler on a clock of its own, from the first job that starts to the last one that ends.

It begins with an idle fleet and an invented queue, or with a `Snapshot` of a scheduler: leases that run, machines as
they were measured, jobs that wait. A machine whose job ended asks, then those that the scheduler calls, one after
another in the order of its calls; after each it may call more. That is what workers and a coordinator do, one request
at a time: a worker asks for as many jobs as it has free slots, and not at all without any. Everything is decided by
`Scheduler`, the same that the coordinator uses: this module lets time pass, lets jobs fail and machines leave
(`Disruptions`), and records what happens.
"""

from __future__ import annotations

from array import array
from bisect import insort, insort_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from math import inf, nan
from operator import itemgetter
from random import Random
from typing import Generic, TypeVar

from stoker.core.frozen import changed, fresh, frozen
from stoker.scheduler.job_types import UNKNOWN_S
from stoker.scheduler.leases import StartDecision, StartReason
from stoker.scheduler.machine_index import LeaseAllocation, MatchableMachine
from stoker.scheduler.offers import NodeOffer, NodeType, name_of
from stoker.scheduler.prices import RunOption
from stoker.scheduler.ready_queue import Nth, ReadyHead
from stoker.scheduler.scheduler import Instead, Scheduler
from stoker.scheduler.simulation.workload import WorkloadBatch
from stoker.scheduler.snapshot import Snapshot, restore, restore_waiting

T = TypeVar("T")
_BY_TIME = itemgetter(0, 1)


class CalendarQueue(Generic[T]):
    """Things by time; of those at the same time the one with the smaller number comes first."""

    def __init__(self) -> None:
        self._drawers: dict[int, list[tuple[float, int, T]]] = {}
        self._seconds: list[int] = []
        """Of all drawers but the open one, as a heap."""
        self._open: list[tuple[float, int, T]] = []
        """Sorted, the next one last."""
        self._opened = -1
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, at_s: float, number: int, thing: T) -> None:
        """Put something in, not before what was last taken out."""
        second = int(at_s)
        self._count += 1
        if second <= self._opened:
            insort(self._open, (at_s, number, thing), key=_reversed)
            return
        drawer = self._drawers.get(second)
        if drawer is None:
            self._drawers[second] = [(at_s, number, thing)]
            heappush(self._seconds, second)
        else:
            drawer.append((at_s, number, thing))

    @property
    def next_s(self) -> float:
        """When the next one comes."""
        if not self._open:
            self._open_next()
        return self._open[-1][0]

    def take(self) -> tuple[float, int, T]:
        """Take out what comes next."""
        if not self._open:
            self._open_next()
        self._count -= 1
        return self._open.pop()

    def _open_next(self) -> None:
        self._opened = heappop(self._seconds)
        self._open = self._drawers.pop(self._opened)
        self._open.sort(key=_BY_TIME, reverse=True)


def _reversed(entry: tuple[float, int, T]) -> tuple[float, int]:
    return -entry[0], -entry[1]


NOWHERE = 0xFFFFFFFF
_PROGRESS_EVERY = 500
_LEAST_LEFT_S = 1.0

Key = tuple[int, int]
"""Class and priority."""


@frozen
class Disruptions:
    """What goes wrong."""

    fail: float = 0.0
    """The part of all attempts that fail, each at some moment of its time; the job runs again."""
    leaves_s: Mapping[str, float] = fresh(factory=dict)
    """Machines, and when each goes away without notice; what ran there runs again."""
    seed: int = 0


class Log:
    """What was decided, a row for each job: enough to check every decision. Of a job that ran twice, the last time."""

    def __init__(self, jobs: int) -> None:
        self.come_s = array("d", [0.0]) * jobs
        self.start_s = array("d", [nan]) * jobs
        self.end_s = array("d", [nan]) * jobs
        self.node_of = array("I", [NOWHERE]) * jobs
        """Its place in the fleet; `NOWHERE` for a job that was never started."""
        self.devices: list[tuple[str, ...] | None] = [None] * jobs
        """Which devices of its machine it had; none of them: it ran on the CPU."""
        self.started: array[int] = array("I")
        """Jobs in the order of their starts."""
        self.guessed: set[int] = set()
        """Jobs whose start follows the end of one whose duration is not known."""
        self.why: dict[int, StartReason] = {}
        """What decided that a job started where it did; kept if the simulation began with a snapshot."""


class Simulator:
    """One simulation."""

    def __init__(
        self,
        offers: Sequence[NodeOffer],
        batch: WorkloadBatch,
        *,
        backlog: int | None = None,
        disruptions: Disruptions | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        """Build everything. With a `backlog` only so many jobs are ready at once: one comes whenever one starts.

        With a `snapshot`, of which the batch is made, it begins as that says; offers that it does not know are idle
        machines beside it.
        """
        self.offers = tuple(offers)
        self.batch = batch
        self.log = Log(len(batch))
        self.now_s = 0.0
        self.decisions = 0
        self.failures = 0
        """Attempts that failed, or were lost with their machine."""
        self.is_cut = False
        """A job would have started that the batch only counts: what follows is not known."""
        self._index_of = {offer.node: index for index, offer in enumerate(self.offers)}
        self._backlog = inf if backlog is None else backlog
        self._next_job = batch.running
        self._numbers = batch.numbers or range(len(batch))
        self._class_ids = batch.class_ids or range(batch.users * len(batch.shapes))
        self._ready: dict[Key, deque[int]] = {key: deque() for key in batch.more}
        self.scheduler = Scheduler(nth=_nth(self._ready, self._numbers))
        self._running: CalendarQueue[LeaseAllocation] = CalendarQueue()
        self._awaited: set[int] = set()
        self._snapshot = snapshot
        self._declined: dict[str, dict[int, float]] = {}
        self._guessed: set[str] = set()
        """Machines on which a job has ended whose duration is not known."""
        self._estimated: set[int] = set()
        """Jobs that ran at the beginning and whose end is estimated."""
        self._prepare(disruptions or Disruptions())
        if snapshot is None:
            self._put_all()
        else:
            self._resume(snapshot)
        classes = self.scheduler.ready.classes.values()
        self._has_unknown = snapshot is not None and any(not one.type.is_known for one in classes)
        self._changes.sort(key=lambda change: change[:2], reverse=True)
        self.scheduler.tables.refresh(self.now_s)
        # Prices are found when the first machine asks, as in a coordinator; `restore_waiting` takes over others.
        self.scheduler.tables.is_stale = True
        tables = self.scheduler.tables.tables
        self.node_types = [NodeType(name=name_of(one.offer), offer=one.offer, count=one.count) for one in tables]
        """The node types of the options, and how many machines of each there are at the beginning."""
        machines = self.scheduler.machines.machines
        self._type_of = {name: one.table.number for name, one in machines.items()}

    def _prepare(self, disruptions: Disruptions) -> None:
        self._fail = disruptions.fail
        self._random = Random(f"failures {disruptions.seed}").random  # noqa: S311 - reproducible on purpose
        self._failing: set[int] = set()
        self._lost: set[int] = set()
        """Leases, by identity, that were lost with their machine before they ended."""
        self._held: dict[str, dict[int, LeaseAllocation]] = {name: {} for name in disruptions.leaves_s}
        """The leases of machines that will leave, by job."""
        self._changes: list[tuple[float, str, Callable[[str], None]]] = [
            (at_s, name, self._leave) for name, at_s in disruptions.leaves_s.items()
        ]
        """What happens to which machine when, the last first."""
        self._work_s = self.batch.work_s
        self._resumed: set[int] = set()
        """Jobs of which a part was done before: how long the rest took says nothing of others."""

    @property
    def options(self) -> list[list[RunOption]]:
        """In which ways the jobs of each shape may be run."""
        classes = self.scheduler.ready.classes
        return [classes[self._class_ids[place]].type.options for place in range(len(self.batch.shapes))]

    @property
    def counts(self) -> list[int]:
        """How many machines there are of each node type of the options."""
        return [one.count for one in self.node_types]

    @property
    def unplaceable(self) -> list[int]:
        """The shapes that no machine of the fleet could take, even idle."""
        return [number for number, options in enumerate(self.options) if not options]

    def node_type_of(self, node: str) -> int:
        """Return the number of a machine's node type."""
        return self._type_of[node]

    def queue(self) -> None:
        """Let jobs come whose time it is."""
        changed_keys: dict[Key, None] = {}
        count = self.scheduler.ready.count
        while count < self._backlog and self._next_come_s <= self.now_s:
            key = self._come()
            if key is not None:
                changed_keys[key] = None
                count += 1
        for key in changed_keys:
            self._tell(key)

    def begin(self) -> None:
        """Let jobs come whose time it is, and every machine ask."""
        if self._snapshot is not None:
            # Free machines wait for work already: a job goes to the best of them, not to the first that asks.
            self.fill()
        for key in self.batch.more:
            self._tell(key)
        self.queue()
        if self._snapshot is not None:
            # With more machines prices are others.
            is_same = len(self.offers) == len(self._snapshot.machines)
            restore_waiting(self.scheduler, self._snapshot if is_same else changed(self._snapshot, prices=()))
        self.fill()

    def fill(self) -> None:
        """Let every machine ask, the fastest first."""
        by_speed = sorted(self.offers, key=lambda offer: -max((device.speed for device in offer.devices), default=0.0))
        self._ask_called([offer.node for offer in by_speed])

    def go(
        self,
        heed: Callable[[int], None] = lambda _count: None,
        until: int | None = None,
        *,
        awaited: Iterable[int] | None = None,
    ) -> None:
        """Let everything run to its end, until so many decisions, or until all jobs that are `awaited` have started.

        `heed` is called now and then with the number of decisions.
        """
        most: float = inf if until is None else until
        next_heed = 0
        waits = awaited is not None
        self._awaited = {job for job in awaited or () if self.log.node_of[job] == NOWHERE}
        while self.decisions < most and not self.is_cut and not (waits and not self._awaited) and self._step():
            if self.decisions >= next_heed:
                next_heed = self.decisions + _PROGRESS_EVERY
                heed(self.decisions)
        heed(self.decisions)

    def _step(self) -> bool:
        """Let happen what comes next, and return True; False if nothing comes."""
        running, scheduler = self._running, self.scheduler
        end_s = running.next_s if len(running) else inf
        come_s = self._next_come_s if self._backlog >= len(self.batch) else inf
        change_s = self._changes[-1][0] if self._changes else inf
        call_s = scheduler.next_call_s
        if min(end_s, come_s, change_s) == inf:
            return False
        ended: list[str] = []
        if call_s is not None and call_s < min(end_s, come_s, change_s):
            self.now_s = max(self.now_s, call_s)
        elif come_s < end_s and come_s <= change_s:
            self.now_s = come_s
            self.queue()
        elif change_s < end_s:
            self.now_s = max(self.now_s, change_s)
            _, name, change = self._changes.pop()
            change(name)
            ended = [name]
        else:
            end_s, job, allocation = running.take()
            self.now_s = end_s
            if self._end(job, allocation):
                ended = [allocation.machine]
        self._ask_called(ended)
        return True

    def _end(self, job: int, allocation: LeaseAllocation) -> bool:
        """Let a job end; False if its machine has left since it started."""
        scheduler = self.scheduler
        if self._lost and id(allocation) in self._lost:
            self._lost.discard(id(allocation))
            return False
        is_failed = bool(self._failing) and job in self._failing
        is_known = not self._has_unknown or scheduler.ready.classes[allocation.class_id].type.is_known
        if (not is_known and job not in self._estimated) or job in self.log.guessed:
            self._guessed.add(allocation.machine)
        is_completed = is_known and not is_failed and job not in self._resumed
        scheduler.release(allocation, self.now_s, is_completed=is_completed)
        if self._held and allocation.machine in self._held:
            self._held[allocation.machine].pop(job, None)
        if is_failed:
            self._failing.discard(job)
            self._requeue(job, allocation.class_id)
        return True

    # -- what there is at the beginning

    def _put_all(self) -> None:
        batch = self.batch
        for offer in self.offers:
            self.scheduler.put_machine(MatchableMachine(offer))
        for user in range(batch.users):
            name = f"user-{user}" if batch.users > 1 else ""
            for number, shape in enumerate(batch.shapes, user * len(batch.shapes)):
                stated_s = shape.expected_s if shape.is_stated else None
                self.scheduler.put_class(number, shape.wanted, user=name, like=shape.like, expected_s=stated_s)

    def _resume(self, snapshot: Snapshot) -> None:
        scheduler, log = self.scheduler, self.log
        leases = restore(scheduler, snapshot)
        estimated = {lease.job for lease in snapshot.leases if lease.is_estimated}
        for offer in self.offers:
            if offer.node not in scheduler.machines.machines:
                scheduler.put_machine(MatchableMachine(offer))
        for job in range(self.batch.running):
            allocation = leases[self._numbers[job]]
            if self._numbers[job] in estimated:
                self._estimated.add(job)
            lease = scheduler.machines.find(allocation)
            until_s = lease.until_s if job in self._estimated else lease.started_s + UNKNOWN_S
            # One that is overdue is expected to take as much longer as it is over its time.
            end_s = until_s if until_s > 0 else max(_LEAST_LEFT_S, -until_s)
            self._running.add(end_s, job, allocation)
            log.start_s[job], log.end_s[job] = lease.started_s, end_s
            log.node_of[job] = self._index_of.get(allocation.machine, NOWHERE)
            log.devices[job] = allocation.devices
            if allocation.machine in self._held:
                self._held[allocation.machine][job] = allocation
        for machine in snapshot.machines:
            if machine.declined:
                self._declined[machine.offer.node] = dict(machine.declined)
                self._changes += [(until_s, machine.offer.node, self._forgive) for _, until_s in machine.declined]

    # -- what happens to machines

    def _change_at(self, at_s: float, name: str, change: Callable[[str], None]) -> None:
        """Let something happen to a machine, not before now; after what was added before for the same time."""
        insort_left(self._changes, (at_s, name, change), key=lambda change: -change[0])

    def _leave(self, name: str) -> None:
        """Let a machine go away; what ran there is ready again."""
        self.scheduler.remove_machine(name)
        for job, allocation in self._held.pop(name, {}).items():
            self._lost.add(id(allocation))
            self._failing.discard(job)
            self.scheduler.release(allocation, self.now_s)
            self._requeue(job, allocation.class_id)

    def _forgive(self, name: str) -> None:
        """Offer a machine again what it declined a while ago."""
        left = {job: until_s for job, until_s in self._declined.get(name, {}).items() if until_s > self.now_s}
        self._declined[name] = left
        self.scheduler.doubt(name, is_doubted=bool(left))

    # -- jobs

    @property
    def _next_come_s(self) -> float:
        return self.batch.come_s[self._next_job] if self._next_job < len(self.batch) else inf

    def _come(self) -> Key | None:
        """Let the next job come; None if it could run nowhere."""
        batch, job = self.batch, self._next_job
        self._next_job = job + 1
        class_id = self._class_ids[batch.user_of[job] * len(batch.shapes) + batch.shape_of[job]]
        if not self.scheduler.ready.classes[class_id].type.options:
            return None
        self.log.come_s[job] = self.now_s
        key = (class_id, batch.priority_of[job])
        self._put_ready(job, key)
        return key

    def _put_ready(self, job: int, key: Key) -> None:
        ready, numbers = self._ready.get(key), self._numbers
        if ready is None:
            ready = self._ready[key] = deque()
        if ready and numbers[job] < numbers[ready[-1]]:
            insort(ready, job, key=numbers.__getitem__)
        else:
            ready.append(job)

    def _requeue(self, job: int, class_id: int) -> None:
        """Let a job be ready again, at its place in the queue."""
        self.failures += 1
        key = (class_id, self.batch.priority_of[job])
        self._put_ready(job, key)
        self._tell(key)

    def _tell(self, key: Key) -> None:
        ready, more = self._ready[key], self.batch.more
        if not more or key not in more:
            self.scheduler.ready.set_head(*key, self._numbers[ready[0]] if ready else 0, len(ready))
            return
        first, count = more[key]
        self.scheduler.ready.set_head(*key, self._numbers[ready[0]] if ready else first, len(ready) + count)

    def _ask(self, node: str) -> None:
        """Let a machine ask until it gets nothing, or has no free slot."""
        machine = self.scheduler.machines.machines.get(node)
        if machine is None or machine.is_silent:
            return
        slots = inf if machine.offer.is_slot_per_device else machine.offer.slots
        while len(machine.leases) < slots:
            instead = self._instead(node) if self._declined else None
            decision = self.scheduler.choose(node, self.now_s, instead=instead)
            if not isinstance(decision, StartDecision) or not self._start(decision):
                return

    def _ask_called(self, first: Iterable[str] = ()) -> None:
        """Let machines ask that the scheduler calls, in the order of its calls; before them, those named here."""
        calls, now_s = self.scheduler.calls, self.now_s
        asking = deque(dict.fromkeys((*first, *calls(now_s))))
        while asking:
            self._ask(asking.popleft())
            asking += calls(now_s)

    def _start(self, grant: StartDecision) -> bool:
        """Let a job start; False if it is one that the batch only counts."""
        now_s, log, batch, allocation = self.now_s, self.log, self.batch, grant.allocation
        key = (grant.head.class_id, grant.head.priority)
        ready = self._ready[key]
        if not ready:
            self.is_cut = True
            return False
        job = ready[0]
        if self._numbers[job] == grant.head.seq:
            ready.popleft()
        else:
            job = next(one for one in ready if self._numbers[one] == grant.head.seq)
            ready.remove(job)
        self.scheduler.grant(grant, now_s)
        self._tell(key)
        machine = self.scheduler.machines.machines[allocation.machine]
        speed = machine.leases[-1].work_rate
        # Without an estimate the same is assumed on every machine.
        is_known = not self._has_unknown or grant.type.is_known
        end_s = now_s + self._work_s[job] / (speed if is_known else 1.0)
        if self._fail and self._random() < self._fail:
            self._failing.add(job)
            end_s = now_s + (end_s - now_s) * self._random()
        self._running.add(end_s, job, allocation)
        if self._held and allocation.machine in self._held:
            self._held[allocation.machine][job] = allocation
        if self._guessed and allocation.machine in self._guessed:
            log.guessed.add(job)
        if self._snapshot is not None:
            self._awaited.discard(job)
            log.why[job] = grant.why
        log.start_s[job] = now_s
        log.end_s[job] = end_s
        log.node_of[job] = self._index_of[allocation.machine]
        log.devices[job] = allocation.devices
        log.started.append(job)
        self.decisions += 1
        if self._backlog < len(batch):
            self.queue()
        return True

    def _instead(self, node: str) -> Instead | None:
        """Return what names the next job in place of one that a machine declined; None: it declined none."""
        declined = self._declined.get(node)
        if not declined:
            return None

        def instead(head: ReadyHead) -> ReadyHead | None:
            if head.seq not in declined:
                return head
            numbers = (self._numbers[job] for job in self._ready[head.class_id, head.priority])
            found = next((number for number in numbers if number not in declined), None)
            if found is None:
                return None
            return ReadyHead(class_id=head.class_id, priority=head.priority, seq=found, count=head.count)

        return instead


def _nth(ready: Mapping[Key, Sequence[int]], numbers: Sequence[int]) -> Nth:
    """Return what finds the n-th ready job. It has no reference to the run, whose memory is so free when it is over."""

    def nth(class_id: int, priority: int, place: int) -> int | None:
        jobs = ready[class_id, priority]
        return numbers[jobs[place]] if place < len(jobs) else None

    return nth
