"""Environments taken away: what nobody finished, then those used longest ago, until the rest is small enough."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from stoker.host.lockfile import Lock
from stoker.model.clock import Clock
from stoker.model.errors import LockHeld
from stoker.model.frozen import frozen
from stoker.worker.environments.shelf import Kept, Shelf


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


def _take(shelf: Shelf, key: str, clock: Clock) -> bool:
    """Take one away, unless somebody makes it or has begun to use it since."""
    lock = Lock(shelf.lock_path(key), "takes an environment away", wait_s=0.0, clock=clock)
    try:
        shelf.make_locks()
        lock.acquire()
    except LockHeld:
        return False
    try:
        return not shelf.is_used(key) and shelf.remove(key)
    finally:
        lock.release()
