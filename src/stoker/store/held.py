"""Which trees of the fleet this machine has, so that others may get them here.

A mark per tree below the store, set when the tree has come. What was pruned since is no longer told, and its mark goes.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from stoker.host.durable import translated
from stoker.model.artifacts import Tree
from stoker.model.clock import Clock
from stoker.model.digests import Digest, digest_value, is_digest
from stoker.store.local import Found, LocalStore
from stoker.store.places import names_in
from stoker.store.putting import put_key
from stoker.store.records import Record

MOST = 10_000
STAGE = "tree"
"""What the record of a tree that came says made it. Unlike what somebody put, it needs no name to stay: it goes when it
is the one that was used the longest ago.
"""


def tree_key(tree: str) -> Digest:
    """Give the key under which a tree of the fleet lies."""
    return digest_value("fleet tree", tree)


def held_tree(store: LocalStore, tree: str) -> Record | None:
    """Give the record of a tree that lies in this machine's store, whole; it counts as used now.

    That may be one that came, or one that somebody put here.
    """
    for key in _keys(tree):
        found = store.lookup(key)
        if isinstance(found, Found) and found.has_bytes:
            return found.record
    return None


def named_tree(store: LocalStore, tree: str) -> Record | None:
    """Give the record of a tree that this store names and was not pruned. Its bytes are not looked at, nor used now."""
    for key in _keys(tree):
        found = store.peek(key)
        if isinstance(found, Record) and not found.is_tombstone:
            return found
    return None


def hold_tree(store: LocalStore, tree: Tree, *, clock: Clock) -> Record:
    """Name a tree whose files are all blobs of this store, and mark it as one that others may have from here."""
    digest = tree.digest()
    body = {"stage": STAGE, "kind": "", "made_at": clock.wall_s()}
    record = store.publish(Record.of(key=tree_key(digest), tree=tree, inline={}, body=body)).record
    note_held(store, digest)
    return record


def note_held(store: LocalStore, tree: str) -> None:
    """Mark a tree as one that others may have from here."""
    folder = store.places.held
    with translated(folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.close(os.open(os.path.join(folder, tree), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


class HeldTrees:
    """Looks which trees are here. Safe to use from several threads."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self._turn = threading.Lock()
        self._known: dict[str, tuple[tuple[int, int], bool]] = {}

    def look(self) -> tuple[str, ...]:
        """Give the trees that are here, in the order of their digests. Cheap where nothing changed."""
        names = [name for name in names_in(self._store.places.held) if is_digest(name)]
        with self._turn:
            self._known = {name: self._known[name] for name in names if name in self._known}
            return tuple([name for name in names if self._is_here(name)][:MOST])

    def _is_here(self, tree: str) -> bool:
        for key in _keys(tree):
            with suppress(OSError):
                return self._is_whole(tree, key, os.stat(self._store.places.record(key)))
        with suppress(OSError):
            os.unlink(os.path.join(self._store.places.held, tree))
        return False

    def _is_whole(self, tree: str, key: Digest, info: os.stat_result) -> bool:
        stamp = (info.st_ino, info.st_mtime_ns)
        known = self._known.get(tree)
        if known is None or known[0] != stamp:
            found = self._store.peek(key)
            known = self._known[tree] = (stamp, isinstance(found, Record) and not found.is_tombstone)
        return known[1]


def _keys(tree: str) -> tuple[Digest, Digest]:
    """Give the keys under which a tree may lie: one that came, and one that somebody put here."""
    return tree_key(tree), put_key(Digest(tree))
