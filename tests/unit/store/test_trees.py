from __future__ import annotations

import hashlib
import json
import os
import random
import socket
from pathlib import Path

import pytest

from stoker.core.errors import InvalidInput, LocalFile
from stoker.host.durable import remove_tree
from stoker.store.trees import hash_file, scan_tree, walk_tree
from tests.unit.store.real_stores import fill

GOLDEN = json.loads(Path(__file__).parents[2].joinpath("golden", "trees.json").read_text())


@pytest.mark.parametrize("case", GOLDEN, ids=[case["name"] for case in GOLDEN])
def test_the_digests_of_trees_are_what_they_always_were(tmp_path, case):
    make_golden(tmp_path, case["entries"])
    tree = scan_tree(str(tmp_path))
    assert tree.digest() == case["digest"]
    assert [[entry.path, entry.sha256] for entry in tree.entries] == case["files"]


def make_golden(folder: Path, entries: list[dict]) -> None:
    for entry in entries:
        path = folder / entry["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        if "link" in entry:
            path.symlink_to(entry["link"])
            continue
        path.write_bytes(entry["text"].encode() * entry.get("times", 1))
        path.chmod(0o755 if entry.get("executable") else 0o644)


def test_a_file_has_the_plain_sha256_of_its_bytes_whatever_its_size(tmp_path):
    for size in (0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_000):
        data = random.Random(size).randbytes(size)
        path = tmp_path / str(size)
        path.write_bytes(data)
        assert hash_file(str(path)) == (hashlib.sha256(data).hexdigest(), size)


def test_a_file_whose_size_the_system_does_not_tell_is_hashed_all_the_same():
    digest, size = hash_file("/proc/version")
    data = Path("/proc/version").read_bytes()
    assert (digest, size) == (hashlib.sha256(data).hexdigest(), len(data))


def test_the_order_in_which_files_were_made_does_not_matter(tmp_path):
    names = [f"{folder}/{name}" for folder in ("b", "a", "a.b", "a/c") for name in ("z", "y", "é")]
    digests = set()
    for seed in range(3):
        random.Random(seed).shuffle(names)
        folder = tmp_path / str(seed)
        fill(folder, {name: name.encode() for name in names})
        digests.add(scan_tree(str(folder)).digest())
    assert len(digests) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "a").write_bytes(b"2"),
        lambda folder: (folder / "a").rename(folder / "b"),
        lambda folder: (folder / "a").chmod(0o744),
        lambda folder: (folder / "b").write_bytes(b""),
        lambda folder: (folder / "b").symlink_to("a"),
        lambda folder: ((folder / "a").unlink(), (folder / "a").symlink_to("1")),
        lambda folder: (folder / "d").mkdir() or (folder / "a").rename(folder / "d" / "a"),
    ],
    ids=["bytes", "name", "executable", "empty file", "symlink", "symlink for file", "folder"],
)
def test_every_change_that_counts_changes_the_digest(tmp_path, change):
    (tmp_path / "a").write_bytes(b"1")
    before = scan_tree(str(tmp_path)).digest()
    change(tmp_path)
    assert scan_tree(str(tmp_path)).digest() != before


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: os.utime(folder / "a", (1, 1)),
        lambda folder: (folder / "a").chmod(0o600),
        lambda folder: (folder / "empty" / "deeper").mkdir(parents=True),
    ],
    ids=["time", "permission", "empty folder"],
)
def test_nothing_else_changes_it(tmp_path, change):
    (tmp_path / "a").write_bytes(b"1")
    before = scan_tree(str(tmp_path)).digest()
    change(tmp_path)
    assert scan_tree(str(tmp_path)).digest() == before


def test_inner_symlinks_are_stored_as_text_and_not_followed(tmp_path):
    fill(tmp_path, {"data/a": b"1", "data/b": b"2"})
    (tmp_path / "latest").symlink_to("data")
    (tmp_path / "data" / "up").symlink_to("..")
    (tmp_path / "data" / "dangling").symlink_to("nothing/here")
    (tmp_path / "loop").symlink_to("loop")
    links = {entry.path: entry.link_to for entry in scan_tree(str(tmp_path)).entries if entry.link_to is not None}
    assert links == {"latest": "data", "data/up": "..", "data/dangling": "nothing/here", "loop": "loop"}
    assert len(scan_tree(str(tmp_path)).entries) == 6


def test_everything_that_can_not_be_kept_is_named_at_once(tmp_path):
    top = tmp_path / "top"
    fill(top, {"good": b"1", "deep/er/good": b"2"})
    (top / "absolute").symlink_to(top / "good")
    (top / "deep" / "out").symlink_to("../../elsewhere")
    (top / "by-own-name").symlink_to("../top/good")
    os.mkfifo(top / "deep" / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(top / "socket"))
    (Path(os.fsdecode(os.fsencode(top) + b"/bad-\xff"))).write_bytes(b"3")
    os.symlink(b"bad-\xff-target", os.fsencode(top) + b"/to-bad")
    with pytest.raises(InvalidInput) as caught:
        walk_tree(str(top))
    assert [fault.where for fault in caught.value.faults] == [
        "'bad-\\udcff'",
        "absolute",
        "by-own-name",
        "deep/out",
        "deep/pipe",
        "socket",
        "to-bad",
    ]
    assert "elsewhere" in str(caught.value.faults[3])


def test_a_device_is_refused(tmp_path):
    try:
        os.mknod(tmp_path / "device", 0o600 | 0o020000, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("making devices is not permitted here")
    with pytest.raises(InvalidInput, match="device: is neither a file"):
        scan_tree(str(tmp_path))


def test_a_symlink_that_leads_out_by_way_of_another_symlink_is_refused(tmp_path):
    top = tmp_path / "top"
    fill(top, {"shallow/file": b"1", "p/q/r/file": b"2"})
    (tmp_path / "secret").write_bytes(b"!")
    (top / "p" / "q" / "r" / "jump").symlink_to("../../../shallow")
    # By its text this is p/q/secret; in truth it is ../secret.
    (top / "sly").symlink_to("p/q/r/jump/../../secret")
    assert (top / "sly").read_bytes() == b"!"
    with pytest.raises(InvalidInput) as caught:
        scan_tree(str(top))
    assert [fault.where for fault in caught.value.faults] == ["sly"]


def test_a_folder_reached_by_a_symlink_is_scanned_like_itself(tmp_path):
    fill(tmp_path / "real", {"a/b": b"1"})
    (tmp_path / "real" / "inner").symlink_to("a/b")
    (tmp_path / "alias").symlink_to("real")
    assert scan_tree(str(tmp_path / "alias")) == scan_tree(str(tmp_path / "real"))


@pytest.fixture
def deep_folder(tmp_path):
    """A folder deeper than Python recurses, removed again since pytest could not."""
    depth = 1050
    here = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(depth):
            os.mkdir("d", dir_fd=here)
            inner = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = inner
        with open(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here), "wb") as file:
            file.write(b"deep")
        yield tmp_path, "d/" * depth + "file"
    finally:
        os.close(here)
        remove_tree(tmp_path / "d")


def test_a_folder_deeper_than_python_recurses_is_scanned(deep_folder):
    top, path = deep_folder
    (entry,) = scan_tree(str(top)).entries
    assert entry.path == path


def test_an_empty_folder_is_an_empty_tree(tmp_path):
    assert scan_tree(str(tmp_path)).entries == ()


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(LocalFile, match=r"no such file or folder: .*nowhere"):
        scan_tree(str(tmp_path / "nowhere"))
