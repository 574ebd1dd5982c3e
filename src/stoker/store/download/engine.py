"""One file from a server to its final name: the way in.

The promise: when the final name exists, its bytes are those of exactly one version, of the expected size and digest
where these are known; nobody sees a part of a file there, whatever is cut, killed or unplugged. What is on the disk
already is looked at first; one writer at a time does the rest (`transfer`).

What can't be promised: without a size and without a digest known beforehand, from a server that says neither, a body
that ends too early looks whole.
"""

from __future__ import annotations

import stat

from stoker.host.anchored import AnchoredFolder
from stoker.host.http.addresses import shown
from stoker.host.http.exchange import Reply, Request
from stoker.host.http.redirects import follow
from stoker.host.names import check_name
from stoker.model.digests import Digest
from stoker.model.errors import HashMismatch, LocalFile, NotOnServer
from stoker.model.frozen import changed
from stoker.store.download.commit import STEPS, OpenLanding
from stoker.store.download.existing import Existing, Validators, is_newest, not_ours, read_existing, read_validators
from stoker.store.download.hold import Hold, sweep_lock
from stoker.store.download.patience import Patience
from stoker.store.download.stop import Stop
from stoker.store.download.telling import Teller
from stoker.store.download.tools import Tools
from stoker.store.download.transfer import Transfer
from stoker.store.download.wanted import Fetched, Landing, Status, Wanted

__all__ = ["STEPS", "Stop", "Tools", "fetch_file"]


def fetch_file(  # noqa: PLR0913 - what, where to, with what, how patiently, until when, and the two wishes of a user
    wanted: Wanted,
    landing: Landing,
    *,
    tools: Tools,
    patience: Patience,
    stop: Stop,
    force: bool = False,
    offline: bool = False,
) -> Fetched:
    """Have a file under its final name, whole, checked and durable; or raise, with the final name as it was.

    A file that is there and is the one wanted is kept; another one is replaced if it is ours (`Tools.owns`, or
    validators lie beside it), else refused before anything is sent; `force` fetches anew, whatever is there. `offline`
    asks nobody. Raises `NotOnServer`, `AuthRefused`, `RateLimited`, `NetworkFailed`, `BadAnswer`, `HashMismatch`,
    `NoSpace`, `LockHeld`, `LocalFile`, `NoPermission`, `BadInput` for a landing whose name is not safe, and whatever
    `stop` is asked with.
    """
    began_s = tools.clock.monotonic_s()
    teller = Teller(tools.say, wanted, landing.name)
    below, _, leaf = check_name(landing.name).rpartition("/")
    with _open_folder(landing, below, makes=not offline) as folder:
        look = _Look(wanted, landing, folder, leaf)
        fetched = None
        if not force or offline:
            fetched = look.offline(tools) if offline else look.before(tools, stop)
        if fetched is not None:
            sweep_lock(folder, leaf)
        else:
            stop.check()
            if not force:
                look.refuse_others(tools)
            hold = Hold(folder, leaf, lock_path=landing.lock_path, wait_s=patience.lock_wait_s, name=wanted.label)
            with hold.take(clock=tools.clock, stop=stop, teller=teller):
                fetched = None if force else look.again()
                if fetched is None:
                    keeps_validators = landing.keeps_validators
                    opened = OpenLanding(folder=folder, leaf=leaf, names=hold.names, keeps_validators=keeps_validators)
                    transfer = Transfer(wanted, opened, tools=tools, patience=patience, stop=stop, teller=teller)
                    fetched = _downloaded(wanted, landing, transfer, begins_anew=force)
    fetched = changed(fetched, seconds=tools.clock.monotonic_s() - began_s)
    tools.keep([(wanted, fetched)])
    tools.on_step("done")
    teller.done(fetched)
    return fetched


