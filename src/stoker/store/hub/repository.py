"""Many files of one repository at once.

Files are fetched by a few threads over one set of connections: the largest first, so that none is left to the end
alone, and small ones by the handful. One failure does not lose the others: every file's outcome is given back. Bytes
come first, then a file's name, then its news; the revision's ref comes last of all, and only if everything that was
wanted is there, so whoever follows it finds that, or what there was before.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from stoker.host.disk import check_space, existing_above
from stoker.host.together import most_open_files
from stoker.model.digests import Digest
from stoker.model.errors import AuthRefused, BadAnswer, BadInput, NoPermission, NoSpace, RateLimited, StokerError
from stoker.model.events import Event, Kinds
from stoker.model.frozen import frozen
from stoker.store.download.crew import Crew
from stoker.store.download.outcome import Outcome
from stoker.store.download.places import companion_clashes
from stoker.store.download.preview import Preview, Upcoming, known_sum, partial_bytes
from stoker.store.download.telling import Teller
from stoker.store.download.wanted import Status
from stoker.store.hub.address import Repo
from stoker.store.hub.blobs import BlobJudge
from stoker.store.hub.destinations import CacheDestination, Destination, FolderDestination, SharingDestination
from stoker.store.hub.fetching import Fetcher, Group, handfuls, not_expected
from stoker.store.hub.hub import Hub, label_of
from stoker.store.hub.listing import check_names
from stoker.store.hub.repo_file import RepoFile, Revision

WORKERS = 8
_FILES_PER_WORKER = 8
# What keeps one file of a repository away keeps the next ones away, too.
_FOR_ALL = (AuthRefused, NoPermission, NoSpace, RateLimited)


@frozen
class Order:
    """What to fetch of which repository, and where to."""

    repo: Repo
    revision: Revision
    files: Sequence[RepoFile]
    out: str = ""
    """A plain folder for the files, at their paths; nothing means the cache alone."""
    sha256: Digest | None = None
    """What the file must be besides, if it is one: whoever asks for it knows better than the hub."""
    force: bool = False
    workers: int = WORKERS


def fetch_repository(hub: Hub, order: Order) -> list[Outcome]:
    """Have files of a repository in the cache or in a folder, and say of each what came of it, in the order's order.

    With `out` on the cache's file system the files share the cache's bytes: by blocks where the file system can, and
    then they may be edited; else by inode, and then they are read-only (0444), so that an edit can't damage the cache.
    To root nothing is read-only, so root gets copies. On another file system, and beside a cache that only others may
    write to, they are copied from the cache, or fetched there directly.

    Raises before anything is fetched: `BadAnswer` for names that can't be written, `NoSpace` if all of it together has
    no room. What happens to a file later is in its outcome (`first_cause`), being stopped included.
    """
    destination, groups = _prepared(hub, order)
    if not hub.settings.offline:
        _check_space(hub, order, destination, groups)
    if not isinstance(destination, FolderDestination):
        hub.cache.make(order.repo, now_s=hub.tools.clock.wall_s())
        hub.note_listing(order.repo, order.revision.commit)
    revision = order.revision.commit or order.revision.asked
    fetcher = Fetcher(hub, order.repo, revision, destination, force=order.force, sha256=order.sha256)
    open_files = most_open_files()
    workers = max(1, min(order.workers, open_files // _FILES_PER_WORKER))
    crew = Crew(
        handfuls(groups, workers, open_files=open_files),
        fetcher.fetch,
        labels=lambda handful: [label_of(order.repo, file.path) for group in handful for file in group],
        ends_all=_FOR_ALL,
    )
    by_label = {outcome.label: outcome for outcome in crew.work(workers)}
    outcomes = [by_label[label_of(order.repo, file.path)] for file in order.files]
    is_whole = bool(outcomes) and all(outcome.error is None for outcome in outcomes)
    if is_whole and not hub.settings.offline and not isinstance(destination, FolderDestination):
        _write_ref(hub, order)
    return outcomes


def preview_fetch(hub: Hub, order: Order) -> Preview:
    """Say what `fetch_repository` would do, and do nothing. Raises what it raises, but for `NoSpace`: that is told."""
    destination, groups = _prepared(hub, order)
    upcoming = {
        file.path: one
        for group in groups
        for file, one in zip(group, _expected(hub, order, destination, group), strict=True)
    }
    landing_folder = destination.landing(order.files[0]).folder if order.files else order.out or hub.cache.root
    return Preview(
        files=[upcoming[file.path] for file in order.files],
        folder=order.out or hub.cache.snapshot(order.repo, order.revision.commit),
        needed_bytes=known_sum(_needed_bytes(destination, one) for one in upcoming.values()),
        free_bytes=hub.tools.free_bytes(landing_folder),
    )


def first_cause(outcomes: Sequence[Outcome]) -> StokerError | None:
    """Give the error that a caller raises in the end: what concerns all files before what concerns one."""
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    return next((error for error in errors if isinstance(error, _FOR_ALL)), errors[0] if errors else None)


def _write_ref(hub: Hub, order: Order) -> None:
    try:
        hub.cache.write_ref(order.repo, order.revision.asked, order.revision.commit)
    except StokerError as error:
        # Every file is there by its commit; only who asks for the revision offline won't find it.
        message = f"{order.repo}: the cache does not note what {order.revision.asked} is: {error}"
        hub.tools.say(Event(Kinds.WARNING, {"message": message}))


def _prepared(hub: Hub, order: Order) -> tuple[Destination, list[Group]]:
    """Check an order, and say where its files go and which of them are the same bytes: all but the fetching."""
    _check(order, offline=hub.settings.offline)
    destination = _destination(hub, order)
    return destination, _groups(order.files, by_bytes=not isinstance(destination, FolderDestination))


def _check(order: Order, *, offline: bool) -> None:
    check_names(order.files, order.repo)
    if order.sha256 is not None:
        _check_digest(order.files, order.repo, order.sha256)
    if not order.out:
        if not order.revision.commit:
            message = f"the server tells no commit of {order.repo}, and the cache is by commits"
            raise BadInput(message, reason="needs_folder")
        nameless = [file.path for file in order.files if not file.blob]
        if nameless and not offline:
            raise BadAnswer(f"the server tells no digest of {nameless[0]}", reason="needs_folder")
        return
    pairs = companion_clashes(file.path for file in order.files)
    if pairs:
        name, other = pairs[0]
        hint = "fetch one of them by itself"
        raise BadAnswer(f"fetching {name!r} beside {other!r} would write under its name", hint=hint)


def _destination(hub: Hub, order: Order) -> Destination:
    revision = order.revision.commit or order.revision.asked

    def teller_of(file: RepoFile) -> Teller:
        return Teller(hub.tools.say, hub.wanted(order.repo, revision, file), file.path)

    judge = BlobJudge(hub.memo, clock=hub.tools.clock, stop=hub.stop, teller_of=teller_of)
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


def _groups(files: Sequence[RepoFile], *, by_bytes: bool) -> list[Group]:
    grouped: dict[str, list[RepoFile]] = {}
    for file in files:
        key = f"bytes {file.blob}" if by_bytes and file.blob else f"path {file.path}"
        grouped.setdefault(key, []).append(file)
    return [tuple(group) for group in grouped.values()]


def _expected(hub: Hub, order: Order, destination: Destination, group: Group) -> list[Upcoming]:
    """Say what will become of files with the same bytes, by names and sizes."""
    statuses = [Status.DOWNLOADED if order.force else destination.expects(file) for file in group]
    if statuses[0] is Status.DOWNLOADED:
        # They come once, for all of them.
        statuses[1:] = [Status.LINKED] * (len(group) - 1)
    is_missing = hub.settings.offline and statuses[0] is Status.DOWNLOADED
    begun_bytes = 0 if order.force else partial_bytes(destination.landing(group[0]))
    return [
        Upcoming(
            label=label_of(order.repo, file.path),
            path=destination.path(file),
            size_bytes=file.size_bytes,
            status=Status.DOWNLOADED if is_missing else status,
            partial_bytes=begun_bytes if status is Status.DOWNLOADED else 0,
            is_missing=is_missing,
        )
        for file, status in zip(group, statuses, strict=True)
    ]


def _needed_bytes(destination: Destination, one: Upcoming) -> int | None:
    """Say how much the disk has to hold more than now."""
    return one.size_bytes if one.status is Status.LINKED and destination.copies else one.to_come_bytes


def _check_space(hub: Hub, order: Order, destination: Destination, groups: Sequence[Group]) -> None:
    """Refuse at once what can't fit, instead of filling the disk first."""
    upcoming = [one for group in groups for one in _expected(hub, order, destination, group)]
    needed_bytes = sum(_needed_bytes(destination, one) or 0 for one in upcoming)
    if needed_bytes:
        folder = destination.landing(groups[0][0]).folder
        count = f"{len(groups):,} file{'' if len(groups) == 1 else 's'}"
        hint = "free some space there, or put the cache elsewhere (HF_HUB_CACHE)"
        check_space(count, folder, coming_bytes=needed_bytes, free=hub.tools.free_bytes(folder), hint=hint)


def _check_digest(files: Sequence[RepoFile], repo: Repo, sha256: Digest) -> None:
    if len(files) != 1:
        raise BadInput(f"one digest can't be that of {len(files)} files", hint="name one file")
    if files[0].sha256 not in {None, sha256}:
        raise not_expected(label_of(repo, files[0].path), sha256, str(files[0].sha256))


def device_of(path: str) -> int:
    """Give the file system of a path that may still have to be made."""
    return os.stat(existing_above(path)).st_dev


def _may_write(folder: str) -> bool:
    """Whether files can be made in a folder that may still have to be made: a shared cache is often only read."""
    return os.access(existing_above(folder), os.W_OK | os.X_OK)
