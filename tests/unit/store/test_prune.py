from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.core.clock import FakeClock
from stoker.core.digests import Digest
from stoker.core.errors import CorruptBytes
from stoker.store import prune as store_prune
from stoker.store.local_store import LocalStore
from stoker.store.prune import (
    GRACE_S,
    PruneDecision,
    PruneResult,
    all_records,
    candidates,
    carry_out,
    decide_prune,
    young_bytes,
)
from stoker.store.records import Record
from stoker.store.refs import list_pins, pin
from stoker.store.tree_views import open_view
from tests.unit.host.real_processes import wait_until
from tests.unit.store.real_stores import (
    BIG,
    DAY_S,
    blob_of,
    clock_of_now,
    commit,
    contents,
    found,
    key_of,
    make_store,
    record_of,
    stage_and_take_in,
    sweep,
)


class Pruned:
    """A store whose clock can be moved, and what pruning it needs."""

    def __init__(self, root: Path) -> None:
        self.clock = clock_of_now()
        self.store = make_store(root, clock=self.clock)

    def add(self, name: str, files: dict[str, bytes], *, days_ago: float = 0.0) -> None:
        commit(self.store, name, files, body={"name": name})
        used_s = self.clock.wall_s() - days_ago * DAY_S
        os.utime(record_of(self.store, name), (used_s, used_s))

    def decide(self, *, max_bytes: int | None = 0, older_days: float | None = None) -> PruneDecision:
        pinned = {key for one in list_pins(self.store.places) for key in one.keys}
        return decide_prune(
            candidates(
                self.store,
                kept=lambda key: "pinned" if key in pinned else "",
                label=lambda record: record.body["name"],
            ),
            now_s=self.clock.wall_s(),
            max_bytes=max_bytes,
            older_than_s=older_days * DAY_S if older_days is not None else None,
        )

    def prune(self, **limits) -> PruneResult:
        return carry_out(self.store, self.decide(**limits), clock=self.clock)


@pytest.fixture
def pruned(tmp_path):
    made = Pruned(tmp_path)
    yield made
    made.store.close()


def clock_between_then_and_now(folder: Path) -> FakeClock:
    """Return a clock by which a prune begins after all that was touched, and before all that will be."""
    limit_s = time.time() + 0.02
    probe = folder / "probe"

    def has_passed() -> bool:
        probe.touch()
        return probe.stat().st_ctime > limit_s

    wait_until(has_passed)
    return FakeClock(start_s=limit_s + store_prune._TICK_S)


def blobs(store: LocalStore) -> set[str]:
    return {path.name for path in Path(store.places.blobs).rglob("*") if path.is_file()}


def test_the_least_recently_used_goes_and_leaves_a_tombstone_that_is_still_found(pruned):
    pruned.add("old", {"x": b"1" * BIG, "small": b"s"}, days_ago=2)
    pruned.add("new", {"x": b"2" * BIG}, days_ago=1)
    digest = found(pruned.store, "old").record.digest
    os.utime(record_of(pruned.store, "old"), (5, 5))
    swept = pruned.prune(max_bytes=BIG)
    assert (swept.blobs, swept.blob_bytes, swept.stuck) == (1, BIG, ())
    old = found(pruned.store, "old")
    assert (old.has_bytes, old.lost, old.record.digest) == (False, (), digest)
    assert old.record.is_tombstone
    assert [entry.path for entry in old.record.tree.entries] == ["small", "x"]
    assert contents(pruned.store, found(pruned.store, "new").record) == {"x": b"2" * BIG}


def test_a_tombstone_keeps_its_place_in_the_order_and_costs_nothing(pruned):
    pruned.add("old", {"x": b"1" * BIG}, days_ago=2)
    used_s = record_of(pruned.store, "old").stat().st_mtime
    pruned.prune()
    assert record_of(pruned.store, "old").stat().st_mtime == pytest.approx(used_s)
    assert pruned.decide().before_bytes == 0