class _Look:
    """Looks at the file under the final name, and remembers which one it has seen."""

    def __init__(self, wanted: Wanted, landing: Landing, folder: AnchoredFolder, leaf: str) -> None:
        self._wanted = wanted
        self._landing = landing
        self._folder = folder
        self._leaf = leaf
        self._has_digest = wanted.sha256 is not None or bool(wanted.git_sha1)
        self._seen: tuple[int, ...] | None = None

    def offline(self, tools: Tools) -> Fetched:
        """Give the file that is there; asks nobody."""
        received = None if self._has_digest else tools.received(self._landing.path)
        wanted = self._wanted if received is None else changed(self._wanted, sha256=received)
        found = read_existing(self._folder, self._leaf, wanted)
        path = self._folder.path_of(self._leaf)
        if isinstance(found, str):
            raise HashMismatch(f"not what was asked for: {path}: {found}", path=path, reason="offline")
        if found is None:
            raise _not_here(path)
        return self._cached(found, self._validators())

    def before(self, tools: Tools, stop: Stop) -> Fetched | None:
        """Give the file that is there if it is the one wanted.

        That is so by its digest; or because the server still has the version that was put there, and it is undamaged.
        """
        self._seen = self._stamp()
        if self._seen is None:
            return None
        if self._has_digest:
            return self._if_wanted(self._validators())
        validators, received = self._validators(), tools.received(self._landing.path)
        if not validators or received is None:
            return None

        def send(request: Request) -> Reply:
            return follow(tools.transport, request).reply

        with stop.cutting(tools.transport.abort):
            is_kept = is_newest(send, self._wanted, self._seen[2], validators)
        return self._if_wanted(validators, received) if is_kept else None

    def refuse_others(self, tools: Tools) -> None:
        """Raise `LocalFile` for a file of the user's: it is not what is wanted, and not ours to replace."""
        if self._stamp() is not None and not tools.owns(self._landing.path) and not self._validators():
            raise not_ours(self._landing.path)

    def again(self) -> Fetched | None:
        """Look once more, now that nobody else writes: another process may have finished it meanwhile."""
        if not self._has_digest or self._stamp() in {None, self._seen}:
            return None
        return self._if_wanted(self._validators())

    def _if_wanted(self, validators: Validators, received: Digest | None = None) -> Fetched | None:
        wanted = self._wanted if received is None else changed(self._wanted, sha256=received)
        found = read_existing(self._folder, self._leaf, wanted)
        return self._cached(found, validators) if isinstance(found, Existing) else None

    def _validators(self) -> Validators:
        return read_validators(self._folder, self._leaf) if self._landing.keeps_validators else Validators()

    def _stamp(self) -> tuple[int, ...] | None:
        info = self._folder.look(self._leaf)
        if info is None or not stat.S_ISREG(info.st_mode):
            return None
        return (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)

    def _cached(self, found: Existing, validators: Validators) -> Fetched:
        return Fetched(
            path=self._landing.path,
            status=Status.CACHED,
            size_bytes=found.size_bytes,
            sha256=found.sums.sha256,
            url=shown(self._wanted.url),
            commit=self._wanted.commit,
            etag=validators.etag,
            last_modified=validators.last_modified,
        )


def _downloaded(wanted: Wanted, landing: Landing, transfer: Transfer, *, begins_anew: bool) -> Fetched:
    landed = transfer.run(begins_anew=begins_anew)
    return Fetched(
        path=landing.path,
        status=Status.DOWNLOADED,
        size_bytes=landed.totals.size_bytes,
        sha256=landed.totals.sums.sha256,
        bytes_from_network=landed.bytes_from_network,
        bytes_resumed=landed.bytes_resumed,
        url=shown(wanted.url),
        commit=wanted.commit,
        etag=landed.validators.etag,
        last_modified=landed.validators.last_modified,
    )


def _open_folder(landing: Landing, below: str, *, makes: bool) -> AnchoredFolder:
    try:
        return AnchoredFolder.open(landing.folder, below, makes=makes)
    except LocalFile as error:
        if makes or error.data.get("errno") != "ENOENT":
            raise
        raise _not_here(landing.path) from None


def _not_here(path: str) -> NotOnServer:
    return NotOnServer(f"not on this machine, and nobody may be asked: {path}", path=path, reason="offline")
