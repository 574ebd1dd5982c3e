"""Packing: one tree, one archive, whoever packs it, when, and how."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from stoker.core.digests import Digest, TreeEntry, digest_bytes
from stoker.core.errors import CorruptBytes, InvalidArchive, InvalidInput, LocalFile
from stoker.host.durable import stamp_of
from stoker.store.archives.pack import LEVEL, BundlePacker, PackSource, pack
from stoker.store.archives.tar import head_of, padding, tar_bytes
from stoker.store.trees import hash_file, scan_tree
from tests.unit.store.hostile_archives import folder_sources, packed
from tests.unit.store.real_stores import fill

GOLDEN = json.loads(Path(__file__).parents[2].joinpath("golden", "bundles.json").read_text("utf-8"))
FILES = {"model.bin": bytes(range(256)) * 5000, "notes/read me.txt": b"hello\n", "empty": b"", "run.sh": b"#!/bin/sh\n"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    fill(top, FILES)
    (top / "run.sh").chmod(0o755)
    (top / "latest").symlink_to("notes/read me.txt")
    return top


def plain_tar(archive: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj().decompress(archive)


# --- what is in it ----------------------------------------------------------------------------


def test_a_bundle_is_named_by_its_tree(tree: Path) -> None:
    bundle, archive = packed(tree)
    scanned = scan_tree(str(tree))
    assert bundle.tree_digest == scanned.digest()
    assert bundle.size_bytes == scanned.size_bytes
    assert (bundle.archive_sha256, bundle.archive_bytes) == (digest_bytes(archive), len(archive))
    assert bundle.level == LEVEL == 1
    assert ".".join(map(str, zstandard.ZSTD_VERSION)) in bundle.made_by


def test_other_programs_read_it(tree: Path, tmp_path: Path) -> None:
    _, archive = packed(tree)
    with tarfile.open(fileobj=io.BytesIO(plain_tar(archive))) as read:
        members = {member.name: member for member in read}
        contents = {name: read.extractfile(name).read() for name in FILES}  # type: ignore[union-attr]
    assert list(members) == sorted(members)
    assert contents == FILES
    assert members["latest"].linkname == "notes/read me.txt"
    assert {member.mode for member in members.values() if member.isreg()} == {0o644, 0o755}
    assert {(member.mtime, member.uid, member.gid, member.uname, member.gname) for member in members.values()} == {
        (0, 0, 0, "", "")
    }
    (tmp_path / "it.tar.zst").write_bytes(archive)
    (tmp_path / "out").mkdir()
    subprocess.run(["tar", "--zstd", "-xf", "it.tar.zst", "-C", "out"], cwd=tmp_path, check=True)
    assert scan_tree(str(tmp_path / "out")) == scan_tree(str(tree))


def test_the_frame_says_its_size_and_has_a_checksum(tree: Path) -> None:
    _, archive = packed(tree)
    about = zstandard.get_frame_parameters(archive)
    assert about.content_size == len(plain_tar(archive))
    assert about.has_checksum
    assert about.dict_id == 0


@pytest.mark.parametrize(
    "path", ["short", "a" * 100, "a" * 101, "d/" * 60 + "deep", "größe", "Ω/" + "x" * 250, "a" * 255 + "/" + "b" * 255]
)
def test_every_name_that_may_be_comes_back_from_other_programs(path: str, tmp_path: Path) -> None:
    fill(tmp_path / "tree", {path: b"content"})
    (tmp_path / "tree" / "link").symlink_to(path)
    _, archive = packed(tmp_path / "tree")
    with tarfile.open(fileobj=io.BytesIO(plain_tar(archive))) as read:
        members = {member.name: member for member in read}
    assert set(members) == {path, "link"}
    assert members["link"].linkname == path
    # A header of its own only where it is needed.
    assert (plain_tar(archive).count(b"PaxHeader") == 0) is (len(path.encode()) <= 100 and path.isascii())


def test_a_size_that_fits_no_plain_header_is_told_in_another(tmp_path: Path) -> None:
    for size_bytes, has_more in (((8 << 30) - 1, False), (8 << 30, True), (9 << 40, True)):
        head = head_of(TreeEntry("large", size_bytes, Digest("0" * 64)))
        assert (len(head) > 512) is has_more
        read = tarfile.TarFile.open(fileobj=io.BytesIO(head + bytes(1024)))
        member = read.next()
        assert member is not None
        assert member.size == size_bytes
        read.close()


def test_the_size_of_a_tar_is_known_before_it_is_made(tree: Path) -> None:
    _, archive = packed(tree)
    assert tar_bytes(scan_tree(str(tree)).entries) == len(plain_tar(archive))
    assert [len(padding(size)) for size in (0, 1, 511, 512, 513)] == [0, 511, 1, 0, 511]


def test_nothing_packs_as_well(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    bundle, archive = packed(tmp_path / "tree")
    assert bundle.size_bytes == 0
    assert plain_tar(archive) == bytes(1024)


# --- the same bytes ---------------------------------------------------------------------------


def some_data() -> bytes:
    numbers = random.Random(3)
    words = b"".join(b"step %d loss %.3f\n" % (number, numbers.random()) for number in range(60_000))
    return words + numbers.randbytes(3_000_000) + bytes(2_000_000) + words


@pytest.mark.parametrize("size_bytes", [0, 1, 100_000, 600_000, 8_000_000])
def test_the_number_of_workers_changes_no_byte(size_bytes: int, tmp_path: Path) -> None:
    fill(tmp_path / "tree", {"data": some_data()[:size_bytes], "other": b"x" * 1000})
    archives = {packed(tmp_path / "tree", workers=workers)[1] for workers in (1, 2, 4)}
    assert len(archives) == 1


def test_no_worker_at_all_would_change_bytes() -> None:
    """Why one is always asked for: the other way of the library is another compression."""
    data = some_data()

    def compressed(workers: int) -> bytes:
        settings = zstandard.ZstdCompressionParameters.from_level(LEVEL, threads=workers, write_checksum=True)
        return zstandard.ZstdCompressor(compression_params=settings).compress(data)

    assert compressed(0) != compressed(1) == compressed(2)


def test_how_the_bytes_are_handed_over_changes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "tree", {"data": some_data()})
    expected = packed(tmp_path / "tree")
    for block_bytes in (4096, 100_001, 1 << 24):
        monkeypatch.setattr("stoker.store.archives.pack._BLOCK_BYTES", block_bytes)
        assert packed(tmp_path / "tree") == expected


def test_times_owners_modes_and_the_order_of_making_change_no_byte(tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "latest").symlink_to("notes/read me.txt")
    for path in reversed(list(FILES)):
        fill(other, {path: FILES[path]})
        os.utime(other / path, (1, 1))
        (other / path).chmod(0o600)
    (other / "run.sh").chmod(0o700)
    (other / "an empty folder").mkdir()
    assert packed(other) == packed(tree)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["name"])
def test_golden_bundles_are_what_they_were(golden: dict, tmp_path: Path) -> None:
    top = tmp_path / "tree"
    top.mkdir()
    for entry in golden["entries"]:
        path = top / entry["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        if "link" in entry:
            path.symlink_to(entry["link"])
        else:
            path.write_bytes(entry["text"].encode() * entry.get("times", 1))
            path.chmod(0o755 if entry.get("executable") else 0o644)
    bundle, archive = packed(top)
    assert bundle.tree_digest == golden["tree"]
    assert digest_bytes(plain_tar(archive)) == golden["tar"]
    version = ".".join(map(str, zstandard.ZSTD_VERSION))
    # Another library may compress otherwise; the tree and the tar are what counts then.
    assert bundle.archive_sha256 == golden["archive"].get(version, bundle.archive_sha256)


# --- files that are not what they were said to be ---------------------------------------------


class Spying:
    """A sink that does something once so many bytes have come."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act: Callable[[], object] | None = act

    def write(self, _block: bytes) -> None:
        act, self._act = self._act, None
        if act is not None:
            act()


