"""Joining a fleet: invitations, proofs, certificates, tokens.

A code is `K7QD-M2XW-9HCE`: twelve letters of Crockford's alphabet, two for its id and ten for 50 bits of secret. Both
sides derive a key from the secret; it is never sent. With the key the coordinator proves which CA is its own, then the
joining side proves that it has the code. Both proofs cover both nonces, so neither can be replayed, and an intercepting
third party can produce neither.

The purpose of an invitation is sealed with the key as well: without the code a client learns neither the purpose nor
whether the invitation exists. Older readers find a machine of any name in its place, which the first proof covers.

A ticket is the invitation of a worker that a backend starts: it has the key itself, since nobody types it. The rest of
the exchange is the same.

A CA is exactly one certificate, and the bytes that were proven: a second one behind it, which a lenient reader would
skip and a TLS library would trust, is refused here.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from stoker.core.digests import encode
from stoker.core.errors import BadInput, TicketRefused
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps, loads
from stoker.core.leases import Role
from stoker.core.text import NODE_NAME_RULE, is_node_name, one_line, some_of, whole_number
from stoker.host.http.exchange import is_this_computer, read_address
from stoker.protocol.codec import StrictRequest, WireMessage
from stoker.protocol.lease_messages import Name, Seconds

Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Proof = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
InviteId = Annotated[str, Field(pattern=r"^[0-9A-Z]{2,8}$")]
Pem = Annotated[str, Field(max_length=16 * 1024)]
NEVER: Final = "never"
Named = Annotated[str, Field(max_length=200)]


class InviteRequest(StrictRequest):
    """An operator's request for an invitation."""

    role: Role = Role.WORKER
    name: Named = ""
    """The only name under which it may join; empty: any free name."""
    life_s: Annotated[float, Field(gt=0, le=7 * 86400)] = 900.0


class InviteResponse(WireMessage):
    """An invitation, shown once."""

    id: str
    code: str
    """`K7QD-M2XW-9HCE`: all that is needed to join, besides the address."""
    role: Role
    name: str = ""
    expires_s: float
    url: str
    """The address to join, as far as the coordinator knows it."""
    names: tuple[str, ...] = ()
    """Every `HOST[:PORT]` by which it can be joined, the best one first."""


class InviteView(WireMessage):
    """An invitation without its code, which is not stored."""

    id: str
    role: Role
    name: str = ""
    made_s: float
    expires_s: float
    used_s: float | None = None
    by: str = ""


class InviteList(WireMessage):
    """Valid invitations, and recently used ones."""

    invites: tuple[InviteView, ...] = ()


JOIN_BEGIN = "/v1/join/begin"
"""Requested over a connection that proves nothing yet, by `worker.enrolment` alone."""


class JoinBegin(WireMessage):
    """First request of a joining side, over a connection that proves nothing yet."""

    id: InviteId
    nonce: Nonce


class JoinPurpose(WireMessage):
    """The role and name of an invitation."""

    role: Role
    name: str = ""
    """The only name under which it may be used; empty: any."""


class JoinBeginResponse(WireMessage):
    """The coordinator's CA, with the proof that it knows the code's key."""

    ca_pem: Pem
    nonce: Nonce
    proof: Proof
    """Covers the CA, `role` and `name`."""
    sealed: Annotated[str, Field(pattern=r"^([0-9a-f]{576})?$")] = ""
    """A `JoinPurpose`, readable only with the code. Empty: an older coordinator, whose `role` and `name` apply."""
    role: Role = Role.WORKER
    """With `sealed` the same for every invitation, since it is readable without the code. So is `name`."""
    name: str = ""
    version: str = ""
    server_s: float = 0.0


class JoinFinish(WireMessage):
    """Proof of the joining side that it has the code, over a connection to that CA."""

    id: InviteId
    nonce: Nonce
    server_nonce: Nonce
    name: Name
    csr_pem: Pem = ""
    """Of a machine: its public key, signed with its private key, which never leaves the machine."""
    proof: Proof


