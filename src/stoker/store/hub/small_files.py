"""Small files, taken whole: one request, checked in memory, written in one go with their neighbours.

A small file needs no partial to resume and no record beside it, and a thousand of them must not cost a thousand
of each. Only the perfect answer is taken here: the whole file, of the wanted size and digest. At anything else the file
is left to `fetch_file`, which knows what to make of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing, suppress

from stoker.host.anchored import AnchoredFolder
from stoker.host.http.exchange import Request
from stoker.host.http.redirects import follow
from stoker.host.together import write_unnamed
from stoker.model.digests import Digest
from stoker.model.errors import BadAnswer, NetworkFailed, StokerError
from stoker.model.frozen import frozen
from stoker.store.download.hashing import Summing
from stoker.store.download.patience import Patience
from stoker.store.download.stop import Stop
from stoker.store.download.tools import Tools
from stoker.store.download.wanted import Landing, Wanted
from stoker.store.hub.bodies import pieces_of
from stoker.store.hub.repo_file import RepoFile

LARGEST_BYTES = 1 << 20
"""A file up to this size, with a known digest, is small."""


def is_small(file: RepoFile) -> bool:
    """Whether a file may be taken whole."""
    return bool(file.blob) and file.size_bytes is not None and file.size_bytes <= LARGEST_BYTES


@frozen
class Whole:
    """The bytes of a small file, checked."""

    data: bytes
    sha256: Digest


def take_whole(wanted: Wanted, *, tools: Tools, patience: Patience, stop: Stop) -> Whole | None:
    """Fetch a small file; nothing unless its bytes are exactly those that were wanted. Raises what `stop` was asked."""
    stop.check()
    left_bytes = wanted.size_bytes or 0
    try:
        with stop.cutting(tools.transport.abort):
            reply = follow(tools.transport, Request(url=wanted.url, headers=wanted.headers)).reply
            with closing(reply):
                if reply.status != 200:
                    return None
                # Read to the end, not just to the size: the connection is kept, and a longer body shows.
                pieces = []
                for piece in pieces_of(reply, left_bytes + 1, clock=tools.clock, patience=patience):
                    pieces.append(piece)
                    left_bytes -= len(piece)
                    if left_bytes < 0:
                        break
    except (NetworkFailed, BadAnswer):
        stop.check()
        return None
    return _checked(b"".join(pieces), wanted)


def write_together(files: Iterable[tuple[Landing, bytes]], *, mode: int) -> None:
    """Write files that are known to be right, each whole or not at all, all of them durable afterwards."""
    by_folder: dict[tuple[str, str], list[tuple[str, bytes]]] = {}
    for landing, data in files:
        below, _, leaf = landing.name.rpartition("/")
        by_folder.setdefault((landing.folder, below), []).append((leaf, data))
    for (base, below), together in by_folder.items():
        with AnchoredFolder.open(base, below) as folder:
            _write_all(folder, together, mode)


def _write_all(folder: AnchoredFolder, files: Sequence[tuple[str, bytes]], mode: int) -> None:
    left = write_unnamed(folder, [data for _, data in files], mode)
    try:
        for leaf, _ in reversed(files):
            folder.rename(left[-1], leaf)
            left.pop()
    finally:
        for temp in left:
            with suppress(StokerError):
                folder.remove(temp)
    folder.sync()


def _checked(data: bytes, wanted: Wanted) -> Whole | None:
    if len(data) != wanted.size_bytes:
        return None
    summing = Summing(len(data) if wanted.git_sha1 else None)
    summing.add(data)
    sums = summing.sums()
    if wanted.sha256 not in {None, sums.sha256} or sums.git_sha1 != wanted.git_sha1:
        return None
    return Whole(data=data, sha256=sums.sha256)
