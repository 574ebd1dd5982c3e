"""Environments taken away: what nobody finished, then those used longest ago, until the rest is small enough."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from stoker.host.disk import folder_bytes
from stoker.host.lockfile import Lock, is_locked
from stoker.model.clock import Clock
from stoker.model.digests import Digest
from stoker.model.errors import LockHeld, StokerError
from stoker.model.frozen import frozen
from stoker.store.retention import Candidate, PruneDecision, decide_prune
from stoker.worker.environments.shelf import Kept, Shelf

_MOMENT_S = 60.0
"""Whoever was given an environment so short a time ago may be about to mark it as in use."""


@frozen
class Pruned:
    """What went."""

    keys: tuple[str, ...] = ()
    freed_bytes: int = 0
    kept_bytes: int = 0


def too_much(kept: Sequence[Kept], used: Container[str], keep_bytes: int) -> Iterator[Kept]:
    """Give those that go so that the rest takes at most `keep_bytes`; `kept` has the longest unused first.

    Those whose keys are in `used` stay, and take their part of it.
    """
    total_bytes = sum(one.size_bytes for one in kept)
    for one in kept:
        if total_bytes <= keep_bytes:
            return
        if one.key not in used:
            yield one
            total_bytes -= one.size_bytes


def prune(shelf: Shelf, *, keep_bytes: int, clock: Clock) -> Pruned:
    """Take away what is too much. What is in use, or being made, stays."""
    gone = [key for key in shelf.leftovers() if _take(shelf, key, clock)]
    freed_bytes = 0
    kept = shelf.all_kept()
    used = {one.key for one in kept if shelf.is_used(one.key)}
    for one in too_much(kept, used, keep_bytes):
        if _take(shelf, one.key, clock):
            gone.append(one.key)
            freed_bytes += one.size_bytes
    kept_bytes = sum(one.size_bytes for one in shelf.all_kept())
    return Pruned(keys=tuple(gone), freed_bytes=freed_bytes, kept_bytes=kept_bytes)


@frozen
class Offer:
    """What a prune would take away here."""

    decision: PruneDecision
    leftovers: tuple[str, ...] = ()
    """Keys of folders that nobody finished, and nobody is at."""
    leftover_bytes: int = 0

    @property
    def is_none(self) -> bool:
        return not (self.decision.removals or self.leftovers)

    @property
    def freed_bytes(self) -> int:
        return self.decision.freed_bytes + self.leftover_bytes


@frozen
class Dropped:
    """What became of an offer."""

    freed_bytes: int = 0
    stuck: tuple[str, ...] = ()
    """What could not be removed, and why."""


def offer(shelf: Shelf, *, now_s: float, max_bytes: int | None, older_than_s: float | None) -> Offer:
    """Say which environments a prune would take, by the rule for results. None that is in use; nothing is removed."""
    decision = decide_prune(
        (_candidate(shelf, one, now_s) for one in shelf.all_kept()),
        now_s=now_s,
        max_bytes=max_bytes,
        older_than_s=older_than_s,
    )
    leftovers = tuple(key for key in shelf.leftovers() if not is_locked(shelf.lock_path(key)))
    leftover_bytes = sum(folder_bytes(shelf.place(key)) for key in leftovers)
    return Offer(decision=decision, leftovers=leftovers, leftover_bytes=leftover_bytes)


def drop(shelf: Shelf, offered: Offer, *, clock: Clock) -> Dropped:
    """Take away what was offered; what somebody makes, or has used since, stays."""
    freed_bytes = 0
    stuck = []
    sizes = {key: folder_bytes(shelf.place(key)) for key in offered.leftovers}
    sizes |= {one.key: one.freed_bytes for one in offered.decision.removals}
    as_offered = {one.key: one.last_used_s for one in offered.decision.removals}
    for key, size_bytes in sizes.items():
        try:
            freed_bytes += size_bytes if _take(shelf, key, clock, used_s=as_offered.get(Digest(key))) else 0
        except StokerError as error:
            stuck.append(str(error))
    return Dropped(freed_bytes=freed_bytes, stuck=tuple(stuck))


def label_of(one: Kept) -> str:
    """Say what an environment is, for people."""
    return f"Python {one.version}, {one.packages} package{'' if one.packages == 1 else 's'}"


def _candidate(shelf: Shelf, one: Kept, now_s: float) -> Candidate:
    kept = "in use by a job" if shelf.is_used(one.key) else ""
    if not kept and 0 <= now_s - one.used_s < _MOMENT_S:
        kept = "used a moment ago"
    return Candidate(
        key=Digest(one.key),
        last_used_s=one.used_s,
        blobs=(),
        inline_bytes=one.size_bytes,
        label=label_of(one),
        is_kept=kept,
    )


def _take(shelf: Shelf, key: str, clock: Clock, *, used_s: float | None = None) -> bool:
    """Take one away, unless somebody makes it or has begun to use it since: after `used_s`, if that is told."""
    lock = Lock(shelf.lock_path(key), "takes an environment away", wait_s=0.0, clock=clock)
    try:
        shelf.make_locks()
        lock.acquire()
    except LockHeld:
        return False
    try:
        if used_s is not None and shelf.used_s(key) != used_s:
            return False
        return not shelf.is_used(key) and shelf.remove(key)
    finally:
        lock.release()
