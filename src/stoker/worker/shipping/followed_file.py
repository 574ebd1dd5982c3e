"""One file that somebody else writes, followed as one stream that only grows.

A log that is turned over (renamed, a new one begun) goes on in the same stream: the open file is read to its end first,
whatever it is called by then. So does one that was cut short: what was sent stays, and the stream goes on with what is
there now. Anything but a regular file is not read and never waited for, and no link on the way to one is followed: the
folder is a job's, and what lies elsewhere is not for it to ship.
"""

from __future__ import annotations

import os

from stoker.host.anchored import AnchoredFolder
from stoker.model.errors import StokerError


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
        """Give the next bytes to send; nothing if all that is there was sent."""
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
        # Less: bytes of a file that is gone here as well, so the stream goes on with the one that is there.
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
    """Give the name that a log or journal has once it was turned over."""
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
