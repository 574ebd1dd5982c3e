from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock
from stoker.core.errors import InvalidInput, LocalFile
from stoker.store import memo
from stoker.store.memo import Memo, digest_path
from stoker.store.trees import hash_file
from tests.unit.store.real_stores import fill


class Counting:
    """Counts what is really hashed."""

    def __init__(self, monkeypatch, folder: Path) -> None:
        self.clock = FakeClock(start_s=time.time() + 10)
        self.memo = Memo(str(folder / "memo.db"), set_aside=lambda path, reason: None)
        self.hashed: list[str] = []
        really = hash_file

        def watched(path: str):
            self.hashed.append(os.path.basename(path))
            return really(path)

        monkeypatch.setattr(memo, "hash_file", watched)

    def digest(self, path: Path) -> str:
        self.hashed.clear()
        return digest_path(str(path), memo=self.memo, clock=self.clock)


@pytest.fixture
def counting(monkeypatch, tmp_path):
    (tmp_path / "memo").mkdir()
    return Counting(monkeypatch, tmp_path / "memo")


def test_a_file_gives_the_digest_of_its_bytes_and_not_of_its_path(counting, tmp_path):
    fill(tmp_path, {"a.csv": b"1,2", "b.csv": b"1,2"})
    assert counting.digest(tmp_path / "a.csv") == f"sha256:{hashlib.sha256(b'1,2').hexdigest()}"
    assert counting.digest(tmp_path / "a.csv") == counting.digest(tmp_path / "b.csv")


def test_a_folder_gives_the_digest_of_its_tree(counting, tmp_path):
    fill(tmp_path / "one", {"x/a": b"1", "y": b"2"})
    fill(tmp_path / "two", {"y": b"2", "x/a": b"1"})
    assert counting.digest(tmp_path / "one") == counting.digest(tmp_path / "two")
    assert counting.digest(tmp_path / "one").startswith("tree:")
    (tmp_path / "two" / "y").chmod(0o755)
    assert counting.digest(tmp_path / "one") != counting.digest(tmp_path / "two")


def test_a_settled_file_is_hashed_once(counting, tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    first = counting.digest(tmp_path / "a")
    assert counting.hashed == ["a"]
    assert counting.digest(tmp_path / "a") == first
    assert counting.hashed == []


def test_what_was_learnt_outlives_the_process(counting, tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    first = counting.digest(tmp_path / "a")
    counting.memo.close()
    counting.memo = Memo(str(tmp_path / "memo" / "memo.db"), set_aside=lambda path, reason: None)
    assert counting.digest(tmp_path / "a") == first
    assert counting.hashed == []


def test_a_file_that_changed_a_moment_ago_is_not_remembered(counting, tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    counting.clock = FakeClock(start_s=(tmp_path / "a").stat().st_mtime + 1.9)
    counting.digest(tmp_path / "a")
    counting.digest(tmp_path / "a")
    assert counting.hashed == ["a"]
    counting.clock.advance(0.2)
    counting.digest(tmp_path / "a")
    counting.digest(tmp_path / "a")
    assert counting.hashed == []


def test_a_file_from_the_future_is_not_remembered(counting, tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    os.utime(tmp_path / "a", (2**33, 2**33))
    counting.digest(tmp_path / "a")
    counting.digest(tmp_path / "a")
    assert counting.hashed == ["a"]


def test_an_edit_of_the_same_size_with_its_time_put_back_is_noticed(counting, tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"1")
    first = counting.digest(path)
    info = path.stat()
    path.write_bytes(b"2")
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert path.stat().st_mtime_ns == info.st_mtime_ns
    assert counting.digest(path) != first


def test_in_a_folder_only_what_changed_is_hashed_again(counting, tmp_path):
    fill(tmp_path / "data", {"a": b"1", "x/b": b"2", "x/c": b"3"})
    first = counting.digest(tmp_path / "data")
    assert sorted(counting.hashed) == ["a", "b", "c"]
    (tmp_path / "data" / "x" / "b").write_bytes(b"9")
    assert counting.digest(tmp_path / "data") != first
    assert counting.hashed == ["b"]


def test_a_symlink_to_a_file_counts_as_the_file_and_a_new_target_is_noticed(counting, tmp_path):
    fill(tmp_path, {"one": b"1", "two": b"2"})
    link = tmp_path / "data"
    link.symlink_to("one")
    assert counting.digest(link) == counting.digest(tmp_path / "one")
    link.unlink()
    link.symlink_to("two")
    assert counting.digest(link) == counting.digest(tmp_path / "two")


def test_a_file_that_changes_while_it_is_hashed_is_not_remembered(counting, monkeypatch, tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"1")
    really = hash_file

    def hash_and_change(name: str):
        result = really(name)
        path.write_bytes(b"22")
        return result

    monkeypatch.setattr(memo, "hash_file", hash_and_change)
    counting.digest(path)
    monkeypatch.setattr(memo, "hash_file", really)
    assert counting.digest(path) == f"sha256:{hashlib.sha256(b'22').hexdigest()}"


def test_a_name_that_is_not_unicode_can_be_digested_and_remembered(counting, tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.csv"))
    path.write_bytes(b"1")
    counting.digest(path)
    counting.digest(path)
    assert counting.hashed == []
    counting.memo.close()
    assert counting.memo.trouble == ""


def test_a_missing_file_is_named(counting, tmp_path):
    with pytest.raises(LocalFile, match=r"no such file or folder: .*nowhere\.csv"):
        counting.digest(tmp_path / "nowhere.csv")


def test_a_device_or_a_pipe_is_refused_instead_of_read_for_ever(counting, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(LocalFile, match="neither a file nor a folder"):
            counting.digest(path)


def test_a_folder_with_an_outward_symlink_is_refused_with_its_path(counting, tmp_path):
    fill(tmp_path / "data", {"a": b"1"})
    (tmp_path / "data" / "big").symlink_to("/mnt/big")
    with pytest.raises(InvalidInput) as caught:
        counting.digest(tmp_path / "data")
    assert [fault.where for fault in caught.value.faults] == ["big"]
