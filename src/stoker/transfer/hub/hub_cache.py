"""The cache of the Hugging Face hub: its layout, and verification of the bytes in it.

Other programs wrote many of them, unverified and perhaps incomplete, so a blob is hashed once before it is used: its
sha256, or the sha1 of its git blob. The result is stored with the file's stamp, and the next check costs a `stat`. A
damaged blob is renamed, never deleted and never used.

A blob may be a link, for example into the client's store across repositories: it is read through, and nothing is ever
written through it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from stoker.core.clock import Clock
from stoker.core.digests import Digest, is_digest
from stoker.core.errors import BadAnswer, NoPermission, StokerError
from stoker.core.frozen import frozen
from stoker.host.durable import Stamp, read_regular, stamp_of, sweep_temps, temp_name, translated, write_file
from stoker.host.folders import AnchoredFolder
from stoker.host.writers import materialise
from stoker.store.memo import Memo
from stoker.transfer.download.content import Sums, SumsBuilder
from stoker.transfer.download.download_events import ConnectionSpeed, DownloadEvents
from stoker.transfer.download.partial import unfinished_of
from stoker.transfer.download.types import DownloadStop, DownloadTimeouts
from stoker.transfer.hub.listing import LONGEST_ANSWER_BYTES, Repo, RepoFile, is_commit, read_entry

_LONGEST_REF_BYTES = 1024
_FOREIGN = ".incomplete"
_TREE_FORMAT = 1
_FORGOTTEN_S = 3600.0
_TAG = b"""Signature: 8a477f597d28d172789f06886806bc55
# Backup programs leave a folder out that holds this file.
"""


@frozen
class UnfinishedDownload:
    """An unfinished download in the cache."""

    paths: tuple[str, ...]
    """The partial file and its sidecar, if they exist; a process that can't lock it may have claimed it by name."""
    size_bytes: int
    is_foreign: bool
    """True if the hub's own client started it: that client never resumes one."""


