"""Putting things while processes die, disks fill, others put the same and somebody prunes: all of it there or none."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock, SystemClock
from stoker.core.errors import NoSpace, Refused
from stoker.engine.key_leases import KeyLeases
from stoker.host.durable import remove_tree
from stoker.jobs.execution import stale_staging
from stoker.jobs.upkeep import LeasedStoreWriter, why_kept, why_let_go
from stoker.store import put as store_put
from stoker.store.local_store import LocalStore, RecordHit
from stoker.store.prune import GRACE_S, candidates, carry_out, decide_prune
from stoker.store.put import PutRequest, StoreWriter, read_index, survey
from stoker.store.refs import find_ref, list_refs, remove_ref
from tests.fault.test_store_disks import use_up
from tests.fault.test_store_kills import Countdown, assert_nothing_is_torn, assert_rubbish_is_swept, memory, survives
from tests.fault.test_store_races import all_at_once
from tests.lengths import examples, moments
from tests.unit.host.real_mounts import small_disk
from tests.unit.host.real_processes import code_of, fork
from tests.unit.store.real_stores import (
    BIG,
    commit,
    files_below,
    fill,
    make_store,
    put_contents,
    put_in,
    quarantined,
    sweep,
)

__all__ = ["memory"]

OLD = {"old": b"old" * BIG, "shared": b"shared" * BIG}
NEW = {"model": b"new" * BIG, "notes": b"n", "shared": b"shared" * BIG, "deep/copy": b"new" * BIG, "deep/x": b"x" * BIG}


def prune_all(store: LocalStore, *, ahead_s: float = 10.0) -> None:
    """Prune as the command does, so much later than every file that exists."""
    clock = FakeClock(start_s=time.time() + ahead_s)
    leases = KeyLeases(store.places.leases, clock=clock)
    found = candidates(store, kept=why_kept(store, leases, "/nowhere"), label=lambda _: "", let_go=why_let_go(store))
    carry_out(store, decide_prune(found, now_s=clock.wall_s(), max_bytes=0, older_than_s=None), clock=clock)


def _before_nothing(store: LocalStore, folder: Path) -> None:
    """A store in which nothing was put."""


def _before_another(store: LocalStore, folder: Path) -> None:
    fill(folder.parent / "old", OLD)
    put_in(store, folder.parent / "old", "data")


def _before_result(store: LocalStore, folder: Path) -> None:
    commit(store, "result", {"x": b"new" * BIG, "y": b"shared" * BIG})


def _before_the_same(store: LocalStore, folder: Path) -> None:
    put_in(store, folder, "data")


@pytest.mark.parametrize(
    "before", [_before_nothing, _before_another, _before_result, _before_the_same], ids=lambda one: one.__name__
)
def test_a_put_killed_at_any_step_leaves_all_or_nothing_and_can_be_repeated(memory, before):
    for moment in moments():
        root, folder = memory / str(moment), memory / f"data-{moment}"
        fill(folder, NEW)
        store = make_store(root)
        before(store, folder)
        rows = len(list(read_index(store.places)))
        store.close()

        def put(root: Path = root, folder: Path = folder, moment: int = moment) -> None:
            countdown = Countdown(moment)
            other = make_store(root, on_step=countdown)
            putting = StoreWriter(other, clock=SystemClock(), heed=lambda _: None, on_step=countdown)
            putting.put(survey(str(folder)), PutRequest(name="data", replace=True))

        ended = survives(put)
        assert files_below(folder) == NEW
        store = make_store(root)
        assert_nothing_is_torn(store)
        ref = find_ref(store.places, "data")
        if ref is not None:
            assert ref.damage == ""
            assert put_contents(store, "data") in (OLD, NEW)
        assert all(not row.damage for row in read_index(store.places))
        assert rows <= len(list(read_index(store.places))) <= rows + 1
        put_in(store, folder, "data", replace=True)
        assert put_contents(store, "data") == NEW
        assert_rubbish_is_swept(store)
        assert put_contents(store, "data") == NEW
        store.close()
        if ended:
            break
    assert moment > (3 if before is _before_the_same else 20)


def test_puts_killed_at_any_moment_leave_no_torn_file_and_staging_that_is_known_as_stale(tmp_path):
    chance = random.Random(11)
    for number in range(4):
        fill(tmp_path / f"data-{number}", {"x": b"%d" % number * (200 * BIG), "y": b"%d" % number * BIG, "z": b"z"})

    def put_for_ever() -> None:
        store = make_store(tmp_path / "store")
        leases = KeyLeases(store.places.leases, clock=SystemClock())
        way_in = LeasedStoreWriter(store, leases=leases, clock=SystemClock(), heed=lambda _: None)
        for number in itertools.count(os.getpid()):
            way_in.put(survey(str(tmp_path / f"data-{number % 4}")), PutRequest(name=f"n{number % 3}", replace=True))
            prune_all(store, ahead_s=0.0)

    for _ in range(12):
        pid = fork(put_for_ever)
        time.sleep(chance.uniform(0.0, 0.06))
        os.kill(pid, signal.SIGKILL)
        assert code_of(pid) == -signal.SIGKILL
        store = make_store(tmp_path / "store")
        assert_nothing_is_torn(store)
        for ref in list_refs(store.places):
            assert ref.damage == ""
            assert set(put_contents(store, ref.name)) == {"x", "y", "z"}
        held = KeyLeases(store.places.leases, clock=SystemClock()).held()
        left = os.listdir(store.places.staging)
        assert [os.path.basename(path) for path in stale_staging(store, held)] == sorted(left)
        for name in left:
            remove_tree(os.path.join(store.places.staging, name))
        store.close()


def test_a_put_that_does_not_fit_is_refused_with_its_numbers_before_the_disk_is_full(tmp_path):
    fill(tmp_path / "data", {"x": b"x" * 3_000_000})
    with small_disk(tmp_path / "disk", "size=2m") as disk:
        store = make_store(disk / "store")
        with pytest.raises(NoSpace, match=r"MiB needed, 2\.0 MiB free in") as caught:
            put_in(store, tmp_path / "data", "data")
        assert caught.value.exit_code == 10
        assert os.listdir(store.places.staging) == []
        store.close()


def test_a_disk_that_fills_while_a_put_copies_is_named_and_left_as_it_was(tmp_path, monkeypatch):
    fill(tmp_path / "data", {"small": b"s", "x": b"x" * 500_000, "y": b"y" * 3_000_000})
    # As if somebody else filled it after we had looked.
    monkeypatch.setattr(store_put, "free_bytes", lambda path: 1 << 40)
    with small_disk(tmp_path / "disk", "size=2m") as disk:
        store = make_store(disk / "store")
        fill(tmp_path / "earlier", {"e": b"e" * BIG})
        put_in(store, tmp_path / "earlier", "earlier")
        free = os.statvfs(disk).f_bavail
        with pytest.raises(NoSpace, match="no space left"):
            put_in(store, tmp_path / "data", "data")
        assert os.listdir(store.places.staging) == []
        assert os.statvfs(disk).f_bavail >= free - 2
        assert [ref.name for ref in list_refs(store.places)] == ["earlier"]
        assert put_contents(store, "earlier") == {"e": b"e" * BIG}
        put_in(store, tmp_path / "data" / "x", "x")
        assert put_contents(store, "x") == {"x": b"x" * 500_000}
        store.close()


def test_a_disk_that_is_full_at_any_block_of_a_put_leaves_names_and_index_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(store_put, "free_bytes", lambda path: 1 << 40)
    fill(tmp_path / "data", {"x": b"x" * 20_000, "small": b"s" * 100, "y": b"y" * 9_000})
    outcomes = []
    for blocks in range(24):
        with small_disk(tmp_path / f"disk-{blocks}", "size=512k") as disk:
            store = make_store(disk / "store")
            fill(tmp_path / "earlier", {"e": b"e" * BIG})
            put_in(store, tmp_path / "earlier", "earlier")
            store.close()
            use_up(disk)
            os.truncate(disk / "filler", os.stat(disk / "filler").st_size - 4096 * blocks)
            store = make_store(disk / "store")
            try:
                put_in(store, tmp_path / "data", "data")
                outcomes.append(True)
            except NoSpace:
                outcomes.append(False)
            assert os.listdir(store.places.staging) == []
            assert_nothing_is_torn(store)
            # A name that was given just before the index could not be written stands, as its thing does.
            for ref in list_refs(store.places):
                assert ref.damage == ""
                assert put_contents(store, ref.name)
            assert all(not row.damage for row in read_index(store.places))
            (disk / "filler").unlink()
            put_in(store, tmp_path / "data", "data")
            assert len(put_contents(store, "data")) == 3
            store.close()
    assert set(outcomes) == {True, False}


def test_many_puts_of_the_same_thing_at_once_all_succeed_and_it_is_there_once(tmp_path):
    fill(tmp_path / "data", NEW)

    def put(number: int) -> None:
        store = make_store(tmp_path / "store", clock=SystemClock())
        done = put_in(store, tmp_path / "data", f"n{number % 4}", clock=SystemClock())
        assert put_contents(store, done.ref.name) == NEW
        store.close()

    all_at_once(examples(8, 20), put)
    store = make_store(tmp_path / "store")
    assert len({ref.key for ref in list_refs(store.places)}) == 1
    assert len(list(Path(store.places.records).rglob("?" * 64))) == 1
    rows = list(read_index(store.places))
    assert [row.damage for row in rows] == [""] * examples(8, 20)
    assert_nothing_is_torn(store)
    assert os.listdir(store.places.staging) == []
    store.close()


def test_of_puts_of_different_things_under_one_name_one_wins_and_the_others_are_told(tmp_path):
    for number in range(8):
        fill(tmp_path / f"data-{number}", {"x": b"%d" % number * BIG})

    def put(number: int) -> None:
        store = make_store(tmp_path / "store", clock=SystemClock())
        with contextlib.suppress(Refused):
            put_in(store, tmp_path / f"data-{number}", "data", clock=SystemClock())
            (tmp_path / f"won-{number}").touch()
        store.close()

    all_at_once(8, put)
    (winner,) = tmp_path.glob("won-*")
    store = make_store(tmp_path / "store")
    assert put_contents(store, "data") == {"x": winner.name[-1].encode() * BIG}
    store.close()


@pytest.mark.parametrize("before", [_before_nothing, _before_another, _before_result], ids=lambda one: one.__name__)
def test_a_prune_at_every_step_of_a_put_takes_nothing_of_it(tmp_path, before):
    fill(tmp_path / "data", NEW)
    store = make_store(tmp_path / "store")
    before(store, tmp_path / "data")
    store.close()
    steps: list[str] = []

    def prune(step: str) -> None:
        steps.append(step)
        other = make_store(tmp_path / "store")
        prune_all(other)
        other.close()

    store = make_store(tmp_path / "store", on_step=prune)
    putting = StoreWriter(store, clock=SystemClock(), heed=lambda _: None, on_step=prune)
    putting.put(survey(str(tmp_path / "data")), PutRequest(name="data", replace=True))
    assert {"copy", "publish", "ref", "index"} <= set(steps)
    assert put_contents(store, "data") == NEW
    prune_all(store)
    assert put_contents(store, "data") == NEW
    assert quarantined(store) == []
    store.close()


def test_what_a_prune_takes_while_a_put_copies_is_copied_again(tmp_path):
    """A put of hours: what it counted on at its beginning is older than any grace when it ends."""
    fill(tmp_path / "data", {"a": b"a" * BIG, "b": b"b" * BIG})
    store = make_store(tmp_path / "store")
    commit(store, "result", {"x": b"a" * BIG})
    put_in(store, tmp_path / "data", "warm")
    remove_ref(store.places, "warm")

    def prune(_size_bytes: int) -> None:
        other = make_store(tmp_path / "store")
        prune_all(other, ahead_s=GRACE_S + 100)
        sweep(other, clock=FakeClock(start_s=time.time() + GRACE_S + 100))
        other.close()

    StoreWriter(store, clock=SystemClock(), heed=prune).put(survey(str(tmp_path / "data")), PutRequest(name="data"))
    assert put_contents(store, "data") == {"a": b"a" * BIG, "b": b"b" * BIG}
    assert isinstance(store.lookup(store.peek(list_refs(store.places)[0].key).key), RecordHit)  # type: ignore[union-attr]
    store.close()


def test_a_put_in_a_container_that_nobody_can_see_into_is_not_cleared_away(tmp_path):
    store = make_store(tmp_path / "store")
    fill(tmp_path / "data", NEW)
    seen: list[list[str]] = []

    def look(_size_bytes: int) -> None:
        # As from another container: our number means nobody, or somebody else, there.
        (mine,) = os.listdir(store.places.staging)
        foreign = Path(store.places.staging, f".999999.1.{mine.split('.', 3)[3]}")
        foreign.mkdir(exist_ok=True)
        held = KeyLeases(store.places.leases, clock=SystemClock()).held()
        seen.append(list(stale_staging(store, held)))
        foreign.rmdir()

    leases = KeyLeases(store.places.leases, clock=SystemClock())
    putting = LeasedStoreWriter(store, leases=leases, clock=SystemClock(), heed=look)
    putting.put(survey(str(tmp_path / "data")), PutRequest(name="data"))
    assert seen
    assert all(stale == [] for stale in seen)
    assert leases.held() == []
    leases.give_back_all()
    store.close()
