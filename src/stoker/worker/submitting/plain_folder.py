"""A folder that is no git repository, as a project: everything below it but what nobody means by "my code"."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from stoker.host.folder_walk import FolderWalk
from stoker.model.errors import BadInput
from stoker.model.units import format_size
from stoker.worker.submitting.ignore_patterns import IgnorePatterns

MOST_FILES = 10_000
MOST_BYTES = 100 << 20
_RUBBISH = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        ".venv",
        "__pycache__",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".hypothesis",
        ".ipynb_checkpoints",
        ".tox",
        ".nox",
        ".cache",
        ".eggs",
        "node_modules",
        "stoker-out",
        ".DS_Store",
    }
)
_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
"""What tells a folder with an interpreter of its own, whatever it is called."""
_HINT = ".stokerignore leaves files out; git init and git add name what belongs to it; --in-place sends nothing"
_MOST_NAMED = 3


def is_rubbish(name: str) -> bool:
    """Say whether a file or folder of this name is left out without a word."""
    return name in _RUBBISH or name.endswith((".pyc", ".egg-info"))


def walk_folder(root: str, ignored: IgnorePatterns, ours: Sequence[str]) -> tuple[dict[str, int], tuple[str, ...]]:
    """Give all files below a folder with their sizes, and what a person should know.

    `ours` are folders that are left out, by their whole paths. `BadInput`, with numbers, if there is far too much.
    """
    walk = _Walk(root, ignored, frozenset(os.path.realpath(one) for one in ours))
    walk.run()
    total_bytes = sum(walk.sizes.values())
    if total_bytes > MOST_BYTES:
        largest = sorted(walk.sizes.items(), key=lambda one: -one[1])[:_MOST_NAMED]
        named = ", ".join(f"{path} {format_size(size)}" for path, size in largest)
        most = format_size(MOST_BYTES)
        raise BadInput(
            f"{root}, which git does not track, has {format_size(total_bytes)}, more than {most}: {named}",
            hint=f"data = {{ NAME = PATH }} carries data; {_HINT}",
            size_bytes=total_bytes,
        )
    return walk.sizes, walk.notes()


class _Walk(FolderWalk):
    def __init__(self, root: str, ignored: IgnorePatterns, ours: frozenset[str]) -> None:
        super().__init__(root)
        self.sizes: dict[str, int] = {}
        self._ignored = ignored
        self._ours = ours
        self._odd: list[str] = []

    def notes(self) -> tuple[str, ...]:
        if not self._odd:
            return ()
        listed = ", ".join(self._odd[:_MOST_NAMED]) + (", …" if len(self._odd) > _MOST_NAMED else "")
        return (f"no part of the code, being neither files nor folders: {listed}",)

    def _take(self, path: str, entry: os.DirEntry[str]) -> None:
        if is_rubbish(entry.name):
            return
        if entry.is_dir(follow_symlinks=False):
            if not self._ignored.leaves_out_folder(path) and not self._is_ours(entry.path):
                self._enter(path)
        elif self._ignored and self._ignored.leaves_out(path):
            return
        elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
            self.sizes[path] = entry.stat(follow_symlinks=False).st_size
            if len(self.sizes) > MOST_FILES:
                raise self._too_many()
        else:
            kind = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
            self._odd.append(f"{path} ({_SORTS.get(kind, 'a device')})")

    def _is_ours(self, path: str) -> bool:
        if any(os.path.lexists(os.path.join(path, mark)) for mark in _ENVIRONMENTS):
            return True
        return bool(self._ours) and os.path.realpath(path) in self._ours

    def _too_many(self) -> BadInput:
        counts: dict[str, int] = {}
        for path in self.sizes:
            top, slash, _ = path.partition("/")
            if slash:
                counts[top] = counts.get(top, 0) + 1
        fullest = sorted(counts.items(), key=lambda one: -one[1])[:_MOST_NAMED]
        named = "".join(f", {top}/ {count:,}" for top, count in fullest)
        return BadInput(
            f"{self._root}, which git does not track, has more than {MOST_FILES:,} files{named}",
            hint=_HINT,
            most_files=MOST_FILES,
        )


_SORTS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
