from __future__ import annotations

import os
import socket
import stat
import time
from pathlib import Path

import pytest

from stoker.core.digests import digest_bytes
from stoker.core.errors import BadInput, InvalidArchive, InvalidInput, LocalFile, NoSpace, Refused
from stoker.store import put as store_put
from stoker.store.archives.pack import pack
from stoker.store.local_store import LocalStore
from stoker.store.prune import resolve
from stoker.store.put import PutRequest, StoredTree, StoreWriter, put_key, read_index, survey
from stoker.store.refs import find_ref, list_refs
from stoker.store.results import SIDECAR, ResultPart, lay_out
from stoker.store.trees import scan_tree
from tests.unit.store.hostile_archives import file, folder_sources, tar
from tests.unit.store.real_stores import (
    BIG,
    clock_of_now,
    commit,
    contents,
    files_below,
    fill,
    make_store,
    put_contents,
    put_in,
    quarantined,
)

FILES = {"big": b"b" * BIG, "deep/er/other": b"o" * BIG, "small": b"s", "empty": b"", "deep/copy": b"b" * BIG}


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "store")


@pytest.fixture
def folder(tmp_path):
    fill(tmp_path / "data", FILES)
    return tmp_path / "data"


def staged(store: LocalStore) -> list[str]:
    return os.listdir(store.places.staging)


def blobs(store: LocalStore) -> set[str]:
    return {path.name for path in Path(store.places.blobs).rglob("*") if path.is_file()}


def test_a_folder_is_put_and_can_be_read_back_and_the_users_own_is_untouched(store, folder):
    looked = {path: (path.stat().st_ino, path.stat().st_mtime_ns, path.stat().st_mode) for path in folder.rglob("*")}
    done = put_in(store, folder, "data")
    assert put_contents(store, "data") == FILES
    assert done.ref.digest == scan_tree(str(folder)).digest()
    assert done.ref.key == put_key(done.ref.digest)
    assert (done.ref.files, done.ref.size_bytes, done.is_known) == (5, 3 * BIG + 1, False)
    # Two files are the same, so one of them is new.
    assert done.added_bytes == 2 * BIG + 1
    assert {
        path: (path.stat().st_ino, path.stat().st_mtime_ns, path.stat().st_mode) for path in folder.rglob("*")
    } == looked
    assert files_below(folder) == FILES
    assert staged(store) == []


def test_a_file_is_a_tree_of_one(store, folder):
    (folder / "run.sh").write_bytes(b"#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (entry,) = resolve_tree(store, put_in(store, folder / "run.sh", "run"))
    assert (entry.path, entry.executable, entry.size_bytes) == ("run.sh", True, 10)
    assert put_contents(store, "run") == {"run.sh": b"#!/bin/sh\n"}


def resolve_tree(store: LocalStore, done: StoredTree):
    (record,) = resolve(store, done.ref.name)
    return record.tree.entries


def test_what_was_given_out_has_the_same_digest_when_it_is_put(store, folder, tmp_path):
    put = put_in(store, folder, "data")
    record = resolve(store, "data")[0]
    out = tmp_path / "out"
    lay_out(store, [ResultPart(record=record, folder="", sidecar={})], str(out))
    assert (out / SIDECAR).exists()
    again = put_in(store, out, "again")
    assert (again.ref.digest, again.is_known) == (put.ref.digest, True)


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"null", b"\xff", b'{"v": 1, "artifacts": 0, "files": {}}'])
def test_a_file_of_the_users_that_is_only_called_like_our_list_is_put(store, folder, text):
    (folder / SIDECAR).write_bytes(text)
    put_in(store, folder, "data")
    assert put_contents(store, "data") == {**FILES, SIDECAR: text}


def test_our_list_is_left_out_at_the_top_alone(store, folder):
    text = b'{"v": 1, "artifacts": [], "files": {}}'
    fill(folder, {SIDECAR: text, f"deep/{SIDECAR}": text})
    put_in(store, folder, "data")
    assert put_contents(store, "data") == {**FILES, f"deep/{SIDECAR}": text}


def test_blobs_are_read_only_and_copies_of_their_own(store, folder):
    put_in(store, folder, "data")
    for path in Path(store.places.blobs).rglob("*"):
        if path.is_file():
            assert stat.S_IMODE(path.stat().st_mode) == 0o444
            assert path.stat().st_nlink == 1
    (folder / "big").write_bytes(b"changed")
    assert put_contents(store, "data") == FILES


