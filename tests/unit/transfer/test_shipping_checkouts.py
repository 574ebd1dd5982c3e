"""A tree of the store as a folder: copies to write to, shared bytes to read, and nothing left of a half."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.clock import SystemClock
from stoker.core.errors import CorruptBytes, LocalFile
from stoker.store.local_store import LocalStore
from stoker.store.put import put_key
from stoker.store.records import Record
from stoker.store.trees import scan_tree
from stoker.transfer.trees.holdings import INCOMING_GRACE_S, check_out, sweep_incoming

CLOCK = SystemClock()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    store = LocalStore(str(tmp_path / "store"), clock=CLOCK)
    store.open()
    yield store
    store.close()


@pytest.fixture
def record(store: LocalStore) -> Record:
    staging = Path(store.new_staging("test"))
    (staging / "deep" / "er").mkdir(parents=True)
    (staging / "small.txt").write_text("small")
    (staging / "deep" / "large.bin").write_bytes(os.urandom(100_000))
    (staging / "deep" / "er" / "tool").write_bytes(b"#!" + os.urandom(50_000))
    (staging / "deep" / "er" / "tool").chmod(0o755)
    (staging / "link").symlink_to("deep/large.bin")
    (staging / "deep" / "up").symlink_to("../small.txt")
    tree, inline = store.take_in(str(staging))
    made = Record.of(key=put_key(tree.digest()), tree=tree, inline=inline, body={})
    store.publish(made)
    return made


@pytest.mark.parametrize("is_writable", [True, False])
def test_a_folder_has_the_tree_s_names_modes_and_links(
    store: LocalStore, record: Record, tmp_path: Path, is_writable: bool
) -> None:
    out = tmp_path / "out"
    check_out(store, record, str(out), is_writable=is_writable)
    assert scan_tree(str(out)) == record.tree
    modes = {
        path.name: path.lstat().st_mode & 0o777 for path in out.rglob("*") if path.is_file() and not path.is_symlink()
    }
    writable = {"small.txt": 0o644, "large.bin": 0o644, "tool": 0o755}
    assert modes == (writable if is_writable else {name: mode & ~0o222 for name, mode in writable.items()})


def test_what_is_changed_in_a_copy_is_not_changed_in_the_store(
    store: LocalStore, record: Record, tmp_path: Path
) -> None:
    check_out(store, record, str(tmp_path / "out"))
    (tmp_path / "out" / "deep" / "large.bin").write_bytes(b"changed")
    check_out(store, record, str(tmp_path / "again"))
    assert scan_tree(str(tmp_path / "again")) == record.tree


def test_shared_bytes_stay_known_and_outlive_a_prune(store: LocalStore, record: Record, tmp_path: Path) -> None:
    check_out(store, record, str(tmp_path / "out"), is_writable=False)
    entry = next(entry for entry in record.tree.entries if entry.path == "deep/large.bin")
    stat = os.stat(store.places.blob(entry.sha256))
    stamp = (stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
    assert store.memo.recall(entry.sha256, stamp) == entry.sha256
    os.unlink(store.places.blob(entry.sha256))
    assert scan_tree(str(tmp_path / "out")) == record.tree


def test_a_folder_that_holds_something_is_refused_and_an_empty_one_filled(
    store: LocalStore, record: Record, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    check_out(store, record, str(tmp_path / "empty"))
    with pytest.raises(LocalFile, match="not an empty folder"):
        check_out(store, record, str(tmp_path / "empty"))
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LocalFile):
        check_out(store, record, str(tmp_path / "link"))
    assert not (tmp_path / "elsewhere").exists()


def test_bytes_that_are_gone_leave_no_half_folder(store: LocalStore, record: Record, tmp_path: Path) -> None:
    entry = next(entry for entry in record.tree.entries if entry.path == "deep/large.bin")
    os.unlink(store.places.blob(entry.sha256))
    with pytest.raises(CorruptBytes):
        check_out(store, record, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_what_nobody_went_on_with_is_swept_and_what_grows_is_not(store: LocalStore) -> None:
    incoming = Path(store.places.incoming)
    incoming.mkdir()
    old_s = CLOCK.wall_s() - INCOMING_GRACE_S - 60
    for name in ("a.part", "a.part.json", "a.lock", "b.part.json", "b.lock", "c.listing"):
        (incoming / name).write_text("x")
        os.utime(incoming / name, (old_s, old_s))
    (incoming / "b.part").write_text("grows")
    assert sweep_incoming(store.places, now_s=CLOCK.wall_s()) == 4
    assert sorted(path.name for path in incoming.iterdir()) == ["b.lock", "b.part", "b.part.json"]
