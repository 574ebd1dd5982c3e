"""The user's files on their way into one staging folder, and from there into the store.

A file is read once: it shares its blocks with the copy where the file system can, and is hashed, or it is copied and
hashed in one pass. One that was hashed before, looks the same since, and whose bytes the store has, is not read at all.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import BinaryIO

from stoker.host.disk import free_bytes
from stoker.host.durable import open_regular, translated, write_all
from stoker.model.artifacts import Tree, TreeEntry
from stoker.model.clock import Clock
from stoker.model.digests import Digest
from stoker.model.errors import NoSpace, Refused
from stoker.model.units import format_size
from stoker.store.hash_lane import HashLane
from stoker.store.local import INLINE_FILE_BYTES, MOST_INLINE_FILES, LocalStore
from stoker.store.local_files import recall_file, remember_file
from stoker.store.materialise import reflink
from stoker.store.memo import stamp_of
from stoker.store.trees import Heed, Walked

_BLOCK_BYTES = 1 << 20
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class StagingCopy:
    """Files on their way into one staging folder, and from there into the store."""

    def __init__(
        self, store: LocalStore, staging: str, *, clock: Clock, heed: Heed, on_step: Callable[[str], None]
    ) -> None:
        self.added_bytes = 0
        """What became blobs that the store did not have."""
        self._store = store
        self._staging = staging
        self._clock = clock
        self._heed = heed
        self._on_step = on_step
        self._numbers = itertools.count()
        self._found: list[Walked] = []
        self._contents: dict[str, bytes] = {}
        self._passed_over: dict[str, Walked] = {}
        """What need not be brought in because the store has its bytes, by its path in the tree."""
        self._blobs: set[Digest] = set()
        """What was staged and will surely become a blob."""
        self._shares_blocks: bool | None = None

    def copy_all(self, found: Sequence[Walked]) -> None:
        """Copy what the store does not have, hashing it on the way. `Refused` if something changes meanwhile."""
        left_bytes = size_of(found)
        with HashLane() as lane:
            for walked in found:
                if walked.entry.link_to is not None:
                    self._found.append(walked)
                    continue
                if not self._is_here(walked):
                    self._stage(walked, left_bytes, lane)
                left_bytes -= walked.info.st_size

    def keep_all(self) -> tuple[Tree, dict[str, bytes]]:
        """Bring in what was staged. What was here already and is not any more is copied after all."""
        with HashLane() as lane:
            self._found = [self._still_here(walked, lane) for walked in self._found]
        tree, inline = self._store.keep(self._found, self._contents)
        self.added_bytes = blob_bytes((walked.entry for walked in self._found if walked.path), inline)
        return tree, inline

    def _still_here(self, walked: Walked, lane: HashLane) -> Walked:
        entry = walked.entry
        if walked.path or entry.sha256 in self._blobs or self._store.renew(entry):
            return walked
        staged, _ = self._copy(self._passed_over[entry.path], entry.size_bytes, lane)
        if staged.entry != entry:
            raise changed_meanwhile(entry.path)
        self._blobs.add(entry.sha256)
        return staged

    def _is_here(self, walked: Walked) -> bool:
        """Pass over a file that was hashed before, looks the same since, and whose bytes the store has."""
        digest = recall_file(walked.path, walked.info, memo=self._store.memo)
        if digest is None:
            return False
        entry = TreeEntry(walked.entry.path, walked.info.st_size, digest, walked.entry.executable)
        if not self._store.holds(entry):
            return False
        self._pass_over(walked, entry)
        self._heed(entry.size_bytes)
        return True

    def _stage(self, walked: Walked, left_bytes: int, lane: HashLane) -> None:
        staged, data = self._copy(walked, left_bytes, lane)
        digest = staged.entry.sha256
        remember_file(walked.path, walked.info, digest, memo=self._store.memo, clock=self._clock)
        if digest in self._blobs or self._store.holds(staged.entry):
            os.unlink(staged.path)
            self._pass_over(walked, staged.entry)
            return
        if data is not None and len(self._contents) < MOST_INLINE_FILES:
            self._contents[staged.path] = data
        else:
            self._blobs.add(digest)
        self._found.append(staged)

    def _pass_over(self, walked: Walked, entry: TreeEntry) -> None:
        self._passed_over[entry.path] = walked
        # Without a path, so that nobody could take the user's own file for one that may be moved.
        self._found.append(Walked(entry, "", walked.info))

    def _copy(self, walked: Walked, left_bytes: int, lane: HashLane) -> tuple[Walked, bytes | None]:
        """Copy a file into staging; give the copy, and the content of a small one."""
        path = f"{self._staging}/{next(self._numbers)}"
        self._on_step("copy")
        with translated(walked.path):
            source = open_regular(walked.path)
        with source:
            if stamp_of(os.fstat(source.fileno())) != stamp_of(walked.info):
                raise changed_meanwhile(walked.entry.path)
            with translated(path), open(os.open(path, _CREATE, 0o600), "w+b", buffering=0) as copy:
                if self._shares_blocks is None:
                    self._shares_blocks = reflink(source, copy)
                    if not self._shares_blocks:
                        self._refuse_if_too_large(left_bytes)
                elif self._shares_blocks:
                    self._shares_blocks = reflink(source, copy)
                digest, size_bytes, data = self._read(walked, source, copy, lane)
            if stamp_of(os.fstat(source.fileno())) != stamp_of(walked.info) or size_bytes != walked.info.st_size:
                raise changed_meanwhile(walked.entry.path)
        entry = TreeEntry(walked.entry.path, size_bytes, digest, walked.entry.executable)
        return Walked(entry, path, os.lstat(path)), data

    def _read(
        self, walked: Walked, source: BinaryIO, copy: BinaryIO, lane: HashLane
    ) -> tuple[Digest, int, bytes | None]:
        """Hash the copy where it shares the source's blocks; else write it, and hash what is written."""
        digest = sha256()
        size_bytes = 0
        small = b""
        is_small = walked.info.st_size <= INLINE_FILE_BYTES
        while block := _next_block(walked.path, copy if self._shares_blocks else source):
            lane.feed(digest, block)
            if not self._shares_blocks:
                write_all(copy.fileno(), block, size_bytes)
            size_bytes += len(block)
            small += block if is_small else b""
            self._heed(len(block))
        lane.wait()
        return Digest(digest.hexdigest()), size_bytes, small if is_small else None

    def _refuse_if_too_large(self, left_bytes: int) -> None:
        free = free_bytes(self._staging)
        if free < left_bytes:
            raise NoSpace(
                f"no space left: {format_size(left_bytes)} are needed, {format_size(free)} are free in "
                f"{self._store.places.root}",
                hint="`stoker clean-cache` shows what could go",
                path=self._store.places.root,
            )


def blob_bytes(entries: Iterable[TreeEntry], inline: Mapping[str, bytes]) -> int:
    """Add up the blobs that these entries became, each once; what lies in the record itself is none."""
    return sum({
        entry.sha256: entry.size_bytes
        for entry in entries if entry.link_to is None and entry.path not in inline
    }.values())  # fmt: skip


def size_of(found: Sequence[Walked]) -> int:
    """Add up the sizes of files that were looked at."""
    return sum(walked.info.st_size for walked in found if walked.entry.link_to is None)


def changed_meanwhile(path: str) -> Refused:
    """Give the error for a file that is not what it was when we began."""
    return Refused(f"{path} changed while it was read", hint="put it again when nobody writes to it", path=path)


def _next_block(path: str, file: BinaryIO) -> bytes:
    with translated(path):
        return file.read(_BLOCK_BYTES)
