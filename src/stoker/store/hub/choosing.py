"""Which files of a repository are meant: by name, by pattern, or all of them.

Patterns are those of the hub's own client: `*` also matches `/`, case counts, and a pattern that ends in `/` means
everything below that folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from stoker.model.errors import BadInput, NotOnServer
from stoker.model.suggest import did_you_mean
from stoker.store.hub.repo_file import RepoFile


def choose(
    files: Sequence[RepoFile],
    *,
    names: Sequence[str] = (),
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> tuple[RepoFile, ...]:
    """Give the files that are meant, in the repository's order.

    A name is a file's path, a folder's with a `/` at its end, or a pattern; a file must fit one of the names, one of
    `include` and none of `exclude`. Raises `NotOnServer` that lists all the names and patterns that match nothing:
    asking for something that is not there is never an empty success. Raises `BadInput` where nothing is left.
    """
    paths = [file.path for file in files]
    known = set(paths)
    idle = [text for text in (*names, *include) if text not in known and not any(map(_Texts([text]).fit, paths))]
    if idle:
        message = f"the repository has no {', '.join(map(repr, idle))}"
        is_folder = any(path.startswith(f"{idle[0]}/") for path in paths)
        hint = f"{idle[0]}/ is a folder: say {idle[0]}/" if is_folder else did_you_mean(idle[0], paths)
        raise NotOnServer(message, hint=hint, missing=idle, reason="EntryNotFound")
    wanted = [_Texts(texts) for texts in (names, include) if texts]
    unwanted = _Texts(exclude)
    chosen = tuple(
        file for file in files if all(texts.fit(file.path) for texts in wanted) and not unwanted.fit(file.path)
    )
    if not chosen and files:
        raise BadInput("nothing is left to fetch", hint="names and patterns exclude every file", files=len(files))
    return chosen


def fitting(files: Sequence[RepoFile], texts: Sequence[str]) -> tuple[RepoFile, ...]:
    """Give the files at a repository's top that fit one of some names and patterns; what fits nothing is no matter."""
    wanted = _Texts(texts)
    return tuple(file for file in files if "/" not in file.path and wanted.fit(file.path))


class _Texts:
    """Names and patterns that a path may fit. A path fits itself, whatever signs are in it."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._names = frozenset(texts)
        self._patterns = [
            f"{text}*" if text.endswith("/") else text for text in texts if text.endswith("/") or set(text) & set("*?[")
        ]

    def fit(self, path: str) -> bool:
        return path in self._names or any(fnmatchcase(path, pattern) for pattern in self._patterns)
