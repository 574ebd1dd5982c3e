"""What the listing of a tree says of its files, checked; a large listing is checked in a process of its own.

To read half a million entries takes seconds and most of a gibibyte, while Python's lock (the GIL) keeps everything else
waiting. The child process gets the listing on its standard input, and answers with one line of JSON (counts, or the
error) and a frame for each file: its digest (32 bytes) and its size (8 bytes, big-endian).
"""

from __future__ import annotations

import os
import resource
import struct
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256
from typing import Any, BinaryIO

from stoker.core.digests import Digest, digest_bytes
from stoker.core.errors import StokerError, Unavailable
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps, loads
from stoker.host.durable import translated
from stoker.protocol.refusals import error_of
from stoker.store.archives.archive_members import files_of, read_listing

LARGE_BYTES = 1 << 20
"""Of a listing: one that is larger is read by a child process."""
_PIECE_BYTES = 1 << 20
_MOST_CPU_S = 300
"""Of the child process, which the kernel ends then."""
_NICENESS = 10
_FRAME = struct.Struct(">32sQ")


@frozen
class ListedFiles:
    """What a listing says, without the names."""

    listing: Digest
    """Of the listing itself."""
    listing_bytes: int
    entries: int
    size_bytes: int
    """Of all files together."""
    largest: str
    """The path of the largest file."""
    largest_bytes: int
    files: dict[Digest, int]
    """The size of each file, by its digest."""


def read_files(file: BinaryIO, tree: str, *, most_entries: int) -> ListedFiles:
    """Return what the listing of a tree says of its files.

    Raises what `read_listing` and `files_of` raise, and `Unavailable` if the child process did not end well.
    """
    data = file.read(LARGE_BYTES + 1)
    if len(data) <= LARGE_BYTES:
        return _listed(data, tree, most_entries)
    command = [sys.executable, "-P", "-m", __name__, tree, str(most_entries)]
    with translated("listing"), subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            hashed, size_bytes = _send(child, data, file)
            said, frames = (child.stdout.readline(), child.stdout.read()) if child.stdout is not None else (b"", b"")
            status = child.wait()
        except BaseException:
            child.kill()
            raise
    if status or not said:
        raise Unavailable(f"the listing of tree {tree[:12]} could not be checked ({status})", hint="send it again")
    answer: dict[str, Any] = loads(said)
    if "error" in answer:
        raise error_of(answer)
    files = {Digest(digest.hex()): its_bytes for digest, its_bytes in _FRAME.iter_unpack(frames)}
    return ListedFiles(**answer, listing=hashed, listing_bytes=size_bytes, files=files)


def _send(child: subprocess.Popen[bytes], piece: bytes, file: BinaryIO) -> tuple[Digest, int]:
    """Send a listing, of which the first piece was read; return its digest and size."""
    hashed, size_bytes = sha256(), 0
    # A child that has ended is asked for its status; one that lives reads everything before it answers.
    with suppress(BrokenPipeError):
        if child.stdin is not None:
            with child.stdin:
                while piece:
                    hashed.update(piece)
                    size_bytes += len(piece)
                    child.stdin.write(piece)
                    piece = file.read(_PIECE_BYTES)
    return Digest(hashed.hexdigest()), size_bytes


def _listed(data: bytes, tree: str, most_entries: int) -> ListedFiles:
    read = read_listing(data, tree, most_entries=most_entries)
    largest = max(read.entries, key=lambda entry: entry.size_bytes, default=None)
    return ListedFiles(
        listing=digest_bytes(data),
        listing_bytes=len(data),
        entries=len(read.entries),
        size_bytes=read.size_bytes,
        largest=largest.path if largest is not None else "",
        largest_bytes=largest.size_bytes if largest is not None else 0,
        files=files_of(read),
    )


def main() -> int:
    """Check the listing on standard input, in the child process."""
    tree, most_entries = sys.argv[1:]
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU_S, _MOST_CPU_S))
    out = sys.stdout.buffer
    try:
        found = _listed(sys.stdin.buffer.read(), tree, int(most_entries))
    except StokerError as error:
        out.write(dumps(error.to_dict()).encode() + b"\n")
        return 0
    counts = {name: getattr(found, name) for name in ("entries", "size_bytes", "largest", "largest_bytes")}
    out.write(dumps(counts).encode() + b"\n")
    for digest, size_bytes in found.files.items():
        out.write(_FRAME.pack(bytes.fromhex(digest), size_bytes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
