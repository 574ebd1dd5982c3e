"""Data as trees: a folder is its tree, a file a tree of one entry under its own name.

Used to submit data and to detect changes. Each file is read once; after that the memo has its digest, and a check costs
one stat per file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from functools import partial

from stoker.core.clock import Clock
from stoker.core.digests import Digest, Tree, TreeEntry
from stoker.core.errors import LocalFile, StokerError
from stoker.host.durable import stamp_of, translated
from stoker.store.memo import Memo, recall_file, remember_file
from stoker.store.trees import Hasher, Heed, hash_file, scan_tree

_BLOCK_BYTES = 1 << 20


def tree_at(path: str, name: str, hasher: Hasher = hash_file) -> Tree:
    """Return the tree of a path; a file is called `name` in it. The mode of a file is not part of its content."""
    if os.path.isdir(path):
        return scan_tree(path, hasher=hasher)
    digest, size_bytes = hasher(path)
    return Tree((TreeEntry(name, size_bytes, digest),))


def read_tree(path: str, name: str, *, memo: Memo, clock: Clock, heed: Heed = lambda _: None) -> Tree:
    """Return the tree of a path; `heed` is called with the number of bytes read."""
    return tree_at(path, name, partial(_read, memo=memo, clock=clock, heed=heed))


def known_tree(path: str, name: str, *, memo: Memo) -> Tree | None:
    """Return the tree of a path if it is known without reading a file; otherwise None."""
    try:
        return tree_at(path, name, partial(_recalled, memo=memo))
    except (_Unknown, StokerError, OSError):
        return None


def unread_bytes(path: str, *, memo: Memo, heed: Heed = lambda _: None) -> int:
    """Return how many bytes must be read to know the tree; `heed` is called with the size of each file."""
    found = 0

    def count(file: str) -> tuple[Digest, int]:
        nonlocal found
        with translated(file):
            info = os.stat(file)
        if recall_file(file, info, memo=memo) is None:
            found += info.st_size
        heed(info.st_size)
        return Digest(""), info.st_size

    tree_at(path, "", count)
    return found


class _Unknown(Exception):
    """A file must be read."""


def _recalled(path: str, *, memo: Memo) -> tuple[Digest, int]:
    info = os.stat(path)
    digest = recall_file(path, info, memo=memo)
    if digest is None:
        raise _Unknown
    return digest, info.st_size


def _read(path: str, *, memo: Memo, clock: Clock, heed: Callable[[int], None]) -> tuple[Digest, int]:
    with translated(path):
        info = os.stat(path)
    if not stat.S_ISREG(info.st_mode):
        raise LocalFile(f"neither a file nor a folder: {path}", hint="copy what it gives into a file first", path=path)
    known = recall_file(path, info, memo=memo)
    if known is not None:
        return known, info.st_size
    digest, size_bytes = _hashed(path, heed)
    with translated(path):
        is_same = stamp_of(os.stat(path)) == stamp_of(info)
    if is_same:
        remember_file(path, info, digest, memo=memo, clock=clock)
    return digest, size_bytes


def _hashed(path: str, heed: Callable[[int], None]) -> tuple[Digest, int]:
    from hashlib import sha256  # noqa: PLC0415 - what is known needs none

    digest, size_bytes = sha256(), 0
    with translated(path), open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size_bytes += len(block)
            heed(len(block))
    return Digest(digest.hexdigest()), size_bytes
