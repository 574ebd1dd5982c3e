"""Check that stored bytes still have their digests: every record, every blob, every ref; all of it or a part at a time.

A part is a range of digests, so that part 1 to m of m together are everything, whatever comes and goes between the
runs. Damage is set aside with its reason, never deleted; a damaged ref is read back from the index.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterator
from enum import StrEnum

from stoker.core.clock import Clock
from stoker.core.digests import Digest, TreeEntry, is_digest
from stoker.core.errors import StokerError
from stoker.core.frozen import changed, frozen
from stoker.store.local_store import LocalStore, RecordHit, RecordMiss
from stoker.store.places import names_in, set_aside
from stoker.store.put import read_index
from stoker.store.refs import PUT, Ref, list_refs, ref_path, set_ref
from stoker.store.trees import Heed

_WHOLE = 1 << 64
_FORGIVEN_S = 1.0
_NAP_S = 0.1
_PART = re.compile(r"(\d{1,9})/(\d{1,9})", re.ASCII)
_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s*%", re.ASCII)


@frozen
class DigestSample:
    """A part of all digests: those whose first 64 bits, as a fraction of all, are in a range (it may wrap around)."""

    start: int
    width: int

    def takes(self, digest: str) -> bool:
        return (int(digest[:16], 16) - self.start) % _WHOLE < self.width


EVERYTHING = DigestSample(start=0, width=_WHOLE)


def part(number: int, of: int) -> DigestSample:
    """Return the n-th of m parts, counted from 1."""
    start = (number - 1) * _WHOLE // of
    return DigestSample(start=start, width=number * _WHOLE // of - start)


def read_sample(text: str, chance: int) -> DigestSample:
    """Read `3/20`, the third of twenty parts, or `5%`, a part that begins at `chance`; otherwise `ValueError`."""
    found = _PART.fullmatch(text.strip())
    if found and 1 <= int(found[1]) <= int(found[2]):
        return part(int(found[1]), int(found[2]))
    found = _SHARE.fullmatch(text.strip())
    if found and 0 < float(found[1]) <= 100:
        return DigestSample(start=chance % _WHOLE, width=max(1, int(_WHOLE * float(found[1]) / 100)))
    message = f"{text!r} is not a part; write for example 1/20 (the first of twenty) or 5%"
    raise ValueError(message)


class StoreItemType(StrEnum):
    """What was checked."""

    RESULT = "result"
    PUT = "put"
    """The record of a stored tree."""
    REF = "ref"
    BLOB = "blob"
    """One that no record names."""


@frozen
class StoreItemCheck:
    """Result of one check. `damage` is empty if all is well; what was damaged has been set aside."""

    what: StoreItemType
    key: Digest
    """Of a blob that no record names, its digest."""
    digest: Digest | None = None
    """That of the tree, if known."""
    damage: str
    stage: str = ""
    """The stage of a result, if known."""
    names: tuple[str, ...] = ()
    """A ref's own; of a stored tree, all its names."""


Checks = Generator[StoreItemCheck, None, None]


class Throttle:
    """Limits the rate to so many bytes a second, on average; waits by the clock. Calls `heed`, often while it waits.

    So a stop takes effect soon.
    """

    def __init__(self, bytes_per_s: int, clock: Clock, heed: Heed) -> None:
        self._bytes_per_s = bytes_per_s
        self._heed = heed
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._passed = 0

    def heed(self, size_bytes: int) -> None:
        """Wait until so many bytes more may pass."""
        self._heed(size_bytes)
        self._passed += size_bytes
        if self._ahead_s() < -_FORGIVEN_S:
            # Time that something else took is not made up for.
            self._began_s -= self._ahead_s() + _FORGIVEN_S
        while (ahead_s := self._ahead_s()) > 0:
            self._clock.sleep(min(ahead_s, _NAP_S))
            self._heed(0)

    def _ahead_s(self) -> float:
        return self._began_s + self._passed / self._bytes_per_s - self._clock.monotonic_s()


def bytes_to_check(store: LocalStore, sample: DigestSample) -> int:
    """Add up the blobs of a part."""
    return sum(size_bytes for digest, size_bytes in _blobs(store) if sample.takes(digest))


def check_store(store: LocalStore, *, afresh: DigestSample | None, heed: Heed, clock: Clock) -> Checks:
    """Check refs, records and blobs; yield each damaged ref, every record, each unnamed blob that is damaged.

    Blobs of the part `afresh` are hashed in any case, those that no record names as well. Without a part, blobs that
    changed since they were last hashed, or never were, are hashed; of every other blob name and size are checked.
    """
    yield from _check_refs(store, clock)
    refs = [ref for ref in list_refs(store.places) if not ref.damage]
    verdicts: dict[Digest, bool] = {}

    def holds(entry: TreeEntry) -> bool:
        if entry.sha256 not in verdicts:
            if afresh is None:
                verdicts[entry.sha256] = store.holds(entry)
            elif afresh.takes(entry.sha256):
                verdicts[entry.sha256] = store.holds(entry, heed=heed)
            else:
                verdicts[entry.sha256] = _size_of(store.places.blob(entry.sha256)) == entry.size_bytes
        return verdicts[entry.sha256]

    for shard in names_in(store.places.records):
        for name in names_in(os.path.join(store.places.records, shard)):
            if is_digest(name):
                checked = _check_record(store, Digest(name), verdicts, holds)
                yield _with_names(checked, [ref for ref in refs if ref.key == name]) if checked.damage else checked
    for digest, size_bytes in _blobs(store) if afresh is not None else ():
        if digest not in verdicts and afresh is not None and afresh.takes(digest):
            yield from _check_unnamed(store, digest, size_bytes, heed)


