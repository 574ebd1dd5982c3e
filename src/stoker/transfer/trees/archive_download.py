"""An archive on its way from the coordinator: into a file that grows, gone on with after any break, and verified.

The file is named by the digest, so whoever comes back later, in another process too, goes on where it ended. Nothing
is believed until every byte has come and the digest is right.
"""

from __future__ import annotations

import os

from stoker.core.errors import Cancelled, HashMismatch, NetworkFailed, StokerError
from stoker.host.durable import remove_tree, translated, write_all
from stoker.host.locks import FileLock
from stoker.store.trees import Heed, hash_file
from stoker.transfer.trees.tree_sources import TransferBackoff, TransferConnection, is_later

PIECE_BYTES = 1 << 20
_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def receive(
    passage: TransferConnection, sha256: str, size_bytes: int, folder: str, *, heed: Heed = lambda _: None
) -> str:
    """Bring an archive into `folder`, whole and verified, and give its path; whoever asked removes it.

    Tries again after a break, as often in a row without a new byte as the passage says. `HashMismatch` if the
    coordinator sends something else, `NotFound` if it has nothing of that digest, `Cancelled` if somebody said stop.
    """
    with translated(folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, f"{sha256}.part")
    with FileLock(f"{path}.lock", "receive an archive", removes_file=True):
        try:
            with translated(path), open(os.open(path, _OPEN, 0o600), "r+b", buffering=0) as part:
                _fill(passage, sha256, size_bytes, part.fileno(), heed)
            _verify(path, sha256, size_bytes)
        finally:
            if size_bytes and os.path.exists(path) and not os.path.getsize(path):
                remove_tree(path)
    return path


def _fill(passage: TransferConnection, sha256: str, size_bytes: int, descriptor: int, heed: Heed) -> None:
    """Receive until all is there, over as many connections as it takes."""
    pauses, idle = TransferBackoff(chance=passage.chance), 0
    while (here := os.fstat(descriptor).st_size) < size_bytes:
        broke: StokerError = NetworkFailed(f"object {sha256[:12]} ends at byte {here}", hint="try again later")
        try:
            _go_on(passage, sha256, size_bytes, descriptor, heed)
        except StokerError as error:
            if not is_later(error):
                raise
            broke = error
        idle = 0 if os.fstat(descriptor).st_size > here else idle + 1
        if idle >= passage.tries:
            raise broke
        if idle and passage.stop.wait(pauses.failed()):
            raise _stopped(sha256)


def _verify(path: str, sha256: str, size_bytes: int) -> None:
    found, came_bytes = hash_file(path)
    if (found, came_bytes) != (sha256, size_bytes):
        remove_tree(path)
        raise HashMismatch(
            f"object {sha256[:12]}: what came is another ({came_bytes} of {size_bytes} bytes, sha256 {found[:12]})",
            hint="ask again; nothing was kept",
            expected=sha256,
            found=found,
        )


def _go_on(passage: TransferConnection, sha256: str, size_bytes: int, descriptor: int, heed: Heed) -> None:
    """Receive from where the file ends, until the answer does."""
    with passage.line.get_object(sha256, offset=os.fstat(descriptor).st_size) as incoming:
        at = incoming.offset
        os.ftruncate(descriptor, at)
        while at < size_bytes and (data := incoming.read(PIECE_BYTES)):
            if passage.stop.is_set():
                raise _stopped(sha256)
            write_all(descriptor, data, at)
            at += len(data)
            heed(len(data))


def _stopped(sha256: str) -> Cancelled:
    return Cancelled(f"object {sha256[:12]} was not fetched to its end", hint="the same line goes on where it stopped")