def large(tmp_path: Path) -> Path:
    fill(tmp_path / "tree", {"data": random.Random(1).randbytes(20_000_000)})
    return tmp_path / "tree"


def test_a_file_that_changes_while_it_is_packed_is_refused(tmp_path: Path) -> None:
    top = large(tmp_path)
    changes: list[Callable[[], object]] = [
        lambda: os.truncate(top / "data", 20_000_001),
        lambda: os.truncate(top / "data", 1000),
        lambda: fill(top, {"data": bytes(20_000_000)}),
    ]
    for change in changes:
        for hasher in (None, hash_file):
            fill(top, {"data": random.Random(1).randbytes(20_000_000)})
            with pytest.raises(CorruptBytes, match="data"):
                pack(folder_sources(str(top), hasher=hasher), Spying(change))  # type: ignore[arg-type]


@pytest.mark.parametrize("hasher", [None, hash_file], ids=["hashed on the way", "hashed before"])
def test_a_file_that_changed_after_it_was_looked_at_is_refused(tree: Path, hasher: Callable | None) -> None:
    for change in (b"shorter", FILES["model.bin"] + b"longer", FILES["model.bin"][::-1]):
        fill(tree, {"model.bin": FILES["model.bin"]})
        sources = folder_sources(str(tree), hasher=hasher)
        fill(tree, {"model.bin": change})
        with pytest.raises(CorruptBytes, match=r"model\.bin"):
            pack(sources, io.BytesIO())