def test_the_same_content_again_adds_nothing_whatever_it_is_called_and_wherever_it_lies(store, folder, tmp_path):
    first = put_in(store, folder, "data")
    before = blobs(store)
    fill(tmp_path / "elsewhere", FILES)
    for path, name in ((folder, "data"), (tmp_path / "elsewhere", "again")):
        done = put_in(store, path, name)
        assert (done.is_known, done.added_bytes) == (True, 0)
        assert done.ref.digest == first.ref.digest
    assert blobs(store) == before
    assert [row.fields["added_bytes"] for row in read_index(store.places)] == [2 * BIG + 1, 0, 0]


def test_every_put_is_one_row_of_the_index(store, folder):
    put_in(store, folder, "data")
    (row,) = read_index(store.places)
    ref = find_ref(store.places, "data")
    assert ref is not None
    assert row.fields == {"did": "put", **ref.to_json(), "added_bytes": 2 * BIG + 1, "source": str(folder)}


def test_a_file_that_is_known_and_looks_the_same_is_not_read_again(store, folder, monkeypatch):
    for path in folder.rglob("*"):
        os.utime(path, (1000, 1000))
    # What changed a moment ago may change again without showing it, so the clock stands a while after.
    clock = clock_of_now()
    put_in(store, folder / "big", "big", clock=clock)
    told: list[int] = []
    monkeypatch.setattr(store_put, "open_regular", lambda path: pytest.fail(f"{path} was read"))
    done = StoreWriter(store, clock=clock, heed=told.append).put(survey(str(folder / "big")), PutRequest(name="big"))
    assert done.is_known
    assert told == [BIG]


def test_a_known_file_that_was_changed_within_its_times_but_not_its_ctime_is_read(store, folder):
    put_in(store, folder / "big", "big")
    info = (folder / "big").stat()
    (folder / "big").write_bytes(b"c" * BIG)
    os.utime(folder / "big", ns=(info.st_atime_ns, info.st_mtime_ns))
    put_in(store, folder / "big", "changed")
    assert put_contents(store, "changed") == {"big": b"c" * BIG}


def test_every_byte_is_told_of(store, folder):
    told: list[int] = []
    looked = survey(str(folder))
    StoreWriter(store, clock=clock_of_now(), heed=told.append).put(looked, PutRequest(name="data"))
    assert sum(told) == looked.size_bytes == 3 * BIG + 1


def test_links_within_are_kept_as_text_and_the_path_itself_may_be_one(store, folder, tmp_path):
    os.symlink("../big", folder / "deep" / "link")
    os.symlink(folder, tmp_path / "way")
    put_in(store, tmp_path / "way", "data")
    (record,) = resolve(store, "data")
    assert {entry.path: entry.link_to for entry in record.tree.entries if entry.link_to} == {"deep/link": "../big"}
    os.symlink(folder / "big", tmp_path / "file-way")
    put_in(store, tmp_path / "file-way", "file")
    assert put_contents(store, "file") == {"file-way": b"b" * BIG}


def test_everything_that_cant_be_kept_is_named_at_once_and_nothing_is_read(store, folder, tmp_path, monkeypatch):
    os.mkfifo(folder / "pipe")
    os.symlink("/etc/passwd", folder / "out")
    os.symlink("../../elsewhere", folder / "deep" / "up")
    os.mkdir(os.fsencode(folder) + b"/\xff")
    (folder / os.fsdecode(b"\xff") / "f").write_bytes(b"")
    (folder / os.fsdecode(b"bad\xfe")).write_bytes(b"")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(folder)
        server.bind("socket")
    with pytest.raises(InvalidInput) as caught:
        survey(str(folder))
    assert sorted(fault.where for fault in caught.value.faults) == sorted(
        ["deep/up", "out", "pipe", "socket", repr("bad\udcfe"), repr("\udcff")]
    )
    assert blobs(store) == set()


def test_what_is_neither_a_file_nor_a_folder_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LocalFile, match="neither a file nor a folder"):
        survey(str(tmp_path / "pipe"))
    with pytest.raises(LocalFile, match="no such file"):
        survey(str(tmp_path / "missing"))
    with pytest.raises(LocalFile, match="neither a file nor a folder"):
        survey("/dev/null")


def test_a_store_is_not_put_into_itself(store, tmp_path):
    for path in (tmp_path, store.places.root, store.places.blobs):
        with pytest.raises(Refused, match="are inside one another"):
            put_in(store, path, "x")
    assert staged(store) == []


def test_a_bad_name_is_refused_before_anything_is_read(store, folder, monkeypatch):
    monkeypatch.setattr(store_put, "open_regular", lambda path: pytest.fail("it was read"))
    with pytest.raises(BadInput):
        put_in(store, folder, "a/b")


