"""Repository files that a job reads: downloaded, previewed and verified like `stoker fetch`."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any
from urllib.parse import urlsplit

from stoker.cli.context import CommandContext
from stoker.cli.fetch_session import (
    DEFAULT_JOBS,
    FetchCommandResult,
    FetchSession,
    hinted_for_job,
    session,
    try_fetching,
)
from stoker.core.errors import BadInput, Cancelled, InvalidInput, MissingRepoFiles, StokerError, Terminated
from stoker.core.frozen import frozen
from stoker.core.text import counted, format_size
from stoker.host.durable import stamp_of
from stoker.host.resources import check_space
from stoker.store.memo import remember_file
from stoker.transfer.download.types import DownloadPreview, known_sum
from stoker.transfer.hub.client import Hub, label_of
from stoker.transfer.hub.hub_cache import HubCache
from stoker.transfer.hub.listing import Repo, RepoFile, Revision, fitting, read_repo_at
from stoker.transfer.hub.repository import RepoRequest, fetch_repository, preview_fetch

_USUAL: dict[str, Any] = {
    "base_url": None, "force": False, "no_progress": False, "offline": False, "retries": None, "timeout": None,
    "verbose": False,
}  # fmt: skip
"""The default options of `stoker fetch`."""


def fetch(call: CommandContext, lack: MissingRepoFiles, refused: InvalidInput) -> int:
    """Download the missing files; return the downloaded bytes. Raises `refused` if the repository has none of them."""

    def work(one: FetchSession) -> FetchCommandResult:
        found = _found(one.hub, lack.repo)
        files = _needed(found, lack)
        if not files:
            raise refused
        _expect(one, found.repo, files)
        order = RepoRequest(repo=found.repo, revision=found.revision, files=files, workers=DEFAULT_JOBS)
        return FetchCommandResult(files=fetch_repository(one.hub, order))

    haul, error = try_fetching(call, _USUAL, lack.repo, work, shows_present=False)
    if error is not None:
        raise _named(error, lack)
    return _came_bytes(haul)


def preview(call: CommandContext, lack: MissingRepoFiles, refused: InvalidInput) -> None:
    """Print what would be downloaded. Raises `NoSpace` if it does not fit, `refused` as `fetch` does."""

    def look(one: FetchSession) -> DownloadPreview:
        found = _found(one.hub, lack.repo)
        if not _needed(found, lack):
            raise refused
        files = fitting(found.listed, lack.whole)
        return preview_fetch(one.hub, RepoRequest(repo=found.repo, revision=found.revision, files=files))

    with session(call, _USUAL, memo=call.parts.memo) as one:
        try:
            seen = one.run(look)
        except StokerError as error:
            raise _named(error, lack) from None
    out, host, size, coming = call.out, _host(call), seen.size_bytes, seen.to_come_bytes
    count = counted(len(seen.files), "file")
    body = {"argument": lack.argument, "repo": lack.repo, "files": len(seen.files), "bytes": size}
    out.object({"fetch": {**body, "to_come_bytes": coming, "from": host, "folder": seen.folder}})
    shown = "of unknown size" if size is None or coming is None else format_size(size)
    part = "" if coming is None or shown == format_size(coming) else f", {format_size(coming)} to download"
    out.line(f"{lack.argument} {lack.repo} would be downloaded from {host}: {count}, {shown}{part}")
    out.line("the plan needs these files; nothing was downloaded or run")
    check_space(count, seen.folder, coming_bytes=seen.needed_bytes, free=seen.free_bytes)


def verify(call: CommandContext, text: str, argument: str, paths: Collection[str], *, came_bytes: int) -> None:
    """Verify the paths that are in the cache's copy of a repository against their digests.

    Damaged files are set aside and downloaded again. If anything was downloaded, `came_bytes` before included, a line
    reports it. Without digests in the cache nothing is checked. Raises `StokerError`.
    """
    cache = HubCache(call.parts.hub_settings("").cache)
    found = _found_here(cache, text)
    if found is None:
        return
    below = os.path.join(cache.snapshot(found.repo, found.revision.commit), "")
    files = tuple(file for file in found.listed if f"{below}{file.path}" in paths)
    if not files or not all(file.blob for file in files):
        return
    before = {file.path: stamp_of(os.stat(f"{below}{file.path}")) for file in files}

    def work(one: FetchSession) -> FetchCommandResult:
        _expect(one, found.repo, files)
        return FetchCommandResult(
            files=fetch_repository(one.hub, RepoRequest(repo=found.repo, revision=found.revision, files=files))
        )

    haul, error = try_fetching(call, _USUAL, text, work, shows_present=False)
    if error is not None:
        raise hinted_for_job(error, argument)
    for file, got in zip(files, haul.files, strict=True):
        path = f"{below}{file.path}"
        info = os.stat(path)
        # The keys of stages then need not read the files again.
        if got.fetched is not None and stamp_of(info) == before[file.path]:
            remember_file(path, info, got.fetched.sha256, memo=call.parts.store.memo, clock=call.parts.clock)
    came_bytes += _came_bytes(haul)
    if came_bytes and not call.out.is_quiet:
        sign = "✓" if call.out.is_unicode else "ok"
        call.out.line(f"{argument} {text}: {format_size(came_bytes)} downloaded from {_host(call)}, sha256 {sign}")


@frozen
class _Found:
    """The files of a repository at one commit."""

    repo: Repo
    revision: Revision
    listed: tuple[RepoFile, ...]


def _needed(found: _Found, lack: MissingRepoFiles) -> tuple[RepoFile, ...]:
    """Return the files that are needed next; of a data set without small files, its data."""
    files = fitting(found.listed, lack.names)
    return files if files or found.repo.kind == "model" else fitting(found.listed, lack.whole)


def _found(hub: Hub, text: str) -> _Found:
    """List a repository; at the commit in the cache, if there is one, because partial downloads are of that one."""
    repo, revision = read_repo_at(text)
    commit = hub.cache.read_ref(repo, revision)
    found = Revision(asked=revision, commit=commit) if commit else hub.resolve(repo, revision)
    return _Found(repo=repo, revision=found, listed=hub.files(repo, found.commit))


def _found_here(cache: HubCache, text: str) -> _Found | None:
    """List a repository from the cache; None if it is not there, or the text names no repository."""
    try:
        repo, revision = read_repo_at(text)
    except BadInput:
        return None
    commit = cache.commit_at(repo, revision)
    if not commit:
        return None
    listed = cache.read_tree(repo, commit) or cache.read_snapshot(repo, commit)
    return _Found(repo=repo, revision=Revision(asked=commit, commit=commit), listed=listed)


def _expect(one: FetchSession, repo: Repo, files: Iterable[RepoFile]) -> None:
    labels = [label_of(repo, file.path) for file in files]
    one.expect(labels, known_sum(file.size_bytes for file in files), within=str(repo))


def _named(error: StokerError, lack: MissingRepoFiles) -> StokerError:
    """Return a download error with the argument that needs it: a folder may have been meant."""
    if isinstance(error, InvalidInput | Cancelled | Terminated):
        return error
    message = f"{lack.argument}={lack.repo} is not a local folder, and the download failed: {error}"
    return hinted_for_job(type(error)(message, hint=error.hint, **error.data), lack.argument)


def _host(call: CommandContext) -> str:
    return urlsplit(call.parts.hub_settings("").endpoint).netloc


def _came_bytes(haul: FetchCommandResult) -> int:
    return sum(got.fetched.bytes_from_network for got in haul.files if got.fetched is not None)
