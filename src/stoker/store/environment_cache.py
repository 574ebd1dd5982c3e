"""The folder of environments: which are ready, which are impossible, which are in use. `ready.json` decides.

envs/KEY/ready.json      written last; without it there is no environment
envs/KEY/venv/           what uv made
envs/KEY/project/        the files that it was made from
envs/KEY/build/          where uv works as another user, while it does
envs/KEY/building.json   last line of the build, and the process group of its uv
envs/KEY/in-use/         a mark for every process that runs in it
envs/locks/KEY           held while it is built or deleted
envs/impossible/NAME     why one can't be built here, as which user, and for which interpreters
envs/interpreters.json   the machine's interpreters, as last detected
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from stoker.core.clock import Clock
from stoker.core.digests import Digest, digest_value, is_digest
from stoker.core.errors import LockHeld, StokerError
from stoker.core.frozen import fields_of, fresh, frozen
from stoker.core.jsontext import dumps, loads
from stoker.core.machine import Platform
from stoker.core.text import counted
from stoker.host.durable import read_regular, remove_tree, translated, write_file
from stoker.host.folders import names_in
from stoker.host.identity import ProcessIdentity
from stoker.host.locks import FileLock, is_locked, living_marks
from stoker.host.resources import folder_bytes
from stoker.store.prune import PruneCandidate, PruneDecision, decide_prune

# What becomes of an environment on this machine.


@frozen
class EnvironmentReady:
    """A ready environment."""

    digest: str
    """Of the choice; empty for the machine's own interpreter."""
    key: str
    """The name of its folder; empty for the machine's own interpreter."""
    interpreter: str
    version: str = ""
    base: str = ""
    """The machine's interpreter that it was made with."""
    packages: Mapping[str, str] = fresh(factory=dict)
    """Name → version."""
    local: tuple[str, ...] = ()
    """Folders of the project's other packages, below the project."""
    uv: str = ""
    seconds: float = 0.0
    """How long its build took."""
    size_bytes: int = 0

    def python_path(self, workspace: str) -> tuple[str, ...]:
        """Return the `PYTHONPATH` entries of a workspace's own packages, each once."""
        found = []
        for folder in (".", *self.local):
            top = os.path.normpath(os.path.join(workspace, folder))
            inner = os.path.join(top, "src")
            found += [inner, top] if os.path.isdir(inner) else [top]
        return tuple(dict.fromkeys(found))

    def facts(self) -> dict[str, Any]:
        """Return what a result records of its environment: interpreter and packages."""
        facts: dict[str, Any] = {"interpreter": self.interpreter, "python": self.version}
        if self.digest:
            facts |= {"environment": self.digest, "uv": self.uv}
        return {**facts, "packages": dict(self.packages)}


@frozen
class EnvironmentImpossible:
    """An environment that can't be built on this machine."""

    digest: str
    why: str


@frozen
class EnvironmentFailed:
    """A build failed for a reason that may pass, such as network or disk. Another machine may succeed."""

    digest: str
    why: str


EnvironmentAnswer = EnvironmentReady | EnvironmentImpossible | EnvironmentFailed


FORMAT = 1
_REFUSAL_FORMAT = 2
FORGET_S = 24 * 3600.0
"""An impossible environment is tried again after so long."""
_LARGEST_BYTES = 4 << 20
_MOST_REFUSALS = 1000
_READ_BY_ALL = 0o755


@frozen
class CachedEnvironment:
    """One ready environment, for `prune`."""

    key: str
    digest: str
    version: str
    """Of its Python."""
    packages: int
    size_bytes: int
    seconds: float
    used_s: float
    """When it was used last."""


def key_of(digest: str, platform: Platform, *, is_for_others: bool = False) -> str:
    """Name an environment on machines of a platform. Its files, its Python and our recipe are in the digest.

    Those for programs of other users are made in another way, of interpreters that are open to them.
    """
    parts = [digest, platform.name, platform.libc.partition(" ")[0], *(["others"] if is_for_others else [])]
    return str(digest_value("environment", parts))


