"""The canonical tar: one way to write a tree, byte for byte, whoever writes it and whenever.

POSIX headers with no time, no owner and one of two modes. What does not fit into one (a name that is long or beyond
ASCII, a size of 8 GiB or more) stands in a PAX header before it, which holds just that. Folders have no entries: a tree
is its files. The archive ends with two blocks of zeros and nothing after them.
"""

from __future__ import annotations

from collections.abc import Iterable

from stoker.model.artifacts import TreeEntry

BLOCK_BYTES = 512
END_OF_ARCHIVE = bytes(2 * BLOCK_BYTES)

_NAME_BYTES = 100
_LARGEST_OCTAL = 0o77777777777
_PAX_NAME = b"PaxHeader"


def head_of(entry: TreeEntry) -> bytes:
    """Give everything that stands before an entry's content."""
    records: list[tuple[bytes, bytes]] = []
    name = _fitting(b"path", entry.path, records)
    link = _fitting(b"linkpath", entry.link_to or "", records)
    size_bytes = 0 if entry.link_to is not None else entry.size_bytes
    if size_bytes > _LARGEST_OCTAL:
        records.append((b"size", b"%d" % size_bytes))
    mode = 0o755 if entry.executable or entry.link_to is not None else 0o644
    kind = b"0" if entry.link_to is None else b"2"
    header = _header(name, mode=mode, size_bytes=min(size_bytes, _LARGEST_OCTAL), kind=kind, link=link)
    if not records:
        return header
    body = b"".join(_pax_record(key, value) for key, value in sorted(records))
    above = _header(_PAX_NAME, mode=0o644, size_bytes=len(body), kind=b"x", link=b"")
    return b"".join((above, body, padding(len(body)), header))


def padding(size_bytes: int) -> bytes:
    """Give the zeros that fill the last block of a content."""
    return bytes(-size_bytes % BLOCK_BYTES)


def tar_bytes(entries: Iterable[TreeEntry]) -> int:
    """Give the size of the tar of some entries, before any of it is made."""
    size_bytes = len(END_OF_ARCHIVE)
    for entry in entries:
        content = 0 if entry.link_to is not None else entry.size_bytes
        size_bytes += len(head_of(entry)) + content + len(padding(content))
    return size_bytes


def _fitting(key: bytes, text: str, records: list[tuple[bytes, bytes]]) -> bytes:
    raw = text.encode()
    if len(raw) <= _NAME_BYTES and text.isascii():
        return raw
    records.append((key, raw))
    # Only readers that know no PAX look at this one; without folders it can't lead them astray.
    return text.rpartition("/")[2].encode("ascii", "replace")[:_NAME_BYTES]


def _pax_record(key: bytes, value: bytes) -> bytes:
    # Its length counts its own digits.
    rest = len(key) + len(value) + 3
    length = rest + len(b"%d" % rest)
    if length != rest + len(b"%d" % length):
        length += 1
    return b"%d %b=%b\n" % (length, key, value)


def _header(name: bytes, *, mode: int, size_bytes: int, kind: bytes, link: bytes) -> bytes:
    zero = b"0000000\0"
    before = b"%b%07o\0%b%b%011o\0%011o\0" % (name.ljust(_NAME_BYTES, b"\0"), mode, zero, zero, size_bytes, 0)
    after = b"%b%bustar\x0000%b" % (kind, link.ljust(_NAME_BYTES, b"\0"), bytes(247))
    total = sum(before) + 8 * ord(" ") + sum(after)
    return b"%b%06o\0 %b" % (before, total, after)
