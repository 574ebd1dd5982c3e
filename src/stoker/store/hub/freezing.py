"""A repository as it is now, as a lock list: each file by its digest, and an address that can't move."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.model.errors import BadAnswer, Refused
from stoker.model.frozen import changed
from stoker.store.download.lock_list import LockedFile
from stoker.store.hub.address import Repo
from stoker.store.hub.hub import Hub
from stoker.store.hub.repo_file import RepoFile, Revision
from stoker.store.hub.repository import Order, fetch_repository, first_cause


def freeze(
    hub: Hub, repo: Repo, revision: Revision, files: Sequence[RepoFile], *, workers: int
) -> tuple[LockedFile, ...]:
    """Give the lock list of some files of a commit.

    Of small files a hub tells no sha256: those are fetched into the cache, where their bytes are checked. Raises what
    keeps one of them away, and `Refused` where the server knows no commits.
    """
    if not revision.commit:
        raise Refused(f"{repo} has no commits on this server", hint="a lock list needs addresses that can't move")
    unknown = [file for file in files if file.sha256 is None]
    # By its commit: the cache must not note a branch of which only the small files are there.
    pinned = changed(revision, asked=revision.commit)
    outcomes = fetch_repository(hub, Order(repo=repo, revision=pinned, files=unknown, workers=workers))
    cause = first_cause(outcomes)
    if cause is not None:
        raise cause
    fetched = {file.path: one.fetched for file, one in zip(unknown, outcomes, strict=True) if one.fetched is not None}
    known = [
        changed(file, sha256=fetched[file.path].sha256, size_bytes=fetched[file.path].size_bytes)
        if file.path in fetched
        else file
        for file in files
    ]
    licence = hub.licence(repo, revision.commit)
    return tuple(_listed(hub, repo, revision.commit, file, licence) for file in known)


def _listed(hub: Hub, repo: Repo, commit: str, file: RepoFile, licence: str) -> LockedFile:
    if file.sha256 is None or file.size_bytes is None:
        raise BadAnswer(f"the server tells no digest of {file.path}")
    return LockedFile(
        id=f"{repo}/{file.path}",
        sha256=file.sha256,
        size_bytes=file.size_bytes,
        urls=(hub.wanted(repo, commit, file).url,),
        license=licence,
    )
