"""Downloads of single files: from a URL, a model with its tokenizer, the files of a lock list.

Files of a lock list are stored below folders named by their digests. They may be on any server: an unreachable server,
or one that refuses, affects only its own files. The hub adds token and error messages for its own URLs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from stoker.core.digests import Digest, digest_bytes
from stoker.core.errors import (
    AuthRefused,
    BadAnswer,
    Cancelled,
    Damaged,
    NetworkFailed,
    NoPermission,
    NoSpace,
    NotOnServer,
    NotVerified,
    RateLimited,
    Refused,
    StokerError,
    Terminated,
)
from stoker.core.events import Event, Kinds
from stoker.core.frozen import changed
from stoker.core.retry import NoRetry
from stoker.core.text import counted
from stoker.host.durable import translated
from stoker.host.http.exchange import origin, shown
from stoker.host.resources import check_space, device_of
from stoker.transfer.download.content import Validators, is_newest, not_ours
from stoker.transfer.download.download import fetch_file, kept_bytes_of
from stoker.transfer.download.download_events import DownloadPool, reason_of, retry_of
from stoker.transfer.download.lock_list import LockedFile
from stoker.transfer.download.receipts import Receipts
from stoker.transfer.download.response_rules import FailedAttempts, decide_again, given_up, is_outage
from stoker.transfer.download.types import (
    ALL_OURS,
    DownloadOutcome,
    DownloadPreview,
    DownloadRequest,
    DownloadStop,
    DownloadTimeouts,
    DownloadTools,
    FetchedFile,
    PlannedDownload,
    Status,
    TargetFile,
    is_plain_file,
    known_sum,
    partial_bytes,
    seems_there,
)
from stoker.transfer.hub.client import Hub, RepoListing, label_of
from stoker.transfer.hub.destinations import look_nearby, take_nearby
from stoker.transfer.hub.listing import Repo, RepoFile, Revision, file_url
from stoker.transfer.hub.repository import RepoRequest, fetch_repository, first_cause, not_expected

# One file from any URL, as a plain file in a user's folder.
#
# Nothing but the file is left in the folder, and during the download its partial file. The lock is in a folder of our
# own, named by the digest of the file's path: an empty file that is made once and stays, because deleting a lock would
# let two processes hold it (`host.locks`). Earlier downloads are known by their receipts instead of validators beside
# them.


def plain_landing(folder: str, name: str, *, locks: str) -> TargetFile:
    """Return the target of a plain file; `locks` is our own folder for its lock."""
    lock = f"{digest_bytes(os.fsencode(os.path.join(folder, name)))}.lock"
    return TargetFile(folder=folder, name=name, lock_path=os.path.join(locks, lock))


def wanted_at(hub: Hub, url: str, name: str, *, sha256: Digest | None = None) -> DownloadRequest:
    """Return the request for the file at a URL."""
    return DownloadRequest(url=url, label=name, sha256=sha256, headers=hub.headers_for(url))


def wanted_of(hub: Hub, found: RepoListing, *, sha256: Digest | None = None) -> DownloadRequest:
    """Return the request for the one selected file.

    Raises `HashMismatch` if the hub states another digest.
    """
    (file,) = found.files
    if sha256 is not None and file.sha256 not in {None, sha256}:
        raise not_expected(label_of(found.repo, file.path), sha256, str(file.sha256))
    wanted = hub.wanted(found.repo, found.revision.commit or found.revision.asked, file)
    return wanted if sha256 is None else changed(wanted, sha256=sha256)


def fetch_plain(
    hub: Hub, wanted: DownloadRequest, landing: TargetFile, *, receipts: Receipts, force: bool = False
) -> FetchedFile:
    """Download a file to the path of `plain_landing`. Raises what `fetch_file` raises."""
    locks = os.path.dirname(landing.lock_path)
    with translated(locks):
        os.makedirs(locks, exist_ok=True)
    if not force:
        wanted = _as_received(hub, wanted, landing, receipts)
    return fetch_file(
        wanted,
        landing,
        tools=hub.tools,
        patience=hub.patience,
        stop=hub.stop,
        force=force,
        offline=hub.settings.offline,
    )


def preview_plain(
    hub: Hub, wanted: DownloadRequest, landing: TargetFile, *, receipts: Receipts, force: bool = False
) -> DownloadPreview:
    """Return what `fetch_plain` would do; sends queries only."""
    offline = hub.settings.offline
    if not force:
        wanted = _as_received(hub, wanted, landing, receipts)
    if wanted.size_bytes is None and not offline:
        wanted = changed(wanted, size_bytes=hub.size_at(wanted.url, landing.name))
    # Without a digest and without a receipt, the existing file may be any file.
    is_known = offline or (not force and _has_digest(wanted))
    is_there = is_known and is_plain_file(landing.path) and seems_there(landing.path, wanted.size_bytes)
    is_in_the_way = not force and not offline and not is_there and is_plain_file(landing.path)
    if is_in_the_way and not hub.tools.owns(landing.path):
        raise not_ours(landing.path)
    upcoming = PlannedDownload(
        label=wanted.label or landing.name,
        path=landing.path,
        size_bytes=os.path.getsize(landing.path) if is_there else wanted.size_bytes,
        status=Status.CACHED if is_there else Status.DOWNLOADED,
        partial_bytes=0 if force or is_there else partial_bytes(landing),
        is_missing=offline and not is_there,
    )
    free = hub.tools.free_bytes(landing.folder)
    return DownloadPreview(
        files=(upcoming,), folder=landing.folder, needed_bytes=upcoming.to_come_bytes, free_bytes=free
    )


def _as_received(hub: Hub, wanted: DownloadRequest, landing: TargetFile, receipts: Receipts) -> DownloadRequest:
    """Add what an earlier receipt states of the bytes, if the server still has that version."""
    if _has_digest(wanted) or hub.settings.offline:
        return wanted
    try:
        receipt = receipts.at(landing.path)
    except NotVerified:
        return wanted
    if receipt is None or receipt.source != shown(wanted.url) or not os.path.isfile(landing.path):
        return wanted
    validators = Validators(etag=receipt.etag, last_modified=receipt.last_modified)
    with hub.stop.cutting(hub.tools.transport.abort):
        is_same = bool(validators) and is_newest(hub.tools.transport, wanted, receipt.size_bytes, validators)
    return changed(wanted, sha256=receipt.sha256, size_bytes=receipt.size_bytes) if is_same else wanted


def _has_digest(wanted: DownloadRequest) -> bool:
    return wanted.sha256 is not None or bool(wanted.git_sha1)


# One model file and its tokenizer, as plain files in a folder, with validators beside them.

TOKENIZERS = ("tokenizer.json", "tokenizer.model")
"""Tried in this order after the model; the first one that the repository has is enough."""


class ModelFolder:
    """Downloads files of one repository at one revision into one folder, under the last parts of their paths."""

    def __init__(self, hub: Hub, repo: Repo, revision: str, folder: str, *, force: bool = False) -> None:
        self._hub = hub
        self._repo = repo
        self._revision = revision
        self._folder = folder
        self._force = force

    def fetch(self, path: str, *, sha256: Digest | None = None) -> FetchedFile:
        """Download a file. Bytes in the hub's cache are not downloaded. Raises what `fetch_file` raises."""
        hub = self._hub
        landing = TargetFile(folder=self._folder, name=path.rpartition("/")[2], keeps_validators=True)
        wanted, file = self._wanted(path)
        if file is not None and sha256 is not None and file.sha256 not in {None, sha256}:
            raise not_expected(wanted.label, sha256, str(file.sha256))
        taken = None if file is None else self._take_from_cache(file, wanted, landing, sha256)
        if taken is not None:
            return taken
        return fetch_file(
            wanted if sha256 is None else changed(wanted, sha256=sha256),
            landing,
            tools=hub.tools,
            patience=hub.patience,
            stop=hub.stop,
            force=self._force,
            offline=hub.settings.offline,
        )

    def fetch_tokenizer(self) -> FetchedFile | None:
        """Download the repository's tokenizer. Returns None if there is none; logs a warning if the download fails."""
        for name in TOKENIZERS:
            try:
                return self.fetch(name)
            except (Cancelled, Terminated):
                raise
            except NotOnServer:
                continue
            except StokerError as error:
                message = f"the model was downloaded, {name} was not: {error}"
                self._hub.tools.say(Event(Kinds.WARNING, {"message": message}))
                return None
        return None

    def _wanted(self, path: str) -> tuple[DownloadRequest, RepoFile | None]:
        """Return the request for a file with the hub's metadata: commit, size and digest."""
        hub, repo = self._hub, self._repo
        if hub.settings.offline:
            # Offline only the folder counts: the cache may not know the repository.
            url = file_url(hub.settings.endpoint, repo, self._revision, path)
            return wanted_at(hub, url, label_of(repo, path)), None
        file, commit = hub.file(repo, self._revision, path)
        return hub.wanted(repo, commit or self._revision, file), file

    def _take_from_cache(
        self, file: RepoFile, wanted: DownloadRequest, landing: TargetFile, sha256: Digest | None
    ) -> FetchedFile | None:
        hub = self._hub
        if not file.blob or self._force or os.path.lexists(landing.path):
            return None
        found = look_nearby(hub, os.path.join(hub.cache.blobs(self._repo), file.blob), file)
        if found is None:
            return None
        if sha256 not in {None, found.sha256}:
            raise not_expected(wanted.label, str(sha256), str(found.sha256))
        return take_nearby(hub, found, wanted, landing, etag=f'"{file.blob}"')


