"""Digests: what a thing is called by what it is.

A blob's digest is the plain SHA-256 of its bytes, so it equals what other tools print. Everything else carries a
domain tag, so that a tree, a key and an id never share a digest by accident. Text form: 64 lower-case hex digits.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NewType

from stoker.model.encoding import encode

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
    """Say whether a text has the form of a digest."""
    return len(text) == 64 and _HEX.issuperset(text)
