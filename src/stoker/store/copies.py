"""Copies to give away: real, writable files, so that editing them can't damage the store.

Nothing is written through a symlink that somebody put below the folder, and no file is seen half-written: it is made
under a hidden name at the top of the folder (`temp_name`) and then renamed.
"""

from __future__ import annotations

import contextlib
import os
import stat

from stoker.host.durable import temp_name, translated
from stoker.model.artifacts import TreeEntry
from stoker.model.errors import LocalFile
from stoker.store.local import LocalStore
from stoker.store.materialise import copy_bytes
from stoker.store.records import Record


def copy_entry(store: LocalStore, record: Record, entry: TreeEntry, *, top: str, path: str) -> os.stat_result:
    """Copy one file of a record to a path below the folder `top`, replacing a file that is there.

    Gives how the new file looks, whatever others do to that path meanwhile.
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
        # The sidecar that vouches for it is durable; so must the file be.
        os.fsync(target.fileno())