_FOR_ALL = (NoPermission, NoSpace)


def fetch_list(
    hub: Hub,
    files: Sequence[LockedFile],
    folder: str,
    *,
    receipts: Receipts | None = None,
    force: bool = False,
    workers: int = 1,
) -> list[DownloadOutcome]:
    """Download every file of a list below a folder; return the outcomes in the order of the list.

    Bytes in the hub's cache, or at the path of a receipt, are not downloaded again. Raises `NoSpace` before the first
    download if the files do not fit on the disk.
    """
    preview = preview_list(hub, files, folder, receipts=receipts, force=force)
    if preview.needed_bytes:
        count = counted(len(files), "file")
        check_space(count, folder, coming_bytes=preview.needed_bytes, free=preview.free_bytes)

    def fetch(file: LockedFile) -> list[DownloadOutcome]:
        return [_fetch(hub, file, folder, receipts=receipts, force=force)]

    crew = DownloadPool(files, fetch, labels=lambda file: [file.id], ends_all=_FOR_ALL, server=_servers)
    by_id = {outcome.label: outcome for outcome in crew.work(workers)}
    return [by_id[file.id] for file in files]


def preview_list(
    hub: Hub, files: Sequence[LockedFile], folder: str, *, receipts: Receipts | None = None, force: bool = False
) -> DownloadPreview:
    """Return what `fetch_list` would do, without the network."""
    upcoming = [_expected(hub, file, folder, receipts=receipts, force=force) for file in files]
    copies = device_of(folder) != device_of(hub.cache.root)
    return DownloadPreview(
        files=upcoming,
        folder=folder,
        needed_bytes=known_sum(
            one.size_bytes if copies and one.status is Status.LINKED else one.to_come_bytes for one in upcoming
        ),
        free_bytes=hub.tools.free_bytes(folder),
    )


