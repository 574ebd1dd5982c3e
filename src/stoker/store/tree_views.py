"""Trees as folders, to read from.

A view is a folder of symlinks to blobs (small files and executables are real), made once per tree digest and shared:
links leave a blob's inode untouched, so its memo stays valid, and no byte is copied. A view appears and disappears
whole, by rename. It is checked each time it is opened, and built again if it shows anything but its tree.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from bisect import bisect_left

from stoker.core.digests import TreeEntry
from stoker.core.errors import LocalFile, StokerError
from stoker.host.durable import remove_tree, temp_name, translated
from stoker.host.writers import copy_bytes
from stoker.store.local_store import LocalStore
from stoker.store.records import Record
from stoker.store.trees import hash_file

_counter = itertools.count()

# Errors of renaming a folder onto a folder with content, or a file.
_IN_THE_WAY = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})


def open_view(store: LocalStore, record: Record, *, below: str = "") -> str:
    """Return a read-only folder that shows a record's tree. `CorruptBytes` if bytes of it are not in the store.

    With a subfolder, nothing else is checked, however large the tree is.
    """
    target = store.places.view(record.digest)
    with translated(target):
        for entry in _blobs(record, below):
            store.blob(entry)
        if not _differences(store, record, target, below) and _renew(target):
            return target
        for entry in _blobs(record, "") if below else ():
            store.blob(entry)
        building = f"{target}.{os.getpid()}.{next(_counter)}"
        try:
            _build(store, record, building)
            while not _move(building, target):
                # Another process was faster, or a damaged one is in the way.
                if not _differences(store, record, target):
                    break
                drop_view(target)
        finally:
            remove_tree(building)
    return target


def drop_view(view: str) -> None:
    """Remove a view, in one step for its readers."""
    away = f"{view}.{os.getpid()}.{next(_counter)}"
    with translated(view):
        try:
            os.rename(view, away)
        except FileNotFoundError:
            return
    remove_tree(away)


def changed_inputs(store: LocalStore, record: Record, *, below: str = "") -> list[str]:
    """Return the files of a record that changed since a view was opened on them.

    A missing view or blob was pruned meanwhile: that does not count.
    """
    view = store.places.view(record.digest)
    changed = _differences(store, record, view, below) if os.path.lexists(view) else []
    for entry in _blobs(record, below):
        if os.path.lexists(store.places.blob(entry.sha256)) and not store.holds(entry):
            changed.append(entry.path)
    return changed


def _build(store: LocalStore, record: Record, folder: str) -> None:
    os.mkdir(folder)
    for entry in record.tree.entries:
        path = os.path.join(folder, entry.path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _show(store, record, entry, path)


def _show(store: LocalStore, record: Record, entry: TreeEntry, path: str) -> None:
    if entry.link_to is not None:
        os.symlink(entry.link_to, path)
        return
    blob = store.places.blob(entry.sha256)
    if entry.path in record.inline:
        with open(path, "wb") as file:
            file.write(record.inline[entry.path])
    elif entry.executable:
        import shutil  # noqa: PLC0415 - milliseconds that a cached run never needs

        shutil.copyfile(blob, path)
    else:
        os.symlink(blob, path)
        return
    os.chmod(path, 0o555 if entry.executable else 0o444)


def _entries(record: Record, below: str) -> tuple[TreeEntry, ...]:
    entries = record.tree.entries
    if not below:
        return entries
    # Sorted by path, and `0` is the character after `/`.
    start = bisect_left(entries, f"{below}/", key=_path_of)
    return entries[start : bisect_left(entries, f"{below}0", key=_path_of)]


def _path_of(entry: TreeEntry) -> str:
    return entry.path


def _blobs(record: Record, below: str) -> list[TreeEntry]:
    if not below:
        return record.blobs()
    return [entry for entry in _entries(record, below) if entry.link_to is None and entry.path not in record.inline]


def _differences(store: LocalStore, record: Record, view: str, below: str = "") -> list[str]:
    """Return what a view shows otherwise than its record: files changed, missing or added."""
    try:
        is_folder = stat.S_ISDIR(os.lstat(view).st_mode)
    except OSError:
        is_folder = False
    if not is_folder:
        return ["the view itself"]
    entries = _entries(record, below)
    expected = {entry.path for entry in entries}
    different = [entry.path for entry in entries if not _is_shown(store, record, entry, view)]
    return different + [path for path in _files_in(view, below) if path not in expected]


def _is_shown(store: LocalStore, record: Record, entry: TreeEntry, view: str) -> bool:
    path = os.path.join(view, entry.path)
    is_real = entry.path in record.inline or (entry.executable and entry.link_to is None)
    try:
        if not is_real:
            return os.readlink(path) == (entry.link_to or store.places.blob(entry.sha256))
        info = os.lstat(path)
        if not stat.S_ISREG(info.st_mode) or bool(info.st_mode & stat.S_IXUSR) is not entry.executable:
            return False
        return hash_file(path) == (entry.sha256, entry.size_bytes)
    except (OSError, StokerError):
        return False


def _files_in(folder: str, below: str) -> list[str]:
    found: list[str] = []
    waiting = [f"{below}/" if below else ""]
    while waiting:
        prefix = waiting.pop()
        try:
            with os.scandir(os.path.join(folder, prefix)) as entries:
                for entry in entries:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    (waiting if is_folder else found).append(f"{prefix}{entry.name}{'/' if is_folder else ''}")
        except OSError:
            # Pruned meanwhile: it is empty.
            continue
    return found


def _renew(view: str) -> bool:
    """Make a view young again, so that no sweep removes it before its record is published. False: one did."""
    try:
        os.utime(view)
    except FileNotFoundError:
        return False
    except OSError:
        # In a read-only store it stays as it is.
        return True
    return True


def _move(building: str, target: str) -> bool:
    try:
        os.rename(building, target)
    except OSError as error:
        if error.errno not in _IN_THE_WAY:
            raise
        return False
    return True


def copy_entry(store: LocalStore, record: Record, entry: TreeEntry, *, top: str, path: str) -> os.stat_result:
    """Copy one file of a record to a path below the folder `top`, replacing an existing file.

    Returns the stamp of the new file, whatever others do to that path meanwhile.

    Nothing is written through a symlink below the folder, and no file is visible half-written: it is made under a
    hidden name at the top of the folder (`temp_name`) and then renamed.
    """
    target = os.path.join(top, path)
    with translated(target):
        make_folders(top, os.path.dirname(path))
        part = temp_name(top)
        try:
            _write(store, record, entry, part)
            info = os.lstat(part)
            os.replace(part, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
            raise
    return info


def make_folders(top: str, folder: str) -> None:
    """Make the folders on a relative path, refusing to pass through anything that is not a real folder."""
    path = top
    for name in folder.split("/") if folder else ():
        path = os.path.join(path, name)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise LocalFile(f"not a folder: {path}", hint="move it away: a folder of that name is needed", path=path)


def _write(store: LocalStore, record: Record, entry: TreeEntry, part: str) -> None:
    if entry.link_to is not None:
        os.symlink(entry.link_to, part)
        return
    mode = 0o777 if entry.executable else 0o666
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with open(descriptor, "wb") as target:
        if entry.path in record.inline:
            target.write(record.inline[entry.path])
        else:
            with open(store.blob(entry), "rb") as source:
                copy_bytes(source, target)
        target.flush()
        # The sidecar that lists it is durable; so must the file be.
        os.fsync(target.fileno())
