"""Data of a training: what a user names, found as files before anything is read.

A source is bundled, a file, a folder, or a data set of the hub (`org/name`, `org/name@revision`) in its cache. Files
are part of a stage's key by their content, so it does not matter where they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stoker.authoring import InputPath, PathOrName
from stoker.cookbooks.language.arguments import DataArgs, DataSource, SourceArgs
from stoker.cookbooks.language.bundled import DATA
from stoker.cookbooks.language.checks import LanguageArgsChecker, open_hub_cache
from stoker.cookbooks.language.columns import column_faults
from stoker.cookbooks.language.data_sets import CARD, MOST_FILES, SUFFIXES, chosen_files
from stoker.cookbooks.language.reading import layout_of
from stoker.core.errors import BadInput, MissingRepoFiles
from stoker.core.text import did_you_mean
from stoker.engine.recipe import surroundings

if TYPE_CHECKING:
    from stoker.transfer.hub.listing import Repo

_BUNDLED_HINT = f"bundled data is {', '.join(DATA)}"
_CARD_FILES = (CARD, ".gitattributes")
"""Small files of a data set, fetched before its data: the list of all its files comes with them."""
_WHOLE = tuple(pattern for one in SUFFIXES for pattern in (f"*{one}", f"*/*{one}"))
_LARGEST_CARD_BYTES = 4 << 20


class DataFinder:
    """Finds the sources of one training; faults are collected by the checker."""

    def __init__(self, checking: LanguageArgsChecker, args: DataArgs) -> None:
        self._checking = checking
        self._args = args

    def sources(self) -> tuple[SourceArgs, ...]:
        """Return every source with its files, those of the evaluation last."""
        given, args = self._args.data, self._args
        if "data" in surroundings().stand_ins:
            # What is meant is on another machine.
            return (SourceArgs(bundled=DATA[0]),)
        is_one = isinstance(given, str)
        listed = [given] if isinstance(given, str) else given
        if not listed:
            self._checking.note("data", "no data", f"a file, a folder, org/name of the hub, or {', '.join(DATA)}")
        found: list[SourceArgs] = []
        for number, one in enumerate(listed):
            where = "data" if is_one else f"data.{number}"
            source = DataSource(path=PathOrName(one)) if isinstance(one, str) else one
            found += self._found(where, source, source.split or args.split, is_eval=False)
            if args.eval_split:
                found += self._found(where, source, args.eval_split, is_eval=True)
        for where, message, hint in self._wrong_columns(listed):
            self._checking.note(where, message, hint)
        self._refuse_columns("columns", args.columns, found)
        if args.eval_split and found:
            if not self._checking.has_faults and not any(one.is_eval for one in found):
                self._checking.note("eval_split", "no source has splits: all are files", "leave it out")
            own = {file for one in found if not one.is_eval for file in one.files}
            if any(file in own for one in found if one.is_eval for file in one.files):
                self._checking.note(
                    "eval_split", f"{args.eval_split} is also the split to train on", "name another split"
                )
        return tuple(sorted(found, key=lambda one: one.is_eval))

    def _refuse_columns(self, where: str, columns: Mapping[str, str], sources: Sequence[SourceArgs]) -> None:
        """Add a fault if columns are named, and none of some sources has any."""
        if columns and sources and all(one.bundled or set(one.layouts) == {"text"} for one in sources):
            what = f"{sources[0].name} is {'bundled' if sources[0].bundled else 'plain text'}"
            self._checking.note(where, f"{what}: it has no columns", "leave it out")

    def _wrong_columns(self, listed: Sequence[str | DataSource]) -> Iterator[tuple[str, str, str]]:
        mappings: dict[str, Mapping[str, str]] = {"columns": self._args.columns}
        mappings |= {f"data.{n}.columns": one.columns for n, one in enumerate(listed) if isinstance(one, DataSource)}
        for where, columns in mappings.items():
            for fault in column_faults(columns, where):
                yield fault.where, fault.message, fault.hint

    def _found(self, where: str, source: DataSource, split: str, *, is_eval: bool) -> list[SourceArgs]:
        """Return a source with its files; nothing after noting a fault."""
        found = self._located(where, source, split, is_eval=is_eval)
        self._refuse_columns(f"{where}.columns", source.columns, found)
        return found

    def _located(self, where: str, source: DataSource, split: str, *, is_eval: bool) -> list[SourceArgs]:
        checking, text = self._checking, source.path.strip()
        split_name = "eval_split" if is_eval else "split"
        made = SourceArgs(
            name=text,
            weight=source.weight,
            columns=dict(source.columns or self._args.columns),
            is_eval=is_eval,
        )
        if not text:
            checking.note(where, "is empty", f"a file, a folder, org/name of the hub, or {', '.join(DATA)}")
            return []
        path = Path(os.path.expanduser(text))
        is_folder = path.is_dir()
        repo = None if is_folder or text in DATA else data_repository(text)
        if is_eval and not is_folder and repo is None and not isinstance(self._args.data, str):
            # Among several sources, a file is for training.
            return []
        if not is_folder and repo is None and (split or source.subset or self._args.subset):
            what = split_name if split else "subset"
            checking.note(
                what,
                f"{text} is neither a folder nor a data set of the hub: it has no splits or subsets",
                "leave it out",
            )
            return []
        if text in DATA:
            checking.bundled(where, text)
            return [changed_source(made, bundled=text)]
        if is_folder or repo is not None:
            return self._of_set(where, made, repo, _FolderRequest(source.subset or self._args.subset, split))
        return [changed_source(made, files=(path,))] if self._is_file(where, text, path) else []

    def _of_set(
        self, where: str, made: SourceArgs, repo: tuple[Repo, str] | None, wanted: _FolderRequest
    ) -> list[SourceArgs]:
        """Return the chosen files of a folder or a data set; nothing after noting a fault."""
        text = made.name
        path = Path(os.path.expanduser(text))
        try:
            root, names = _of_folder(path, wanted) if repo is None else self._of_repository(where, text, repo, wanted)
        except BadInput as error:
            self._checking.note(where, f"{text}: {error.message}", error.hint)
            return []
        if not names:
            return []
        folder = InputPath(os.path.abspath(root)) if repo is None else None
        return [changed_source(made, root=folder, files=tuple(root / one for one in names))]

    def _is_file(self, where: str, text: str, path: Path) -> bool:
        if not path.is_file():
            is_path = path.suffix or path.parent != Path()
            if path.exists():
                self._checking.note(where, f"{text} is no regular file", "copy what it gives into a file")
                return False
            message = f"file not found: {text}" if is_path else f"{text!r} is neither a file nor bundled data"
            hint = _BUNDLED_HINT if is_path else did_you_mean(text, DATA) or _BUNDLED_HINT
            self._checking.note(where, message, hint)
        elif path.stat().st_size == 0:
            self._checking.note(where, f"{text} is empty", 'one JSON object per line, such as {"text": "…"}')
        else:
            return True
        return False

    def _of_repository(
        self, where: str, text: str, at: tuple[Repo, str], wanted: _FolderRequest
    ) -> tuple[Path, tuple[str, ...]]:
        """Return the files of a data set in the hub's cache; none after noting what is missing there."""
        repo, revision = at
        cache = open_hub_cache()
        commit = cache.commit_at(repo, revision)
        listed = cache.read_tree(repo, commit) if commit else None
        named = f"{repo}@{revision}" if "@" in text else str(repo)
        if not commit or (listed is None and surroundings().fetches()):
            lack = MissingRepoFiles(argument="data", repo=named, names=_CARD_FILES, whole=_WHOLE)
            self._checking.note(
                where, f"{text} is neither a file nor in the hub's cache", f"stoker fetch {named}", lack
            )
            return Path(), ()
        root = Path(cache.snapshot(repo, commit))
        paths = [one.path for one in listed or cache.read_snapshot(repo, commit) if is_inside(one.path)]
        chosen = chosen_files(paths, _card(root), subset=wanted.subset, split=wanted.split)
        missing = tuple(one for one in chosen.files if not (root / one).is_file())
        if missing:
            lack = MissingRepoFiles(argument="data", repo=named, names=missing, whole=chosen.files)
            what = f"{chosen.split} of {text}" if chosen.split else text
            message = f"{len(missing):,} of {len(chosen.files):,} files of {what} are not in the hub's cache"
            self._checking.note(where, message, f"stoker fetch {named}", lack)
            return root, ()
        return root, chosen.files


