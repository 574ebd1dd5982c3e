"""Bytes that lie in the cache already, believed only if they are what their name says.

Another program wrote many of them, unverified and perhaps cut short, so a blob is hashed once before it counts: its
sha256, or the sha1 of the git blob that it would be. What was found is remembered with the file's stamp, and the next
look costs a `stat`. A damaged blob is renamed out of the way, never deleted and never served.

A blob may be a link, into the client's store across repositories for one: it is read through, and nothing is ever
written through it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress

from stoker.core.clock import Clock
from stoker.core.digests import Digest
from stoker.core.frozen import frozen
from stoker.host.durable import temp_name, translated
from stoker.host.file_stamps import Stamp, stamp_of
from stoker.host.folders import AnchoredFolder
from stoker.store.links import materialise
from stoker.store.memo import Memo
from stoker.transfer.download.content import Sums, SumsBuilder
from stoker.transfer.download.download_events import ConnectionSpeed, DownloadEvents
from stoker.transfer.download.types import DownloadStop, DownloadTimeouts
from stoker.transfer.hub.cache_layout import HubCache
from stoker.transfer.hub.listing import Repo, RepoFile

_BLOCK_BYTES = 1 << 20
_TOLD_BYTES = 64 << 20
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


@frozen
class CheckedBlob:
    """What lies under a name: good bytes with their sha256, or bytes that are not what was wanted, and why."""

    path: str
    size_bytes: int
    sha256: Digest | None = None
    fault: str = ""


class BlobChecker:
    """Looks at files and says whether their bytes are those of a file in a repository. Safe to use from threads."""

    def __init__(
        self,
        memo: Memo,
        *,
        clock: Clock,
        stop: DownloadStop,
        teller_of: Callable[[RepoFile], DownloadEvents] | None = None,
    ) -> None:
        """`teller_of` gives whom to tell how far the reading of a large file is."""
        self._memo = memo
        self._clock = clock
        self._stop = stop
        self._teller_of = teller_of

    def look(self, path: str, file: RepoFile) -> CheckedBlob | None:
        """Return what lies at a path, a link's target if it is one; nothing if nothing does."""
        with translated(path):
            try:
                descriptor = os.open(path, _OPEN)
            except (FileNotFoundError, NotADirectoryError):
                # A link to nowhere is in the way of a name, yet holds no bytes.
                return None
            except IsADirectoryError:
                return CheckedBlob(path=path, size_bytes=0, fault="it is a folder")
            try:
                return self._judged(path, descriptor, file)
            finally:
                os.close(descriptor)

    def remember(self, path: str, file: RepoFile, sha256: Digest) -> None:
        """Note that we ourselves put verified bytes there just now, where nobody else writes."""
        with suppress(OSError):
            self._memo.remember(_key(path, file), stamp_of(os.stat(path)), sha256)

    def set_aside(self, path: str, file: RepoFile) -> str:
        """Rename a damaged file, or the link to it, out of the way; give its new path."""
        aside = f"{path}.damaged-{int(self._clock.wall_s())}-{os.urandom(3).hex()}"
        with translated(path):
            os.rename(path, aside)
        self._memo.forget(_key(path, file))
        return aside

    def _judged(self, path: str, descriptor: int, file: RepoFile) -> CheckedBlob:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            return CheckedBlob(path=path, size_bytes=0, fault="it is not a regular file")
        if file.size_bytes is not None and info.st_size != file.size_bytes:
            fault = f"it has {info.st_size:,} bytes instead of {file.size_bytes:,}"
            return CheckedBlob(path=path, size_bytes=info.st_size, fault=fault)
        stamp = stamp_of(info)
        known = self._memo.recall(_key(path, file), stamp)
        if known is None:
            sums = self._hashed(descriptor, info.st_size, file)
            if sums.git_sha1 != file.git_sha1:
                return CheckedBlob(path=path, size_bytes=info.st_size, fault=f"its git sha1 is {sums.git_sha1}")
            known = sums.sha256
            if not file.sha256 or known == file.sha256:
                self._keep(path, descriptor, stamp, known, file)
        if file.sha256 and known != file.sha256:
            return CheckedBlob(path=path, size_bytes=info.st_size, fault=f"its sha256 is {known}")
        return CheckedBlob(path=path, size_bytes=info.st_size, sha256=known)

    def _keep(self, path: str, descriptor: int, stamp: Stamp, sha256: Digest, file: RepoFile) -> None:
        # Whoever wrote it may not have synced it, and a power cut must not take what we vouch for.
        with suppress(OSError):
            os.fsync(descriptor)
        if stamp_of(os.fstat(descriptor)) == stamp:
            self._memo.remember_settled(_key(path, file), stamp, sha256, now_s=self._clock.wall_s())

    def _hashed(self, descriptor: int, size_bytes: int, file: RepoFile) -> Sums:
        summing = SumsBuilder(size_bytes if file.git_sha1 else None)
        teller = self._teller_of(file) if self._teller_of is not None and size_bytes >= _TOLD_BYTES else None
        pace = ConnectionSpeed(self._clock.monotonic_s(), DownloadTimeouts())
        done_bytes = 0
        while block := os.pread(descriptor, _BLOCK_BYTES, done_bytes):
            self._stop.check()
            summing.add(block)
            done_bytes += len(block)
            if teller is not None:
                now_s = self._clock.monotonic_s()
                pace.got(len(block), now_s)
                teller.progress(size_bytes, size_bytes, pace, done_bytes, now_s)
        return summing.sums()


def _key(path: str, file: RepoFile) -> str:
    # The memo knows a sha256. For a file that is known by its sha1, that one was checked along with it is a claim of
    # its own. In ASCII, because a name that is not Unicode can't be stored as text.
    return f"git:{file.git_sha1}:{path!a}" if file.git_sha1 else f"path:{path!a}"


# Names for bytes that are there: the files of one commit, as other programs look for them.
#
# A name is a relative link to its blob, so that the cache can be moved. Where the file system has no links, it is the
# same file under a second name, or a copy. Nothing planted below the repository's folder can lead a name elsewhere.

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
