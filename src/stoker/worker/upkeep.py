"""Keep the store in order: which results are in use, what is rubbish, and whether what is kept is what it should be.

Here and not in the store, because only jobs know what is in use. What a prune takes is decided by `store.retention`;
rubbish is what no decision is needed about: staging folders, leases and blobs that processes left behind when they
died. Nothing of a living process is touched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress

from stoker.host.durable import remove_tree
from stoker.host.process_table import read_row
from stoker.model.clock import Clock
from stoker.model.digests import Digest, is_digest
from stoker.model.errors import StokerError
from stoker.model.frozen import frozen
from stoker.plan.lease import LeaseBook
from stoker.plan.scratch import forgotten
from stoker.plan.status import read_status
from stoker.store.local import Found, LocalStore
from stoker.store.pins import list_pins
from stoker.store.prune import GRACE_S, all_records
from stoker.worker.job_folder import job_folders
from stoker.worker.story import tell


@frozen
class Rubbish:
    """What dead processes left in a store."""

    staging: tuple[str, ...]
    leases: tuple[Digest, ...]
    blobs: int
    blob_bytes: int
    scratch: tuple[str, ...] = ()
    """Checkpoints of work that did not succeed and that nobody came back to."""


@frozen
class Checked:
    """One record after a check. `damage` is empty if all is well; what was damaged has been set aside."""

    key: Digest
    stage: str
    damage: str


def why_kept(store: LocalStore, leases: LeaseBook, runs: str) -> Callable[[Digest], str]:
    """Give a function that says why a key may not be pruned, or nothing."""
    reasons = {key: f"pinned as {pin.name}" for pin in list_pins(store.places) for key in pin.keys}
    reasons |= dict.fromkeys(leases.held(), "being worked on")
    for folder in job_folders(runs):
        if folder.may_be_running():
            story = tell(read_status(folder.status_path))
            reasons |= {Digest(node.key): "used by a running job" for node in story.nodes.values() if node.key}
    return lambda key: reasons.get(key, "")


FORGOTTEN_S = 30 * 86400.0
"""How long checkpoints of work that did not succeed are kept."""


def find_rubbish(store: LocalStore, leases: LeaseBook, clock: Clock, *, scratch: str = "") -> Rubbish:
    """Look for what dead processes left behind, in the store and below the folder of `scratch` folders."""
    held = leases.held()
    named = {entry.sha256 for record, _ in all_records(store) for entry in record.blobs()}
    blobs = blob_bytes = 0
    for name, info in _files(store.places.blobs):
        # A young one may be about to be named.
        if name not in named and clock.wall_s() - info.st_ctime > GRACE_S:
            blobs += 1
            blob_bytes += info.st_size
    return Rubbish(
        staging=tuple(_stale_staging(store, held)),
        leases=tuple(Digest(name) for name in _names(store.places.leases) if is_digest(name) and name not in held),
        blobs=blobs,
        blob_bytes=blob_bytes,
        scratch=tuple(forgotten(scratch, older_than_s=FORGOTTEN_S, now_s=clock.wall_s())) if scratch else (),
    )


def clear_rubbish(rubbish: Rubbish, leases: LeaseBook) -> None:
    """Remove staging folders, forgotten checkpoints and leases of the dead. Blobs are swept by a prune itself."""
    for path in (*rubbish.staging, *rubbish.scratch):
        remove_tree(path)
    for key in rubbish.leases:
        leases.drop_dead(key)


def clear_stale_staging(store: LocalStore, leases: LeaseBook) -> None:
    """Remove what killed runs had half written. Costs one look at an empty folder when there is nothing."""
    if _names(store.places.staging):
        for path in _stale_staging(store, leases.held()):
            with suppress(StokerError):
                remove_tree(path)


def check_records(store: LocalStore, *, full: bool) -> Iterator[Checked]:
    """Check every record and its blobs: what changed or was never checked here is hashed, with `full` everything."""
    for shard in _names(store.places.records):
        for name in _names(os.path.join(store.places.records, shard)):
            if is_digest(name):
                yield _check(store, Digest(name), full=full)


def _check(store: LocalStore, key: Digest, *, full: bool) -> Checked:
    path = store.places.record(key)
    times = _times(path)
    found = store.verify_record(key) if full else store.lookup(key)
    if not isinstance(found, Found):
        return Checked(key=key, stage="", damage=found.damage)
    if times is not None:
        # To check is not to use: the order in which a prune takes things must not change by it.
        with suppress(OSError):
            os.utime(path, ns=times)
    damage = f"lost: {', '.join(found.lost)}" if found.lost else ""
    return Checked(key=key, stage=str(found.record.body.get("stage", "")), damage=damage)


def _stale_staging(store: LocalStore, held: list[Digest]) -> Iterator[str]:
    """Give the staging folders `.PID.….KEY` whose process is gone.

    A process in another container can't be seen, but it renews its lease on the key.
    """
    busy = {key[:12] for key in held}
    for name in _names(store.places.staging):
        pid, _, rest = name.removeprefix(".").partition(".")
        row = read_row(int(pid)) if pid.isdigit() else None
        if pid.isdigit() and (row is None or row.is_gone) and rest.rpartition(".")[2] not in busy:
            yield os.path.join(store.places.staging, name)


def _files(root: str) -> Iterator[tuple[str, os.stat_result]]:
    for shard in _names(root):
        for name in _names(os.path.join(root, shard)):
            try:
                yield name, os.stat(os.path.join(root, shard, name))
            except FileNotFoundError:
                continue


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _times(path: str) -> tuple[int, int] | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_atime_ns, info.st_mtime_ns
