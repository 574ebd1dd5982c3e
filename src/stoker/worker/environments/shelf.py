"""The folder of environments: which are ready, which can't be, who uses one. One small file decides: `ready.json`.

envs/KEY/ready.json      last of all, so an environment without it is none
envs/KEY/venv/           what uv made
envs/KEY/project/        the files that it was made from
envs/KEY/build/          where uv works as another user, while it does
envs/KEY/building.json   who makes it, and the process group of its uv
envs/KEY/in-use/         a mark for every process that runs in it
envs/locks/KEY           held while it is made or taken away
envs/impossible/NAME     why one can't be had here, as which user, and for which interpreters that was found
envs/interpreters.json   the machine's interpreters, as they were asked last
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from stoker.host.durable import read_regular, remove_tree, translated, write_file
from stoker.host.folders import names_in
from stoker.host.identity import ProcessIdentity
from stoker.host.use_marks import living_marks
from stoker.model.clock import Clock
from stoker.model.digests import digest_value, is_digest
from stoker.model.errors import StokerError
from stoker.model.frozen import fields_of, frozen
from stoker.model.json_text import dumps, loads
from stoker.model.platforms import Platform
from stoker.worker.environments.answers import Impossible, Ready

FORMAT = 1
_REFUSAL_FORMAT = 2
FORGET_S = 24 * 3600.0
"""What was impossible is tried again after so long."""
_LARGEST_BYTES = 4 << 20
_MOST_TOLD = 1000
_READ_BY_ALL = 0o755


@frozen
class Kept:
    """One environment that is there, for whoever prunes."""

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


class Shelf:
    """All environments of one machine."""

    def __init__(self, folder: str, *, clock: Clock) -> None:
        self.folder = folder
        self._clock = clock

    def place(self, key: str) -> str:
        """Give an environment's folder."""
        return os.path.join(self.folder, key)

    def make(self, key: str) -> None:
        """Make an environment's folder, which every user may read."""
        with translated(self.place(key)):
            os.makedirs(self.place(key), exist_ok=True)
            os.chmod(self.place(key), _READ_BY_ALL)

    def venv(self, key: str) -> str:
        """Give where its interpreter and packages are."""
        return os.path.join(self.folder, key, "venv")

    def lock_path(self, key: str) -> str:
        """Give the file that is locked while it is made."""
        return os.path.join(self.folder, "locks", key)

    def make_locks(self) -> None:
        """Make the folder of locks."""
        place = os.path.join(self.folder, "locks")
        with translated(place):
            os.makedirs(place, exist_ok=True)

    def find(self, digest: str, key: str) -> Ready | None:
        """Give an environment that is ready: named so, and with its interpreter."""
        ready = self._read(key)
        if ready is None or ready.digest != digest or not os.access(ready.interpreter, os.X_OK):
            return None
        return ready

    def keep(self, ready: Ready, *, user: str = "") -> None:
        """Say that an environment is there, after everything of it is; what was refused to its `user` is forgotten."""
        told = {"v": FORMAT, **fields_of(ready)}
        write_file(self._ready_path(ready.key), dumps(told, indent=1).encode())
        with suppress(OSError):
            os.unlink(self._impossible_path(ready.digest, user))

    def use(self, key: str) -> None:
        """Say that it is used now."""
        now_s = self._clock.wall_s()
        with suppress(OSError):
            os.utime(self._ready_path(key), (now_s, now_s))

    def used_s(self, key: str) -> float | None:
        """Give when an environment that is ready was used last."""
        try:
            return os.stat(self._ready_path(key)).st_mtime
        except OSError:
            return None

    def mark(self, key: str, owner: ProcessIdentity, name: str) -> None:
        """Say that a process runs in it: it is not taken away while that lives. `name` is unique to the use."""
        place = os.path.join(self.place(key), "in-use")
        with translated(place):
            os.makedirs(place, exist_ok=True)
        write_file(os.path.join(place, name), dumps(owner.to_dict()).encode())
        self.use(key)

    def unmark(self, key: str, name: str) -> None:
        """Say that it has ended."""
        with suppress(OSError):
            os.unlink(os.path.join(self.place(key), "in-use", name))

    def is_used(self, key: str) -> bool:
        """Whether a process that marked it may still run; marks of those that are gone are taken away."""
        return bool(living_marks(os.path.join(self.place(key), "in-use")))

    def refuse(self, found: Impossible, pythons: Sequence[str], *, user: str = "", for_s: float = FORGET_S) -> None:
        """Remember for a while that an environment can't be had with these interpreters by jobs of a user.

        The caller has verified the digest: every job that has it gets this answer. `user` is the number of another user
        that programs run as; empty: they run as the worker.
        """
        with translated(self.folder):
            os.makedirs(os.path.join(self.folder, "impossible"), exist_ok=True)
        told = {
            "v": _REFUSAL_FORMAT,
            "digest": found.digest,
            "user": user,
            "why": found.why,
            "pythons": list(pythons),
            "at_s": self._clock.wall_s(),
            "for_s": for_s,
        }
        write_file(self._impossible_path(found.digest, user), dumps(told).encode())

    def refused(self, digest: str, pythons: Sequence[str], *, user: str = "") -> Impossible | None:
        """Return why an environment can't be had; nothing if it may, or if that was long ago or with other Pythons."""
        told = self._refusal(self._impossible_path(digest, user))
        return _impossible(told, pythons, user) if told is not None and told["digest"] == digest else None

    def all_refused(self, pythons: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Return the environments that jobs of any of these users can't have, with the reason. Removes expired ones.

        `pythons` has the interpreters of each user, by its number; that of the worker itself is empty.
        """
        folder = os.path.join(self.folder, "impossible")
        refusals = []
        for name in self._names(folder):
            told = self._refusal(os.path.join(folder, name))
            if told is not None:
                refusals.append(told)
                continue
            with suppress(OSError):
                os.unlink(os.path.join(folder, name))
        known = (told for told in refusals if told["user"] in pythons)
        found = (_impossible(told, pythons[told["user"]], told["user"]) for told in known)
        whys = {one.digest: one.why for one in filter(None, found)}
        return dict(islice(whys.items(), _MOST_TOLD))

    def all_kept(self) -> list[Kept]:
        """Give every environment that is ready, the one used longest ago first."""
        return sorted(self._kept(), key=lambda one: one.used_s)

    def leftovers(self) -> list[str]:
        """Give the keys of folders that nobody finished."""
        return [name for name in self._names(self.folder) if not os.path.exists(self._ready_path(name))]

    def remove(self, key: str) -> bool:
        """Take an environment away: first its name, then its bytes. The caller holds its lock."""
        with suppress(OSError):
            os.unlink(self._ready_path(key))
        return remove_tree(self.place(key))

    def _kept(self) -> Iterator[Kept]:
        for key in self._names(self.folder):
            ready = self._read(key)
            if ready is None:
                continue
            used_s = self.used_s(key)
            if used_s is not None:
                yield Kept(
                    key=key,
                    digest=ready.digest,
                    version=ready.version,
                    packages=len(ready.packages),
                    size_bytes=ready.size_bytes,
                    seconds=ready.seconds,
                    used_s=used_s,
                )

    def _read(self, key: str) -> Ready | None:
        told = _object(self._ready_path(key))
        if told is None or told.pop("v", None) != FORMAT:
            return None
        try:
            ready = Ready(**{**told, "local": tuple(told["local"])})
        except (TypeError, KeyError):
            return None
        return ready if ready.key == key else None

    def _ready_path(self, key: str) -> str:
        return os.path.join(self.folder, key, "ready.json")

    def _impossible_path(self, digest: str, user: str) -> str:
        return os.path.join(self.folder, "impossible", str(digest_value("refusal", [digest, user])))

    def _refusal(self, path: str) -> dict[str, Any] | None:
        """Read a refusal that still holds."""
        told = _object(path)
        if told is None or told.get("v") != _REFUSAL_FORMAT:
            return None
        at_s, for_s = told.get("at_s"), told.get("for_s")
        if not isinstance(at_s, int | float) or not isinstance(for_s, int | float):
            return None
        is_whole = all(isinstance(told.get(name), str) for name in ("digest", "user", "why"))
        return told if is_whole and 0 <= self._clock.wall_s() - at_s < for_s else None

    def _names(self, folder: str) -> list[str]:
        return [name for name in names_in(folder) if is_digest(name)]


def _impossible(told: dict[str, Any], pythons: Sequence[str], user: str) -> Impossible | None:
    is_same = told["user"] == user and told.get("pythons") == list(pythons)
    return Impossible(digest=told["digest"], why=told["why"]) if is_same else None


def _object(path: str) -> dict[str, Any] | None:
    try:
        told = loads(read_regular(path, _LARGEST_BYTES))
    except (OSError, ValueError, StokerError):
        return None
    return told if isinstance(told, dict) else None
