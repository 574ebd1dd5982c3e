"""What stays behind when a project's code is sent: files of a program's folder that its job will not have.

    left = find_left_behind(project, tree, jobs, ours=builder.own_folders)
    left.lines()        notes for the user: what the program names first, then the largest folders
    missing_file_hint(spec, messages)       of a job that failed for the lack of one

Caches, environments and results of Stoker are no files of a program, and what the jobs get as data is not missing. Only
names and sizes are read, of a bounded number of files. A path that is written in a program's own files or in its
arguments is a guess at what it reads: nothing depends on it.
"""

from __future__ import annotations

import os
import shlex
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from stoker.core.digests import Tree
from stoker.core.frozen import frozen
from stoker.core.job import JobSpec
from stoker.core.text import counted, format_size, lazy_pattern, outside, some_of
from stoker.jobs.pack.ignore import IgnorePatterns
from stoker.jobs.pack.project import (
    IGNORE_FILE,
    MOST_BYTES,
    MOST_FILES,
    Project,
    is_left_out_folder,
    is_rubbish,
    read_ignore_file,
)
from stoker.store.results import SIDECAR, files_written

UNTRACKED, EXCLUDED = "not tracked by git", f"excluded by {IGNORE_FILE}"
_MOST_SEEN = 100_000
_MOST_LEFT = 10_000
_MOST_LISTED = 3
_MOST_READ = 50
_MOST_WORDS = 1000
_SMALL_BYTES = 1 << 20
_LARGEST_READ_BYTES = 1 << 20
_QUOTED = lazy_pattern(r"""["']([\w./ +@,=-]{2,200})["']""")
_WORD = lazy_pattern(r"[\w./+@-]{2,200}")
_MISSING = lazy_pattern(r"No such file or directory|FileNotFoundError|(?i:not found|does not exist)")
_FRAME = lazy_pattern(r" \([^()]*:\d+\)$")
# Where a worker makes the copy of a project.
_WORKSPACE = lazy_pattern(r"^/.*/workspaces/[^/]+/")
# What programs write: its absence is no fault.
_WRITTEN = lazy_pattern(
    r"(?i)(out|outputs?|runs?|logs?|tb_logs|lightning_logs|wandb|mlruns|checkpoints?|ckpts?|results?|artifacts?)"
    r"([-_.].*)?"
)


@frozen
class LeftGroup:
    """Files below one entry of a program's folder that are not sent."""

    path: str
    """The folder that has all of them, with its `/`; or the only file."""
    why: str
    files: int
    size_bytes: int
    is_link: bool = False
    """A symlink, whose target is not looked at."""
    refused: str = ""
    """A path below it that can't be sent, such as a pipe or a link out of the folder."""

    def words(self, *, is_manifest: bool = False) -> str:
        """Return the options that send it, or the keys of a manifest."""
        path = self.path.rstrip("/")
        place = path if "/" in path else f"./{path}"
        if is_manifest:
            as_data, include = f'data = {{ "{place}" = "{path}" }}', f'include = ["{self.path}"]'
        else:
            as_data, include = f"--data {shlex.quote(f'{place}={path}')}", f"--include {shlex.quote(self.path)}"
        is_code = not self.is_link and self.size_bytes <= MOST_BYTES and self.files < MOST_FILES
        return f"{include}, or {as_data}" if is_code else as_data


@frozen
class NamedPath:
    """A path in a program's own text that stays behind."""

    where: str
    """The file that names it; empty: the command."""
    text: str
    path: str
    """Below the program's folder; of a folder with its `/`."""


