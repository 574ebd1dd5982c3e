"""What a code of invitation proves, on both sides: the same pure functions for the coordinator and whoever joins.

A code is `K7QD-M2XW-9HCE`: twelve letters of Crockford's alphabet, the first two its id, the other ten 50 bits of
secret. Both sides stretch the secret into a key; it never travels. With the key the coordinator proves which CA is
its own, and whoever joins proves that they have the code. Both proofs cover both nonces, so neither can be replayed.

What an invitation is for is sealed with the key as well: a stranger who asks learns neither that nor whether there is
such an invitation. Readers of before find a machine of any name in its place, which the first proof covers.

A CA counts only as exactly one certificate, and as the bytes that were proven: a second one behind it, which a lenient
reader would skip and a TLS library would trust, is refused here.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re

from stoker.core.digests import encode
from stoker.core.frozen import frozen

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Crockford's: no I, L, O (read as 1, 1, 0) and no U."""
ID_LETTERS = 2
SECRET_LETTERS = 10
NONCE_BYTES = 16

SEALED_BYTES = 256
"""Whatever is sealed: its length tells nothing."""

_GROUP = 4
_BLOCK_BYTES = 32
_READ_AS = str.maketrans({"I": "1", "L": "1", "O": "0"})
_BEGIN = "stoker/join/begin/1"
_FINISH = "stoker/join/finish/1"
_SEAL = "stoker/join/seal/1"
_SEALED = "stoker/join/sealed/1"
_KEY = b"stoker/join/key/1\0"
_SCRYPT_N, _SCRYPT_R, _SCRYPT_P = 2**15, 8, 1
_SCRYPT_BYTES = 64 * 1024 * 1024
_ONE_CERTIFICATE = re.compile(
    r"\s*-----BEGIN CERTIFICATE-----\s+([A-Za-z0-9+/=\s]+?)\s+-----END CERTIFICATE-----\s*",
)


class NotACode(ValueError):
    """A text has not the form of a code; the message says in what way."""


class NotOneCertificate(ValueError):
    """A text is not exactly one certificate in PEM."""


@frozen
class JoinCode:
    """A code of invitation, taken apart."""

    id: str
    secret: str

    def text(self) -> str:
        """Return the code as people read it, in groups of four."""
        letters = self.id + self.secret
        return "-".join(letters[at : at + _GROUP] for at in range(0, len(letters), _GROUP))


def make_code(invite_id: str, random: bytes) -> JoinCode:
    """Make the code of an invitation from its id and at least seven random bytes, of which 50 bits are taken."""
    bits = int.from_bytes(random, "big")
    if len(random) * 8 < SECRET_LETTERS * 5:
        message = f"{len(random)} random bytes are too few for a secret"
        raise ValueError(message)
    secret = "".join(ALPHABET[(bits >> 5 * at) & 31] for at in range(SECRET_LETTERS))
    return JoinCode(id=_checked_id(invite_id), secret=secret)


def make_invite_id(random: bytes) -> str:
    """Make an id of an invitation from at least two random bytes."""
    bits = int.from_bytes(random[:2], "big")
    return "".join(ALPHABET[(bits >> 5 * at) & 31] for at in range(ID_LETTERS))


def read_code(text: str) -> JoinCode:
    """Take a code apart as a person typed it: small letters, other groups, O for 0 and I or L for 1 are understood."""
    letters = re.sub(r"[\s-]", "", text).upper().translate(_READ_AS)
    strange = sorted({letter for letter in letters if letter not in ALPHABET})
    if strange:
        message = f"a code has no {strange[0]!r}"
        raise NotACode(message)
    if len(letters) != ID_LETTERS + SECRET_LETTERS:
        message = f"a code has {ID_LETTERS + SECRET_LETTERS} letters, this one {len(letters)}"
        raise NotACode(message)
    return JoinCode(id=letters[:ID_LETTERS], secret=letters[ID_LETTERS:])


