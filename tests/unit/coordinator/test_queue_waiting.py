"""The ready jobs in memory against a plain list of them."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.coordinator.queue import ready_jobs
from stoker.coordinator.queue.ready_jobs import ReadyJobEntry, ReadyJobs
from stoker.core.machine import Requirements, SchedulableJob
from stoker.scheduler.ready_queue import ReadyHead
from stoker.scheduler.scheduler import Scheduler
from tests.lengths import examples


class Table:
    """Who is ready, as the database has it, and how often it was asked."""

    def __init__(self) -> None:
        self.jobs: dict[int, ReadyJobEntry] = {}
        self.pages = 0

    def fetch(self, class_id: int, priority: int, after_seq: int, most: int) -> list[ReadyJobEntry]:
        self.pages += 1
        found = [
            ready(one.seq, one.class_id, one.priority)
            for seq, one in sorted(self.jobs.items())
            if (one.class_id, one.priority) == (class_id, priority) and seq > after_seq
        ]
        return found[:most]

    def heads(self) -> set[ReadyHead]:
        levels: dict[tuple[int, int], list[ReadyJobEntry]] = {}
        for _, one in sorted(self.jobs.items()):
            levels.setdefault((one.class_id, one.priority), []).append(one)
        return {
            ReadyHead(class_id=key[0], priority=key[1], seq=found[0].seq, count=len(found))
            for key, found in levels.items()
        }


def ready(seq: int, class_id: int = 1, priority: int = 0) -> ReadyJobEntry:
    return ReadyJobEntry(seq, f"{seq:064x}", class_id, priority, float(seq), 0, 0, 0, 0, 0, "{}", "")


class Line(ReadyJobs):
    """Ready jobs of two classes, and what the scheduler was told of them."""

    def __init__(self, table: Table) -> None:
        scheduler = Scheduler()
        for class_id in (1, 2):
            scheduler.put_class(class_id, SchedulableJob(name="job", requirements=Requirements(cores=class_id)))
        super().__init__(scheduler.ready, table.fetch)

    def heads(self) -> list[ReadyHead]:
        self.freshen()
        return list(self._ready.heads())


def line_of(jobs: list[ReadyJobEntry]) -> tuple[Line, Table]:
    table = Table()
    table.jobs = {one.seq: one for one in jobs}
    line = Line(table)
    counts: dict[tuple[int, int], int] = {}
    for one in jobs:
        counts[one.class_id, one.priority] = counts.get((one.class_id, one.priority), 0) + 1
    for key, count in counts.items():
        line.put_count(*key, count)
    return line, table


def test_a_long_line_is_read_a_page_at_a_time() -> None:
    line, table = line_of([ready(seq) for seq in range(1, 3001)])
    taken = []
    for _ in range(3000):
        (head,) = line.heads()
        taken.append(line.job_at(head).seq)
        del table.jobs[head.seq]
        line.drop(1, 0, head.seq)
    assert taken == list(range(1, 3001))
    assert not line.heads()
    assert table.pages < 3000 / ready_jobs.LARGEST_PAGE + 8


def test_many_who_come_at_once_do_not_all_stay_in_memory() -> None:
    line, table = line_of([])
    for seq in range(1, 10_001):
        table.jobs[seq] = ready(seq)
        line.add(table.jobs[seq])
    (head,) = line.heads()
    assert (head.seq, head.count) == (1, 10_000)
    assert len(line._levels[1, 0].first) <= ready_jobs.LARGEST_PAGE
    assert table.pages == 0


def test_in_place_of_jobs_that_are_barred_the_next_one_is_named() -> None:
    line, _ = line_of([ready(seq) for seq in range(1, 41)])
    (head,) = line.heads()
    following = line.instead(head, set(range(1, 31)))
    assert following is not None
    assert (following.seq, line.job_at(following).seq) == (31, 31)
    assert line.instead(head, set(range(1, 41))) is None
    assert line.instead(head, {2}) is head
    assert line.heads() == [head]


def test_the_nth_job_is_found_as_far_as_pages_are_kept_in_memory() -> None:
    line, table = line_of([ready(seq) for seq in range(1, 3001)])
    assert [line.nth(1, 0, place) for place in (0, 15, 16, 200)] == [1, 16, 17, 201]
    assert line.nth(1, 0, 2500) is None
    assert table.pages <= 6
    assert line.nth(2, 0, 0) is None


def test_rows_that_were_locked_when_they_were_read_are_found_later() -> None:
    line, table = line_of([ready(1)])
    line.fetch = lambda *_: []
    assert not line.heads()
    line.fetch = table.fetch
    assert not line.heads()
    line.look_again()
    assert [head.seq for head in line.heads()] == [1]


def test_rows_that_were_locked_are_found_though_others_came_meanwhile() -> None:
    line, table = line_of([ready(1), ready(2)])
    line.fetch = lambda *_: [table.jobs[2]]
    assert [head.seq for head in line.heads()] == [2]
    line.fetch = table.fetch
    table.jobs[3] = ready(3)
    line.add(table.jobs[3])
    line.look_again()
    assert [head.seq for head in line.heads()] == [1]


MOVES = st.lists(
    st.tuples(st.sampled_from(["add", "back", "take", "drop", "look"]), st.integers(0, 400), st.integers(0, 2)),
    max_size=80,
)


@given(start=st.integers(0, 80), moves=MOVES)
@settings(deadline=None, max_examples=examples(24, 60))
def test_the_line_always_shows_the_first_of_every_level(start: int, moves: list[tuple[str, int, int]]) -> None:
    line, table = line_of([ready(seq, 1 + seq % 2, seq % 3) for seq in range(1, start + 1)])
    newest = 1000
    gone: list[ReadyJobEntry] = []
    for verb, number, level in moves:
        if verb == "add":
            newest += 1
            _enter(line, table, ready(newest, 1, level))
        elif verb == "back" and gone:
            _enter(line, table, gone.pop(number % len(gone)))
        elif verb in ("take", "drop") and table.jobs:
            seqs = sorted(table.jobs)
            one = table.jobs.pop(seqs[0] if verb == "take" else seqs[number % len(seqs)])
            line.drop(one.class_id, one.priority, one.seq)
            gone.append(one)
        elif verb == "look":
            assert set(line.heads()) == table.heads()
    assert set(line.heads()) == table.heads()


def _enter(line: ReadyJobs, table: Table, one: Any) -> None:
    table.jobs[one.seq] = one
    line.add(ready(one.seq, one.class_id, one.priority))
