"""Names for bytes that are there: the files of one commit, as other programs look for them.

A name is a relative link to its blob, so that the cache can be moved. Where the file system has no links, it is the
same file under a second name, or a copy. Nothing planted below the repository's folder can lead a name elsewhere.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress

from stoker.host.anchored import AnchoredFolder
from stoker.host.durable import temp_name, translated
from stoker.store.hub.address import Repo
from stoker.store.hub.cache import HubCache
from stoker.store.hub.repo_file import RepoFile
from stoker.store.materialise import materialise

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})


def name_files(cache: HubCache, repo: Repo, commit: str, files: Iterable[RepoFile], *, symlinks: bool = True) -> None:
    """Give files whose blobs are verified and durable their names in a snapshot; the names are durable afterwards."""
    by_folder: dict[str, list[RepoFile]] = {}
    for file in files:
        by_folder.setdefault(file.path.rpartition("/")[0], []).append(file)
    blobs = cache.blobs(repo)
    for below, together in by_folder.items():
        inner = "/".join(["snapshots", commit, *([below] if below else [])])
        with AnchoredFolder.open(cache.folder(repo), inner) as folder:
            # All of them first, then one sync.
            changed = [_name(folder, file, blobs, symlinks=symlinks) for file in together]
            if any(changed):
                folder.sync()


def _name(folder: AnchoredFolder, file: RepoFile, blobs: str, *, symlinks: bool) -> bool:
    """Make one name, unless it is there. True if it was made."""
    leaf = file.path.rpartition("/")[2]
    target = f"{'../' * (file.path.count('/') + 2)}blobs/{file.blob}"
    with translated(folder.path_of(leaf)):
        if symlinks:
            try:
                if os.readlink(leaf, dir_fd=folder.descriptor) == target:
                    return False
            except OSError:
                pass
            if _link(folder, leaf, target):
                return True
        source = os.path.join(blobs, file.blob)
        there = folder.look(leaf)
        with suppress(FileNotFoundError):
            if there is not None and os.path.samestat(there, os.stat(source)):
                return False
        materialise(os.path.realpath(source), folder, leaf, may_share=True, mode=0o444)
    return True


def _link(folder: AnchoredFolder, leaf: str, target: str) -> bool:
    """Make a link under a name, in the place of whatever has it. False where there can be no links."""
    try:
        os.symlink(target, leaf, dir_fd=folder.descriptor)
    except FileExistsError:
        _replace(folder, leaf, target)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    return True


def _replace(folder: AnchoredFolder, leaf: str, target: str) -> None:
    temp = os.path.basename(temp_name(""))
    os.symlink(target, temp, dir_fd=folder.descriptor)
    try:
        folder.rename(temp, leaf)
    except BaseException:
        with suppress(OSError):
            os.unlink(temp, dir_fd=folder.descriptor)
        raise
