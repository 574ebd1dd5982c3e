"""Carry out a prune: records become tombstones, then bytes without a name are swept.

Takes no lock that a run needs. Records are removed first, then bytes, so that a crash leaves bytes without a name and
not the other way round. A writer names its bytes only after it has brought them in, so young bytes stay; bringing in
bytes that are here already makes them young again. What is lost all the same is computed again by the run that needs
it.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

from stoker.core.clock import Clock
from stoker.core.digests import Digest, is_digest
from stoker.core.errors import Ambiguous, CorruptBytes, NoSpace, NotFound, StokerError
from stoker.core.frozen import changed, frozen
from stoker.core.text import did_you_mean
from stoker.host.durable import remove_tree, sweep_temps
from stoker.store.local_store import LocalStore, RecordMiss
from stoker.store.places import names_in
from stoker.store.records import BadRecord, Record, parse_record, read_file
from stoker.store.refs import find_ref, list_refs, refuse_if_damaged
from stoker.store.tree_views import drop_view

GRACE_S = 3600.0
"""Grace period of bytes, and of records of stored trees: their writer may be about to name them."""

_YOUNG = "put without a name, for less than an hour"


@frozen
class PruneCandidate:
    """One record as input of the decision."""

    key: Digest
    last_used_s: float
    blobs: tuple[tuple[Digest, int], ...]
    """Digest and size of each blob it names."""
    inline_bytes: int = 0
    label: str = ""
    is_kept: str = ""
    """Why it must stay (a pin, a running job), or empty."""
    let_go: str = ""
    """Why it is not needed any more, or empty."""


@frozen
class Removal:
    """One record to remove, what that frees, and why."""

    key: Digest
    label: str
    last_used_s: float
    """As of the decision: one that is used after that stays."""
    freed_bytes: int
    why: str
    freed_blobs: tuple[tuple[Digest, int], ...] = ()
    """Digest and size of each blob that no record names afterwards."""


@frozen
class PruneDecision:
    """What to remove, in order, and what stays although it was its turn."""

    removals: tuple[Removal, ...]
    before_bytes: int
    after_bytes: int
    kept_by_reason: dict[str, int]

    @property
    def freed_bytes(self) -> int:
        return self.before_bytes - self.after_bytes


def decide_prune(
    candidates: Iterable[PruneCandidate],
    *,
    now_s: float,
    max_bytes: int | None,
    older_than_s: float | None,
    grace_s: float = GRACE_S,
) -> PruneDecision:
    """Decide which records become tombstones.

    Released ones, whatever the limit; those unused for too long; then the least recently used until the rest fits.
    Pinned and protected records stay. A blob is removed when no remaining record names it, so the bytes freed are
    counted blob by blob.
    """
    ordered = sorted(candidates, key=lambda candidate: (candidate.last_used_s, candidate.key))
    named_by: Counter[Digest] = Counter()
    sizes: dict[Digest, int] = {}
    for candidate in ordered:
        for digest, size_bytes in set(candidate.blobs):
            named_by[digest] += 1
            sizes[digest] = size_bytes
    held = {blob for candidate in ordered if candidate.is_kept for blob in candidate.blobs}
    total = sum(sizes.values()) + sum(candidate.inline_bytes for candidate in ordered)
    before = total
    removals: list[Removal] = []
    kept: Counter[str] = Counter()
    for candidate in ordered:
        idle_s = max(0.0, now_s - candidate.last_used_s)
        too_old = older_than_s is not None and idle_s > older_than_s
        unwanted = bool(candidate.let_go) and idle_s > grace_s
        too_much = max_bytes is not None and total > max_bytes
        if not (unwanted or too_old or too_much):
            if candidate.let_go and not candidate.is_kept:
                kept[_YOUNG] += 1
            continue
        if candidate.is_kept:
            kept[candidate.is_kept] += 1
            continue
        if not (unwanted or too_old) and not candidate.inline_bytes and held.issuperset(candidate.blobs):
            # Its bytes stay in any case, so removing it would gain nothing.
            continue
        for digest, _ in set(candidate.blobs):
            named_by[digest] -= 1
        blobs = tuple(blob for blob in dict.fromkeys(candidate.blobs) if not named_by[blob[0]])
        freed = candidate.inline_bytes + sum(size_bytes for _, size_bytes in blobs)
        total -= freed
        why = f"unused for {idle_s / 86400:.1f} days" if too_old else "over the size limit, least recently used"
        removals.append(
            Removal(
                key=candidate.key,
                label=candidate.label,
                last_used_s=candidate.last_used_s,
                freed_bytes=freed,
                why=candidate.let_go if unwanted else why,
                freed_blobs=blobs,
            )
        )
    return PruneDecision(removals=tuple(removals), before_bytes=before, after_bytes=total, kept_by_reason=dict(kept))


def remove_untouched(path: str, seen: os.stat_result) -> bool:
    """Remove a blob unless it was made young again since it was `seen`. False: it stays, or was gone already.

    Raises `OSError` or our own errors where it can't be removed.
    """
    away = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        os.rename(path, away)
        if os.lstat(away).st_mtime_ns != seen.st_mtime_ns:
            # A writer relied on it after our check. Had it come later, it would have missed it.
            os.rename(away, path)
            return False
        return remove_tree(away)
    except FileNotFoundError:
        return False


# A file system's time may be a moment behind the clock.
_TICK_S = 1.0


@frozen
class PruneResult:
    """What a sweep removed."""

    blobs: int
    blob_bytes: int
    views: int
    inline_bytes: int = 0
    """Bytes of the records that are tombstones now."""
    stuck: tuple[str, ...] = ()
    """What could not be removed, and why."""

    @property
    def freed_bytes(self) -> int:
        return self.blob_bytes + self.inline_bytes


def all_records(store: LocalStore) -> Iterator[tuple[Record, float]]:
    """Return every readable record with the time of its last use. One bad record never stops the rest."""
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
) -> Iterator[PruneCandidate]:
    """Return every record that still has bytes, as input of the decision."""
    for record, last_used_s in all_records(store):
        if record.is_tombstone:
            continue
        yield PruneCandidate(
            key=record.key,
            last_used_s=last_used_s,
            blobs=tuple((entry.sha256, entry.size_bytes) for entry in record.blobs()),
            inline_bytes=sum(map(len, record.inline.values())),
            label=label(record),
            is_kept=kept(record.key),
            let_go=let_go(record),
        )


def carry_out(
    store: LocalStore,
    decision: PruneDecision,
    *,
    clock: Clock,
    grace_s: float = GRACE_S,
    on_removed: Callable[[int], None] = lambda _count: None,
) -> PruneResult:
    """Turn the chosen records into tombstones and sweep bytes without a name, also if none was chosen.

    `on_removed` is called with the number of records so far, and may end it there.

    Blobs and views that no record names are removed, and half-written records, once they are older than the grace
    period. A record that was used since the decision stays. `CorruptBytes` if a pin or a ref can't be read: nothing is
    touched then.
    """
    refuse_if_damaged(store.places)
    now_s = clock.wall_s()
    # A put is running: bytes that were brought in lately may be about to be named.
    is_busy = bool(names_in(store.places.staging))
    before_s = now_s - _TICK_S - (grace_s if is_busy else 0.0)
    buried = []
    for count, removal in enumerate(decision.removals, 1):
        record = _bury(store, removal)
        buried += [] if record is None else [record]
        on_removed(count)
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
    """Add up the blobs of the decision that stay for now: they are young, and a put is running.

    `leftovers` are the staging folders of dead processes, which are removed before.
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
    """Replace a record by its tombstone and return the record; nothing if it stays."""
    path = store.places.record(removal.key)
    record = store.peek(removal.key)
    try:
        last_used_s = os.stat(path).st_mtime
    except OSError:
        return None
    if isinstance(record, RecordMiss) or record.is_tombstone or last_used_s > removal.last_used_s:
        return None
    try:
        is_ours = store.swap(record, record.without_bytes(), used_s=removal.last_used_s)
        if is_ours:
            with contextlib.suppress(OSError):
                os.utime(path, (last_used_s, last_used_s))
    except NoSpace:
        # A full disk is when pruning matters: better to forget a result than to keep its bytes.
        is_ours = store.swap(record, None, used_s=removal.last_used_s)
    return record if is_ours else None


