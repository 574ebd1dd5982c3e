"""A tree of this machine's store as a folder: a writable copy for code, or shared bytes for data that is only read.

    check_out(store, record, workspace)                      copies; the job may change them
    check_out(store, record, folder, is_writable=False)      hard links or shared blocks, read-only

If a shared, read-only folder inside the store is enough, use `store.tree_views.open_view`: it copies nothing. Names,
the executable bit and inner links are as in the tree. Nothing is written outside the folder, which is new.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from stoker.core.clock import Clock
from stoker.core.digests import Digest, Tree, TreeEntry, digest_value, is_digest
from stoker.core.errors import CorruptBytes, LocalFile
from stoker.host.durable import remove_tree, stamp_of, translated
from stoker.host.folders import AnchoredFolder
from stoker.host.writers import MaterialiseMethod, copy_bytes, materialise
from stoker.store.local_store import LocalStore, RecordHit
from stoker.store.places import StorePaths, names_in
from stoker.store.put import put_key
from stoker.store.records import Record
from stoker.store.trees import Heed

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def check_out(
    store: LocalStore, record: Record, into: str, *, is_writable: bool = True, heed: Heed = lambda _: None
) -> None:
    """Write a record's tree to a folder that does not exist, or is empty. Not synced: it can be written again.

    `heed` is called with the size of each file. Raises `CorruptBytes` if bytes of it are not in the store, `LocalFile`
    if the folder is not empty. On failure, removes a folder that it made.
    """
    with _new_folder(into):
        made = {""}
        for entry in record.tree.entries:
            folder, _, name = entry.path.rpartition("/")
            with translated(into):
                _make_folders(into, folder, made)
            target = os.path.join(into, folder, name)
            if entry.link_to is not None:
                with translated(target):
                    os.symlink(entry.link_to, target)
            elif entry.path in record.inline:
                _write(target, record.inline[entry.path], _mode(entry, is_writable=is_writable))
            elif is_writable or entry.executable:
                _copy(store.blob(entry), target, _mode(entry, is_writable=is_writable))
            else:
                _share(store, entry, os.path.join(into, folder), name)
            heed(entry.size_bytes)


@contextmanager
def _new_folder(path: str) -> Iterator[None]:
    with translated(path):
        try:
            os.makedirs(path)
            is_ours = True
        except FileExistsError:
            is_ours = False
            if os.path.islink(path) or not os.path.isdir(path) or os.listdir(path):
                raise LocalFile(f"not an empty folder: {path}", hint="name another one", path=path) from None
    try:
        yield
    except BaseException:
        if is_ours:
            remove_tree(path)
        raise


def _make_folders(top: str, folder: str, made: set[str]) -> None:
    if folder in made:
        return
    path = ""
    for part in folder.split("/"):
        path = f"{path}/{part}" if path else part
        if path not in made:
            # The folder is new, so it contains no link made by another program.
            os.mkdir(os.path.join(top, path))
            made.add(path)


def _mode(entry: TreeEntry, *, is_writable: bool) -> int:
    return (0o644 if is_writable else 0o444) | (0o111 if entry.executable else 0)


def _write(target: str, data: bytes, mode: int) -> None:
    with translated(target), open(os.open(target, _CREATE, mode), "wb", buffering=0) as file:
        file.write(data)
        os.fchmod(file.fileno(), mode)


def _copy(source: str, target: str, mode: int) -> None:
    with (
        translated(target),
        open(source, "rb", buffering=0) as original,
        open(os.open(target, _CREATE, 0o600), "wb") as copy,
    ):
        copy_bytes(original, copy)
        copy.flush()
        os.fchmod(copy.fileno(), mode)


def _share(store: LocalStore, entry: TreeEntry, folder: str, name: str) -> None:
    blob = store.blob(entry)
    with translated(blob):
        before = os.lstat(blob)
    with AnchoredFolder.open(folder, makes=False) as below:
        how = materialise(blob, below, name, may_share=True, mode=0o444, is_durable=False)
    if how is MaterialiseMethod.HARDLINK:
        # A hard link changes the file's ctime, which is part of the stamp that proves it unchanged.
        with translated(blob):
            after = os.lstat(blob)
        if stamp_of(before)[:-1] != stamp_of(after)[:-1]:
            raise CorruptBytes(f"{entry.path} changed while it was linked", hint="fetch it again")
        store.memo.remember(entry.sha256, stamp_of(after), entry.sha256)


# Which trees of the fleet this machine has, so that other machines can fetch them here.
#
# A mark per tree below the store, written when the tree has arrived. A pruned tree is no longer reported, and its mark
# is deleted.

MOST = 10_000
STAGE = "tree"
"""The producer in the record of a tree that was received. Unlike a tree that a user put into the store, it needs no
name to stay: it is pruned as least recently used.
"""


def tree_key(tree: str) -> Digest:
    """Return the key under which a tree of the fleet is stored."""
    return digest_value("fleet tree", tree)


def held_tree(store: LocalStore, tree: str) -> Record | None:
    """Return the record of a tree that is complete in this machine's store; mark it as used now.

    The tree was received, or put here by a user.
    """
    for key in _keys(tree):
        found = store.lookup(key)
        if isinstance(found, RecordHit) and found.has_bytes:
            return found.record
    return None


def named_tree(store: LocalStore, tree: str) -> Record | None:
    """Return the record of a tree that this store names and did not prune. Does not check bytes, nor mark its use."""
    for key in _keys(tree):
        found = store.peek(key)
        if isinstance(found, Record) and not found.is_tombstone:
            return found
    return None


def hold_tree(store: LocalStore, tree: Tree, *, clock: Clock) -> Record:
    """Name a tree whose files are all blobs of this store, and mark it as available to other machines."""
    digest = tree.digest()
    body = {"stage": STAGE, "kind": "", "made_at": clock.wall_s()}
    record = store.publish(Record.of(key=tree_key(digest), tree=tree, inline={}, body=body)).record
    note_held(store, digest)
    return record


def note_held(store: LocalStore, tree: str) -> None:
    """Mark a tree as available to other machines."""
    folder = store.places.held
    with translated(folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.close(os.open(os.path.join(folder, tree), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


class HeldTrees:
    """Finds the trees that this machine has. Thread-safe."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self._turn = threading.Lock()
        self._known: dict[str, tuple[tuple[int, int], bool]] = {}

    def look(self) -> tuple[str, ...]:
        """Return the trees that are here, sorted by digest. Cheap if nothing changed."""
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
    """Return the keys under which a tree may be stored: as received, and as put here by a user."""
    return tree_key(tree), put_key(Digest(tree))


