"""Downloads of many files of one repository.

A few threads download over shared connections: the largest files first, so that none is left alone at the end, and
small ones in batches. A failure of one file does not affect the others: every file has an outcome. Bytes are written
first, then a file's name, then its event; the revision's ref is written last, and only if every requested file is
there, so a reader of the ref finds all of them, or the previous state.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import closing

from stoker.core.digests import Digest
from stoker.core.errors import (
    AuthRefused,
    BadAnswer,
    BadInput,
    HashMismatch,
    NetworkFailed,
    NoPermission,
    NoSpace,
    NotOnServer,
    RateLimited,
    StokerError,
)
from stoker.core.events import Event, Kinds
from stoker.core.frozen import changed, frozen
from stoker.core.text import counted
from stoker.host.folders import AnchoredFolder, most_open_files, write_named
from stoker.host.http.client import follow
from stoker.host.http.exchange import Request, shown
from stoker.host.resources import check_space, device_of, existing_above, has_space
from stoker.transfer.download.content import SumsBuilder, not_ours
from stoker.transfer.download.download import fetch_file
from stoker.transfer.download.download_events import DownloadEvents, DownloadPool
from stoker.transfer.download.partial import companion_clashes
from stoker.transfer.download.types import (
    ALL_OURS,
    NO_RECEIPTS,
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
    known_sum,
    partial_bytes,
)
from stoker.transfer.hub.client import Hub, explained, label_of, pieces_of
from stoker.transfer.hub.destinations import (
    CacheDestination,
    Destination,
    FolderDestination,
    LocalCopy,
    SharingDestination,
)
from stoker.transfer.hub.hub_cache import BlobChecker
from stoker.transfer.hub.listing import Repo, RepoFile, Revision, check_names

# Small files: one request each, verified in memory, written together.
#
# A small file needs no partial file and no sidecar; a thousand of them would cost a thousand of each. Only a complete
# response with the expected size and digest is used here. In any other case the file is left to `fetch_file`.

LARGEST_BYTES = 1 << 20
"""A file up to this size, with a known digest, is small."""


def is_small(file: RepoFile) -> bool:
    """Return True if a file can be downloaded with one request, in memory."""
    return bool(file.blob) and file.size_bytes is not None and file.size_bytes <= LARGEST_BYTES


@frozen
class SmallFile:
    """The verified bytes of a small file."""

    data: bytes
    sha256: Digest


def take_whole(
    wanted: DownloadRequest, *, tools: DownloadTools, patience: DownloadTimeouts, stop: DownloadStop
) -> SmallFile | None:
    """Download a small file; None unless its bytes are exactly the requested ones.

    Raises the error of a stop request.
    """
    stop.check()
    left_bytes = wanted.size_bytes or 0
    try:
        with stop.cutting(tools.transport.abort):
            reply = follow(tools.transport, Request(url=wanted.url, headers=wanted.headers)).reply
            with closing(reply):
                if reply.status != 200:
                    return None
                # Read to the end, not just to the size: the connection is reused, and a longer body is detected.
                pieces = []
                for piece in pieces_of(reply, left_bytes + 1, clock=tools.clock, patience=patience):
                    pieces.append(piece)
                    left_bytes -= len(piece)
                    if left_bytes < 0:
                        break
    except (NetworkFailed, BadAnswer):
        stop.check()
        return None
    return _checked(b"".join(pieces), wanted)


def write_together(files: Iterable[tuple[TargetFile, bytes]], *, mode: int) -> None:
    """Write verified files, each completely or not at all; all are durable on return."""
    by_folder: dict[tuple[str, str], list[tuple[str, bytes]]] = {}
    for landing, data in files:
        below, _, leaf = landing.name.rpartition("/")
        by_folder.setdefault((landing.folder, below), []).append((leaf, data))
    for (base, below), together in by_folder.items():
        with AnchoredFolder.open(base, below) as folder:
            write_named(folder, together, mode)


def _checked(data: bytes, wanted: DownloadRequest) -> SmallFile | None:
    if len(data) != wanted.size_bytes:
        return None
    summing = SumsBuilder(len(data) if wanted.git_sha1 else None)
    summing.add(data)
    sums = summing.sums()
    if wanted.sha256 not in {None, sums.sha256} or sums.git_sha1 != wanted.git_sha1:
        return None
    return SmallFile(data=data, sha256=sums.sha256)


# Batches of files of one repository: found or downloaded, named, reported.
#
# A batch is one large file, or many small ones that are written together. Files with the same bytes are one group and
# are downloaded once.

_MOST_TOGETHER = 32
_MOST_BYTES = 4 * LARGEST_BYTES
# For connections, locks, folders and other open files of the process.
_SPARE_FILES = 64

FileGroup = tuple[RepoFile, ...]
"""Files with the same bytes."""
Arrived = tuple[RepoFile, FetchedFile]
"""A file whose bytes are on this machine."""


def batches(groups: Sequence[FileGroup], workers: int, *, open_files: int = 1024) -> list[list[FileGroup]]:
    """Divide files into batches: the largest files first and alone, then the small ones in their order, together.

    Small ones are spread over all workers, to hide the latency of a distant server. `open_files` is the limit of open
    files of the process; those of a batch are all open for a moment.
    """
    large = [group for group in groups if _size(group) > LARGEST_BYTES]
    large.sort(key=_size, reverse=True)
    small = [group for group in groups if _size(group) <= LARGEST_BYTES]
    divided = [[group] for group in large]
    most = max(1, min(_MOST_TOGETHER, -(-len(small) // workers), (open_files - _SPARE_FILES) // workers))
    together: list[FileGroup] = []
    together_bytes = 0
    for group in small:
        if len(together) >= most or (together and together_bytes + _size(group) > _MOST_BYTES):
            divided.append(together)
            together, together_bytes = [], 0
        together.append(group)
        together_bytes += _size(group)
    return [*divided, together] if together else divided


class HubFetcher:
    """Downloads batches of one repository at one commit to one destination. Thread-safe."""

    def __init__(
        self,
        hub: Hub,
        repo: Repo,
        revision: str,
        destination: Destination,
        *,
        force: bool = False,
        sha256: Digest | None = None,
    ) -> None:
        """`revision` is a commit if the server has commits; `sha256` is a digest that each file must have besides."""
        self._hub = hub
        self._repo = repo
        self._revision = revision
        self._destination = destination
        self._force = force
        self._sha256 = sha256

    def fetch(self, batch: Sequence[FileGroup]) -> list[DownloadOutcome]:
        """Provide the files of a batch. Errors are in the outcomes."""
        outcomes: list[DownloadOutcome] = []
        missing: list[FileGroup] = []
        found: list[tuple[FileGroup, LocalCopy]] = []
        for everything in batch:
            group = everything
            try:
                self._hub.stop.check()
                if not self._force:
                    group, refused = self._without_others(everything)
                    outcomes += refused
                if not group:
                    continue
                there = None if self._force else self._destination.there(group[0])
            except StokerError as error:
                outcomes += self._failed(group, error)
                continue
            if there is None:
                missing.append(group)
            else:
                found.append((group, there))
        outcomes += self._settled_found(found)
        return outcomes + self._fetch_missing(missing)

    def _without_others(self, group: FileGroup) -> tuple[FileGroup, list[DownloadOutcome]]:
        """Leave out files whose path has a file of the user."""
        kept: list[RepoFile] = []
        refused: list[DownloadOutcome] = []
        for file in group:
            path = self._destination.in_the_way(file)
            if path and not self._hub.tools.owns(path):
                refused += self._failed((file,), not_ours(path))
            else:
                kept.append(file)
        return tuple(kept), refused

    def _settled_found(self, found: Sequence[tuple[FileGroup, LocalCopy]]) -> list[DownloadOutcome]:
        arrived: list[Arrived] = []
        for group, there in found:
            fetched = FetchedFile(path="", status=there.status, size_bytes=there.size_bytes, sha256=there.sha256)
            arrived += _arrived(group, fetched)
        return self._settle(arrived, ours=False)

    def _fetch_missing(self, missing: Sequence[FileGroup]) -> list[DownloadOutcome]:
        if self._hub.settings.offline:
            return [outcome for group in missing for outcome in self._failed(group, self._not_here(group[0]))]
        small = [group for group in missing if is_small(group[0])]
        others = [group for group in missing if not is_small(group[0])]
        outcomes, left = self._take_small(small) if self._has_room(small) else ([], small)
        over: StokerError | None = None
        for group in [*others, *left]:
            fetched = self._fetch_one(group) if over is None else self._failed(group, over)
            outcomes += fetched
            # The timeout is over for this server: each of the others would wait for it again.
            over = next((one.error for one in fetched if one.error and one.error.data.get("timed_out")), None)
        return outcomes

    def _take_small(self, groups: Sequence[FileGroup]) -> tuple[list[DownloadOutcome], list[FileGroup]]:
        """Download small files and write them together; return those that need more care as well."""
        clock = self._hub.tools.clock
        taken: list[tuple[FileGroup, SmallFile, FetchedFile]] = []
        outcomes: list[DownloadOutcome] = []
        left: list[FileGroup] = []
        for group in groups:
            wanted = self._wanted(group[0])
            began_s = clock.monotonic_s()
            try:
                hub = self._hub
                whole = take_whole(wanted, tools=hub.tools, patience=hub.patience, stop=hub.stop)
            except StokerError as error:
                outcomes += self._failed(group, error)
                continue
            if whole is None:
                left.append(group)
                continue
            # Emitted only now: for a file that is left, `fetch_file` emits the start.
            self._tell(wanted).start(0, wanted.size_bytes)
            seconds = clock.monotonic_s() - began_s
            taken.append((group, whole, _downloaded(wanted, whole.sha256, len(whole.data), seconds)))
        return outcomes + self._write(taken), left

    def _write(self, taken: Sequence[tuple[FileGroup, SmallFile, FetchedFile]]) -> list[DownloadOutcome]:
        try:
            pairs = [(self._destination.landing(group[0]), whole.data) for group, whole, _ in taken]
            write_together(pairs, mode=self._destination.mode)
        except StokerError as error:
            if len(taken) > 1:
                # A fault in one file's name must not affect the others.
                return [outcome for one in taken for outcome in self._write([one])]
            return self._failed(taken[0][0], error)
        return self._settle([one for group, _, fetched in taken for one in _arrived(group, fetched)], ours=True)

    def _fetch_one(self, group: FileGroup) -> list[DownloadOutcome]:
        hub = self._hub

        def say(event: Event) -> None:
            # `fetch_file` knows only the bytes: a file is recorded and reported once it has its name.
            if event.kind != Kinds.DOWNLOAD_DONE:
                hub.tools.say(event)

        wanted = self._wanted(group[0])
        try:
            fetched = fetch_file(
                wanted,
                self._destination.landing(group[0]),
                tools=changed(hub.tools, say=say, keep=NO_RECEIPTS, owns=ALL_OURS),
                patience=hub.patience,
                stop=hub.stop,
                force=self._force,
            )
        except StokerError as error:
            return self._failed(group, explained(error, wanted.url, wanted.label, has_token=hub.has_token))
        return self._settle(_arrived(group, fetched), ours=fetched.status is Status.DOWNLOADED)

    def _settle(self, arrived: Sequence[Arrived], *, ours: bool) -> list[DownloadOutcome]:
        """Write the names, then the record, then emit the events."""
        if not arrived:
            return []
        try:
            for file, fetched in arrived:
                self._check(file, fetched)
            self._destination.settle([(file, fetched.sha256) for file, fetched in arrived], ours=ours)
            named = [self._named(file, fetched) for file, fetched in arrived]
            self._hub.tools.keep(named)
        except StokerError as error:
            if len(arrived) > 1:
                return [outcome for one in arrived for outcome in self._settle([one], ours=ours)]
            return self._failed((arrived[0][0],), error)
        for wanted, fetched in named:
            self._tell(wanted).done(fetched)
        return [DownloadOutcome(label=wanted.label, fetched=fetched) for wanted, fetched in named]

    def _named(self, file: RepoFile, fetched: FetchedFile) -> tuple[DownloadRequest, FetchedFile]:
        wanted = self._wanted(file)
        return wanted, changed(fetched, path=self._destination.path(file), commit=wanted.commit, url=shown(wanted.url))

    def _tell(self, wanted: DownloadRequest) -> DownloadEvents:
        return DownloadEvents(self._hub.tools.say, wanted, wanted.label)

    def _wanted(self, file: RepoFile) -> DownloadRequest:
        wanted = self._hub.wanted(self._repo, self._revision, file)
        return wanted if self._sha256 is None else changed(wanted, sha256=self._sha256)

    def _check(self, file: RepoFile, fetched: FetchedFile) -> None:
        """Raise if the hub's bytes are not those of the requested digest, before they get a name."""
        if self._sha256 not in {None, fetched.sha256}:
            raise not_expected(label_of(self._repo, file.path), str(self._sha256), fetched.sha256)

    def _failed(self, group: FileGroup, error: StokerError) -> list[DownloadOutcome]:
        return [DownloadOutcome(label=label_of(self._repo, file.path), error=error) for file in group]

    def _has_room(self, groups: Sequence[FileGroup]) -> bool:
        """Return True if there is disk space for small files; if not, `fetch_file` raises the error."""
        if not groups:
            return False
        try:
            free = self._hub.tools.free_bytes(self._destination.landing(groups[0][0]).folder)
            return has_space(sum(map(_size, groups)), free)
        except StokerError:
            return False

    def _not_here(self, file: RepoFile) -> NotOnServer:
        message = f"not on this machine: {self._repo}: {file.path}"
        return NotOnServer(message, file=file.path, reason="offline")


