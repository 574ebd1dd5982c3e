"""Upkeep of the store: which results are in use, which are obsolete, and what is garbage.

Only jobs know what is in use. `store.prune` decides what a prune removes. Garbage needs no decision: staging folders,
leases and blobs that dead processes left. Nothing of a living process is touched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from stoker.core.clock import Clock
from stoker.core.digests import Digest, digest_value, is_digest
from stoker.core.errors import StokerError
from stoker.core.frozen import frozen
from stoker.engine.journal import read_status
from stoker.engine.key_leases import KeyLeases
from stoker.engine.scratch import forgotten
from stoker.host.durable import remove_tree
from stoker.host.identity import mine
from stoker.host.resources import folder_bytes
from stoker.jobs.execution import stale_staging
from stoker.jobs.job_folder import job_folders
from stoker.jobs.job_history import tell
from stoker.store.local_store import LocalStore
from stoker.store.objects.local import LocalObjects
from stoker.store.places import names_in
from stoker.store.prune import GRACE_S, all_records
from stoker.store.put import PutRequest, PutSurvey, StoredTree, StoreWriter
from stoker.store.records import Record
from stoker.store.refs import PUT, list_pins, list_refs
from stoker.store.trees import Heed


@frozen
class Rubbish:
    """What dead processes left in a store."""

    staging: tuple[str, ...]
    leases: tuple[Digest, ...]
    blobs: int
    blob_bytes: int
    scratch: tuple[str, ...] = ()
    """Checkpoints of failed work that was not continued."""
    uploads: tuple[str, ...] = ()
    """Uploads, by id, that were not continued."""

    @property
    def is_none(self) -> bool:
        return not (self.staging or self.leases or self.blobs or self.scratch or self.uploads)


@frozen
class CleanupResult:
    """What clearing up brought."""

    freed_bytes: int
    stuck: tuple[str, ...] = ()
    """What could not be removed, and why."""


def why_kept(store: LocalStore, leases: KeyLeases, runs: str) -> Callable[[Digest], str]:
    """Return a function that says why a key may not be pruned, or nothing."""
    reasons = {ref.key: f"put as {ref.name}" for ref in list_refs(store.places) if not ref.damage}
    reasons |= {key: f"pinned as {pin.name}" for pin in list_pins(store.places) for key in pin.keys}
    reasons |= dict.fromkeys(leases.held(), "being worked on")
    for folder in job_folders(runs):
        if folder.may_be_running():
            story = tell(read_status(folder.status_path))
            reasons |= {Digest(node.key): "used by a running job" for node in story.nodes.values() if node.key}
    return lambda key: reasons.get(key, "")


def why_let_go(store: LocalStore) -> Callable[[Record], str]:
    """Return a function that returns why a record is obsolete, or nothing."""
    named = {ref.key for ref in list_refs(store.places)}
    return lambda record: (
        "no name stands for it any more" if record.body.get("stage") == PUT and record.key not in named else ""
    )


FORGOTTEN_S = 30 * 86400.0
"""How long checkpoints of work that did not succeed are kept."""

UPLOAD_GRACE_S = 7 * 86400.0
"""An upload that rests longer is given up."""


def find_rubbish(
    store: LocalStore, objects: LocalObjects, leases: KeyLeases, clock: Clock, *, scratch: str = ""
) -> Rubbish:
    """Look for what dead processes left behind, in the store and below the folder of `scratch` folders."""
    held = leases.held()
    named = {entry.sha256 for record, _ in all_records(store) for entry in record.blobs()}
    blobs = blob_bytes = 0
    for name, path in store.places.blob_files():
        info = None if name in named else _look(path)
        # A young one may be about to be named.
        if info is not None and clock.wall_s() - info.st_ctime > GRACE_S:
            blobs += 1
            blob_bytes += info.st_size
    return Rubbish(
        staging=tuple(stale_staging(store, held)),
        leases=tuple(Digest(name) for name in names_in(store.places.leases) if is_digest(name) and name not in held),
        blobs=blobs,
        blob_bytes=blob_bytes,
        scratch=tuple(forgotten(scratch, older_than_s=FORGOTTEN_S, now_s=clock.wall_s())) if scratch else (),
        uploads=objects.stale_uploads(grace_s=UPLOAD_GRACE_S),
    )


def clear_rubbish(rubbish: Rubbish, leases: KeyLeases) -> CleanupResult:
    """Remove staging folders, forgotten checkpoints and leases of the dead. Blobs are swept by a prune itself."""
    cleared = remove_all((*rubbish.staging, *rubbish.scratch))
    for key in rubbish.leases:
        leases.drop_dead(key)
    return cleared


def remove_all(paths: Iterable[str]) -> CleanupResult:
    """Remove files and folders; one that can't be removed does not keep the rest."""
    freed_bytes = 0
    stuck: list[str] = []
    for path in paths:
        size_bytes = folder_bytes(path)
        try:
            freed_bytes += size_bytes if remove_tree(path) else 0
        except StokerError as error:
            stuck.append(str(error))
    return CleanupResult(freed_bytes=freed_bytes, stuck=tuple(stuck))


def sweep_uploads(store: LocalStore, objects: LocalObjects) -> int:
    """Drop uploads that were not continued; return the bytes freed."""
    before_bytes = folder_bytes(store.places.uploads)
    objects.sweep_uploads(grace_s=UPLOAD_GRACE_S)
    return before_bytes - folder_bytes(store.places.uploads)


def _look(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


class LeasedStoreWriter:
    """Puts trees into a store, under a lease; `heed` is called with the bytes. Other containers see only the lease."""

    def __init__(self, store: LocalStore, *, leases: KeyLeases, clock: Clock, heed: Heed) -> None:
        self._store = store
        self._leases = leases
        self._clock = clock
        self._heed = heed

    def put(self, surveyed: PutSurvey, wish: PutRequest, *, unpacks: bool = False) -> StoredTree:
        """Take in what was surveyed and name it; with `unpacks` what an archive holds, instead of the archive."""
        me = mine()
        ticket = digest_value(PUT, [me.host, me.pid, me.start_ticks, surveyed.path, self._clock.wall_s()])
        staging_name = f"{PUT}.{ticket[:12]}"
        putting = StoreWriter(self._store, clock=self._clock, heed=self._heed_and_renew)
        self._leases.take(ticket)
        try:
            if unpacks:
                return putting.put_unpacked(surveyed.path, wish, staging_name=staging_name)
            return putting.put(surveyed, wish, staging_name=staging_name)
        finally:
            self._leases.give_back(ticket)

    def _heed_and_renew(self, size_bytes: int) -> None:
        self._leases.renew_due()
        self._heed(size_bytes)
