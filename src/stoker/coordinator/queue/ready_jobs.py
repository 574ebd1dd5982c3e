"""Ready jobs in memory: the first few of each class and priority, read a page at a time along the index.

So a claim costs the same for ten ready jobs or a million.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from stoker.coordinator.queue.sql import READY_FIELDS, JobRow
from stoker.core.frozen import changeable, changed, fresh
from stoker.scheduler.ready_queue import ReadyHead, ReadyQueue

PAGE = 16
LARGEST_PAGE = 256


@dataclass(slots=True, eq=False)
class ReadyJobEntry:
    """A ready job: the columns that a grant needs, in the order of `READY_FIELDS`."""

    seq: int
    id: str
    class_id: int
    priority: int
    since_s: float
    epoch: int
    attempt: int
    user_failures: int
    lost: int
    declined: int
    spec: str
    checkpoint: str

    @classmethod
    def of(cls, row: JobRow) -> ReadyJobEntry:
        """Return the entry of a row."""
        fields: tuple[Any, ...] = row[: len(READY_FIELDS)]
        return cls(*fields)

    def __lt__(self, other: ReadyJobEntry) -> bool:
        return self.seq < other.seq


Fetch = Callable[[int, int, int, int], list[ReadyJobEntry]]
"""Returns the next ready jobs of a class and priority after one, at most so many."""


@changeable
class Level:
    """One class at one priority."""

    count: int = 0
    """Number of ready jobs, in memory or not."""
    first: list[ReadyJobEntry] = fresh(factory=list)
    """The first ones, by number."""
    known_to: int = 0
    """`first` has all up to this number."""
    is_whole: bool = True
    """`first` has all."""
    page: int = PAGE


class ReadyJobs:
    """All levels. Changes are counted at once; pages are read by the next `freshen`."""

    def __init__(self, ready: ReadyQueue, fetch: Fetch) -> None:
        self._ready = ready
        ready.nth = self.nth
        self.fetch = fetch
        """Reads a page, in the current transaction."""
        self._levels: dict[tuple[int, int], Level] = {}
        self._changed: set[tuple[int, int]] = set()

    def put_count(self, class_id: int, priority: int, count: int) -> None:
        """Set the number of jobs of a level, as in the database."""
        self._levels[class_id, priority] = Level(count=count, is_whole=False)
        self._changed.add((class_id, priority))

    def add(self, job: ReadyJobEntry) -> None:
        """Add a job that became ready."""
        key = (job.class_id, job.priority)
        level = self._levels.get(key)
        if level is None:
            level = self._levels[key] = Level()
        level.count += 1
        self._changed.add(key)
        if level.is_whole or job.seq <= level.known_to:
            insort(level.first, job)
            if len(level.first) > LARGEST_PAGE:
                del level.first[LARGEST_PAGE // 2 :]
                level.is_whole = False
                level.known_to = level.first[-1].seq

    def drop(self, class_id: int, priority: int, seq: int) -> None:
        """Remove a job that is no longer ready."""
        level = self._levels[class_id, priority]
        level.count -= 1
        self._changed.add((class_id, priority))
        place = _place(level.first, seq)
        if place >= 0:
            del level.first[place]

    def freshen(self) -> None:
        """Give the scheduler the first job of every changed level; read a page where none is left in memory."""
        changed_levels, self._changed = self._changed, set()
        for key in sorted(changed_levels):
            level = self._levels[key]
            if not level.first and level.count:
                self._fill(key, level)
            if level.first:
                self._ready.set_head(*key, level.first[0].seq, level.count)
            else:
                self._ready.set_head(*key, 0, 0)
                if level.count <= 0:
                    del self._levels[key]

    def look_again(self) -> None:
        """Reread levels that have fewer jobs in memory than counted: rows were locked when last read."""
        for key, level in self._levels.items():
            if level.count > len(level.first) and (level.is_whole or not level.first):
                level.first, level.known_to, level.is_whole = [], 0, False
                self._changed.add(key)

    def job_at(self, head: ReadyHead) -> ReadyJobEntry:
        """Return the job of a head."""
        level = self._levels[head.class_id, head.priority]
        return level.first[_place(level.first, head.seq)]

    def known(self, head: ReadyHead, after: int, most: int) -> list[ReadyJobEntry]:
        """Return jobs of a head's level behind the first so many, as far as they are in memory; at least its first."""
        first = self._levels[head.class_id, head.priority].first
        return first[after : after + most] or first[:1]

    def instead(self, head: ReadyHead, barred: Collection[int]) -> ReadyHead | None:
        """Return the first job of a head's level that is not barred; None if all in memory are."""
        if head.seq not in barred:
            return head
        key = (head.class_id, head.priority)
        level = self._levels[key]
        while True:
            for job in level.first:
                if job.seq not in barred:
                    return changed(head, seq=job.seq)
            if not self._fill_more(key, level):
                return None

    def nth(self, class_id: int, priority: int, place: int) -> int | None:
        """Return the number of the n-th ready job of a level, from 0; None if there are fewer, or too many before."""
        level = self._levels.get((class_id, priority))
        if level is None:
            return None
        while place >= len(level.first):
            if not self._fill_more((class_id, priority), level):
                return None
        return level.first[place].seq

    def _fill_more(self, key: tuple[int, int], level: Level) -> bool:
        """Read one more page; return False if there is none, or enough in memory."""
        if level.is_whole or len(level.first) >= LARGEST_PAGE:
            return False
        self._fill(key, level)
        return True

    def _fill(self, key: tuple[int, int], level: Level) -> None:
        found = self.fetch(*key, level.known_to, level.page)
        level.first += found
        level.is_whole = len(found) < level.page
        level.known_to = found[-1].seq if found else level.known_to
        level.page = min(level.page * 2, LARGEST_PAGE)


def _place(jobs: list[ReadyJobEntry], seq: int) -> int:
    place = bisect_left(jobs, seq, key=_seq)
    return place if place < len(jobs) and jobs[place].seq == seq else -1


def _seq(job: ReadyJobEntry) -> int:
    return job.seq
