"""A run: the placement rules on a clock of their own, from the first job that starts to the last that ends.

When a job ends, its machine asks whose turn it is there; that is one decision, with the queue's work for it and the
release later. Everything is decided by `placement`: this module only lets time pass and writes down what happens.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from math import nan

from stoker.model.clock import FakeClock
from stoker.model.errors import Bug
from stoker.scheduler.lineup import Lineup
from stoker.scheduler.node_index import NodeIndex, PlacedJob
from stoker.scheduler.offers import NodeOffer, Sharing
from stoker.scheduler.rest import Rest, Share
from stoker.scheduler.shapes import node_types_of
from stoker.scheduler.simulation.agenda import Agenda
from stoker.scheduler.simulation.workload import Batch
from stoker.scheduler.tables import SortTable, Tables
from stoker.scheduler.turns import Kept, Machine, Turn, Turns
from stoker.scheduler.waiting import Waiting

NOWHERE = 0xFFFFFFFF
_HEED_EVERY = 500
_ASK_AGAIN_EVERY = 2000
_PRICE_AT = 3
"""Prices are found again when only one of so many is left of what waited."""


class Log:
    """What was decided, a row for each job: enough to check every decision."""

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


class FleetMachine(Machine):
    """One machine of the fleet."""

    __slots__ = ("bases", "idle", "index", "kept_then", "place", "refused", "speed", "speeds")

    def __init__(self, offer: NodeOffer, table: SortTable, index: int) -> None:
        super().__init__(offer.node, table)
        self.index = index
        self.place = 0
        """The fastest is asked first."""
        self.speeds = tuple(device.speed for device in offer.devices)
        self.speed = self.speeds[0] if len(set(self.speeds)) == 1 else None
        """Of all its devices, if they are alike."""
        is_shared = any(device.sharing is not Sharing.NEVER for device in offer.devices)
        self.idle = len(offer.devices) if offer.devices and not is_shared else -1
        """How many devices nobody is on; below 0: they may be shared, or there are none."""
        self.bases = 0
        """How many of its jobs share a base model."""
        self.refused = 0
        """What fitted and was not taken when it was last asked; not asked about again for a while."""
        self.kept_then: Kept | None = None
        """For whom it was kept then."""


_Running = tuple[FleetMachine, PlacedJob, Share]
"""Where a job runs, what it holds there, what it adds to the rest."""


class Run:
    """One simulation."""

    def __init__(self, offers: Sequence[NodeOffer], batch: Batch, *, backlog: int | None = None) -> None:
        """Lay everything out. With a `backlog` only so many jobs wait at once: one comes whenever one starts."""
        self.offers = tuple(offers)
        self.batch = batch
        self.log = Log(len(batch))
        self.sorts, self._sort_of = node_types_of(self.offers)
        self.board = NodeIndex(self.offers)
        self.lineup = Lineup(self.board, self.sorts, [(one.wanted, one.expected_s) for one in batch.shapes])
        self.lines = self.lineup.lines
        self.waiting = Waiting()
        for line in self.lines:
            self.waiting.open_line(line.bits)
        self.tables = Tables(self.lines, self.sorts)
        self.rest = Rest()
        self.turns: Turns[FleetMachine] = Turns(self.lines, self.tables, self.waiting, self.rest)
        self.machines = [
            FleetMachine(offer, self.tables.sorts[self._sort_of[offer.node]], index)
            for index, offer in enumerate(self.offers)
        ]
        for place, machine in enumerate(sorted(self.machines, key=lambda one: -max(one.speeds, default=0.0))):
            machine.place = place
        self.clock = FakeClock()
        self.now_s = 0.0
        self.decisions = 0
        self._backlog = len(batch) if backlog is None else backlog
        self._next_job = 0
        self._job_of = array("L")
        self._running: Agenda[_Running] = Agenda()
        self._refused: set[FleetMachine] = set()
        self._freed: list[FleetMachine] = []
        self._is_time_to_ask = False
        self._ask_again_in = _ASK_AGAIN_EVERY
        self._costs_s: list[float] = []
        """What a job of each line costs where it costs least."""
        self._priced_at = 0
        self._served_sorts = 0

    @property
    def unplaceable(self) -> list[int]:
        """The shapes that no machine of the fleet could take, even idle."""
        return [number for number, line in enumerate(self.lines) if not line.ways]

    def sort_of(self, node: str) -> int:
        """Give the sort of a machine, by its number."""
        return self._sort_of[node]

    def queue(self) -> None:
        """Let jobs come, and find out what machines are worth for them."""
        while len(self.waiting) < self._backlog and self._next_job < len(self.batch):
            self._come()
        self._price()

    def fill(self) -> None:
        """Ask every machine, the fastest first."""
        self._refused.update(self.machines)
        self._ask_again()

    def go(self, heed: Callable[[int], None] = lambda _count: None, until: int | None = None) -> None:
        """Let everything run to its end, or until so many decisions; `heed` is told now and then how many there are."""
        rest, most = self.rest, len(self.batch) + 1 if until is None else until
        while rest.running and self.decisions < most:
            self._end_one()
            while self._freed:
                self._ask(self._freed.pop())
            self._ask_again_in -= 1
            if self._is_time_to_ask or self._ask_again_in <= 0 or not rest.running:
                self._ask_again()
            if not self.decisions % _HEED_EVERY:
                heed(self.decisions)
        heed(self.decisions)

    def _come(self) -> None:
        """Let the next job come that could run anywhere."""
        batch = self.batch
        while self._next_job < len(batch):
            job = self._next_job
            self._next_job = job + 1
            line = batch.shape_of[job]
            if self.lines[line].ways:
                self.log.come_s[job] = self.now_s
                self.waiting.add(line, batch.priority_of[job])
                self._job_of.append(job)
                self.turns.came(line)
                if self._costs_s:
                    self.rest.comes(self._costs_s[line], batch.priority_of[job])
                return

    def _price(self) -> None:
        """Find out what machines are worth for what waits now."""
        waiting, lines, tables = self.waiting, self.lines, self.tables
        counts = [waiting.lengths(line) for line in range(len(lines))]
        tables.price([sum(count.values()) * line.expected_s for count, line in zip(counts, lines, strict=True)])
        self._costs_s = [line.expected_s * cost for line, cost in zip(lines, tables.cheapest, strict=True)]
        by_priority: dict[int, float] = {}
        for cost_s, count in zip(self._costs_s, counts, strict=True):
            for priority, many in count.items():
                by_priority[priority] = by_priority.get(priority, 0.0) + many * cost_s
        self.rest.recount(by_priority)
        self._priced_at = len(waiting)

    def _end_one(self) -> None:
        end_s, _, (machine, placed, share) = self._running.take()
        self.clock.advance(end_s - self.now_s)
        self.now_s = end_s
        self.board.release(placed)
        self.rest.ends(share)
        if placed.devices:
            if machine.idle >= 0:
                machine.idle += len(placed.devices)
            elif placed.is_shared and placed.shape.base:
                machine.bases -= 1
        if self.waiting.bits:
            self._ask(machine)

    def _ask(self, machine: FleetMachine) -> None:
        """Start on a machine whoever's turn it is there, until it is nobody's."""
        node, waiting, lineup, turns = machine.node, self.waiting, self.lineup, self.turns
        while True:
            fits = lineup.fitting(node)
            if machine.kept is not machine.kept_then or len(waiting.levels) > 1:
                machine.refused = 0
            if not fits & ~machine.refused & waiting.bits:
                return
            turn = turns.next(machine, fits, lineup.beside(node) if machine.bases else 0, self.now_s)
            if turn is None:
                self._refused.add(machine)
                machine.refused, machine.kept_then = fits & waiting.bits, machine.kept
                return
            self._start(machine, turn)
            if not machine.idle and turns.is_over(machine.table):
                return

    def _ask_again(self) -> None:
        """Ask machines that had room for somebody and took nobody: reasons pass."""
        self._is_time_to_ask = False
        rarely = max(_ASK_AGAIN_EVERY, 8 * len(self._refused))
        self._ask_again_in = min(rarely, len(self._running)) if len(self.waiting) < len(self._running) else rarely
        if len(self.waiting) * _PRICE_AT < self._priced_at and len(self.waiting) > len(self.lines):
            self._price()
        refused, self._refused = self._refused, set()
        for machine in sorted(refused, key=lambda one: one.place):
            machine.refused = 0
            self._ask(machine)

    def _start(self, machine: FleetMachine, turn: Turn) -> None:
        line, number, _ = turn
        placed = self.board.place_on(machine.node, self.lineup.shape(number))
        if placed is None:
            message = f"{self.lines[line].shape} was said to fit {machine.node}, and does not"
            raise Bug(message)
        job = self._job_of[self.waiting.take(line)]
        batch, now_s, facts, devices = self.batch, self.now_s, self.lines[line], placed.devices
        if not devices:
            speed = facts.cpu_speed
        else:
            speed = machine.speed or min([machine.speeds[one.at] for one in placed.choice.devices])
            if machine.idle >= 0:
                machine.idle -= len(devices)
            elif placed.is_shared and facts.shape.base:
                machine.bases += 1
        end_s = now_s + batch.work_s[job] / speed
        share = self.rest.starts(self._costs_s[line], batch.priority_of[job], now_s, facts.expected_s / speed)
        self._running.add(end_s, job, (machine, placed, share))
        machine.busy_until_s = max(machine.busy_until_s, share[1])
        log = self.log
        log.start_s[job] = now_s
        log.end_s[job] = end_s
        log.node_of[job] = machine.index
        log.devices[job] = devices
        log.started.append(job)
        self.decisions += 1
        freed = self.turns.started(line, machine)
        if freed:
            self._freed += freed
        if self._next_job < len(batch):
            self._come()
        elif not self.waiting.length(line):
            self._look_at_sorts()

    def _look_at_sorts(self) -> None:
        """Ask again when nobody waits any more for whom a sort of machine is the right one: it is free for others."""
        served = sum(1 for table in self.tables.sorts if table.own & self.waiting.bits)
        if served != self._served_sorts:
            self._served_sorts = served
            self._is_time_to_ask = True
