"""Where programs run: a fresh folder for each attempt, made from its code's tree, gone with the attempt."""

from __future__ import annotations

import os

from stoker.host.durable import remove_tree, translated
from stoker.host.folders import make_passed_through, names_in
from stoker.model.errors import StokerError
from stoker.store.local import LocalStore
from stoker.store.records import Record
from stoker.worker.job_folder import JobFolder
from stoker.worker.preparing.spares import Spares
from stoker.worker.shipping.checkouts import check_out

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
