"""Results as plain folders: `stoker-out/NAME/`, for people who need files and not a store.

Our files there are listed in a hidden sidecar (`.stoker.json`), before and after, so that the next run replaces exactly
its own files, also those of a run that was killed half-way. A file that was edited meanwhile is kept beside the new
one, with `~` after its name; so is whatever else is in the way. Nothing else is touched, nothing is written or removed
through a symlink in the folder, and a file that is right already stays as it is.

A folder holds one result, or the folders of a sweep's trials, never both: `set_aside` renames the whole folder of the
other shape to `NAME~`. A folder that a running job writes to is never renamed: the later job gets one from
`make_beside`.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
from collections.abc import Callable
from typing import Any

from stoker.core.digests import Tree, TreeEntry, digest_bytes
from stoker.core.errors import BadInput, StokerError
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps, loads
from stoker.host.durable import replace_symlink, sweep_temps, sync_dir, translated, write_file
from stoker.store.local_store import LocalStore
from stoker.store.records import Record
from stoker.store.tree_views import copy_entry
from stoker.store.trees import hash_file

SIDECAR = ".stoker.json"


@frozen
class ResultPart:
    """One record's files, laid below a folder of the result (empty: at its top)."""

    record: Record
    folder: str
    sidecar: dict[str, Any]
    """Its fields in the sidecar: kind, version, digest, stage, time."""


@frozen
class MaterialisedResult:
    """Content of a result's folder now."""

    folder: str
    files: tuple[str, ...]
    kept_edits: tuple[str, ...]
    """Edited files, and others that were in the way, under their new names."""


def lay_out(
    store: LocalStore,
    parts: list[ResultPart],
    folder: str,
    *,
    on_file: Callable[[int], None] = lambda _size_bytes: None,
) -> MaterialisedResult:
    """Make a folder show these results and nothing older of ours. All their bytes must be in the store.

    `on_file` is called with the size of each file that it has from now on.
    """
    wanted = _wanted(parts)
    with translated(folder):
        os.makedirs(folder, exist_ok=True)
        # Whatever its age: its writer was killed, and those of living processes stay.
        sweep_temps(folder, older_than_s=0.0, now_s=math.inf)
        target = _ResultFolder(folder)
        obsolete = [path for path in target.claims if path not in wanted]
        missing = [path for path, (_, entry) in wanted.items() if not target.shows(path, entry)]
        if missing or obsolete:
            target.announce({path: _content(wanted[path][1]) for path in missing})
            for path in obsolete:
                target.remove(path)
            for path in missing:
                target.make_way(path)
                record, entry = wanted[path]
                target.place(path, entry, copy_entry(store, record, entry, top=folder, path=path))
                on_file(entry.size_bytes)
            for below in {os.path.dirname(path) for path in missing}:
                sync_dir(os.path.join(folder, below))
        target.settle([{"folder": part.folder or ".", **part.sidecar} for part in parts])
    return MaterialisedResult(folder=folder, files=tuple(sorted(wanted)), kept_edits=tuple(sorted(target.kept)))


def tree_of(parts: list[ResultPart]) -> Tree:
    """Return the tree of the files that `lay_out` would write."""
    return Tree(
        tuple(
            TreeEntry(path, entry.size_bytes, entry.sha256, entry.executable, entry.link_to)
            for path, (_, entry) in sorted(_wanted(parts).items())
        )
    )


def set_aside(folder: str, *, for_trials: bool) -> str:
    """Rename a folder with results of the other shape; return its new path, empty if there was nothing to rename.

    `for_trials`: trials of a sweep are to be laid out below it, so one result at its top is of the other shape;
    otherwise folders of trials are.
    """
    sidecar = os.path.join(folder, SIDECAR)
    if for_trials:
        is_other = is_sidecar(sidecar)
    else:
        claims = _read_claims(_read(sidecar))
        is_other = any(f"{name}/{SIDECAR}" not in claims for name in _trial_folders(folder))
    return _rename_aside(folder) if is_other else ""


def make_beside(folder: str) -> str:
    """Make a new folder, `NAME~`, or `NAME~2` and so on; return its path. No other run uses it then."""
    with translated(folder):
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        while True:
            beside = _free_name(folder)
            with contextlib.suppress(FileExistsError):
                os.mkdir(beside)
                return beside


def files_written(folder: str) -> frozenset[str]:
    """Return the files of a folder, `/`-separated, that `lay_out` wrote there; none if it has no sidecar of ours."""
    sidecar = os.path.join(folder, SIDECAR)
    return frozenset(_read_claims(_read(sidecar))) if is_sidecar(sidecar) else frozenset()


