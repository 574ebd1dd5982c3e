"""Tokens of people: long random words that are shown once and kept as digests."""

from __future__ import annotations

import base64
import hashlib
import secrets

PREFIX = "stk_"
"""So that whoever finds one in a log or a repository knows what it is."""
LIFE_S = 365 * 86_400.0
"""How long a token lasts by default, however somebody got it."""
_SECRET_BYTES = 32


def make_token() -> str:
    """Make a token."""
    return token_of(secrets.token_bytes(_SECRET_BYTES))


def token_of(secret: bytes) -> str:
    """Write a secret as a token."""
    return PREFIX + base64.urlsafe_b64encode(secret).rstrip(b"=").decode()


def make_token_id() -> str:
    """Make a name by which a token is listed and revoked."""
    return secrets.token_hex(4)


def token_digest(token: bytes) -> str:
    """Give what is stored of a token: random words of 256 bits need no slow digest."""
    return hashlib.sha256(token).hexdigest()