def test_what_was_pruned_is_whole_again_when_it_is_made_again(pruned):
    pruned.add("a", {"x": b"1" * BIG})
    pruned.prune()
    assert commit(pruned.store, "a", {"x": b"1" * BIG}).is_ours
    assert contents(pruned.store, found(pruned.store, "a").record) == {"x": b"1" * BIG}


def test_a_blob_that_another_record_names_stays(pruned):
    pruned.add("old", {"x": b"shared" * BIG, "y": b"own" * BIG}, days_ago=9)
    pruned.add("new", {"z": b"shared" * BIG})
    swept = pruned.prune(max_bytes=None, older_days=5)
    assert (swept.blobs, swept.blob_bytes) == (1, 3 * BIG)
    assert contents(pruned.store, found(pruned.store, "new").record) == {"z": b"shared" * BIG}


def test_what_is_decided_to_be_freed_is_what_is_freed(pruned):
    pruned.add("a", {"x": b"shared" * BIG, "y": b"1" * BIG}, days_ago=3)
    pruned.add("b", {"x": b"shared" * BIG, "y": b"2" * BIG}, days_ago=2)
    pruned.add("c", {"x": b"shared" * BIG}, days_ago=1)
    decision = pruned.decide()
    assert decision.before_bytes == sum(path.stat().st_size for path in Path(pruned.store.places.blobs).rglob("*/*"))
    assert carry_out(pruned.store, decision, clock=pruned.clock).blob_bytes == decision.freed_bytes


def test_what_lay_in_records_counts_as_freed(pruned):
    pruned.add("a", {"x": b"1" * BIG, "small": b"12345"})
    decision = pruned.decide()
    swept = carry_out(pruned.store, decision, clock=pruned.clock)
    assert (swept.inline_bytes, swept.freed_bytes) == (5, BIG + 5)
    assert decision.freed_bytes == BIG + 5


def test_bytes_that_will_be_spared_because_they_are_young_are_known_before(pruned):
    pruned.add("a", {"x": b"1" * BIG, "small": b"12345"})
    decision = pruned.decide()
    now = FakeClock(start_s=time.time() + 60)
    assert young_bytes(pruned.store, decision, clock=now) == 0
    staging = pruned.store.new_staging("work")
    assert young_bytes(pruned.store, decision, clock=now, leftovers=[staging]) == 0
    assert young_bytes(pruned.store, decision, clock=now) == BIG
    assert carry_out(pruned.store, decision, clock=now).freed_bytes == 5
    later = FakeClock(start_s=time.time() + 3700)
    assert young_bytes(pruned.store, decision, clock=later) == 0


def test_pinned_records_stay(pruned):
    pruned.add("keep", {"x": b"1" * BIG}, days_ago=900)
    pruned.add("go", {"x": b"2" * BIG})
    pin(pruned.store.places, "best", (key_of("keep"),))
    assert pruned.prune(older_days=1).blobs == 1
    assert found(pruned.store, "keep").has_bytes
    assert not found(pruned.store, "go").has_bytes


def test_nothing_is_pruned_while_a_pin_can_not_be_read(pruned):
    pruned.add("a", {"x": b"1" * BIG})
    pin(pruned.store.places, "best", (key_of("a"),))
    Path(pruned.store.places.pins, "best.json").write_bytes(b"{")
    with pytest.raises(CorruptBytes, match="pin best"):
        pruned.prune()
    assert found(pruned.store, "a").has_bytes


def test_a_record_that_is_used_between_decision_and_act_stays(pruned):
    pruned.add("a", {"x": b"1" * BIG}, days_ago=2)
    decision = pruned.decide()
    found(pruned.store, "a")
    assert carry_out(pruned.store, decision, clock=pruned.clock).blobs == 0
    assert found(pruned.store, "a").has_bytes


