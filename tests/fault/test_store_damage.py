"""Every kind of file in a store, damaged in every way: a miss or a loss with its reason.

Never an exception, and never wrong bytes.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from stoker.core.errors import CorruptBytes
from stoker.store.local_store import LocalStore, RecordHit, RecordMiss
from stoker.store.prune import all_records
from stoker.store.refs import list_pins, pin
from stoker.store.results import SIDECAR, ResultPart, lay_out
from stoker.store.tree_views import open_view
from tests.unit.store.real_stores import (
    BIG,
    blob_of,
    clock_of_now,
    commit,
    contents,
    files_below,
    found,
    key_of,
    make_store,
    quarantined,
    record_of,
    sweep,
)

# One of the size that a folder may have too, so that only its kind tells them apart.
FILES = {"model": b"m" * 4096 + b"!", "folder-sized": b"f" * 12288, "big": os.urandom(1 << 21), "notes": b"n"}

Damage = Callable[[Path], None]


def flip_first(path: Path) -> None:
    _flip(path, 0)


def flip_middle(path: Path) -> None:
    _flip(path, path.stat().st_size // 2)


def flip_last(path: Path) -> None:
    _flip(path, -1)


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.chmod(0o644)
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.chmod(0o644)
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def lengthen(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"\0")


def delete(path: Path) -> None:
    path.unlink()


def make_folder(path: Path) -> None:
    """Of the same size, where the file system lets folders grow so far."""
    size = path.stat().st_size
    path.unlink()
    path.mkdir()
    for number in range(200):
        (path / f"{number:0200}").write_bytes(b"")
        if path.stat().st_size == size:
            break


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def make_dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def make_link_to_itself_elsewhere(path: Path) -> None:
    """The right bytes, but not the store's own."""
    moved = path.with_name("moved")
    path.rename(moved)
    path.symlink_to("moved")


DAMAGES: list[Damage] = [
    flip_first,
    flip_middle,
    flip_last,
    truncate,
    empty,
    lengthen,
    delete,
    make_folder,
    make_pipe,
    make_loop,
    make_dangling,
]


@pytest.fixture
def filled(tmp_path):
    store = make_store(tmp_path / "store")
    commit(store, "a", FILES)
    commit(store, "other", {"other": b"o" * BIG})
    store.close()
    return tmp_path / "store"


def assert_whole_again(store: LocalStore) -> None:
    commit(store, "a", FILES)
    assert found(store, "a").has_bytes
    assert contents(store, found(store, "a").record) == FILES
    assert contents(store, found(store, "other").record) == {"other": b"o" * BIG}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_record_is_a_miss_with_its_reason(filled, damage):
    damage(record_of(LocalStore(str(filled), clock=clock_of_now()), "a"))
    for look in ("lookup", "peek", "verify_record"):
        copy = filled.with_name(look)
        shutil.copytree(filled, copy, symlinks=True) if damage is not make_pipe else _copy_with_pipe(filled, copy)
        store = make_store(copy)
        assert [record.key for record, _ in all_records(store)] == [key_of("other")]
        outcome = getattr(store, look)(key_of("a"))
        assert isinstance(outcome, RecordMiss)
        assert bool(outcome.damage) is (damage is not delete)
        assert quarantined(store) == ([outcome.damage] if outcome.damage else [])
        assert getattr(store, look)(key_of("a")) == RecordMiss()
        assert_whole_again(store)
        store.close()


def _copy_with_pipe(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=lambda folder, names: [n for n in names if Path(folder, n).is_fifo()])
    for pipe in source.rglob("*"):
        if pipe.is_fifo():
            os.mkfifo(target / pipe.relative_to(source))


@pytest.mark.parametrize("name", ["model", "folder-sized", "big"])
@pytest.mark.parametrize("damage", [*DAMAGES, make_link_to_itself_elsewhere], ids=lambda damage: damage.__name__)
def test_a_damaged_blob_is_lost_with_its_reason(filled, name, damage):
    store = make_store(filled)
    damage(blob_of(store, "a", name))
    outcome = found(store, "a")
    assert outcome.lost == (name,)
    assert not outcome.has_bytes
    reasons = quarantined(store)
    assert len(reasons) == (damage is not delete)
    assert all(f"({name}) does not have the bytes" in reason for reason in reasons)
    assert found(store, "a").lost == (name,)
    assert quarantined(store) == reasons
    assert_whole_again(store)
    store.close()


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_blob_that_is_brought_in_again_is_replaced(filled, damage):
    store = make_store(filled)
    damage(blob_of(store, "a", "model"))
    commit(store, "b", {"same": FILES["model"]})
    assert contents(store, found(store, "b").record) == {"same": FILES["model"]}
    assert found(store, "a").has_bytes
    store.close()


@pytest.mark.parametrize("name", ["notes", "model", "."])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_view_is_built_anew(filled, name, damage):
    store = make_store(filled)
    record = found(store, "a").record
    path = Path(open_view(store, record), name)
    if name == ".":
        # The folder itself, replaced by a damaged file.
        shutil.rmtree(path)
        path.write_bytes(b"a file")
        damage(path)
    else:
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
        damage(path)
    assert files_below(open_view(store, record)) == FILES
    assert found(store, "a").has_bytes
    store.close()


