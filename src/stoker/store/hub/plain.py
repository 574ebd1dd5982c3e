"""One file from any address, as a plain file in a folder of the user's.

The folder is the user's and stays tidy: nothing but the file is left in it, and while it comes its partial file. The
lock that keeps two processes apart lies in a folder of our own, named by the digest of the file's path: an empty file
that is made once and stays, because deleting a lock would let two processes hold it (`host.lockfile`). What was
fetched before is known by its receipt instead of validators beside it.
"""

from __future__ import annotations

import os

from stoker.host.durable import translated
from stoker.host.http.addresses import shown
from stoker.host.http.exchange import Reply, Request
from stoker.host.http.redirects import follow
from stoker.model.digests import Digest, digest_bytes
from stoker.model.errors import NotVerified
from stoker.model.frozen import changed
from stoker.store.download.engine import fetch_file
from stoker.store.download.existing import Validators, is_newest, not_ours
from stoker.store.download.preview import Preview, Upcoming, is_plain_file, partial_bytes, seems_there
from stoker.store.download.receipt import Receipts
from stoker.store.download.wanted import Fetched, Landing, Status, Wanted
from stoker.store.hub.fetching import not_expected
from stoker.store.hub.finding import Found
from stoker.store.hub.hub import Hub, label_of


def plain_landing(folder: str, name: str, *, locks: str) -> Landing:
    """Give where a plain file shall lie; `locks` is the folder of our own for its lock."""
    lock = f"{digest_bytes(os.fsencode(os.path.join(folder, name)))}.lock"
    return Landing(folder=folder, name=name, lock_path=os.path.join(locks, lock))


def wanted_at(hub: Hub, url: str, name: str, *, sha256: Digest | None = None) -> Wanted:
    """Give the file at an address as something that can be fetched."""
    return Wanted(url=url, label=name, sha256=sha256, headers=hub.headers_for(url))


def wanted_of(hub: Hub, found: Found, *, sha256: Digest | None = None) -> Wanted:
    """Give the one file that was found as something that can be fetched.

    Raises `HashMismatch` if the hub says at once that it is not the one with this digest.
    """
    (file,) = found.files
    if sha256 is not None and file.sha256 not in {None, sha256}:
        raise not_expected(label_of(found.repo, file.path), sha256, str(file.sha256))
    wanted = hub.wanted(found.repo, found.revision.commit or found.revision.asked, file)
    return wanted if sha256 is None else changed(wanted, sha256=sha256)


def fetch_plain(hub: Hub, wanted: Wanted, landing: Landing, *, receipts: Receipts, force: bool = False) -> Fetched:
    """Have a file where `plain_landing` said. Raises as `fetch_file` does."""
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


def preview_plain(hub: Hub, wanted: Wanted, landing: Landing, *, receipts: Receipts, force: bool = False) -> Preview:
    """Say what `fetch_plain` would do, and do nothing but ask."""
    offline = hub.settings.offline
    if not force:
        wanted = _as_received(hub, wanted, landing, receipts)
    if wanted.size_bytes is None and not offline:
        wanted = changed(wanted, size_bytes=hub.size_at(wanted.url, landing.name))
    # Without a digest, and without a receipt that says so, what lies there may be anything.
    is_known = offline or (not force and _has_digest(wanted))
    is_there = is_known and is_plain_file(landing.path) and seems_there(landing.path, wanted.size_bytes)
    is_in_the_way = not force and not offline and not is_there and is_plain_file(landing.path)
    if is_in_the_way and not hub.tools.owns(landing.path):
        raise not_ours(landing.path)
    upcoming = Upcoming(
        label=wanted.label or landing.name,
        path=landing.path,
        size_bytes=os.path.getsize(landing.path) if is_there else wanted.size_bytes,
        status=Status.CACHED if is_there else Status.DOWNLOADED,
        partial_bytes=0 if force or is_there else partial_bytes(landing),
        is_missing=offline and not is_there,
    )
    free = hub.tools.free_bytes(landing.folder)
    return Preview(files=(upcoming,), folder=landing.folder, needed_bytes=upcoming.to_come_bytes, free_bytes=free)


def _as_received(hub: Hub, wanted: Wanted, landing: Landing, receipts: Receipts) -> Wanted:
    """Add what an earlier receipt knows of the bytes, if the server says that it still has that very version."""
    if _has_digest(wanted) or hub.settings.offline:
        return wanted
    try:
        receipt = receipts.at(landing.path)
    except NotVerified:
        return wanted
    if receipt is None or receipt.source != shown(wanted.url) or not os.path.isfile(landing.path):
        return wanted
    validators = Validators(etag=receipt.etag, last_modified=receipt.last_modified)

    def send(request: Request) -> Reply:
        return follow(hub.tools.transport, request).reply

    with hub.stop.cutting(hub.tools.transport.abort):
        is_same = bool(validators) and is_newest(send, wanted, receipt.size_bytes, validators)
    return changed(wanted, sha256=receipt.sha256, size_bytes=receipt.size_bytes) if is_same else wanted


def _has_digest(wanted: Wanted) -> bool:
    return wanted.sha256 is not None or bool(wanted.git_sha1)
