"""Carry out a prune: records become tombstones, then bytes that nobody names are swept.

Takes no lock that a run needs. Records go first, then bytes, so that a crash leaves bytes without a name and not the
other way round. A writer names its bytes only after it has brought them in, so bytes are spared while they are young;
whoever brings in bytes that are here already makes them young again. What is lost all the same is made again by the
run that needs it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from stoker.host.durable import remove_tree, sweep_temps
from stoker.model.clock import Clock
from stoker.model.digests import Digest, is_digest
from stoker.model.errors import NoSpace, StokerError
from stoker.model.frozen import frozen
from stoker.store.local import LocalStore, Missing
from stoker.store.pins import refuse_if_damaged
from stoker.store.records import BadRecord, Record, parse_record, read_file
from stoker.store.retention import Candidate, PruneDecision, Removal
from stoker.store.views import drop_view

GRACE_S = 3600.0

# What a file system calls now may be a moment behind what the clock says.
_TICK_S = 1.0


@frozen
class Swept:
    """What a sweep removed."""

    blobs: int
    blob_bytes: int
    views: int
    stuck: tuple[str, ...] = ()
    """What could not be removed, and why."""


def all_records(store: LocalStore) -> Iterator[tuple[Record, float]]:
    """Give every readable record with the time of its last use. One bad record never stops the rest."""
    for shard in _names(store.places.records):
        for name in _names(f"{store.places.records}/{shard}"):
            if not is_digest(name):
                continue
            try:
                read = read_file(store.places.record(Digest(name)))
                if read is None:
                    continue
                record = parse_record(read[0], Digest(name))
            except (BadRecord, OSError):
                continue
            yield record, read[1].st_mtime


def candidates(
    store: LocalStore, *, kept: Callable[[Digest], str], label: Callable[[Record], str]
) -> Iterator[Candidate]:
    """Give every record that still has bytes, as pruning sees it."""
    for record, last_used_s in all_records(store):
        if record.is_tombstone:
            continue
        yield Candidate(
            key=record.key,
            last_used_s=last_used_s,
            blobs=tuple((entry.sha256, entry.size_bytes) for entry in record.blobs()),
            inline_bytes=sum(map(len, record.inline.values())),
            label=label(record),
            is_kept=kept(record.key),
        )


def carry_out(store: LocalStore, decision: PruneDecision, *, clock: Clock, grace_s: float = GRACE_S) -> Swept:
    """Turn the chosen records into tombstones and sweep what nobody names any more.

    A record that was used since the decision stays. `CorruptBytes` if a pin can't be read: nothing is touched then.
    """
    refuse_if_damaged(store.places)
    now_s = clock.wall_s()
    # Somebody is at work: what was brought in lately may be about to be named.
    is_busy = bool(_names(store.places.staging))
    buried = [record for removal in decision.removals if (record := _bury(store, removal)) is not None]
    before_s = now_s - _TICK_S - (grace_s if is_busy else 0.0)
    gone = {entry.sha256: before_s for record in buried for entry in record.blobs()}
    gone |= {record.digest: before_s for record in buried}
    return _sweep(store, now_s=now_s, grace_s=grace_s, gone=gone)


def sweep(store: LocalStore, *, clock: Clock, grace_s: float = GRACE_S) -> Swept:
    """Remove blobs and views that no record names, and half-written records, once they are older than the grace."""
    return _sweep(store, now_s=clock.wall_s(), grace_s=grace_s, gone={})


def _bury(store: LocalStore, removal: Removal) -> Record | None:
    """Put a tombstone in a record's place and give what it was; nothing if it stays."""
    path = store.places.record(removal.key)
    record = store.peek(removal.key)
    try:
        last_used_s = os.stat(path).st_mtime
    except OSError:
        return None
    if isinstance(record, Missing) or record.is_tombstone or last_used_s > removal.last_used_s:
        return None
    try:
        is_ours = store.swap(record, record.without_bytes())
        if is_ours:
            with contextlib.suppress(OSError):
                os.utime(path, (last_used_s, last_used_s))
    except NoSpace:
        # The very moment for which there is pruning: better to forget a result than to keep its bytes.
        is_ours = store.swap(record, None)
    return record if is_ours else None


def _sweep(store: LocalStore, *, now_s: float, grace_s: float, gone: dict[Digest, float]) -> Swept:
    """Remove what no record names and nobody touched lately; `gone` says since when, for what just lost its name."""
    named: set[str] = set()
    for record, _ in all_records(store):
        if not record.is_tombstone:
            named.add(record.digest)
            named.update(entry.sha256 for entry in record.blobs())
    swept = _Sweeping(store, named=named, gone=gone, before_s=now_s - grace_s)
    for shard in _names(store.places.blobs):
        for name in _names(f"{store.places.blobs}/{shard}"):
            swept.blob(f"{store.places.blobs}/{shard}", name)
    for name in _names(store.places.views):
        swept.view(name)
    for shard in _names(store.places.records):
        with contextlib.suppress(StokerError):
            sweep_temps(f"{store.places.records}/{shard}", grace_s, now_s)
    return Swept(blobs=swept.blobs, blob_bytes=swept.blob_bytes, views=swept.views, stuck=tuple(swept.stuck))


class _Sweeping:
    """One sweep under way: what may go, and what went."""

    def __init__(self, store: LocalStore, *, named: set[str], gone: dict[Digest, float], before_s: float) -> None:
        self.blobs = self.blob_bytes = self.views = 0
        self.stuck: list[str] = []
        self._store = store
        self._named = named
        self._gone = gone
        self._before_s = before_s

    def blob(self, shard: str, name: str) -> None:
        path = f"{shard}/{name}"
        info = self._removable(path, name)
        if info is None:
            return
        away = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
        try:
            os.rename(path, away)
            if os.lstat(away).st_mtime_ns != info.st_mtime_ns:
                # A writer counted on it after we looked. Had it come later, it would have missed it.
                os.rename(away, path)
                return
            remove_tree(away)
        except FileNotFoundError:
            return
        except (OSError, StokerError) as error:
            self.stuck.append(f"{path}: {error}")
            return
        self._store.memo.forget(name)
        self.blobs += 1
        self.blob_bytes += info.st_size

    def view(self, name: str) -> None:
        path = f"{self._store.places.views}/{name}"
        if self._removable(path, name) is None:
            return
        try:
            drop_view(path)
        except StokerError as error:
            self.stuck.append(str(error))
            return
        self.views += 1

    def _removable(self, path: str, name: str) -> os.stat_result | None:
        if name in self._named:
            return None
        try:
            info = os.lstat(path)
        except OSError:
            return None
        # By ctime: a writer may bring in files that it was told are years old.
        return info if info.st_ctime < self._gone.get(Digest(name), self._before_s) else None


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
