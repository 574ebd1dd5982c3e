from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from stoker.core.digests import digest_bytes
from stoker.host.durable import stamp_of
from stoker.store.memo import Memo

STAMP = (10, 20, 30, 40)
DIGEST = digest_bytes(b"x")


class Aside:
    """Moves what it is given out of the way, and remembers why."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def __call__(self, path: str, reason: str) -> None:
        if os.path.exists(path):
            os.rename(path, f"{path}.aside")
            self.reasons.append(reason)


def make(folder: Path) -> tuple[Memo, Aside]:
    aside = Aside()
    return Memo(str(folder / "memo.db"), set_aside=aside), aside


def reopened(folder: Path) -> Memo:
    return make(folder)[0]


def test_a_digest_is_known_while_the_stamp_is_the_same(tmp_path):
    memo, _ = make(tmp_path)
    memo.remember("a", STAMP, DIGEST)
    assert memo.recall("a", STAMP) == DIGEST
    for position in range(4):
        other = tuple(number + (index == position) for index, number in enumerate(STAMP))
        assert memo.recall("a", other) is None  # type: ignore[arg-type]
    assert memo.recall("b", STAMP) is None


def test_what_is_remembered_outlives_the_process_and_what_is_forgotten_does_not(tmp_path):
    memo, _ = make(tmp_path)
    memo.remember("a", STAMP, DIGEST)
    memo.remember("b", STAMP, DIGEST)
    memo.close()
    memo = reopened(tmp_path)
    assert memo.recall("a", STAMP) == DIGEST
    memo.forget("a")
    assert memo.recall("a", STAMP) is None
    memo.close()
    memo = reopened(tmp_path)
    assert memo.recall("a", STAMP) is None
    assert memo.recall("b", STAMP) == DIGEST


def test_many_are_written_before_the_end(tmp_path):
    memo, _ = make(tmp_path)
    for number in range(600):
        memo.remember(str(number), STAMP, DIGEST)
    assert reopened(tmp_path).recall("5", STAMP) == DIGEST


def test_an_inode_beyond_what_sqlite_counts_to_is_no_trouble(tmp_path):
    memo, _ = make(tmp_path)
    huge = (1, 2**64 - 1, 2**63, 2**63)
    memo.remember("a", huge, DIGEST)
    memo.close()
    memo = reopened(tmp_path)
    assert memo.recall("a", huge) == DIGEST
    assert memo.trouble == ""


def test_it_may_be_used_again_after_it_was_closed(tmp_path):
    memo, _ = make(tmp_path)
    memo.close()
    memo.remember("a", STAMP, DIGEST)
    memo.close()
    assert memo.recall("a", STAMP) == DIGEST


def _overwrite(path: Path) -> None:
    path.write_bytes(b"this is no database at all, but long enough to be looked at" * 50)


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _another_table(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE verified (something TEXT)")
    db.close()


def _undecodable(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"10 20 30 40", b"10 20\xff30 40"))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_bytes(b"")


@pytest.mark.parametrize("damage", [_overwrite, _truncate, _another_table, _undecodable, _folder])
def test_a_damaged_database_is_set_aside_and_begun_anew(tmp_path, damage):
    memo, _ = make(tmp_path)
    for number in range(1000):
        memo.remember(str(number), STAMP, DIGEST)
    memo.close()
    damage(tmp_path / "memo.db")
    memo, aside = make(tmp_path)
    assert [memo.recall(str(number), STAMP) for number in range(0, 1000, 50)].count(DIGEST) < 20
    memo.remember("new", STAMP, DIGEST)
    memo.close()
    assert len(aside.reasons) == 1
    assert "memo.db" in memo.trouble
    assert (tmp_path / "memo.db.aside").exists()
    memo, aside = make(tmp_path)
    assert memo.recall("new", STAMP) == DIGEST
    assert (memo.trouble, aside.reasons) == ("", [])


def test_an_empty_or_missing_database_is_simply_begun(tmp_path):
    (tmp_path / "memo.db").write_bytes(b"")
    for _ in range(2):
        memo, aside = make(tmp_path)
        memo.remember("a", STAMP, DIGEST)
        memo.close()
        assert (memo.trouble, aside.reasons) == ("", [])
        (tmp_path / "memo.db").unlink()


@pytest.mark.parametrize(
    ("stamp", "digest"),
    [("10 20 30 40", b"\xff\xfe"), ("10 20 30 40", "zz"), ("10 20 30 40", None), ("10 20", DIGEST), (7, DIGEST)],
)
def test_a_row_that_makes_no_sense_is_not_believed(tmp_path, stamp, digest):
    make(tmp_path)[0].close()
    memo, _ = make(tmp_path)
    memo.remember("other", STAMP, DIGEST)
    memo.close()
    with sqlite3.connect(tmp_path / "memo.db") as db:
        db.execute("INSERT INTO verified VALUES ('a', ?, ?)", (stamp, digest))
    db.close()
    memo = reopened(tmp_path)
    assert memo.recall("a", STAMP) is None
    assert memo.recall("other", STAMP) == DIGEST


def test_a_folder_that_is_not_there_turns_the_memo_off(tmp_path):
    memo, _ = make(tmp_path / "nowhere")
    memo.remember("a", STAMP, DIGEST)
    assert memo.recall("a", STAMP) == DIGEST
    assert memo.recall("b", STAMP) is None
    memo.forget("a")
    memo.close()
    assert "unable to open" in memo.trouble


def test_a_stamp_tells_two_versions_of_a_file_apart(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"1")
    before = stamp_of(path.stat())
    path.write_bytes(b"22")
    assert stamp_of(path.stat()) != before