class JoinFinishResponse(WireMessage):
    """A certificate for a machine, or a token for a user. The same request gets the same response."""

    name: str
    role: Role
    ca_pem: Pem
    certificate_pem: Pem = ""
    token: str = ""
    expires_s: float | None = None


class RenewCertificate(WireMessage):
    """A machine's request for its next certificate, over a connection with the present one."""

    csr_pem: Pem


class TokenRequest(StrictRequest):
    """An administrator's request for a token."""

    name: Named
    role: Role
    life_s: Annotated[float, Field(gt=0)] | Literal["never"] | None = None
    """Lifetime (default: one year); `never`: until revoked."""


class TokenView(WireMessage):
    """A token without its secret, of which only the digest is stored."""

    id: str
    name: str
    role: Role
    issued_s: float
    expires_s: float | None = None
    revoked_s: float | None = None
    last_used_s: float | None = None
    by: str = ""


class TokenList(WireMessage):
    """All stored tokens, by name."""

    tokens: tuple[TokenView, ...] = ()


class TokenResponse(WireMessage):
    """A new token, shown once."""

    token: str
    view: TokenView


class CertificateView(WireMessage):
    """A machine's certificate."""

    serial: str
    name: str
    issued_s: Seconds
    expires_s: Seconds
    revoked_s: float | None = None
    why: str = ""


class LiveCertificates(WireMessage):
    """Serial numbers of all valid certificates of machines: the peers that a machine may serve."""

    serials: tuple[str, ...]


class CertificateList(WireMessage):
    """Certificates of machines that have not expired, with revoked ones."""

    certificates: tuple[CertificateView, ...] = ()


# Codes and proofs: the same pure functions on both sides.

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Crockford's: no I, L, O (read as 1, 1, 0) and no U."""
ID_LETTERS = 2
SECRET_LETTERS = 10
NONCE_BYTES = 16

SEALED_BYTES = 256
"""Always the same length, which reveals nothing."""

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
    """A text is not a valid code; the message says why."""


class NotOneCertificate(ValueError):
    """A text is not exactly one PEM certificate."""


@frozen
class JoinCode:
    """A parsed invitation code."""

    id: str
    secret: str

    def text(self) -> str:
        """Return the code in groups of four."""
        letters = self.id + self.secret
        return "-".join(letters[at : at + _GROUP] for at in range(0, len(letters), _GROUP))


def make_code(invite_id: str, random: bytes) -> JoinCode:
    """Return the code of an invitation from its id and at least seven random bytes, of which 50 bits are used."""
    bits = int.from_bytes(random, "big")
    if len(random) * 8 < SECRET_LETTERS * 5:
        message = f"{len(random)} random bytes are not enough for a secret"
        raise ValueError(message)
    secret = "".join(ALPHABET[(bits >> 5 * at) & 31] for at in range(SECRET_LETTERS))
    return JoinCode(id=_checked_id(invite_id), secret=secret)


def make_invite_id(random: bytes) -> str:
    """Return an id of an invitation from at least two random bytes."""
    bits = int.from_bytes(random[:2], "big")
    return "".join(ALPHABET[(bits >> 5 * at) & 31] for at in range(ID_LETTERS))


def read_code(text: str) -> JoinCode:
    """Parse a code as typed: lower case, other groups, O for 0 and I or L for 1 are accepted."""
    letters = re.sub(r"[\s-]", "", text).upper().translate(_READ_AS)
    strange = sorted({letter for letter in letters if letter not in ALPHABET})
    if strange:
        message = f"{strange[0]!r} is not a letter of a code"
        raise NotACode(message)
    if len(letters) != ID_LETTERS + SECRET_LETTERS:
        message = f"a code has {ID_LETTERS + SECRET_LETTERS} letters, this one {len(letters)}"
        raise NotACode(message)
    return JoinCode(id=letters[:ID_LETTERS], secret=letters[ID_LETTERS:])