def test_a_taken_name_is_refused_and_leaves_no_record_behind(store, folder):
    put_in(store, folder / "big", "data")
    with pytest.raises(Refused, match="already belongs to another tree"):
        put_in(store, folder, "data")
    assert put_contents(store, "data") == {"big": b"b" * BIG}
    assert len(list(Path(store.places.records).rglob("?" * 64))) == 1
    done = put_in(store, folder, "data", replace=True)
    assert done.before is not None
    assert put_contents(store, "data") == FILES


class Meddler:
    """Does something once, when the first bytes have been read."""

    def __init__(self, act) -> None:
        self._act = act
        self._is_done = False

    def __call__(self, _size_bytes: int) -> None:
        if not self._is_done:
            self._is_done = True
            self._act()


def grow(folder: Path) -> None:
    with open(folder / "big", "ab") as file:
        file.write(b"more")


def rewrite(folder: Path) -> None:
    with open(folder / "big", "r+b") as file:
        file.write(b"other")


def shrink(folder: Path) -> None:
    os.truncate(folder / "big", 10)


def swap(folder: Path) -> None:
    (folder / "new").write_bytes(b"b" * BIG)
    os.replace(folder / "new", folder / "big")


@pytest.mark.parametrize("act", [grow, rewrite, shrink])
def test_a_file_that_changes_while_it_is_read_is_caught(store, folder, act):
    putting = StoreWriter(store, clock=clock_of_now(), heed=Meddler(lambda: act(folder)))
    with pytest.raises(Refused, match="big changed while it was read"):
        putting.put(survey(str(folder / "big")), PutRequest(name="big"))
    assert list_refs(store.places) == []
    assert staged(store) == []


@pytest.mark.parametrize(
    "act",
    [
        grow,
        rewrite,
        swap,
        lambda folder: (folder / "big").unlink(),
        lambda folder: (folder / "added").write_bytes(b"new"),
        lambda folder: (folder / "small").unlink(),
        lambda folder: (folder / "big").chmod(0o755),
        lambda folder: os.symlink("big", folder / "link"),
    ],
)
def test_a_folder_that_changes_while_it_is_read_is_caught_even_where_it_was_read_already(store, folder, act):
    putting = StoreWriter(store, clock=clock_of_now(), heed=Meddler(lambda: act(folder)))
    with pytest.raises((Refused, LocalFile)):
        putting.put(survey(str(folder)), PutRequest(name="data"))
    assert list_refs(store.places) == []
    assert staged(store) == []
    assert quarantined(store) == []


def test_a_file_that_changed_between_the_look_and_the_reading_is_caught(store, folder):
    looked = survey(str(folder / "big"))
    rewrite(folder)
    with pytest.raises(Refused, match="changed while it was read"):
        StoreWriter(store, clock=clock_of_now(), heed=lambda _: None).put(looked, PutRequest(name="big"))