def test_bytes_without_a_name_go_only_after_the_grace(pruned):
    _, _, staging = stage_and_take_in(pruned.store, {"x": b"1" * BIG})
    os.rmdir(staging)
    assert sweep(pruned.store, clock=pruned.clock).blobs == 0
    assert pruned.prune().blobs == 0
    pruned.clock.advance(GRACE_S + 1)
    assert sweep(pruned.store, clock=pruned.clock).blobs == 1
    assert blobs(pruned.store) == set()


def test_a_file_that_was_given_an_old_time_is_young_all_the_same(pruned):
    staging = pruned.store.new_staging("x")
    Path(staging, "x").write_bytes(b"1" * BIG)
    os.utime(Path(staging, "x"), (5, 5))
    pruned.store.take_in(staging)
    assert sweep(pruned.store, clock=pruned.clock).blobs == 0


def test_a_writer_that_counts_on_a_blob_keeps_it_through_a_prune_of_its_record(pruned):
    pruned.add("old", {"x": b"1" * BIG})
    # A writer between bytes and name: it found the blob here and has not published yet.
    tree, inline, _ = stage_and_take_in(pruned.store, {"y": b"1" * BIG})
    assert pruned.prune().blobs == 0
    assert not found(pruned.store, "old").has_bytes
    record = Record.of(key=key_of("new"), tree=tree, inline=inline, body={"name": "new"})
    pruned.store.publish(record)
    assert contents(pruned.store, found(pruned.store, "new").record) == {"y": b"1" * BIG}


@pytest.mark.parametrize("moment", ["before the look", "before the move", "after the move"])
def test_a_writer_that_comes_upon_a_blob_while_it_is_removed_ends_up_with_it(pruned, monkeypatch, tmp_path, moment):
    store = pruned.store
    pruned.add("old", {"x": b"1" * BIG})
    blob = blob_of(store, "old", "x")
    decision = pruned.decide()
    clock = clock_between_then_and_now(tmp_path)
    taken: list[Any] = []

    def write_now() -> None:
        if not taken:
            taken.append(True)
            taken.append(stage_and_take_in(store, {"y": b"1" * BIG}))

    lstat, rename = os.lstat, os.rename

    def watched_lstat(path, **options):
        if moment == "before the look" and path == str(blob):
            write_now()
        return lstat(path, **options)

    def watched_rename(src, dst, **options):
        if src == str(blob) and moment == "before the move":
            write_now()
        rename(src, dst, **options)
        if src == str(blob) and moment == "after the move":
            write_now()

    monkeypatch.setattr(os, "lstat", watched_lstat)
    monkeypatch.setattr(os, "rename", watched_rename)
    carry_out(store, decision, clock=clock)
    monkeypatch.undo()
    tree, inline, _ = taken[1]
    store.publish(Record.of(key=key_of("new"), tree=tree, inline=inline, body={"name": "new"}))
    assert contents(store, found(store, "new").record) == {"y": b"1" * BIG}
    assert len(blobs(store)) == 1


def test_views_go_with_their_records_and_others_stay(pruned):
    pruned.add("old", {"x": b"1" * BIG}, days_ago=9)
    pruned.add("new", {"x": b"2" * BIG})
    for name in ("old", "new"):
        open_view(pruned.store, found(pruned.store, name).record)
    os.utime(record_of(pruned.store, "old"), (5, 5))
    assert pruned.prune(max_bytes=None, older_days=5).views == 1
    assert os.listdir(pruned.store.places.views) == [found(pruned.store, "new").record.digest]


def test_a_view_that_is_being_built_is_left_alone_and_an_abandoned_one_is_not(pruned):
    building = Path(pruned.store.places.views, f"{key_of('tree')}.123.4")
    building.mkdir()
    assert sweep(pruned.store, clock=pruned.clock).views == 0
    pruned.clock.advance(GRACE_S + 1)
    assert sweep(pruned.store, clock=pruned.clock).views == 1
    assert not building.exists()