def files_of_part(folder: str, part: str = ".") -> frozenset[str]:
    """Return the files that `lay_out` wrote for one result below a folder (`.`: at its top), without those below it.

    Paths are relative to that result.
    """
    written = files_written(folder)
    if not written:
        return written
    artifacts = loads(_read(os.path.join(folder, SIDECAR)))["artifacts"]
    within = "" if part == "." else f"{part}/"
    named = (f"{one.get('folder', '.')}/" for one in artifacts if isinstance(one, dict))
    below = tuple(name for name in named if name.startswith(within) and name not in ("./", within))
    mine = (path for path in written if path.startswith(within) and not path.startswith(below))
    return frozenset(path[len(within) :] for path in mine)


def digests_shown(folder: str) -> frozenset[str]:
    """Return the digests of the results that `lay_out` wrote to a folder; none if a file of them has changed since."""
    if not is_sidecar(os.path.join(folder, SIDECAR)):
        return frozenset()
    target = _ResultFolder(folder)
    if not all(map(target.is_as_written, target.claims)):
        return frozenset()
    artifacts = loads(_read(os.path.join(folder, SIDECAR)))["artifacts"]
    return frozenset(str(one["digest"]) for one in artifacts if isinstance(one, dict) and "digest" in one)


def is_sidecar(path: str) -> bool:
    """Return True if a file is a sidecar that we wrote, and not a user's own file of that name."""
    if os.path.islink(path):
        return False
    try:
        body = loads(_read(path))
    except ValueError:
        return False
    if not isinstance(body, dict) or body.keys() != {"v", "artifacts", "files"}:
        return False
    return isinstance(body["artifacts"], list) and isinstance(body["files"], dict)


def point_last_at(out: str, name: str) -> None:
    """Make `stoker-out/last` lead to the newest result; a user's own file of that name stays."""
    link = os.path.join(out, "last")
    with translated(link):
        if not os.path.lexists(link) or led_beside(link) is not None:
            replace_symlink(name, link)


def led_beside(link: str) -> str | None:
    """Return the name of the folder beside a link that it leads, or led, to. Links of ours do; None otherwise."""
    try:
        name = os.readlink(link)
    except OSError:
        return None
    if os.path.basename(name) != name or name in (".", ".."):
        return None
    folder = os.path.join(os.path.dirname(link), name)
    return name if os.path.isdir(folder) or not os.path.lexists(folder) else None


# What we put at a path: its content, and size, inode and mtime once it was there.
_Claim = tuple[str, int | None, int | None, int | None]


