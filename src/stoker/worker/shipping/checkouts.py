"""A tree of this machine's store as a folder: a writable copy for code, or shared bytes for data that is only read.

    check_out(store, record, workspace)                      copies; whoever runs there may change them
    check_out(store, record, folder, is_writable=False)      hard links or shared blocks, read-only

Where a shared, read-only folder will do that lies in the store itself, `store.views.open_view` costs nothing at all.
Names, the executable bit and inner links are as in the tree; nothing is written but below the folder, which is new.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from stoker.host.anchored import AnchoredFolder
from stoker.host.durable import remove_tree, translated
from stoker.model.artifacts import TreeEntry
from stoker.model.errors import CorruptBytes, LocalFile
from stoker.store.local import LocalStore
from stoker.store.materialise import How, copy_bytes, materialise
from stoker.store.memo import stamp_of
from stoker.store.records import Record

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def check_out(store: LocalStore, record: Record, into: str, *, is_writable: bool = True) -> None:
    """Lay a record's tree out in a folder that is not there yet, or is empty. Not synced: it can be made again.

    `CorruptBytes` if bytes of it are not in the store, `LocalFile` if the folder is not empty. Whatever ends it early
    leaves no folder that was not there before.
    """
    with _new_folder(into):
        made = {""}
        for entry in record.tree.entries:
            folder, _, name = entry.path.rpartition("/")
            with translated(into):
                _make_folders(into, folder, made)
            target = os.path.join(into, folder, name)
            if entry.link_to is not None:
                with translated(target):
                    os.symlink(entry.link_to, target)
            elif entry.path in record.inline:
                _write(target, record.inline[entry.path], _mode(entry, is_writable=is_writable))
            elif is_writable or entry.executable:
                _copy(store.blob(entry), target, _mode(entry, is_writable=is_writable))
            else:
                _share(store, entry, os.path.join(into, folder), name)


@contextmanager
def _new_folder(path: str) -> Iterator[None]:
    with translated(path):
        try:
            os.makedirs(path)
            is_ours = True
        except FileExistsError:
            is_ours = False
            if os.path.islink(path) or not os.path.isdir(path) or os.listdir(path):
                raise LocalFile(f"not an empty folder: {path}", hint="name another one", path=path) from None
    try:
        yield
    except BaseException:
        if is_ours:
            remove_tree(path)
        raise


def _make_folders(top: str, folder: str, made: set[str]) -> None:
    if folder in made:
        return
    path = ""
    for part in folder.split("/"):
        path = f"{path}/{part}" if path else part
        if path not in made:
            # Never there before, so never somebody's link.
            os.mkdir(os.path.join(top, path))
            made.add(path)


def _mode(entry: TreeEntry, *, is_writable: bool) -> int:
    return (0o644 if is_writable else 0o444) | (0o111 if entry.executable else 0)


def _write(target: str, data: bytes, mode: int) -> None:
    with translated(target), open(os.open(target, _CREATE, mode), "wb", buffering=0) as file:
        file.write(data)
        os.fchmod(file.fileno(), mode)


def _copy(source: str, target: str, mode: int) -> None:
    with (
        translated(target),
        open(source, "rb", buffering=0) as original,
        open(os.open(target, _CREATE, 0o600), "wb") as copy,
    ):
        copy_bytes(original, copy)
        copy.flush()
        os.fchmod(copy.fileno(), mode)


def _share(store: LocalStore, entry: TreeEntry, folder: str, name: str) -> None:
    blob = store.blob(entry)
    with translated(blob):
        before = os.lstat(blob)
    with AnchoredFolder.open(folder, makes=False) as below:
        how = materialise(blob, below, name, may_share=True, mode=0o444, is_durable=False)
    if how is How.HARDLINK:
        # One more name changes a file's ctime, and with it how it is known not to have changed.
        with translated(blob):
            after = os.lstat(blob)
        if stamp_of(before)[:-1] != stamp_of(after)[:-1]:
            raise CorruptBytes(f"{entry.path} changed while it was linked", hint="fetch it again")
        store.memo.remember(entry.sha256, stamp_of(after), entry.sha256)