def test_half_written_records_of_the_dead_go_after_the_grace(pruned):
    pruned.add("a", {"x": b"1"})
    temp = record_of(pruned.store, "a").with_name(".stoker-tmp-999999999-1-abc")
    temp.write_bytes(b"half")
    sweep(pruned.store, clock=pruned.clock)
    assert temp.exists()
    pruned.clock.advance(GRACE_S + 20)
    sweep(pruned.store, clock=pruned.clock)
    assert not temp.exists()
    assert found(pruned.store, "a").has_bytes


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"garbage"),
        lambda path: path.mkdir(),
        os.mkfifo,
        lambda path: path.symlink_to(path.name),
    ],
    ids=["empty", "garbage", "folder", "pipe", "loop"],
)
def test_one_unreadable_record_never_stops_the_rest(pruned, damage):
    for name in ("a", "b", "c"):
        pruned.add(name, {"x": name.encode() * BIG})
    bad = record_of(pruned.store, "b")
    bad.unlink()
    damage(bad)
    assert sorted(record.body["name"] for record, _ in all_records(pruned.store)) == ["a", "c"]
    assert pruned.prune().blobs == 2
    assert {name: found(pruned.store, name).has_bytes for name in ("a", "c")} == {"a": False, "c": False}


def test_a_record_that_is_damaged_after_the_decision_never_stops_the_rest(pruned):
    for name in ("a", "b", "c"):
        pruned.add(name, {"x": name.encode() * BIG})
    decision = pruned.decide()
    record_of(pruned.store, "a").unlink()
    record_of(pruned.store, "b").unlink()
    record_of(pruned.store, "b").mkdir()
    assert carry_out(pruned.store, decision, clock=pruned.clock).blobs == 1
    assert not found(pruned.store, "c").has_bytes


def test_foreign_things_in_the_store_never_stop_a_prune(pruned):
    pruned.add("a", {"x": b"1" * BIG})
    places = pruned.store.places
    for folder in (places.records, places.blobs, places.views):
        Path(folder, ".DS_Store").write_bytes(b"?")
        Path(folder, "zz").mkdir()
        Path(folder, "zz", "not-a-digest").write_bytes(b"?")
    blob_of(pruned.store, "a", "x").with_name(key_of("folder")).mkdir()
    assert pruned.prune().blobs == 1
    pruned.clock.advance(GRACE_S + 20)
    swept = sweep(pruned.store, clock=pruned.clock)
    assert swept.stuck == ()
    assert blobs(pruned.store) == {".DS_Store"}


def test_two_prunes_at_once_do_not_trip_over_each_other(pruned, monkeypatch):
    for name in ("a", "b", "c"):
        pruned.add(name, {"x": name.encode() * BIG})
    decision = pruned.decide()
    really = store_prune._Sweeping._removable

    def gone_after_the_look(self, path, name):
        info = really(self, path, name)
        if info is not None and os.path.isfile(path):
            os.unlink(path)
        return info

    monkeypatch.setattr(store_prune._Sweeping, "_removable", gone_after_the_look)
    assert carry_out(pruned.store, decision, clock=pruned.clock) == PruneResult(blobs=0, blob_bytes=0, views=0)


def test_a_store_that_was_never_written_to_is_pruned_in_no_time(tmp_path):
    store = LocalStore(str(tmp_path / "nowhere"), clock=clock_of_now())
    assert list(candidates(store, kept=lambda key: "", label=lambda record: "")) == []
    assert sweep(store, clock=clock_of_now()) == PruneResult(blobs=0, blob_bytes=0, views=0)


def test_only_what_has_bytes_is_a_candidate(pruned):
    pruned.add("a", {"x": b"1" * BIG})
    pruned.prune()
    pruned.add("b", {"x": b"2" * BIG, "y": b"yy"}, days_ago=3)
    (only,) = candidates(pruned.store, kept=lambda key: f"because {key[:4]}", label=lambda record: record.body["name"])
    assert (only.key, only.label, only.inline_bytes, len(only.blobs)) == (Digest(key_of("b")), "b", 2, 1)
    assert only.is_kept == f"because {key_of('b')[:4]}"
    assert only.last_used_s == pytest.approx(pruned.clock.wall_s() - 3 * DAY_S)