class _ResultFolder:
    """A result's folder while it is changed. All paths are relative to it."""

    def __init__(self, folder: str) -> None:
        self.kept: list[str] = []
        self._folder = folder
        self._sidecar = os.path.join(folder, SIDECAR)
        self._text = _read(self._sidecar)
        self.claims = _read_claims(self._text)
        self._files: dict[str, list[_Claim]] = {}

    def shows(self, path: str, entry: TreeEntry) -> bool:
        """Return True if an entry's file is there already; it is ours then, whatever program made it."""
        info = self._look(path)
        if info is None:
            return False
        if entry.link_to is None and bool(info.st_mode & stat.S_IXUSR) is not entry.executable:
            return False
        if self._content_at(path, info) != _content(entry):
            return False
        self.place(path, entry, info)
        return True

    def is_as_written(self, path: str) -> bool:
        """Return True if a file of ours is there and has not been changed."""
        info = self._look(path)
        return info is not None and self._is_ours(path, info)

    def place(self, path: str, entry: TreeEntry, info: os.stat_result) -> None:
        """Note a file of ours that is there now."""
        self._files[path] = [(_content(entry), info.st_size, info.st_ino, info.st_mtime_ns)]

    def announce(self, contents: dict[str, str]) -> None:
        """Write what is about to be put where, beside what is there, to the sidecar."""
        for path, content in contents.items():
            self.claims.setdefault(path, []).append((content, None, None, None))
        self._write({"v": 1, "artifacts": [], "files": self.claims})

    def remove(self, path: str) -> None:
        """Remove a file of ours that is no result any more; an edited one is renamed."""
        info = self._look(path)
        if info is None or stat.S_ISDIR(info.st_mode):
            return
        if not self._is_ours(path, info):
            self._put_aside(path)
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._folder, path))
        while path := os.path.dirname(path):
            try:
                os.rmdir(os.path.join(self._folder, path))
            except OSError:
                return

    def make_way(self, path: str) -> None:
        """Rename whatever is not ours at a path, and what is not a folder on the way there."""
        for folder in _folders_above(path):
            info = _lstat(os.path.join(self._folder, folder))
            if info is not None and not stat.S_ISDIR(info.st_mode):
                self._put_aside(folder)
        info = self._look(path)
        if info is not None and not self._is_ours(path, info):
            self._put_aside(path)

    def settle(self, artifacts: list[dict[str, Any]]) -> None:
        """Write what is there to the sidecar."""
        self._write({"v": 1, "artifacts": artifacts, "files": dict(sorted(self._files.items()))})

    def _look(self, path: str) -> os.stat_result | None:
        """Return the stat of a path, unless something but a folder is on the way there."""
        for folder in _folders_above(path):
            info = _lstat(os.path.join(self._folder, folder))
            if info is None or not stat.S_ISDIR(info.st_mode):
                return None
        return _lstat(os.path.join(self._folder, path))

    def _is_ours(self, path: str, info: os.stat_result) -> bool:
        contents = {claim[0] for claim in self.claims.get(path, ())}
        return bool(contents) and self._content_at(path, info) in contents

    def _content_at(self, path: str, info: os.stat_result) -> str:
        for content, *stamp in self.claims.get(path, ()):
            if stamp == [info.st_size, info.st_ino, info.st_mtime_ns]:
                return content
        full = os.path.join(self._folder, path)
        if stat.S_ISLNK(info.st_mode):
            return f"link:{digest_bytes(os.fsencode(os.readlink(full)))}"
        try:
            return hash_file(full)[0] if stat.S_ISREG(info.st_mode) else ""
        except StokerError:
            # Not readable for us, so not as we left it.
            return ""

    def _put_aside(self, path: str) -> None:
        kept = _rename_aside(os.path.join(self._folder, path))
        if kept:
            self.kept.append(os.path.relpath(kept, self._folder))

    def _write(self, body: dict[str, Any]) -> None:
        text = (dumps(body, indent=1) + "\n").encode()
        if text != self._text:
            info = _lstat(self._sidecar)
            if info is not None and stat.S_ISDIR(info.st_mode):
                self._put_aside(SIDECAR)
            write_file(self._sidecar, text)
            self._text = text


def _rename_aside(path: str) -> str:
    """Rename with `~` after the name, or `~2` and so on; return the new path, empty if nothing has that name."""
    kept = _free_name(path)
    # Two processes that lay out at once may rename the same.
    with translated(path), contextlib.suppress(FileNotFoundError):
        os.rename(path, kept)
        return kept
    return ""


def _free_name(path: str) -> str:
    number = 1
    while os.path.lexists(name := f"{path}~{number if number > 1 else ''}"):
        number += 1
    return name


def _trial_folders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [name for name in names if is_sidecar(os.path.join(folder, name, SIDECAR))]


def _wanted(parts: list[ResultPart]) -> dict[str, tuple[Record, TreeEntry]]:
    wanted = {}
    for part in parts:
        for entry in part.record.tree.entries:
            path = f"{part.folder}/{entry.path}" if part.folder else entry.path
            if not _is_inner(path):
                raise BadInput(f"{path!r} can't be in a result's folder")
            wanted[path] = (part.record, entry)
    # A result that was made from a result's folder may hold a sidecar of its own.
    wanted.pop(SIDECAR, None)
    return wanted


def _content(entry: TreeEntry) -> str:
    return entry.sha256 if entry.link_to is None else f"link:{entry.sha256}"


def _read_claims(text: bytes) -> dict[str, list[_Claim]]:
    try:
        files = loads(text)["files"]
        claims = {
            path: [(str(content), size, inode, mtime_ns) for content, size, inode, mtime_ns in listed]
            for path, listed in files.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    # It may have been edited: it never makes us touch a file outside its folder, nor itself.
    return {path: listed for path, listed in claims.items() if _is_inner(path) and path != SIDECAR}


def _is_inner(path: str) -> bool:
    is_plain = path == os.path.normpath(path) and "\0" not in path
    return is_plain and not os.path.isabs(path) and path.partition("/")[0] not in ("", ".", "..")


def _folders_above(path: str) -> list[str]:
    names = path.split("/")[:-1]
    return ["/".join(names[: count + 1]) for count in range(len(names))]


def _read(path: str) -> bytes:
    if not os.path.isfile(path):
        return b""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None
