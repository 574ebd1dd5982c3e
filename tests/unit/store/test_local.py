from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock
from stoker.core.digests import digest_bytes
from stoker.core.errors import CorruptBytes, InvalidInput, NotFound
from stoker.host.durable import stamp_of
from stoker.store import local_store
from stoker.store.local_store import RecordHit, RecordMiss
from stoker.store.records import Record
from stoker.store.trees import hash_file, scan_tree
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
    stage_and_take_in,
)

FILES = {"small": b"s", "empty": b"", "big": b"b" * BIG, "deep/er/huge": os.urandom(1_500_000)}


@pytest.fixture
def store(tmp_path):
    made = make_store(tmp_path / "store")
    yield made
    made.close()


def test_what_is_published_is_found_with_the_same_bytes(store):
    published = commit(store, "a", FILES, body={"by": "me"})
    assert published.is_ours
    assert published.before is None
    outcome = found(store, "a")
    assert outcome.has_bytes
    assert outcome.record.body == {"by": "me"}
    assert contents(store, outcome.record) == FILES


def test_what_was_never_published_is_missing_without_damage(store):
    assert store.lookup(key_of("a")) == RecordMiss()


def test_a_record_has_the_digest_of_the_folder_it_was_made_from(store, tmp_path):
    fill(tmp_path / "same", FILES)
    assert commit(store, "a", FILES).record.digest == scan_tree(str(tmp_path / "same")).digest()


def test_small_files_lie_in_the_record_and_others_in_read_only_blobs_named_by_their_sha256(store):
    commit(store, "a", FILES)
    record = found(store, "a").record
    assert set(record.inline) == {"small", "empty"}
    blob = blob_of(store, "a", "big")
    assert blob.name == digest_bytes(FILES["big"])
    assert blob.read_bytes() == FILES["big"]
    assert stat.S_IMODE(blob.stat().st_mode) == 0o444
    assert stat.S_IMODE(record_of(store, "a").stat().st_mode) == 0o444


def test_more_small_files_than_a_record_holds_become_blobs(store):
    many = {f"f{number:03}": bytes([number]) * 4000 for number in range(12)}
    record = commit(store, "a", many).record
    assert sum(map(len, record.inline.values())) <= local_store.INLINE_TOTAL_BYTES
    assert len(record.blobs()) == 12 - len(record.inline) > 0
    assert contents(store, record) == many
    hundreds = {f"f{number:03}": b"%d" % number for number in range(300)}
    assert contents(store, commit(store, "b", hundreds).record) == hundreds


def test_symlinks_and_the_executable_bit_are_kept(store):
    staging = store.new_staging("x")
    fill(staging, {"tool": b"t" * BIG, "script": b"#!"})
    Path(staging, "tool").chmod(0o755)
    Path(staging, "script").chmod(0o755)
    Path(staging, "alias").symlink_to("tool")
    tree, _ = store.take_in(staging)
    kept = {entry.path: (entry.executable, entry.link_to) for entry in tree.entries}
    assert kept == {"alias": (False, "tool"), "script": (True, None), "tool": (True, None)}


def test_a_folder_with_what_can_not_be_kept_is_refused_and_leaves_nothing(store):
    staging = store.new_staging("x")
    fill(staging, FILES)
    Path(staging, "out").symlink_to("/etc/passwd")
    with pytest.raises(InvalidInput):
        store.take_in(staging)
    assert os.listdir(store.places.blobs) == []


def test_equal_bytes_are_kept_once_and_the_blob_is_young_again(store):
    commit(store, "a", {"x": b"b" * BIG})
    blob = blob_of(store, "a", "x")
    os.utime(blob, (1, 1))
    before = blob.stat()
    commit(store, "b", {"y": b"b" * BIG, "z": b"b" * BIG})
    assert blob.stat().st_ino == before.st_ino
    assert blob.stat().st_mtime > 1
    assert len([path for path in Path(store.places.blobs).rglob("*") if path.is_file()]) == 1


def test_the_first_writer_wins_and_the_second_learns_of_it(store):
    first = commit(store, "a", {"x": b"1" * BIG})
    second = commit(store, "a", {"x": b"2" * BIG})
    assert not second.is_ours
    assert second.record.digest == first.record.digest
    assert second.before is not None
    assert contents(store, found(store, "a").record) == {"x": b"1" * BIG}


def test_a_writer_that_is_told_to_replaces_what_was_there(store):
    first = commit(store, "a", {"x": b"1" * BIG})
    second = commit(store, "a", {"x": b"2" * BIG}, replace=True)
    assert second.is_ours
    assert second.before is not None
    assert second.before.digest == first.record.digest
    assert contents(store, found(store, "a").record) == {"x": b"2" * BIG}


def test_a_result_whose_bytes_are_lost_is_replaced_without_being_told(store):
    commit(store, "a", {"x": b"1" * BIG})
    blob_of(store, "a", "x").unlink()
    assert found(store, "a").lost == ("x",)
    assert commit(store, "a", {"x": b"2" * BIG}).is_ours
    assert contents(store, found(store, "a").record) == {"x": b"2" * BIG}


