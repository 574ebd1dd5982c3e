"""One execution per key across processes: a lease on each key being worked on. No lock outlives a moment.

A lease names its owner by process identity and is renewed while the work runs. Others wait while the owner lives
and renews, and take over when it is gone or has been silent too long. An owner that was only slow is never called
failed: when it comes back its result is published like any other, and the first one wins.
"""

from __future__ import annotations

import os
from contextlib import suppress

from stoker.core.clock import Clock
from stoker.core.digests import Digest
from stoker.core.errors import StokerError
from stoker.core.frozen import changeable, frozen
from stoker.core.jsontext import dumps, loads
from stoker.core.text import format_duration, one_line
from stoker.host.durable import translated
from stoker.host.identity import Liveness, ProcessIdentity, is_alive, mine
from stoker.host.locks import BriefLocks

LEASE_S = 90.0
RENEW_EVERY_S = 30.0
_LONGEST_WORK = 200


@frozen
class KeyLease:
    """Who works on a key, and until when no other process will."""

    owner: ProcessIdentity
    expires_s: float
    since_s: float | None = None
    work: str = ""
    """What it is there, by its job and stage."""


@frozen
class KeyHeld:
    """Another process works on it."""

    who: str
    """The same as long as that one has it."""
    why: str
    """Who, what, and for how long by now."""


@frozen
class KeyFree:
    """It may be taken; `why` says how it came to be free if someone had it."""

    why: str = ""


def decide_lease(
    current: KeyLease | None, *, me: ProcessIdentity, owner_liveness: Liveness, now_s: float
) -> KeyHeld | KeyFree:
    """Decide whether a key may be taken, from what its lease says and what is known of the owner."""
    if current is None:
        return KeyFree()
    if current.owner == me:
        return KeyFree(why="already mine")
    if owner_liveness is Liveness.GONE:
        return KeyFree(why=f"process {current.owner.pid} is gone")
    if now_s >= current.expires_s:
        return KeyFree(why=f"process {current.owner.pid} has not renewed it")
    # An owner that is known to live notices a changed clock itself, and renews.
    if owner_liveness is Liveness.UNKNOWN and current.expires_s - now_s > 2 * LEASE_S:
        return KeyFree(why="it expires too far in the future: a clock was wrong")
    who = f"process {current.owner.pid}{f' ({current.work})' if current.work else ''}"
    works = "works on it"
    if current.since_s is not None:
        works = f"has been running it for {format_duration(max(0.0, now_s - current.since_s))}"
    return KeyHeld(who=who, why=f"{who} {works}: the same stage, with the same inputs")


@changeable
class _Mine:
    """A lease that we hold."""

    since_s: float
    work: str
    written_s: float


class KeyLeases:
    """The leases below one folder, as this process sees and takes them."""

    def __init__(self, folder: str, *, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._me = mine()
        self._owner_text = dumps(self._me.to_dict()).encode()
        self._mine: dict[Digest, _Mine] = {}
        self._locks = BriefLocks()

    def take(self, key: Digest, work: str = "") -> KeyHeld | KeyFree:
        """Try to get the lease on a key, for some work; `KeyFree` means that it is ours now."""
        with self._locks.hold(self._shard(key)):
            if self._write(key, os.O_EXCL, work):
                return KeyFree()
            current = self._read(key)
            liveness = is_alive(current.owner) if current else Liveness.GONE
            decision = decide_lease(current, me=self._me, owner_liveness=liveness, now_s=self._clock.wall_s())
            if isinstance(decision, KeyFree):
                self._write(key, os.O_TRUNC, work)
            return decision

    def renew_due(self) -> None:
        """Renew what we hold and have not renewed for a while. Never raises: a lease only saves work."""
        now_s = self._clock.wall_s()
        for key, held in list(self._mine.items()):
            # In either direction: a clock that was set back must not keep us from renewing.
            if abs(now_s - held.written_s) >= RENEW_EVERY_S:
                with suppress(StokerError), self._locks.hold(self._shard(key)):
                    current = self._read(key)
                    # Another process took it over while we slept: it has the lease now, and our result still counts.
                    if current is None or current.owner == self._me:
                        self._write(key, os.O_TRUNC, held.work)
                    else:
                        self._mine.pop(key, None)

    def give_back(self, key: Digest) -> None:
        """Release a key. Never raises: a lease that is left expires."""
        held = self._mine.pop(key, None)
        if held is None:
            return
        with suppress(StokerError, OSError), self._locks.hold(self._shard(key)):
            # No process takes a lease from a living owner before it has expired.
            is_surely_mine = 0 <= self._clock.wall_s() - held.written_s < RENEW_EVERY_S
            current = None if is_surely_mine else self._read(key)
            if is_surely_mine or (current is not None and current.owner == self._me):
                os.unlink(self._path(key))

    def give_back_all(self) -> None:
        """Release all keys, at the end of a run."""
        for key in list(self._mine):
            self.give_back(key)
        self._locks.close()

    def drop_dead(self, key: Digest) -> bool:
        """Remove a lease without a living owner, without writing anything: it may be the disk that is full."""
        with suppress(StokerError, OSError), self._locks.hold(self._shard(key)):
            current = self._read(key)
            liveness = is_alive(current.owner) if current else Liveness.GONE
            if isinstance(
                decide_lease(current, me=self._me, owner_liveness=liveness, now_s=self._clock.wall_s()), KeyFree
            ):
                os.unlink(self._path(key))
                return True
        return False

    def held(self) -> list[Digest]:
        """Return every key in the folder whose lease is live, of any process."""
        now_s = self._clock.wall_s()
        live = []
        for name in os.listdir(self._folder) if os.path.isdir(self._folder) else ():
            if len(name) != 64:
                continue
            current = self._read(Digest(name))
            if current and now_s < current.expires_s and is_alive(current.owner) is not Liveness.GONE:
                live.append(Digest(name))
        return live

    def _read(self, key: Digest) -> KeyLease | None:
        try:
            with open(self._path(key), "rb") as file:
                raw = loads(file.read())
            since_s = raw.get("since_s")
            return KeyLease(
                owner=ProcessIdentity.from_dict(raw["owner"]),
                expires_s=float(raw["expires_s"]),
                since_s=None if since_s is None else float(since_s),
                work=one_line(str(raw.get("work", "")), _LONGEST_WORK),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # A lease that does not parse is free: at worst the work is done twice and the first result wins.
            return None

    def _write(self, key: Digest, how: int, work: str) -> bool:
        """Write our lease; False if it must be new (O_EXCL) and there is one."""
        now_s = self._clock.wall_s()
        before = self._mine.get(key)
        held = _Mine(since_s=now_s if before is None else before.since_s, work=work, written_s=now_s)
        path = self._path(key)
        with translated(path):
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o644)
            except FileExistsError:
                return False
            try:
                form = b'{"owner":%b,"expires_s":%d,"since_s":%d,"work":%b}'
                os.write(descriptor, form % (self._owner_text, now_s + LEASE_S, held.since_s, dumps(work).encode()))
            except OSError:
                os.unlink(path)
                raise
            finally:
                os.close(descriptor)
        self._mine[key] = held
        return True

    def _path(self, key: Digest) -> str:
        return f"{self._folder}/{key}"

    def _shard(self, key: Digest) -> str:
        return f"{self._folder}/.{key[0]}.lock"