@frozen
class LeftBehind:
    """What one program's folder has and its job does not get."""

    groups: tuple[LeftGroup, ...] = ()
    """Largest first."""
    named: tuple[NamedPath, ...] = ()
    is_complete: bool = True
    """False if there were more files than are looked at."""

    def lines(self, *, is_manifest: bool = False) -> Iterator[str]:
        """Return notes for the user; none if nothing of it may matter."""
        by_file: dict[str, list[str]] = {}
        for one in self.named:
            by_file.setdefault(one.where, []).append(one.path)
        for where, paths in [*by_file.items()][:_MOST_LISTED]:
            stay = "which stays behind" if len(paths) == 1 else "which stay behind"
            yield f"{outside(where) or 'the command'} names {outside(some_of(paths, _MOST_LISTED))}, {stay}"
        named = [one.path for one in self.named]
        first = [one for one in self.groups if any(path.startswith(one.path) for path in named)]
        shown = [*first, *(one for one in self.groups if _may_matter(one.path) and one not in first)]
        if not shown:
            return
        at_least = "" if self.is_complete else "at least "
        listed = [_group_text(one, at_least) for one in shown]
        is_small = self.is_complete and not named and sum(one.size_bytes for one in shown) < _SMALL_BYTES
        is_small = is_small and not any(one.is_link for one in shown)
        include = "include" if is_manifest else "--include"
        yield f"not sent: {outside(some_of(listed, _MOST_LISTED))}{f'; {include} sends them' if is_small else ''}"
        if is_small:
            return
        refused = (
            f", first remove {shown[0].refused} (no file with a Unicode name, or a link out of it)"
            if shown[0].refused
            else ""
        )
        yield outside(f"to send {shown[0].path}{refused}: {shown[0].words(is_manifest=is_manifest)}")

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        return {
            "files": sum(one.files for one in self.groups),
            "size_bytes": sum(one.size_bytes for one in self.groups),
            "is_complete": self.is_complete,
            "folders": [
                {
                    "path": one.path,
                    "why": one.why,
                    "files": one.files,
                    "size_bytes": one.size_bytes,
                    "is_link": one.is_link,
                    "send": "" if one.refused else one.words(),
                }
                for one in self.groups
            ],
            "named": [{"where": one.where, "text": one.text, "path": one.path} for one in self.named],
        }


def find_left_behind(project: Project, tree: Tree, jobs: Sequence[JobSpec], *, ours: Sequence[str] = ()) -> LeftBehind:
    """Return what stays behind of a project's folder if the tree is sent as the code of these jobs.

    `ours` are Stoker's own folders. What can't be read is skipped.
    """
    folder = os.path.join(project.root, project.folder)
    prefix = f"{project.folder}/" if project.folder else ""
    given = {one.path for job in jobs for one in job.inputs if one.path}
    given |= {os.path.join(folder, os.path.normpath(str(one))) for job in jobs for one in job.args.get("outputs", ())}
    ignored = IgnorePatterns(read_ignore_file(project.root))
    walk = _LeftWalk(folder, given, ours)
    walk.run({entry.path.removeprefix(prefix) for entry in tree.entries if entry.path.startswith(prefix)})
    is_excluded = {path: ignored.leaves_out(prefix + path) for path in walk.sizes} if ignored else {}
    words = {word for job in jobs for word in map(str, job.args.get("argv", ()))}
    scripts = {name for job in jobs for name in job.code if not name.startswith(("/", "../"))}
    return LeftBehind(
        groups=tuple(_groups(walk, is_excluded)),
        named=tuple(_named(folder, words, sorted(scripts)[:_MOST_READ], walk.sizes)) if walk.sizes else (),
        is_complete=walk.is_complete,
    )


def missing_file_hint(spec: JobSpec, texts: Iterable[str]) -> str:
    """Return a hint if a failed program missed a file that is in the folder that it was submitted from; else empty.

    `texts` are messages and lines of its output. The file is looked for on this machine.
    """
    if not spec.code_tree or not os.path.isdir(spec.folder):
        return ""
    for text in texts:
        for path in _missing_paths(text, spec) if _MISSING.search(text) else ():
            whole = os.path.join(spec.folder, path)
            if path in spec.code or not os.path.lexists(whole):
                continue
            above = os.path.dirname(path)
            is_folder = os.path.isdir(whole) and not os.path.islink(whole)
            group = LeftGroup(
                path=f"{path if is_folder else above}/" if is_folder or above else path,
                why="",
                files=1,
                size_bytes=os.lstat(whole).st_size,
                is_link=os.path.islink(whole),
            )
            lies = f"{path} is in the folder that the job was submitted from, and was not sent"
            return outside(f"{lies}: submit with {group.words()}")
    return ""