def test_use_is_noted_at_most_hourly(tmp_path):
    clock = clock_of_now()
    store = make_store(tmp_path, clock=clock)
    commit(store, "a", FILES)
    used_s = record_of(store, "a").stat().st_mtime
    clock.advance(3000)
    found(store, "a")
    assert record_of(store, "a").stat().st_mtime == used_s
    clock.advance(1000)
    found(store, "a")
    assert record_of(store, "a").stat().st_mtime == pytest.approx(clock.wall_s())


def test_to_peek_or_to_verify_is_not_to_use(tmp_path):
    clock = clock_of_now()
    store = make_store(tmp_path, clock=clock)
    commit(store, "a", FILES)
    used_s = record_of(store, "a").stat().st_mtime
    clock.advance(10_000)
    assert isinstance(store.peek(key_of("a")), Record)
    assert isinstance(store.verify_record(key_of("a")), RecordHit)
    assert record_of(store, "a").stat().st_mtime == used_s


def test_a_blob_that_looks_the_same_is_not_hashed_again(store, monkeypatch):
    commit(store, "a", FILES)
    hashed: list[str] = []

    def watched(path: str, _heed=None):
        hashed.append(path)
        return hash_file(path)

    monkeypatch.setattr(local_store, "hash_file", watched)
    monkeypatch.setattr(local_store, "hash_afresh", watched)
    assert found(store, "a").has_bytes
    assert hashed == []
    os.utime(blob_of(store, "a", "big"))
    assert found(store, "a").has_bytes
    assert hashed == [str(blob_of(store, "a", "big"))]
    assert isinstance(store.verify_record(key_of("a")), RecordHit)
    assert len(hashed) == 3


def test_verifying_hashes_even_what_the_memo_vouches_for(store):
    record = commit(store, "a", {"x": b"1" * BIG}).record
    blob = blob_of(store, "a", "x")
    blob.chmod(0o644)
    blob.write_bytes(b"2" * BIG)
    # A memo that lies: somebody wrote down that these bytes had been checked.
    digest = record.tree.entries[0].sha256
    store.memo.remember(digest, stamp_of(blob.lstat()), digest)
    assert found(store, "a").has_bytes
    outcome = store.verify_record(key_of("a"))
    assert isinstance(outcome, RecordHit)
    assert outcome.lost == ("x",)


def test_verifying_finds_a_record_that_contradicts_itself(store):
    tree, inline, _ = stage_and_take_in(store, {"x": b"1"})
    good = Record.of(key=key_of("a"), tree=tree, inline=inline, body={})
    for number, bad in enumerate(
        (
            Record.of(key=key_of("a"), tree=tree, inline={"x": b"2"}, body={}),
            Record(
                key=good.key,
                digest=digest_bytes(b"another tree"),
                flags="-",
                contents=good._contents,
                body_text=b"{}",
                inline_bytes=b"1",
            ),
        ),
        start=1,
    ):
        store.publish(bad)
        outcome = store.verify_record(key_of("a"))
        assert isinstance(outcome, RecordMiss)
        assert outcome.damage
        assert len(quarantined(store)) == number


def test_reading_one_file_checks_it_and_says_what_is_wrong(store):
    record = commit(store, "a", FILES).record
    assert store.read_bytes(record, "small") == b"s"
    assert store.read_bytes(record, "big") == FILES["big"]
    with pytest.raises(NotFound, match="nothing-like-it"):
        store.read_bytes(record, "nothing-like-it")
    blob_of(store, "a", "big").unlink()
    with pytest.raises(CorruptBytes, match="big: its bytes are gone"):
        store.read_bytes(record, "big")


def test_every_staging_folder_is_new_also_between_stores_of_one_process(tmp_path):
    one, two = make_store(tmp_path), make_store(tmp_path)
    folders = [store.new_staging("same.name") for store in (one, two, one, two)]
    assert len(set(folders)) == 4
    assert all(os.listdir(folder) == [] for folder in folders)


def test_what_a_dead_process_of_our_number_left_in_staging_is_not_mistaken_for_ours(store):
    pid, count, name = os.path.basename(store.new_staging("n")).removeprefix(".").split(".")
    stale = Path(store.places.staging, f".{pid}.{int(count) + 1}.{name}")
    fill(stale, {"old/file": b"1"})
    assert store.new_staging("n") == str(stale)
    assert os.listdir(stale) == []


def test_a_file_with_another_name_outside_is_copied_so_that_its_owner_keeps_it(store, tmp_path):
    mine = tmp_path / "mine"
    mine.write_bytes(b"m" * BIG)
    mine.chmod(0o644)
    staging = store.new_staging("x")
    os.link(mine, os.path.join(staging, "out"))
    tree, inline = store.take_in(staging)
    store.publish(Record.of(key=key_of("a"), tree=tree, inline=inline, body={}))
    assert stat.S_IMODE(mine.stat().st_mode) == 0o644
    mine.write_bytes(b"changed")
    assert contents(store, found(store, "a").record) == {"out": b"m" * BIG}