def test_a_file_that_is_gone_or_something_else_is_refused(tree: Path) -> None:
    sources = folder_sources(str(tree))
    (tree / "model.bin").unlink()
    with pytest.raises(LocalFile, match=r"model\.bin"):
        pack(sources, io.BytesIO())
    os.mkfifo(tree / "model.bin")
    with pytest.raises(LocalFile, match=r"model\.bin"):
        pack(sources, io.BytesIO())


def test_a_file_whose_times_alone_changed_is_packed(tree: Path) -> None:
    sources = folder_sources(str(tree), hasher=hash_file)
    os.utime(tree / "model.bin")
    assert pack(sources, io.BytesIO()).tree_digest == scan_tree(str(tree)).digest()


def test_a_file_whose_digest_is_known_is_not_hashed_again(tree: Path) -> None:
    """Seen by a digest that is not its own: nobody notices, and that is what knowing means."""
    known = Digest("a" * 64)
    sources = folder_sources(str(tree), hasher=lambda path: (known, os.path.getsize(path)))
    packing = BundlePacker(sources)
    assert b"".join(packing)
    assert {entry.sha256 for entry in packing.tree.entries if entry.link_to is None} == {known}


def test_a_digest_without_a_look_at_the_file_is_checked(tree: Path) -> None:
    entry = TreeEntry("model.bin", len(FILES["model.bin"]), digest_bytes(b"other"))
    with pytest.raises(CorruptBytes):
        pack([PackSource(entry=entry, path=str(tree / "model.bin"))], io.BytesIO())
    right = TreeEntry("model.bin", len(FILES["model.bin"]), digest_bytes(FILES["model.bin"]))
    assert pack([PackSource(entry=right, path=str(tree / "model.bin"))], io.BytesIO()).size_bytes == right.size_bytes


def test_bytes_that_are_handed_in_are_checked() -> None:
    entry = TreeEntry("small", 4, digest_bytes(b"good"))
    assert pack([PackSource(entry=entry, data=b"good")], io.BytesIO()).size_bytes == 4
    for data in (b"evil", b"goodness", b""):
        with pytest.raises(CorruptBytes):
            pack([PackSource(entry=entry, data=data)], io.BytesIO())


# --- what can't be packed ---------------------------------------------------------------------


def test_what_could_not_be_unpacked_everywhere_is_not_packed(tmp_path: Path) -> None:
    fill(tmp_path / "tree", {"Model": b"1", "model": b"2", "a:b": b"3", "nul.txt": b"4", "ok": b"5"})
    with pytest.raises(InvalidArchive) as refused:
        packed(tmp_path / "tree")
    assert {fault.where for fault in refused.value.faults} == {"model", "a:b", "nul.txt"}


def test_what_no_tree_can_keep_is_not_packed(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "out").symlink_to("/etc/passwd")
    with pytest.raises(InvalidInput):
        packed(tmp_path / "tree")


def test_an_archive_that_is_not_read_to_its_end_says_nothing_and_lets_go(tmp_path: Path) -> None:
    packing = BundlePacker(folder_sources(str(large(tmp_path))))
    assert next(iter(packing))
    with pytest.raises(ValueError, match="not been read"):
        _ = packing.bundle
    packing.close()
    assert not list(packing)


def test_a_stamp_is_how_the_file_looked(tree: Path) -> None:
    source = next(source for source in folder_sources(str(tree)) if source.entry.path == "model.bin")
    assert source.stamp == stamp_of(os.stat(tree / "model.bin"))
