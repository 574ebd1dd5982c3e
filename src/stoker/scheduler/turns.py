"""Turns: a machine has room; whose turn is it there?

Strict by priority. Within one, the oldest that fits goes first, and a job that does not fit is passed by others that do
(backfill). That alone would leave a fleet of unequal machines half idle at the end, so:

- **Dear machines are left to those who need them**: a job does not go where it costs much more than on its cheapest
  sort of machine (`worth`), while jobs wait for which this one is the right sort.
- **Patience**: it does not start where it would be done later than on a faster machine that it waits for (`patience`).
- **Few may pass**: a job that fits this machine but for what runs on it is passed there by so many younger ones of its
  priority (`PASSES`), and by none of a lower one. Then the machine is kept for it: until it fits, only what is over by
  the time at which it is expected to fit is started there.
- **A little early**: jobs that need much room at once go first where they fit, since a machine that is free is soon no
  longer; and on shared devices those whose base model is there already. Both pass few older ones (`EARLY`).
- **The longest first at the end**: nothing passes what would take a good part of the time that all the rest takes.

Every rule costs the same however many jobs wait: shapes are bits of one number, and rules are masks laid over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from stoker.scheduler.lineup import Line
from stoker.scheduler.patience import Patience, Prospect, worth_starting
from stoker.scheduler.rest import Rest
from stoker.scheduler.tables import SortTable, Tables
from stoker.scheduler.waiting import (
    NOBODY,
    Waiting,
    first_of_priority,
    last_of_priority,
    line_of,
    places,
    priority_of,
)
from stoker.scheduler.worth import Way

PASSES = 8
"""A job is passed by one of so many that wait, at the most."""
EARLY = 16
"""One that goes early passes one of so many that wait, at the most."""
LONG = 0.7
"""A job that would run for this part of what all the rest takes goes first."""
_FLOOR_AGE = 16


class Why(StrEnum):
    """What decided whose turn it is."""

    OLDEST = "oldest"
    WIDE = "much_room_at_once"
    RESIDENT = "base_is_here"
    LONGEST = "longest_first"
    KEPT = "kept_for_it"


class Turn(NamedTuple):
    """The line whose first job starts here, and how."""

    line: int
    number: int
    """The number of the shape that it is placed as."""
    why: Why


class Kept(NamedTuple):
    """What a machine is kept for: the next job of a line. What is over by then may still start there."""

    line: int
    until_s: float


class Machine:
    """One machine, as the rules see it."""

    __slots__ = ("busy_until_s", "kept", "node", "table")

    def __init__(self, node: str, table: SortTable) -> None:
        self.node = node
        self.table = table
        self.busy_until_s = 0.0
        """When the last of its jobs is expected to end."""
        self.kept: Kept | None = None


M = TypeVar("M", bound=Machine)

_Found = tuple[int, int, float, float]
"""The rank of the first who may start on a machine, all who may of his priority, how long until the last of those is
begun and until all is done."""


class Turns(Generic[M]):
    """Chooses among waiting jobs for one machine after the other."""

    def __init__(self, lines: Sequence[Line], tables: Tables, waiting: Waiting, rest: Rest) -> None:
        self._lines = lines
        self._tables = tables
        self._waiting = waiting
        self._rest = rest
        self._kept_for: list[list[M]] = [[] for _ in lines]
        self._unkept = list(waiting.ranks)
        """Of each line the rank of the first job that no machine is kept for; as in `waiting`, one more for nobody."""
        self._floor = -NOBODY
        """Nobody without a kept machine is before this rank. Looked up now and then, since ranks grow as jobs start."""
        self._floor_age = 0
        self.times_kept = 0
        """How often a machine was kept for somebody."""

    def next(self, machine: M, fits: int, beside: int, now_s: float) -> Turn | None:
        """Say whose turn it is on a machine; nothing: nobody's of those who fit.

        `fits` is what fits there now, `beside` what of it fits beside its base model, whether it waits or not: masks
        that do not change with every job are known already.
        """
        table, kept = machine.table, machine.kept
        if kept is not None:
            wanted = self._lines[kept.line].bits & self._worth_starting(kept.line, table, now_s)
            if wanted & fits:
                return self._turn(kept.line, wanted & fits, Why.KEPT)
            if wanted:
                fits &= table.times.upto(kept.until_s - now_s)
            else:
                self._give_up(machine, kept.line)
        found = self._oldest(table, fits, now_s)
        if found is None:
            return None
        turn = self._longest(table, found) if table.longest_s > found[3] * LONG else None
        if turn is None:
            turn = self._ahead_of_others(table, found, beside) or self._turn(line_of(found[0]), found[1], Why.OLDEST)
        if machine.kept is None:
            blocked = self._passed_too_often(table, turn, fits, found)
            if blocked is not None and self._lines[blocked].bits & self._worth_starting(blocked, table, now_s):
                self._keep(machine, blocked, now_s)
                return self.next(machine, fits, beside, now_s)
        return turn

    def is_over(self, table: SortTable) -> bool:
        """Say that nobody who waits would start on the CPU of a machine of this sort, without asking what fits."""
        bits = self._waiting.bits
        return bool(bits & table.own and not bits & table.own_cpu) and len(self._waiting.levels) < 2

    def came(self, line: int) -> None:
        """Take in that a job came into a line."""
        if self._unkept[line] == NOBODY:
            self._count_kept(line)

    def started(self, line: int, machine: M) -> list[M]:
        """Take in that the first job of a line started on a machine; gives machines that are no longer kept for it."""
        machines = self._kept_for[line]
        if not machines:
            self._unkept[line] = self._waiting.ranks[line]
            return []
        kept = machine.kept
        if kept is not None and kept.line == line:
            self._give_up(machine, line)
        freed = machines[self._waiting.length(line) :]
        for other in freed:
            self._give_up(other, line)
        self._count_kept(line)
        return freed

    def patience(self, line: int, way: Way, now_s: float, priority: int) -> Patience:
        """Say whether it is worth starting a job of a line this way now, and if not, why."""
        return worth_starting(
            Prospect(
                here_s=self._lines[line].takes_s(way),
                fastest_s=self._tables.fastest_s[line],
                wait_s=self._rest.both_s(now_s, priority)[0] / self._tables.faster_worth(line, way),
                is_anything_running=self._rest.running > 0,
            )
        )

    def _oldest(self, table: SortTable, fits: int, now_s: float) -> _Found | None:
        """Find the first who may start here."""
        if len(self._waiting.levels) > 1:
            return self._oldest_by_level(table, fits, now_s)
        ahead_s, rest_s = self._rest.both_s(now_s)
        good = self._good(table, fits, ahead_s, is_lowest=True)
        if not good & self._waiting.bits:
            return None
        return self._waiting.first(good), good, ahead_s, rest_s

    def _oldest_by_level(self, table: SortTable, fits: int, now_s: float) -> _Found | None:
        """The same where jobs have several priorities: a lower one is looked at where nobody of a higher one may."""
        waiting = self._waiting
        lowest = min(waiting.levels)
        first = waiting.first(fits)
        while first < NOBODY:
            last, priority = last_of_priority(first), priority_of(first)
            ahead_s, rest_s = self._rest.both_s(now_s, priority)
            good = self._good(table, fits, ahead_s, is_lowest=priority == lowest)
            rank = waiting.first(good)
            if rank <= last:
                return rank, good, ahead_s, rest_s
            first = min([rank for rank in waiting.picker(fits)(waiting.ranks) if rank > last], default=NOBODY)
        return None

    def _good(self, table: SortTable, fits: int, ahead_s: float, *, is_lowest: bool) -> int:
        """Give what may start here of what fits: patience first, then the price.

        Whoever goes before others by priority need not save, and nobody waits where nothing runs.
        """
        if not self._rest.running:
            return fits
        fits &= table.worth_starting(ahead_s)
        return fits & table.cheap if is_lowest and self._waiting.bits & table.own else fits

    def _longest(self, table: SortTable, found: _Found) -> Turn | None:
        first, good, _, rest_s = found
        late = good & table.longer_than(rest_s * LONG)
        if not late:
            return None
        last, ranks = last_of_priority(first), self._waiting.ranks
        for _, bit, line, number in table.by_length:
            if bit & late and ranks[line] <= last:
                return Turn(line, number, Why.LONGEST)
        return None

    def _ahead_of_others(self, table: SortTable, found: _Found, beside: int) -> Turn | None:
        first, good, _, _ = found
        bits = self._waiting.bits
        among = good & beside if good & beside & bits else good
        last = min(first + places(len(self._waiting) // EARLY), last_of_priority(first))
        for tier in table.tiers:
            early = among & tier
            if early & bits:
                if not good & ~early & bits:
                    return None
                rank = self._waiting.first(early)
                if rank <= last:
                    return self._turn(line_of(rank), early, Why.WIDE)
        if among is not good:
            rank = self._waiting.first(among)
            if rank <= last:
                return self._turn(line_of(rank), among, Why.RESIDENT)
        return None

    def _turn(self, line: int, among: int, why: Why) -> Turn:
        facts = self._lines[line]
        number = facts.on_devices
        if number is None or not among >> number & 1:
            number = facts.on_cpu
        if number is None:
            message = "a line is chosen that may not start"
            raise ValueError(message)
        return Turn(line, number, why)

    def _passed_too_often(self, table: SortTable, turn: Turn, fits: int, found: _Found) -> int | None:
        """Give a line whose job could have this machine but for what runs here, and was passed too often."""
        waiting = self._waiting
        own = table.own_devices if self._tables.devices >> turn.number & 1 else table.own_cpu
        able = own & ~fits
        if not able & waiting.bits:
            return None
        rank = waiting.ranks[turn.line]
        limit = max(rank - places(len(waiting) // PASSES), first_of_priority(rank))
        _, _, ahead_s, rest_s = found
        is_late = table.longest_s > rest_s * LONG
        if not is_late and not self._is_anybody_before(limit):
            return None
        able &= table.worth_starting(ahead_s)
        first = min(waiting.picker(able)(self._unkept))
        if first < limit:
            return line_of(first)
        if is_late:
            first = min(waiting.picker(able & table.longer_than(rest_s * LONG))(self._unkept))
            if first <= last_of_priority(rank):
                return line_of(first)
        return None

    def _is_anybody_before(self, rank: int) -> bool:
        """Say whether anybody who has no machine kept for him may be before a rank; a yes may be out of date."""
        if self._floor < rank:
            self._floor_age += 1
            if self._floor_age >= _FLOOR_AGE:
                self._floor_age = 0
                self._floor = min(self._unkept)
        return self._floor < rank

    def _worth_starting(self, line: int, table: SortTable, now_s: float) -> int:
        rank = self._waiting.ranks[line]
        if rank == NOBODY:
            return 0
        if not self._rest.running:
            return table.ever
        return table.ever & table.worth_starting(self._rest.both_s(now_s, priority_of(rank))[0])

    def _keep(self, machine: M, line: int, now_s: float) -> None:
        # Jobs end one after the other: half of the machine is expected to be free in half of the time.
        needs = max(machine.table.needs.get(number, 0.0) for number in self._lines[line].numbers)
        machine.kept = Kept(line, now_s + (machine.busy_until_s - now_s) * needs)
        self._kept_for[line].append(machine)
        self._count_kept(line)
        self.times_kept += 1

    def _give_up(self, machine: M, line: int) -> None:
        machine.kept = None
        self._kept_for[line].remove(machine)
        self._count_kept(line)

    def _count_kept(self, line: int) -> None:
        self._unkept[line] = rank = self._waiting.rank_at(line, len(self._kept_for[line]))
        self._floor = min(self._floor, rank)
