"""Sync an attempt's folder to the coordinator as it grows: every file, in order, each byte once.

The files on disk are the spool: only the piece being sent is in memory, so the network may be down for hours. The
coordinator's response contains the size of each file, so a restart on either side needs no handshake. Pieces of several
files go in one request. A lease token that is no longer valid ends the sync for good. `end.json` is sent last, after
everything else.
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
from stoker.protocol.mirror_pieces import MOST_PIECES, MirrorPiece
from stoker.transfer.trees.tree_sources import LONGEST_S, TransferBackoff

# One file that another program writes, followed as one stream that only grows.
#
# A log that is rotated (renamed, a new one created) continues in the same stream: the open file is read to its end
# first, under whatever name it has then. The same holds for a truncated file: what was sent stays, and the stream
# continues with the present contents. Only regular files are read, without blocking, and no link on the path is
# followed: the folder belongs to a job, which must not get files from elsewhere sent.


class FollowedFile:
    """A file below a folder. Not thread-safe."""

    def __init__(self, folder: str, path: str) -> None:
        self.path = path
        self.sent_bytes = 0
        """How many bytes of the stream the coordinator has."""
        self.is_known_there = False
        """True if the coordinator knows the file, even if it is empty."""
        self.trouble = ""
        """Why no more of it is sent."""
        self.inodes: set[int] = set()
        """Inodes of the file and of those that had its name before."""
        self._folder = folder
        self._full = os.path.join(folder, path)
        self._descriptor: int | None = None
        self._inode = 0
        # The stream's offset of the first byte of the file as it is now.
        self._base = 0

    def read(self, limit_bytes: int) -> bytes:
        """Return the next bytes to send; empty if everything was sent."""
        if self._descriptor is None and not self._open():
            return b""
        data = self._next(limit_bytes)
        if not data and self._has_moved_on():
            # Read again: what was written between the two reads belongs to the old file.
            data = self._next(limit_bytes)
            if not data:
                self.rest()
                self._inode = 0
                self._base = self.sent_bytes
                data = self._next(limit_bytes) if self._open() else b""
        return data

    def lies_there(self, size_bytes: int) -> None:
        """Record how many bytes the coordinator has: more than were sent before, or fewer if it lost some."""
        self.is_known_there = True
        # Fewer: the bytes were of a file that is deleted here too, so the stream continues with the present one.
        self._base = min(self._base, size_bytes)
        self.sent_bytes = size_bytes

    def begins_at(self, size_bytes: int) -> bool:
        """Continue after bytes that the coordinator has of a file that is deleted here, whose response was lost.

        Return False if that is not the case: the coordinator already has bytes of the present file.
        """
        if not self._base or self.sent_bytes != self._base or size_bytes <= self._base:
            return False
        self._base = self.sent_bytes = size_bytes
        return True

    def rest(self) -> None:
        """Close the open file; the next read opens it again."""
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
            # A disk that fails: the next read reports it.
            return b""

    def _has_moved_on(self) -> bool:
        try:
            return os.lstat(self._full).st_ino != self._inode
        except OSError:
            # Being renamed, or deleted: the open file is all there is.
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
    """Return the name that a log or journal has after rotation."""
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
    """How often and how much to send."""

    every_s: float = 0.5
    piece_bytes: int = 256 * 1024
    batch_bytes: int = 1024 * 1024
    """Of all pieces in one request."""
    pieces_in_turn: int = 8
    """Of one file, before the next file is served."""
    open_files: int = 128
    longest_pause_s: float = LONGEST_S


class AttemptFolderSync:
    """Syncs one attempt's folder, in a thread of its own after `begin`."""

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
        """Why nothing more is sent: most often because another worker has the job now."""

    def begin(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="stoker-mirror", daemon=True)
        self._thread.start()

    @property
    def troubles(self) -> tuple[str, ...]:
        """Return the files that are not sent, or not completely, and why."""
        return tuple(f"{file.path}: {file.trouble}" for file in self._files.values() if file.trouble)

    def ship(self) -> float:
        """Send what is new, one round; return how many seconds to wait before the next round.

        Raises nothing: what can't be sent now is sent later; a permanent failure is in `troubles` or `ended_by`.
        """
        with self._shipping:
            try:
                return self._ship_all()
            except (StaleLease, NotFound, Forbidden, VersionSkew) as error:
                self.ended_by = error
                self._is_over = True
                return 0.0
            except (StokerError, OSError):
                # The coordinator is unreachable, full, or has a bug: the files stay where they are.
                return self._pauses.failed()

    def drain(self, deadline_s: float) -> bool:
        """Send everything that is left, `end.json` last, after the attempt's process has exited.

        Return False if it did not all arrive. Gives up at `deadline_s` on the clock's monotonic scale, or when nothing
        more can be sent.
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
        """Stop sending, and close the files."""
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
        """Stop the thread, so that `drain` sends alone; return True if it stopped in time."""
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
        others = [file for file in self._in_order() if file.path != END]
        is_whole = any(self._ship_round(others) for _ in range(self._settings.pieces_in_turn))
        self._rest_some(others)
        return self._settings.every_s if is_whole else 0.0

    def _ship_round(self, others: list[FollowedFile]) -> bool:
        """Send one piece of each file that has more, several in one request; return True if none has more.

        In the end all files are checked, those without new bytes by an empty piece. With the last comes `end.json`.
        """
        is_final, has_more, is_whole = self._is_final, False, True
        batch: list[tuple[FollowedFile, MirrorPiece]] = []
        batch_bytes = 0
        for file in others:
            piece = self._next_piece(file, is_check=is_final)
            if piece is None:
                continue
            batch.append((file, piece))
            batch_bytes += len(piece.data)
            has_more |= len(piece.data) == self._settings.piece_bytes
            if batch_bytes >= self._settings.batch_bytes or len(batch) == MOST_PIECES - 1:
                is_whole &= self._send(batch)
                batch, batch_bytes = [], 0
        end = self._files.get(END)
        if end is not None and is_final and is_whole and not has_more:
            piece = self._next_piece(end, is_check=False)
            batch += [(end, piece)] if piece is not None else []
        is_whole &= self._send(batch)
        self._is_confirmed = is_final and is_whole and not has_more
        return is_whole and not has_more

    def _next_piece(self, file: FollowedFile, *, is_check: bool) -> MirrorPiece | None:
        """Return the next piece of a file; None if there is nothing to send, nor to check."""
        if file.trouble:
            return None
        data = file.read(self._settings.piece_bytes)
        if not data and not (is_check if file.is_known_there else file.is_open):
            return None
        return MirrorPiece(file.path, file.sent_bytes, data)

    def _send(self, batch: list[tuple[FollowedFile, MirrorPiece]]) -> bool:
        """Send pieces; return True if the coordinator took them all, or takes no more of a file."""
        if not batch:
            return True
        self._check_lease()
        results = self._client.put_files(self._token, [piece for _, piece in batch])
        self._pauses.worked()
        is_whole = True
        for (file, _), result in zip(batch, results, strict=True):
            try:
                file.lies_there(result.unwrap())
            except Conflict as error:
                offset = error.data.get("offset")
                if isinstance(offset, int) and file.begins_at(offset):
                    is_whole = False
                else:
                    file.trouble = f"the coordinator has other bytes of it: {error}"
            except Refused as error:
                is_whole = False
                if file.path != END:
                    self._go_back(file, error)
            except BadInput as error:
                file.trouble = str(error)
        return is_whole

    def _go_back(self, file: FollowedFile, error: Refused) -> None:
        """Continue from the size that the coordinator reports: it lost what was not durable."""
        offset = error.data.get("offset")
        if not isinstance(offset, int) or not 0 <= offset < file.sent_bytes:
            file.trouble = str(error)
            return
        file.lies_there(offset)

    def _all_there(self) -> bool:
        with self._shipping:
            self._find()
            return self._is_confirmed and all(self._is_there(file) for file in self._files.values())

    def _is_there(self, file: FollowedFile) -> bool:
        return bool(file.trouble) or (not file.read(1) and (file.is_known_there or not file.is_open))

    def _in_order(self) -> list[FollowedFile]:
        """Sort files: descriptions first, the journal after the files that it refers to."""
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
            # A rotated log continues in the stream of the file that has its name now.
            if newer is None or inode not in newer.inodes:
                self._files[path] = FollowedFile(self._folder, path)


def _files(top: str, below: str = "", levels: int = _MOST_LEVELS) -> Iterator[tuple[str, int]]:
    """Return the path and inode of every file of a folder that is not hidden; follow no link."""
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
