"""One more copy of the code that ran last, made while it runs: whoever submits it again does not wait for its files.

To make a thousand files takes a file system a quarter of a second, to rename their folder nothing. A spare is whole
once it has its name; what is not, and what an earlier worker left, is swept when a worker starts, since nothing of it
was synced. Two workers of one home may use each other's.
"""

from __future__ import annotations

import os
import secrets
import threading
from contextlib import suppress

from stoker.host.durable import remove_tree
from stoker.host.folders import names_in
from stoker.model.errors import StokerError
from stoker.store.local import LocalStore
from stoker.store.records import Record
from stoker.worker.shipping.checkouts import check_out

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
