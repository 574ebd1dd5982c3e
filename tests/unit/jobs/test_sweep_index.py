from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.core.digests import Digest, digest_value
from stoker.jobs.sweeps import FinishedTrial, IndexEntry, SweepIndex, decide_kept

FAMILY = digest_value("family", "f")
A, B, C = (digest_value("trial", name) for name in "abc")


def done(code: str = "one", attempt: str = "first") -> FinishedTrial:
    return FinishedTrial(key="k" * 64, digest="d" * 64, code=code, attempt=attempt)


@pytest.fixture
def index(tmp_path: Path) -> SweepIndex:
    return SweepIndex(str(tmp_path / "sweeps"), FAMILY)


def path_of(tmp_path: Path) -> Path:
    return tmp_path / "sweeps" / f"{FAMILY}.jsonl"


def test_what_is_written_is_read_back(index: SweepIndex) -> None:
    assert index.read().finished == {}
    index.begin("first", code="one", afresh=frozenset())
    index.note(A, done())
    index.note(B, done())
    written = index.read()
    assert written.finished == {A: done(), B: done()}
    assert (written.attempts, written.is_ended) == ({"first": "one"}, False)
    index.end("first")
    assert index.read().is_ended


def test_an_entry_writes_for_its_own_attempt(index: SweepIndex) -> None:
    entry = IndexEntry(index=index, attempt="first", code="one")
    entry.begin()
    entry.note(A, key="k" * 64, digest="d" * 64, code=entry.code)
    entry.end()
    assert index.read().finished == {A: done()}
    assert index.read().is_ended


def test_of_one_trial_the_last_line_counts(index: SweepIndex) -> None:
    index.note(A, done("one"))
    index.note(A, done("two"))
    assert index.read().finished[A].code == "two"


def test_only_the_end_of_the_newest_attempt_is_an_end(index: SweepIndex) -> None:
    index.begin("first", code="one", afresh=frozenset())
    index.begin("second", code="one", afresh=frozenset())
    index.end("first")
    assert not index.read().is_ended
    index.end("second")
    assert index.read().is_ended
    index.begin("third", code="one", afresh=frozenset())
    assert not index.read().is_ended


def test_what_is_wanted_afresh_has_not_finished_and_all_else_has(index: SweepIndex) -> None:
    index.begin("first", code="one", afresh=frozenset())
    index.note(A, done())
    index.note(B, done())
    index.begin("second", code="one", afresh=frozenset({A}))
    written = index.read()
    assert written.finished == {B: done()}
    # Else the record that the first attempt left of it would count.
    assert written.attempts == {"second": "one"}


def test_torn_and_foreign_lines_are_passed_over_and_swallow_nothing(index: SweepIndex, tmp_path: Path) -> None:
    index.note(A, done())
    with open(path_of(tmp_path), "ab") as file:
        file.write(b'{"v":1,"kind":"finished","trial":"torn"\n\xff\xfe\nnull\n[]\n{"kind":"other"}\n{"kind":"finis')
    index.note(B, done())
    assert set(index.read().finished) == {A, B}


def test_a_file_that_can_not_be_read_is_an_empty_one(index: SweepIndex, tmp_path: Path) -> None:
    path_of(tmp_path).mkdir(parents=True)
    assert index.read().finished == {}


def test_a_file_full_of_old_lines_is_written_anew(index: SweepIndex, tmp_path: Path) -> None:
    index.begin("first", code="one", afresh=frozenset())
    line = path_of(tmp_path).read_bytes()
    index.note(A, done())
    with open(path_of(tmp_path), "ab") as file:
        file.write(line * 1100)
    index.begin("second", code="two", afresh=frozenset())
    written = index.read()
    assert written.lines < 10
    assert (written.finished, written.attempts) == ({A: done()}, {"first": "one", "second": "two"})


def test_families_have_files_of_their_own(tmp_path: Path) -> None:
    one, two = (SweepIndex(str(tmp_path), digest_value("family", name)) for name in "xy")
    one.note(A, done())
    assert two.read().finished == {}
    assert len([name for name in os.listdir(tmp_path) if name.endswith(".jsonl")]) == 1


@pytest.mark.parametrize(
    ("wanted", "finished", "is_ended", "kept", "afresh", "why"),
    [
        ([A, B], {}, False, set(), set(), ""),
        ([A, B], {C: done()}, True, set(), set(), ""),
        ([A, B], {A: done()}, False, {A}, set(), "1 of 2 trials is kept: it finished"),
        ([A, B], {A: done()}, True, {A}, set(), "1 of 2 trials is kept: it finished"),
        ([A, B], {A: done(), B: done()}, True, set(), {A, B}, "all of these trials had finished"),
        ([A, B], {A: done(), B: done()}, False, {A, B}, set(), "2 of 2 trials are kept"),
        ([A, B], {A: done("old"), B: done("old")}, True, set(), set(), "has changed since 2 of these trials"),
        ([A, B, C], {A: done("old"), B: done()}, True, {B}, set(), "another one when 1 more finished"),
        ([A, A], {A: done()}, True, set(), {A}, "all of these trials had finished"),
    ],
)
def test_what_is_kept_is_decided_with_its_reason(
    wanted: list[Digest], finished: dict[str, FinishedTrial], is_ended: bool, kept: set[str], afresh: set[str], why: str
) -> None:
    decision = decide_kept(wanted, finished, code="one", is_ended=is_ended)
    assert (set(decision.kept), set(decision.afresh)) == (kept, afresh)
    assert why in decision.why
    assert bool(decision.why) is bool(why)
