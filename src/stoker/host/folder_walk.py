"""One pass over everything below a folder; how deep it is costs no recursion."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

from stoker.host.durable import translated


class FolderWalk(ABC):
    """A pass; whoever makes one says what to do with each entry, and which folders to enter."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._folders = [""]

    def run(self) -> None:
        """Go through the folder and all that are entered. Raises `LocalFile` and its like."""
        while self._folders:
            prefix = self._folders.pop()
            folder = os.path.join(self._root, prefix)
            with translated(folder), os.scandir(folder) as entries:
                for entry in entries:
                    self._take(prefix + entry.name, entry)

    @abstractmethod
    def _take(self, path: str, entry: os.DirEntry[str]) -> None:
        """Take one entry; its path is below the root, `/`-separated."""

    def _enter(self, path: str) -> None:
        """Go through a folder, too."""
        self._folders.append(f"{path}/")