# SQLite itself waits for ever at a pipe in the place of its journal.
MEMO_DAMAGES = [
    (file, damage)
    for file in ("memo.db", "memo.db-journal")
    for damage in DAMAGES
    if (file, damage) != ("memo.db-journal", make_pipe)
]


@pytest.mark.parametrize(("file", "damage"), MEMO_DAMAGES)
def test_a_damaged_memo_costs_time_and_never_truth(filled, file, damage):
    store = make_store(filled)
    found(store, "a")
    store.close()
    # Copied in the middle of a change, so that there is a journal.
    db = sqlite3.connect(filled / "memo.db")
    db.execute("PRAGMA cache_size=1")
    db.executemany("INSERT OR REPLACE INTO verified VALUES (?, 'y', 'z')", [(f"{n}" * 100,) for n in range(200)])
    assert (filled / "memo.db-journal").stat().st_size
    shutil.copytree(filled, filled.with_name("copy"), symlinks=True)
    db.rollback()
    db.close()
    root = filled.with_name("copy")
    damage(root / file)
    victim = blob_of(LocalStore(str(filled), clock=clock_of_now()), "a", "model")
    _flip(root / victim.relative_to(filled), 7)
    store = make_store(root)
    assert found(store, "a").lost == ("model",)
    assert_whole_again(store)
    store.close()
    store = make_store(root)
    assert_whole_again(store)
    store.close()
    # A journal that is no journal is not ours to judge: SQLite goes without, or the memo does.
    assert store.memo.trouble == "" or file == "memo.db-journal"


def test_every_flipped_page_of_a_memo_leaves_the_truth_alone(filled):
    store = make_store(filled)
    for number in range(600):
        store.memo.remember(f"{number}" * 20, (1, 2, 3, 4), key_of(number))
    found(store, "a")
    store.close()
    whole = (filled / "memo.db").read_bytes()
    _flip(blob_of(store, "a", "model"), 7)
    for position in [*range(100), *range(100, len(whole), len(whole) // 60)]:
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        (filled / "memo.db").write_bytes(damaged)
        store = make_store(filled)
        outcome = store.lookup(key_of("a"))
        assert isinstance(outcome, RecordHit)
        assert outcome.lost == ("model",)
        assert found(store, "other").has_bytes
        store.close()
    shutil.rmtree(store.places.quarantine)


def test_the_memo_of_another_store_does_not_vouch_for_damaged_bytes(filled, tmp_path):
    """It knows the same digests, but of other files."""
    other = make_store(tmp_path / "another")
    commit(other, "a", FILES)
    found(other, "a")
    other.close()
    _flip(blob_of(make_store(filled), "a", "model"), 3)
    shutil.copy2(tmp_path / "another" / "memo.db", filled / "memo.db")
    store = make_store(filled)
    outcome = found(store, "a")
    assert outcome.lost == ("model",)
    assert store.memo.trouble == ""
    store.close()


def test_a_memo_row_for_these_very_bytes_under_another_stamp_is_not_believed(filled):
    store = make_store(filled)
    blob = blob_of(store, "a", "model")
    before = blob.stat()
    _flip(blob, 3)
    os.utime(blob, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = blob.stat()
    assert (after.st_size, after.st_ino, after.st_mtime_ns) == (before.st_size, before.st_ino, before.st_mtime_ns)
    assert found(store, "a").lost == ("model",)
    store.close()


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_pin_never_stops_looking_or_listing(filled, damage):
    store = make_store(filled)
    pin(store.places, "best", (key_of("a"),))
    damage(Path(store.places.pins, "best.json"))
    listed = list_pins(store.places)
    if damage is delete:
        assert listed == []
    elif damage is not lengthen:
        assert [(one.name, one.keys == (key_of("a"),) or bool(one.damage)) for one in listed] == [("best", True)]
    assert found(store, "a").has_bytes
    # Only a prune stops: nobody knows what it may not take.
    with pytest.raises(CorruptBytes) if any(one.damage for one in listed) else nullcontext():
        sweep(store, clock=clock_of_now())
    assert found(store, "a").has_bytes
    store.close()


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_sidecar_never_stops_a_result_from_being_laid_out(filled, tmp_path, damage):
    store = make_store(filled)
    part = ResultPart(record=found(store, "a").record, folder="", sidecar={})
    out = tmp_path / "out"
    lay_out(store, [part], str(out))
    damage(out / SIDECAR)
    (out / "notes").write_bytes(b"edited")
    laid_out = lay_out(store, [part], str(out))
    assert (out / "notes~").read_bytes() == b"edited"
    assert set(laid_out.kept_edits) - {f"{SIDECAR}~"} == {"notes~"}
    assert {name: (out / name).read_bytes() for name in FILES} == FILES
    store.close()


@pytest.mark.parametrize("folder", ["blobs", "records", "staging", "views", "quarantine", "pins", "leases"])
def test_a_missing_folder_is_made_again(filled, folder):
    shutil.rmtree(filled / folder)
    store = make_store(filled)
    outcome = store.lookup(key_of("a"))
    assert isinstance(outcome, RecordMiss) if folder == "records" else isinstance(outcome, RecordHit)
    commit(store, "other", {"other": b"o" * BIG})
    assert_whole_again(store)
    store.close()