class HubCache:
    """One cache folder."""

    def __init__(self, root: str) -> None:
        self.root = root

    def folder(self, repo: Repo) -> str:
        return os.path.join(self.root, repo.folder)

    def blobs(self, repo: Repo) -> str:
        return os.path.join(self.root, repo.folder, "blobs")

    def lock(self, repo: Repo, blob: str) -> str:
        """Return the path of the lock of some bytes: the same that the hub's client locks."""
        return self._lock(repo.folder, blob)

    def lock_of(self, path: str) -> str:
        """Return the lock of the writer of this file below `blobs`: this program, or the hub's client."""
        repo_folder = os.path.basename(os.path.dirname(os.path.dirname(path)))
        return self._lock(repo_folder, os.path.basename(path).partition(".")[0])

    def find(self, sha256: Digest) -> list[str]:
        """Return the path of bytes with this digest, in any repository; they are not verified."""
        paths = (os.path.join(folder, sha256) for folder in self._all_blobs())
        return [path for path in paths if os.path.isfile(path)]

    def partials(self) -> list[UnfinishedDownload]:
        """Return every unfinished download in the cache, of this program or another one."""
        return [one for folder in self._all_blobs() for one in _unfinished_in(folder)]

    def models(self) -> list[Repo]:
        """Return the models that have a folder in the cache."""
        names = sorted(os.listdir(self.root)) if os.path.isdir(self.root) else []
        parts = [name.split("--") for name in names]
        return [Repo(name="/".join(named)) for kind, *named in parts if kind == "models" and named]

    def snapshot(self, repo: Repo, commit: str) -> str:
        return os.path.join(self.root, repo.folder, "snapshots", commit)

    def named(self, path: str) -> str:
        """Return the repository and the commit of a path in a snapshot, as `datasets/org/name@commit`; else empty."""
        if not path.startswith(os.path.join(self.root, "")):
            return ""
        folder, kind, commit = [*os.path.relpath(path, self.root).split(os.sep), "", ""][:3]
        parts = folder.split("--")
        if kind != "snapshots" or len(parts) < 2 or not is_commit(commit):
            return ""
        return f"{Repo(kind=parts[0].removesuffix('s'), name='/'.join(parts[1:]))}@{commit}"

    def shared(self, xet_hash: str) -> str:
        """Return the path of these bytes in the client's own store across repositories; empty if it has none."""
        return os.path.join(self.root, "blobs", xet_hash[:2], xet_hash) if is_digest(xet_hash) else ""

    def make(self, repo: Repo, *, now_s: float) -> None:
        """Make the folders of a repository, mark the cache for backup programs, delete leftovers of crashes.

        Does nothing in a read-only cache: it may have all requested files.
        """
        with suppress(NoPermission), translated(self.root):
            for folder in (self.blobs(repo), os.path.join(self.root, ".locks", repo.folder)):
                os.makedirs(folder, exist_ok=True)
            tag = os.path.join(self.root, "CACHEDIR.TAG")
            if not os.path.lexists(tag):
                write_file(tag, _TAG)
            sweep_temps(self.blobs(repo), _FORGOTTEN_S, now_s)

    def read_ref(self, repo: Repo, revision: str) -> str:
        """Return the commit of a revision at its last download; empty if unknown."""
        try:
            path = os.path.join(self.folder(repo), "refs", revision)
            commit = read_regular(path, _LONGEST_REF_BYTES).decode("ascii").strip()
        except (OSError, ValueError):
            return ""
        return commit if is_commit(commit) else ""

    def commit_at(self, repo: Repo, revision: str) -> str:
        """Return the commit of a revision in the cache; empty if the cache has no files of it."""
        commit = self.read_ref(repo, revision) or revision
        return commit if is_commit(commit) and os.path.isdir(self.snapshot(repo, commit)) else ""

    def write_ref(self, repo: Repo, revision: str, commit: str) -> None:
        """Record the commit of a revision. Written last: a reader of the ref finds every file."""
        if revision == commit or self.read_ref(repo, revision) == commit:
            return
        path = os.path.join(self.folder(repo), "refs", revision)
        with translated(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        write_file(path, commit.encode())

    def read_tree(self, repo: Repo, commit: str) -> tuple[RepoFile, ...] | None:
        """Return the stored listing of a commit, which never changes; None if there is none or it is damaged."""
        try:
            noted = json.loads(read_regular(self._tree(repo, commit), LONGEST_ANSWER_BYTES))
            if noted["format_version"] != _TREE_FORMAT:
                return None
            return tuple(_from_note(path, fields) for path, fields in noted["files"].items())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, BadAnswer):
            return None

    def write_tree(self, repo: Repo, commit: str, files: tuple[RepoFile, ...]) -> None:
        """Store the listing of a commit, in the client's own format. A read-only cache is left unchanged."""
        noted = {"format_version": _TREE_FORMAT, "files": {file.path: _as_note(file) for file in files}}
        path = self._tree(repo, commit)
        with suppress(StokerError), translated(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_file(path, json.dumps(noted, indent=1).encode())

    def read_snapshot(self, repo: Repo, commit: str) -> tuple[RepoFile, ...]:
        """Return the files of a snapshot, each with the digest in its link."""
        top = self.snapshot(repo, commit)
        return tuple(sorted(_walk(top), key=lambda file: file.path))

    def _lock(self, repo_folder: str, blob: str) -> str:
        return os.path.join(self.root, ".locks", repo_folder, f"{blob}.lock")

    def _all_blobs(self) -> list[str]:
        try:
            return [os.path.join(self.root, name, "blobs") for name in sorted(os.listdir(self.root))]
        except OSError:
            return []

    def _tree(self, repo: Repo, commit: str) -> str:
        return os.path.join(self.folder(repo), "trees", f"{commit}.json")


def _unfinished_in(folder: str) -> Iterator[UnfinishedDownload]:
    sizes: dict[str, int] = {}
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.name.endswith(_FOREIGN) or unfinished_of(entry.name):
                    sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
    together: dict[str, list[str]] = {}
    for name in sorted(sizes):
        together.setdefault(unfinished_of(name) or name, []).append(name)
    for names in together.values():
        yield UnfinishedDownload(
            paths=tuple(os.path.join(folder, name) for name in names),
            size_bytes=sum(sizes[name] for name in names),
            is_foreign=names[0].endswith(_FOREIGN),
        )


def _walk(top: str) -> Iterator[RepoFile]:
    pending = [""]
    while pending:
        prefix = pending.pop()
        with suppress(FileNotFoundError), os.scandir(os.path.join(top, prefix)) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(f"{prefix}{entry.name}/")
                    continue
                with suppress(FileNotFoundError):
                    size_bytes = entry.stat().st_size
                    blob = os.path.basename(os.readlink(entry.path)) if entry.is_symlink() else ""
                    yield _named(f"{prefix}{entry.name}", size_bytes, blob)


def _named(path: str, size_bytes: int, blob: str) -> RepoFile:
    is_git = re.fullmatch(r"[0-9a-f]{40}", blob) is not None
    return RepoFile(
        path=path,
        size_bytes=size_bytes,
        sha256=Digest(blob) if is_digest(blob) else None,
        git_sha1=blob if is_git else "",
    )


def _as_note(file: RepoFile) -> dict[str, object]:
    note: dict[str, object] = {"size": file.size_bytes, "blob_id": file.git_sha1 or file.pointer_sha1}
    if file.sha256:
        note |= {"lfs_sha256": file.sha256, "lfs_size": file.size_bytes}
    if file.xet_hash:
        note["xet_hash"] = file.xet_hash
    return note


def _from_note(path: str, fields: dict[str, object]) -> RepoFile:
    large = {"oid": fields["lfs_sha256"], "size": fields["lfs_size"]} if fields.get("lfs_sha256") else None
    entry = {"path": path, "size": fields["size"], "oid": fields["blob_id"], "lfs": large}
    return read_entry(entry | {"xetHash": fields.get("xet_hash")}, "")


_BLOCK_BYTES = 1 << 20
_TOLD_BYTES = 64 << 20
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


@frozen
class CheckedBlob:
    """The file under a name: valid bytes with their sha256, or the reason why they are not the requested ones."""

    path: str
    size_bytes: int
    sha256: Digest | None = None
    fault: str = ""


class BlobChecker:
    """Checks whether a file's bytes are those of a file in a repository. Thread-safe."""

    def __init__(
        self,
        memo: Memo,
        *,
        clock: Clock,
        stop: DownloadStop,
        teller_of: Callable[[RepoFile], DownloadEvents] | None = None,
    ) -> None:
        """`teller_of` returns the events that report progress while a large file is read."""
        self._memo = memo
        self._clock = clock
        self._stop = stop
        self._teller_of = teller_of

    def look(self, path: str, file: RepoFile) -> CheckedBlob | None:
        """Return what is at a path, following a link; None if nothing is there."""
        with translated(path):
            try:
                descriptor = os.open(path, _OPEN)
            except (FileNotFoundError, NotADirectoryError):
                # A dangling link occupies a name, yet has no bytes.
                return None
            except IsADirectoryError:
                return CheckedBlob(path=path, size_bytes=0, fault="it is a folder")
            try:
                return self._judged(path, descriptor, file)
            finally:
                os.close(descriptor)

    def remember(self, path: str, file: RepoFile, sha256: Digest) -> None:
        """Record that we wrote verified bytes there just now; no other program writes there."""
        with suppress(OSError):
            self._memo.remember(_key(path, file), stamp_of(os.stat(path)), sha256)

    def set_aside(self, path: str, file: RepoFile) -> str:
        """Rename a damaged file, or the link to it; return its new path."""
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
        # Its writer may not have synced it, and a power cut must not lose what we recorded as verified.
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
    # The memo stores a sha256. For a file that is known by its sha1, a separate entry states that the sha1 was checked
    # too. In ASCII, because a name that is not Unicode can't be stored as text.
    return f"git:{file.git_sha1}:{path!a}" if file.git_sha1 else f"path:{path!a}"


# Names of cached bytes: the files of one commit, as other programs look them up.
#
# A name is a relative link to its blob, so that the cache can be moved. If the file system has no links, it is a hard
# link, or a copy. Nothing planted below the repository's folder can redirect a name.

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})


def name_files(cache: HubCache, repo: Repo, commit: str, files: Iterable[RepoFile], *, symlinks: bool = True) -> None:
    """Name files in a snapshot whose blobs are verified and durable; the names are durable on return."""
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
    """Make one name, unless it exists; return True if it was made."""
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
    """Make a link under a name, replacing what is there; return False if the file system has no links."""
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
