"""Destinations of a repository's files: the cache, a folder that shares the cache's bytes, or a plain folder.

A destination names the target of a file's bytes, detects bytes that exist, and names files once their bytes are
durable. It sends no request. Bytes in the cache are read-only, because a folder may share them: an edit of a plain file
must not change what other programs read. An editor that replaces files still works.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import Protocol

from stoker.core.digests import Digest
from stoker.core.errors import NoPermission
from stoker.core.events import Event, Kinds
from stoker.core.frozen import frozen
from stoker.host.folders import AnchoredFolder, check_name
from stoker.host.http.exchange import shown
from stoker.host.writers import MaterialiseMethod, materialise
from stoker.transfer.download.content import Validators, remove_validators, write_validators
from stoker.transfer.download.download_events import DownloadEvents
from stoker.transfer.download.file_lock import PartialFileLock, sweep_lock
from stoker.transfer.download.partial import LOCK, beside, set_strangers_aside
from stoker.transfer.download.types import (
    DownloadRequest,
    DownloadTools,
    FetchedFile,
    Status,
    TargetFile,
    is_plain_file,
    seems_there,
)
from stoker.transfer.hub.client import Hub
from stoker.transfer.hub.hub_cache import BlobChecker, CheckedBlob, HubCache, name_files
from stoker.transfer.hub.listing import Repo, RepoFile

_OPEN_BLOB = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@frozen
class LocalCopy:
    """Valid bytes of a file that exist on this machine."""

    status: Status
    size_bytes: int
    sha256: Digest


class Destination(Protocol):
    """A destination for the files of one repository at one commit. Thread-safe."""

    mode: int
    """Mode of the files that are written there."""
    copies: bool
    """True if bytes that are elsewhere on this machine are copied."""

    def landing(self, file: RepoFile) -> TargetFile:
        """Return the target of a file's bytes."""

    def path(self, file: RepoFile) -> str:
        """Return the path of the file for the user."""

    def there(self, file: RepoFile) -> LocalCopy | None:
        """Return the bytes of a file if they exist on this machine and are valid; damaged ones are renamed."""

    def in_the_way(self, file: RepoFile) -> str:
        """Return the path of a file with other bytes at this file's path, from any writer; empty if there is none."""

    def expects(self, file: RepoFile) -> Status:
        """Return how a file will be provided, by names and sizes alone: reads no byte, changes nothing."""

    def settle(self, files: Sequence[tuple[RepoFile, Digest]], *, ours: bool) -> None:
        """Name files durably, whose bytes are verified and durable. `ours`: we wrote them."""


class CacheDestination:
    """The public cache: a blob, and a name for it in the commit's snapshot."""

    mode = 0o444
    copies = False

    def __init__(
        self, cache: HubCache, repo: Repo, commit: str, *, judge: BlobChecker, tools: DownloadTools, symlinks: bool
    ) -> None:
        self._cache = cache
        self._repo = repo
        self._commit = commit
        self._judge = judge
        self._tools = tools
        self._symlinks = symlinks
        # Computed once: used several times for each of very many files.
        self._blobs = cache.blobs(repo)
        self._snapshot = cache.snapshot(repo, commit)

    def landing(self, file: RepoFile) -> TargetFile:
        return TargetFile(folder=self._blobs, name=file.blob, lock_path=self._cache.lock(self._repo, file.blob))

    def path(self, file: RepoFile) -> str:
        return f"{self._snapshot}/{file.path}"

    def blob(self, file: RepoFile) -> str:
        return f"{self._blobs}/{file.blob}"

    def there(self, file: RepoFile) -> LocalCopy | None:
        if not file.blob:
            # Only a snapshot without links states no digest; its commit identifies the version.
            return _look_plainly(self._judge, self.path(file), file)
        blob = self.blob(file)
        found = self._judge.look(blob, file)
        if found is not None and found.fault:
            aside = self._judge.set_aside(blob, file)
            message = f"{self._repo}: {file.path} was damaged in the cache ({found.fault}); set aside as {aside}"
            self._tools.say(Event(Kinds.WARNING, {"message": message}))
            found = None
        if found is not None and found.sha256 is not None:
            return LocalCopy(status=Status.CACHED, size_bytes=found.size_bytes, sha256=found.sha256)
        return self._in_snapshot(file, blob) or self._in_shared_store(file, blob)

    def in_the_way(self, file: RepoFile) -> str:
        return ""

    def expects(self, file: RepoFile) -> Status:
        path = self.path(file)
        in_snapshot = "" if file.blob and os.path.islink(path) else path
        if (file.blob and seems_there(self.blob(file), file.size_bytes)) or seems_there(in_snapshot, file.size_bytes):
            return Status.CACHED
        shared = self._cache.shared(file.xet_hash)
        is_shared = not os.path.islink(shared) and seems_there(shared, file.size_bytes)
        return Status.LINKED if is_shared else Status.DOWNLOADED

    def settle(self, files: Sequence[tuple[RepoFile, Digest]], *, ours: bool) -> None:
        named = [(file, sha256) for file, sha256 in files if file.blob]
        for file, sha256 in named if ours else ():
            protect(self.blob(file))
            self._judge.remember(self.blob(file), file, sha256)
        repo, commit = self._repo, self._commit
        name_files(self._cache, repo, commit, (file for file, _ in named), symlinks=self._symlinks)

    def _in_snapshot(self, file: RepoFile, blob: str) -> LocalCopy | None:
        """Find a file that is in the snapshot itself: the hub's client writes it so if there are no links."""
        path = self.path(file)
        if os.path.islink(path):
            return None
        return self._shared(self._judge.look(path, file), blob, Status.CACHED)

    def _in_shared_store(self, file: RepoFile, blob: str) -> LocalCopy | None:
        path = self._cache.shared(file.xet_hash)
        if not path or os.path.islink(path):
            return None
        return self._shared(self._judge.look(path, file), blob, Status.LINKED)

    def _shared(self, found: CheckedBlob | None, blob: str, status: Status) -> LocalCopy | None:
        if found is None or found.sha256 is None:
            return None
        with AnchoredFolder.open(os.path.dirname(blob)) as folder:
            materialise(found.path, folder, os.path.basename(blob), may_share=True, mode=self.mode)
        return LocalCopy(status=status, size_bytes=found.size_bytes, sha256=found.sha256)


