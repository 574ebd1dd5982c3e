r"""Records: a tree of files under a key, small ones inline, and a body that only its writer reads.

A record is one file, framed so that nothing torn or edited is ever taken for whole:

    stoker-record 1 <sha256 of the rest>\n
    <key> <tree digest> <flags> <bytes of contents> <bytes of body>\n
    <contents: JSON> <body: JSON> <inline bytes>

Flags: `B` names blobs, `T` is a tombstone, `-` neither. A lookup reads the two lines and checks the sum; the rest is
parsed on access. A record is published after every blob it names and never changes, except that
pruning replaces it by its tombstone: the same record without its bytes. The file's mtime is when it was last used.
"""

from __future__ import annotations

import errno
import os
from hashlib import sha256
from typing import Any

from stoker.core.digests import Digest, Tree, TreeEntry, digest_value
from stoker.core.errors import CorruptBytes
from stoker.core.jsontext import dumps, loads

FORMAT = 1
_MAGIC = b"stoker-record %d " % FORMAT
_SUM_END = len(_MAGIC) + 64
_LONGEST_LINE = 200
_WHOLE_BUT_WRONG = "is whole, but not a record"

# Nonblocking, because a pipe in a record's place would block for ever.
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW

# Errors of reading something else than a file, or a file that the disk can't read.
_UNREADABLE = frozenset({errno.EISDIR, errno.EIO, errno.ELOOP, errno.ENXIO})


class BadRecord(Exception):
    """Not a valid record file; the text is the reason."""


class Record:
    """The value of a key. Immutable."""

    __slots__ = ("_body_text", "_contents", "_inline", "_inline_bytes", "_tree", "digest", "flags", "key")

    def __init__(
        self, *, key: Digest, digest: Digest, flags: str, contents: bytes, body_text: bytes, inline_bytes: bytes
    ) -> None:
        self.key = key
        self.digest = digest
        """Of the tree."""
        self.flags = flags
        self._contents = contents
        self._body_text = body_text
        self._inline_bytes = inline_bytes
        self._tree: Tree | None = None
        self._inline: dict[str, bytes] = {}

    @classmethod
    def of(cls, *, key: Digest, tree: Tree, inline: dict[str, bytes], body: dict[str, Any]) -> Record:
        """Make the record of a tree whose small files are given and whose other files are blobs."""
        names_blobs = any(entry.link_to is None and entry.path not in inline for entry in tree.entries)
        return cls(
            key=key,
            digest=tree.digest(),
            flags="B" if names_blobs else "-",
            contents=_write_contents(tree, inline),
            body_text=dumps(body).encode(),
            inline_bytes=b"".join(inline.values()),
        )

    @property
    def is_tombstone(self) -> bool:
        """Pruned: its description is known, the bytes are gone."""
        return self.flags == "T"

    @property
    def tree(self) -> Tree:
        if self._tree is None:
            self._parse()
        return self._tree  # type: ignore[return-value]  # parsed just above

    @property
    def inline(self) -> dict[str, bytes]:
        """Content of the small files, by path; every other file is a blob."""
        if self._tree is None:
            self._parse()
        return self._inline

    @property
    def body(self) -> dict[str, Any]:
        """What its writer stored beside it."""
        try:
            parsed: dict[str, Any] = loads(self._body_text)
        except ValueError as error:
            raise CorruptBytes(f"{_WHOLE_BUT_WRONG}: {error}") from None
        return parsed

    def blobs(self) -> list[TreeEntry]:
        """Return the entries whose bytes are in blobs."""
        if self.flags != "B":
            return []
        return [entry for entry in self.tree.entries if entry.link_to is None and entry.path not in self.inline]

    def without_bytes(self) -> Record:
        """Return the tombstone of this record."""
        return Record(
            key=self.key,
            digest=self.digest,
            flags="T",
            contents=_write_contents(self.tree, {}),
            body_text=self._body_text,
            inline_bytes=b"",
        )

    def under(self, key: Digest, body: dict[str, Any]) -> Record:
        """Return a record of the same bytes under another key."""
        return Record(
            key=key,
            digest=self.digest,
            flags=self.flags,
            contents=self._contents,
            body_text=dumps(body).encode(),
            inline_bytes=self._inline_bytes,
        )

    def to_bytes(self) -> bytes:
        """Frame the record as the bytes of its file."""
        lengths = (len(self._contents), len(self._body_text))
        line = f"{self.key} {self.digest} {self.flags} {lengths[0]} {lengths[1]}\n".encode()
        rest = b"".join((line, self._contents, self._body_text, self._inline_bytes))
        return b"%b%b\n%b" % (_MAGIC, sha256(rest).hexdigest().encode(), rest)

    def _parse(self) -> None:
        try:
            raw = loads(self._contents)
            tree = Tree(tuple(TreeEntry(path, size, sha, bool(x), link) for path, size, sha, x, link in raw["tree"]))
            start = 0
            for path, length in raw["inline"]:
                self._inline[path] = self._inline_bytes[start : start + length]
                start += length
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptBytes(f"{_WHOLE_BUT_WRONG}: {error}") from None
        self._tree = tree


