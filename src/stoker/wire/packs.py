"""Packs: small files that travel together. A frame is a digest (32 bytes), a size (8 bytes, big-endian), the bytes.

Whoever takes one apart is given each file only if its bytes have the digest that they came under.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from stoker.model.digests import Digest, digest_bytes
from stoker.model.errors import BadInput, HashMismatch
from stoker.wire.contents import MOST_DIGESTS, PACK_BYTES, PACKED_BYTES

HEAD_BYTES = 40
_DIGEST_BYTES = 32


def frame(digest: str, data: bytes) -> bytes:
    """Give the frame of one file."""
    return head(digest, len(data)) + data


def head(digest: str, size_bytes: int) -> bytes:
    """Give what stands before a file's bytes."""
    return bytes.fromhex(digest) + size_bytes.to_bytes(8, "big")


def read_pack(pack: bytes) -> Iterator[tuple[Digest, bytes]]:
    """Take a pack apart. `BadInput` if it is torn, `HashMismatch` if a file's bytes are others."""
    view, at = memoryview(pack), 0

    def read(count: int) -> bytes:
        nonlocal at
        piece = bytes(view[at : at + count])
        at += len(piece)
        return piece

    return read_frames(read)


def read_frames(
    read: Callable[[int], bytes], *, wanted: frozenset[str] | None = None
) -> Iterator[tuple[Digest, bytes]]:
    """Take frames apart as they come. `read` gives at most so many bytes, and nothing only at the end.

    With `wanted`, a file that was not asked for, or comes twice, is refused.
    """
    left = None if wanted is None else set(wanted)
    for count in range(MOST_DIGESTS + 1):
        start = _exactly(read, HEAD_BYTES, may_end=True)
        if not start:
            return
        if count == MOST_DIGESTS:
            raise BadInput(f"a pack of more than {MOST_DIGESTS} files")
        digest, size_bytes = Digest(start[:_DIGEST_BYTES].hex()), int.from_bytes(start[_DIGEST_BYTES:], "big")
        if size_bytes > PACKED_BYTES:
            raise BadInput(f"a file of {size_bytes} bytes in a pack: {PACKED_BYTES} are the most")
        if left is not None:
            if digest not in left:
                raise BadInput(f"a pack has file {digest[:12]}, which nobody asked for")
            left.discard(digest)
        data = _exactly(read, size_bytes)
        if (found := digest_bytes(data)) != digest:
            raise HashMismatch(
                f"file {digest[:12]} of a pack has other bytes (sha256 {found[:12]})",
                hint="send it again; nothing was kept",
                expected=digest,
                found=found,
            )
        yield digest, data


def in_packs(files: Iterable[tuple[str, int]]) -> Iterator[list[str]]:
    """Part small files (digest, size) into packs, in their order."""
    pack: list[str] = []
    packed_bytes = 0
    for digest, size_bytes in files:
        framed_bytes = HEAD_BYTES + size_bytes
        if pack and (packed_bytes + framed_bytes > PACK_BYTES or len(pack) >= MOST_DIGESTS):
            yield pack
            pack, packed_bytes = [], 0
        pack.append(digest)
        packed_bytes += framed_bytes
    if pack:
        yield pack


def _exactly(read: Callable[[int], bytes], count: int, *, may_end: bool = False) -> bytes:
    data = read(count) if count else b""
    while len(data) < count:
        more = read(count - len(data))
        if not more:
            if may_end and not data:
                return b""
            raise BadInput("a pack ends in the middle of a file")
        data += more
    return data
