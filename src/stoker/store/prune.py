"""Carry out a prune: records become tombstones, then bytes that nobody names are swept.

Takes no lock that a run needs. Records go first, then bytes, so that a crash leaves bytes without a name and not the
other way round. A writer names its bytes only after it has brought them in, so bytes are spared while they are young;
whoever brings in bytes that are here already makes them young again. What is lost all the same is made again by the
run that needs it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator

from stoker.host.durable import sweep_temps
from stoker.model.clock import Clock
from stoker.model.digests import Digest, is_digest
from stoker.model.errors import NoSpace, StokerError
from stoker.model.frozen import changed, frozen
from stoker.store.local import LocalStore, Missing
from stoker.store.pins import refuse_if_damaged
from stoker.store.places import names_in
from stoker.store.records import BadRecord, Record, parse_record, read_file
from stoker.store.refs import refuse_if_refs_damaged
from stoker.store.removal import remove_untouched
from stoker.store.retention import GRACE_S, Candidate, PruneDecision, Removal
from stoker.store.views import drop_view

# What a file system calls now may be a moment behind what the clock says.
_TICK_S = 1.0


@frozen
class Swept:
    """What a sweep removed."""

    blobs: int
    blob_bytes: int
    views: int
    inline_bytes: int = 0
    """What records held that are tombstones now."""
    stuck: tuple[str, ...] = ()
    """What could not be removed, and why."""

    @property
    def freed_bytes(self) -> int:
        return self.blob_bytes + self.inline_bytes


def all_records(store: LocalStore) -> Iterator[tuple[Record, float]]:
    """Give every readable record with the time of its last use. One bad record never stops the rest."""
    for shard in names_in(store.places.records):
        for name in names_in(f"{store.places.records}/{shard}"):
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
    store: LocalStore,
    *,
    kept: Callable[[Digest], str],
    label: Callable[[Record], str],
    let_go: Callable[[Record], str] = lambda _record: "",
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
            let_go=let_go(record),
        )


def carry_out(store: LocalStore, decision: PruneDecision, *, clock: Clock, grace_s: float = GRACE_S) -> Swept:
    """Turn the chosen records into tombstones and sweep what nobody names any more, also if none was chosen.

    Blobs and views that no record names go, and half-written records, once they are older than the grace.
    A record that was used since the decision stays. `CorruptBytes` if a pin or a ref can't be read: nothing is touched
    then.
    """
    refuse_if_damaged(store.places)
    refuse_if_refs_damaged(store.places)
    now_s = clock.wall_s()
    # Somebody is at work: what was brought in lately may be about to be named.
    is_busy = bool(names_in(store.places.staging))
    before_s = now_s - _TICK_S - (grace_s if is_busy else 0.0)
    buried = [record for removal in decision.removals if (record := _bury(store, removal)) is not None]
    gone = {entry.sha256: before_s for record in buried for entry in record.blobs()}
    gone |= {record.digest: before_s for record in buried}
    swept = _sweep(store, now_s=now_s, grace_s=grace_s, gone=gone)
    return changed(swept, inline_bytes=sum(len(data) for record in buried for data in record.inline.values()))


def young_bytes(
    store: LocalStore,
    decision: PruneDecision,
    *,
    clock: Clock,
    leftovers: Collection[str] = (),
    grace_s: float = GRACE_S,
) -> int:
    """Add up the blobs that would go with the decision, but are spared: they are young, and somebody is at work.

    `leftovers` are the staging folders of the dead, which go before.
    """
    at_work = {os.path.join(store.places.staging, name) for name in names_in(store.places.staging)}
    if at_work.issubset(leftovers):
        return 0
    before_s = clock.wall_s() - _TICK_S - grace_s
    size_bytes = 0
    for digest, blob_bytes in (blob for removal in decision.removals for blob in removal.freed_blobs):
        with contextlib.suppress(OSError):
            size_bytes += blob_bytes if os.lstat(store.places.blob(digest)).st_ctime >= before_s else 0
    return size_bytes


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
        is_ours = store.swap(record, record.without_bytes(), used_s=removal.last_used_s)
        if is_ours:
            with contextlib.suppress(OSError):
                os.utime(path, (last_used_s, last_used_s))
    except NoSpace:
        # The very moment for which there is pruning: better to forget a result than to keep its bytes.
        is_ours = store.swap(record, None, used_s=removal.last_used_s)
    return record if is_ours else None


def _sweep(store: LocalStore, *, now_s: float, grace_s: float, gone: dict[Digest, float]) -> Swept:
    """Remove what no record names and nobody touched lately; `gone` says since when, for what just lost its name."""
    named: set[str] = set()
    for record, _ in all_records(store):
        if not record.is_tombstone:
            named.add(record.digest)
            named.update(entry.sha256 for entry in record.blobs())
    swept = _Sweeping(store, named=named, gone=gone, before_s=now_s - grace_s)
    for name, path in store.places.blob_files():
        swept.blob(name, path)
    for name in names_in(store.places.views):
        swept.view(name)
    for shard in names_in(store.places.records):
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

    def blob(self, name: str, path: str) -> None:
        info = self._removable(path, name)
        if info is None:
            return
        try:
            if not remove_untouched(path, info):
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
