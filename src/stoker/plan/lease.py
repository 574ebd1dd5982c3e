"""One execution per key across processes: a lease on each key being worked on. No lock outlives a moment.

A lease names its owner by process identity and is renewed while the work goes on. Others wait while the owner lives
and renews, and take over when it is gone or has been silent too long. An owner that was only slow is never called
failed: when it comes back its result is published like any other, and the first one wins.
"""

from __future__ import annotations

import os
from contextlib import suppress

from stoker.host.brief_lock import BriefLocks
from stoker.host.durable import translated
from stoker.host.identity import Liveness, ProcessIdentity, is_alive, mine
from stoker.model.clock import Clock
from stoker.model.digests import Digest
from stoker.model.errors import StokerError
from stoker.model.frozen import frozen
from stoker.model.json_text import dumps, loads

LEASE_S = 90.0
RENEW_EVERY_S = 30.0


@frozen
class Lease:
    """Who works on a key, and until when nobody else will."""

    owner: ProcessIdentity
    expires_s: float


@frozen
class Held:
    """Somebody else works on it."""

    owner: ProcessIdentity
    why: str


@frozen
class Free:
    """It may be taken; `why` says how it came to be free if someone had it."""

    why: str = ""


def decide_lease(current: Lease | None, *, me: ProcessIdentity, owner_liveness: Liveness, now_s: float) -> Held | Free:
    """Decide whether a key may be taken, from what its lease says and what is known of the owner."""
    if current is None:
        return Free()
    if current.owner == me:
        return Free(why="already mine")
    if owner_liveness is Liveness.GONE:
        return Free(why=f"process {current.owner.pid} is gone")
    if now_s >= current.expires_s:
        return Free(why=f"process {current.owner.pid} has not renewed it")
    # An owner that is known to live notices a changed clock itself, and renews.
    if owner_liveness is Liveness.UNKNOWN and current.expires_s - now_s > 2 * LEASE_S:
        return Free(why="it expires too far in the future: a clock was wrong")
    return Held(
        owner=current.owner, why=f"process {current.owner.pid} works on it: the same stage, with the same inputs"
    )


class LeaseBook:
    """The leases below one folder, as this process sees and takes them."""

    def __init__(self, folder: str, *, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._me = mine()
        self._owner_text = dumps(self._me.to_dict()).encode()
        self._mine: dict[Digest, float] = {}
        self._locks = BriefLocks()

    def take(self, key: Digest) -> Held | Free:
        """Try to get the lease on a key; `Free` means that it is ours now."""
        with self._locks.hold(self._shard(key)):
            if self._write(key, os.O_EXCL):
                return Free()
            current = self._read(key)
            liveness = is_alive(current.owner) if current else Liveness.GONE
            decision = decide_lease(current, me=self._me, owner_liveness=liveness, now_s=self._clock.wall_s())
            if isinstance(decision, Free):
                self._write(key, os.O_TRUNC)
            return decision

    def renew_due(self) -> None:
        """Renew what we hold and have not renewed for a while. Never raises: a lease only saves work."""
        now_s = self._clock.wall_s()
        for key, written_s in list(self._mine.items()):
            # In either direction: a clock that was set back must not keep us from renewing.
            if abs(now_s - written_s) >= RENEW_EVERY_S:
                with suppress(StokerError), self._locks.hold(self._shard(key)):
                    current = self._read(key)
                    # Somebody took it over while we were asleep: it is theirs now, and our result still counts.
                    if current is None or current.owner == self._me:
                        self._write(key, os.O_TRUNC)
                    else:
                        self._mine.pop(key, None)

    def give_back(self, key: Digest) -> None:
        """Let go of a key. Never raises: a lease that stays behind runs out."""
        written_s = self._mine.pop(key, None)
        if written_s is None:
            return
        with suppress(StokerError, OSError), self._locks.hold(self._shard(key)):
            # Nobody takes a lease from a living owner before it has run out.
            is_surely_mine = 0 <= self._clock.wall_s() - written_s < RENEW_EVERY_S
            current = None if is_surely_mine else self._read(key)
            if is_surely_mine or (current is not None and current.owner == self._me):
                os.unlink(self._path(key))

    def give_back_all(self) -> None:
        """Let go of everything, at the end of a run."""
        for key in list(self._mine):
            self.give_back(key)
        self._locks.close()

    def drop_dead(self, key: Digest) -> bool:
        """Remove a lease that protects nobody, without writing anything: it may be the disk that is full."""
        with suppress(StokerError, OSError), self._locks.hold(self._shard(key)):
            current = self._read(key)
            liveness = is_alive(current.owner) if current else Liveness.GONE
            if isinstance(
                decide_lease(current, me=self._me, owner_liveness=liveness, now_s=self._clock.wall_s()), Free
            ):
                os.unlink(self._path(key))
                return True
        return False

    def held(self) -> list[Digest]:
        """Give every key in the folder whose lease is live, whoever holds it."""
        now_s = self._clock.wall_s()
        live = []
        for name in os.listdir(self._folder) if os.path.isdir(self._folder) else ():
            if len(name) != 64:
                continue
            current = self._read(Digest(name))
            if current and now_s < current.expires_s and is_alive(current.owner) is not Liveness.GONE:
                live.append(Digest(name))
        return live

    def _read(self, key: Digest) -> Lease | None:
        try:
            with open(self._path(key), "rb") as file:
                raw = loads(file.read())
            return Lease(owner=ProcessIdentity.from_dict(raw["owner"]), expires_s=float(raw["expires_s"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # A lease that does not parse protects nobody: at worst the work is done twice and the first result wins.
            return None

    def _write(self, key: Digest, how: int) -> bool:
        """Write our lease; False if it must be new (O_EXCL) and there is one."""
        now_s = self._clock.wall_s()
        path = self._path(key)
        with translated(path):
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o644)
            except FileExistsError:
                return False
            try:
                os.write(descriptor, b'{"owner":%b,"expires_s":%d}' % (self._owner_text, now_s + LEASE_S))
            except OSError:
                os.unlink(path)
                raise
            finally:
                os.close(descriptor)
        self._mine[key] = now_s
        return True

    def _path(self, key: Digest) -> str:
        return f"{self._folder}/{key}"

    def _shard(self, key: Digest) -> str:
        return f"{self._folder}/.{key[0]}.lock"
