"""How a machine or a person comes to belong to a fleet: invitations, joining, certificates, tokens.

A code is `ID-SECRET`; both sides stretch the secret into a key that never travels. First the coordinator proves with
it which CA is its own, then whoever joins proves that they have it: a stranger in between can do neither.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from stoker.core.leases import Role
from stoker.protocol.codec import StrictRequest, WireMessage
from stoker.protocol.lease_messages import Name, Seconds

Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Proof = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
InviteId = Annotated[str, Field(pattern=r"^[0-9A-Z]{2,8}$")]
Pem = Annotated[str, Field(max_length=16 * 1024)]
NEVER: Final = "never"
Named = Annotated[str, Field(max_length=200)]


class InviteRequest(StrictRequest):
    """An operator wants somebody to join."""

    role: Role = Role.WORKER
    name: Named = ""
    """The only name under which it may join; empty: any that is free."""
    life_s: Annotated[float, Field(gt=0, le=7 * 86400)] = 900.0


class InviteResponse(WireMessage):
    """An invitation, shown once."""

    id: str
    code: str
    """`K7QD-M2XW-9HCE`: all that whoever joins has to know, beside where."""
    role: Role
    name: str = ""
    expires_s: float
    url: str
    """Where to join, as far as the coordinator knows."""
    names: tuple[str, ...] = ()
    """Every `HOST[:PORT]` by which it can be joined, the best one first."""


class InviteView(WireMessage):
    """An invitation afterwards; its code is not kept."""

    id: str
    role: Role
    name: str = ""
    made_s: float
    expires_s: float
    used_s: float | None = None
    by: str = ""


class InviteList(WireMessage):
    """The invitations that still count, and those that were used not long ago."""

    invites: tuple[InviteView, ...] = ()


class JoinBegin(WireMessage):
    """Whoever joins asks first, over a connection that proves nothing yet."""

    id: InviteId
    nonce: Nonce


class JoinPurpose(WireMessage):
    """What an invitation is for."""

    role: Role
    name: str = ""
    """The only name under which it may be used; empty: any."""


class JoinBeginResponse(WireMessage):
    """The coordinator shows its CA, and proves by the code's key that it is the one that was meant."""

    ca_pem: Pem
    nonce: Nonce
    proof: Proof
    """Covers the CA, `role` and `name`."""
    sealed: Annotated[str, Field(pattern=r"^([0-9a-f]{576})?$")] = ""
    """A `JoinPurpose` that only who has the code reads. Empty: an older coordinator, whose `role` and `name` count."""
    role: Role = Role.WORKER
    """Beside `sealed` the same for every invitation: strangers read it. So is `name`."""
    name: str = ""
    version: str = ""
    server_s: float = 0.0


class JoinFinish(WireMessage):
    """Whoever joins proves that they have the code, over a connection to that CA."""

    id: InviteId
    nonce: Nonce
    server_nonce: Nonce
    name: Name
    csr_pem: Pem = ""
    """Of a machine: its own public key, signed with its private one, which never leaves it."""
    proof: Proof


class JoinFinishResponse(WireMessage):
    """What was given: to a machine a certificate, to a person a token. Asked again in the same words, the same."""

    name: str
    role: Role
    ca_pem: Pem
    certificate_pem: Pem = ""
    token: str = ""
    expires_s: float | None = None


class RenewCertificate(WireMessage):
    """A machine asks for its next certificate, over a connection that shows the present one."""

    csr_pem: Pem


class TokenRequest(StrictRequest):
    """An admin makes a token."""

    name: Named
    role: Role
    life_s: Annotated[float, Field(gt=0)] | Literal["never"] | None = None
    """How long it lasts; nothing: a year; `never`: until it is revoked."""


class TokenView(WireMessage):
    """A token afterwards; only its digest is kept."""

    id: str
    name: str
    role: Role
    issued_s: float
    expires_s: float | None = None
    revoked_s: float | None = None
    last_used_s: float | None = None
    by: str = ""


class TokenList(WireMessage):
    """Every token that was ever made and is not forgotten, by name."""

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
    """The numbers of all machines' certificates that count now: whom a machine may give things to."""

    serials: tuple[str, ...]


class CertificateList(WireMessage):
    """Machines' certificates that have not expired, revoked ones among them."""

    certificates: tuple[CertificateView, ...] = ()
