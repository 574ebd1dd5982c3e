"""Lines of a log of any size by their numbers, and those that hold a text. Memory stays at a block of the file.

Counts of lines per block are kept between looks, so that the end of a long log is found at once. A line is its first
`LONGEST_LINE_BYTES`; of one that a program wrote over with carriage returns, what a terminal shows last.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from codecs import getincrementaldecoder
from collections import OrderedDict
from collections.abc import Iterator

from stoker.core.frozen import frozen
from stoker.core.text import lazy_pattern, outside
from stoker.host.durable import open_regular

LONGEST_LINE_BYTES = 4096
BLOCK_BYTES = 1 << 20
_ESCAPES = lazy_pattern(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_DECODER = getincrementaldecoder("utf-8")


@frozen
class LogTextLine:
    """One line of a log."""

    number: int
    text: str
    is_cut: bool = False
    """Only its beginning is here."""


def shown_text(data: bytes, *, is_cut: bool = False) -> str:
    """Return bytes of a line as text that is safe to show: colours removed, other control codes as escapes."""
    # A character that the cut went through is left out.
    text = _DECODER("backslashreplace").decode(data, final=not is_cut)
    if text.isprintable():
        return text
    return "\t".join(outside(part) for part in _ESCAPES.sub("", text).split("\t"))


class LogIndex:
    """Counts of lines of the logs that were looked at last. Thread-safe."""

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._guard = threading.Lock()
        self._counts: OrderedDict[str, tuple[int, list[int]]] = OrderedDict()

    def log(self, path: str) -> LogText:
        """Return a log as it is now; an empty one if it can't be read."""
        with self._guard:
            inode, counts = self._counts.pop(path, (0, [0]))
        try:
            with open_regular(path) as file:
                info = os.fstat(file.fileno())
                if info.st_ino != inode or info.st_size < (len(counts) - 1) * BLOCK_BYTES:
                    counts = [0]
                counts = list(counts)
                size_bytes = info.st_size
                file.seek((len(counts) - 1) * BLOCK_BYTES)
                while len(counts) * BLOCK_BYTES <= size_bytes:
                    counts.append(counts[-1] + file.read(BLOCK_BYTES).count(b"\n"))
                rest = file.read(size_bytes - (len(counts) - 1) * BLOCK_BYTES)
        except OSError:
            return LogText(path, [0], 0, 0)
        with self._guard:
            self._counts[path] = info.st_ino, counts
            while len(self._counts) > self._most:
                self._counts.popitem(last=False)
        ends = counts[-1] + rest.count(b"\n")
        is_open = not _ends_line(path, size_bytes)
        return LogText(path, counts, size_bytes, ends + is_open, inode=info.st_ino, is_open=is_open)


def _ends_line(path: str, size_bytes: int) -> bool:
    """Return True if a file is empty or its last byte ends a line."""
    if not size_bytes:
        return True
    try:
        with open_regular(path) as file:
            file.seek(size_bytes - 1)
            return file.read(1) == b"\n"
    except OSError:
        return True


class LogText:
    """One log as it was when it was looked at."""

    def __init__(
        self, path: str, counts: list[int], size_bytes: int, total: int, *, inode: int = 0, is_open: bool = False
    ) -> None:
        self._path = path
        self._counts = counts
        self.size_bytes = size_bytes
        self.total = total
        """Number of its lines."""
        self.inode = inode
        self.is_open = is_open
        """Its last line has no end yet."""

    def lines(self, start: int, end: int) -> Iterator[LogTextLine]:
        """Return lines by number, `end` not included."""
        if start >= min(end, self.total):
            return
        # The block before the one in which so many lines have ended: the line begins there or behind it.
        block = max(0, bisect_left(self._counts, start) - 1)
        for line in self._scan(block, b"", start):
            if line.number >= end:
                return
            yield line

    def search(self, needle: bytes) -> Iterator[LogTextLine]:
        """Return the lines that hold a text, given in lower case; letters outside of ASCII count as they are."""
        return self._scan(0, needle, 0)

    def _scan(self, block: int, needle: bytes, start: int) -> Iterator[LogTextLine]:
        line = _LineBytes(self._counts[block], needle)
        left_bytes = self.size_bytes - block * BLOCK_BYTES
        try:
            with open_regular(self._path) as file:
                file.seek(block * BLOCK_BYTES)
                while left_bytes > 0 and (data := file.read(min(BLOCK_BYTES, left_bytes))):
                    left_bytes -= len(data)
                    if not line.may_match(data):
                        line.skip(data)
                        continue
                    for piece in data.splitlines(keepends=True) if b"\r" not in data else _split(data):
                        line.add(piece)
                        if piece.endswith(b"\n"):
                            if line.number >= start and line.is_match:
                                yield line.shown()
                            line.next()
        except OSError:
            return
        if line.size_bytes and line.number >= start and line.is_match:
            yield line.shown()


def _split(data: bytes) -> Iterator[bytes]:
    """Return lines with their ends: `splitlines` would end them at carriage returns, too."""
    *whole, rest = data.split(b"\n")
    yield from (part + b"\n" for part in whole)
    if rest:
        yield rest


class _LineBytes:
    """The line that is being read: its beginning, and whether it holds a text."""

    def __init__(self, number: int, needle: bytes) -> None:
        self.number = number
        self.size_bytes = 0
        self._needle = needle
        self._head = b""
        self._before = b""
        """The last bytes of what was read: the text may begin there."""
        self._is_cut = False
        self._is_match = False

    @property
    def is_match(self) -> bool:
        return self._is_match or not self._needle

    def may_match(self, data: bytes) -> bool:
        return not self._needle or self._needle in self._before + data.lower()

    def add(self, piece: bytes) -> None:
        """Add bytes of the line."""
        self.size_bytes += len(piece)
        if self._needle and not self._is_match:
            lowered = self._before + piece.lower()
            self._is_match = self._needle in lowered
            self._before = lowered[len(lowered) - len(self._needle) + 1 :] if len(self._needle) > 1 else b""
        if b"\r" in piece or self._head.endswith(b"\r"):
            bare = piece.rstrip(b"\r\n")
            at = bare.rfind(b"\r")
            if at >= 0 or (bare and self._head.endswith(b"\r")):
                self._head, self._is_cut, piece = b"", False, piece[at + 1 :]
        room = LONGEST_LINE_BYTES - len(self._head)
        bare = piece.rstrip(b"\n")
        self._is_cut = self._is_cut or len(bare) > room
        self._head += bare[:room]

    def skip(self, data: bytes) -> None:
        """Pass over a block without a match."""
        ends = data.count(b"\n")
        if ends:
            self.number += ends
            self._begin()
            data = data[data.rfind(b"\n") + 1 :]
        if data:
            self.add(data)

    def next(self) -> None:
        self.number += 1
        self._begin()

    def shown(self) -> LogTextLine:
        text = shown_text(self._head.rstrip(b"\r"), is_cut=self._is_cut)
        return LogTextLine(number=self.number, text=text, is_cut=self._is_cut)

    def _begin(self) -> None:
        self.size_bytes = 0
        self._head = b""
        self._before = b""
        self._is_cut = False
        self._is_match = False
