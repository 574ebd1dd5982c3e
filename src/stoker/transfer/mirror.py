"""An attempt's folder, shipped to the coordinator as it grows: every file, in order, each byte once.

The files on the disk are the spool: nothing is kept in memory but the piece that is on its way, so the network may be
gone for hours. The coordinator's answer says how far each file is, so its restart, or ours, needs no agreement. A token
that is no longer the job's ends it for good. `end.json` goes last, when everything else is there.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator

from stoker.core.clock import Clock
from stoker.core.errors import (
    BadInput,
    Conflict,
    Forbidden,
    LocalFile,
    NotFound,
    Refused,
    StaleLease,
    StokerError,
    VersionSkew,
)
from stoker.core.frozen import frozen
from stoker.core.leases import AttemptToken
from stoker.host.folders import AnchoredFolder
from stoker.protocol.client import FleetClient
from stoker.transfer.trees.tree_sources import LONGEST_S, TransferBackoff

# One file that somebody else writes, followed as one stream that only grows.
#
# A log that is turned over (renamed, a new one begun) continues in the same stream: the open file is read to its end
# first, whatever it is called by then. So does one that was cut short: what was sent stays, and the stream goes on with
# what is there now. Anything but a regular file is not read and never waited for, and no link on the way to one is
# followed: the folder is a job's, and what lies elsewhere is not for it to ship.


class FollowedFile:
    """A file below a folder. Not for several threads."""

    def __init__(self, folder: str, path: str) -> None:
        self.path = path
        self.sent_bytes = 0
        """How much of the stream lies with the coordinator."""
        self.is_known_there = False
        """Whether the coordinator has heard of it, be it empty."""
        self.trouble = ""
        """Why no more of it is sent."""
        self.inodes: set[int] = set()
        """Of the file and of those that had its name before."""
        self._folder = folder
        self._full = os.path.join(folder, path)
        self._descriptor: int | None = None
        self._inode = 0
        # The stream's offset of the first byte of the file as it is now.
        self._base = 0

    def read(self, limit_bytes: int) -> bytes:
        """Return the next bytes to send; nothing if all that is there was sent."""
        if self._descriptor is None and not self._open():
            return b""
        data = self._next(limit_bytes)
        if not data and self._has_moved_on():
            # Again: what was written between the two looks belongs to the one that is done with.
            data = self._next(limit_bytes)
            if not data:
                self.rest()
                self._inode = 0
                self._base = self.sent_bytes
                data = self._next(limit_bytes) if self._open() else b""
        return data

    def lies_there(self, size_bytes: int) -> None:
        """Take note of how much the coordinator has: more than was sent before, or less, if it lost some."""
        self.is_known_there = True
        # Less: bytes of a file that is gone here as well, so the stream continues with the one that is there.
        self._base = min(self._base, size_bytes)
        self.sent_bytes = size_bytes

    def begins_at(self, size_bytes: int) -> bool:
        """Go on behind bytes that the coordinator has of a file that is gone here, whose answer was lost.

        False if this is not what happened: something of the file as it is now lies there already.
        """
        if not self._base or self.sent_bytes != self._base or size_bytes <= self._base:
            return False
        self._base = self.sent_bytes = size_bytes
        return True

    def rest(self) -> None:
        """Let go of the open file; it is opened again when it is read."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None

    def _next(self, limit_bytes: int) -> bytes:
        if self._descriptor is None:
            return b""
        try:
            at = self.sent_bytes - self._base
            if at > os.fstat(self._descriptor).st_size:
                self._base, at = self.sent_bytes, 0
            return os.pread(self._descriptor, limit_bytes, at)
        except OSError:
            # A disk that fails: the next look tells.
            return b""

    def _has_moved_on(self) -> bool:
        try:
            return os.lstat(self._full).st_ino != self._inode
        except OSError:
            # Between its two names, or gone for good: what is open is all there is.
            return False

    def _open(self) -> bool:
        """Open the file that was being read, perhaps under the name of an older one; else what has its name now."""
        opened = _open_regular(self._folder, self.path)
        if opened is not None and self._inode and opened[1] != self._inode:
            older = _open_regular(self._folder, older_name(self.path))
            if older is not None and older[1] == self._inode:
                os.close(opened[0])
                opened = older
            else:
                if older is not None:
                    os.close(older[0])
                self._base = self.sent_bytes
        if opened is None:
            return False
        self._descriptor, self._inode = opened
        self.inodes.add(self._inode)
        return True


