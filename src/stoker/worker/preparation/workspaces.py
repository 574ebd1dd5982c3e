"""Folders of this machine that jobs use: a fresh workspace for each attempt, and shared read-only folders of data."""

from __future__ import annotations

import filecmp
import itertools
import os
import secrets
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NoReturn

from stoker.core.clock import Clock
from stoker.core.digests import Digest, TreeEntry, is_digest
from stoker.core.errors import BadInput, StokerError
from stoker.core.jsontext import dumps
from stoker.host.durable import NO_STEP, remove_tree, translated, write_file
from stoker.host.folders import make_passed_through, names_in, placed_path
from stoker.host.identity import ProcessIdentity, of_pid
from stoker.host.locks import living_marks
from stoker.host.writers import copy_bytes
from stoker.jobs.job_folder import JobFolder
from stoker.store.local_store import LocalStore
from stoker.store.memo import note_file
from stoker.store.put import StagingCopy, put_key
from stoker.store.records import Record
from stoker.store.refs import PUT
from stoker.store.trees import Heed, WalkedEntry, walk_tree
from stoker.transfer.trees.holdings import check_out, named_tree, note_held

FEWEST_FILES = 50
"""Fewer are made quickly enough."""
MOST_FILES = 20_000
MOST_BYTES = 256 << 20
_SPARE, _MAKING, _GOING = ".spare-", ".making-", ".going-"
_WAIT_S = 0.3
"""The job that has just started goes first."""


class Spares:
    """A spare copy of the tree that ran last, made while it runs, so that the next job does not wait for its files.

    To make a thousand files takes a file system a quarter of a second, to rename their folder nothing. A spare is whole
    once it has its name; what is not, and what an earlier worker left, is swept when a worker starts, since nothing of
    it was synced. Two workers of one home may use each other's.
    """

    def __init__(self, folder: str, *, wait_s: float = _WAIT_S) -> None:
        self._folder = folder
        self._wait = threading.Event()
        self._wait_s = wait_s
        self._turn = threading.Lock()

    def take(self, tree: str, place: str) -> bool:
        """Rename the spare of a tree to an attempt's workspace; return False if there is none."""
        try:
            os.rename(self._path(_SPARE + tree), place)
        except OSError:
            return False
        return True

    def make_soon(self, tree: str, store: LocalStore, record: Record) -> threading.Thread | None:
        """Make a spare of a tree in the background, unless there is one, one is being made, or it is not worth it."""
        files, size_bytes = len(record.tree.entries), record.tree.size_bytes
        if not FEWEST_FILES <= files <= MOST_FILES or size_bytes > MOST_BYTES or not self._turn.acquire(blocking=False):
            return None
        making = threading.Thread(target=self._make, args=(tree, store, record), name="stoker-spare", daemon=True)
        making.start()
        return making

    def sweep(self) -> None:
        """Delete all spares."""
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
            # No room, or pruned meanwhile: the next attempt makes its own, and reports the error.
            with suppress(OSError, StokerError):
                remove_tree(self._path(made))
        finally:
            self._turn.release()

    def _remove(self, name: str) -> None:
        """Delete a spare that another process may be taking."""
        going = self._path(_GOING + secrets.token_hex(8))
        with suppress(OSError, StokerError):
            os.rename(self._path(name), going)
            remove_tree(going)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)


_LEFT_S = 3600.0
"""A workspace without writes may belong to an attempt that is about to start, unless it is as old as this."""


class Workspaces:
    """Workspaces below a folder, named by run."""

    def __init__(self, folder: str, runs: str, *, keeps: bool = False) -> None:
        """Create it; with `keeps`, workspaces stay for their owner to inspect."""
        self.folder = folder
        self._runs = runs
        self._keeps = keeps
        self.spares = Spares(folder)

    def make(self, run: str, tree: str, store: LocalStore, record: Record) -> str:
        """Make an attempt's workspace; return its path."""
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
        """Delete an attempt's workspace."""
        if not self._keeps:
            remove_tree(self.place(run))

    def sweep(self, now_s: float) -> None:
        """Delete what attempts left that were killed with their worker."""
        self.spares.sweep()
        for run in self.left(now_s):
            self.remove(run)

    def left(self, now_s: float) -> list[str]:
        """Return the runs whose workspace no attempt uses any more."""
        return [name for name in names_in(self.folder) if not name.startswith(".") and self._is_left(name, now_s)]

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


