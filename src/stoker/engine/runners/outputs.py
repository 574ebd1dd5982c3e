"""The outputs that a program's owner declared: what of them is new, taken into its result.

A program writes to `./runs` as it always has. What lay there before it started is not its result, so folders are
compared with how they looked then; a file that was declared by its name is taken as it is. A declared output may be a
link that somebody has laid to a larger disk: what is behind it then is what counts.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence

from stoker.core.digests import digest_bytes
from stoker.core.errors import BadInput
from stoker.core.frozen import frozen
from stoker.host.durable import translate
from stoker.host.locks import FileLock

_Look = tuple[int, int, int]


@frozen
class CollectedOutputs:
    """What became of the declared outputs."""

    missing: tuple[str, ...] = ()
    """Nothing is there."""
    stale: tuple[str, ...] = ()
    """Folders in which nothing is new."""
    twice: tuple[str, ...] = ()
    """Lies in the result already, because the program wrote it there itself."""


class DeclaredOutputs:
    """The declared outputs of one attempt, as they looked before it started."""

    def __init__(self, folder: str, declared: Sequence[str]) -> None:
        self._folder = folder
        self._declared = list(dict.fromkeys(checked_output(one) for one in declared))
        # Links that are there before the program are its owner's, and lead where the owner wants.
        self._links = {one: os.path.realpath(path) for one in self._declared if os.path.islink(path := self._at(one))}
        self._before = {path: look for one in self._declared for path, _, look in self._files(one)}

    def collect(self, into: str) -> CollectedOutputs:
        """Copy what is new or changed, unless there is no folder to copy to any more: the store has words for that."""
        if not os.path.isdir(into) or os.path.islink(into):
            return CollectedOutputs()
        missing, stale, twice = [], [], []
        taken: dict[str, str] = {}
        for one in self._declared:
            found = list(self._files(one))
            fresh = [(path, where) for path, where, look in found if path == one or self._before.get(path) != look]
            taken.update(fresh)
            if not found:
                missing.append(one)
            elif not fresh:
                stale.append(one)
        for path, where in taken.items():
            target = os.path.join(into, path)
            if os.path.lexists(target) or _passes_a_link(into, path):
                twice.append(path)
            else:
                try:
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    self._copy(where, path, target)
                except OSError as error:
                    raise translate(error, error.filename or target) from error
        return CollectedOutputs(missing=tuple(missing), stale=tuple(stale), twice=tuple(twice))

    def _copy(self, where: str, path: str, target: str) -> None:
        leads_to = os.readlink(where) if os.path.islink(where) else ""
        if os.path.isabs(leads_to) and leads_to.startswith(os.path.join(self._folder, "")):
            # It leads within the program's folder, so the result can keep it, told from where it lies.
            beside = os.path.dirname(os.path.join(self._folder, path))
            os.symlink(os.path.relpath(leads_to, beside), target)
        else:
            import shutil  # noqa: PLC0415 - milliseconds that a cached run never needs

            shutil.copy2(where, target, follow_symlinks=False)

    def _at(self, declared: str) -> str:
        return os.path.join(self._folder, declared)

    def _files(self, declared: str) -> Iterator[tuple[str, str, _Look]]:
        """Return every file by its name below the program's folder, with where it lies and how it looks."""
        top = self._at(declared)
        behind = self._links.get(declared)
        if behind is not None and os.path.realpath(top) == behind:
            top = behind
        if not os.path.isdir(top) or os.path.islink(top):
            yield from _look(top, declared)
            return
        for where, folders, names in os.walk(top):
            # A link to a folder is a link, and nobody walks through it.
            links = [name for name in folders if os.path.islink(os.path.join(where, name))]
            for name in (*names, *links):
                path = os.path.join(where, name)
                yield from _look(path, os.path.join(declared, os.path.relpath(path, top)))


def output_locks(root: str, folder: str, declared: Sequence[str]) -> list[FileLock]:
    """Return a lock for each declared output: two programs that write to one place would take each other's files.

    Locks lie below `root`, which every run of this user shares, and stand in an order in which all take them.
    """
    places = sorted({os.path.realpath(os.path.join(folder, checked_output(one))) for one in declared})
    return [FileLock(os.path.join(root, f"{digest_bytes(os.fsencode(place))}.lock"), purpose=place) for place in places]


def tidy_out(folder: str) -> tuple[str, ...]:
    """Make a folder that a program wrote a result that can be kept, as far as its meaning allows.

    Links that lead within it by its full name are told from where they lie, since it will lie elsewhere. Sockets, pipes
    and devices are no results: they are removed, and given by name.
    """
    if not os.path.isdir(folder) or os.path.islink(folder):
        return ()
    homes = tuple(os.path.join(home, "") for home in dict.fromkeys((folder, os.path.realpath(folder))))
    removed: list[str] = []
    left = [folder]
    while left:
        where = left.pop()
        try:
            with os.scandir(where) as found:
                entries = list(found)
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
                elif entry.is_symlink():
                    _tell_from_here(entry.path, where, homes)
                elif not entry.is_file(follow_symlinks=False):
                    os.unlink(entry.path)
                    removed.append(os.path.relpath(entry.path, folder))
        except OSError as error:
            raise translate(error, error.filename or where) from error
    return tuple(sorted(removed))


def _tell_from_here(link: str, where: str, homes: tuple[str, ...]) -> None:
    leads_to = os.readlink(link)
    home = next((home for home in homes if f"{leads_to}/".startswith(home)), "")
    if home:
        os.unlink(link)
        os.symlink(os.path.relpath(homes[0] + leads_to[len(home) :], where), link)


def checked_output(text: str) -> str:
    """Return a declared output in its normal form; `BadInput` unless it lies below the program's folder."""
    path = os.path.normpath(text)
    if not text or os.path.isabs(path) or path in (".", "..") or path.startswith("../") or "\0" in path:
        hint = "a file or folder below the one the program runs in, such as outputs=runs/"
        raise BadInput(f"{text!r} can't be a declared output", hint=hint)
    return path


def _passes_a_link(into: str, path: str) -> bool:
    """Return whether the program made a link where folders of the result would be: nothing is written through it."""
    while path := os.path.dirname(path):
        if os.path.islink(os.path.join(into, path)):
            return True
    return False


def _look(where: str, path: str) -> Iterator[tuple[str, str, _Look]]:
    try:
        info = os.lstat(where)
    except OSError:
        return
    # Sockets, pipes and devices are no results; where a link leads is for the store to judge.
    if stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode):
        yield path, where, (info.st_ino, info.st_size, info.st_mtime_ns)