# Incoming trees: idle leftovers are deleted when the next tree is received.

INCOMING_GRACE_S = 7 * 86400.0
"""How long an incoming file may be idle before it is deleted; a later fetch starts it again."""


def sweep_incoming(places: StorePaths, *, now_s: float, grace_s: float = INCOMING_GRACE_S) -> int:
    """Delete what `idle_incoming` returns; return the bytes freed."""
    freed_bytes = 0
    for path, size_bytes in idle_incoming(places, now_s=now_s, grace_s=grace_s).items():
        with suppress(OSError):
            os.unlink(path)
            freed_bytes += size_bytes
    return freed_bytes


def idle_incoming(places: StorePaths, *, now_s: float, grace_s: float = INCOMING_GRACE_S) -> dict[str, int]:
    """Return listings, partial files and their locks that were not modified for `grace_s`, with their sizes."""
    found = {}
    for name in names_in(places.incoming):
        path = os.path.join(places.incoming, name)
        with suppress(OSError):
            info = os.lstat(path)
            # A large file is written to for hours, its lock and its listing are not: they count as touched with it.
            if now_s - _last_touched_s(places.incoming, name, info) > grace_s:
                found[path] = info.st_size
    return found


def _last_touched_s(folder: str, name: str, info: os.stat_result) -> float:
    newest_s = info.st_mtime
    stem = name.partition(".")[0]
    with suppress(OSError):
        newest_s = max(newest_s, os.lstat(os.path.join(folder, f"{stem}.part")).st_mtime)
    return newest_s
