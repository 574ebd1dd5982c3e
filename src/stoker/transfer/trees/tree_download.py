"""Fetch a tree to this machine: the listing first, then missing files, each verified; resumes after a break.

    record = receive_tree(sources, tree, store, stop=Stop(), clock=clock, heed=count, on_outlook=show)
    check_out(store, record, workspace)

Small files are fetched in packs, large ones by the engine of `stoker fetch`: hashed while they arrive, resumed by any
later process that requests the same tree, from any source that has them. Files become blobs of this machine's store one
by one, and the record that names the tree is written last: a crash leaves files that the next call finds, never an
incomplete tree. One process at a time receives a tree; others wait for it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial

from stoker.core.clock import Clock
from stoker.core.digests import Digest, Tree, TreeEntry, is_digest
from stoker.core.errors import BadInput, Cancelled, HashMismatch, LockHeld, NotFound, StokerError
from stoker.core.frozen import frozen
from stoker.host.durable import NO_STEP, read_regular, remove_tree, translated, write_file
from stoker.host.http.exchange import HttpClientResponse, Request, Transport
from stoker.host.locks import FileLock
from stoker.host.resources import check_space, free_bytes
from stoker.protocol.client import FleetClient
from stoker.protocol.tree_messages import MOST_LISTING_BYTES, PACKED_BYTES, PassResponse, in_packs
from stoker.store.archives.archive_members import files_of, read_listing
from stoker.store.local_store import LocalStore
from stoker.store.objects.local import keep_small
from stoker.store.records import Record
from stoker.store.trees import Heed, WalkedEntry
from stoker.transfer.download.download import fetch_file
from stoker.transfer.download.download_events import counting
from stoker.transfer.download.types import DownloadRequest, DownloadStop, DownloadTimeouts, DownloadTools, TargetFile
from stoker.transfer.trees.direct import DirectFetcher, direct_transport
from stoker.transfer.trees.holdings import held_tree, hold_tree, sweep_incoming
from stoker.transfer.trees.tree_sources import (
    TreeRoute,
    TreeSource,
    TreeSourceFinder,
    do_all,
)

LISTING = ".listing"
PARTS = ".parts"
_LOCK_WAIT_S = 0.5
_PARTIAL_SILENCE_S = 20.0
_PARTIAL_PAUSE_S = 0.1
_PATIENCE = DownloadTimeouts(attempts=2, no_progress_s=60.0, lock_wait_s=600.0)


@frozen
class TreeFetchEstimate:
    """The contents of a tree, and which of them are missing here."""

    files: int
    size_bytes: int
    missing_files: int
    missing_bytes: int


def receive_tree(  # noqa: PLR0913 - source, tree, target, stop, and callbacks
    sources: TreeSourceFinder,
    tree: str,
    store: LocalStore,
    *,
    stop: DownloadStop,
    clock: Clock,
    heed: Heed = lambda _: None,
    on_outlook: Callable[[TreeFetchEstimate], None] = lambda _: None,
    on_step: Callable[[str], None] = NO_STEP,
) -> Record:
    """Fetch a tree into this machine's store, complete and verified; return its record.

    `heed` is called with the size of every piece that arrives, `on_outlook` once the missing files are known. Raises
    `NotFound` if no machine of the fleet has the tree, `NoSpace` before bytes arrive that do not fit, `HashMismatch` if
    even the coordinator sends wrong bytes, and the error passed to `stop.ask`; the same call resumes.
    """
    if not is_digest(tree):
        raise BadInput(f"not a tree's digest: {tree[:80]!r}")
    record = held_tree(store, tree)
    if record is not None:
        return record
    incoming = store.places.incoming
    with translated(incoming):
        os.makedirs(incoming, mode=0o700, exist_ok=True)
    sweep_incoming(store.places, now_s=clock.wall_s())
    with _alone(os.path.join(incoming, f"{tree}.lock"), stop, clock):
        record = held_tree(store, tree)
        if record is not None:
            return record
        # A file in staging shows a prune that a fetch is running.
        staging = store.new_staging(f"tree.{tree[:12]}")
        # One failure stops all fetches of this tree, and no others.
        inner = DownloadStop()
        route = TreeRoute(sources, tree, inner, clock)
        try:
            with stop.cutting(lambda: _pass_on(stop, inner)):
                return _Receiving(route, store, staging, inner, clock, heed, on_step).run(on_outlook)
        finally:
            remove_tree(staging)


def _pass_on(stop: DownloadStop, inner: DownloadStop) -> None:
    try:
        stop.check()
    except StokerError as error:
        inner.ask(error)


@contextmanager
def _alone(path: str, stop: DownloadStop, clock: Clock) -> Iterator[None]:
    lock = FileLock(path, "receive a tree", wait_s=_LOCK_WAIT_S, clock=clock)
    while True:
        stop.check()
        with suppress(LockHeld):
            lock.acquire()
            break
    try:
        yield
    finally:
        lock.release()


class _Receiving:
    """One tree that is being received."""

    def __init__(  # noqa: PLR0913, PLR0917 - as `receive_tree` has it
        self,
        route: TreeRoute,
        store: LocalStore,
        staging: str,
        stop: DownloadStop,
        clock: Clock,
        heed: Heed,
        on_step: Callable[[str], None],
    ) -> None:
        self._route = route
        self._store = store
        self._staging = staging
        self._stop = stop
        self._clock = clock
        self._heed = heed
        self._on_step = on_step
        self._sizes: dict[Digest, int] = {}
        self._tree = route.tree

    def run(self, on_outlook: Callable[[TreeFetchEstimate], None]) -> Record:
        tree = self._listing()
        self._sizes = files_of(tree)
        missing = {digest: size for digest, size in self._sizes.items() if not self._is_here(digest, size)}
        outlook = TreeFetchEstimate(
            files=len(tree.entries),
            size_bytes=tree.size_bytes,
            missing_files=len(missing),
            missing_bytes=sum(missing.values()),
        )
        on_outlook(outlook)
        self._check_room(outlook.missing_bytes)
        self._bring_all(missing)
        self._on_step("publish")
        record = hold_tree(self._store, tree, clock=self._clock)
        remove_tree(self._place(f"{self._tree}{LISTING}"))
        return record

    def _listing(self) -> Tree:
        path = self._place(f"{self._tree}{LISTING}")
        with suppress(OSError, StokerError):
            return read_listing(read_regular(path, MOST_LISTING_BYTES), self._tree)

        def fetch(source: TreeSource) -> Tree:
            data = source.client.tree_listing(self._tree)
            tree = read_listing(data, self._tree)
            self._on_step("listing")
            # For machines that fetch the tree from here while it is still arriving.
            write_file(path, data, mode=0o600)
            return tree

        return self._route.take(fetch)

    def _bring_all(self, missing: dict[Digest, int]) -> None:
        small = [(digest, size) for digest, size in missing.items() if size <= PACKED_BYTES]
        large = [(digest, size) for digest, size in missing.items() if size > PACKED_BYTES]
        pieces = [partial(self._bring_pack, pack) for pack in in_packs(small)]
        pieces += [partial(self._bring_large, digest, size) for digest, size in large]
        do_all(
            pieces,
            name="receiving",
            give_up=lambda: self._stop.ask(Cancelled("another file of the tree failed")),
        )

    def _bring_pack(self, digests: list[str]) -> None:
        left = dict.fromkeys(digests)
        silent_since_s = self._clock.monotonic_s()

        def fetch(source: TreeSource) -> None:
            nonlocal silent_since_s
            silent_since_s = self._clock.monotonic_s()
            while left:
                came: list[WalkedEntry] = []
                try:
                    with source.client.fetch_contents(tuple(left)) as files:
                        for digest, data in files:
                            came.append(self._write(digest, data))
                            self._heed(len(data))
                finally:
                    # Also the files that arrived before a break.
                    self._on_step("keep")
                    keep_small(self._store, came)
                    for walked in came:
                        left.pop(walked.entry.sha256)
                if came:
                    self._route.worked()
                    silent_since_s = self._clock.monotonic_s()
                elif not source.is_partial or self._clock.monotonic_s() - silent_since_s > _PARTIAL_SILENCE_S:
                    raise self._route.lacks(source, next(iter(left)))
                else:
                    self._stop.sleep(_PARTIAL_PAUSE_S, self._clock)

        self._route.take(fetch)

    def _write(self, digest: Digest, data: bytes) -> WalkedEntry:
        if len(data) != self._sizes[digest]:
            raise HashMismatch(f"file {digest[:12]} differs in size from its listing", expected=digest)
        path = os.path.join(self._staging, digest)
        self._on_step("write")
        with translated(path):
            with open(path, "wb", buffering=0) as file:
                file.write(data)
            return WalkedEntry(TreeEntry(digest, len(data), digest), path, os.lstat(path))

    def _bring_large(self, digest: Digest, size_bytes: int) -> None:
        landing = TargetFile(folder=self._store.places.incoming, name=digest)

        def came(size_bytes: int) -> None:
            self._heed(size_bytes)
            self._route.worked()

        def fetch(source: TreeSource) -> None:
            # Other machines of the fleet have no object store.
            offered = _offered(source.client, digest) if not source.machine else None
            if offered is None:
                url, headers = source.client.object_address(digest)
                fetch_from(url, headers, source.client.http)
                return
            with closing(direct_transport(source.client)) as transport:
                if len(offered.passes) == 1:
                    fetch_from(offered.passes[0].url, dict(offered.passes[0].headers), transport)
                    return
                path = self._place(f"{digest}{PARTS}")
                fetcher = DirectFetcher(source.client, transport, digest, stop=self._stop, clock=self._clock, heed=came)
                fetcher.run(offered, path)
                keep(path)

        def keep(path: str) -> None:
            with translated(path):
                info = os.lstat(path)
            self._on_step("keep")
            self._store.keep([WalkedEntry(TreeEntry(digest, size_bytes, digest), path, info)], {})

        def fetch_from(url: str, headers: dict[str, str], transport: Transport) -> None:
            wanted = DownloadRequest(url=url, label=digest[:12], size_bytes=size_bytes, sha256=digest, headers=headers)
            tools = DownloadTools(
                transport=_Apart(transport),
                clock=self._clock,
                free_bytes=free_bytes,
                jitter=random.SystemRandom().random,
                say=counting(came),
                on_step=self._on_step,
            )
            fetched = fetch_file(wanted, landing, tools=tools, patience=_PATIENCE, stop=self._stop)
            keep(fetched.path)

        self._route.take(fetch)

    def _is_here(self, digest: Digest, size_bytes: int) -> bool:
        return self._store.holds(TreeEntry("a file", size_bytes, digest))

    def _check_room(self, missing_bytes: int) -> None:
        root = self._store.places.root
        hint = "free some space there (`stoker store prune`); received files are kept"
        check_space("the tree", root, coming_bytes=missing_bytes, free=free_bytes(root), hint=hint)

    def _place(self, name: str) -> str:
        return os.path.join(self._store.places.incoming, name)


def _offered(client: FleetClient, digest: str) -> PassResponse | None:
    """Return how to fetch an object from the object store; None if it comes from the coordinator."""
    try:
        offered = client.passes_to_fetch(digest)
    except NotFound:
        # It has no such object, or is of an earlier version.
        return None
    return offered if offered.is_direct else None


class _Apart:
    """A transport shared with other fetches: aborting one file's response does not abort theirs."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def send(self, request: Request) -> HttpClientResponse:
        return self._transport.send(request)

    def abort(self) -> None:
        """Leave a request without a response alone: it has its own deadline."""

    def close(self) -> None:
        """Leave it open."""