def test_whatever_ends_it_leaves_staging_empty(store, folder):
    def stop(_size_bytes: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        StoreWriter(store, clock=clock_of_now(), heed=stop).put(survey(str(folder)), PutRequest(name="data"))
    assert staged(store) == []
    assert blobs(store) == set()
    assert put_in(store, folder, "data").added_bytes == 2 * BIG + 1


def test_a_disk_that_cant_hold_it_is_named_before_it_is_filled(store, folder, monkeypatch):
    monkeypatch.setattr(store_put, "free_bytes", lambda path: 3 * BIG)
    with pytest.raises(NoSpace, match=r"14\.6 KiB needed, 14\.6 KiB free") as caught:
        put_in(store, folder, "data")
    assert caught.value.exit_code == 10
    assert staged(store) == []


def test_bytes_that_a_result_has_already_are_shared_with_it(store, folder):
    commit(store, "result", {"x": b"b" * BIG})
    assert put_in(store, folder / "big", "big").added_bytes == 0
    assert len(blobs(store)) == 1


def test_a_damaged_blob_is_repaired_by_putting_the_same_again(store, folder):
    done = put_in(store, folder / "big", "big")
    (blob,) = (path for path in Path(store.places.blobs).rglob("*") if path.is_file())
    blob.chmod(0o644)
    blob.write_bytes(b"x" * BIG)
    assert put_in(store, folder / "big", "big").added_bytes == BIG
    assert put_contents(store, "big") == {"big": b"b" * BIG}
    assert find_ref(store.places, "big") == done.ref
    assert len(quarantined(store)) == 1


def test_bytes_that_go_between_the_look_and_the_record_are_copied_after_all(store, folder, monkeypatch):
    commit(store, "result", {"x": b"b" * BIG, "y": b"o" * BIG})
    held = sorted(path for path in Path(store.places.blobs).rglob("*") if path.is_file())
    really = store.renew

    def pruned_just_before(entry) -> bool:
        for path in held:
            path.unlink(missing_ok=True)
        held.clear()
        return really(entry)

    monkeypatch.setattr(store, "renew", pruned_just_before)
    done = put_in(store, folder, "data")
    monkeypatch.undo()
    assert put_contents(store, "data") == FILES
    assert done.added_bytes == 2 * BIG + 1
    assert files_below(folder) == FILES


def test_a_thing_that_was_pruned_comes_back_when_it_is_put_again(store, folder):
    from stoker.store.prune import candidates, carry_out, decide_prune

    put_in(store, folder, "data")
    all_of_it = candidates(store, kept=lambda key: "", label=lambda record: "")
    carry_out(store, decide_prune(all_of_it, now_s=time.time(), max_bytes=0, older_than_s=None), clock=clock_of_now())
    assert blobs(store) == set()
    assert put_in(store, folder, "data").added_bytes == 2 * BIG + 1
    assert put_contents(store, "data") == FILES


def test_many_small_files_are_kept_whole_inline_or_not(store, tmp_path):
    files = {f"{number % 7}/{number}": b"%d" % number * (number % 90) for number in range(400)}
    fill(tmp_path / "many", files)
    done = put_in(store, tmp_path / "many", "many")
    assert put_contents(store, "many") == files
    distinct = {data for data in files.values() if data}
    assert len(b"".join(distinct)) <= done.added_bytes <= done.ref.size_bytes
    assert put_in(store, tmp_path / "many", "many").added_bytes == 0


def archive_of(folder: Path, path: Path) -> None:
    with open(path, "wb") as sink:
        pack(folder_sources(str(folder)), sink)


def test_an_archive_is_taken_in_as_what_it_holds(store, folder, tmp_path):
    os.symlink("big", folder / "link")
    archive_of(folder, tmp_path / "a.tar.zst")
    told: list[int] = []
    putting = StoreWriter(store, clock=clock_of_now(), heed=told.append)
    done = putting.put_unpacked(str(tmp_path / "a.tar.zst"), PutRequest(name="data"))
    assert sum(told) == (tmp_path / "a.tar.zst").stat().st_size
    assert put_contents(store, "data") == FILES
    assert (done.is_known, done.added_bytes) == (False, 2 * BIG + 1)
    assert done.archive_sha256 == digest_bytes((tmp_path / "a.tar.zst").read_bytes())
    again = put_in(store, folder, "the-folder")
    assert again.is_known
    assert again.ref.digest == done.ref.digest
    assert staged(store) == []


def test_what_an_archive_holds_is_not_hashed_again_once_it_is_in(store, folder, tmp_path):
    archive_of(folder, tmp_path / "a.tar.zst")
    StoreWriter(store, clock=clock_of_now(), heed=lambda _: None).put_unpacked(
        str(tmp_path / "a.tar.zst"), PutRequest(name="data")
    )
    hashed = []
    store.memo.remember = lambda *args: hashed.append(args)
    (record,) = resolve(store, "data")
    assert all(store.holds(entry) for entry in record.blobs())
    assert hashed == []


@pytest.mark.parametrize(
    "archive",
    [b"not an archive" * 100, tar(file("good", b"g" * BIG), file("../evil"))],
    ids=["none", "one with a fault"],
)
def test_an_archive_that_is_refused_leaves_nothing(store, tmp_path, archive):
    (tmp_path / "a.tar.zst").write_bytes(archive)
    with pytest.raises(InvalidArchive):
        StoreWriter(store, clock=clock_of_now(), heed=lambda _: None).put_unpacked(
            str(tmp_path / "a.tar.zst"), PutRequest(name="x")
        )
    assert (staged(store), blobs(store), list_refs(store.places)) == ([], set(), [])


def test_what_was_put_is_never_mistaken_for_a_result(store, folder):
    done = put_in(store, folder, "data")
    (record,) = resolve(store, "data")
    assert record.body["stage"] == "put"
    assert record.key != done.ref.digest
    assert contents(store, record) == FILES


@pytest.mark.parametrize("had_one", [True, False])
def test_a_thing_that_is_pruned_as_often_as_it_is_put_leaves_the_name_as_it_was(store, folder, monkeypatch, had_one):
    earlier = put_in(store, folder / "small", "data").ref if had_one else None
    monkeypatch.setattr(store, "renew_record", lambda key: False)
    with pytest.raises(Refused, match="was pruned each time it was stored"):
        put_in(store, folder, "data", replace=True)
    assert find_ref(store.places, "data") == earlier
    assert staged(store) == []