def _sweep(store: LocalStore, *, now_s: float, grace_s: float, gone: dict[Digest, float]) -> PruneResult:
    """Remove what no record names and is not young; `gone` has the time for what just lost its name."""
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
    return PruneResult(blobs=swept.blobs, blob_bytes=swept.blob_bytes, views=swept.views, stuck=tuple(swept.stuck))


class _Sweeping:
    """One sweep: what may be removed, and what was."""

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
        # By ctime: a writer may bring in files with old times.
        return info if info.st_ctime < self._gone.get(Digest(name), self._before_s) else None


_SHORTEST_PREFIX = 4


def resolve(store: LocalStore, text: str) -> list[Record]:
    """Return every record of the one tree that a name, or the prefix of a digest or a key, refers to.

    `NotFound`, `Ambiguous`, or `CorruptBytes` for a name that can't be read.
    """
    ref = find_ref(store.places, text)
    if ref is not None:
        if ref.damage:
            raise CorruptBytes(f"the ref {text} can't be read: {ref.damage}", hint="`stoker store verify` repairs it")
        record = store.peek(ref.key)
        if not isinstance(record, Record):
            raise CorruptBytes(f"the tree of {text} is gone", hint="put it again", digest=ref.digest)
        return [record]
    found = [] if len(text) < _SHORTEST_PREFIX else [
        record for record, _ in all_records(store) if record.digest.startswith(text) or record.key.startswith(text)
    ]  # fmt: skip
    trees = {record.digest for record in found}
    if len(trees) > 1:
        raise Ambiguous(f"{text!r} is the prefix of {len(trees)} digests", hint="type more of it")
    if not found:
        names = [ref.name for ref in list_refs(store.places)]
        hint = did_you_mean(text, names) or "`stoker store refs` lists stored trees, `stoker jobs` the jobs"
        raise NotFound(f"{text!r} not found in the store", hint=hint)
    return found
