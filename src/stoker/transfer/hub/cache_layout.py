"""The public cache of a hub, as its own client lays it out and other programs read it.

    CACHE/models--org--name/blobs/DIGEST             the bytes, named by their sha256 or their git blob's sha1
                            snapshots/COMMIT/PATH    a relative link to the bytes
                            refs/REVISION            the commit that a revision was
                            trees/COMMIT.json        what the commit holds
          .locks/models--org--name/DIGEST.lock       taken by whoever fetches those bytes, other programs included
          blobs/                                     the client's own store across repositories: read, never written

This module knows the paths and reads and writes the small files. Bytes are judged in `blobs` and get their names in
`snapshot`. What the client notes in `.no_exist` and its `.incomplete` files are left alone.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress

from stoker.core.digests import Digest, is_digest
from stoker.core.errors import BadAnswer, NoPermission, StokerError
from stoker.core.frozen import frozen
from stoker.host.durable import read_regular, sweep_temps, translated, write_file
from stoker.transfer.download.paths import unfinished_of
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
    """A download in the cache that did not come to its end."""

    paths: tuple[str, ...]
    """The partial file and its sidecar, whichever of them is there; it may be claimed by whoever cannot lock it."""
    size_bytes: int
    is_foreign: bool
    """Whether the hub's own client began it: it never resumes one."""


class HubCache:
    """One cache folder."""

    def __init__(self, root: str) -> None:
        self.root = root

    def folder(self, repo: Repo) -> str:
        return os.path.join(self.root, repo.folder)

    def blobs(self, repo: Repo) -> str:
        return os.path.join(self.root, repo.folder, "blobs")

    def lock(self, repo: Repo, blob: str) -> str:
        """Return the lock of some bytes: the very file that the hub's client locks."""
        return self._lock(repo.folder, blob)

    def lock_of(self, path: str) -> str:
        """Return the lock that whoever writes this file below `blobs` holds, of this program or of the hub's client."""
        repo_folder = os.path.basename(os.path.dirname(os.path.dirname(path)))
        return self._lock(repo_folder, os.path.basename(path).partition(".")[0])

    def find(self, sha256: Digest) -> list[str]:
        """Return where the cache has bytes under this digest, in any repository; they are not looked at."""
        paths = (os.path.join(folder, sha256) for folder in self._all_blobs())
        return [path for path in paths if os.path.isfile(path)]

    def partials(self) -> list[UnfinishedDownload]:
        """Return every download in the cache that did not come to its end, whoever began it."""
        return [one for folder in self._all_blobs() for one in _unfinished_in(folder)]

    def models(self) -> list[Repo]:
        """Return the models that have a folder in the cache, whatever of them was fetched."""
        names = sorted(os.listdir(self.root)) if os.path.isdir(self.root) else []
        parts = [name.split("--") for name in names]
        return [Repo(name="/".join(named)) for kind, *named in parts if kind == "models" and named]

    def snapshot(self, repo: Repo, commit: str) -> str:
        return os.path.join(self.root, repo.folder, "snapshots", commit)

    def shared(self, xet_hash: str) -> str:
        """Return where the client's own store across repositories would have those bytes; empty if it has none."""
        return os.path.join(self.root, "blobs", xet_hash[:2], xet_hash) if is_digest(xet_hash) else ""

    def make(self, repo: Repo, *, now_s: float) -> None:
        """Make the folders of a repository, mark the cache as one for backup programs, sweep what a crash of ours left.

        In a cache that can't be written none of it happens: it may hold all that is wanted.
        """
        with suppress(NoPermission), translated(self.root):
            for folder in (self.blobs(repo), os.path.join(self.root, ".locks", repo.folder)):
                os.makedirs(folder, exist_ok=True)
            tag = os.path.join(self.root, "CACHEDIR.TAG")
            if not os.path.lexists(tag):
                write_file(tag, _TAG)
            sweep_temps(self.blobs(repo), _FORGOTTEN_S, now_s)

    def read_ref(self, repo: Repo, revision: str) -> str:
        """Return the commit that a revision was when it was last fetched, or nothing."""
        try:
            path = os.path.join(self.folder(repo), "refs", revision)
            commit = read_regular(path, _LONGEST_REF_BYTES).decode("ascii").strip()
        except (OSError, ValueError):
            return ""
        return commit if is_commit(commit) else ""

    def commit_at(self, repo: Repo, revision: str) -> str:
        """Return the commit that a revision is here, or nothing if the cache has no files of it."""
        commit = self.read_ref(repo, revision) or revision
        return commit if is_commit(commit) and os.path.isdir(self.snapshot(repo, commit)) else ""

    def write_ref(self, repo: Repo, revision: str, commit: str) -> None:
        """Note which commit a revision is. Comes last: whoever follows it finds everything there."""
        if revision == commit or self.read_ref(repo, revision) == commit:
            return
        path = os.path.join(self.folder(repo), "refs", revision)
        with translated(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        write_file(path, commit.encode())

    def read_tree(self, repo: Repo, commit: str) -> tuple[RepoFile, ...] | None:
        """Return what a commit holds, if that was noted: it never changes. A damaged note counts as none."""
        try:
            noted = json.loads(read_regular(self._tree(repo, commit), LONGEST_ANSWER_BYTES))
            if noted["format_version"] != _TREE_FORMAT:
                return None
            return tuple(_from_note(path, fields) for path, fields in noted["files"].items())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, BadAnswer):
            return None

    def write_tree(self, repo: Repo, commit: str, files: tuple[RepoFile, ...]) -> None:
        """Note what a commit holds, in the client's own form. A cache that can't be written does without."""
        noted = {"format_version": _TREE_FORMAT, "files": {file.path: _as_note(file) for file in files}}
        path = self._tree(repo, commit)
        with suppress(StokerError), translated(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_file(path, json.dumps(noted, indent=1).encode())

    def read_snapshot(self, repo: Repo, commit: str) -> tuple[RepoFile, ...]:
        """Return the files that a snapshot has, each with the digest that its link names."""
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