def join_key(code: JoinCode) -> bytes:
    """Stretch the code's secret into the key of its proofs: slow on purpose (tens of milliseconds, 32 MiB)."""
    return hashlib.scrypt(
        code.secret.encode(),
        salt=_KEY + code.id.encode(),
        n=_SCRYPT_N,
        r=_SCRYPT_R,
        p=_SCRYPT_P,
        maxmem=_SCRYPT_BYTES,
        dklen=32,
    )


def begin_proof(key: bytes, *, nonce: str, server_nonce: str, ca_pem: str, role: str, name: str) -> str:
    """Return the coordinator's proof that this CA is its own, and of what the invitation is for."""
    ca = hashlib.sha256(one_certificate(ca_pem)).hexdigest()
    return _proof(key, _BEGIN, nonce, server_nonce, ca, str(role), name)


def seal(key: bytes, text: str, *, nonce: str, server_nonce: str) -> str:
    """Seal a short text so that only who has the key reads it, and knows that it was sealed with the key.

    One key seals one text for a pair of nonces: the server's is made from the other side's.
    """
    plain = text.encode()
    if len(plain) > SEALED_BYTES - 2:
        message = f"{len(plain)} bytes are too long to be sealed"
        raise ValueError(message)
    padded = (len(plain).to_bytes(2, "big") + plain).ljust(SEALED_BYTES, b"\0")
    hidden = _masked(key, padded, nonce, server_nonce).hex()
    return hidden + _proof(key, _SEALED, nonce, server_nonce, hidden)


def unseal(key: bytes, sealed: str, *, nonce: str, server_nonce: str) -> str | None:
    """Return a text that was sealed with this key for these nonces; nothing if it was not."""
    hidden, proof = sealed[: 2 * SEALED_BYTES], sealed[2 * SEALED_BYTES :]
    if not is_same_proof(proof, _proof(key, _SEALED, nonce, server_nonce, hidden)):
        return None
    padded = _masked(key, bytes.fromhex(hidden), nonce, server_nonce)
    return padded[2 : 2 + int.from_bytes(padded[:2], "big")].decode()


def finish_proof(key: bytes, *, nonce: str, server_nonce: str, name: str, csr_pem: str) -> str:
    """Return the proof of whoever joins that they have the code, and ask with it for this name and this key."""
    csr = hashlib.sha256(csr_pem.encode()).hexdigest()
    return _proof(key, _FINISH, nonce, server_nonce, name, csr)


def is_same_proof(one: str, other: str) -> bool:
    """Compare two proofs in a time that tells nothing."""
    return hmac.compare_digest(one.encode(), other.encode())


def one_certificate(pem: str) -> bytes:
    """Return the DER bytes of a text that is exactly one certificate in PEM, or raise `NotOneCertificate`."""
    found = _ONE_CERTIFICATE.fullmatch(pem)
    letters = "".join(found[1].split()) if found else ""
    try:
        der = base64.b64decode(letters, validate=True)
    except binascii.Error:
        der = b""
    # One text for one certificate: readers differ in what else they pass over.
    if not der or base64.b64encode(der).decode() != letters:
        message = "not exactly one certificate"
        raise NotOneCertificate(message)
    return der


def fingerprint(pem: str) -> str:
    """Return the SHA-256 of one certificate, in hex."""
    return hashlib.sha256(one_certificate(pem)).hexdigest()


def _proof(key: bytes, domain: str, *parts: str) -> str:
    return hmac.new(key, encode([domain, *parts]), hashlib.sha256).hexdigest()


def _masked(key: bytes, data: bytes, nonce: str, server_nonce: str) -> bytes:
    blocks = (
        hmac.new(key, encode([_SEAL, nonce, server_nonce, str(at)]), hashlib.sha256).digest()
        for at in range(SEALED_BYTES // _BLOCK_BYTES)
    )
    return bytes(one ^ other for one, other in zip(data, b"".join(blocks), strict=True))


def _checked_id(invite_id: str) -> str:
    if len(invite_id) != ID_LETTERS or any(letter not in ALPHABET for letter in invite_id):
        message = f"{invite_id!r} is no id of an invitation"
        raise ValueError(message)
    return invite_id
