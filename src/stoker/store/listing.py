"""A tree's listing as bytes: how it travels and rests where only bytes do. The same tree gives the same bytes.

    {"v":1,"entries":[[path, size, sha256, executable, link or null], …]}

Whoever reads one from elsewhere gets a tree with the digest that was asked for, whose every name may be written on any
machine, or an error that says what is wrong with it; nothing of it is believed before.
"""

from __future__ import annotations

import sys
from typing import Any

from stoker.model.artifacts import Tree, TreeEntry
from stoker.model.digests import Digest, digest_bytes, is_digest
from stoker.model.errors import BadInput, HashMismatch
from stoker.model.json_text import dumps, loads
from stoker.store.bundle.members import tree_faults

MOST_ENTRIES = 500_000
_LARGEST_FILE_BYTES = 1 << 60
_FIELDS = 5
_HINT = "a tree that travels has plain names, no two of them alike, and no link that leads out of it"


def listing_bytes(tree: Tree) -> bytes:
    """Write a tree's listing."""
    rows = [[entry.path, entry.size_bytes, entry.sha256, entry.executable, entry.link_to] for entry in tree.entries]
    return dumps({"v": 1, "entries": rows}).encode()


def read_listing(data: bytes, digest: str, *, most_entries: int = MOST_ENTRIES) -> Tree:
    """Read the listing of the tree that has this digest.

    `BadInput` if it is no listing, `HashMismatch` if it is another tree's, `ArchiveFaults` if something of it must not
    be written anywhere.
    """
    tree = Tree(tuple(_entries(data, most_entries)))
    check_tree(tree)
    if (found := tree.digest()) != digest:
        raise HashMismatch(
            f"the listing is that of tree {found[:12]}, not of {digest[:12]}",
            hint="send it again",
            expected=digest,
            found=found,
        )
    return tree


def check_tree(tree: Tree) -> None:
    """Refuse a tree that could not be laid out everywhere: `ArchiveFaults`, with everything that is wrong."""
    faults = tree_faults(tree)
    last = ""
    for entry in tree.entries:
        if entry.path < last:
            faults.add(entry.path, "is not in the order of names")
        last = entry.path
        if entry.link_to is not None:
            text = entry.link_to.encode("utf-8", "surrogatepass")
            if entry.executable or (entry.size_bytes, entry.sha256) != (len(text), digest_bytes(text)):
                faults.add(entry.path, "is a link that says something else of itself than it is")
    faults.raise_any("the tree can't travel", hint=_HINT)


def files_of(tree: Tree) -> dict[Digest, int]:
    """Give the files that a tree needs, each once: digest and size, in the order of the listing.

    `BadInput` if it gives one digest two sizes.
    """
    files: dict[Digest, int] = {}
    for entry in tree.entries:
        if entry.link_to is None and files.setdefault(entry.sha256, entry.size_bytes) != entry.size_bytes:
            raise BadInput(f"{entry.path}: its bytes have another size elsewhere in the same tree")
    return files


def _entries(data: bytes, most_entries: int) -> list[TreeEntry]:
    try:
        read: Any = loads(data)
    except (ValueError, UnicodeDecodeError):
        raise BadInput("that is no listing of a tree: it is not JSON") from None
    rows = read.get("entries") if isinstance(read, dict) and read.get("v") == 1 else None
    if not isinstance(rows, list):
        raise BadInput("that is no listing of a tree, or one of a newer Stoker")
    if len(rows) > most_entries:
        raise BadInput(
            f"a tree of {len(rows)} files: {most_entries} are the most",
            hint="pack them into fewer, larger files",
            most_files=most_entries,
        )
    return [_entry(row) for row in rows]


def _entry(row: Any) -> TreeEntry:
    if not (isinstance(row, list) and len(row) == _FIELDS):
        raise BadInput("an entry of the listing is none")
    path, size_bytes, sha256, executable, link_to = row
    is_right = (
        isinstance(path, str)
        and type(size_bytes) is int
        and 0 <= size_bytes <= _LARGEST_FILE_BYTES
        and isinstance(sha256, str)
        and is_digest(sha256)
        and type(executable) is bool
        and (link_to is None or isinstance(link_to, str))
    )
    if not is_right:
        raise BadInput(f"an entry of the listing is none: {ascii(path)[:120]}")
    # Digests come again and again, from tree to tree: one text for each.
    return TreeEntry(path, size_bytes, Digest(sys.intern(sha256)), executable, link_to)
