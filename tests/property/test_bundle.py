"""Bundles: any tree comes back as it was, the same tree is the same bytes, and no archive does harm."""

from __future__ import annotations

import io
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.errors import InvalidArchive
from stoker.host.folders import clashes
from stoker.store.archives.archive_members import ArchiveLimits, link_fault, path_fault
from stoker.store.archives.unpack import unpack
from stoker.store.trees import scan_tree
from tests.lengths import examples
from tests.unit.store.hostile_archives import (
    file,
    folder,
    gnu_long,
    hardlink,
    header,
    packed,
    pax,
    squeezed,
    symlink,
    tar,
)

# Few letters, so that folders are shared and names clash.
PARTS = st.text("aAbß.é \u0301x", min_size=1, max_size=3) | st.sampled_from(["long" * 40, "größe", "data.bin", "nul"])
PATHS = st.lists(PARTS, min_size=1, max_size=4).map("/".join)
CONTENTS = st.binary(max_size=40) | st.integers(1, 3_000_000).map(
    lambda size: random.Random(size).randbytes(size % 70_000)
)
TARGETS = st.lists(st.sampled_from(["..", ".", "a", "b", "x"]), min_size=1, max_size=4).map("/".join)


@st.composite
def trees(draw: st.DrawFn) -> dict[str, tuple[bytes, bool] | str]:
    """Draw files (content, executable) and symlinks (target) that a bundle may hold."""
    paths = [path for path in draw(st.lists(PATHS, max_size=8, unique=True)) if not path_fault(path)]
    taken: list[str] = []
    for path in paths:
        folders = [*taken, path]
        spelled = {part.casefold(): part for one in folders for part in one.split("/")}
        if not clashes(folders) and all(part == spelled[part.casefold()] for one in folders for part in one.split("/")):
            taken.append(path)
    tree: dict[str, tuple[bytes, bool] | str] = {}
    links: dict[str, str] = {}
    for path in taken:
        target = draw(st.none() | TARGETS)
        if target is not None and not link_fault(path, target, links):
            tree[path] = links[path] = target
        else:
            tree[path] = (draw(CONTENTS), draw(st.booleans()))
    return {path: one for path, one in tree.items() if not isinstance(one, str) or not link_fault(path, one, links)}


@contextmanager
def empty_folder() -> Iterator[Path]:
    # In memory where there is such a place: what is tested is not the disk.
    made = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    try:
        yield made
    finally:
        shutil.rmtree(made)


def lay(top: Path, tree: dict[str, tuple[bytes, bool] | str], order: list[str], mtime_s: int) -> None:
    top.mkdir()
    for path in order:
        target = top / path
        target.parent.mkdir(parents=True, exist_ok=True)
        entry = tree[path]
        if isinstance(entry, str):
            target.symlink_to(entry)
            continue
        target.write_bytes(entry[0])
        target.chmod(0o700 if entry[1] else 0o600)
        os.utime(target, (mtime_s, mtime_s))


@settings(max_examples=examples(50, 120))
@given(tree=trees(), data=st.data())
def test_any_tree_is_one_archive_and_comes_back_from_it(tree, data: st.DataObject) -> None:
    order = data.draw(st.permutations(sorted(tree)))
    with empty_folder() as here:
        lay(here / "one", tree, sorted(tree), 1)
        lay(here / "other", tree, order, 1_700_000_000)
        bundle, archive = packed(here / "one", workers=1)
        assert packed(here / "other", workers=data.draw(st.sampled_from([1, 2, 3]))) == (bundle, archive)
        unpacked = unpack(io.BytesIO(archive), str(here / "out"))
        assert unpacked.tree.digest() == bundle.tree_digest
        assert scan_tree(str(here / "out")) == unpacked.tree == scan_tree(str(here / "one"))
        assert packed(here / "out") == (bundle, archive)


NAMES = st.sampled_from(["a", "a/b", "a/b/c", "b", "B", "../x", "/x", "c/../d", "link", "link/x", "é", "e\u0301", ""])
MEMBERS = st.one_of(
    st.builds(file, NAMES, st.binary(max_size=600)),
    st.builds(folder, NAMES),
    st.builds(symlink, NAMES, NAMES),
    st.builds(hardlink, NAMES, NAMES),
    st.builds(
        header,
        NAMES,
        kind=st.sampled_from([b"3", b"6", b"S", b"7", b"x", b"g", b"L", b"K", b"\0"]),
        size=st.integers(0, 1200),
    ),
    st.builds(
        pax,
        st.dictionaries(
            st.sampled_from(["path", "size", "linkpath", "mtime", "GNU.sparse.major"]), NAMES | st.just("7"), max_size=2
        ),
    ),
    st.builds(gnu_long, NAMES.map(str.encode), kind=st.sampled_from([b"L", b"K"])),
)
HARM = st.tuples(st.integers(0, 1 << 16), st.integers(0, 255))


ARCHIVES = {
    "members": st.lists(MEMBERS, max_size=6),
    "harm": st.lists(HARM, max_size=2),
    "is_squeezed": st.booleans(),
    "cut": st.none() | HARM,
}


@settings(max_examples=examples(120, 300))
@given(**ARCHIVES)
def test_no_archive_does_harm(members, harm, is_squeezed: bool, cut) -> None:
    assert_harmless(members, harm, is_squeezed, cut)


@pytest.mark.slow
@settings(max_examples=20_000)
@given(**ARCHIVES)
def test_no_archive_does_harm_however_many_are_tried(members, harm, is_squeezed: bool, cut) -> None:
    assert_harmless(members, harm, is_squeezed, cut)


def assert_harmless(
    members: list[bytes], harm: list[tuple[int, int]], is_squeezed: bool, cut: tuple[int, int] | None
) -> None:
    archive = squeezed(tar(*members)) if is_squeezed else tar(*members)
    mutable = bytearray(archive)
    for at, value in harm:
        mutable[at % len(mutable)] = value
    if cut is not None:
        del mutable[cut[0] % len(mutable) :]
    with empty_folder() as here:
        (here / "x").write_bytes(b"mine")
        try:
            unpacked = unpack(io.BytesIO(bytes(mutable)), str(here / "out"), limits=ArchiveLimits(total_bytes=1 << 20))
        except InvalidArchive:
            assert sorted(path.name for path in here.iterdir()) == ["x"]
        else:
            assert scan_tree(str(here / "out")) == unpacked.tree
            assert sorted(path.name for path in here.iterdir()) == ["out", "x"]
        assert (here / "x").read_bytes() == b"mine"