def _missing_paths(text: str, spec: JobSpec) -> Iterator[str]:
    """Return the paths that a message names, relative to the program's folder."""
    text = _FRAME.sub("", text)
    root = spec.folder.removesuffix(spec.code_folder) if spec.code_folder else spec.folder
    for word in (*_QUOTED.findall(text), *_WORD.findall(text)):
        inside = _WORKSPACE.sub("", word)
        path = os.path.relpath(os.path.join(root if inside != word else spec.folder, inside), spec.folder)
        if path not in (".", "..") and not path.startswith("../") and ("/" in word or "." in word):
            yield path


def _may_matter(path: str) -> bool:
    """Return True if a path is neither hidden nor, by its name, what programs write."""
    top = path.partition("/")[0]
    return not top.startswith(".") and not _WRITTEN.fullmatch(top)


def _group_text(group: LeftGroup, at_least: str) -> str:
    if group.is_link:
        return f"{group.path} (a symlink, {group.why})"
    count = f"{counted(group.files, 'file')}, " if group.path.endswith("/") else ""
    return f"{group.path} ({at_least}{count}{format_size(group.size_bytes)}, {group.why})"


class _LeftWalk:
    """One bounded pass over a program's folder, its upper levels first."""

    def __init__(self, folder: str, given: Collection[str], ours: Sequence[str]) -> None:
        self.sizes: dict[str, int] = {}
        """Every file that is not sent, below the folder."""
        self.links: dict[str, str] = {}
        """Symlinks among them, and their targets."""
        self.odd: list[str] = []
        """What can't be sent: pipes and the like, and names that are no Unicode."""
        self.is_complete = True
        self._folder = folder
        self._given = given
        self._ours = frozenset(os.path.realpath(one) for one in ours)
        self._results: set[str] = set()
        """Files that Stoker wrote there."""
        self._seen = 0

    def run(self, sent: Collection[str]) -> None:
        """Walk the folder; `sent` are the files that the job gets."""
        folders = deque([""])
        while folders and self.is_complete:
            prefix = folders.popleft()
            for entry in self._entries(prefix):
                path = prefix + entry.name
                self._seen += 1
                if self._seen > _MOST_SEEN or len(self.sizes) >= _MOST_LEFT:
                    self.is_complete = False
                    return
                if is_rubbish(entry.name) or entry.path in self._given:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if not is_left_out_folder(entry.path, self._ours):
                        folders.append(f"{path}/")
                elif path not in sent and path not in self._results:
                    self._add(path, entry)

    def _entries(self, prefix: str) -> list[os.DirEntry[str]]:
        """Return the entries of a folder; none if it can't be read."""
        where = os.path.join(self._folder, prefix)
        try:
            with os.scandir(where) as found:
                # One folder alone may have a million.
                entries = [entry for _, entry in zip(range(_MOST_SEEN), found, strict=False)]
        except OSError:
            return []
        if any(entry.name == SIDECAR for entry in entries):
            self._results.update(prefix + path for path in (SIDECAR, *files_written(where)))
        return entries

    def _add(self, path: str, entry: os.DirEntry[str]) -> None:
        try:
            if entry.is_symlink():
                if os.path.realpath(entry.path) not in self._given:
                    self.links[path] = os.readlink(entry.path)
                    self.sizes[path] = 0
            elif entry.is_file(follow_symlinks=False):
                self.sizes[path] = entry.stat(follow_symlinks=False).st_size
            if path not in self.sizes or path.encode(errors="replace").decode() != path:
                self.odd.append(path)
        except OSError:
            return