def _fetch(hub: Hub, file: LockedFile, folder: str, *, receipts: Receipts | None, force: bool) -> DownloadOutcome:
    landing = TargetFile(folder=folder, name=file.name)
    try:
        taken = None if force else _take_nearby(hub, file, landing, receipts)
        fetched = taken or fetch_listed(
            file,
            landing,
            # Other bytes at a path named by a digest are damaged.
            tools=changed(hub.tools, owns=ALL_OURS),
            patience=hub.patience,
            stop=hub.stop,
            headers_for=hub.headers_for,
            force=force,
            offline=hub.settings.offline,
        )
    except StokerError as error:
        return DownloadOutcome(label=file.id, error=hub.explained(error, file.urls[0], file.id))
    return DownloadOutcome(label=file.id, fetched=fetched)


def _take_nearby(hub: Hub, file: LockedFile, landing: TargetFile, receipts: Receipts | None) -> FetchedFile | None:
    """Copy or share a file's bytes from elsewhere on this machine, unless the file exists."""
    if seems_there(landing.path, file.size_bytes):
        return None
    named = RepoFile(path=file.name, size_bytes=file.size_bytes, sha256=file.sha256)
    for path in _nearby(hub, file, receipts):
        found = look_nearby(hub, path, named)
        if found is not None:
            wanted = DownloadRequest(url=file.urls[0], label=file.id, size_bytes=file.size_bytes, sha256=file.sha256)
            return take_nearby(hub, found, wanted, landing, may_share=True)
    return None


def _nearby(hub: Hub, file: LockedFile, receipts: Receipts | None) -> list[str]:
    places = hub.cache.find(file.sha256)
    if receipts is not None and (place := receipts.place_of(file.sha256)):
        places.append(place)
    return [place for place in places if seems_there(place, file.size_bytes)]


def _expected(hub: Hub, file: LockedFile, folder: str, *, receipts: Receipts | None, force: bool) -> PlannedDownload:
    landing = TargetFile(folder=folder, name=file.name)
    offline = hub.settings.offline
    is_kept = offline or not force
    status = Status.DOWNLOADED
    if is_kept and seems_there(landing.path, file.size_bytes):
        status = Status.CACHED
    elif not force and _nearby(hub, file, receipts):
        status = Status.LINKED
    is_there = status is not Status.DOWNLOADED
    return PlannedDownload(
        label=file.id,
        path=landing.path,
        size_bytes=file.size_bytes,
        status=status,
        partial_bytes=0 if force or is_there else partial_bytes(landing),
        is_missing=offline and not is_there,
    )


def _servers(file: LockedFile) -> str:
    return " ".join(str(origin(url)) for url in file.urls)


# A lock list of a repository as it is now: each file by its digest, with a URL that can't change.