class FolderDestination:
    """A plain folder with its own copies of the files."""

    mode = 0o644
    copies = True

    def __init__(self, folder: str, *, judge: BlobChecker, cached: CacheDestination | None = None) -> None:
        """`cached`: a cache that may have the bytes, to copy from."""
        self._folder = folder
        self._judge = judge
        self._cached = cached

    def landing(self, file: RepoFile) -> TargetFile:
        return TargetFile(folder=self._folder, name=file.path)

    def path(self, file: RepoFile) -> str:
        return os.path.join(self._folder, file.path)

    def there(self, file: RepoFile) -> LocalCopy | None:
        if not file.blob:
            # Without a digest only the server knows whether this is the newest version.
            return None
        found = _look_plainly(self._judge, self.path(file), file)
        if found is not None:
            self._sweep_lock(file)
            return found
        cached = self._in_cache(file)
        if cached is None:
            return None
        return LocalCopy(status=Status.LINKED, size_bytes=cached.size_bytes, sha256=cached.sha256)

    def in_the_way(self, file: RepoFile) -> str:
        return _other_bytes(self._judge, self.path(file), file)

    def expects(self, file: RepoFile) -> Status:
        if not file.blob:
            return Status.DOWNLOADED
        if _seems_plainly_there(self.path(file), file):
            return Status.CACHED
        is_cached = self._cached is not None and self._cached.expects(file) is not Status.DOWNLOADED
        return Status.LINKED if is_cached else Status.DOWNLOADED

    def settle(self, files: Sequence[tuple[RepoFile, Digest]], *, ours: bool) -> None:
        for file, sha256 in files:
            if ours:
                self._judge.remember(self.path(file), file, sha256)
            elif self._cached is not None and _look_plainly(self._judge, self.path(file), file) is None:
                put_file(self._cached.blob(file), self._folder, file.path)

    def _sweep_lock(self, file: RepoFile) -> None:
        """Delete the lock that a killed process left beside a finished file."""
        below, _, leaf = file.path.rpartition("/")
        if os.path.lexists(os.path.join(self._folder, below, beside(leaf, LOCK))):
            with AnchoredFolder.open(self._folder, below) as folder:
                sweep_lock(folder, leaf)

    def _in_cache(self, file: RepoFile) -> LocalCopy | None:
        try:
            return self._cached.there(file) if self._cached is not None else None
        except NoPermission:
            # It would need a repair first, and it belongs to another user.
            return None


class SharingDestination:
    """A plain folder on the cache's file system: its files share the bytes of the cache."""

    mode = CacheDestination.mode
    copies = False

    def __init__(self, folder: str, *, judge: BlobChecker, cached: CacheDestination) -> None:
        self._folder = folder
        self._judge = judge
        self._cached = cached

    def landing(self, file: RepoFile) -> TargetFile:
        return self._cached.landing(file)

    def path(self, file: RepoFile) -> str:
        return os.path.join(self._folder, file.path)

    def there(self, file: RepoFile) -> LocalCopy | None:
        found = self._cached.there(file)
        if found is None or _look_plainly(self._judge, self.path(file), file) is not None:
            return found
        return LocalCopy(status=Status.LINKED, size_bytes=found.size_bytes, sha256=found.sha256)

    def in_the_way(self, file: RepoFile) -> str:
        return _other_bytes(self._judge, self.path(file), file)

    def expects(self, file: RepoFile) -> Status:
        status = self._cached.expects(file)
        if status is Status.DOWNLOADED:
            return status
        return Status.CACHED if _seems_plainly_there(self.path(file), file) else Status.LINKED

    def settle(self, files: Sequence[tuple[RepoFile, Digest]], *, ours: bool) -> None:
        self._cached.settle(files, ours=ours)
        for file, sha256 in files:
            if _look_plainly(self._judge, self.path(file), file) is None:
                blob = self._cached.blob(file)
                # Made read-only before it gets a second name. Files in a cache of another user are copied.
                how = put_file(blob, self._folder, file.path, may_share=protect(blob))
                if how is MaterialiseMethod.HARDLINK:
                    self._judge.remember(blob, file, sha256)
                self._judge.remember(self.path(file), file, sha256)


