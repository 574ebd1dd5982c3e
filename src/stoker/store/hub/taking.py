"""A file from bytes that are on this machine already: shared or copied instead of fetched."""

from __future__ import annotations

import os

from stoker.host.anchored import AnchoredFolder
from stoker.host.http.addresses import shown
from stoker.host.names import check_name
from stoker.store.download.existing import Validators, remove_validators, write_validators
from stoker.store.download.hold import Hold
from stoker.store.download.partial import set_strangers_aside
from stoker.store.download.telling import Teller
from stoker.store.download.wanted import Fetched, Landing, Status, Wanted
from stoker.store.hub.blobs import BlobJudge, JudgedBlob
from stoker.store.hub.destinations import protect, put_file
from stoker.store.hub.hub import Hub
from stoker.store.hub.repo_file import RepoFile


def look_nearby(hub: Hub, path: str, file: RepoFile) -> JudgedBlob | None:
    """Give what lies at a path if its bytes are those of a file; nothing is changed."""
    found = BlobJudge(hub.memo, clock=hub.tools.clock, stop=hub.stop).look(path, file)
    return None if found is None or found.sha256 is None else found


def take_nearby(
    hub: Hub, found: JudgedBlob, wanted: Wanted, landing: Landing, *, may_share: bool = False, etag: str = ""
) -> Fetched:
    """Have good bytes under a final name, whatever lay there. Asks nobody; raises as `put_file` does, and `LockHeld`.

    `may_share`: the file need not be one that its owner can write to, so it may be the cache's own under one more name.
    """
    if found.sha256 is None:
        raise ValueError(found.fault)
    tools = hub.tools
    began_s = tools.clock.monotonic_s()
    teller = Teller(tools.say, wanted, landing.name)
    below, _, leaf = check_name(landing.name).rpartition("/")
    with AnchoredFolder.open(landing.folder, below) as folder:
        hold = Hold(folder, leaf, lock_path=landing.lock_path, wait_s=hub.patience.lock_wait_s, name=wanted.label)
        with hold.take(clock=tools.clock, stop=hub.stop, teller=teller):
            if landing.keeps_validators:
                remove_validators(folder, leaf)
            put_file(found.path, landing.folder, landing.name, may_share=may_share and _protected(hub, found.path))
            set_strangers_aside(folder, hold.names, tools.received)
            for name in hold.names:
                folder.remove(name)
            if landing.keeps_validators and etag:
                write_validators(folder, leaf, Validators(etag=etag))
    fetched = Fetched(
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
    """Whether bytes may get a second name: those of the cache, read-only; a file of the user's is copied."""
    target = os.path.realpath(path)
    return target.startswith(os.path.join(os.path.realpath(hub.cache.root), "")) and protect(target)
