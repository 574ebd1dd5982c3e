from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.core.errors import CorruptBytes
from stoker.store.archives.pack import write_bundle
from stoker.store.archives.unpack import unpack
from stoker.store.put import PutRequest, StoreWriter
from stoker.store.results import ResultPart
from tests.unit.store.hostile_archives import packed
from tests.unit.store.real_stores import (
    BIG,
    blob_of,
    clock_of_now,
    commit,
    files_below,
    fill,
    found,
    make_store,
    put_contents,
)

FILES = {"model.bin": b"m" * (3 * BIG), "twin.bin": b"m" * (3 * BIG), "notes": b"small", "deep/er/data": b"d" * BIG}


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "store")


def parts_of(store) -> list[ResultPart]:
    result = commit(store, "result", {"report": b"r" * BIG, "small": b"s"}).record
    trial = commit(store, "trial", {"model": b"m" * BIG}).record
    return [
        ResultPart(record=result, folder="", sidecar={}),
        ResultPart(record=trial, folder="lr=0.1/kept", sidecar={}),
    ]


def test_parts_are_packed_each_below_its_folder_and_unpack_to_the_same_tree(store, tmp_path):
    told: list[int] = []
    bundle = write_bundle(store, parts_of(store), str(tmp_path / "new" / "b.tar.zst"), heed=told.append)
    path = tmp_path / "new" / "b.tar.zst"
    assert sum(told) == path.stat().st_size == bundle.archive_bytes
    with open(path, "rb") as stream:
        unpacked = unpack(stream, str(tmp_path / "out"))
    assert unpacked.tree.digest() == bundle.tree_digest
    assert unpacked.archive_sha256 == bundle.archive_sha256
    assert files_below(tmp_path / "out") == {
        "report": b"r" * BIG,
        "small": b"s",
        "lr=0.1/kept/model": b"m" * BIG,
    }


def test_what_was_there_is_replaced_whole_or_stays(store, tmp_path):
    path = tmp_path / "b.tar.zst"
    path.write_bytes(b"earlier")
    parts = parts_of(store)

    def stop(_size_bytes: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_bundle(store, parts, str(path), heed=stop)
    assert path.read_bytes() == b"earlier"
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []
    write_bundle(store, parts, str(path), heed=lambda _: None)
    assert path.read_bytes() != b"earlier"


def test_bytes_that_are_gone_make_no_archive(store, tmp_path):
    parts = parts_of(store)
    Path(blob_of(store, "trial", "model")).unlink()
    with pytest.raises(CorruptBytes):
        write_bundle(store, parts, str(tmp_path / "b.tar.zst"), heed=lambda _: None)
    assert not (tmp_path / "b.tar.zst").exists()


def whole(store, record) -> list[ResultPart]:
    return [ResultPart(record=record, folder="", sidecar={})]


def put_archive(store, path: Path):
    putting = StoreWriter(store, clock=clock_of_now(), heed=lambda _: None)
    return putting.put_unpacked(str(path), PutRequest(name="data"))


def test_what_was_unpacked_is_written_again_as_the_same_bytes(store, tmp_path):
    fill(tmp_path / "tree", FILES)
    (tmp_path / "tree/link").symlink_to("deep/er")
    (tmp_path / "tree/notes").chmod(0o755)
    archive = packed(tmp_path / "tree")[1]
    (tmp_path / "a.tar.zst").write_bytes(archive)
    done = put_archive(store, tmp_path / "a.tar.zst")
    record = store.peek(done.ref.key)
    bundle = write_bundle(store, whole(store, record), str(tmp_path / "b.tar.zst"), heed=lambda _: None)
    assert (tmp_path / "b.tar.zst").read_bytes() == archive
    assert (bundle.tree_digest, bundle.archive_sha256) == (done.ref.digest, done.archive_sha256)


def test_any_result_goes_to_another_store_by_way_of_an_archive(store, tmp_path):
    record = commit(store, "result", FILES).record
    write_bundle(store, whole(store, record), str(tmp_path / "b.tar.zst"), heed=lambda _: None)
    other = make_store(tmp_path / "other")
    assert put_archive(other, tmp_path / "b.tar.zst").ref.digest == record.digest
    assert put_contents(other, "data") == FILES
    other.close()


def test_bytes_that_are_damaged_or_were_pruned_make_no_archive(store, tmp_path):
    record = commit(store, "result", FILES).record
    blob = Path(store.places.blob(record.blobs()[0].sha256))
    blob.chmod(0o644)
    blob.write_bytes(b"x" * blob.stat().st_size)
    with pytest.raises(CorruptBytes):
        write_bundle(store, whole(store, record), str(tmp_path / "b.tar.zst"), heed=lambda _: None)
    assert not blob.exists()
    with pytest.raises(CorruptBytes, match="pruned"):
        write_bundle(store, whole(store, record.without_bytes()), str(tmp_path / "b.tar.zst"), heed=lambda _: None)
    assert not (tmp_path / "b.tar.zst").exists()


class Once:
    """Acts when the first bytes are packed."""

    def __init__(self, act) -> None:
        self._act = act

    def __call__(self, _size_bytes: int) -> None:
        act, self._act = self._act, lambda: None
        act()


LARGE = os.urandom(20_000_000)


def test_a_blob_that_changes_while_it_is_packed_is_noticed(store, tmp_path):
    commit(store, "result", {"data": LARGE})
    blob = blob_of(store, "result", "data")

    def rot() -> None:
        blob.chmod(0o644)
        with blob.open("r+b") as file:
            file.write(b"rot")

    parts = whole(store, found(store, "result").record)
    with pytest.raises(CorruptBytes, match="changed while it was packed"):
        write_bundle(store, parts, str(tmp_path / "b.tar.zst"), heed=Once(rot))
    assert not (tmp_path / "b.tar.zst").exists()


@pytest.mark.parametrize("what", ["brought in again", "pruned"])
def test_a_blob_that_is_pruned_or_brought_in_again_while_it_is_packed_stays_whole(store, tmp_path, what):
    commit(store, "result", {"data": LARGE})
    blob = blob_of(store, "result", "data")
    parts = whole(store, found(store, "result").record)
    act = blob.unlink if what == "pruned" else lambda: commit(store, "another", {"data": LARGE})
    write_bundle(store, parts, str(tmp_path / "b.tar.zst"), heed=Once(act))
    fill(tmp_path / "tree", {"data": LARGE})
    assert (tmp_path / "b.tar.zst").read_bytes() == packed(tmp_path / "tree")[1]
