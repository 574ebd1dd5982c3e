"""One writer at a time for one file: by its lock, or, without locks, by claiming the partial file by name.

The lock file is beside the file while it is held, and is deleted on release; the next process deletes the leftover of a
killed one (`sweep_lock`). Waiting for it has a timeout. Locks of some file systems have no effect, so a held lock is
not enough: a partial file whose recorded writer is alive is left to that writer. If the system refuses locks, the
partial file is renamed to a name with its owner in it. Only one of several processes succeeds, and a claim of a dead
process of this host is taken over. On an orderly exit the claim is renamed back.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from types import TracebackType
from typing import Self

from stoker.core.clock import Clock
from stoker.core.digests import digest_bytes
from stoker.core.errors import LocalFile, LockHeld, StokerError
from stoker.host.folders import AnchoredFolder
from stoker.host.identity import Liveness, ProcessIdentity, is_alive, mine
from stoker.host.locks import FileLock
from stoker.transfer.download.download_events import DownloadEvents
from stoker.transfer.download.partial import CLAIM_TAG, LOCK, PART, SIDECAR, Sidecar, beside, read_beside
from stoker.transfer.download.types import DownloadStop

WATCH_S = 3.0
"""How long a partial file must be unchanged before it is taken from a writer whose state is unknown."""
_PAUSE_S = 0.1
_NO_LOCKS = frozenset({"ENOSYS", "ENOLCK", "EOPNOTSUPP", "ENOTSUP"})


class PartialFileLock:
    """The right to write the partial file of one file, during a with-block. Raises `LockHeld` after the timeout."""

    def __init__(self, folder: AnchoredFolder, leaf: str, *, lock_path: str, wait_s: float, name: str = "") -> None:
        """`name` is the file's name in messages."""
        self._folder = folder
        self._name = name or leaf
        self._leaf = leaf
        self._wait_s = wait_s
        self._lock_path = lock_path or folder.path_of(beside(leaf, LOCK))
        self._removes_lock = not lock_path
        # Beside the file it is in a user's folder, and is deleted after the work; elsewhere other processes may use it
        # too.
        self._lock = FileLock(
            self._lock_path,
            f"fetch {leaf}",
            wait_s=0.0,
            dir_fd=None if lock_path else folder.descriptor,
            removes_file=self._removes_lock,
        )
        self.names = (beside(leaf, PART), beside(leaf, SIDECAR))
        """Names of the partial file and its sidecar."""
        self._has_claim = False

    def take(self, *, clock: Clock, stop: DownloadStop, teller: DownloadEvents) -> Self:
        """Take it; wait until a timeout, and emit an event about that."""
        deadline_s = clock.monotonic_s() + self._wait_s
        is_reported = False
        while True:
            try:
                self._try(clock, stop)
            except LockHeld as error:
                stop.check()
                left_s = deadline_s - clock.monotonic_s()
                if left_s <= 0:
                    raise
                if not is_reported:
                    teller.waiting(self._lock_path, error.message)
                    is_reported = True
                clock.sleep(min(_PAUSE_S, left_s))
            else:
                return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._has_claim:
            self._give_back()
        self._lock.release()

    def _try(self, clock: Clock, stop: DownloadStop) -> None:
        try:
            self._lock.acquire(0.0, clock)
        except LockHeld as error:
            raise LockHeld(self._who_fetches(error.data.get("owner")), hint=error.hint, **error.data) from None
        except LocalFile as error:
            if error.data.get("errno") not in _NO_LOCKS:
                raise
            self._claim()
            return
        try:
            self._refuse_living_writer(clock, stop)
        except BaseException:
            self._lock.release()
            raise

    def _refuse_living_writer(self, clock: Clock, stop: DownloadStop) -> None:
        """Raise if the writer in the sidecar is alive although we hold the lock: then the lock has no effect."""
        record = read_beside(self._folder, self.names[1])
        if not isinstance(record, Sidecar) or record.writer is None or record.writer == mine():
            return
        state = is_alive(record.writer)
        if state is Liveness.UNKNOWN:
            before = self._folder.look(self.names[0])
            if before is None:
                return
            stop.sleep(WATCH_S, clock)
            after = self._folder.look(self.names[0])
            if after is None or (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns):
                return
        if state is not Liveness.GONE:
            sidecar = self._folder.path_of(self.names[1])
            hint = f"wait for that process, or stop it; if it does not download this file, delete {sidecar}"
            raise self._held(f"process {record.writer.pid} on {record.writer.host} is writing it", hint)

    def _claim(self) -> None:
        own = _tag_of(mine())
        names = (beside(self._leaf, f"{PART}.{own}"), beside(self._leaf, f"{PART}.{own}.json"))
        claims = [(name, tag, _is_alive(tag)) for name, tag in self._claims()]
        for _, tag, state in claims:
            if state is Liveness.ALIVE:
                raise self._held(f"process {tag[4]} has claimed it")
        takeable = [name for name, _, state in claims if state is Liveness.GONE]
        for name in (self.names[0], *takeable):
            if self._rename(name, names[0]):
                sidecar = self.names[1] if name == self.names[0] else f"{name}.json"
                self._rename(sidecar, names[1])
                break
        self.names = names
        self._has_claim = True
        self._remove_useless_lock()

    def _remove_useless_lock(self) -> None:
        """Delete the lock file that was made before the system refused to lock it."""
        name = beside(self._leaf, LOCK)
        info = self._folder.look(name) if self._removes_lock else None
        if info is not None and stat.S_ISREG(info.st_mode) and not info.st_size:
            self._folder.remove(name)

    def _claims(self) -> list[tuple[str, re.Match[str]]]:
        prefix = beside(self._leaf, f"{PART}.")
        found = []
        for name in self._folder.names():
            tag = CLAIM_TAG.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
            if tag is not None:
                found.append((name, tag))
        return found

    def _give_back(self) -> None:
        common = (beside(self._leaf, PART), beside(self._leaf, SIDECAR))
        if self._rename(self.names[0], common[0]):
            self._rename(self.names[1], common[1])
        self._has_claim = False

    def _rename(self, old: str, new: str) -> bool:
        try:
            self._folder.rename(old, new)
        except LocalFile as error:
            if error.data.get("errno") != "ENOENT":
                raise
            return False
        return True

    def _who_fetches(self, owner: object) -> str:
        if not isinstance(owner, dict):
            return f"another process is downloading {self._name}"
        where = "" if owner["host"] == mine().host else f" on {owner['host']}"
        return f"another process ({owner['pid']}{where}) is downloading {self._name}"

    def _held(self, why: str, hint: str = "wait for that process, or stop it") -> LockHeld:
        path = self._folder.path_of(self.names[0])
        return LockHeld(f"in use: {path}: {why}", hint=hint, path=path)