def join_key(code: JoinCode) -> bytes:
    """Derive the key of the proofs from a code's secret; slow on purpose (tens of milliseconds, 32 MiB)."""
    return hashlib.scrypt(
        code.secret.encode(),
        salt=_KEY + code.id.encode(),
        n=_SCRYPT_N,
        r=_SCRYPT_R,
        p=_SCRYPT_P,
        maxmem=_SCRYPT_BYTES,
        dklen=32,
    )


# Tickets: `{"v":1,"id":"7F3A2C","key":"…","url":"https://HOST:PORT","name":"a100-7f3a2c"}`, in a file of mode 0600.

LARGEST_TICKET_BYTES = 4096
_TICKET_VERSION = 1
_TICKET_ID = re.compile(r"[0-9A-Z]{2,8}")
_TICKET_KEY = re.compile(r"[0-9a-f]{64}")
_TICKET_FIELDS = ("v", "id", "key", "url", "name", "server_name", "socket")
_SERVER_NAME = re.compile(r"[A-Za-z0-9_.:%-]{0,253}")
_MOST_NAMED = 5


@frozen
class Ticket:
    """The right of one allocation's worker to join, once, under one name."""

    id: str
    """Of an invitation: the allocation's id in capitals."""
    key: str
    """32 random bytes in hex: the key of the proofs."""
    url: str
    """`https://HOST:PORT`; `http://HOST:PORT` of this machine with `socket`."""
    name: str
    server_name: str = ""
    """The coordinator's host name in its certificate, if a relay has the address; empty: the URL's host."""
    socket: str = ""
    """The Unix socket of a coordinator without TLS, on this machine. Its kernel identifies the worker's user."""

    def __repr__(self) -> str:
        return f"Ticket(id={self.id!r}, url={self.url!r}, name={self.name!r})"


def ticket_to_text(ticket: Ticket) -> str:
    """Return the content of a ticket's file."""
    body = {"v": _TICKET_VERSION, "id": ticket.id, "key": ticket.key, "url": ticket.url, "name": ticket.name}
    optional = {"server_name": ticket.server_name, "socket": ticket.socket}
    return dumps(body | {name: text for name, text in optional.items() if text}) + "\n"


def read_ticket(data: bytes) -> Ticket:
    """Parse a ticket. Raises `TicketRefused` with everything that is wrong with it, and never with its key."""
    raw = _ticket_fields(data)
    faults = [] if raw.get("v") == _TICKET_VERSION else [f"v is not {_TICKET_VERSION}"]
    texts = {name: raw[name] if isinstance(raw.get(name), str) else "" for name in _TICKET_FIELDS[1:]}
    if not _TICKET_ID.fullmatch(texts["id"]):
        faults.append("id is not 2 to 8 digits and capitals")
    if not _TICKET_KEY.fullmatch(texts["key"]):
        faults.append("key is not 64 hexadecimal digits")
    texts["url"] = _ticket_origin(texts["url"], texts["socket"])
    if not texts["url"]:
        faults.append("url is not https://HOST:PORT, nor of this machine with a socket")
    if texts["socket"] and not os.path.isabs(texts["socket"]):
        faults.append("socket is not an absolute path")
    if not is_node_name(texts["name"]):
        faults.append(f"name is not valid: {NODE_NAME_RULE}")
    if not _SERVER_NAME.fullmatch(texts["server_name"]):
        faults.append("server_name is not a host name")
    unknown = [one_line(name, 40) for name in raw if name not in _TICKET_FIELDS]
    if unknown:
        faults.append(f"unknown fields: {some_of(unknown, _MOST_NAMED)}")
    if faults:
        raise _invalid_ticket(*faults)
    return Ticket(**texts)