def _groups(walk: _LeftWalk, is_excluded: Mapping[str, bool]) -> list[LeftGroup]:
    by_top: dict[tuple[str, str], list[str]] = {}
    for path in walk.sizes:
        top, slash, _ = path.partition("/")
        why = EXCLUDED if is_excluded.get(path) else UNTRACKED
        by_top.setdefault((top + slash, why), []).append(path)
    may_be_refused: dict[str, list[str]] = {}
    for path in (*walk.links, *walk.odd):
        may_be_refused.setdefault(path.partition("/")[0] + "/", []).append(path)
    groups = []
    for (top, why), paths in by_top.items():
        path = _folder_of_all(paths) if top.endswith("/") else top
        refused = (one for one in may_be_refused.get(top, ()) if _is_refused_below(path, one, walk.links.get(one)))
        groups.append(
            LeftGroup(
                path=path,
                why=why,
                files=len(paths),
                size_bytes=sum(walk.sizes[path] for path in paths),
                is_link=top in walk.links,
                refused=next(refused, ""),
            )
        )
    return sorted(groups, key=lambda one: (-one.size_bytes, not one.is_link, one.path))


def _is_refused_below(folder: str, path: str, link_to: str | None) -> bool:
    """Return True if what is at a path keeps a folder from being sent: a link out of it, or no file."""
    if link_to is None:
        return path.startswith(folder)
    target = os.path.normpath(os.path.join(os.path.dirname(path), link_to))
    return path.startswith(folder) and not f"{target}/".startswith(folder)


def _folder_of_all(paths: Sequence[str]) -> str:
    return f"{os.path.commonpath([os.path.dirname(path) for path in paths])}/"


def _named(folder: str, words: Iterable[str], scripts: Iterable[str], left: Iterable[str]) -> list[NamedPath]:
    """Return the paths that words and scripts name, files before folders, each once."""
    index = _LeftIndex(left)
    found: dict[str, NamedPath] = {}
    for where, texts in [("", _texts_of(words)), *((name, _texts_in(folder, name)) for name in scripts)]:
        for text in texts:
            path = index.path_of(text, os.path.dirname(where))
            if path and path not in found:
                found[path] = NamedPath(where=where, text=text, path=path)
    files = [path for path in found if not path.endswith("/")]
    folders = [path for path in found if path.endswith("/") and not any(file.startswith(path) for file in files)]
    return [found[path] for path in (*files, *folders)]


class _LeftIndex:
    """Files that stay behind and may be read, by their path, their name, and the folders that have them."""

    def __init__(self, left: Iterable[str]) -> None:
        self._files = {path for path in left if _may_matter(path)}
        self._names: dict[str, str] = {}
        self._folders: set[str] = set()
        for path in sorted(self._files):
            above, _, name = path.rpartition("/")
            self._names.setdefault(name, path)
            while above and above not in self._folders:
                self._folders.add(above)
                above = above.rpartition("/")[0]

    def path_of(self, text: str, beside: str) -> str:
        """Return the path that a text of a script in the folder `beside` names; empty if it names none."""
        path = os.path.normpath(text)
        for one in (path, os.path.normpath(os.path.join(beside, path))):
            if one in self._files:
                return one
            if one in self._folders:
                return f"{one}/"
        # `train.bin`, of a folder that the program puts together.
        return self._names.get(path, "") if "." in path.strip(".") and "/" not in path else ""


def _texts_of(words: Iterable[str]) -> Iterator[str]:
    for word in sorted(words)[:_MOST_WORDS]:
        yield word
        yield word.partition("=")[2]


def _texts_in(folder: str, name: str) -> list[str]:
    """Return the words of a program's file that may be paths."""
    try:
        with open(os.path.join(folder, name), "rb") as file:
            text = file.read(_LARGEST_READ_BYTES).decode(errors="replace")
    except OSError:
        return []
    return list(dict.fromkeys((_QUOTED if name.endswith(".py") else _WORD).findall(text)))