def freeze(
    hub: Hub, repo: Repo, revision: Revision, files: Sequence[RepoFile], *, workers: int
) -> tuple[LockedFile, ...]:
    """Return the lock list of some files of a commit.

    A hub states no sha256 of small files: those are downloaded into the cache and verified there. Raises the first
    error of these downloads, and `Refused` if the server has no commits.
    """
    if not revision.commit:
        raise Refused(f"{repo} has no commits on this server", hint="a lock list needs addresses that can't move")
    unknown = [file for file in files if file.sha256 is None]
    # By its commit: the cache must not record a branch of which only the small files are there.
    pinned = changed(revision, asked=revision.commit)
    outcomes = fetch_repository(hub, RepoRequest(repo=repo, revision=pinned, files=unknown, workers=workers))
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
        raise BadAnswer(f"the server states no digest of {file.path}")
    return LockedFile(
        id=f"{repo}/{file.path}",
        sha256=file.sha256,
        size_bytes=file.size_bytes,
        urls=(hub.wanted(repo, commit, file).url,),
        license=licence,
    )


# A file of a lock list, from the first of its URLs that has it.

# Errors that another server may not have; a full disk concerns all of them.
_ANOTHER_MAY_HELP = (AuthRefused, BadAnswer, Damaged, NetworkFailed, NotOnServer, RateLimited)


def fetch_listed(  # noqa: PLR0913 - what, where to, with what, how long, until when, and the wishes of a user
    file: LockedFile,
    landing: TargetFile,
    *,
    tools: DownloadTools,
    patience: DownloadTimeouts,
    stop: DownloadStop,
    headers_for: Callable[[str], Mapping[str, str]],
    force: bool = False,
    offline: bool = False,
) -> FetchedFile:
    """Download a listed file to its final name: its URLs are tried in order.

    Each of several URLs gets a few attempts, so that an unavailable one does not delay the others; while any of them is
    unavailable, all are retried within the timeouts. `headers_for` returns the headers for a URL, with credentials.
    Raises the error of the last URL, with the results of the others in its data.
    """
    # The disk is the same for all of them.
    urls = file.urls[:1] if offline else file.urls
    each = patience if len(urls) == 1 else changed(patience, attempts=patience.attempts or patience.unusable_attempts)
    tries, kept_bytes, progress_s = FailedAttempts(), 0, tools.clock.monotonic_s()

    def fetch(url: str) -> FetchedFile:
        headers = headers_for(url)
        wanted = DownloadRequest(
            url=url, label=file.id, size_bytes=file.size_bytes, sha256=file.sha256, headers=headers
        )
        return fetch_file(wanted, landing, tools=tools, patience=each, stop=stop, force=force, offline=offline)

    while True:
        came = _first_that_has_it(file, urls, fetch, tools)
        if isinstance(came, FetchedFile):
            return came
        away = next((error for error in came if is_outage(error)), None)
        if away is None or len(urls) == 1 or patience.attempts is not None:
            raise _all_failed(file, came)
        now_s, kept_now = tools.clock.monotonic_s(), max(kept_bytes_of(error) for error in came)
        tries = tries.after(away, has_progress=kept_now > kept_bytes)
        if kept_now > kept_bytes:
            kept_bytes, progress_s = kept_now, now_s
        decision = decide_again(patience, tries, silent_s=now_s - progress_s, wait_s=None, jitter=tools.jitter())
        if isinstance(decision, NoRetry):
            raise given_up(_all_failed(file, came), decision)
        msg = f"none of {len(urls)} URLs is available: {away.message}"
        reason, attempt = reason_of(away), max(1, tries.idle)
        tools.say(retry_of(file.id, wait_s=decision.delay_s, msg=msg, reason=reason, attempt=attempt))
        stop.sleep(decision.delay_s, tools.clock)


def _first_that_has_it(
    file: LockedFile, urls: Sequence[str], fetch: Callable[[str], FetchedFile], tools: DownloadTools
) -> FetchedFile | list[StokerError]:
    """Try every URL once; return the file, or the error of each URL."""
    failed: list[StokerError] = []
    for number, url in enumerate(urls):
        try:
            return fetch(url)
        except _ANOTHER_MAY_HELP as error:
            failed.append(error)
            if number + 1 < len(urls):
                msg = f"{error}; trying the next URL"
                tools.say(retry_of(file.id, wait_s=0.0, msg=msg, reason="mirror", attempt=number + 1))
    return failed


def _all_failed(file: LockedFile, failed: list[StokerError]) -> StokerError:
    last = failed[-1]
    if len(failed) == 1:
        return last
    tried = [{"url": shown(url), "message": error.message} for url, error in zip(file.urls, failed, strict=False)]
    message = f"none of {len(tried)} URLs has {file.id}: {last}"
    return type(last)(message, hint=last.hint, **{**last.data, "tried": tried})