def sweep_lock(folder: AnchoredFolder, leaf: str) -> None:
    """Delete the lock file that a killed process left beside a finished file, unless it is held or is not a lock."""
    name = beside(leaf, LOCK)
    if folder.look(name) is not None:
        lock = FileLock(folder.path_of(name), f"sweep {leaf}", wait_s=0.0, dir_fd=folder.descriptor, removes_file=True)
        with suppress(StokerError), lock:
            pass


def _tag_of(identity: ProcessIdentity) -> str:
    parts = (identity.host, identity.boot_id, identity.pid_space)
    return "-".join([*(_short(part) for part in parts), str(identity.pid), str(identity.start_ticks)])


def _short(text: str) -> str:
    return digest_bytes(os.fsencode(text))[:8]


def _is_alive(tag: re.Match[str]) -> Liveness:
    me = mine()
    host, boot, space, pid, ticks = tag.groups()
    if host != _short(me.host):
        return Liveness.UNKNOWN
    if boot != _short(me.boot_id):
        return Liveness.GONE
    if space != _short(me.pid_space):
        return Liveness.UNKNOWN
    identity = ProcessIdentity(
        pid=max(1, int(pid)), start_ticks=int(ticks), boot_id=me.boot_id, host=me.host, pid_space=me.pid_space
    )
    return is_alive(identity)
