"""A folder as a tree: scanned, hashed, checked for what can't be stored.

Paths are sorted by their text; inner symlinks are stored as text; a symlink that leads out of the folder, a device, a
socket, a pipe or a name that is not Unicode is refused with its path, all of them together. Empty folders are not kept:
a tree is its files.
"""

from __future__ import annotations

import io
import os
import queue
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import file_digest, sha256
from typing import NamedTuple, Protocol

from stoker.core.clock import Closable
from stoker.core.digests import Digest, Tree, TreeEntry, digest_bytes
from stoker.core.errors import Diagnostic, InvalidInput
from stoker.host.durable import translated
from stoker.host.folders import FolderWalk

Hasher = Callable[[str], tuple[Digest, int]]

Heed = Callable[[int], None]
"""Is called for every piece of so many bytes that was read: to count, to wait, or to stop by raising."""

_BLOCK_BYTES = 1 << 20
_HEED: ContextVar[Heed | None] = ContextVar("heed", default=None)
_HINT = "a tree has files, folders and symlinks that stay inside it, under Unicode names: remove the rest"


class ReadingStopped(Exception):
    """Raised by a `Heed`: the reader has to stop. Not an `OSError`, so it is not taken for one of a file."""


@contextmanager
def heeding(heed: Heed) -> Iterator[None]:
    """Call `heed` for every piece that `hash_file` reads in this thread, and for every checked file."""
    token = _HEED.set(heed)
    try:
        yield
    finally:
        _HEED.reset(token)


def heed_now(size_bytes: int) -> None:
    """Report work that took as long as reading so many bytes."""
    heed = _HEED.get()
    if heed is not None:
        heed(size_bytes)


class WalkedEntry(NamedTuple):
    """One entry of a tree, its path, and the stamp of the file just before it was hashed."""

    entry: TreeEntry
    path: str
    info: os.stat_result


def hash_file(path: str) -> tuple[Digest, int]:
    """Return the SHA-256 and the size of a file's bytes."""
    with translated(path), open(path, "rb", buffering=0) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes <= _BLOCK_BYTES:
            data = file.read(_BLOCK_BYTES + 1)
            if len(data) <= _BLOCK_BYTES:
                return digest_bytes(data), len(data)
            file.seek(0)
        if _HEED.get() is not None:
            return _hash_in_pieces(file, heed_now)
        digest = file_digest(file, sha256)
        return Digest(digest.hexdigest()), file.tell()


def hash_afresh(path: str, heed: Heed) -> tuple[Digest, int]:
    """Do what `hash_file` does piece by piece, past the page cache if the system allows."""
    with translated(path), open(path, "rb", buffering=0) as file:
        _let_go(file.fileno())
        found = _hash_in_pieces(file, heed)
        _let_go(file.fileno())
    return found


def _hash_in_pieces(file: io.RawIOBase, heed: Heed) -> tuple[Digest, int]:
    digest = sha256()
    size_bytes = 0
    piece = bytearray(_BLOCK_BYTES)
    while count := file.readinto(piece):
        digest.update(memoryview(piece)[:count])
        size_bytes += count
        heed(count)
    return Digest(digest.hexdigest()), size_bytes


def scan_tree(root: str, *, hasher: Hasher = hash_file) -> Tree:
    """Read a folder as a tree, hashing every file."""
    return Tree(tuple(walked.entry for walked in walk_tree(root, hasher=hasher)))


def walk_tree(root: str, *, hasher: Hasher = hash_file) -> list[WalkedEntry]:
    """Read a folder as sorted entries, each with its path."""
    walk = _Walk(root, hasher)
    walk.run()
    if walk.faults:
        walk.faults.sort(key=lambda fault: fault.where)
        faults = tuple(walk.faults)
        headline = (
            str(faults[0]) if len(faults) == 1 else f"the folder holds {len(faults)} things that a tree can't keep"
        )
        raise InvalidInput(headline, faults=faults, hint=_HINT, folder=root)
    walk.found.sort(key=lambda walked: walked.entry.path)
    return walk.found


class _Walk(FolderWalk):
    def __init__(self, root: str, hasher: Hasher) -> None:
        super().__init__(root)
        self.found: list[WalkedEntry] = []
        self.faults: list[Diagnostic] = []
        self._hasher = hasher

    def _take(self, path: str, entry: os.DirEntry[str]) -> None:
        if not _is_text(path):
            self.faults.append(Diagnostic(repr(path), "the name is not valid Unicode"))
        elif entry.is_dir(follow_symlinks=False):
            self._enter(path)
        elif entry.is_file(follow_symlinks=False):
            info = entry.stat(follow_symlinks=False)
            digest, size_bytes = self._hasher(entry.path)
            executable = bool(info.st_mode & stat.S_IXUSR)
            self.found.append(WalkedEntry(TreeEntry(path, size_bytes, digest, executable), entry.path, info))
        elif entry.is_symlink():
            self._take_link(path, entry)
        else:
            self.faults.append(Diagnostic(path, "is neither a file, a folder nor a symlink"))

    def _take_link(self, path: str, entry: os.DirEntry[str]) -> None:
        target = os.readlink(entry.path)
        if not _is_text(target):
            self.faults.append(Diagnostic(path, "symlink whose target is not valid Unicode"))
        elif leads_out(self._root, path, target):
            self.faults.append(Diagnostic(path, f"symlink leads out of the folder, to {target}"))
        else:
            text = target.encode()
            link = TreeEntry(path, len(text), digest_bytes(text), link_to=target)
            self.found.append(WalkedEntry(link, entry.path, entry.stat(follow_symlinks=False)))


def _let_go(descriptor: int) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def leads_out(root: str, path: str, target: str) -> bool:
    """Return True if a symlink at a path below a folder leads out of that folder."""
    # By its text, because the folder will have another name; and really, because the text may pass through another
    # symlink, after which `..` means something else.
    if os.path.isabs(target):
        return True
    text = os.path.normpath(os.path.join(os.path.dirname(path), target))
    if text == ".." or text.startswith("../"):
        return True
    real_root = os.path.realpath(root)
    real = os.path.realpath(os.path.join(root, path))
    return real != real_root and not real.startswith(os.path.join(real_root, ""))


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


# Hashing in parallel: blocks are handed to a thread, and the reader does not wait for it.

_DEPTH = 8
_WORTH_A_HANDOVER_BYTES = 32 * 1024


class HashObject(Protocol):
    """An object of `hashlib`."""

    def update(self, data: bytes, /) -> None: ...


class HashLane(Closable):
    """One thread that feeds blocks to hashes, in order, at most a few blocks behind. Not thread-safe.

    Its memory is bounded: a much faster caller waits. A block must not change after it was passed.
    """

    def __init__(self) -> None:
        self._blocks: queue.Queue[tuple[HashObject, bytes] | None] = queue.Queue(_DEPTH)
        self._thread: threading.Thread | None = None

    def feed(self, hashing: HashObject, block: bytes) -> None:
        """Add a block to a hash."""
        if len(block) < _WORTH_A_HANDOVER_BYTES and not self._blocks.unfinished_tasks:
            hashing.update(block)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hash lane", daemon=True)
            self._thread.start()
        self._blocks.put((hashing, block))

    def wait(self) -> None:
        """Wait until every block is in its hash."""
        self._blocks.join()

    def close(self) -> None:
        """End the thread, after its blocks."""
        if self._thread is not None:
            self._blocks.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (given := self._blocks.get()) is not None:
            hashing, block = given
            try:
                hashing.update(block)
            finally:
                self._blocks.task_done()
        self._blocks.task_done()
