"""Digests: what a thing is called by what it is.

A blob's digest is the plain SHA-256 of its bytes, so it equals what other tools print. Everything else carries a
domain tag, so that a tree, a key and an id never share a digest by accident. Text form: 64 lower-case hex digits.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from hashlib import sha256
from typing import BinaryIO, NewType

from stoker.core.frozen import frozen_by_position

# The canonical encoding: one value, one sequence of bytes, on every machine and in every version.
#
# Keys, ids and fingerprints are digests of these bytes. The form is tagged and length-prefixed:
#
# It promises: different typed values give different bytes; the order of a map's keys never matters; a value of any
# other type is an error, never its `repr`. Golden vectors are checked in beside the tests; a change here is a new
# key format (`engine.action.FORMAT`).

MAX_DEPTH = 64

_NAN = b"d" + struct.pack(">Q", 0x7FF8_0000_0000_0000)
_pack_float = struct.Struct(">d").pack


class NotEncodable(ValueError):
    """A value (or a part of it, named by its path) has no canonical form."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.reason = reason
        self.path = path

    def inside(self, step: object) -> NotEncodable:
        """Return the same refusal as seen from one level further out."""
        return NotEncodable(self.reason, f"[{step!r}]{self.path}")


def encode(value: object) -> bytes:
    """Return the canonical bytes of a value made of null, bool, int, float, str, bytes, list, tuple and dict."""
    parts: list[bytes] = []
    _encode(value, parts.append, 0)
    return b"".join(parts)


def encode_list(*items: bytes) -> bytes:
    """Return the canonical bytes of a list whose items are given by their canonical bytes."""
    return b"l%d:%b" % (len(items), b"".join(items))


def _encode(value: object, put: Callable[[bytes], None], depth: int) -> None:
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        message = f"{type(value).__module__}.{type(value).__qualname__} has no canonical form"
        raise NotEncodable(message)
    encoder(value, put, depth)


def _encode_none(_value: object, put: Callable[[bytes], None], _depth: int) -> None:
    put(b"N")


def _encode_bool(value: object, put: Callable[[bytes], None], _depth: int) -> None:
    put(b"T" if value else b"F")


def _encode_int(value: int, put: Callable[[bytes], None], _depth: int) -> None:
    try:
        digits = b"%d" % value
    except ValueError:
        # Python limits the digits that it writes (sys.set_int_max_str_digits).
        message = f"integer of {value.bit_length()} bits has too many digits"
        raise NotEncodable(message) from None
    put(b"i%d:%b" % (len(digits), digits))


def _encode_float(value: float, put: Callable[[bytes], None], _depth: int) -> None:
    put(_NAN if math.isnan(value) else b"d" + _pack_float(value))


def _encode_str(value: str, put: Callable[[bytes], None], _depth: int) -> None:
    try:
        text = value.encode()
    except UnicodeEncodeError as error:
        message = f"text is not valid Unicode: {error.reason}"
        raise NotEncodable(message) from None
    put(b"s%d:%b" % (len(text), text))


def _encode_bytes(value: bytes, put: Callable[[bytes], None], _depth: int) -> None:
    put(b"b%d:%b" % (len(value), value))


def _encode_list(value: list[object] | tuple[object, ...], put: Callable[[bytes], None], depth: int) -> None:
    if depth >= MAX_DEPTH:
        message = f"nested deeper than {MAX_DEPTH} levels, or in a cycle"
        raise NotEncodable(message)
    put(b"l%d:" % len(value))
    for index, item in enumerate(value):
        try:
            _ENCODERS.get(type(item), _encode)(item, put, depth + 1)
        except NotEncodable as error:
            raise error.inside(index) from None


def _encode_map(value: dict[object, object], put: Callable[[bytes], None], depth: int) -> None:
    if depth >= MAX_DEPTH:
        message = f"nested deeper than {MAX_DEPTH} levels, or in a cycle"
        raise NotEncodable(message)
    keyed = []
    for key, item in value.items():
        if type(key) is not str:
            message = f"map key {key!r} is not a string"
            raise NotEncodable(message)
        try:
            keyed.append((key.encode(), item))
        except UnicodeEncodeError as error:
            message = f"map key is not valid Unicode: {error.reason}"
            raise NotEncodable(message) from None
    keyed.sort(key=_first)
    put(b"m%d:" % len(keyed))
    for text, item in keyed:
        put(b"s%d:%b" % (len(text), text))
        try:
            _ENCODERS.get(type(item), _encode)(item, put, depth + 1)
        except NotEncodable as error:
            raise error.inside(text.decode()) from None


def _first(pair: tuple[bytes, object]) -> bytes:
    return pair[0]


# Exact types only: a subclass (a NumPy float, an enum) may print or compare differently, so the caller converts it
# to the plain type.
_ENCODERS: dict[type, Callable[..., None]] = {
    type(None): _encode_none,
    bool: _encode_bool,
    int: _encode_int,
    float: _encode_float,
    str: _encode_str,
    bytes: _encode_bytes,
    list: _encode_list,
    tuple: _encode_list,
    dict: _encode_map,
}


Digest = NewType("Digest", str)

_HEX = frozenset("0123456789abcdef")


def digest_bytes(data: bytes) -> Digest:
    """Digest a blob: plain SHA-256."""
    return Digest(sha256(data).hexdigest())


def digest_value(domain: str, value: object) -> Digest:
    """Digest a structured value under a domain such as `key` or `tree`."""
    return digest_encoded(domain, encode(value))


def digest_encoded(domain: str, encoded: bytes) -> Digest:
    """Digest bytes that `encode` gave, under a domain."""
    return Digest(sha256(b"stoker/%b\0%b" % (domain.encode(), encoded)).hexdigest())


def is_digest(text: str) -> bool:
    """Return whether a text has the form of a digest."""
    return len(text) == 64 and _HEX.issuperset(text)


@frozen_by_position
class KindRef:
    """The name and version of a kind: what two ends of an edge must agree on."""

    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


@frozen_by_position
class TreeEntry:
    """One file (or inner symlink) of a tree."""

    path: str
    """Relative, `/`-separated, normalised."""
    size_bytes: int
    sha256: Digest
    """Plain SHA-256 of the content; of the target's text for a symlink."""
    executable: bool = False
    link_to: str | None = None


OpenEntry = Callable[[TreeEntry], BinaryIO]
"""Opens a file of a tree, wherever it lies."""


@frozen_by_position
class Tree:
    """A tree of files: entries sorted by path.

    Its digest covers path, executable bit, size and content of each, nothing else: no owner,
    no time, no place on disk. Inner symlinks are entries of their own, stored as text.
    """

    entries: tuple[TreeEntry, ...]

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)

    def digest(self) -> Digest:
        """Return the tree's digest."""
        return digest_value(
            "tree",
            [[entry.path, entry.executable, entry.link_to, entry.size_bytes, entry.sha256] for entry in self.entries],
        )


@frozen_by_position
class ArtifactRef:
    """An artifact without its bytes: enough to key on, to check an edge, to find the bytes."""

    kind: KindRef
    digest: Digest
