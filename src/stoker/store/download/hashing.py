"""The digests of a body while it comes: a thread of its own, so that hashing costs no time beside the network.

Pieces go through a short queue. Where bytes of an earlier run come first, the thread reads them back from the file
while new ones already arrive, goes on reading until it has caught up, and takes pieces from the queue from then on: the
connection never has to wait for a long beginning to be hashed.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import deque

from stoker.model.digests import Digest
from stoker.model.frozen import frozen

QUEUE_BYTES = 8 << 20
_PIECE_BYTES = 1 << 20


@frozen
class Sums:
    """The digests of some bytes; `git_sha1`, of the git blob, only where it was asked for."""

    sha256: Digest
    git_sha1: str = ""


class Summing:
    """The digests of bytes given in order. `git_size_bytes`: the size of the git blob, if its digest is wanted too."""

    def __init__(self, git_size_bytes: int | None = None) -> None:
        self._sha256 = hashlib.sha256()
        self._git_sha1 = None
        if git_size_bytes is not None:
            self._git_sha1 = hashlib.sha1(b"blob %d\0" % git_size_bytes, usedforsecurity=False)

    def add(self, data: bytes | bytearray) -> None:
        self._sha256.update(data)
        if self._git_sha1 is not None:
            self._git_sha1.update(data)

    def sums(self) -> Sums:
        git_sha1 = "" if self._git_sha1 is None else self._git_sha1.hexdigest()
        return Sums(sha256=Digest(self._sha256.hexdigest()), git_sha1=git_sha1)


def sum_file(descriptor: int, size_bytes: int, *, with_git: bool) -> Sums:
    """Give the digests of an open file's bytes, all of which must be there. Raises `OSError`."""
    summing = Summing(size_bytes if with_git else None)
    _add_from_file(summing, descriptor, 0, size_bytes)
    return summing.sums()


class BodyHash:
    """The digests of a growing file. Whoever writes the file calls `wrote` after each piece; `close` in any case.

    A restart of the file needs a new one: what was hashed can't be taken back.
    """

    def __init__(self, descriptor: int, *, prefix_bytes: int = 0, git_size_bytes: int | None = None) -> None:
        self._descriptor = descriptor
        self._summing = Summing(git_size_bytes)
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._written_bytes = prefix_bytes
        self._hashed_bytes = 0
        self._is_following = prefix_bytes > 0
        """Whether the file is read back; the queue is not used meanwhile."""
        self._is_ended = False
        self._failure: OSError | None = None
        # A daemon: a process that is told to end must not wait for it.
        self._thread = threading.Thread(target=self._run, name="stoker-hash", daemon=True)
        self._thread.start()

    @property
    def hashed_bytes(self) -> int:
        """How far it is, from the start of the file."""
        return self._hashed_bytes

    @property
    def is_following(self) -> bool:
        """Whether it reads back from the file; what is written meanwhile must be there at once."""
        return self._is_following

    def wrote(self, piece: bytes) -> None:
        """Take the piece that was written next. Waits while the queue is full. Raises `OSError`."""
        with self._changed:
            self._written_bytes += len(piece)
            if not self._is_following:
                while self._queued_bytes > QUEUE_BYTES and self._failure is None:
                    self._changed.wait()
                self._queue.append(piece)
                self._queued_bytes += len(piece)
                self._changed.notify_all()
            if self._failure is not None:
                raise self._failure

    def finish(self) -> Sums:
        """Wait until everything that was written is hashed, and give the digests. Raises `OSError`."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._summing.sums()

    def close(self) -> None:
        """End the thread, whatever it has left to do."""
        with self._changed:
            self._is_ended = True
            self._is_following = False
            self._queue.clear()
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._catch_up()
            while (piece := self._next_piece()) is not None:
                self._summing.add(piece)
                self._hashed_bytes += len(piece)
        except OSError as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _catch_up(self) -> None:
        while True:
            with self._changed:
                goal = self._written_bytes
                if self._hashed_bytes == goal or not self._is_following:
                    self._is_following = False
                    return
            goal = min(goal, self._hashed_bytes + _PIECE_BYTES)
            _add_from_file(self._summing, self._descriptor, self._hashed_bytes, goal)
            self._hashed_bytes = goal

    def _next_piece(self) -> bytes | None:
        with self._changed:
            while not self._queue:
                if self._is_ended:
                    return None
                self._changed.wait()
            piece = self._queue.popleft()
            self._queued_bytes -= len(piece)
            self._changed.notify_all()
            return piece


def _add_from_file(summing: Summing, descriptor: int, start: int, end: int) -> None:
    while start < end:
        data = os.pread(descriptor, min(_PIECE_BYTES, end - start), start)
        if not data:
            raise OSError(f"the file ends at byte {start}, {end} were written")
        summing.add(data)
        start += len(data)