def _size(group: FileGroup) -> int:
    # The size is unknown: first, and alone.
    size_bytes = group[0].size_bytes
    return LARGEST_BYTES + 1 if size_bytes is None else size_bytes


def _downloaded(wanted: DownloadRequest, sha256: Digest, size_bytes: int, seconds: float) -> FetchedFile:
    return FetchedFile(
        path="",
        status=Status.DOWNLOADED,
        size_bytes=size_bytes,
        sha256=sha256,
        bytes_from_network=size_bytes,
        seconds=seconds,
        commit=wanted.commit,
    )


def _arrived(group: FileGroup, fetched: FetchedFile) -> list[Arrived]:
    """Return the result of each file of a group: for another one with the same bytes, nothing was downloaded."""
    status = Status.LINKED if fetched.status is Status.DOWNLOADED else fetched.status
    another = changed(fetched, status=status, bytes_from_network=0, bytes_resumed=0, seconds=0.0)
    return [(file, fetched if number == 0 else another) for number, file in enumerate(group)]


def not_expected(label: str, expected: str, found: str) -> HashMismatch:
    """Return the error for a file whose digest differs from the requested one."""
    hint = "check the digest that was given, and the file's revision"
    return HashMismatch(f"sha256 of {label} is {found}, not {expected}", hint=hint)


