"""Where programs run: a fresh folder for each attempt, made from its code's tree, gone with the attempt."""

from __future__ import annotations

import os
import secrets
import threading
from contextlib import suppress

from stoker.core.errors import StokerError
from stoker.host.durable import remove_tree, translated
from stoker.host.folders import make_passed_through, names_in
from stoker.jobs.job_folder import JobFolder
from stoker.store.local_store import LocalStore
from stoker.store.records import Record
from stoker.transfer.trees.holdings import check_out

# One more copy of the code that ran last, made while it runs: whoever submits it again does not wait for its files.
#
# To make a thousand files takes a file system a quarter of a second, to rename their folder nothing. A spare is whole
# once it has its name; what is not, and what an earlier worker left, is swept when a worker starts, since nothing of it
# was synced. Two workers of one home may use each other's.

FEWEST_FILES = 50
"""Fewer are made in no time."""
MOST_FILES = 20_000
MOST_BYTES = 256 << 20
_SPARE, _MAKING, _GOING = ".spare-", ".making-", ".going-"
_WAIT_S = 0.3
"""The job that has just begun goes first."""


class Spares:
    """The spare below a folder of workspaces: of one tree, the last."""

    def __init__(self, folder: str, *, wait_s: float = _WAIT_S) -> None:
        self._folder = folder
        self._wait = threading.Event()
        self._wait_s = wait_s
        self._turn = threading.Lock()

    def take(self, tree: str, place: str) -> bool:
        """Make the spare of a tree an attempt's own; False if there is none."""
        try:
            os.rename(self._path(_SPARE + tree), place)
        except OSError:
            return False
        return True

    def make_soon(self, tree: str, store: LocalStore, record: Record) -> threading.Thread | None:
        """Have a spare of a tree made in the background, unless its like is there, or being made, or not worth it."""
        files, size_bytes = len(record.tree.entries), record.tree.size_bytes
        if not FEWEST_FILES <= files <= MOST_FILES or size_bytes > MOST_BYTES or not self._turn.acquire(blocking=False):
            return None
        making = threading.Thread(target=self._make, args=(tree, store, record), name="stoker-spare", daemon=True)
        making.start()
        return making

    def sweep(self) -> None:
        """Take away whatever is there."""
        for name in names_in(self._folder):
            if name.startswith((_SPARE, _MAKING, _GOING)):
                self._remove(name)

    def _make(self, tree: str, store: LocalStore, record: Record) -> None:
        made = _MAKING + secrets.token_hex(8)
        try:
            self._wait.wait(self._wait_s)
            others = [name for name in names_in(self._folder) if name.startswith(_SPARE)]
            if _SPARE + tree in others:
                return
            for name in others:
                self._remove(name)
            check_out(store, record, self._path(made))
            os.chmod(self._path(made), 0o700)
            os.rename(self._path(made), self._path(_SPARE + tree))
        except (OSError, StokerError):
            # No room, or pruned meanwhile: the next attempt makes its own, and says what is wrong.
            with suppress(OSError, StokerError):
                remove_tree(self._path(made))
        finally:
            self._turn.release()

    def _remove(self, name: str) -> None:
        """Take a spare away that somebody may be taking for himself."""
        going = self._path(_GOING + secrets.token_hex(8))
        with suppress(OSError, StokerError):
            os.rename(self._path(name), going)
            remove_tree(going)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)


_LEFT_S = 3600.0
"""One whose attempt never began to write is somebody's who is about to, unless it is as old as this."""


class Workspaces:
    """The folders below one, by the names of runs."""

    def __init__(self, folder: str, runs: str, *, keeps: bool = False) -> None:
        """Make them; with `keeps` they stay for their owner to look at."""
        self.folder = folder
        self._runs = runs
        self._keeps = keeps
        self.spares = Spares(folder)

    def make(self, run: str, tree: str, store: LocalStore, record: Record) -> str:
        """Make an attempt's own, and give its path."""
        make_passed_through(self.folder)
        place = self.place(run)
        if not self.spares.take(tree, place):
            with translated(place):
                os.mkdir(place, 0o700)
            check_out(store, record, place)
        self.spares.make_soon(tree, store, record)
        return place

    def place(self, run: str) -> str:
        return os.path.join(self.folder, run)

    def remove(self, run: str) -> None:
        """Take an attempt's own away."""
        if not self._keeps:
            remove_tree(self.place(run))

    def sweep(self, now_s: float) -> None:
        """Take away what attempts left that were killed with their keeper."""
        self.spares.sweep()
        for name in names_in(self.folder):
            if not name.startswith(".") and self._is_left(name, now_s):
                self.remove(name)

    def _is_left(self, run: str, now_s: float) -> bool:
        folder = JobFolder(os.path.join(self._runs, run))
        if not os.path.isdir(folder.path):
            try:
                return now_s - os.stat(self.place(run)).st_mtime > _LEFT_S
            except OSError:
                return False
        try:
            return not folder.may_be_running()
        except StokerError:
            return False
