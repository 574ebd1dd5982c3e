"""A reader of untrusted tar files, member by member.

Strict where readers are known to differ: a header of doubtful meaning ends the reading. Only one header is kept in
memory, and no header may be large. `archive_members` decides which names and members may be unpacked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Protocol

from stoker.core.digests import TreeEntry
from stoker.core.frozen import changed, frozen

# The canonical tar: one way to write a tree, byte for byte.
#
# POSIX headers with no time, no owner and one of two modes. What does not fit into one (a name that is long or beyond
# ASCII, a size of 8 GiB or more) is in a PAX header before it, which holds just that. Folders have no entries: a tree
# is its files. The archive ends with two blocks of zeros and nothing after them.

BLOCK_BYTES = 512
END_OF_ARCHIVE = bytes(2 * BLOCK_BYTES)

_NAME_BYTES = 100
_LARGEST_OCTAL = 0o77777777777
_PAX_NAME = b"PaxHeader"


def head_of(entry: TreeEntry) -> bytes:
    """Return the headers of an entry."""
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
    """Return the zeros that fill the last block of a content."""
    return bytes(-size_bytes % BLOCK_BYTES)


def tar_bytes(entries: Iterable[TreeEntry]) -> int:
    """Return the size of the tar of some entries, before any of it is made."""
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
    # Only readers without PAX use this one; without folders it can't lead them astray.
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


LARGEST_HEADER_BYTES = 64 * 1024
_MOST_GLOBAL_HEADERS = 16
_READ_BYTES = 1 << 20
_ZEROS = bytes(BLOCK_BYTES)
_CHECKSUM = slice(148, 156)
_LARGEST_SIZE = (1 << 63) - 1


class Broken(Exception):
    """The archive can't be read any further; the text is the reason, and a hint what to do in special cases."""

    def __init__(self, text: str, *, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


class TarMemberType(StrEnum):
    """Type of a member."""

    FILE = "file"
    FOLDER = "folder"
    SYMLINK = "symlink"
    HARDLINK = "hard link"
    OTHER = "other"


@frozen
class TarMember:
    """One member as in the archive, nothing checked."""

    name: str
    sort: TarMemberType
    size_bytes: int = 0
    is_executable: bool = False
    link: str = ""
    oddity: str = ""
    """Why it can't be unpacked, whatever its name is."""


class TarSource(Protocol):
    """Where a tar comes from."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, fewer only at the end."""


class TarReader:
    """Yields the members of a tar; the content of each can be read until the next."""

    def __init__(self, source: TarSource) -> None:
        self._source = source
        self._left_bytes = 0
        self._padding_bytes = 0
        self._global_headers = 0
        self._has_begun = False

    def __iter__(self) -> Iterator[TarMember]:
        while (member := self._next()) is not None:
            yield member
            for _ in self.content():
                pass
        self._check_end()

    def content(self) -> Iterator[bytes]:
        """Return the rest of the content of the current member."""
        while self._left_bytes:
            block = self._exactly(min(self._left_bytes, _READ_BYTES))
            self._left_bytes -= len(block)
            yield block
        if self._padding_bytes:
            self._exactly(self._padding_bytes)
            self._padding_bytes = 0

    def _next(self) -> TarMember | None:
        extended: dict[str, str] = {}
        while True:
            header = self._exactly(BLOCK_BYTES) if self._has_begun else self._first_header()
            if header == _ZEROS:
                if extended:
                    raise Broken("it ends after an extended header")
                return None
            _check_sum(header)
            kind, size_bytes = header[156:157], _number(header[124:136])
            if kind in _EXTENDING:
                self._extend(extended, kind, size_bytes)
                continue
            if "size" in extended:
                size_bytes = _decimal(extended["size"])
            member = _member(header, kind, size_bytes, extended)
            if member.sort in _WITHOUT_CONTENT and size_bytes:
                raise Broken(f"{member.sort} {member.name[:100]!a} claims to have content")
            self._left_bytes, self._padding_bytes = size_bytes, -size_bytes % BLOCK_BYTES
            return member

    def _first_header(self) -> bytes:
        """Read the first block; a file of another type is named in the error."""
        self._has_begun = True
        block = self._source.read(BLOCK_BYTES)
        is_like_tar = len(block) == BLOCK_BYTES and (block[257:262] == b"ustar" or _has_right_sum(block))
        if not is_like_tar and block != _ZEROS:
            known = next((name for start, name in _STARTS if block.startswith(start)), "")
            what = f"this is {known}" if known else "not a tar" if block else "the file is empty"
            raise Broken(f"{what}; supported are .tar and .tar.zst", hint=_OTHERWISE)
        return block

    def _extend(self, extended: dict[str, str], kind: bytes, size_bytes: int) -> None:
        if size_bytes > LARGEST_HEADER_BYTES:
            raise Broken(f"an extended header has {size_bytes} bytes")
        body = self._exactly(size_bytes)
        self._exactly(-size_bytes % BLOCK_BYTES)
        long_field = _LONG_FIELDS.get(kind)
        found = {long_field: _text(body.rstrip(b"\0"))} if long_field else _pax(body)
        if kind == b"g":
            self._global_headers += 1
            if self._global_headers > _MOST_GLOBAL_HEADERS or not _MEANING.isdisjoint(found):
                raise Broken("global headers are not supported: they would change the members after them")
            return
        twice = _MEANING & extended.keys() & found.keys()
        if twice or (kind == b"x" and _PAX_SEEN in extended):
            raise Broken("a member has the same extended header twice")
        extended.update(found)
        if kind == b"x":
            extended[_PAX_SEEN] = ""

    def _check_end(self) -> None:
        if self._exactly(BLOCK_BYTES) != _ZEROS:
            raise Broken("a block of zeros is between members")
        while block := self._source.read(_READ_BYTES):
            if block.strip(b"\0"):
                raise Broken("data after the end of the tar")

    def _exactly(self, size_bytes: int) -> bytes:
        block = self._source.read(size_bytes)
        if len(block) != size_bytes:
            raise Broken("it ends too early")
        return block


_STARTS = (
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
)
_OTHERWISE = "unpack it with its own program and put the folder; or put the file as it is"
_LONG_FIELDS = {b"L": "path", b"K": "linkpath"}
_EXTENDING = frozenset({b"x", b"g", *_LONG_FIELDS})
_MEANING = frozenset({"path", "linkpath", "size"})
_PAX_SEEN = "\0"
_SORTS = {
    b"0": TarMemberType.FILE,
    b"\0": TarMemberType.FILE,
    b"7": TarMemberType.FILE,
    b"1": TarMemberType.HARDLINK,
    b"2": TarMemberType.SYMLINK,
    b"5": TarMemberType.FOLDER,
}
_ODDITIES = {b"3": "is a device", b"4": "is a device", b"6": "is a pipe"}
_WITHOUT_CONTENT = frozenset({TarMemberType.HARDLINK, TarMemberType.SYMLINK, TarMemberType.FOLDER})


def _member(header: bytes, kind: bytes, size_bytes: int, extended: dict[str, str]) -> TarMember:
    name = extended.get("path", _short_name(header))
    link = extended.get("linkpath", _text(_until_zero(header[157:257])))
    mode = _number(header[100:108])
    if kind == b"S":
        # Its map may continue in blocks of its own, so the start of the next member is unknown.
        raise Broken(f"{name[:100]!a} is a sparse file")
    sort = _SORTS.get(kind, TarMemberType.OTHER)
    if sort is TarMemberType.FILE and name.endswith("/"):
        sort = TarMemberType.FOLDER
    member = TarMember(name=name, sort=sort, size_bytes=size_bytes, is_executable=bool(mode & 0o100), link=link)
    if any(key.startswith("GNU.sparse.") for key in extended):
        return changed(member, sort=TarMemberType.OTHER, oddity="is a sparse file")
    if sort is TarMemberType.OTHER:
        if kind in _ODDITIES and size_bytes:
            raise Broken(f"{name[:100]!a} {_ODDITIES[kind]} and claims to have content")
        return changed(member, oddity=_ODDITIES.get(kind, f"is of the unknown type {kind!a}"))
    return member


def _short_name(header: bytes) -> str:
    name = _until_zero(header[:100])
    # GNU's own format has other fields in the place of POSIX's name prefix.
    prefix = _until_zero(header[345:500]) if header[257:263] == b"ustar\0" else b""
    return _text(b"%b/%b" % (prefix, name) if prefix else name)


def _pax(body: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    start = 0
    while start < len(body):
        space = body.find(b" ", start, start + 8)
        digits = body[start:space] if space > 0 else b""
        end = start + _decimal(_text(digits))
        if end <= space or end > len(body) or body[end - 1 : end] != b"\n":
            raise Broken("an extended header does not parse")
        key, equals, value = body[space + 1 : end - 1].partition(b"=")
        if not equals:
            raise Broken("an extended header does not parse")
        name = _text(key)
        if name in found and name in _MEANING:
            raise Broken("an extended header has one key twice")
        found[name] = _text(value)
        start = end
    return found


def _sum_of(header: bytes) -> int:
    return sum(header) - sum(header[_CHECKSUM]) + 8 * ord(" ")


def _has_right_sum(header: bytes) -> bool:
    try:
        return _sum_of(header) == _number(header[_CHECKSUM])
    except Broken:
        return False


def _check_sum(header: bytes) -> None:
    if _sum_of(header) != _number(header[_CHECKSUM]):
        raise Broken("a header does not match its checksum, or this is not a tar")


def _number(field: bytes) -> int:
    if field[0] & 0x80:
        value = int.from_bytes(field, "big") & ((1 << (8 * len(field) - 1)) - 1)
        # The bit above means negative.
        if field[0] & 0x40 or value > _LARGEST_SIZE:
            raise Broken("a header has an invalid number")
        return value
    digits = _until_zero(field).strip(b" ")
    if digits.strip(b"01234567"):
        raise Broken("a header has a number that can't be read")
    return int(digits or b"0", 8)


def _decimal(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19) or int(text) > _LARGEST_SIZE:
        raise Broken("an extended header has an invalid number")
    return int(text)


def _until_zero(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
