"""Where programs run: a fresh folder for each attempt, made from its code's tree, gone with the attempt."""

from __future__ import annotations

import os

from stoker.host.durable import remove_tree, translated
from stoker.model.errors import StokerError
from stoker.store.local import LocalStore
from stoker.store.records import Record
from stoker.worker.job_folder import JobFolder
from stoker.worker.shipping.checkouts import check_out

_PASSED_THROUGH = 0o711
_LEFT_S = 3600.0
"""One whose attempt never began to write is somebody's who is about to, unless it is as old as this."""


class Workspaces:
    """The folders below one, by the names of runs."""

    def __init__(self, folder: str, runs: str, *, keeps: bool = False) -> None:
        """Make them; with `keeps` they stay for their owner to look at."""
        self.folder = folder
        self._runs = runs
        self._keeps = keeps

    def make(self, run: str, store: LocalStore, record: Record) -> str:
        """Make an attempt's own, and give its path."""
        with translated(self.folder):
            os.makedirs(self.folder, exist_ok=True)
            # Passed through, and not listed: whoever knows no name in it finds nothing.
            os.chmod(self.folder, _PASSED_THROUGH)
        place = self.place(run)
        with translated(place):
            os.mkdir(place, 0o700)
        check_out(store, record, place)
        return place

    def place(self, run: str) -> str:
        return os.path.join(self.folder, run)

    def remove(self, run: str) -> None:
        """Take an attempt's own away."""
        if not self._keeps:
            remove_tree(self.place(run))

    def sweep(self, now_s: float) -> None:
        """Take away what attempts left that were killed with their keeper."""
        try:
            names = [name for name in os.listdir(self.folder) if not name.startswith(".")]
        except OSError:
            return
        for name in names:
            if self._is_left(name, now_s):
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
