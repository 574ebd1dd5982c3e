"""Disks that are full or can't be written: one line that says so, nothing half-done, and what was there stays."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.core.errors import NoPermission, NoSpace
from stoker.host.durable import remove_tree, stamp_of
from stoker.store.local_store import LocalStore, RecordHit, RecordMiss
from stoker.store.memo import digest_path
from stoker.store.prune import PruneDecision, candidates, carry_out, decide_prune
from stoker.store.records import Record
from stoker.store.refs import pin
from stoker.store.results import ResultPart, lay_out
from stoker.store.tree_views import changed_inputs, open_view
from tests.unit.host.real_mounts import small_disk
from tests.unit.host.real_processes import code_of, fork
from tests.unit.store.real_stores import (
    BIG,
    blob_of,
    clock_of_now,
    commit,
    contents,
    fill,
    found,
    key_of,
    make_store,
    quarantined,
    record_of,
    sweep,
)

EARLIER = {"model": b"e" * 100_000, "notes": b"earlier"}


@contextlib.contextmanager
def full_disk(folder: Path, options: str = "size=2m") -> Iterator[LocalStore]:
    """A store with something in it on a disk that then takes no byte more."""
    with small_disk(folder, options) as disk:
        store = make_store(disk / "store")
        commit(store, "earlier", EARLIER)
        try:
            yield store
        finally:
            store.close()


def use_up(disk: Path) -> None:
    """Leave not a single block."""
    with open(disk / "filler", "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1 << 9, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * size)


def take_in_and_publish(store: LocalStore, staging: str) -> None:
    tree, inline = store.take_in(staging)
    store.publish(Record.of(key=key_of("new"), tree=tree, inline=inline, body={"x": "y" * 10_000}))


def commit_for_ever(store: LocalStore, committed: list[int]) -> None:
    for number in itertools.count():
        commit(store, number, {"x": b"%d" % number * BIG})
        committed.append(number)


def prune_all(store: LocalStore) -> PruneDecision:
    return decide_prune(
        candidates(store, kept=lambda key: "", label=lambda record: ""), now_s=0, max_bytes=0, older_than_s=None
    )


def test_a_full_disk_is_named_staging_can_be_cleared_and_earlier_results_stay(tmp_path):
    with full_disk(tmp_path / "disk") as store:
        staging = store.new_staging("x")
        fill(staging, {"model": b"n" * 50_000, "notes": b"n" * 100})
        use_up(tmp_path / "disk")
        with pytest.raises(NoSpace) as caught:
            take_in_and_publish(store, staging)
        assert caught.value.exit_code == 10
        assert store.lookup(key_of("new")) == RecordMiss()
        assert contents(store, found(store, "earlier").record) == EARLIER
        assert [path for path in Path(store.places.records).rglob("*") if path.name.startswith(".stoker-tmp-")] == []
        remove_tree(staging)
        assert os.listdir(store.places.staging) == []
        (tmp_path / "disk" / "filler").unlink()
        commit(store, "new", {"model": b"n" * 50_000})
        assert contents(store, found(store, "new").record) == {"model": b"n" * 50_000}


def test_a_disk_without_a_free_inode_is_named_too(tmp_path):
    with full_disk(tmp_path / "disk", "size=4m,nr_inodes=60") as store:
        committed: list[int] = []
        with pytest.raises(NoSpace):
            commit_for_ever(store, committed)
        assert len(committed) > 2
        assert contents(store, found(store, "earlier").record) == EARLIER
        for number in committed:
            assert contents(store, found(store, number).record) == {"x": b"%d" % number * BIG}


def test_a_full_disk_can_be_pruned(tmp_path):
    with full_disk(tmp_path / "disk") as store:
        for number in range(10):
            commit(store, number, {"x": b"%d" % number * 100_000})
        use_up(tmp_path / "disk")
        swept = carry_out(store, prune_all(store), clock=clock_of_now())
        assert swept.blobs == 11
        assert swept.stuck == ()
        for name in (*range(10), "earlier"):
            outcome = store.lookup(key_of(name))
            # Where there was no room for a tombstone there is none.
            assert isinstance(outcome, RecordMiss) or outcome.record.is_tombstone
        commit(store, "new", {"x": b"n" * 100_000})
        assert found(store, "new").has_bytes


def test_damage_on_a_full_disk_is_still_only_a_miss(tmp_path):
    with full_disk(tmp_path / "disk") as store:
        commit(store, "blob", {"x": b"b" * BIG})
        use_up(tmp_path / "disk")
        os.truncate(record_of(store, "earlier"), 10)
        blob_of(store, "blob", "x").chmod(0o644)
        with open(blob_of(store, "blob", "x"), "r+b") as file:
            file.write(b"!")
        outcome = store.lookup(key_of("earlier"))
        assert isinstance(outcome, RecordMiss)
        assert outcome.damage
        assert found(store, "blob").lost == ("x",)


def test_a_view_or_a_result_that_does_not_fit_leaves_no_half_of_it(tmp_path):
    with full_disk(tmp_path / "disk") as store:
        record = found(store, "earlier").record
        out = tmp_path / "disk" / "out"
        out.mkdir()
        use_up(tmp_path / "disk")
        with pytest.raises(NoSpace):
            open_view(store, record)
        with pytest.raises(NoSpace):
            lay_out(store, [ResultPart(record=record, folder="", sidecar={})], str(out))
        assert os.listdir(store.places.views) == []
        assert [path for path in out.rglob("*") if path.is_file()] == []
        (tmp_path / "disk" / "filler").unlink()
        assert lay_out(store, [ResultPart(record=record, folder="", sidecar={})], str(out)).kept_edits == ()


@pytest.fixture
def read_only(tmp_path):
    """A store on a disk that was writable until now."""
    with small_disk(tmp_path / "disk", "size=4m") as disk:
        store = make_store(disk / "store")
        commit(store, "a", {"x": b"1" * BIG, "small": b"s"})
        commit(store, "lost", {"x": b"2" * BIG})
        commit(store, "damaged", {"x": b"3" * BIG})
        open_view(store, found(store, "a").record)
        blob_of(store, "lost", "x").chmod(0o644)
        blob_of(store, "lost", "x").write_bytes(b"!" * BIG)
        os.truncate(record_of(store, "damaged"), 20)
        store.close()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        yield disk / "store"


def test_a_read_only_store_can_be_read(read_only, tmp_path):
    store = make_store(read_only)
    assert contents(store, found(store, "a").record) == {"x": b"1" * BIG, "small": b"s"}
    assert Path(open_view(store, found(store, "a").record), "x").read_bytes() == b"1" * BIG
    assert changed_inputs(store, found(store, "a").record) == []
    assert found(store, "lost").lost == ("x",)
    outcome = store.lookup(key_of("damaged"))
    assert isinstance(outcome, RecordMiss)
    assert outcome.damage
    assert isinstance(store.verify_record(key_of("a")), RecordHit)
    assert store.memo.recall(blob_of(store, "a", "x").name, stamp_of(blob_of(store, "a", "x").stat()))
    (tmp_path / "data").write_bytes(b"1")
    assert digest_path(str(tmp_path / "data"), memo=store.memo, clock=clock_of_now())
    out = tmp_path / "out"
    lay_out(store, [ResultPart(record=found(store, "a").record, folder="", sidecar={})], str(out))
    assert (out / "x").read_bytes() == b"1" * BIG
    store.close()


def test_writing_to_a_read_only_store_is_refused_by_name(read_only, tmp_path):
    store = make_store(read_only)
    fill(tmp_path / "made", {"x": b"4" * BIG})
    record = found(store, "a").record
    refused = [
        lambda: store.new_staging("x"),
        lambda: store.take_in(str(tmp_path / "made")),
        lambda: store.publish(record.under(key_of("new"), {})),
        lambda: store.publish(record, replace=True),
        lambda: pin(store.places, "p", (record.key,)),
        lambda: carry_out(store, prune_all(store), clock=clock_of_now()),
    ]
    for act in refused:
        with pytest.raises(NoPermission) as caught:
            act()
        assert str(read_only) in str(caught.value)
        assert caught.value.exit_code == 16
    assert found(store, "a").has_bytes
    clock = clock_of_now()
    clock.advance(1e6)
    sweep(store, clock=clock)
    store.close()


@pytest.fixture
def others(open_path):
    """A store that everybody may look into, and a way to be somebody else."""
    if os.getuid() != 0:
        pytest.skip("becoming another user is not permitted here")
    store = make_store(open_path / "store")
    commit(store, "a", {"x": b"1" * BIG, "small": b"s"})
    commit(store, "hidden", {"x": b"2" * BIG})
    store.close()
    return store


def refuses_nobody(action: Callable[[LocalStore], object], store: LocalStore) -> bool:
    """Return whether a user without rights is refused an action with `NoPermission`."""

    def as_nobody() -> None:
        os.setgid(65534)
        os.setuid(65534)
        with contextlib.suppress(NoPermission):
            action(LocalStore(store.places.root, clock=clock_of_now()))
            os._exit(9)

    code = code_of(fork(as_nobody))
    assert code in (0, 9)
    return code == 0


def test_another_user_may_read_a_store_and_is_refused_to_write(others):
    def read(store: LocalStore) -> None:
        assert contents(store, found(store, "a").record) == {"x": b"1" * BIG, "small": b"s"}
        store.close()

    assert not refuses_nobody(read, others)
    assert refuses_nobody(lambda store: commit(store, "b", {}), others)
    assert refuses_nobody(lambda store: store.publish(found(store, "a").record, replace=True), others)
    assert refuses_nobody(lambda store: carry_out(store, prune_all(store), clock=clock_of_now()), others)
    assert found(others, "a").has_bytes


def test_a_blob_that_may_not_be_read_is_lost(others):
    blob_of(others, "hidden", "x").chmod(0o000)

    def look(store: LocalStore) -> None:
        assert found(store, "hidden").lost == ("x",)

    assert not refuses_nobody(look, others)
    assert quarantined(others) == []


def test_a_record_that_may_not_be_read_is_an_error_and_not_a_miss(others):
    """To run everything again because of a wrong mode would be the worse answer."""
    record_of(others, "hidden").chmod(0o000)
    assert refuses_nobody(lambda store: store.lookup(key_of("hidden")), others)
    assert refuses_nobody(lambda store: store.peek(key_of("hidden")), others)