def older_name(path: str) -> str:
    """Return the name that a log or journal has once it was turned over."""
    stem, dot, ending = path.rpartition(".")
    return f"{stem}.1.{ending}" if dot else f"{path}.1"


def _open_regular(folder: str, path: str) -> tuple[int, int] | None:
    below, name = os.path.split(path)
    try:
        with AnchoredFolder.open(folder, below, makes=False) as held:
            descriptor = held.open_file(name)
    except StokerError:
        return None
    return None if descriptor is None else (descriptor, os.fstat(descriptor).st_ino)


END = "end.json"
STATUS = "status.jsonl"
_MOST_LEVELS = 4
_OLDER = re.compile(r"\A(.+)\.1(\.log|\.jsonl)\Z")
_UNFINISHED = ".new"


@frozen
class AttemptFolderSyncSettings:
    """How often and how much."""

    every_s: float = 0.5
    piece_bytes: int = 256 * 1024
    pieces_in_turn: int = 8
    """Of one file, before the others have their turn."""
    open_files: int = 128
    longest_pause_s: float = LONGEST_S


class AttemptFolderSync:
    """Ships one attempt's folder, in a thread of its own from `begin` on."""

    def __init__(  # noqa: PLR0913 - what to send where, and how
        self,
        folder: str,
        token: AttemptToken,
        client: FleetClient,
        *,
        clock: Clock,
        check_lease: Callable[[], None] = lambda: None,
        settings: AttemptFolderSyncSettings | None = None,
        chance: Callable[[], float] | None = None,
    ) -> None:
        self._folder = folder
        self._token = token
        self._client = client
        self._check_lease = check_lease
        self._clock = clock
        self._settings = settings or AttemptFolderSyncSettings()
        self._pauses = TransferBackoff(longest_s=self._settings.longest_pause_s, chance=chance)
        self._files: dict[str, FollowedFile] = {}
        self._shipping = threading.Lock()
        self._bell = threading.Event()
        self._is_over = False
        self._is_final = False
        self._is_confirmed = False
        self._thread: threading.Thread | None = None
        self.ended_by: StokerError | None = None
        """Why nothing will be shipped any more: most often that the job is somebody else's now."""

    def begin(self) -> None:
        """Start to ship, beside whatever else happens."""
        self._thread = threading.Thread(target=self._run, name="stoker-mirror", daemon=True)
        self._thread.start()

    @property
    def troubles(self) -> tuple[str, ...]:
        """Return which files, or the rest of which, are not shipped, and why."""
        return tuple(f"{file.path}: {file.trouble}" for file in self._files.values() if file.trouble)

    def ship(self) -> float:
        """Ship what is new, once around, and give how long to wait before the next look.

        Nothing is raised: what can't be sent now is sent later, what never can is told in `troubles` or `ended_by`.
        """
        with self._shipping:
            try:
                return self._ship_all()
            except (StaleLease, NotFound, Forbidden, VersionSkew) as error:
                self.ended_by = error
                self._is_over = True
                return 0.0
            except (StokerError, OSError):
                # The coordinator can't be reached, is full, or has a bug: the files wait where they are.
                return self._pauses.failed()

    def drain(self, deadline_s: float) -> bool:
        """Ship everything that is left, `end.json` last; the attempt's process is gone. False: it did not all arrive.

        Gives up at `deadline_s` on the clock's monotonic scale, or when nothing can be shipped any more.
        """
        self._is_final = True
        if not self._stop(deadline_s):
            return False
        self._is_over = self.ended_by is not None
        is_there = False
        while self.ended_by is None:
            pause_s = self.ship()
            is_there = self._all_there()
            left_s = deadline_s - self._clock.monotonic_s()
            if is_there or left_s <= 0:
                break
            if pause_s:
                self._bell.wait(min(pause_s, left_s))
        self.close()
        return self.ended_by is None and is_there

    def close(self) -> None:
        """Ship nothing more, and let go of the files."""
        self._is_over = True
        self._bell.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._settings.every_s)
        if self._shipping.acquire(timeout=self._settings.every_s):
            try:
                for file in self._files.values():
                    file.rest()
            finally:
                self._shipping.release()

    def _stop(self, deadline_s: float) -> bool:
        """End the thread, so that whoever drains ships alone; says whether it ended in time."""
        self._is_over = True
        self._bell.set()
        if self._thread is not None:
            self._thread.join(max(0.0, deadline_s - self._clock.monotonic_s()))
            if self._thread.is_alive():
                return False
        self._bell.clear()
        return True

    def _run(self) -> None:
        while not self._is_over:
            pause_s = self.ship()
            if self._bell.wait(pause_s):
                self._bell.clear()

    def _ship_all(self) -> float:
        self._find()
        has_more = False
        others = [file for file in self._in_order() if file.path != END]
        for file in others:
            has_more |= self._ship_one(file)
        if self._is_final and not has_more and not self._is_confirmed:
            has_more = self._is_some_lost(others)
            self._is_confirmed = True
        end = self._files.get(END)
        if end is not None and self._is_final and not has_more:
            has_more = self._ship_one(end)
        self._rest_some(others)
        return 0.0 if has_more else self._settings.every_s

    def _ship_one(self, file: FollowedFile) -> bool:
        """Ship pieces of a file; says whether there is more of it."""
        for _ in range(self._settings.pieces_in_turn):
            if file.trouble:
                return False
            data = file.read(self._settings.piece_bytes)
            if not data and (file.is_known_there or not file.is_open):
                return False
            try:
                self._check_lease()
                there = self._client.put_file(self._token, file.path, data, offset=file.sent_bytes)
            except (StaleLease, NotFound, Forbidden, VersionSkew, LocalFile):
                raise
            except Conflict as error:
                offset = error.data.get("offset")
                if not isinstance(offset, int) or not file.begins_at(offset):
                    file.trouble = f"the coordinator has other bytes of it: {error}"
            except Refused as error:
                self._go_back(file, error)
            except BadInput as error:
                file.trouble = str(error)
            else:
                self._pauses.worked()
                file.lies_there(there)
        return not file.trouble

    def _go_back(self, file: FollowedFile, error: Refused) -> None:
        """Go on from where the coordinator says that the file is: it lost what was not durable."""
        offset = error.data.get("offset")
        if not isinstance(offset, int) or not 0 <= offset < file.sent_bytes:
            file.trouble = str(error)
            return
        file.lies_there(offset)

    def _is_some_lost(self, files: list[FollowedFile]) -> bool:
        """Ask what lies there, and go back where it is less: a file that no longer grows would never tell."""
        listed = self._client.files(self._token.job, attempt=self._token.attempt)
        there = {file.path: file.size_bytes for file in listed.files}
        lost = [file for file in files if not file.trouble and there.get(file.path, 0) < file.sent_bytes]
        for file in lost:
            file.lies_there(there.get(file.path, 0))
        return bool(lost)

    def _all_there(self) -> bool:
        with self._shipping:
            self._find()
            return self._is_confirmed and all(self._is_there(file) for file in self._files.values())

    def _is_there(self, file: FollowedFile) -> bool:
        return bool(file.trouble) or (not file.read(1) and (file.is_known_there or not file.is_open))

    def _in_order(self) -> list[FollowedFile]:
        """Papers first, the journal after what it speaks of."""
        return sorted(self._files.values(), key=lambda file: (file.path == STATUS, "/" in file.path, file.path))

    def _rest_some(self, files: list[FollowedFile]) -> None:
        is_open = [file for file in files if file.is_open]
        for file in is_open[: max(0, len(is_open) - self._settings.open_files)]:
            file.rest()

    def _find(self) -> None:
        found = dict(_files(self._folder))
        for path, inode in found.items():
            if path in self._files or path.endswith(_UNFINISHED):
                continue
            older = _OLDER.match(path)
            newer = self._files.get(f"{older[1]}{older[2]}") if older else None
            # A log that was turned over continues in the stream of the one that has its name now.
            if newer is None or inode not in newer.inodes:
                self._files[path] = FollowedFile(self._folder, path)


def _files(top: str, below: str = "", levels: int = _MOST_LEVELS) -> Iterator[tuple[str, int]]:
    """Return the path and inode of every file of a folder that is not hidden; no link is followed."""
    try:
        with os.scandir(os.path.join(top, below)) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in found:
        if entry.name.startswith("."):
            continue
        path = f"{below}/{entry.name}" if below else entry.name
        try:
            if entry.is_dir(follow_symlinks=False):
                if levels > 1:
                    yield from _files(top, path, levels - 1)
            elif entry.is_file(follow_symlinks=False):
                yield path, entry.inode()
        except OSError:
            continue