_counter = itertools.count()
NEW = ".new-"
"""Before the pid of the process that makes a folder."""
REPOSITORY = "repo-"
_OLD_S = 30 * 24 * 3600.0
"""A repository's folder unused for so long is deleted; files shared with the hub's cache stay there."""


class DataCache:
    """Data for jobs as plain folders, one per tree, shared by all jobs here. Thread-safe, and safe between processes.

        workspaces/.data/TREE/…         real files, read-only: hard links to the store's blobs where the disk can
        workspaces/.data/.used/RUN      which process reads which of them

    They are where programs of other users may traverse and not list. A folder appears whole, by rename. It is deleted
    once its tree is no longer in the store and no process reads it; a repository's, a month after its last use.
    """

    def __init__(self, folder: str, store: LocalStore, clock: Clock) -> None:
        self.folder = folder
        self._clock = clock
        self._store = store
        self._used = os.path.join(folder, ".used")

    def open(self, record: Record) -> str:
        """Return the folder of a record's tree; make it if it is missing."""
        place = self.place(str(record.digest))
        if os.path.isdir(place):
            return place
        make_passed_through(self.folder)
        making = os.path.join(self.folder, f"{NEW}{os.getpid()}-{next(_counter)}")
        try:
            check_out(self._store, record, making, is_writable=False)
            with translated(place):
                try:
                    os.rename(making, place)
                except OSError:
                    # Another process was quicker.
                    if not os.path.isdir(place):
                        raise
            self._note(record, place)
        finally:
            remove_tree(making)
        return place

    def use(self, name: str) -> str:
        """Return an existing folder, and record its use."""
        place = self.place(name)
        with suppress(OSError):
            os.utime(place)
        return place

    def place(self, name: str) -> str:
        """Return the path of a tree's folder, which may not exist."""
        return os.path.join(self.folder, name)

    def mark(self, run: str, owner: ProcessIdentity, names: Iterable[str]) -> None:
        """Record that a process reads some of them: they stay while it lives."""
        with translated(self._used):
            os.makedirs(self._used, mode=0o700, exist_ok=True)
        mark = {"owner": owner.to_dict(), "names": sorted(names)}
        write_file(os.path.join(self._used, run), dumps(mark).encode())

    def unmark(self, run: str) -> None:
        """Delete the mark of an attempt."""
        with suppress(OSError):
            os.unlink(os.path.join(self._used, run))

    def prune(self) -> None:
        """Delete what the store no longer has and no process reads."""
        used = {str(name) for mark in living_marks(self._used, lambda mark: mark["owner"]) for name in mark["names"]}
        for name in names_in(self.folder):
            is_over = is_digest(name) and named_tree(self._store, name) is None
            is_over |= name.startswith(REPOSITORY) and self._is_old(name)
            is_over |= name.startswith(NEW) and _is_left(name)
            if is_over and name not in used:
                remove_tree(self.place(name))

    def _is_old(self, name: str) -> bool:
        try:
            return self._clock.wall_s() - os.stat(self.place(name)).st_mtime > _OLD_S
        except OSError:
            return False

    def _note(self, record: Record, place: str) -> None:
        """Remember the digest of every file: it was verified on arrival, and need not be read."""
        for entry in record.tree.entries:
            if entry.link_to is None:
                path = os.path.join(place, entry.path)
                with suppress(OSError):
                    note_file(path, os.stat(path), entry.sha256, memo=self._store.memo)
        # The attempt's own process asks next.
        self._store.memo.write_down()


def _is_left(name: str) -> bool:
    pid = name.removeprefix(NEW).partition("-")[0]
    return pid.isdecimal() and of_pid(int(pid)) is None


_MOST_COPIED_BYTES = 256 << 20


