"""Listings of trees: the same bytes for the same tree, and nothing believed that another machine says."""

from __future__ import annotations

import pytest

from stoker.core.digests import Digest, Tree, TreeEntry, digest_bytes
from stoker.core.errors import BadInput, HashMismatch, InvalidArchive
from stoker.core.jsontext import dumps, loads
from stoker.store.archives.archive_members import check_tree, files_of, listing_bytes, read_listing

X = digest_bytes(b"x")


def file(path: str, *, size_bytes: int = 1, sha256: Digest = X, executable: bool = False) -> TreeEntry:
    return TreeEntry(path, size_bytes, sha256, executable)


def link(path: str, target: str) -> TreeEntry:
    text = target.encode()
    return TreeEntry(path, len(text), digest_bytes(text), link_to=target)


GOOD = Tree((file("a/b.py"), link("latest", "a/b.py"), file("run.sh", executable=True), file("ö.txt")))


def test_a_listing_gives_back_its_tree():
    assert read_listing(listing_bytes(GOOD), GOOD.digest()) == GOOD
    assert read_listing(listing_bytes(Tree(())), Tree(()).digest()) == Tree(())


def test_another_tree_s_listing_is_refused():
    with pytest.raises(HashMismatch):
        read_listing(listing_bytes(GOOD), Tree(()).digest())


@pytest.mark.parametrize(
    "entries",
    [
        (file("../x"),),
        (file("/etc/passwd"),),
        (file("a/../../x"),),
        (file("a//b"),),
        (file("C:x"),),
        (file("con"),),
        (file("a\\b"),),
        (file("a\x00b"),),
        (file("a "),),
        (file("a\u202eb"),),
        (file("x" * 300),),
        (file("A"), file("a")),
        (file("a"), file("a")),
        (file("a"), file("a/b")),
        (file("b"), file("a")),
        (link("a", "/etc"),),
        (link("a", "../x"),),
        (link("a", "b"), link("b", "../..")),
        (link("d", "."), file("d/x")),
        (TreeEntry("a", 3, X, link_to="abc"),),
        (TreeEntry("a", 3, digest_bytes(b"abc"), executable=True, link_to="abc"),),
    ],
    ids=lambda entries: f"{len(entries)}-{ascii(entries[0].path)[:20]}-{entries[0].link_to}-{len(entries[-1].path)}",
)
def test_what_could_be_written_elsewhere_is_refused(entries):
    tree = Tree(entries)
    with pytest.raises(InvalidArchive):
        check_tree(tree)
    with pytest.raises((InvalidArchive, BadInput)):
        read_listing(listing_bytes(tree), tree.digest())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"v":2,"entries":[]}',
        b'{"v":1,"entries":{}}',
        b'{"v":1,"entries":[["a",1]]}',
        dumps({"v": 1, "entries": [["a", -1, X, False, None]]}).encode(),
        dumps({"v": 1, "entries": [["a", 1.5, X, False, None]]}).encode(),
        dumps({"v": 1, "entries": [["a", True, X, False, None]]}).encode(),
        dumps({"v": 1, "entries": [["a", 1, X.upper(), False, None]]}).encode(),
        dumps({"v": 1, "entries": [["a", 1, X, 0, None]]}).encode(),
        dumps({"v": 1, "entries": [[5, 1, X, False, None]]}).encode(),
        dumps({"v": 1, "entries": [["a", 1 << 70, X, False, None]]}).encode(),
        b"\xff\xfe",
        b"[" * 100_000,
    ],
    ids=range(14),
)
def test_what_is_no_listing_is_refused(data):
    with pytest.raises(BadInput):
        read_listing(data, GOOD.digest())


def test_too_many_files_are_refused_with_the_most():
    tree = Tree(tuple(file(f"{number:03}") for number in range(11)))
    with pytest.raises(BadInput, match="10 are the most"):
        read_listing(listing_bytes(tree), tree.digest(), most_entries=10)


def test_files_are_named_once_in_order_and_one_digest_has_one_size():
    tree = Tree((file("a"), file("b", sha256=digest_bytes(b"bb"), size_bytes=2), file("c"), link("d", "a")))
    assert files_of(tree) == {X: 1, digest_bytes(b"bb"): 2}
    with pytest.raises(BadInput, match="another size"):
        files_of(Tree((file("a"), file("b", size_bytes=2))))


def test_a_listing_is_plain_json():
    assert loads(listing_bytes(GOOD))["entries"][0] == ["a/b.py", 1, X, False, None]
