"""Reservations: a machine is kept for a job that was passed too often, until it fits there.

A job that fits a machine but for what runs on it is passed there by few younger ones of its priority (`PASSES`), and by
none of a lower one. Then the machine is kept for it: only what is over by the time at which it is expected to fit, or
does not take what it needs, starts there.
"""

from __future__ import annotations

from stoker.core.frozen import changed
from stoker.scheduler.fit import NodeUsage, Placement, PlacementShape, choose, device_block, slots_left
from stoker.scheduler.job_types import JobType, JobTypes
from stoker.scheduler.leases import BackfillHold, OutstandingWork, Pick, Shares, StartableJob, StartReason
from stoker.scheduler.machine_index import MachineIndex, MatchableMachine
from stoker.scheduler.node_tables import LONG, NodeTable
from stoker.scheduler.ready_queue import NONE_READY, ReadyQueue, UserQueue, places, type_of

PASSES = 8
"""A job is passed by one of so many that are ready, at the most."""
KEPT_PART = 4
"""One of so many machines of a node type is kept, at the most, for jobs that were passed; what is late counts not."""
KEPT = "kept"
"""Why a job does not start that would fit: the machine is kept for another job."""
_FLOOR_AGE = 16
_LEAST_PASSES = 2


class BackfillHolds:
    """Keeps machines for jobs."""

    def __init__(
        self, types: JobTypes, machines: MachineIndex, ready: ReadyQueue, work: OutstandingWork, shares: Shares
    ) -> None:
        self._types = types
        self._machines = machines
        self._ready = ready
        self._work = work
        self._shares = shares
        self._kept: dict[int, set[str]] = {}
        """By node type, machines that are kept, and some that were."""
        self._bare: dict[int, PlacementShape] = {}
        """By job type, what is reserved for it, without RAM and cores."""
        self.times_kept = 0
        """How often a machine was kept for a job."""

    def keep_for_blocked(
        self, machine: MatchableMachine, pick: Pick, fits: int, found: StartableJob, now_s: float
    ) -> bool:
        """Keep a machine for a job that this pick would pass, if it was passed too often; return whether."""
        blocked = self._blocked(machine, pick, fits, found, now_s)
        return blocked is not None and self._keep(machine, *blocked, now_s)

    def give_up(self, machine: MatchableMachine) -> None:
        """Keep a machine for nothing any more."""
        kept = machine.kept
        if kept is not None:
            machine.kept = None
            self._ready.unkeep(kept.queue, kept.type.index, machine)

    def review(self, machine: MatchableMachine) -> None:
        """Keep a machine no longer for what would not fit there even if none of our jobs ran: it has changed."""
        if machine.kept is not None and not machine.kept.type.bits & self._machines.ever(machine):
            self.give_up(machine)

    def still_wanted(self, machine: MatchableMachine, kept: BackfillHold, now_s: float) -> int:
        """Return the placements of a kept type that are still worth starting here, and may."""
        table, queue, one = machine.table, kept.queue, kept.type
        if not queue.counts[one.index]:
            return 0
        wanted = self._allowed(queue, one.bits & table.ever)
        if machine.ends_s is not None:
            wanted &= table.within(machine.ends_s - now_s)
        if self._work.is_idle:
            return wanted
        wanted = self.unawaited(table, queue.priority, wanted, now_s)
        return wanted & table.worth_starting(self._ahead_s(queue.priority, now_s))

    def beside(self, machine: MatchableMachine, kept: BackfillHold, fits: int, now_s: float) -> int:
        """Return what may start on a machine that is kept: what is over in time, and what takes nothing it needs."""
        in_time = fits & machine.table.times.upto(kept.until_s - now_s)
        if not fits & ~in_time & self._ready.bits:
            return in_time
        if machine.beside_kept is None:
            machine.beside_kept = self._machines.fits_as(self._reserved(machine, kept))
        return in_time | fits & machine.beside_kept

    def placement(self, machine: MatchableMachine, shape: PlacementShape, pick: Pick) -> Placement | None:
        """Return where a job starts on a machine: without taking what that is kept for, if there is room enough."""
        found = None
        if machine.kept is not None and pick.why is not StartReason.KEPT:
            found = choose(shape, self._reserved(machine, machine.kept))
        return found or self._machines.index.choice(machine.name, shape)

    def _reserved(self, machine: MatchableMachine, kept: BackfillHold) -> NodeUsage:
        """Return a machine without what it is kept for."""
        if machine.reserved is None:
            one = kept.type
            shape = one.device_shape or one.shape
            bare = self._bare.get(one.index)
            if bare is None:
                bare = self._bare[one.index] = changed(shape, ram_bytes=0, cores=0)
            now, empty = self._machines.index.usage(machine.name), self._machines.empty(machine)
            machine.reserved = without(shape, bare, now, empty)
        return machine.reserved

    def _keep(self, machine: MatchableMachine, queue: UserQueue, one: JobType, now_s: float) -> bool:
        """Keep a machine for the next job of a type; not where it would not fit even if none of ours ran there."""
        if not one.bits & self._machines.ever(machine):
            return False
        # Jobs end one after the other: half of the machine is expected to be free in half of the time.
        part = self._part(machine, one)
        machine.kept = BackfillHold(queue, one, now_s + max(0.0, machine.busy_until_s - now_s) * part)
        machine.reserved = machine.beside_kept = None
        self._ready.keep(queue, one.index, machine)
        self._kept.setdefault(machine.table.number, set()).add(machine.name)
        self.times_kept += 1
        return True

    def _blocked(
        self, machine: MatchableMachine, pick: Pick, fits: int, found: StartableJob, now_s: float
    ) -> tuple[UserQueue, JobType] | None:
        """Return jobs that could have this machine but for what runs here, and were passed too often."""
        ready, queue, table = self._ready, pick.queue, machine.table
        able = (table.own_devices if self._types.devices >> pick.number & 1 else table.own_cpu) & ~fits
        if machine.ends_s is not None:
            able &= table.within(machine.ends_s - now_s)
        if not able & ready.bits:
            return None
        if ready.priorities[0] != -queue.priority:
            higher = self._blocked_above(table, queue.priority, able, now_s)
            if higher is not None:
                return higher
            able = self.unawaited(table, queue.priority, able, now_s)
        users = ready.levels[queue.priority]
        if self._machines.are_enough_for(ready.count):
            return self._oldest_passed(machine, pick, able & table.worth_starting(found.ahead_s), users, now_s)
        if len(users) > 1:
            passed = self._passed_user(queue, users, able & table.worth_starting(found.ahead_s), now_s)
            if passed is not None:
                return passed
        return self._passed_job(table, pick, able, found, now_s) if able & queue.bits else None

    def _passed_job(
        self, table: NodeTable, pick: Pick, able: int, found: StartableJob, now_s: float
    ) -> tuple[UserQueue, JobType] | None:
        """Return a job of the same user that was passed by too many, or is late."""
        queue = pick.queue
        limit = queue.ranks[pick.type.index] - places(queue.count // PASSES)
        is_late = table.is_near_end(found.rest_s, now_s)
        is_passed = self._is_any_before(queue, limit) and not self._are_enough_kept(table)
        if not is_late and not is_passed:
            return None
        worth = self._allowed(queue, able & table.worth_starting(found.ahead_s))
        first = min(self._types.picker(worth)(queue.unkept)) if is_passed else NONE_READY
        if first >= limit and is_late:
            limit = NONE_READY
            first = min(self._types.picker(worth & table.longer_than(found.rest_s * LONG))(queue.unkept))
        return (queue, self._types.types[type_of(first)]) if first < limit else None

    def _oldest_passed(
        self, machine: MatchableMachine, pick: Pick, worth: int, users: dict[str, UserQueue], now_s: float
    ) -> tuple[UserQueue, JobType] | None:
        """Return the oldest job that a younger one would pass, if it is expected to fit nowhere earlier than here.

        Used while no more jobs are pending than there are machines: then waiting for capacity delays no user's share.
        """
        first, among = pick.queue.ranks[pick.type.index], None
        for queue in users.values():
            mine = self._allowed(queue, worth)
            if mine & queue.bits:
                rank = min(self._types.picker(mine)(queue.unkept))
                if rank < first:
                    first, among = rank, queue
        if among is None or self._are_enough_kept(machine.table):
            return None
        one = self._types.types[type_of(first)]
        room_s = self._machines.next_room_s(machine.table, one, one.bits, self._part(machine, one), now_s)
        return (among, one) if machine.busy_until_s <= room_s else None

    def _part(self, machine: MatchableMachine, one: JobType) -> float:
        """Return which part of an idle machine a job takes."""
        needs = machine.table.needs
        return max(needs.get(number, 0.0) for number in (one.device_number, one.cpu_number) if number is not None)

    def _blocked_above(
        self, table: NodeTable, priority: int, able: int, now_s: float
    ) -> tuple[UserQueue, JobType] | None:
        """Return the first job of a higher priority that waits for this machine."""
        for negated in self._ready.priorities:
            if -negated <= priority:
                break
            users = self._ready.levels[-negated]
            worth = able & table.worth_starting(self._ahead_s(-negated, now_s))
            for name in self._shares.order(users, now_s) if len(users) > 1 else users:
                queue = users[name]
                mine = self._allowed(queue, worth) & queue.bits
                if mine and (mine := self.unawaited(table, queue.priority, mine, now_s)):
                    first = min(self._types.picker(mine)(queue.unkept))
                    if first < NONE_READY:
                        return queue, self._types.types[type_of(first)]
        return None

    def unawaited(self, table: NodeTable, priority: int, mask: int, now_s: float) -> int:
        """Leave out what a higher priority waits for elsewhere: a lower one of the same type does not go before it."""
        for negated in self._ready.priorities:
            if -negated <= priority:
                break
            awaited = mask & ~table.worth_starting(self._ahead_s(-negated, now_s))
            for queue in self._ready.levels[-negated].values() if awaited else ():
                mask &= ~(awaited & self._allowed(queue, queue.bits))
        return mask

    def _passed_user(
        self, queue: UserQueue, users: dict[str, UserQueue], worth: int, now_s: float
    ) -> tuple[UserQueue, JobType] | None:
        """Count that a user further ahead is passed; return its first job if that was too often."""
        for name in self._shares.order(users, now_s):
            other = users[name]
            if other is queue:
                return None
            mine = self._allowed(other, worth)
            if mine & other.bits:
                other.passes += 1
                limit = max(_LEAST_PASSES, sum(one.count for one in users.values()) // PASSES)
                first = min(self._types.picker(mine)(other.unkept))
                if other.passes > limit and first < NONE_READY:
                    return other, self._types.types[type_of(first)]
                return None
        return None

    def _is_any_before(self, queue: UserQueue, rank: int) -> bool:
        """Return whether a job that has no machine kept for it may be before a rank; a yes may be out of date."""
        if queue.floor < rank:
            queue.floor_age += 1
            if queue.floor_age >= _FLOOR_AGE:
                queue.floor_age = 0
                queue.floor = min(queue.unkept)
        return queue.floor < rank

    def _are_enough_kept(self, table: NodeTable) -> bool:
        """Return whether as many machines of a node type are kept as may be for jobs that were only passed."""
        most = -(-table.count // KEPT_PART)
        names = self._kept.get(table.number, set())
        if len(names) >= most:
            machines = self._machines.machines
            names = {
                name
                for name in names
                if (one := machines.get(name)) is not None and one.kept is not None and one.table is table
            }
            self._kept[table.number] = names
        return len(names) >= most

    def _allowed(self, queue: UserQueue, mask: int) -> int:
        return self._shares.allowed(queue.user, self._types, mask)

    def _ahead_s(self, priority: int, now_s: float) -> float:
        return self._work.both_s(now_s, None if self._ready.is_lowest(priority) else priority)[0]


def without(shape: PlacementShape, bare: PlacementShape, node: NodeUsage, empty: NodeUsage) -> NodeUsage:
    """Return a machine without what a job that waits for it needs there; `bare` is its shape without RAM and cores.

    Of what is free it takes as much as it needs, of every amount. If it lacks devices, it takes as many as it needs of
    those that it could have, the ones with the fewest jobs; if it lacks a slot, it takes the whole machine, since each
    job that ends may free it.
    """
    placement = choose(bare, node)
    if placement is not None:
        # It lacks RAM or cores: all of them, and the place that it would have.
        left = node.copy([one.at for one in placement.devices])
        left.take(shape, placement)
        return left
    if not _has_slots(shape, node):
        left = node.copy(())
        left.closed = KEPT
        return left
    able = [at for at, free in enumerate(empty.devices) if device_block(shape, free) is None]
    # Nothing else starts on these, so they stay the ones with the fewest jobs.
    chosen = sorted(able, key=lambda at: node.devices[at].jobs)[: shape.device_count]
    left = node.copy(chosen)
    left.ram_held_bytes += shape.ram_bytes
    left.cores_held += shape.cores
    left.slots_held += not left.is_slot_per_device
    for at in chosen:
        left.devices[at].closed = KEPT
        # Those that are in use bring their slot with them when they are free.
        left.slots_held += left.is_slot_per_device and not left.devices[at].jobs
    return left


def _has_slots(shape: PlacementShape, node: NodeUsage) -> bool:
    """Return whether slots are not what is missing."""
    left = slots_left(node)
    if shape.takes_cpu or not node.is_slot_per_device:
        return left > 0
    able = [device for device in node.devices if device_block(shape, device) is None]
    return len(able) < shape.device_count or left >= shape.device_count - sum(1 for device in able if device.jobs)
