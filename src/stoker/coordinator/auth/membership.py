"""Everybody's standing, in memory: invitations, tokens and certificates as they are stored.

It is a copy of rows that the queue's writer changes together with them, and that every request is judged by: what was
revoked a moment ago is refused now, on a connection that stands since yesterday as well.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable

from stoker.core.errors import Forbidden, LocalFile
from stoker.core.frozen import changed, frozen
from stoker.core.leases import Principal, Role
from stoker.host.durable import read_regular, sync_descriptor, translated

# Tokens of people: long random words that are shown once and kept as digests.

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
    """Return what is stored of a token: random words of 256 bits need no slow digest."""
    return hashlib.sha256(token).hexdigest()


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
        """Return whether somebody may still use it."""
        return self.used_s is None and bool(self.key) and now_s < self.expires_s


@frozen
class ApiTokenRecord:
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
        """Return whether it opens anything."""
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
        """Return whether it speaks for its machine."""
        return self.revoked_s is None and now_s < self.expires_s


class TrustState:
    """All of them. Changed in the writer's thread, looked at from any."""

    def __init__(self) -> None:
        self.invites: dict[str, Invite] = {}
        self.tokens: dict[str, ApiTokenRecord] = {}
        """By their digest."""
        self.certificates: dict[str, IssuedCertificate] = {}
        """By their number; those that expired long ago are not among them."""

    def machine(self, serial: str, name: str, now_s: float) -> Principal:
        """Return the machine that a certificate speaks for. The CA's signature was verified before."""
        found = self.certificates.get(serial)
        if found is None or not name or found.name != name:
            hint = "it may be from before the database was restored: join again with a new invitation"
            raise Forbidden("this coordinator has not issued that certificate", hint=hint)
        if found.revoked_s is not None:
            hint = f"`stoker machines invite --name {name}` at the coordinator, here: stoker join CODE@HOST --again"
            raise Forbidden(f"the certificate of {name} was taken back: {found.why or 'revoked'}", hint=hint)
        if now_s >= found.expires_s:
            hint = f"`stoker machines invite --name {name}` at the coordinator, here: stoker join CODE@HOST --again"
            raise Forbidden(f"the certificate of {name} has expired", hint=hint)
        return Principal(name=name, role=Role.WORKER)

    def person(self, token: bytes, now_s: float) -> ApiTokenRecord | None:
        """Return the token that somebody has shown, if it is a live one."""
        digest = token_digest(token)
        found = self.tokens.get(digest)
        if found is None or not hmac.compare_digest(found.sha256, digest) or not found.is_live(now_s):
            return None
        return found

    def certificates_of(self, machine: str, now_s: float) -> list[IssuedCertificate]:
        """Return a machine's certificates that are live."""
        return [one for one in self.certificates.values() if one.name == machine and one.is_live(now_s)]

    def tokens_of(self, name: str, now_s: float) -> list[ApiTokenRecord]:
        """Return the live tokens of a name."""
        return [one for one in self.tokens.values() if one.name == name and one.is_live(now_s)]

    def token_by_id(self, id: str) -> ApiTokenRecord | None:
        """Return a token by its id."""
        return next((one for one in self.tokens.values() if one.id == id), None)


# What was taken back, beside the CA and in no backup: a database that is put back brings none of it to life again.
#
# One line for each, only ever added: `certificate NUMBER` or `token DIGEST`. It is on disk before the database knows.

NAME = "revoked"
_MOST_BYTES = 64 * 1024 * 1024
_CERTIFICATE, _TOKEN = "certificate", "token"
_WHY = "taken back before the database was restored"


class Revocations:
    """One fleet's; without a path they are remembered in the database alone."""

    def __init__(self, path: str = "") -> None:
        self._path = path

    def add_certificate(self, serial: str) -> None:
        """Write down that a certificate counts no more."""
        self._add(_CERTIFICATE, serial)

    def add_token(self, sha256: str) -> None:
        """Write down that a token counts no more."""
        self._add(_TOKEN, sha256)

    def apply(self, standing: TrustState, now_s: float) -> None:
        """Take back, of what was read from a database, all that was taken back at any time."""
        for kind, id_ in self._lines():
            if kind == _CERTIFICATE and (certificate := standing.certificates.get(id_)) is not None:
                if certificate.revoked_s is None:
                    standing.certificates[id_] = changed(certificate, revoked_s=now_s, why=_WHY)
            elif kind == _TOKEN and (token := standing.tokens.get(id_)) is not None and token.revoked_s is None:
                standing.tokens[id_] = changed(token, revoked_s=now_s)

    def _add(self, kind: str, id: str) -> None:
        if not self._path:
            return
        with translated(self._path):
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            # A link that somebody put there is not followed.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(self._path, flags, 0o600)
            try:
                # On a line of its own, whatever an earlier one that was cut off has left.
                os.write(file, f"\n{kind} {id}\n".encode())
                sync_descriptor(file)
            finally:
                os.close(file)

    def _lines(self) -> Iterable[tuple[str, str]]:
        if not self._path:
            return
        try:
            text = read_regular(self._path, _MOST_BYTES).decode("ascii", errors="replace")
        except FileNotFoundError:
            return
        except OSError as error:
            # Not to know who was shut out must not let them in.
            raise LocalFile(f"{self._path} can't be read: {error.strerror or error}", path=self._path) from None
        for line in text.splitlines():
            kind, _, id_ = line.partition(" ")
            if id_:
                yield kind, id_