class EnvironmentCache:
    """All environments of one machine."""

    def __init__(self, folder: str, *, clock: Clock) -> None:
        self.folder = folder
        self._clock = clock

    def place(self, key: str) -> str:
        """Return an environment's folder."""
        return os.path.join(self.folder, key)

    def make(self, key: str) -> None:
        """Make an environment's folder, which every user may read."""
        with translated(self.place(key)):
            os.makedirs(self.place(key), exist_ok=True)
            os.chmod(self.place(key), _READ_BY_ALL)

    def venv(self, key: str) -> str:
        """Return where its interpreter and packages are."""
        return os.path.join(self.folder, key, "venv")

    def lock_path(self, key: str) -> str:
        """Return the file that is locked while it is made."""
        return os.path.join(self.folder, "locks", key)

    def make_locks(self) -> None:
        """Make the folder of locks."""
        place = os.path.join(self.folder, "locks")
        with translated(place):
            os.makedirs(place, exist_ok=True)

    def find(self, digest: str, key: str) -> EnvironmentReady | None:
        """Return an environment that is ready: named so, and with its interpreter."""
        ready = self._read(key)
        if ready is None or ready.digest != digest or not os.access(ready.interpreter, os.X_OK):
            return None
        return ready

    def keep(self, ready: EnvironmentReady, *, user: str = "") -> None:
        """Mark an environment as ready, after all its files are there; delete its refusal for `user`."""
        record = {"v": FORMAT, **fields_of(ready)}
        write_file(self._ready_path(ready.key), dumps(record, indent=1).encode())
        with suppress(OSError):
            os.unlink(self._impossible_path(ready.digest, user))

    def use(self, key: str) -> None:
        """Record that it is used now."""
        now_s = self._clock.wall_s()
        with suppress(OSError):
            os.utime(self._ready_path(key), (now_s, now_s))

    def used_s(self, key: str) -> float | None:
        """Return when an environment that is ready was used last."""
        try:
            return os.stat(self._ready_path(key)).st_mtime
        except OSError:
            return None

    def mark(self, key: str, owner: ProcessIdentity, name: str) -> None:
        """Record that a process runs in it: it is not deleted while that lives. `name` is unique to the use."""
        place = os.path.join(self.place(key), "in-use")
        with translated(place):
            os.makedirs(place, exist_ok=True)
        write_file(os.path.join(place, name), dumps(owner.to_dict()).encode())
        self.use(key)

    def unmark(self, key: str, name: str) -> None:
        """Delete the mark of a process."""
        with suppress(OSError):
            os.unlink(os.path.join(self.place(key), "in-use", name))

    def is_used(self, key: str) -> bool:
        """Return True if a process that marked it may still run; delete marks of those that are gone."""
        return bool(living_marks(os.path.join(self.place(key), "in-use")))

    def refuse(
        self, found: EnvironmentImpossible, pythons: Sequence[str], *, user: str = "", for_s: float = FORGET_S
    ) -> None:
        """Remember for a while that an environment can't be built with these interpreters for jobs of a user.

        The caller has verified the digest: every job that has it gets this answer. `user` is the number of another user
        that programs run as; empty: they run as the worker.
        """
        with translated(self.folder):
            os.makedirs(os.path.join(self.folder, "impossible"), exist_ok=True)
        refusal = {
            "v": _REFUSAL_FORMAT,
            "digest": found.digest,
            "user": user,
            "why": found.why,
            "pythons": list(pythons),
            "at_s": self._clock.wall_s(),
            "for_s": for_s,
        }
        write_file(self._impossible_path(found.digest, user), dumps(refusal).encode())

    def refused(self, digest: str, pythons: Sequence[str], *, user: str = "") -> EnvironmentImpossible | None:
        """Return why an environment can't be built; None if no refusal is valid for these Pythons."""
        refusal = self._refusal(self._impossible_path(digest, user))
        return _impossible(refusal, pythons, user) if refusal is not None and refusal["digest"] == digest else None

    def all_refused(self, pythons: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Return the environments impossible for jobs of any of these users, with the reason. Deletes expired ones.

        `pythons` has the interpreters of each user, by its number; that of the worker itself is empty.
        """
        folder = os.path.join(self.folder, "impossible")
        refusals = []
        for name in self._names(folder):
            refusal = self._refusal(os.path.join(folder, name))
            if refusal is not None:
                refusals.append(refusal)
                continue
            with suppress(OSError):
                os.unlink(os.path.join(folder, name))
        known = (refusal for refusal in refusals if refusal["user"] in pythons)
        found = (_impossible(refusal, pythons[refusal["user"]], refusal["user"]) for refusal in known)
        whys = {one.digest: one.why for one in filter(None, found)}
        return dict(islice(whys.items(), _MOST_REFUSALS))

    def all_kept(self) -> list[CachedEnvironment]:
        """Return every environment that is ready, the one used longest ago first."""
        return sorted(self._kept(), key=lambda one: one.used_s)

    def leftovers(self) -> list[str]:
        """Return the keys of unfinished folders."""
        return [name for name in self._names(self.folder) if not os.path.exists(self._ready_path(name))]

    def remove(self, key: str) -> bool:
        """Delete an environment: first its name, then its bytes. The caller holds its lock."""
        with suppress(OSError):
            os.unlink(self._ready_path(key))
        return remove_tree(self.place(key))

    def _kept(self) -> Iterator[CachedEnvironment]:
        for key in self._names(self.folder):
            ready = self._read(key)
            if ready is None:
                continue
            used_s = self.used_s(key)
            if used_s is not None:
                yield CachedEnvironment(
                    key=key,
                    digest=ready.digest,
                    version=ready.version,
                    packages=len(ready.packages),
                    size_bytes=ready.size_bytes,
                    seconds=ready.seconds,
                    used_s=used_s,
                )

    def _read(self, key: str) -> EnvironmentReady | None:
        fields = _object(self._ready_path(key))
        if fields is None or fields.pop("v", None) != FORMAT:
            return None
        try:
            ready = EnvironmentReady(**{**fields, "local": tuple(fields["local"])})
        except (TypeError, KeyError):
            return None
        return ready if ready.key == key else None

    def _ready_path(self, key: str) -> str:
        return os.path.join(self.folder, key, "ready.json")

    def _impossible_path(self, digest: str, user: str) -> str:
        return os.path.join(self.folder, "impossible", str(digest_value("refusal", [digest, user])))

    def _refusal(self, path: str) -> dict[str, Any] | None:
        """Read a refusal that has not expired."""
        refusal = _object(path)
        if refusal is None or refusal.get("v") != _REFUSAL_FORMAT:
            return None
        at_s, for_s = refusal.get("at_s"), refusal.get("for_s")
        if not isinstance(at_s, int | float) or not isinstance(for_s, int | float):
            return None
        is_whole = all(isinstance(refusal.get(name), str) for name in ("digest", "user", "why"))
        return refusal if is_whole and 0 <= self._clock.wall_s() - at_s < for_s else None

    def _names(self, folder: str) -> list[str]:
        return [name for name in names_in(folder) if is_digest(name)]


def _impossible(refusal: dict[str, Any], pythons: Sequence[str], user: str) -> EnvironmentImpossible | None:
    is_same = refusal["user"] == user and refusal.get("pythons") == list(pythons)
    return EnvironmentImpossible(digest=refusal["digest"], why=refusal["why"]) if is_same else None


def _object(path: str) -> dict[str, Any] | None:
    try:
        value = loads(read_regular(path, _LARGEST_BYTES))
    except (OSError, ValueError, StokerError):
        return None
    return value if isinstance(value, dict) else None


# Prune environments: unfinished ones, then the least recently used, until the rest is small enough.

_MOMENT_S = 60.0
"""A process that got an environment so recently may be about to mark it as in use."""


def prune(shelf: EnvironmentCache, *, keep_bytes: int, clock: Clock) -> EnvironmentPruneResult:
    """Delete the least recently used environments beyond `keep_bytes`; those in use, or being built, stay."""
    return drop(shelf, offer(shelf, now_s=clock.wall_s(), max_bytes=keep_bytes, older_than_s=None), clock=clock)


@frozen
class EnvironmentPrunePlan:
    """What a prune would delete here."""

    decision: PruneDecision
    leftovers: tuple[str, ...] = ()
    """Keys of unfinished folders that no process is building."""
    leftover_bytes: int = 0

    @property
    def is_none(self) -> bool:
        return not (self.decision.removals or self.leftovers)

    @property
    def freed_bytes(self) -> int:
        return self.decision.freed_bytes + self.leftover_bytes


@frozen
class EnvironmentPruneResult:
    """The result of a prune."""

    freed_bytes: int = 0
    stuck: tuple[str, ...] = ()
    """What could not be removed, and why."""


def offer(
    shelf: EnvironmentCache, *, now_s: float, max_bytes: int | None, older_than_s: float | None
) -> EnvironmentPrunePlan:
    """Return what a prune would delete, by the rule for results, except what is in use. Deletes nothing."""
    decision = decide_prune(
        (_candidate(shelf, one, now_s) for one in shelf.all_kept()),
        now_s=now_s,
        max_bytes=max_bytes,
        older_than_s=older_than_s,
    )
    leftovers = tuple(key for key in shelf.leftovers() if not is_locked(shelf.lock_path(key)))
    leftover_bytes = sum(folder_bytes(shelf.place(key)) for key in leftovers)
    return EnvironmentPrunePlan(decision=decision, leftovers=leftovers, leftover_bytes=leftover_bytes)


def drop(shelf: EnvironmentCache, offered: EnvironmentPrunePlan, *, clock: Clock) -> EnvironmentPruneResult:
    """Delete what was offered, except what is being built or was used since."""
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
    return EnvironmentPruneResult(freed_bytes=freed_bytes, stuck=tuple(stuck))


def label_of(one: CachedEnvironment) -> str:
    """Return what an environment is, for people."""
    return f"Python {one.version}, {counted(one.packages, 'package')}"


def _candidate(shelf: EnvironmentCache, one: CachedEnvironment, now_s: float) -> PruneCandidate:
    kept = "in use by a job" if shelf.is_used(one.key) else ""
    if not kept and 0 <= now_s - one.used_s < _MOMENT_S:
        kept = "used a moment ago"
    return PruneCandidate(
        key=Digest(one.key),
        last_used_s=one.used_s,
        blobs=(),
        inline_bytes=one.size_bytes,
        label=label_of(one),
        is_kept=kept,
    )


def _take(shelf: EnvironmentCache, key: str, clock: Clock, *, used_s: float | None = None) -> bool:
    """Delete one, unless it is being built, in use, or was used after `used_s` (if given)."""
    lock = FileLock(shelf.lock_path(key), "takes an environment away", wait_s=0.0, clock=clock)
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
