"""Machines whose claim got no grant, and when they are called to claim again. No machine polls.

A machine that is held back is parked. It is called when what it was refused for may have ended: a job came that fits
it, one of its own ended, its patience is over, a machine that was better has asked. Refusals that hold for all machines
of a node type are remembered until there is news, so that one of ten thousand equal machines is called in vain, not
all. A machine that was called and does not ask within `ANSWER_S` is not counted on until it does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush

from stoker.scheduler.fit import is_wished
from stoker.scheduler.job_types import JobType, JobTypes
from stoker.scheduler.leases import OutstandingWork
from stoker.scheduler.machine_index import MachineIndex, MatchableMachine
from stoker.scheduler.node_tables import NodeTable, NodeTables, preference
from stoker.scheduler.ready_queue import ReadyQueue

ANSWER_S = 5.0
"""A machine that was called and has not claimed by then is ignored until its next claim."""
ASK_AGAIN_EVERY = 2000
"""After so many grants all machines that were refused something are asked again: amounts have changed."""
ROUNDING_S = 1e-6
"""Times that differ by no more are the same."""
MORE = 1.25
"""With so many times as many ready jobs what is held back is asked about again."""
_CALLED_AT_ONCE = 8
"""Machines of one node type that are called for one job type, until one of them has asked."""
_LOOKED_AT = 64
"""Of so many machines of a node type those are called that have the most jobs."""


class WaitingMachines:
    """All machines whose claim got no grant."""

    def __init__(
        self, types: JobTypes, tables: NodeTables, machines: MachineIndex, ready: ReadyQueue, work: OutstandingWork
    ) -> None:
        self._types = types
        self._tables = tables
        self._machines = machines
        self._ready = ready
        self._work = work
        self.parked = 0
        """How many machines wait."""
        self._open: dict[int, dict[str, MatchableMachine]] = {}
        """Those that have room for something, by node type, in the order in which they asked."""
        self._room: dict[int, int] = {}
        """By node type, what may fit one of them."""
        self._refused: dict[int, int] = {}
        """By node type, what was refused since the last news for a reason that holds for all machines of the type."""
        self._refused_until_s: dict[int, float] = {}
        """By node type, when the first of these reasons may end by itself."""
        self._unlisted: dict[str, MatchableMachine] = {}
        """Machines of which the node index does not know yet whether they wait."""
        self._timers: list[tuple[float, int, str]] = []
        self._unanswered: deque[tuple[float, MatchableMachine]] = deque()
        """Machines by when they were called; some have asked since."""
        self._called: dict[str, MatchableMachine] = {}
        """Machines that `due` returns next."""
        self._awaited: dict[str, dict[str, None]] = {}
        """By machine, those that are held back until it has asked."""
        self._again: list[str] = []
        """Machines that were held back for a better one, which has asked since."""
        self._stamp = 0
        """Counts news: a machine that asked before the last one may be asked again."""
        self._pending = 0
        """Job types for which some machine may have to be called."""
        self._preferred: dict[int, list[int]] = {}
        """By job type, the answers of `_preferred_types` since the last news."""
        self._grants, self._grants_at_news, self._count_at_news = 0, 0, 0
        self._served = 0
        self._seen_bits = 0

    # -- machines

    def park(self, machine: MatchableMachine, fits: int, refused: int, deferred: int, now_s: float) -> None:
        """Let a machine wait to be called.

        It was refused what fits; of that `deferred` is left to better machines that are free, and `refused` was judged
        by rules that look at the whole queue.
        """
        machine.is_parked, machine.is_called = True, False
        machine.asked_stamp = self._stamp
        machine.refused = fits & self._ready.bits & ~deferred
        machine.deferred = deferred
        self.parked += 1
        self._unlisted[machine.name] = machine
        if fits:
            self._add(machine, fits)
        if refused:
            self._note_refused(machine, refused, now_s)

    def _note_refused(self, machine: MatchableMachine, refused: int, now_s: float) -> None:
        number = machine.table.number
        again_s = self._again_s(machine, refused, now_s)
        if machine.kept is None and machine.again_s is None:
            self._refused[number] = self._refused.get(number, 0) | refused
            if again_s is not None:
                self._refused_until_s[number] = min(again_s, self._refused_until_s.get(number, again_s))
        if machine.again_s is not None and (again_s is None or machine.again_s < again_s):
            again_s = machine.again_s
        if again_s is not None:
            heappush(self._timers, (again_s, machine.asked_stamp, machine.name))

    def _again_s(self, machine: MatchableMachine, refused: int, now_s: float) -> float | None:
        """Return when the first of what a machine was refused has waited for as long as it would take here."""
        table = machine.table
        found: float | None = None
        for queue in self._ready.holding:
            for since_s, mask in queue.since:
                # What is overdue already is refused for another reason.
                left = mask & refused and mask & refused & ~table.over_after(now_s - since_s + ROUNDING_S)
                shortest_s = table.shortest_s(left) if left else None
                if shortest_s is not None and (found is None or since_s + shortest_s < found):
                    found = since_s + shortest_s
        return found

    def refused(self, machine: MatchableMachine, now_s: float) -> int:
        """Return what any machine of the same node type would be refused now."""
        number = machine.table.number
        until_s = self._refused_until_s.get(number)
        if until_s is not None and now_s >= until_s:
            del self._refused_until_s[number]
            self._refused.pop(number, None)
        return self._refused.get(number, 0)

    def hear(self, machine: MatchableMachine) -> None:
        """Note a machine's claim: it waits no more, and jobs no more for it."""
        if machine.is_parked:
            self.unpark(machine)
        if machine.is_silent:
            self._machines.set_silent(machine, is_silent=False)
            self.news()
        if self._awaited:
            self._again += self._awaited.pop(machine.name, ())
        if machine.name == self._work.settling:
            self.settle()

    def note_idle(self, machine: MatchableMachine | None, now_s: float) -> None:
        """Take in that nothing runs any more: jobs wait for no machine then, once this one, whose job ended, asked."""
        if machine is None or machine.is_parked:
            self.news()
        else:
            self._work.settling, self._work.settles_s = machine.name, now_s + ANSWER_S

    def settle(self) -> None:
        """Wait no longer for the machine whose job was the last one."""
        self._work.settling = ""
        self.news()

    def unpark(self, machine: MatchableMachine) -> None:
        """Let a machine wait no more."""
        if machine.is_parked:
            machine.is_parked = machine.is_called = False
            machine.refused = machine.deferred = 0
            self._called.pop(machine.name, None)
            self._open.get(machine.table.number, {}).pop(machine.name, None)
            self.parked -= 1
            self._unlisted[machine.name] = machine

    def move(self, machine: MatchableMachine, before: NodeTable) -> None:
        """Let a machine that waits do so under the node type that it now has."""
        if machine.is_parked:
            self._open.get(before.number, {}).pop(machine.name, None)
            self._add(machine, self._machines.fits(machine))

    def reopen(self, machine: MatchableMachine) -> None:
        """Take in that a machine that waits may have more room than it had."""
        if machine.is_parked:
            self._add(machine, self._machines.fits(machine))

    def widen(self, bits: int) -> None:
        """Take in a new job type: it may fit any machine that waits, which is found out when they are called."""
        for machine in self._machines.machines.values():
            if machine.is_parked:
                self._open.setdefault(machine.table.number, {}).setdefault(machine.name, machine)
        self._room = {number: self._room.get(number, 0) | bits for number in self._open}
        self._preferred.clear()

    def _add(self, machine: MatchableMachine, fits: int) -> None:
        number = machine.table.number
        machines = self._open.get(number)
        if machines is None:
            machines = self._open[number] = {}
        machines[machine.name] = machine
        self._room[number] = self._room.get(number, 0) | fits

    def is_better_free(self, machine: MatchableMachine, one: JobType, now_s: float) -> bool:
        """Return whether a better machine is free for a job, and about to ask; it is called.

        With more ready jobs than machines that wait all of these get something: then only preferences count.
        """
        if self._ready.count > self.parked and not one.bits & machine.table.less_wanted:
            return False
        index = self._machines.index
        for name, other in self._unlisted.items():
            if self._machines.machines.get(name) is other:
                (index.show if other.is_parked else index.hide)(name)
        self._unlisted.clear()
        best = index.best(one.shape)
        if best is None or best[0] == machine.name:
            return False
        name, key = best
        here = index.choice(machine.name, one.shape)
        other = self._machines.machines[name]
        if here is None or key <= here.key or other.is_doubted or other.refused & one.bits or not other.is_parked:
            return False
        self.call(other, now_s)
        self._awaited.setdefault(name, {})[machine.name] = None
        return True

    def call(self, machine: MatchableMachine, now_s: float) -> None:
        """Call a machine to claim again."""
        if machine.is_parked and not machine.is_called:
            machine.is_called = True
            machine.called_s = now_s
            self._called[machine.name] = machine
            self._unanswered.append((now_s, machine))

    # -- news

    def news(self) -> None:
        """Something changed that may end any reason: every node type is asked again about all that is ready."""
        self._stamp += 1
        self._grants_at_news, self._count_at_news = self._grants, self._ready.count
        self._pending = -1
        self._refused.clear()
        self._refused_until_s.clear()
        self._preferred.clear()

    def note_arrivals(self, now_s: float) -> None:
        """Machines that asked before these jobs came may be asked about them."""
        arrived, self._ready.arrived = self._ready.arrived, 0
        if self._ready.holding and self._ready.count > self._count_at_news * MORE:
            # What waits for a faster machine may have to wait longer there now.
            self.news()
        if self._ready.came:
            self._tables.note_arrivals(self._ready.came, now_s)
            self._ready.came = 0
        self._stamp += 1
        self._pending |= arrived
        for number in self._refused:
            self._refused[number] &= ~arrived

    def note_grant(self) -> None:
        """Count a grant: amounts change."""
        self._grants += 1

    def note_prices(self) -> None:
        """Take in that prices were found again."""
        self._served = self._served_types()

    def shift(self, back_s: float) -> None:
        """Move all times that something waits for: the clock was set back."""
        self._timers = [(due_s - back_s, stamp, name) for due_s, stamp, name in self._timers]
        self._unanswered = deque((called_s - back_s, machine) for called_s, machine in self._unanswered)
        self._refused_until_s = {number: until_s - back_s for number, until_s in self._refused_until_s.items()}
        for machine in self._machines.machines.values():
            machine.called_s -= back_s

    # -- who is called

    @property
    def next_s(self) -> float | None:
        """When `due` is due next if nothing happens before."""
        if self._unanswered:
            self._drop_answered()
        unanswered_s = self._unanswered[0][0] + ANSWER_S if self._unanswered else None
        timer_s = self._timers[0][0] if self._timers else None
        if self._work.settling and (timer_s is None or self._work.settles_s < timer_s):
            timer_s = self._work.settles_s
        if unanswered_s is None or timer_s is None:
            return timer_s if unanswered_s is None else unanswered_s
        return min(unanswered_s, timer_s)

    def due(self, now_s: float) -> list[str]:
        """Return machines that should claim now: the reason of their refusal may have ended."""
        ready = self._ready
        if ready.bits != self._seen_bits or ready.arrived or self._is_time_to_ask:
            self._note_changes(now_s)
        if self._unanswered:
            self._give_up_unanswered(now_s)
        self._end_timers(now_s)
        if self._again:
            for name in self._again:
                waiting = self._machines.machines.get(name)
                if waiting is not None and waiting.deferred & ready.bits:
                    self.call(waiting, now_s)
            self._again.clear()
        if self._pending:
            self._pending &= ready.bits
            if self._pending and self.parked:
                self._call_for(self._pending, now_s)
        if not self._called:
            return []
        called = list(self._called)
        self._called.clear()
        return called

    def _drop_answered(self) -> None:
        unanswered = self._unanswered
        while unanswered:
            called_s, machine = unanswered[0]
            if machine.is_called and machine.called_s == called_s:
                return
            unanswered.popleft()

    def _give_up_unanswered(self, now_s: float) -> None:
        """Ignore machines that did not claim after a call: jobs need not wait for them."""
        self._drop_answered()
        while self._unanswered and now_s - self._unanswered[0][0] >= ANSWER_S:
            _, machine = self._unanswered.popleft()
            if machine.name in self._called:
                # It was not called yet: its time begins now.
                machine.called_s = now_s
                self._unanswered.append((now_s, machine))
                self._drop_answered()
                continue
            self.unpark(machine)
            self._machines.set_silent(machine, is_silent=True)
            self.news()
            self._drop_answered()

    def _end_timers(self, now_s: float) -> None:
        if self._work.settling and now_s >= self._work.settles_s:
            self.settle()
        while self._timers and self._timers[0][0] <= now_s:
            self._on_timer(*heappop(self._timers)[1:], now_s)

    def _on_timer(self, stamp: int, name: str, now_s: float) -> None:
        machine = self._machines.machines.get(name)
        if machine is None or not machine.is_parked or machine.is_called:
            return
        if stamp == machine.asked_stamp and machine.refused & self._ready.bits:
            self.call(machine, now_s)

    def _note_changes(self, now_s: float) -> None:
        """Find the reasons that may have ended since the last time."""
        ready = self._ready
        if ready.bits != self._seen_bits:
            if self._seen_bits & ~ready.bits and self._served_types() != self._served:
                # No job is ready any more for which some node type is the right one: it is free for others.
                self._served = self._served_types()
                self.news()
            self._seen_bits = ready.bits
        if self._is_time_to_ask:
            self.news()
        if ready.arrived:
            self.note_arrivals(now_s)

    @property
    def _is_time_to_ask(self) -> bool:
        """Whether so many jobs started since the last news that amounts differ: fewer, where few are ready."""
        grants, running = self._grants - self._grants_at_news, self._work.running
        if grants < min(running, ASK_AGAIN_EVERY) or not grants:
            return False
        return self._ready.count < running or grants >= max(ASK_AGAIN_EVERY, 8 * self.parked)

    def _served_types(self) -> int:
        bits = self._ready.bits
        return sum([1 for table in self._tables.tables if table.count and table.own & bits])

    def _call_for(self, pending: int, now_s: float) -> None:
        """Call as many machines as jobs are ready, the best first, of each node type that has not refused them."""
        seen: dict[int, tuple[int, bool]] = {}
        room = 0
        for number, fits in self._room.items():
            room |= fits & ~self._refused.get(number, 0)
        for index in self._types.in_mask(pending):
            one = self._types.types[index]
            if not one.bits & room:
                self._pending &= ~one.bits
                continue
            need = self._ready.type_counts[index]
            for number in self._open_types(one):
                need -= self._call_some(number, one.bits, need, seen, now_s)
                if not need:
                    break
            if need == self._ready.type_counts[index]:
                self._pending &= ~one.bits

    def _open_types(self, one: JobType) -> Iterator[int]:
        """Return the node types of machines that wait for a job type, preferred ones first.

        Those of which every machine declined something lately come last: it may take this job.
        """
        uncounted = []
        for number in self._preferred_types(one):
            if number in self._open:
                if self._tables.tables[number].count:
                    yield number
                else:
                    uncounted.append(number)
        yield from uncounted

    def _call_some(self, number: int, bits: int, most: int, seen: dict[int, tuple[int, bool]], now_s: float) -> int:
        """Call machines of a node type that could start a job and have not asked since; return how many are called.

        `seen` keeps for the next job type what fits any of these machines, once all of them were looked at, and whether
        they are all that wait.
        """
        mask = bits & ~self._refused.get(number, 0)
        if not mask & self._room.get(number, 0):
            return 0
        fitting, is_all = seen.get(number, (-1, False))
        if not mask & fitting:
            if is_all:
                self._room[number] &= ~mask
            return 0
        most = min(most, _CALLED_AT_ONCE)
        called, found, version = [], 0, len(self._types.types)
        for machine in self._open[number].values():
            if machine.asked_stamp >= self._stamp:
                seen[number] = found, False
                break
            # As `MachineIndex.fits`; of thousands of machines few have changed.
            fits = machine.fits if machine.fits_version == version else self._machines.fits(machine)
            found |= fits
            if fits & mask:
                called.append(machine)
                if len(called) == _LOOKED_AT:
                    break
        else:
            seen[number] = found, True
            if not called:
                self._room[number] &= ~mask
        called = _fullest(called, most)
        for machine in called:
            self.call(machine, now_s)
        return len(called)

    def _preferred_types(self, one: JobType) -> list[int]:
        """Return the node types that can run a job type: preferred ones first, then fast ones, then small ones."""
        tables = self._tables.tables
        found = self._preferred.get(one.index)
        if found is None:
            ranked = [
                (
                    is_wished(one.shape, on_devices=option.on_devices),
                    preference(one.shape, tables[option.node_type].offer),
                    option.speed,
                    -len(tables[option.node_type].offer.devices),
                    -option.node_type,
                )
                for option in one.options
            ]
            found = list(dict.fromkeys(-number for *_, number in sorted(ranked, reverse=True)))
            self._preferred[one.index] = found
        return found


def _fullest(machines: list[MatchableMachine], most: int) -> list[MatchableMachine]:
    """Return so many of some machines: those with the most jobs, so that others keep room for wide jobs."""
    if len(machines) <= most:
        return machines
    return sorted(machines, key=lambda one: 0 if one.shares else -len(one.leases))[:most]