def protect(blob: str) -> bool:
    """Make a blob read-only; return True if it is read-only for us too. A link and its target are not changed.

    For root nothing is read-only: an edit of a file that shares the blob's inode would change the blob. So for root
    this returns False, and a folder gets copies, or shares blocks.
    """
    try:
        descriptor = os.open(blob, _OPEN_BLOB)
    except OSError:
        return False
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            return False
        if info.st_mode & 0o222:
            os.fchmod(descriptor, stat.S_IMODE(info.st_mode) & ~0o222)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return os.geteuid() != 0


def put_file(blob: str, folder: str, path: str, *, may_share: bool = False) -> MaterialiseMethod:
    """Put the bytes of a blob at a path below a folder, replacing what is there; links on the path are not followed.

    A file that shares the blob's inode is read-only, as the blob is; one that shares its blocks or is a copy is not.
    """
    below, _, leaf = path.rpartition("/")
    with AnchoredFolder.open(folder, below) as inner:
        return materialise(os.path.realpath(blob), inner, leaf, may_share=may_share)


def _look_plainly(judge: BlobChecker, path: str, file: RepoFile) -> LocalCopy | None:
    """Return the valid bytes at a path, unless it is a link."""
    if os.path.islink(path):
        return None
    found = judge.look(path, file)
    if found is None or found.sha256 is None:
        return None
    return LocalCopy(status=Status.CACHED, size_bytes=found.size_bytes, sha256=found.sha256)


def _other_bytes(judge: BlobChecker, path: str, file: RepoFile) -> str:
    if not is_plain_file(path):
        return ""
    # Without a digest nothing proves that they are the same.
    is_same = bool(file.blob) and _look_plainly(judge, path, file) is not None
    return "" if is_same else path


def _seems_plainly_there(path: str, file: RepoFile) -> bool:
    return is_plain_file(path) and seems_there(path, file.size_bytes)


# A file from bytes that exist on this machine: shared or copied instead of downloaded.


def look_nearby(hub: Hub, path: str, file: RepoFile) -> CheckedBlob | None:
    """Return what is at a path if its bytes are those of a file; changes nothing."""
    found = BlobChecker(hub.memo, clock=hub.tools.clock, stop=hub.stop).look(path, file)
    return None if found is None or found.sha256 is None else found


def take_nearby(
    hub: Hub,
    found: CheckedBlob,
    wanted: DownloadRequest,
    landing: TargetFile,
    *,
    may_share: bool = False,
    etag: str = "",
) -> FetchedFile:
    """Put valid bytes at a final path, replacing what is there, without a network.

    Raises what `put_file` raises, and `LockHeld`.

    `may_share`: the file may be read-only, so it may share the cache's inode.
    """
    if found.sha256 is None:
        raise ValueError(found.fault)
    tools = hub.tools
    began_s = tools.clock.monotonic_s()
    teller = DownloadEvents(tools.say, wanted, landing.name)
    below, _, leaf = check_name(landing.name).rpartition("/")
    with AnchoredFolder.open(landing.folder, below) as folder:
        hold = PartialFileLock(
            folder, leaf, lock_path=landing.lock_path, wait_s=hub.patience.lock_wait_s, name=wanted.label
        )
        with hold.take(clock=tools.clock, stop=hub.stop, teller=teller):
            if landing.keeps_validators:
                remove_validators(folder, leaf)
            put_file(found.path, landing.folder, landing.name, may_share=may_share and _protected(hub, found.path))
            set_strangers_aside(folder, hold.names, tools.received)
            for name in hold.names:
                folder.remove(name)
            if landing.keeps_validators and etag:
                write_validators(folder, leaf, Validators(etag=etag))
    fetched = FetchedFile(
        path=landing.path,
        status=Status.LINKED,
        size_bytes=found.size_bytes,
        sha256=found.sha256,
        seconds=tools.clock.monotonic_s() - began_s,
        url=shown(wanted.url),
        commit=wanted.commit,
        etag=etag if landing.keeps_validators else "",
    )
    tools.keep([(wanted, fetched)])
    teller.done(fetched)
    return fetched


def _protected(hub: Hub, path: str) -> bool:
    """Return True if bytes may get a second name: those of the cache, read-only. A user's file is copied."""
    target = os.path.realpath(path)
    return target.startswith(os.path.join(os.path.realpath(hub.cache.root), "")) and protect(target)