def _ticket_fields(data: bytes) -> dict[str, Any]:
    if len(data) > LARGEST_TICKET_BYTES:
        raise _invalid_ticket(f"larger than {LARGEST_TICKET_BYTES:,} bytes")
    try:
        raw = loads(data)
    except ValueError:
        raise _invalid_ticket("not JSON") from None
    if not isinstance(raw, dict):
        raise _invalid_ticket("not a JSON object")
    version = whole_number(raw.get("v"))
    if version is not None and version > _TICKET_VERSION:
        raise _invalid_ticket(f"version {version} is newer than this Stoker")
    return {**raw, "v": version}


def _ticket_origin(url: str, socket: str) -> str:
    """Return `https://HOST:PORT`, or with a socket `http://HOST:PORT` of this machine; empty for any other URL."""
    try:
        address = read_address(url)
    except BadInput:
        return ""
    if address.target != "/" or address.authorization:
        return ""
    is_plain = address.origin.scheme == "http" and is_this_computer(address.origin.host)
    is_reached = is_plain if socket else address.origin.scheme == "https"
    return str(address.origin) if is_reached else ""


def _invalid_ticket(*faults: str) -> TicketRefused:
    return TicketRefused(
        f"not a valid ticket: {'; '.join(faults)}",
        hint="the launcher writes tickets; request another allocation",
        faults=list(faults),
    )


def begin_proof(key: bytes, *, nonce: str, server_nonce: str, ca_pem: str, role: str, name: str) -> str:
    """Return the coordinator's proof of its CA and of the invitation's role and name."""
    ca = hashlib.sha256(one_certificate(ca_pem)).hexdigest()
    return _proof(key, _BEGIN, nonce, server_nonce, ca, str(role), name)


def seal(key: bytes, text: str, *, nonce: str, server_nonce: str) -> str:
    """Encrypt and authenticate a short text with the key.

    One key seals one text per pair of nonces: the server's nonce is derived from the client's.
    """
    plain = text.encode()
    if len(plain) > SEALED_BYTES - 2:
        message = f"{len(plain)} bytes are too long to seal"
        raise ValueError(message)
    padded = (len(plain).to_bytes(2, "big") + plain).ljust(SEALED_BYTES, b"\0")
    hidden = _masked(key, padded, nonce, server_nonce).hex()
    return hidden + _proof(key, _SEALED, nonce, server_nonce, hidden)


def unseal(key: bytes, sealed: str, *, nonce: str, server_nonce: str) -> str | None:
    """Return a text that was sealed with this key for these nonces; None if it was not."""
    hidden, proof = sealed[: 2 * SEALED_BYTES], sealed[2 * SEALED_BYTES :]
    if not is_same_proof(proof, _proof(key, _SEALED, nonce, server_nonce, hidden)):
        return None
    padded = _masked(key, bytes.fromhex(hidden), nonce, server_nonce)
    return padded[2 : 2 + int.from_bytes(padded[:2], "big")].decode()


def finish_proof(key: bytes, *, nonce: str, server_nonce: str, name: str, csr_pem: str) -> str:
    """Return the joining side's proof that it has the code; covers its name and public key."""
    csr = hashlib.sha256(csr_pem.encode()).hexdigest()
    return _proof(key, _FINISH, nonce, server_nonce, name, csr)


def is_same_proof(one: str, other: str) -> bool:
    """Compare two proofs in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


def one_certificate(pem: str) -> bytes:
    """Return the DER bytes of exactly one PEM certificate. Raises `NotOneCertificate`."""
    found = _ONE_CERTIFICATE.fullmatch(pem)
    letters = "".join(found[1].split()) if found else ""
    try:
        der = base64.b64decode(letters, validate=True)
    except binascii.Error:
        der = b""
    # One text for one certificate: readers differ in what else they ignore.
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
        message = f"{invite_id!r} is not an invitation id"
        raise ValueError(message)
    return invite_id
