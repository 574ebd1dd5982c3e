"""The files that a listing names: the same from a child process, which reads large ones, as from this process."""

from __future__ import annotations

import subprocess
import sys
from io import BytesIO

import pytest

from stoker.coordinator.storage import listed_files
from stoker.coordinator.storage.listed_files import ListedFiles, read_files
from stoker.core.digests import Tree, TreeEntry, digest_bytes
from stoker.core.errors import BadInput, HashMismatch, InvalidArchive, StokerError, Unavailable
from stoker.store.archives.archive_members import listing_bytes, read_listing

MANY = 20


def entry(path, text=b"x", link_to=None):
    text = link_to.encode() if link_to is not None else text
    return TreeEntry(path, len(text), digest_bytes(text), False, link_to)


TREE = Tree((entry("a", b"one"), entry("b/c", b"three"), entry("b/d", b"one"), entry("link", link_to="a")))
LINK_OUT = Tree((entry("link", link_to="../../etc/passwd"),))


@pytest.fixture(params=["in this process", "in a child process"])
def read(request, monkeypatch):
    started = []
    if request.param == "in a child process":
        monkeypatch.setattr(listed_files, "LARGE_BYTES", 0)
        real = subprocess.Popen

        def start(*args, **more):
            started.append(args)
            return real(*args, **more)

        monkeypatch.setattr(subprocess, "Popen", start)

    def read(data, tree, most_entries=MANY):
        try:
            return read_files(BytesIO(data), tree, most_entries=most_entries)
        finally:
            assert bool(started) == (request.param == "in a child process")

    return read


def test_a_listing_says_which_files_a_tree_needs_and_how_large_they_are(read):
    assert read(listing_bytes(TREE), TREE.digest()) == ListedFiles(
        listing=digest_bytes(listing_bytes(TREE)),
        listing_bytes=len(listing_bytes(TREE)),
        entries=4,
        size_bytes=TREE.size_bytes,
        largest="b/c",
        largest_bytes=5,
        files={digest_bytes(b"one"): 3, digest_bytes(b"three"): 5},
    )


@pytest.mark.parametrize(
    ("data", "tree", "error"),
    [
        (listing_bytes(TREE), "0" * 64, HashMismatch),
        (b"[" * 100, TREE.digest(), BadInput),
        (listing_bytes(LINK_OUT), LINK_OUT.digest(), InvalidArchive),
        (listing_bytes(Tree(tuple(entry(f"{n:02}") for n in range(MANY + 1)))), "0" * 64, BadInput),
    ],
    ids=["another tree", "no listing", "a link that leads out", "too many files"],
)
def test_a_listing_is_refused_with_the_same_error_wherever_it_is_read(read, data, tree, error):
    with pytest.raises(StokerError) as found:
        read(data, tree)
    with pytest.raises(error) as direct:
        read_listing(data, tree, most_entries=MANY)
    assert type(found.value) is error
    assert (found.value.message, found.value.hint) == (direct.value.message, direct.value.hint)
    assert found.value.data.get("faults") == direct.value.data.get("faults")


def test_a_child_process_that_fails_refuses_nothing_for_good(monkeypatch):
    monkeypatch.setattr(listed_files, "LARGE_BYTES", 0)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(Unavailable, match="could not be checked"):
        read_files(BytesIO(listing_bytes(TREE)), TREE.digest(), most_entries=MANY)
