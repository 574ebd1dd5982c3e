"""The files of a lock list, all at once, each below a folder that is named by its digest.

Any server may hold them, so one that can't be reached, or that refuses, keeps only its own files away. The hub is there
for the addresses among them that are its own: it has a token, and words for its refusals.
"""

from __future__ import annotations

from collections.abc import Sequence

from stoker.host.disk import check_space
from stoker.host.http.addresses import origin
from stoker.model.errors import NoPermission, NoSpace, StokerError
from stoker.model.frozen import changed
from stoker.store.download.crew import Crew
from stoker.store.download.lock_fetch import fetch_listed
from stoker.store.download.lock_list import LockedFile
from stoker.store.download.outcome import Outcome
from stoker.store.download.preview import Preview, Upcoming, known_sum, partial_bytes, seems_there
from stoker.store.download.receipt import Receipts
from stoker.store.download.tools import ALL_OURS
from stoker.store.download.wanted import Fetched, Landing, Status, Wanted
from stoker.store.hub.hub import Hub
from stoker.store.hub.repo_file import RepoFile
from stoker.store.hub.repository import device_of
from stoker.store.hub.taking import look_nearby, take_nearby

_FOR_ALL = (NoPermission, NoSpace)


def fetch_list(
    hub: Hub,
    files: Sequence[LockedFile],
    folder: str,
    *,
    receipts: Receipts | None = None,
    force: bool = False,
    workers: int = 1,
) -> list[Outcome]:
    """Have every file of a list below a folder, and say of each what came of it, in the order of the list.

    Bytes that the hub's cache has, or that lie where a receipt says, do not come again. Raises `NoSpace` before
    anything is fetched if all of it together has no room.
    """
    preview = preview_list(hub, files, folder, receipts=receipts, force=force)
    if preview.needed_bytes:
        count = f"{len(files):,} file{'' if len(files) == 1 else 's'}"
        check_space(count, folder, coming_bytes=preview.needed_bytes, free=preview.free_bytes)

    def fetch(file: LockedFile) -> list[Outcome]:
        return [_fetch(hub, file, folder, receipts=receipts, force=force)]

    crew = Crew(files, fetch, labels=lambda file: [file.id], ends_all=_FOR_ALL, server=_servers)
    by_id = {outcome.label: outcome for outcome in crew.work(workers)}
    return [by_id[file.id] for file in files]


def preview_list(
    hub: Hub, files: Sequence[LockedFile], folder: str, *, receipts: Receipts | None = None, force: bool = False
) -> Preview:
    """Say what `fetch_list` would do; nobody is asked."""
    upcoming = [_expected(hub, file, folder, receipts=receipts, force=force) for file in files]
    copies = device_of(folder) != device_of(hub.cache.root)
    return Preview(
        files=upcoming,
        folder=folder,
        needed_bytes=known_sum(
            one.size_bytes if copies and one.status is Status.LINKED else one.to_come_bytes for one in upcoming
        ),
        free_bytes=hub.tools.free_bytes(folder),
    )


def _fetch(hub: Hub, file: LockedFile, folder: str, *, receipts: Receipts | None, force: bool) -> Outcome:
    landing = Landing(folder=folder, name=file.name)
    try:
        taken = None if force else _take_nearby(hub, file, landing, receipts)
        fetched = taken or fetch_listed(
            file,
            landing,
            # Whoever puts other bytes below their digest has damaged them.
            tools=changed(hub.tools, owns=ALL_OURS),
            patience=hub.patience,
            stop=hub.stop,
            headers_for=hub.headers_for,
            force=force,
            offline=hub.settings.offline,
        )
    except StokerError as error:
        return Outcome(label=file.id, error=hub.explained(error, file.urls[0], file.id))
    return Outcome(label=file.id, fetched=fetched)


def _take_nearby(hub: Hub, file: LockedFile, landing: Landing, receipts: Receipts | None) -> Fetched | None:
    """Take a file from wherever else on this machine its bytes are, unless it is there."""
    if seems_there(landing.path, file.size_bytes):
        return None
    named = RepoFile(path=file.name, size_bytes=file.size_bytes, sha256=file.sha256)
    for path in _nearby(hub, file, receipts):
        found = look_nearby(hub, path, named)
        if found is not None:
            wanted = Wanted(url=file.urls[0], label=file.id, size_bytes=file.size_bytes, sha256=file.sha256)
            return take_nearby(hub, found, wanted, landing, may_share=True)
    return None


def _nearby(hub: Hub, file: LockedFile, receipts: Receipts | None) -> list[str]:
    places = hub.cache.find(file.sha256)
    if receipts is not None and (place := receipts.place_of(file.sha256)):
        places.append(place)
    return [place for place in places if seems_there(place, file.size_bytes)]


def _expected(hub: Hub, file: LockedFile, folder: str, *, receipts: Receipts | None, force: bool) -> Upcoming:
    landing = Landing(folder=folder, name=file.name)
    offline = hub.settings.offline
    is_kept = offline or not force
    status = Status.DOWNLOADED
    if is_kept and seems_there(landing.path, file.size_bytes):
        status = Status.CACHED
    elif not force and _nearby(hub, file, receipts):
        status = Status.LINKED
    is_there = status is not Status.DOWNLOADED
    return Upcoming(
        label=file.id,
        path=landing.path,
        size_bytes=file.size_bytes,
        status=status,
        partial_bytes=0 if force or is_there else partial_bytes(landing),
        is_missing=offline and not is_there,
    )


def _servers(file: LockedFile) -> str:
    return " ".join(str(origin(url)) for url in file.urls)
