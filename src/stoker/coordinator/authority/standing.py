"""Everybody's standing, in memory: invitations, tokens and certificates as they are stored.

It is a copy of rows that the queue's writer changes together with them, and that every request is judged by: what was
revoked a moment ago is refused now, on a connection that stands since yesterday as well.
"""

from __future__ import annotations

import hmac

from stoker.coordinator.authority.tokens import token_digest
from stoker.model.fleet_errors import NotAllowed
from stoker.model.frozen import frozen
from stoker.model.principals import Principal, Role


@frozen
class Invite:
    """An invitation, as it is stored."""

    id: str
    role: str
    name: str = ""
    """The only name under which it may be used; empty: any that is free."""
    key: str = ""
    """What the code stretches to, in hexadecimal; gone once it is used or over."""
    made_s: float = 0.0
    expires_s: float = 0.0
    used_s: float | None = None
    request: str = ""
    """Digest of the words it was used with."""
    answer: str = ""
    failures: int = 0
    by: str = ""

    def is_live(self, now_s: float) -> bool:
        """Say whether somebody may still use it."""
        return self.used_s is None and bool(self.key) and now_s < self.expires_s


@frozen
class HeldToken:
    """A person's token, as it is stored: its digest alone."""

    id: str
    name: str
    role: str
    sha256: str
    issued_s: float = 0.0
    expires_s: float | None = None
    revoked_s: float | None = None
    last_used_s: float | None = None
    by: str = ""

    def is_live(self, now_s: float) -> bool:
        """Say whether it opens anything."""
        return self.revoked_s is None and (self.expires_s is None or now_s < self.expires_s)


@frozen
class IssuedCertificate:
    """A machine's certificate, as it is stored: its number and its fate."""

    serial: str
    name: str
    issued_s: float = 0.0
    expires_s: float = 0.0
    revoked_s: float | None = None
    why: str = ""

    def is_live(self, now_s: float) -> bool:
        """Say whether it speaks for its machine."""
        return self.revoked_s is None and now_s < self.expires_s


class Standing:
    """All of them. Changed in the writer's thread, looked at from any."""

    def __init__(self) -> None:
        self.invites: dict[str, Invite] = {}
        self.tokens: dict[str, HeldToken] = {}
        """By their digest."""
        self.certificates: dict[str, IssuedCertificate] = {}
        """By their number; those that expired long ago are not among them."""

    def machine(self, serial: str, name: str, now_s: float) -> Principal:
        """Give the machine that a certificate speaks for. The CA's signature was verified before."""
        found = self.certificates.get(serial)
        if found is None or not name or found.name != name:
            hint = "it may be from before the database was restored: join again with a new invitation"
            raise NotAllowed("this coordinator has not issued that certificate", hint=hint)
        if found.revoked_s is not None:
            hint = f"`stoker machines invite --name {name}` at the coordinator, here: stoker join CODE@HOST --again"
            raise NotAllowed(f"the certificate of {name} was taken back: {found.why or 'revoked'}", hint=hint)
        if now_s >= found.expires_s:
            hint = f"`stoker machines invite --name {name}` at the coordinator, here: stoker join CODE@HOST --again"
            raise NotAllowed(f"the certificate of {name} has expired", hint=hint)
        return Principal(name=name, role=Role.WORKER)

    def person(self, token: bytes, now_s: float) -> HeldToken | None:
        """Give the token that somebody has shown, if it is a live one."""
        digest = token_digest(token)
        found = self.tokens.get(digest)
        if found is None or not hmac.compare_digest(found.sha256, digest) or not found.is_live(now_s):
            return None
        return found

    def certificates_of(self, machine: str, now_s: float) -> list[IssuedCertificate]:
        """Give a machine's certificates that are live."""
        return [one for one in self.certificates.values() if one.name == machine and one.is_live(now_s)]

    def tokens_of(self, name: str, now_s: float) -> list[HeldToken]:
        """Give the live tokens of a name."""
        return [one for one in self.tokens.values() if one.name == name and one.is_live(now_s)]

    def token_by_id(self, id: str) -> HeldToken | None:
        """Give a token by its id."""
        return next((one for one in self.tokens.values() if one.id == id), None)
