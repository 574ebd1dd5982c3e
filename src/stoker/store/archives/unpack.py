"""The bytes inside an untrusted archive: a tar in one zstd frame, or a bare tar.

Guards against what compression allows: more output than the limits, a frame that needs gigabytes of memory, a second
frame or data behind the first, a premature end. The frame is walked block by block during its decompression, so that
its end is known to the byte. zstandard is imported for a frame only.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from hashlib import sha256
from types import TracebackType
from typing import Any, BinaryIO, Self, cast

from stoker.core.digests import Digest, Tree, TreeEntry, digest_bytes
from stoker.core.frozen import frozen
from stoker.core.text import format_size
from stoker.host.durable import open_regular, remove_tree, translated
from stoker.host.writers import copy_bytes
from stoker.store.archives.archive_members import ArchiveLimits, ArchiveMembers
from stoker.store.archives.tar import Broken, TarMember, TarMemberType, TarReader
from stoker.store.local_store import INLINE_FILE_BYTES, MOST_INLINE_FILES
from stoker.store.trees import HashLane, WalkedEntry

# The window of `zstd -19` still fits; larger ones are made on purpose.
LARGEST_WINDOW_BYTES = 1 << 26
_MAGIC = b"\x28\xb5\x2f\xfd"
_READ_BYTES = 1 << 18
_WITH_CHECKSUM, _SINGLE_SEGMENT, _RESERVED = 0x04, 0x20, 0x08
_RAW, _RLE, _COMPRESSED = 0, 1, 2


@frozen
class FrameHead:
    """The head of a frame."""

    size_bytes: int
    """Of the head."""
    has_checksum: bool
    content_bytes: int | None
    window_bytes: int


class ArchiveBytes:
    """The uncompressed content of an archive, within limits. `read` returns fewer bytes than given only at the end."""

    def __init__(self, stream: BinaryIO, limits: ArchiveLimits, lane: HashLane) -> None:
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
        """Check that nothing is left; return the SHA-256 and the size of the archive."""
        if self.read(1):
            raise Broken("data after the end of the tar")
        if self._frame is not None:
            self._frame.check_end()
        return self._counted.digest(), self._counted.came_bytes

    def _read_some(self, size: int) -> bytes:
        if self._frame is None:
            return self._counted.read(size)
        import zstandard  # noqa: PLC0415 - not needed for a bare tar

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
            raise Broken(f"it expands by more than {limits.ratio} times")


class _Counted:
    """A stream whose bytes are counted and hashed as they are read."""

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

    def __init__(self, source: _Counted, limits: ArchiveLimits) -> None:
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
        """Return the next bytes of the frame; empty at its end."""
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
            raise Broken("data after the zstd frame")

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
            raise Broken("the zstd frame is damaged: a block of an unknown type")
        self._pass_bytes = 3 + (1 if kind == _RLE else size_bytes)
        if value & 1:
            self._is_last = True
            self._pass_bytes += 4 if self._has_checksum else 0

    def _look(self, size: int) -> bytes:
        """Return the next bytes without consuming them, fewer at the end."""
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
    import zstandard  # noqa: PLC0415 - not needed for a bare tar

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


def _check_head(head: FrameHead, limits: ArchiveLimits) -> None:
    if head.window_bytes > LARGEST_WINDOW_BYTES:
        raise Broken(f"the zstd frame needs {format_size(head.window_bytes)} of memory to be unpacked")
    if head.content_bytes is not None and head.content_bytes > limits.total_bytes:
        raise _too_much(limits)


def _too_much(limits: ArchiveLimits) -> Broken:
    return Broken(f"it expands to more than {format_size(limits.total_bytes)}")


DEFAULT_LIMITS = ArchiveLimits()
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Too many already, or the file system has none.
_NO_LINK = frozenset({errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})
_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@frozen
class UnpackedBundle:
    """A tree that was unpacked into a folder."""

    tree: Tree
    archive_sha256: Digest
    archive_bytes: int
    found: tuple[WalkedEntry, ...]
    """The entries with their paths, as the store takes them in."""
    small: dict[str, bytes]
    """The contents of small files by their paths, as far as a record could hold them."""


def unpack(stream: BinaryIO, folder: str, *, limits: ArchiveLimits = DEFAULT_LIMITS) -> UnpackedBundle:
    """Unpack an archive (`tar.zst` or `tar`) into a folder that must be new; on any error it is removed.

    `InvalidArchive` names everything that must not be unpacked.

    Everything is streamed, one member at a time. After the first fault nothing is written any more, but the rest is
    still read, so that all faults are reported together; then the folder is removed. Files are made by the descriptors
    of folders that we made, never through a link; the archive's own links are made last. Times, owners and all modes
    but the executable bit are dropped; a hard link becomes an entry of its own, which costs no bytes while it is
    unpacked.
    """
    with translated(folder):
        os.mkdir(folder)
    try:
        return _unpack(stream, folder, limits)
    except BaseException:
        remove_tree(folder)
        raise


def _unpack(stream: BinaryIO, folder: str, limits: ArchiveLimits) -> UnpackedBundle:
    roll = ArchiveMembers(limits)
    archive_sha256, archive_bytes = Digest(""), 0
    hint = "nothing of it was kept; supported are .tar.zst and .tar without that"
    with HashLane() as archive_lane, _UnpackFolder(folder) as filled:
        try:
            archive = ArchiveBytes(stream, limits, archive_lane)
            tar = TarReader(archive)
            for member in tar:
                path = roll.admit(member)
                if not path or roll.faults.count:
                    continue
                if member.sort is TarMemberType.HARDLINK:
                    filled.copy(path, roll.original_of(member))
                else:
                    filled.place(path, member, tar.content())
            archive_sha256, archive_bytes = archive.finish()
        except Broken as broken:
            roll.faults.add("", str(broken))
            hint = broken.hint or hint
        roll.settle()
        roll.faults.raise_any("the archive can't be unpacked", hint=hint)
        for path, target in roll.links.items():
            filled.link(path, target)
        found = [filled.found[path] for path in sorted(filled.found)]
    return UnpackedBundle(
        tree=Tree(tuple(walked.entry for walked in found)),
        archive_sha256=archive_sha256,
        archive_bytes=archive_bytes,
        found=tuple(found),
        small=filled.small,
    )


class _UnpackFolder:
    """The folder while it is filled. All paths are relative to it, and known to be safe and new."""

    def __init__(self, folder: str) -> None:
        self.found: dict[str, WalkedEntry] = {}
        self.small: dict[str, bytes] = {}
        # Of files with the maximum number of links: the copy that gets the next ones.
        self._copies: dict[str, WalkedEntry] = {}
        self._folder = folder
        self._lane = HashLane()
        # The path to the folder of the last file: its names, and before them the top.
        self._names: list[str] = []
        with translated(folder):
            self._descriptors = [os.open(folder, _FOLDER)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lane.close()
        while self._descriptors:
            os.close(self._descriptors.pop())

    def place(self, path: str, member: TarMember, content: Iterator[bytes]) -> None:
        """Make a file with the content of a member."""
        target = os.path.join(self._folder, path)
        with self._create(path, is_executable=member.is_executable) as file:
            if member.size_bytes <= INLINE_FILE_BYTES:
                data = b"".join(content)
                digest = digest_bytes(data)
                with translated(target):
                    file.write(data)
                if len(self.small) < MOST_INLINE_FILES:
                    self.small[target] = data
            else:
                digest = self._stream(file, target, content)
            self._note(TreeEntry(path, member.size_bytes, digest, member.is_executable), file)

    def copy(self, path: str, original: str) -> None:
        """Make an entry with the content and the executable bit of an earlier one: one more name of its file.

        A tiny archive may contain very many. It is copied only if the file can't have one more name.
        """
        entry = self.found[original].entry
        first = self.found[original].path
        walked = self._copies.get(first, self.found[original])
        twin = TreeEntry(path, entry.size_bytes, entry.sha256, entry.executable)
        target = os.path.join(self._folder, path)
        with translated(target):
            name, folder = self._reach(path)
            try:
                os.link(walked.path, name, dst_dir_fd=folder, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                self._copy(twin, walked.path)
                # The next names are the copy's: otherwise each of them would be one more copy.
                self._copies[first] = self.found[path]
                return
        # The stamp of the original before it had more names: that is what the store takes in, once for all of them.
        self.found[path] = WalkedEntry(twin, walked.path, walked.info)

    def _copy(self, twin: TreeEntry, source: str) -> None:
        with open_regular(source) as old, self._create(twin.path, is_executable=twin.executable) as file:
            copy_bytes(old, file)
            self._note(twin, file)
        if source in self.small:
            self.small[os.path.join(self._folder, twin.path)] = self.small[source]

    def link(self, path: str, target: str) -> None:
        """Make a symlink."""
        full = os.path.join(self._folder, path)
        text = target.encode()
        with translated(full):
            name, folder = self._reach(path)
            os.symlink(target, name, dir_fd=folder)
            info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        entry = TreeEntry(path, len(text), digest_bytes(text), link_to=target)
        self.found[path] = WalkedEntry(entry, full, info)

    def _stream(self, file: BinaryIO, target: str, content: Iterator[bytes]) -> Digest:
        # Only errors of the disk are translated: errors of the archive's stream are the caller's.
        hashing = sha256()
        for block in content:
            self._lane.feed(hashing, block)
            with translated(target):
                file.write(block)
        self._lane.wait()
        return Digest(hashing.hexdigest())

    def _note(self, entry: TreeEntry, file: BinaryIO) -> None:
        target = os.path.join(self._folder, entry.path)
        with translated(target):
            file.flush()
            info = os.fstat(file.fileno())
        self.found[entry.path] = WalkedEntry(entry, target, info)

    def _create(self, path: str, *, is_executable: bool) -> BinaryIO:
        with translated(os.path.join(self._folder, path)):
            name, folder = self._reach(path)
            descriptor = os.open(name, _FILE, 0o644, dir_fd=folder)
            if is_executable:
                # Explicitly: a umask must not change the tree.
                os.fchmod(descriptor, 0o755)
            return open(descriptor, "wb")

    def _reach(self, path: str) -> tuple[str, int]:
        """Open the folder of a path, making what is missing; return the last name and the folder's descriptor."""
        *folders, name = path.split("/")
        shared = 0
        while shared < min(len(folders), len(self._names)) and folders[shared] == self._names[shared]:
            shared += 1
        while len(self._names) > shared:
            os.close(self._descriptors.pop())
            self._names.pop()
        for folder in folders[shared:]:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, dir_fd=self._descriptors[-1])
            self._descriptors.append(os.open(folder, _FOLDER, dir_fd=self._descriptors[-1]))
            self._names.append(folder)
        return name, self._descriptors[-1]