def test_a_file_that_is_still_written_to_while_it_is_taken_in_is_refused(tmp_path):
    staged: list[str] = []

    def still_write(step: str) -> None:
        if step == "keep_blob":
            with open(os.path.join(staged[0], "out"), "r+b") as file:
                file.write(b"!")

    store = make_store(tmp_path, on_step=still_write)
    staging = store.new_staging("x")
    staged.append(staging)
    fill(staging, {"out": b"o" * BIG})
    os.utime(os.path.join(staging, "out"), (5, 5))
    with pytest.raises(CorruptBytes, match="out changed while it was taken in"):
        store.take_in(staging)
    assert not Path(store.places.blob(digest_bytes(b"o" * BIG))).exists()


def test_a_file_that_is_written_to_at_the_very_last_moment_is_hashed_by_whoever_reads_it(tmp_path):
    staged: list[str] = []

    def still_write(step: str) -> None:
        if step == "rename":
            Path(staged[0], "out").write_bytes(b"!" * BIG)

    store = make_store(tmp_path, on_step=still_write)
    staged.append(store.new_staging("x"))
    fill(staged[0], {"out": b"o" * BIG})
    os.utime(Path(staged[0], "out"), (5, 5))
    tree, inline = store.take_in(staged[0])
    staged[0] = str(tmp_path)
    store.publish(Record.of(key=key_of("a"), tree=tree, inline=inline, body={}))
    assert found(store, "a").lost == ("out",)
    assert len(quarantined(store)) == 1


def test_a_blob_that_is_pruned_between_the_look_and_the_touch_is_brought_in_again(tmp_path, monkeypatch):
    store = make_store(tmp_path)
    commit(store, "a", {"x": b"1" * BIG})
    blob = blob_of(store, "a", "x")
    really = store.holds

    def pruned_just_after(entry):
        is_here = really(entry)
        blob.unlink(missing_ok=True)
        return is_here

    monkeypatch.setattr(store, "holds", pruned_just_after)
    commit(store, "b", {"y": b"1" * BIG})
    monkeypatch.undo()
    assert contents(store, found(store, "b").record) == {"y": b"1" * BIG}


def test_a_good_blob_that_came_in_while_a_bad_one_was_hashed_is_not_set_aside(tmp_path, monkeypatch):
    store = make_store(tmp_path)
    commit(store, "a", {"x": b"1" * BIG})
    blob = blob_of(store, "a", "x")
    blob.unlink()
    blob.write_bytes(b"2" * BIG)
    really = hash_file

    def replaced_meanwhile(path: str):
        result = really(path)
        fill(tmp_path, {"good": b"1" * BIG})
        os.rename(tmp_path / "good", blob)
        return result

    monkeypatch.setattr(local_store, "hash_file", replaced_meanwhile)
    store.lookup(key_of("a"))
    monkeypatch.setattr(local_store, "hash_file", really)
    assert found(store, "a").has_bytes


def test_a_store_moved_elsewhere_still_has_everything(tmp_path):
    store = make_store(tmp_path / "one")
    commit(store, "a", FILES)
    store.close()
    os.rename(tmp_path / "one", tmp_path / "two")
    store = make_store(tmp_path / "two")
    assert contents(store, found(store, "a").record) == FILES


def test_a_record_that_is_renewed_stays_for_whoever_meant_to_take_it_before(tmp_path):
    store = make_store(tmp_path)
    record = commit(store, "a", {"x": b"1" * BIG}).record
    used_s = record_of(store, "a").stat().st_mtime
    assert store.renew_record(key_of("a"))
    assert not store.swap(record, record.without_bytes(), used_s=used_s)
    assert found(store, "a").has_bytes
    assert store.swap(record, record.without_bytes(), used_s=record_of(store, "a").stat().st_mtime)


def test_a_record_is_renewed_to_a_later_time_even_by_a_clock_that_was_set_back(tmp_path):
    store = make_store(tmp_path, clock=FakeClock(start_s=1000.0))
    commit(store, "a", {"x": b"1"})
    for _ in range(3):
        before_s = record_of(store, "a").stat().st_mtime
        assert store.renew_record(key_of("a"))
        assert record_of(store, "a").stat().st_mtime > before_s


def test_what_is_missing_damaged_or_a_tombstone_is_not_renewed(tmp_path):
    store = make_store(tmp_path)
    assert not store.renew_record(key_of("a"))
    record = commit(store, "a", {"x": b"1" * BIG}).record
    store.swap(record, record.without_bytes())
    assert not store.renew_record(key_of("a"))
    commit(store, "b", {"x": b"1"})
    os.truncate(record_of(store, "b"), 10)
    assert not store.renew_record(key_of("b"))
