"""The scheduler: the next job of a machine with free capacity, or why it gets none.

    scheduler = Scheduler()
    scheduler.put_machine(Machine(offer))
    scheduler.put_class(7, wanted, user="ada", expected_s=3600.0)
    scheduler.ready.set_head(7, 0, seq=12, count=40)       # whenever the first ready job of a class changes
    decision = scheduler.choose("desk", now_s)             # Grant or Hold
    scheduler.grant(decision, now_s)                       # until the lease ends: `release`
    scheduler.calls(now_s)                                 # machines that should ask again now

Strict by priority. Within a priority the user with the smallest share goes first (`shares`), and of a user's jobs the
oldest that fits; a job that does not fit is passed by others that do (backfill). Beyond that:

- **A better machine that is free** gets the job: the machine with the best score, on which its base model is, which it
  prefers. The asking machine is held back until that one has asked.
- **Scarce machines are left to jobs that need them**: a job does not go where it costs much more than on its cheapest
  node type (`prices`), while jobs are ready for which this node type is the right one.
- **Slow machines do not start what a faster one would finish earlier**: a job waits where it would end later than after
  its turn on a faster machine, and no longer than twice what that would save. While jobs keep coming, which the faster
  machine gets in its place, it waits only for one on which it would end in a fraction of the time.
- **Few jobs pass** one that waits for room on a machine; then the machine is kept for it (`reservations`). While no
  more jobs are ready than there are machines, no younger job of any user passes one that needs much room at once.
- **Wide jobs a little early**: jobs that need much room at once go first where they fit, and on shared devices those
  whose base model is there. Both pass few older jobs (`EARLY`).
- **The longest first at the end**: nothing passes a job that takes a good part of the time that all the rest takes,
  unless jobs keep coming.

Nothing here has a clock, a lock or I/O: one thread uses it. Every rule is a mask over job types, so a decision costs
the same however many jobs are ready.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf

from stoker.core.errors import InternalError
from stoker.core.frozen import changed
from stoker.core.machine import Demand, DevicePreference, SchedulableJob, UserPolicy
from stoker.protocol.lease_messages import WorkerMeasurements
from stoker.scheduler.calls import WaitingMachines
from stoker.scheduler.demand import UnmetDemand, unmet_demand
from stoker.scheduler.job_types import Durations, JobType, JobTypes
from stoker.scheduler.leases import (
    HoldDecision,
    HoldReason,
    Leases,
    OutstandingWork,
    Pick,
    Shares,
    StartDecision,
    StartReason,
)
from stoker.scheduler.machine_index import LeaseAllocation, MachineIndex, MatchableMachine
from stoker.scheduler.node_index import NodeIndex
from stoker.scheduler.node_tables import NodeTables
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.policy import NextJobPicker
from stoker.scheduler.ready_queue import JobClass, Nth, ReadyHead, ReadyQueue, UserQueue

SET_BACK_S = 1.0
"""A clock that goes back by more than this was set back; by less, times differ by that much."""
END_NEWS_S = 5.0
"""An end of a machine that differs by no more than this from the known one is no news: messages take time."""
_PRICE_AT, _PRICE_GROWTH, _PRICE_LEAST = 3, 1.5, 16
"""Prices are found again when one of so many ready jobs is left, or there are so many times as many, and more."""

Instead = Callable[[ReadyHead], ReadyHead | None]
"""Returns the job of a class that a machine may have in place of its first one; None: none of them."""


class Scheduler:
    """All machines, all classes, all ready jobs."""

    def __init__(self, *, nth: Nth = lambda _class, _priority, _place: None) -> None:
        """Begin with no machines. `nth` returns the number of the n-th ready job of a class and priority."""
        self._nth = nth
        self.shares = Shares()
        self.clear()

    def clear(self) -> None:
        """Forget everything but users' policies."""
        self.index = NodeIndex()
        self.types = JobTypes(self.index)
        self.tables = NodeTables(self.types)
        self.machines = MachineIndex(self.index, self.types, self.tables)
        self.ready = ReadyQueue(self.types, self._nth)
        """The ready jobs; their owner keeps it true."""
        self.work = OutstandingWork()
        self.ready.on_change = self.work.add_ready
        self.durations = Durations()
        self.shares = Shares(self.shares.policies)
        self.wanted: dict[int, SchedulableJob] = {}
        """The requirements of each class."""
        self.policy = NextJobPicker(self.types, self.tables, self.machines, self.ready, self.work, self.shares)
        self.waiting = WaitingMachines(self.types, self.tables, self.machines, self.ready, self.work)
        """Machines whose claim got no grant."""
        self.leases = Leases(self.machines, self.ready, self.work, self.shares, self.waiting.news)
        self.priced_at, self.priced_counts = 0, list[int]()
        """How many jobs were ready when prices were last found: of all types, and of each."""
        self._seen_totals = self.machines.totals
        self._latest_s = -inf

    # -- updates by the owner

    def put_machine(self, machine: MatchableMachine) -> None:
        """Add or update a machine; live leases on it stay counted."""
        known = self.machines.machines.get(machine.name)
        if known is not None:
            self.waiting.unpark(known)
        absent = self.machines.absent(machine.name)
        if self.machines.put(machine):
            # Its lists have words that no list had before.
            self._retype(list(self.ready.classes))
        for lease in absent:
            speed = self.machines.speed_of(machine, lease)
            if speed != lease.work_rate:
                # Its speed was unknown while the machine was unknown.
                lease.work_rate = speed
                self.leases.set_end(lease, lease.started_s + lease.type.expected_s / speed)
        if machine.kept is not None and known is not None:
            if not self.ready.replace_kept(machine.kept.queue, machine.kept.type.index, known, machine):
                machine.kept = None
            self.policy.reservations.review(machine)
        self.waiting.news()

    def remove_machine(self, name: str) -> None:
        """Remove a machine; if it comes back, its live leases are counted again."""
        machine = self.machines.machines.get(name)
        if machine is None:
            return
        self.waiting.unpark(machine)
        if name == self.work.settling:
            self.waiting.settle()
        self.policy.reservations.give_up(machine)
        self.machines.remove(name)
        self.waiting.news()

    def withdraw(self, name: str) -> None:
        """Do not expect a claim of a machine until its next one: it requests no job now."""
        machine = self.machines.machines.get(name)
        if machine is not None:
            self.waiting.hear(machine)

    def stay(self, name: str, left_s: float, now_s: float) -> None:
        """Set the time until a machine leaves, as reported now: clocks may have jumped since the last report."""
        machine, ends_s = self.machines.machines.get(name), now_s + left_s
        if machine is not None and (machine.ends_s is None or abs(machine.ends_s - ends_s) > END_NEWS_S):
            self.machines.set_end(machine, ends_s)
            self.waiting.news()

    def measure(self, name: str, measured: WorkerMeasurements) -> None:
        """Set what a machine's worker measured and closed."""
        machine = self.machines.machines.get(name)
        if machine is not None:
            was_counted = machine.is_counted
            self.machines.measure(machine, measured)
            self.policy.reservations.review(machine)
            self.waiting.reopen(machine)
            if machine.is_counted != was_counted:
                self.waiting.news()

    def doubt(self, name: str, *, is_doubted: bool) -> None:
        """Set whether a machine declined a job lately; jobs then do not wait for it."""
        machine = self.machines.machines.get(name)
        if machine is not None and machine.is_doubted != is_doubted:
            self.machines.doubt(machine, is_doubted=is_doubted)
            self.waiting.news()

    def set_policies(self, policies: Mapping[str, UserPolicy]) -> None:
        """Replace the policies of users; the entry `*` is for users without one."""
        self.shares.set_policies(policies)
        self.waiting.news()

    def put_class(
        self, class_id: int, wanted: SchedulableJob, *, user: str = "", like: str = "", expected_s: float | None = None
    ) -> None:
        """Add a class with its requirements, before any of its jobs is ready or runs."""
        self.wanted[class_id] = wanted
        self.durations.put_class(class_id, like, expected_s)
        self._put_class(class_id, user)

    def grant(self, grant: StartDecision, now_s: float) -> None:
        """Count a granted job; the owner changes the head of its class."""
        machine = self.machines.machines[grant.allocation.machine]
        queue, one = grant.queue, grant.type
        self.leases.start(grant.allocation, now_s, grant.placement)
        self.waiting.note_grant()
        kept = machine.kept
        if kept is not None and kept.queue is queue and kept.type is one:
            self.policy.reservations.give_up(machine)
        if queue.since:
            self.ready.unhold(queue, one.bits)
        queue.passes = 0

    def learn(self, class_id: int, took_s: float) -> None:
        """Learn the duration of a job of a class, in seconds of a device of speed 1."""
        if self.durations.learn(class_id, took_s):
            self._retype(self.durations.changed())

    def release(self, allocation: LeaseAllocation, now_s: float, *, is_completed: bool = False) -> None:
        """Remove a lease; a completed one adds to the learned durations."""
        lease = self.leases.end(allocation)
        if self.shares.has_limits and self.shares.is_limited(lease.user):
            # Other machines may have refused the user's jobs because of the limit: treat them as new.
            self.ready.arrived |= self.ready.bits_of(lease.user)
        self.shares.end(lease.user, lease.usage_rate, len(allocation.devices), now_s)
        if is_completed:
            self.learn(allocation.class_id, (now_s - lease.started_s) * lease.work_rate)
        machine = self.machines.machines.get(allocation.machine)
        if machine is not None and machine.is_parked:
            self.waiting.call(machine, now_s)
        if not self.work.running:
            self.waiting.note_idle(machine, now_s)

    # -- decisions

    def choose(
        self, name: str, now_s: float, *, tells: bool = False, instead: Instead | None = None
    ) -> StartDecision | HoldDecision:
        """Return the job that a machine gets now, and where on it; or why it gets none.

        With `tells` a hold also counts what waits for which reason. With `instead` the machine gets no first job of a
        class that it declined, but the one that this names. Nothing is taken: call `grant`.
        """
        machine = self.machines.machines.get(name)
        if machine is None:
            return HoldDecision(closed="this machine is not registered")
        self._note_time(now_s)
        self.waiting.hear(machine)
        if machine.closed:
            return HoldDecision(closed=machine.closed)
        self._prepare(now_s)
        machine.again_s = None
        fits = usable = self.machines.fits(machine)
        if machine.ends_s is not None:
            usable &= machine.table.within(machine.ends_s - now_s)
        refused = 0
        if machine.kept is None and instead is None:
            # Refused for equal machines a moment ago.
            refused = usable & self.ready.bits & self.waiting.refused(machine, now_s)
        grant, deferred, declined = self._find(machine, usable & ~refused, now_s, instead)
        if grant is not None:
            return grant
        refused = usable & self.ready.bits & ~(deferred | declined)
        self.waiting.park(machine, fits, refused, deferred, now_s)
        return HoldDecision(waiting=self.policy.tally(machine, declined, now_s) if tells else {})

    def _find(
        self, machine: MatchableMachine, usable: int, now_s: float, instead: Instead | None
    ) -> tuple[StartDecision | None, int, int]:
        """Return what starts on a machine; if nothing, what is left to better machines, and what this one declined."""
        deferred = declined = 0
        while usable & self.ready.bits:
            pick = self.policy.pick(machine, usable, now_s)
            if pick is None:
                break
            if pick.why is not StartReason.KEPT and self.waiting.is_better_free(machine, pick.type, now_s):
                deferred |= pick.type.bits
            else:
                grant = self._grant_of(machine, pick, instead)
                if grant is not None:
                    return grant, 0, 0
                declined |= pick.type.bits & usable
            usable &= ~(deferred | declined)
        grant = self._grant_beside(machine, declined, now_s, instead) if declined and instead is not None else None
        return grant, deferred, declined

    def calls(self, now_s: float) -> list[str]:
        """Return machines that should claim now: the reason of their refusal may have ended."""
        ready = self.ready
        self._note_time(now_s)
        if ready.freed:
            for machine in ready.freed:
                if isinstance(machine, MatchableMachine):
                    kept = machine.kept
                    if kept is not None and not ready.is_kept(kept.queue, kept.type.index, machine):
                        machine.kept = None
                    self.waiting.call(machine, now_s)
            ready.freed.clear()
        if now_s >= self.tables.next_end_s:
            self._prepare(now_s)
        return self.waiting.due(now_s)

    @property
    def next_call_s(self) -> float | None:
        """When `calls` is due next if nothing happens before."""
        call_s, end_s = self.waiting.next_s, self.tables.next_end_s
        return call_s if end_s == inf else min(end_s, call_s if call_s is not None else inf)

    def unmet(self, now_s: float) -> list[UnmetDemand]:
        """Return the ready jobs that no present machine has room for now, in the order of the queue."""
        # Prices are not needed, and finding them takes long. Until the next claim has refreshed the tables, what is in
        # none of them is taken to have the time.
        at_s = None if self.tables.is_stale else now_s
        return unmet_demand(self.types, self.machines, self.ready, self.shares, at_s)

    def demand_of(self, unmet: UnmetDemand, *, since_s: float, names: tuple[str, ...]) -> Demand:
        """Return such jobs as a demand for machines of pools."""
        class_id = unmet.head.class_id
        return Demand(
            job=changed(self.wanted[class_id], priority=unmet.head.priority),
            count=unmet.count,
            since_s=since_s,
            names=names,
            takes_s=self.durations.expected_s(class_id),
        )

    def offers(self) -> tuple[NodeOffer, ...]:
        """Return every machine with its load, in the order of joining."""
        return tuple(self.index.offer(name) for name in self.index.nodes)

    def limit_reached(self, class_id: int) -> str:
        """Return which limit of its user keeps jobs of a class from starting now, in words; empty: none.

        Changes nothing, so any thread may ask.
        """
        known = self.ready.classes.get(class_id)
        if known is None or not self.shares.has_limits:
            return ""
        devices = known.type.device_count if known.type.shape.wish is DevicePreference.REQUIRE else 0
        return self.shares.limit_reached(known.user, devices)

    def drift(self) -> dict[str, tuple[str, ...]]:
        """Return the differences between declaration and detection of each machine."""
        return {name: machine.drift for name, machine in self.machines.machines.items() if machine.drift}

    # -- classes, types and prices

    def _put_class(self, class_id: int, user: str) -> None:
        one, is_new = self.types.of(self.wanted[class_id], self.durations.expected_s(class_id))
        if is_new:
            moved = self.machines.learn_hosts(one.shape)
            self.tables.add_job_type(one)
            self.ready.widen()
            for machine, before in moved:
                self.waiting.move(machine, before)
            self.waiting.widen(one.bits)
        known = self.ready.classes.get(class_id)
        if known is not None and known.type is one and known.user == user:
            return
        heads, came = self.ready.take_class(class_id) if known is not None else [], self.ready.came
        self.ready.classes[class_id] = JobClass(class_id, one, user)
        for priority, seq, count in heads:
            self.ready.set_head(class_id, priority, seq, count)
        self.ready.came = came

    def _retype(self, class_ids: Iterable[int]) -> None:
        """Put classes into the types that their estimates, and the words of lists, make them."""
        for class_id in class_ids:
            self._put_class(class_id, self.ready.classes[class_id].user)

    def _prepare(self, now_s: float) -> None:
        """Update masks, prices and parts of the fleet."""
        ready, tables = self.ready, self.tables
        if ready.arrived:
            self.waiting.note_arrivals(now_s)
        if self.machines.totals is not self._seen_totals:
            self._seen_totals = self.machines.totals
            self.shares.set_totals(self._seen_totals, self.machines.leases(), now_s)
        if (tables.is_stale or now_s >= tables.next_end_s) and tables.refresh(now_s):
            self.waiting.news()
            self._reprice()
        elif (
            ready.count > self.priced_at * _PRICE_GROWTH + _PRICE_LEAST
            # An empty queue has no prices: all work would count as nothing.
            or (not self.priced_at and ready.count > 1)
            or (ready.count * _PRICE_AT < self.priced_at and ready.count > len(self.types.types))
        ):
            self._reprice()
            self.waiting.news()
        elif tables.pricer is not None:
            tables.improve()
            self.recount()

    def _reprice(self) -> None:
        counts = self.ready.type_counts
        counts += [0] * (len(self.types.types) - len(counts))
        self.priced_counts, self.priced_at = list(counts), self.ready.count
        self.tables.reprice([count * one.expected_s for count, one in zip(counts, self.types.types, strict=True)])
        self.recount()

    def recount(self) -> None:
        """Count the ready work at the prices of now."""
        costs_s = [one.expected_s * self.tables.cheapest[one.index] for one in self.types.types]
        self.work.set_costs(costs_s, self.ready.counts())
        self.waiting.note_prices()
        self.leases.price_restored(are_prices_found=self.tables.pricer is None)

    # -- grants

    def _grant_beside(
        self, machine: MatchableMachine, declined: int, now_s: float, instead: Instead
    ) -> StartDecision | None:
        """Return a job of a type of which the machine declined the first ones: of another user, or priority."""
        for negated in self.ready.priorities:
            users = self.ready.levels[-negated]
            for name in self.shares.order(users, now_s):
                queue = users[name]
                for index in self.types.in_mask(declined & queue.bits):
                    one = self.types.types[index]
                    if self.policy.hold_reason(machine, queue, one, now_s) is HoldReason.ORDER:
                        pick = self.policy.as_placed(queue, one, declined, StartReason.OLDEST)
                        grant = self._grant_of(machine, pick, instead)
                        if grant is not None:
                            return grant
        return None

    def _grant_of(self, machine: MatchableMachine, pick: Pick, instead: Instead | None) -> StartDecision | None:
        """Return the grant of a pick; None if the machine declined all such jobs."""
        queue, one = pick.queue, pick.type
        head = self._head_for(queue, one, instead)
        if head is None:
            return None
        shape = self.types.shape_of[pick.number]
        placement = self.policy.reservations.placement(machine, shape, pick)
        if placement is None:
            message = f"a job of {shape} was expected to fit {machine.name}, and the rule says no"
            raise InternalError(message)
        taken, devices = placement.devices, machine.offer.devices
        is_shared = bool(taken) and taken[0].is_shared
        uuids = tuple([devices[at.at].uuid for at in taken])
        allocation = LeaseAllocation(machine.name, head.class_id, uuids, is_shared)
        return StartDecision(head, allocation, pick.why, placement, one, queue)

    def _head_for(self, queue: UserQueue, one: JobType, instead: Instead | None) -> ReadyHead | None:
        """Return the first job of a type that a machine may have."""
        if instead is None:
            return self._head(self.ready.first_class(queue, one.index), queue.priority)
        heads = queue.heads[one.index]
        for class_id in sorted(heads, key=heads.__getitem__):
            head = instead(self._head(class_id, queue.priority))
            if head is not None:
                return head
        return None

    def _head(self, class_id: int, priority: int) -> ReadyHead:
        head = self.ready.head(class_id, priority)
        if head is None:
            message = f"class {class_id} has no ready job at priority {priority}"
            raise InternalError(message)
        return head

    def _note_time(self, now_s: float) -> None:
        """Shift all times if the clock was set back."""
        back_s = self._latest_s - now_s
        if back_s < 0.0 or back_s > SET_BACK_S:
            self._latest_s = now_s
        if back_s > SET_BACK_S:
            self.shift(back_s)

    def shift(self, back_s: float) -> None:
        """Shift all times: the clock was set back by so much, or forward if negative, without time passing."""
        self.waiting.shift(back_s)
        self.shares.shift(back_s)
        for queue in self.ready.holding:
            queue.since = [(since_s - back_s, mask) for since_s, mask in queue.since]
        self.work.shift(back_s)
        self.tables.shift(back_s)
        self.machines.shift(back_s)