def _check_record(
    store: LocalStore, key: Digest, verdicts: dict[Digest, bool], holds: Callable[[TreeEntry], bool]
) -> StoreItemCheck:
    try:
        found = store.verify_record(key, holds=holds)
        if isinstance(found, RecordMiss):
            return StoreItemCheck(what=StoreItemType.RESULT, key=key, damage=found.damage)
        if found.lost:
            found = _look_again(store, key, found, verdicts)
    except StokerError as error:
        return StoreItemCheck(what=StoreItemType.RESULT, key=key, damage=f"it can't be read: {error}")
    damage = f"lost: {', '.join(found.lost)}" if found.lost else ""
    stage = str(found.record.body.get("stage", ""))
    if stage == PUT:
        return StoreItemCheck(what=StoreItemType.PUT, key=key, digest=found.record.digest, damage=damage)
    return StoreItemCheck(what=StoreItemType.RESULT, key=key, digest=found.record.digest, damage=damage, stage=stage)


def _with_names(checked: StoreItemCheck, refs: list[Ref]) -> StoreItemCheck:
    """Add the names of a stored tree; if its record can't be read, only they show that it was put."""
    if not refs:
        return checked
    return changed(checked, what=StoreItemType.PUT, digest=refs[0].digest, names=tuple(ref.name for ref in refs))


def _look_again(store: LocalStore, key: Digest, found: RecordHit, verdicts: dict[Digest, bool]) -> RecordHit:
    """Distinguish lost bytes from those that were pruned, or brought back, meanwhile."""
    now = store.peek(key)
    if isinstance(now, RecordMiss) or now.is_tombstone:
        return RecordHit(record=found.record)
    lost = []
    for entry in found.record.blobs():
        if not verdicts.get(entry.sha256, True):
            verdicts[entry.sha256] = store.holds(entry)
            lost += [] if verdicts[entry.sha256] else [entry.path]
    return RecordHit(record=found.record, lost=tuple(lost))


def _check_unnamed(store: LocalStore, digest: Digest, size_bytes: int, heed: Heed) -> Iterator[StoreItemCheck]:
    path = store.places.blob(digest)
    is_whole = store.holds(TreeEntry("no record names it", size_bytes, digest), heed=heed)
    if not is_whole and not os.path.lexists(path):
        # Set aside just now, or pruned meanwhile: only the former left a trace.
        traces = (name for name in names_in(store.places.quarantine) if name.startswith(digest))
        if next(traces, None) is None:
            return
    if not is_whole:
        yield StoreItemCheck(what=StoreItemType.BLOB, key=digest, damage="does not have the bytes it is named by")


def _check_refs(store: LocalStore, clock: Clock) -> Iterator[StoreItemCheck]:
    """Repair damaged refs, and report those whose tree is gone."""
    for ref in list_refs(store.places):
        damage = ref.damage
        if ref.damage:
            damage = f"{ref.damage}; {_mend(store, ref.name, clock)}"
        else:
            record = store.peek(ref.key)
            if isinstance(record, RecordMiss):
                damage = "its tree is gone"
            elif record.is_tombstone:
                damage = "the bytes of its tree were pruned"
        if damage:
            yield StoreItemCheck(
                what=StoreItemType.REF, key=ref.key, damage=damage, digest=ref.digest or None, names=(ref.name,)
            )


def _mend(store: LocalStore, name: str, clock: Clock) -> str:
    """Set a damaged ref aside and write it again from the index; return the result."""
    last: Ref | None = None
    for row in read_index(store.places):
        if row.fields.get("name") == name:
            try:
                last = Ref.from_json(row.fields) if row.fields.get("did") == PUT else None
            except ValueError:
                last = None
    if last is None:
        return "the index does not have its tree: put that again"
    path = ref_path(store.places, name)
    if not set_aside(path, store.places.quarantine, reason="a damaged ref", now_s=clock.wall_s()):
        return "it could not be set aside"
    set_ref(store.places, last, replace=True)
    return f"set aside, and repaired from the index: {last.digest[:12]}"


def _blobs(store: LocalStore) -> Iterator[tuple[Digest, int]]:
    for name, path in store.places.blob_files():
        size_bytes = _size_of(path) if is_digest(name) else None
        if size_bytes is not None:
            yield Digest(name), size_bytes


def _size_of(path: str) -> int | None:
    try:
        return os.lstat(path).st_size
    except OSError:
        return None