WORKERS = 8
_FILES_PER_WORKER = 8
# An error that concerns all files of a repository.
_FOR_ALL = (AuthRefused, NoPermission, NoSpace, RateLimited)


@frozen
class RepoRequest:
    """The files to download from a repository, and the target."""

    repo: Repo
    revision: Revision
    files: Sequence[RepoFile]
    out: str = ""
    """A plain folder for the files, at their paths; empty: the cache only."""
    sha256: Digest | None = None
    """The expected digest, if it is one file: the request has priority over the hub."""
    force: bool = False
    workers: int = WORKERS


def fetch_repository(hub: Hub, order: RepoRequest) -> list[DownloadOutcome]:
    """Download files of a repository into the cache or a folder; return the outcomes in the order of the request.

    With `out` on the cache's file system the files share the cache's bytes: by blocks if the file system supports it,
    and then they may be edited; otherwise by inode, and then they are read-only (0444), so that an edit can't damage
    the cache. For root nothing is read-only, so root gets copies. On another file system, or if the cache is not
    writable, they are copied from the cache, or downloaded directly.

    Raises before the first download: `BadAnswer` for unsafe names, `NoSpace` if the files do not fit on the disk. Later
    errors are in the outcomes (`first_cause`), stop requests included.
    """
    destination, groups = _prepared(hub, order)
    if not hub.settings.offline:
        _check_space(hub, order, destination, groups)
    if not isinstance(destination, FolderDestination):
        hub.cache.make(order.repo, now_s=hub.tools.clock.wall_s())
        hub.note_listing(order.repo, order.revision.commit)
    revision = order.revision.commit or order.revision.asked
    fetcher = HubFetcher(hub, order.repo, revision, destination, force=order.force, sha256=order.sha256)
    open_files = most_open_files()
    workers = max(1, min(order.workers, open_files // _FILES_PER_WORKER))
    crew = DownloadPool(
        batches(groups, workers, open_files=open_files),
        fetcher.fetch,
        labels=lambda batch: [label_of(order.repo, file.path) for group in batch for file in group],
        ends_all=_FOR_ALL,
    )
    by_label = {outcome.label: outcome for outcome in crew.work(workers)}
    outcomes = [by_label[label_of(order.repo, file.path)] for file in order.files]
    is_whole = bool(outcomes) and all(outcome.error is None for outcome in outcomes)
    if is_whole and not hub.settings.offline and not isinstance(destination, FolderDestination):
        _write_ref(hub, order)
    return outcomes


def preview_fetch(hub: Hub, order: RepoRequest) -> DownloadPreview:
    """Return what `fetch_repository` would do; change nothing. Raises the same, except `NoSpace`."""
    destination, groups = _prepared(hub, order)
    upcoming = {
        file.path: one
        for group in groups
        for file, one in zip(group, _expected(hub, order, destination, group), strict=True)
    }
    landing_folder = destination.landing(order.files[0]).folder if order.files else order.out or hub.cache.root
    return DownloadPreview(
        files=[upcoming[file.path] for file in order.files],
        folder=order.out or hub.cache.snapshot(order.repo, order.revision.commit),
        needed_bytes=known_sum(_needed_bytes(destination, one) for one in upcoming.values()),
        free_bytes=hub.tools.free_bytes(landing_folder),
    )


def first_cause(outcomes: Sequence[DownloadOutcome]) -> StokerError | None:
    """Return the error that a caller raises in the end: one that concerns all files first."""
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    return next((error for error in errors if isinstance(error, _FOR_ALL)), errors[0] if errors else None)


def _write_ref(hub: Hub, order: RepoRequest) -> None:
    try:
        hub.cache.write_ref(order.repo, order.revision.asked, order.revision.commit)
    except StokerError as error:
        # Every file is there by its commit; only an offline lookup of the revision fails.
        message = f"{order.repo}: can't record the commit of {order.revision.asked} in the cache: {error}"
        hub.tools.say(Event(Kinds.WARNING, {"message": message}))


def _prepared(hub: Hub, order: RepoRequest) -> tuple[Destination, list[FileGroup]]:
    """Check a request; return its destination and its files, grouped by equal bytes."""
    _check(order, offline=hub.settings.offline)
    destination = _destination(hub, order)
    return destination, _groups(order.files, by_bytes=not isinstance(destination, FolderDestination))


def _check(order: RepoRequest, *, offline: bool) -> None:
    check_names(order.files, order.repo)
    if order.sha256 is not None:
        _check_digest(order.files, order.repo, order.sha256)
    if not order.out:
        if not order.revision.commit:
            message = f"the server states no commit of {order.repo}, which the cache requires"
            raise BadInput(message, reason="needs_folder")
        nameless = [file.path for file in order.files if not file.blob]
        if nameless and not offline:
            raise BadAnswer(f"the server states no digest of {nameless[0]}", reason="needs_folder")
        return
    pairs = companion_clashes(file.path for file in order.files)
    if pairs:
        name, other = pairs[0]
        hint = "download one of them alone"
        raise BadAnswer(f"fetching {name!r} beside {other!r} would write under its name", hint=hint)


def _destination(hub: Hub, order: RepoRequest) -> Destination:
    revision = order.revision.commit or order.revision.asked

    def teller_of(file: RepoFile) -> DownloadEvents:
        return DownloadEvents(hub.tools.say, hub.wanted(order.repo, revision, file), file.path)

    judge = BlobChecker(hub.memo, clock=hub.tools.clock, stop=hub.stop, teller_of=teller_of)
    cached = None
    if order.revision.commit:
        cached = CacheDestination(
            hub.cache,
            order.repo,
            order.revision.commit,
            judge=judge,
            tools=hub.tools,
            symlinks=hub.settings.symlinks,
        )
    if not order.out and cached is not None:
        return cached
    if (
        cached is not None
        and device_of(order.out) == device_of(hub.cache.root)
        and _may_write(hub.cache.blobs(order.repo))
        and all(file.blob for file in order.files)
    ):
        return SharingDestination(order.out, judge=judge, cached=cached)
    return FolderDestination(order.out, judge=judge, cached=cached)


def _groups(files: Sequence[RepoFile], *, by_bytes: bool) -> list[FileGroup]:
    grouped: dict[str, list[RepoFile]] = {}
    for file in files:
        key = f"bytes {file.blob}" if by_bytes and file.blob else f"path {file.path}"
        grouped.setdefault(key, []).append(file)
    return [tuple(group) for group in grouped.values()]


def _expected(hub: Hub, order: RepoRequest, destination: Destination, group: FileGroup) -> list[PlannedDownload]:
    """Return how files with the same bytes will be provided, by names and sizes."""
    statuses = [Status.DOWNLOADED if order.force else destination.expects(file) for file in group]
    if statuses[0] is Status.DOWNLOADED:
        # They are downloaded once, for all of them.
        statuses[1:] = [Status.LINKED] * (len(group) - 1)
    is_missing = hub.settings.offline and statuses[0] is Status.DOWNLOADED
    begun_bytes = 0 if order.force else partial_bytes(destination.landing(group[0]))
    return [
        PlannedDownload(
            label=label_of(order.repo, file.path),
            path=destination.path(file),
            size_bytes=file.size_bytes,
            status=Status.DOWNLOADED if is_missing else status,
            partial_bytes=begun_bytes if status is Status.DOWNLOADED else 0,
            is_missing=is_missing,
        )
        for file, status in zip(group, statuses, strict=True)
    ]


def _needed_bytes(destination: Destination, one: PlannedDownload) -> int | None:
    """Return how many more bytes the disk must store."""
    return one.size_bytes if one.status is Status.LINKED and destination.copies else one.to_come_bytes


def _check_space(hub: Hub, order: RepoRequest, destination: Destination, groups: Sequence[FileGroup]) -> None:
    """Raise `NoSpace` before the download if the files do not fit."""
    upcoming = [one for group in groups for one in _expected(hub, order, destination, group)]
    needed_bytes = sum(_needed_bytes(destination, one) or 0 for one in upcoming)
    if needed_bytes:
        folder = destination.landing(groups[0][0]).folder
        count = counted(len(groups), "file")
        hint = "free some space there, or put the cache elsewhere (HF_HUB_CACHE)"
        check_space(count, folder, coming_bytes=needed_bytes, free=hub.tools.free_bytes(folder), hint=hint)


def _check_digest(files: Sequence[RepoFile], repo: Repo, sha256: Digest) -> None:
    if len(files) != 1:
        raise BadInput(f"one digest for {len(files)} files", hint="name one file")
    if files[0].sha256 not in {None, sha256}:
        raise not_expected(label_of(repo, files[0].path), sha256, str(files[0].sha256))


def _may_write(folder: str) -> bool:
    """Return True if files can be made in a folder that may not exist yet: a shared cache is often read-only."""
    return os.access(existing_above(folder), os.W_OK | os.X_OK)
