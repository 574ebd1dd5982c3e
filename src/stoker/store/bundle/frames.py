"""The bytes inside an archive of a stranger's: a tar in one zstd frame, or a bare tar.

Guards against what compression allows: more coming out than anybody allowed, a frame that asks for gigabytes of memory,
a second frame or rubbish behind the first, an end before the end. The frame is walked block by block beside its
decompression, so that its end is known to the byte. zstandard is imported when a frame is met.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, BinaryIO, cast

from stoker.model.digests import Digest
from stoker.model.frozen import frozen
from stoker.model.units import format_size
from stoker.store.bundle.members import Limits
from stoker.store.bundle.tar_reading import Broken
from stoker.store.hash_lane import HashLane

# What `zstd -19` makes still fits; what needs more was made to need more.
LARGEST_WINDOW_BYTES = 1 << 26
_MAGIC = b"\x28\xb5\x2f\xfd"
_READ_BYTES = 1 << 18
_WITH_CHECKSUM, _SINGLE_SEGMENT, _RESERVED = 0x04, 0x20, 0x08
_RAW, _RLE, _COMPRESSED = 0, 1, 2


@frozen
class FrameHead:
    """What a frame says of itself."""

    size_bytes: int
    """Of the head."""
    has_checksum: bool
    content_bytes: int | None
    window_bytes: int


class ArchiveBytes:
    """What an archive holds, uncompressed, within limits. `read` gives fewer bytes than asked for only at the end."""

    def __init__(self, stream: BinaryIO, limits: Limits, lane: HashLane) -> None:
        self._counted = _Counted(stream, lane)
        self._limits = limits
        self._given_bytes = 0
        start = self._counted.peek(len(_MAGIC))
        self._frame = _OneFrame(self._counted, limits) if start == _MAGIC else None
        self._source: Any = self._counted if self._frame is None else _decompressed(self._frame)

    def read(self, size: int, /) -> bytes:
        blocks: list[bytes] = []
        left = size
        while left and (block := self._read_some(left)):
            blocks.append(block)
            left -= len(block)
        self._given_bytes += size - left
        self._check_amount()
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def finish(self) -> tuple[Digest, int]:
        """Make sure that nothing is left; gives the SHA-256 and the size of the archive."""
        if self.read(1):
            raise Broken("something follows the end of the tar")
        if self._frame is not None:
            self._frame.check_end()
        return self._counted.digest(), self._counted.came_bytes

    def _read_some(self, size: int) -> bytes:
        if self._frame is None:
            return self._counted.read(size)
        import zstandard  # noqa: PLC0415 - a bare tar does without it

        try:
            block: bytes = self._source.read(size)
        except zstandard.ZstdError as error:
            raise Broken(f"the zstd frame is damaged: {error}") from None
        return block

    def _check_amount(self) -> None:
        limits = self._limits
        if self._given_bytes > limits.total_bytes:
            raise _too_much(limits)
        if self._given_bytes > limits.ratio_free_bytes + limits.ratio * self._counted.came_bytes:
            raise Broken(f"more than {limits.ratio} bytes come out of every one of it")


class _Counted:
    """A stream whose bytes are counted and hashed as they come."""

    def __init__(self, stream: BinaryIO, lane: HashLane) -> None:
        self.came_bytes = 0
        self._stream = stream
        self._lane = lane
        self._sha256 = sha256()
        self._ahead = b""

    def peek(self, size: int) -> bytes:
        while len(self._ahead) < size and (block := self._stream.read(size - len(self._ahead))):
            self._ahead += block
        return self._ahead[:size]

    def read(self, size: int) -> bytes:
        block = self._ahead or self._stream.read(size)
        self._ahead = block[size:]
        block = block[:size]
        self.came_bytes += len(block)
        self._lane.feed(self._sha256, block)
        return block

    def digest(self) -> Digest:
        self._lane.wait()
        return Digest(self._sha256.hexdigest())


class _OneFrame:
    """The bytes of exactly one frame, for a decompressor to read."""

    def __init__(self, source: _Counted, limits: Limits) -> None:
        self._source = source
        self._buffer = b""
        self._at = 0
        self._is_last = False
        self._pass_bytes = 0
        self._is_over = False
        head = _parse_head(self._look(18))
        _check_head(head, limits)
        self._has_checksum = head.has_checksum
        self._pass_bytes = head.size_bytes

    def read(self, size: int, /) -> bytes:
        """Give the next bytes of the frame; nothing once it is over."""
        pieces: list[bytes] = []
        while size and not self._is_over:
            if not self._pass_bytes:
                self._next_block()
                continue
            piece = self._take(min(size, self._pass_bytes))
            pieces.append(piece)
            size -= len(piece)
            self._pass_bytes -= len(piece)
        return b"".join(pieces)

    def check_end(self) -> None:
        """Raise `Broken` unless the archive ends where the frame does."""
        if not self._is_over and not (self._is_last and not self._pass_bytes):
            raise Broken("it ends too early")
        if self._at < len(self._buffer) or self._source.read(1):
            raise Broken("something follows the zstd frame")

    def _next_block(self) -> None:
        if self._is_last:
            self._is_over = True
            return
        head = self._look(3)
        if len(head) < 3:
            raise Broken("it ends too early")
        value = int.from_bytes(head, "little")
        kind, size_bytes = value >> 1 & 3, value >> 3
        if kind not in (_RAW, _RLE, _COMPRESSED):
            raise Broken("the zstd frame is damaged: a block of no known sort")
        self._pass_bytes = 3 + (1 if kind == _RLE else size_bytes)
        if value & 1:
            self._is_last = True
            self._pass_bytes += 4 if self._has_checksum else 0

    def _look(self, size: int) -> bytes:
        """Give the next bytes without passing them on, fewer at the end."""
        while len(self._buffer) - self._at < size and (more := self._source.read(_READ_BYTES)):
            self._buffer = self._buffer[self._at :] + more
            self._at = 0
        return self._buffer[self._at : self._at + size]

    def _take(self, size: int) -> bytes:
        piece = self._look(1) and self._buffer[self._at : self._at + size]
        if not piece:
            raise Broken("it ends too early")
        self._at += len(piece)
        return piece


def _decompressed(frame: _OneFrame) -> Any:
    import zstandard  # noqa: PLC0415 - a bare tar does without it

    decompressor = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW_BYTES)
    reader: Any = decompressor.stream_reader(cast("BinaryIO", frame), read_size=_READ_BYTES)
    return reader


def _parse_head(start: bytes) -> FrameHead:
    about = start[4] if len(start) > 4 else _RESERVED
    if about & _RESERVED:
        raise Broken("the zstd frame is damaged: its head can't be read")
    is_single = bool(about & _SINGLE_SEGMENT)
    window_at = 5
    dictionary_at = window_at + (0 if is_single else 1)
    content_at = dictionary_at + (0, 1, 2, 4)[about & 3]
    content_length = (1 if is_single else 0, 2, 4, 8)[about >> 6]
    end = content_at + content_length
    if len(start) < end:
        raise Broken("it ends too early")
    if any(start[dictionary_at:content_at]):
        raise Broken("the zstd frame needs a dictionary")
    content_bytes = int.from_bytes(start[content_at:end], "little") if content_length else None
    if content_bytes is not None and content_length == 2:
        content_bytes += 256
    return FrameHead(
        size_bytes=end,
        has_checksum=bool(about & _WITH_CHECKSUM),
        content_bytes=content_bytes,
        window_bytes=(content_bytes or 0) if is_single else _window_bytes(start[window_at]),
    )


def _window_bytes(descriptor: int) -> int:
    base = 1 << (10 + (descriptor >> 3))
    return base + base // 8 * (descriptor & 7)


def _check_head(head: FrameHead, limits: Limits) -> None:
    if head.window_bytes > LARGEST_WINDOW_BYTES:
        raise Broken(f"the zstd frame needs {format_size(head.window_bytes)} of memory to be unpacked")
    if head.content_bytes is not None and head.content_bytes > limits.total_bytes:
        raise _too_much(limits)


def _too_much(limits: Limits) -> Broken:
    return Broken(f"more than {format_size(limits.total_bytes)} come out of it")
