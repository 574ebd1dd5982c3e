"""The line in memory against a plain list of who is ready."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.coordinator.matching.heads import Head
from stoker.coordinator.matching.line import Line
from stoker.coordinator.queue import waiting
from stoker.coordinator.queue.waiting import Ready, Waiting


class Table:
    """Who is ready, as the database has it, and how often it was asked."""

    def __init__(self) -> None:
        self.jobs: dict[int, Ready] = {}
        self.pages = 0

    def fetch(self, class_id: int, priority: int, after_seq: int, most: int) -> list[Ready]:
        self.pages += 1
        found = [
            ready(one.seq, one.class_id, one.priority)
            for seq, one in sorted(self.jobs.items())
            if (one.class_id, one.priority) == (class_id, priority) and seq > after_seq
        ]
        return found[:most]

    def heads(self) -> set[Head]:
        levels: dict[tuple[int, int], list[Ready]] = {}
        for _, one in sorted(self.jobs.items()):
            levels.setdefault((one.class_id, one.priority), []).append(one)
        return {
            Head(class_id=key[0], priority=key[1], seq=found[0].seq, since_s=found[0].since_s, count=len(found))
            for key, found in levels.items()
        }


def ready(seq: int, class_id: int = 1, priority: int = 0) -> Ready:
    return Ready(seq, f"{seq:064x}", class_id, priority, float(seq), 0, 0, 0, 0, 0, "{}", "")


def line_of(jobs: list[Ready]) -> tuple[Waiting, Table]:
    table = Table()
    table.jobs = {one.seq: one for one in jobs}
    line = Waiting(Line(lambda class_id: class_id))
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
        (head,) = line.freshen(table.fetch)
        taken.append(line.job_at(head).seq)
        del table.jobs[head.seq]
        line.drop(1, 0, head.seq)
    assert taken == list(range(1, 3001))
    assert len(line.freshen(table.fetch)) == 0
    assert table.pages < 3000 / waiting.LARGEST_PAGE + 8


def test_many_who_come_at_once_do_not_all_stay_in_memory() -> None:
    line, table = line_of([])
    for seq in range(1, 10_001):
        table.jobs[seq] = ready(seq)
        line.add(table.jobs[seq])
    (head,) = line.freshen(table.fetch)
    assert (head.seq, head.count) == (1, 10_000)
    assert len(line._levels[1, 0].first) <= waiting.LARGEST_PAGE
    assert table.pages == 0


def test_who_declined_a_head_sees_the_next_one() -> None:
    line, table = line_of([ready(seq) for seq in range(1, 41)])
    line.freshen(table.fetch)
    assert [head.seq for head in line.freshen(table.fetch, set(range(1, 31)))] == [31]
    assert list(line.freshen(table.fetch, set(range(1, 41)))) == []
    assert [head.seq for head in line.freshen(table.fetch)] == [1]


def test_rows_that_were_locked_when_they_were_read_are_found_later() -> None:
    line, table = line_of([ready(1)])
    assert len(line.freshen(lambda *_: [])) == 0
    assert len(line.freshen(table.fetch)) == 0
    line.look_again()
    assert [head.seq for head in line.freshen(table.fetch)] == [1]


def test_rows_that_were_locked_are_found_though_others_came_meanwhile() -> None:
    line, table = line_of([ready(1), ready(2)])
    assert [head.seq for head in line.freshen(lambda *_: [table.jobs[2]])] == [2]
    table.jobs[3] = ready(3)
    line.add(table.jobs[3])
    line.look_again()
    assert [head.seq for head in line.freshen(table.fetch)] == [1]


MOVES = st.lists(
    st.tuples(st.sampled_from(["add", "back", "take", "drop", "look"]), st.integers(0, 400), st.integers(0, 2)),
    max_size=80,
)


@given(start=st.integers(0, 80), moves=MOVES)
@settings(deadline=None, max_examples=60)
def test_the_line_always_shows_the_first_of_every_level(start: int, moves: list[tuple[str, int, int]]) -> None:
    line, table = line_of([ready(seq, 1 + seq % 2, seq % 3) for seq in range(1, start + 1)])
    newest = 1000
    gone: list[Ready] = []
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
            assert set(line.freshen(table.fetch)) == table.heads()
    assert set(line.freshen(table.fetch)) == table.heads()


def _enter(line: Waiting, table: Table, one: Any) -> None:
    table.jobs[one.seq] = one
    line.add(ready(one.seq, one.class_id, one.priority))