def place_data(workspace: str, folder: str, place: str, source: str) -> None:
    """Make data appear at a path below a program's folder in its workspace.

    Folders are real, so that a program may add files. Its files are copies that it may change; those of larger data are
    symlinks to shared, read-only files. A file of the code with the same content stays. Raises `BadInput` for a path
    that leads out of the workspace, and if it would replace a file.
    """
    if not workspace:
        raise BadInput(f"data can't be placed at {place}: the job has no copy of its code")
    target = os.path.normpath(os.path.join(folder, placed_path(place)))
    with translated(workspace):
        files = {path: os.lstat(path) for path in _files_below(source)}
        is_copied = sum(info.st_size for info in files.values()) <= _MOST_COPIED_BYTES
        made: set[str] = set()
        for path, info in files.items():
            inner = os.path.normpath(os.path.join(target, os.path.relpath(path, source)))
            _make_real_folders(workspace, os.path.dirname(inner), made)
            try:
                _place_file(path, info, os.path.join(workspace, inner), is_copied=is_copied)
            except FileExistsError:
                if not _is_same_file(path, os.path.join(workspace, inner)):
                    raise BadInput(f"data can't be placed at {inner}: the job has another file there") from None
        if os.path.isdir(source):
            _make_real_folders(workspace, target, made)


def _files_below(source: str) -> Iterator[str]:
    """Return a file, or all files and symlinks of a folder."""
    if not os.path.isdir(source):
        yield source
        return
    for where, folders, files in os.walk(source, onerror=_raise):
        links = [name for name in folders if os.path.islink(os.path.join(where, name))]
        yield from (os.path.join(where, name) for name in (*files, *links))


def _raise(error: OSError) -> NoReturn:
    raise error


def _make_real_folders(workspace: str, folder: str, made: set[str]) -> None:
    """Make a folder below a workspace. Raises `BadInput` if the code has a file or a link in its place."""
    if folder in made:
        return
    path = workspace
    for part in folder.split("/") if folder else ():
        path = os.path.join(path, part)
        try:
            os.mkdir(path)
        except FileExistsError:
            if os.path.islink(path) or not os.path.isdir(path):
                raise BadInput(f"data can't be placed in {folder}: {part} is no folder in the code") from None
    made.add(folder)


def _place_file(source: str, info: os.stat_result, target: str, *, is_copied: bool) -> None:
    """Copy or link a file. Raises `FileExistsError`."""
    if stat.S_ISLNK(info.st_mode):
        os.symlink(os.readlink(source), target)
    elif not is_copied:
        os.symlink(source, target)
    else:
        mode = 0o755 if info.st_mode & stat.S_IXUSR else 0o644
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(source, "rb", buffering=0) as original, open(os.open(target, flags, mode), "wb") as copy:
            copy_bytes(original, copy)


def _is_same_file(source: str, target: str) -> bool:
    if os.path.islink(source) or os.path.islink(target):
        return os.path.realpath(source) == os.path.realpath(target)
    return os.path.isfile(target) and filecmp.cmp(source, target, shallow=False)


def take_in(path: str, name: str, tree: str, store: LocalStore, *, clock: Clock, heed: Heed) -> bool:
    """Copy what is at a submitter's path here into the store, if it is the expected tree. Raises `StokerError`.

    For programs that may not read it in place. It is copied once, hashed meanwhile, and kept only if it is unchanged.
    """
    staging = store.new_staging(f"tree.{tree[:12]}")
    try:
        copying = StagingCopy(store, staging, clock=clock, heed=heed, on_step=NO_STEP)
        copying.copy_all(_found(path, name))
        made, inline = copying.keep_all()
        if made.digest() != tree:
            return False
        body = {"stage": PUT, "kind": "", "made_at": clock.wall_s()}
        store.publish(Record.of(key=put_key(Digest(tree)), tree=made, inline=inline, body=body))
        note_held(store, tree)
    finally:
        remove_tree(staging)
    return True


def _found(path: str, name: str) -> list[WalkedEntry]:
    if os.path.isdir(path):
        return walk_tree(path, hasher=lambda _: (Digest(""), 0))
    with translated(path):
        return [WalkedEntry(TreeEntry(name, 0, Digest("")), path, os.stat(path))]
