"""Data for jobs as plain folders, one per tree, shared by all jobs of this machine and written by none.

    workspaces/.data/TREE/…         real files, read-only: hard links to the store's blobs where the disk can
    workspaces/.data/.used/RUN      which process reads which of them

They lie where programs of other users may pass through and not look around. A folder appears whole, by rename; it goes
once its tree is no longer in the store and nobody reads it; a repository's, once nobody has for a month.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

from stoker.host.durable import read_regular, remove_tree, translated, write_file
from stoker.host.identity import Liveness, ProcessIdentity, is_alive
from stoker.model.clock import Clock
from stoker.model.digests import Digest, is_digest
from stoker.model.errors import StokerError
from stoker.model.json_text import dumps, loads
from stoker.store.local import LocalStore
from stoker.store.local_files import note_file
from stoker.store.putting import put_key
from stoker.store.records import Record
from stoker.worker.shipping.checkouts import check_out

_PASSED_THROUGH = 0o711
_LARGEST_BYTES = 1 << 20
_counter = itertools.count()
_NEW = ".new-"
REPOSITORY = "repo-"
_OLD_S = 30 * 24 * 3600.0
"""A repository's folder that nobody opened for so long goes; what it shares with the hub's cache stays there."""


class DataShelf:
    """The folders below one. Safe to use from several threads and processes at once."""

    def __init__(self, folder: str, store: LocalStore, clock: Clock) -> None:
        self.folder = folder
        self._clock = clock
        self._store = store
        self._used = os.path.join(folder, ".used")

    def open(self, record: Record) -> str:
        """Give the folder of a record's tree; it is made if it is not there."""
        place = self.place(str(record.digest))
        if os.path.isdir(place):
            return place
        with translated(self.folder):
            os.makedirs(self.folder, exist_ok=True)
            os.chmod(self.folder, _PASSED_THROUGH)
        making = os.path.join(self.folder, f"{_NEW}{os.getpid()}-{next(_counter)}")
        try:
            check_out(self._store, record, making, is_writable=False)
            with translated(place):
                try:
                    os.rename(making, place)
                except OSError:
                    # Another one was quicker.
                    if not os.path.isdir(place):
                        raise
            self._note(record, place)
        finally:
            remove_tree(making)
        return place

    def use(self, name: str) -> str:
        """Give a folder that is there, which counts as used now."""
        place = self.place(name)
        with suppress(OSError):
            os.utime(place)
        return place

    def place(self, name: str) -> str:
        """Give where a tree lies, or would lie."""
        return os.path.join(self.folder, name)

    def mark(self, run: str, owner: ProcessIdentity, names: Iterable[str]) -> None:
        """Say that a process reads some of them: they stay while it lives."""
        with translated(self._used):
            os.makedirs(self._used, mode=0o700, exist_ok=True)
        told = {"owner": owner.to_dict(), "names": sorted(names)}
        write_file(os.path.join(self._used, run), dumps(told).encode())

    def unmark(self, run: str) -> None:
        """Say that it has ended."""
        with suppress(OSError):
            os.unlink(os.path.join(self._used, run))

    def prune(self) -> None:
        """Take away what the store no longer has and nobody reads."""
        used = set(self._in_use())
        for name in _names(self.folder):
            is_over = is_digest(name) and not self._is_kept(name)
            is_over |= name.startswith(REPOSITORY) and self._is_old(name)
            is_over |= name.startswith(_NEW) and _is_left(name)
            if is_over and name not in used:
                remove_tree(self.place(name))

    def _is_old(self, name: str) -> bool:
        try:
            return self._clock.wall_s() - os.stat(self.place(name)).st_mtime > _OLD_S
        except OSError:
            return False

    def _is_kept(self, tree: str) -> bool:
        found = self._store.peek(put_key(Digest(tree)))
        return isinstance(found, Record) and not found.is_tombstone

    def _in_use(self) -> Iterator[str]:
        for run in _names(self._used):
            try:
                told = loads(read_regular(os.path.join(self._used, run), _LARGEST_BYTES))
                is_gone = is_alive(ProcessIdentity.from_dict(told["owner"])) is Liveness.GONE
                names = [str(name) for name in told["names"]]
            except (OSError, ValueError, KeyError, TypeError, StokerError):
                is_gone, names = True, []
            if is_gone:
                self.unmark(run)
            else:
                yield from names

    def _note(self, record: Record, place: str) -> None:
        """Remember what every file holds: it was verified on its way, and need not be read to be known."""
        for entry in record.tree.entries:
            if entry.link_to is None:
                path = os.path.join(place, entry.path)
                with suppress(OSError):
                    note_file(path, os.stat(path), entry.sha256, memo=self._store.memo)
        # The attempt's own process asks next.
        self._store.memo.write_down()


def _is_left(name: str) -> bool:
    pid = name.removeprefix(_NEW).partition("-")[0]
    return pid.isdigit() and not os.path.exists(f"/proc/{pid}")


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