def read_record(data: bytes, key: Digest) -> Record:
    """Parse a record's file; `BadRecord` if it is not whole or not under its own key."""
    if not data.startswith(_MAGIC) or data[_SUM_END : _SUM_END + 1] != b"\n":
        message = "does not begin as a record" if data else "is empty"
        raise BadRecord(message)
    rest = data[_SUM_END + 1 :]
    if sha256(rest).hexdigest().encode() != data[len(_MAGIC) : _SUM_END]:
        message = "does not match its checksum"
        raise BadRecord(message)
    line_end = rest.find(b"\n", 0, _LONGEST_LINE)
    try:
        own_key, digest, flags, contents_bytes, body_bytes = rest[:line_end].decode().split(" ")
        contents_end = line_end + 1 + int(contents_bytes)
        body_end = contents_end + int(body_bytes)
    except ValueError:
        message = "has a head that does not parse"
        raise BadRecord(message) from None
    if own_key != key:
        message = f"is the record of {own_key[:12]}"
        raise BadRecord(message)
    return Record(
        key=key,
        digest=Digest(digest),
        flags=flags,
        contents=rest[line_end + 1 : contents_end],
        body_text=rest[contents_end:body_end],
        inline_bytes=rest[body_end:],
    )


def parse_record(data: bytes, key: Digest) -> Record:
    """Parse a record's file down to the last field; `BadRecord` as in `read_record`."""
    record = read_record(data, key)
    try:
        _ = record.tree, record.body
    except CorruptBytes as error:
        raise BadRecord(str(error)) from None
    return record


def read_file(path: str) -> tuple[bytes, os.stat_result] | None:
    """Read a record's file whole, with its stamp, or return nothing if there is none."""
    try:
        descriptor = os.open(path, _OPEN)
        return _read_all(descriptor)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        message = f"can't be read: {os.strerror(error.errno or 0).lower()}"
        raise BadRecord(message) from None


def _read_all(descriptor: int) -> tuple[bytes, os.stat_result]:
    try:
        data = os.read(descriptor, 1 << 16)
        if len(data) == 1 << 16:
            parts = [data]
            while part := os.read(descriptor, 1 << 20):
                parts.append(part)
            data = b"".join(parts)
        return data, os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _write_contents(tree: Tree, inline: dict[str, bytes]) -> bytes:
    return dumps(
        {
            "tree": [
                [entry.path, entry.size_bytes, entry.sha256, int(entry.executable), entry.link_to]
                for entry in tree.entries
            ],
            "inline": [[path, len(data)] for path, data in inline.items()],
        }
    ).encode()


# Small files with a check of their own content: one JSON object.
#
# `sealed` is the type of the file and its format; the check covers it too, so that one type is never taken for another.
# A file that is torn, edited or of another format is refused with its reason. Only the content is checked: another
# layout of the text changes nothing.

_MARK = "sealed"
_CHECK = "check"


class BrokenSeal(ValueError):
    """These bytes are not what was sealed; the text is the reason, beginning with a verb whose subject is the file."""


def seal(domain: str, body: dict[str, Any], *, indent: int | None = None) -> bytes:
    """Return the bytes of a file: a line of JSON, or several for people. `domain` is `TYPE/FORMAT`."""
    content = {_MARK: domain, **body}
    return f"{dumps({**content, _CHECK: _check(content)}, indent=indent)}\n".encode()


def unseal(domain: str, data: bytes) -> dict[str, Any]:
    """Return the sealed body; `BrokenSeal` if these bytes are not that, or not all of it."""
    if not data.endswith(b"\n"):
        raise BrokenSeal("has no end")
    try:
        content = loads(data)
    except ValueError:
        raise BrokenSeal("is not JSON") from None
    if not isinstance(content, dict) or _MARK not in content or _CHECK not in content:
        raise BrokenSeal("has no seal")
    check = content.pop(_CHECK)
    if content[_MARK] != domain:
        raise BrokenSeal(f"is sealed as {content[_MARK]!r}, not as {domain!r}")
    if check != _check(content):
        raise BrokenSeal("does not match its check: it was edited, or is not whole")
    del content[_MARK]
    return content


def _check(content: dict[str, Any]) -> Digest:
    return digest_value("sealed", dumps(content, sort_keys=True).encode())
