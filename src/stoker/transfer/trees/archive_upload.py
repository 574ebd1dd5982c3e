"""An archive on its way to the coordinator: resumable, sent as often as it takes, and not at all where it is known.

Bytes under their digest need no fence, so this goes on whatever the lease does, until somebody says stop.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum

from stoker.core.errors import CorruptBytes, HashMismatch, LockHeld, NotFound, Refused, StokerError
from stoker.core.frozen import frozen
from stoker.host.durable import open_regular, translated
from stoker.protocol.view_messages import UploadResponse
from stoker.store.trees import Heed
from stoker.transfer.trees.tree_sources import TransferBackoff, TransferConnection, is_later

PIECE_BYTES = 4 << 20
_MOST_MISMATCHES = 3
_MOST_RESTARTS = 10


class ArchiveSendOutcome(StrEnum):
    """What became of a sending."""

    NEW = "new"
    KNOWN = "known"
    """The coordinator had the bytes; none were sent."""
    STOPPED = "stopped"
    """Somebody said stop before it was there."""


@frozen
class Archive:
    """An archive that lies in a file."""

    path: str
    tree: str
    """Digest of the tree that it holds."""
    sha256: str
    size_bytes: int


def send(passage: TransferConnection, archive: Archive, *, heed: Heed = lambda _: None) -> ArchiveSendOutcome:
    """Bring an archive to the coordinator; `heed` is told of every piece that arrived.

    Waits and tries again while the coordinator can't be reached, is full or busy. `HashMismatch` if what arrives is
    something else again and again, `CorruptBytes` if the file is not as it was.
    """
    sending = _Sending(passage, archive, heed)
    pauses = TransferBackoff(chance=passage.chance)
    with translated(archive.path), open_regular(archive.path) as file:
        while not passage.stop.is_set():
            try:
                return sending.go_on(file.fileno(), pauses.worked)
            except LockHeld:
                # Somebody else sends the same just now.
                pass
            except StokerError as error:
                if not sending.may_go_on_after(error):
                    raise
            if passage.stop.wait(pauses.failed()):
                break
    return ArchiveSendOutcome.STOPPED


class _Sending:
    """One archive under way."""

    def __init__(self, passage: TransferConnection, archive: Archive, heed: Heed) -> None:
        self._line = passage.line
        self._archive = archive
        self._stop = passage.stop
        self._heed = heed
        self._upload: UploadResponse | None = None
        self._offset = 0
        self._mismatches = 0
        self._restarts = 0

    def go_on(self, descriptor: int, worked: Callable[[], None]) -> ArchiveSendOutcome:
        archive = self._archive
        if self._upload is None:
            begun = self._line.begin_upload(archive.sha256, archive.size_bytes)
            if begun.is_known:
                return ArchiveSendOutcome.KNOWN
            self._upload, self._offset = begun, begun.offset
        while self._offset < archive.size_bytes:
            if self._stop.is_set():
                return ArchiveSendOutcome.STOPPED
            data = os.pread(descriptor, PIECE_BYTES, self._offset)
            if not data:
                raise CorruptBytes(f"{archive.path} is shorter than it was", hint="it is packed again")
            there = self._line.append_upload(self._upload.id, data, offset=self._offset)
            self._heed(max(0, there - self._offset))
            self._offset = there
            self._restarts = 0
            worked()
        self._line.finish_upload(self._upload.id)
        return ArchiveSendOutcome.NEW

    def may_go_on_after(self, error: StokerError) -> bool:
        """Take note of what went wrong, and say whether to try again."""
        if isinstance(error, HashMismatch):
            self._upload = None
            self._mismatches += 1
            return self._mismatches < _MOST_MISMATCHES
        if isinstance(error, NotFound):
            # Swept, or lost with its disk; or finished, and only the answer was lost.
            self._upload = None
            self._restarts += 1
            return self._restarts < _MOST_RESTARTS
        if isinstance(error, Refused):
            offset = error.data.get("offset")
            self._restarts += 1
            if isinstance(offset, int) and 0 <= offset <= self._archive.size_bytes:
                self._offset = offset
                return self._restarts < _MOST_RESTARTS
            return False
        return is_later(error)