class _FolderRequest(NamedTuple):
    """What is wanted of a data set of several files."""

    subset: str
    split: str


def changed_source(source: SourceArgs, **new: object) -> SourceArgs:
    """Return a source with other fields; paths become whole, as the stage runs in another folder."""
    files = new.get("files")
    if isinstance(files, tuple):
        new |= {
            "files": tuple(InputPath(os.path.abspath(one)) for one in files),
            "layouts": tuple(map(layout_of, files)),
        }
    return SourceArgs(**{one.name: getattr(source, one.name) for one in fields(source)} | new)


def data_repository(text: str) -> tuple[Repo, str] | None:
    """Return the data set of the hub and the revision that a text names; None if it is a path."""
    from stoker.transfer.hub.listing import may_be_data_set, read_repo_at

    return read_repo_at(f"datasets/{text.removeprefix('datasets/')}") if may_be_data_set(text, "") else None


def is_inside(path: str) -> bool:
    """Return True if a path in a listing stays in its folder."""
    return not path.startswith("/") and ".." not in path.split("/") and "\0" not in path


def _of_folder(folder: Path, wanted: _FolderRequest) -> tuple[Path, tuple[str, ...]]:
    paths = list(_walked(folder))
    return folder, chosen_files(paths, _card(folder), subset=wanted.subset, split=wanted.split).files


def _walked(folder: Path) -> Iterator[str]:
    """Yield the files below a folder. Raises `BadInput` for a link that leads out of it."""
    allowed = _allowed(folder)
    count = 0
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        for name in sorted((*names, *(one for one in folders if os.path.islink(os.path.join(root, one))))):
            path = os.path.join(root, name)
            count += 1
            if count > MOST_FILES:
                raise BadInput(f"it has more than {MOST_FILES:,} files", hint="name one of them")
            if os.path.islink(path):
                real = os.path.realpath(path)
                if not any(real.startswith(f"{one}{os.sep}") for one in allowed):
                    raise BadInput(f"{os.path.relpath(path, folder)} is a link out of the folder", hint="copy the file")
            if not name.startswith(".") and os.path.isfile(path):
                yield os.path.relpath(path, folder).replace(os.sep, "/")


def _allowed(folder: Path) -> tuple[str, ...]:
    """Return the folders that links may lead to: a snapshot in the hub's cache links to the bytes beside it."""
    real = Path(os.path.realpath(folder))
    if real.parent.name != "snapshots":
        return (str(real),)
    return str(real), str(real.parent.parent / "blobs"), str(real.parent.parent.parent / "blobs")


def _card(folder: Path) -> str:
    if not (folder / CARD).is_file():
        # A pipe would block.
        return ""
    try:
        with (folder / CARD).open(encoding="utf-8", errors="replace") as file:
            return file.read(_LARGEST_CARD_BYTES)
    except OSError:
        return ""
