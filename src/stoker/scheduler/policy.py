"""The policy: which of the jobs that fit a machine now starts there, and why the others do not.

`scheduler` describes its rules. Every rule is a mask over job types, so a decision costs the same however many jobs are
ready.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from stoker.scheduler.calls import ROUNDING_S
from stoker.scheduler.job_types import JobType, JobTypes
from stoker.scheduler.leases import BackfillHold, HoldReason, OutstandingWork, Pick, Shares, StartableJob, StartReason
from stoker.scheduler.machine_index import MachineIndex, MatchableMachine
from stoker.scheduler.node_tables import LONG, SLACK, NodeTable, NodeTables, preference
from stoker.scheduler.prices import RunOption
from stoker.scheduler.ready_queue import ReadyQueue, UserQueue, places, type_of
from stoker.scheduler.reasons import first_block
from stoker.scheduler.reservations import BackfillHolds

MUCH_SOONER = 4.0
"""While jobs keep coming, one waits for a faster machine only if it would take so many times as long here."""
_STATES = 512
"""For so many states of machines reasons are remembered."""
_MOST_TYPES = 16
"""So many types of those that are held back are compared by what runs on faster machines."""
EARLY = 16
"""One that goes early passes one of so many that are ready, at the most."""


class NextJobPicker:
    """Picks jobs for one machine after the other."""

    def __init__(
        self,
        types: JobTypes,
        tables: NodeTables,
        machines: MachineIndex,
        ready: ReadyQueue,
        work: OutstandingWork,
        shares: Shares,
    ) -> None:
        self._types = types
        self._tables = tables
        self._machines = machines
        self._ready = ready
        self._work = work
        self._shares = shares
        self.reservations = BackfillHolds(types, machines, ready, work, shares)
        self._reasons: OrderedDict[Hashable, dict[int, str]] = OrderedDict()
        """By the state of a machine, why the job types that do not fit there do not, by type."""

    def pick(self, machine: MatchableMachine, fits: int, now_s: float) -> Pick | None:
        """Return the job that starts on a machine, of those that fit there; None: none of them."""
        table = machine.table
        kept = machine.kept
        if kept is not None:
            wanted = self.reservations.still_wanted(machine, kept, now_s)
            if wanted:
                return self._pick_on_kept(machine, kept, wanted, fits, now_s)
            self.reservations.give_up(machine)
        found = self._first(machine, table, fits, now_s)
        if found is None:
            return None
        pick = self._pick_of(machine, found, now_s)
        if self.reservations.keep_for_blocked(machine, pick, fits, found, now_s):
            return self.pick(machine, fits, now_s)
        return pick

    def _pick_on_kept(
        self, machine: MatchableMachine, kept: BackfillHold, wanted: int, fits: int, now_s: float
    ) -> Pick | None:
        """Return what starts on a machine that is kept: a higher priority, the job itself, or what does no harm."""
        table, priority = machine.table, kept.queue.priority
        is_below = -self._ready.priorities[0] > priority
        found = self._first(machine, table, fits, now_s, above=priority) if is_below else None
        if found is None and wanted & fits:
            return self.as_placed(kept.queue, kept.type, wanted & fits, StartReason.KEPT)
        if found is None:
            found = self._first(machine, table, self.reservations.beside(machine, kept, fits, now_s), now_s)
        return None if found is None else self._pick_of(machine, found, now_s)

    def _pick_of(self, machine: MatchableMachine, found: StartableJob, now_s: float) -> Pick:
        """Return which of the jobs that may start goes first."""
        table = machine.table
        is_short = self._machines.are_enough_for(self._ready.count)
        pick = self._oldest_wide(table, found, now_s) if is_short else None
        if pick is None and table.is_near_end(found.rest_s, now_s):
            pick = self._longest(table, found)
        if pick is None:
            pick = self._ahead_of_others(machine, table, found)
        if pick is None or pick.queue.ranks[pick.type.index] == found.rank:
            one = self._types.types[type_of(found.rank)]
            return self.as_placed(found.queue, one, found.good, StartReason.OLDEST)
        if pick.type.shape.is_advised_against:
            # It goes first for the room that it takes on a device, and does not take it if the CPU does.
            return self.as_placed(pick.queue, pick.type, found.good, pick.why)
        return pick

    def hold_reason(self, machine: MatchableMachine, queue: UserQueue, one: JobType, now_s: float) -> HoldReason:
        """Return why the first job of a type, which fits a machine now, does not start there."""
        table, fits = machine.table, self._machines.fits(machine)
        if machine.ends_s is not None:
            fits &= table.within(machine.ends_s - now_s)
            if not one.bits & fits:
                return HoldReason.ENDS
        bits = self._shares.allowed(queue.user, self._types, one.bits & fits)
        if not bits:
            return HoldReason.LIMIT
        kept = machine.kept
        if kept is not None and queue.priority <= kept.queue.priority:
            fits = self.reservations.beside(machine, kept, fits, now_s)
            if not bits & fits:
                return HoldReason.KEPT
        return self._wait_reason(machine, queue, one, bits, fits, now_s)

    def _wait_reason(
        self, machine: MatchableMachine, queue: UserQueue, one: JobType, bits: int, fits: int, now_s: float
    ) -> HoldReason:
        """Return for which machine a job waits: a faster one, one that it prefers, one that others need less."""
        table = machine.table
        if self._overdue(queue, table, bits & fits, now_s):
            return HoldReason.ORDER
        if not self._work.is_idle:
            is_lowest = self._ready.is_lowest(queue.priority)
            ahead_s, _ = self._work.both_s(now_s, None if is_lowest else queue.priority)
            slow = fits & ~table.worth_starting(ahead_s)
            if not self.reservations.unawaited(table, queue.priority, bits & fits, now_s):
                # A higher priority waits for a faster machine with jobs of the same type, and goes first.
                return HoldReason.FASTER
            fits &= ~slow
            if not bits & fits:
                fits = slow & self._sooner_here(queue, machine, slow, now_s)
                if not bits & fits:
                    return HoldReason.FASTER
            elif is_lowest and not bits & self._affordable(machine, table, fits, ahead_s, now_s):
                return HoldReason.SCARCE
        less_wanted = bits & fits & table.less_wanted
        if less_wanted and self._waits_for_preferred(one, table, less_wanted, now_s):
            return HoldReason.PREFERRED
        return HoldReason.ORDER

    def _first(
        self, machine: MatchableMachine, table: NodeTable, fits: int, now_s: float, above: int | None = None
    ) -> StartableJob | None:
        """Find the first job that may start here, of all priorities or of those above one."""
        ready = self._ready
        last = len(ready.priorities) - 1
        for at, negated in enumerate(ready.priorities):
            if above is not None and -negated <= above:
                break
            users = ready.levels[-negated]
            if not any(fits & queue.bits for queue in users.values()):
                continue
            is_lowest = at == last
            ahead_s, rest_s = self._work.both_s(now_s, None if is_lowest else -negated)
            good = self._good(machine, table, fits, ahead_s, now_s, is_lowest=is_lowest)
            for name in self._shares.order(users, now_s) if len(users) > 1 else users:
                queue = users[name]
                found = self._first_of(queue, machine, fits, good, now_s)
                if found is None and fits & ~good & queue.bits and not self._work.is_idle:
                    sooner = self._sooner_here(queue, machine, fits & ~table.worth_starting(ahead_s), now_s)
                    found = self._first_of(queue, machine, fits, good | sooner, now_s) if sooner else None
                if found is not None:
                    return StartableJob(queue, *found, fits, good, ahead_s, rest_s)
            # What a higher priority waits for elsewhere, a lower one of the same type does not start here before it.
            for queue in users.values():
                fits &= good | ~self._shares.allowed(queue.user, self._types, queue.bits)
        return None

    def _first_of(
        self, queue: UserQueue, machine: MatchableMachine, fits: int, good: int, now_s: float
    ) -> tuple[int, int] | None:
        good = self._good_of(queue, machine.table, fits, good, now_s)
        if not good & queue.bits:
            if fits & queue.bits:
                self._ready.hold(queue, self._shares.allowed(queue.user, self._types, fits & ~good), now_s)
            return None
        return self._ready.first(queue, good), good

    def _good_of(self, queue: UserQueue, table: NodeTable, fits: int, good: int, now_s: float) -> int:
        """Return what may start here of a user's jobs: worth it or overdue, allowed, and no better off elsewhere."""
        overdue = self._overdue(queue, table, fits, now_s) if queue.since else 0
        good = self._shares.allowed(queue.user, self._types, good | overdue)
        less_wanted = good & queue.bits & table.less_wanted & ~overdue
        return self._preferring(table, good, less_wanted, now_s) if less_wanted else good

    def _good(
        self, machine: MatchableMachine, table: NodeTable, fits: int, ahead_s: float, now_s: float, *, is_lowest: bool
    ) -> int:
        """Return what may start here of what fits: first by time, then by price.

        A job of a higher priority need not save, and nothing waits for a faster machine where nothing runs.
        """
        if self._work.is_idle:
            return fits
        fits &= table.worth_starting(ahead_s)
        return self._affordable(machine, table, fits, ahead_s, now_s) if is_lowest else fits

    def _affordable(self, machine: MatchableMachine, table: NodeTable, fits: int, ahead_s: float, now_s: float) -> int:
        """Return what is cheap here, while jobs are ready for which this is the right node type."""
        bits = self._ready.bits
        if bits & table.own and self._shares.has_limits:
            bits = self._startable()
        if not bits & table.own:
            return fits
        cheap = fits & table.cheap
        if cheap & bits:
            return cheap
        if not bits & table.own & table.worth_starting(ahead_s):
            return fits
        # Those jobs wait for what runs here: until it ends, what is over by then does no harm.
        left_s = machine.busy_until_s - now_s
        if left_s <= 0:
            return fits
        machine.again_s = machine.busy_until_s
        return cheap | fits & table.times.upto(left_s)

    def _startable(self) -> int:
        """Return what is ready and within the limits of its user."""
        found = 0
        for users in self._ready.levels.values():
            for queue in users.values():
                found |= self._shares.allowed(queue.user, self._types, queue.bits)
        return found

    def _overdue(self, queue: UserQueue, table: NodeTable, fits: int, now_s: float) -> int:
        """Return what fits and was held back for as long as it may be before it starts here."""
        found = 0
        for since_s, mask in queue.since:
            held = mask & fits
            if held:
                found |= held & table.over_after(now_s - since_s + ROUNDING_S)
        return found

    def _preferring(self, table: NodeTable, good: int, less_wanted: int, now_s: float) -> int:
        """Leave out what would end no later on a machine that it prefers."""
        for index in self._types.in_mask(less_wanted):
            one = self._types.types[index]
            if self._waits_for_preferred(one, table, less_wanted, now_s):
                good &= ~(one.bits & less_wanted)
        return good

    def _sooner_here(self, queue: UserQueue, machine: MatchableMachine, slow: int, now_s: float) -> int:
        """Return what is expected to end no later here than on any faster node type, by what runs and waits there.

        While jobs keep coming for which that node type is fast, it is not idle without this one, and waiting for it
        helps no other job: then a job starts here unless it takes `MUCH_SOONER` times as long. Asked only where a
        machine would get nothing else, and while no more jobs wait than there are machines: of a longer queue the work
        of the whole fleet tells more.
        """
        table, found = machine.table, 0
        if not self._machines.are_enough_for(self._ready.count):
            return 0
        for index in self._types.in_mask(slow & queue.bits & ~table.unknown)[:_MOST_TYPES]:
            one = self._types.types[index]
            here_s = self._here_s(one, table, slow)
            faster = [
                option
                for option in one.options
                if one.expected_s / option.speed * SLACK < here_s and self._tables.is_counted(one, option, now_s)
            ]
            if all(not self._is_worth_waiting(one, option, here_s, now_s) for option in faster):
                found |= one.bits & slow
        return found

    def _is_worth_waiting(self, one: JobType, option: RunOption, here_s: float, now_s: float) -> bool:
        """Return whether a job should rather wait for a faster node type than take so long where it could start."""
        table = self._tables.tables[option.node_type]
        end_s = self._end_on_s(one, option, self._ready_for(table.fast), now_s)
        return end_s * (MUCH_SOONER if table.gets_more_within(MUCH_SOONER * here_s, now_s) else 1.0) <= here_s

    def _waits_for_preferred(self, one: JobType, table: NodeTable, among: int, now_s: float) -> bool:
        """Return whether a job is expected to end on a preferred node type no later than here, as it fits here."""
        if not one.is_known:
            return False
        here, here_s = preference(one.shape, table.offer), self._here_s(one, table, among)
        for option in one.options:
            other = self._tables.tables[option.node_type]
            if preference(one.shape, other.offer) <= here or not self._tables.is_counted(one, option, now_s):
                continue
            if self._end_on_s(one, option, self._ready_for(other.wanted), now_s) <= here_s:
                return True
        return False

    def _here_s(self, one: JobType, table: NodeTable, among: int) -> float:
        """Return how long a job takes on a node type in those of its placements, devices or CPU, that fit there now."""
        mine = [
            one.expected_s / option.speed
            for option in one.options
            if option.node_type == table.number and among >> one.number(option) & 1
        ]
        return min(mine, default=0.0)

    def _end_on_s(self, one: JobType, option: RunOption, waiting: int, now_s: float) -> float:
        """Return in how long a job would end on a node type: after what runs, and those of so many that wait for it."""
        other = self._tables.tables[option.node_type]
        there_s = one.expected_s / option.speed
        part = max((part for _, part in option.takes), default=1.0)
        queued_s = max(0, waiting - 1) * there_s / (max(1.0, 1.0 / part) * other.count)
        room_s = self._machines.next_room_s(other, one, 1 << one.number(option), part, now_s)
        return room_s - now_s + queued_s + there_s

    def _ready_for(self, mask: int) -> int:
        """Count ready jobs of some types."""
        counts = self._ready.type_counts
        return sum([counts[index] for index in self._types.in_mask(mask & self._ready.bits)])

    def _longest(self, table: NodeTable, found: StartableJob) -> Pick | None:
        late = found.good & table.longer_than(found.rest_s * LONG) & found.queue.bits
        if not late:
            return None
        for _, bit, index, number in table.by_length:
            if bit & late:
                return Pick(found.queue, self._types.types[index], number, StartReason.LONGEST)
        return None

    def _oldest_wide(self, table: NodeTable, found: StartableJob, now_s: float) -> Pick | None:
        """Return the oldest job that needs much room at once, of any user, if it is older than what goes first."""
        first, pick = found.rank, None
        for queue in self._ready.levels[found.queue.priority].values():
            if not queue.bits & found.fits & table.tiers[-1]:
                continue
            is_first = queue is found.queue
            good = found.good if is_first else self._good_of(queue, table, found.fits, found.worth, now_s)
            wide = good & table.tiers[-1]
            if wide & queue.bits:
                rank = self._ready.first(queue, wide)
                if rank < first:
                    first, pick = rank, self.as_placed(queue, self._types.types[type_of(rank)], wide, StartReason.WIDE)
        return pick

    def _ahead_of_others(self, machine: MatchableMachine, table: NodeTable, found: StartableJob) -> Pick | None:
        queue, good = found.queue, found.good
        bits = queue.bits
        beside = self._machines.beside(machine) & good if machine.shares else 0
        among = beside if beside & bits else good
        last = found.rank + places(queue.count // EARLY)
        for tier in table.tiers:
            early = among & tier
            if early & bits:
                if not good & ~early & bits:
                    return None
                rank = self._ready.first(queue, early)
                if rank <= last:
                    return self.as_placed(queue, self._types.types[type_of(rank)], early, StartReason.WIDE)
        if among is not good:
            rank = self._ready.first(queue, among)
            if rank <= last:
                return self.as_placed(queue, self._types.types[type_of(rank)], among, StartReason.RESIDENT)
        return None

    def as_placed(self, queue: UserQueue, one: JobType, among: int, why: StartReason) -> Pick:
        """Return the first job of a type as it is placed: on devices, or rather on the CPU as the cost rule advises.

        The other of the two, if that one is not among what may start.
        """
        first, second = one.device_number, one.cpu_number
        if one.shape.is_advised_against:
            first, second = second, first
        number = second if first is None or not among >> first & 1 else first
        if number is None:
            message = "a job type is picked that may not start"
            raise ValueError(message)
        return Pick(queue, one, number, why)

    def tally(self, machine: MatchableMachine, declined: int, now_s: float) -> dict[str, int]:
        """Count ready jobs by why they do not start on a machine, which declined those of some types."""
        counts: dict[str, int] = {}
        for users in self._ready.levels.values():
            for queue in users.values():
                for index in self._types.in_mask(queue.bits):
                    one = self._types.types[index]
                    is_declined = bool(declined & one.bits)
                    reason = str(HoldReason.DECLINED) if is_declined else self.reason(machine, queue, one, now_s)
                    counts[reason] = counts.get(reason, 0) + queue.counts[index]
        return counts

    def reason(self, machine: MatchableMachine, queue: UserQueue, one: JobType, now_s: float) -> str:
        """Return why the first job of a type does not start on a machine: an `UnfitReason`, or a `HoldReason`."""
        if machine.deferred & one.bits:
            return str(HoldReason.BETTER_FREE)
        if self._machines.fits(machine) & one.bits:
            return str(self.hold_reason(machine, queue, one, now_s))
        known = self._in_state(machine)
        reason = known.get(one.index)
        if reason is None:
            reason = known[one.index] = str(first_block(one.shape, self._machines.index.usage(machine.name)))
        return reason

    def _in_state(self, machine: MatchableMachine) -> dict[int, str]:
        """Return the reasons that are known for machines in the same state, by type."""
        state = self._machines.index.state(machine.name)
        known = self._reasons.get(state)
        if known is None:
            known = self._reasons[state] = {}
            if len(self._reasons) > _STATES:
                self._reasons.popitem(last=False)
        return known
