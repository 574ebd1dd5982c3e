"""Members of the fleet: tokens, certificates and invitations in memory, the CA on disk, and attempts to join.

`TrustState` is a copy of rows that the queue's writer changes together with them, and that every request is checked
against: a revocation takes effect at once, also on open connections. The CA is one file, `state/authority/ca.key`,
readable by its owner only, created once; `ca.pem` beside it is the certificate alone. A file that others may read, or
that is damaged, is an error: it is never replaced.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import StrEnum

from stoker.core.clock import Clock
from stoker.core.digests import digest_value, encode
from stoker.core.errors import Damaged, Forbidden, LocalFile, RateLimited, Refused, StokerError
from stoker.core.frozen import changed, frozen
from stoker.core.leases import Principal, Role
from stoker.core.pool import ID_CHARACTERS
from stoker.host.certificates import (
    MACHINE_LIFE_S,
    SERVER_LIFE_S,
    KeyPair,
    Signer,
    is_signed_by,
    make_ca,
    make_key,
    names_in,
    read_certificate,
)
from stoker.host.durable import create_file, read_regular, read_secret, sync_descriptor, translated, write_file
from stoker.protocol.enrolment_messages import NONCE_BYTES, JoinFinish, finish_proof, is_same_proof

# Tokens of users: long random words that are shown once and stored as digests.

PREFIX = "stk_"
"""Makes a token recognisable in a log or a repository."""
LIFE_S = 365 * 86_400.0
"""Default lifetime of a token."""
_SECRET_BYTES = 32


def make_token() -> str:
    """Return a new token."""
    return token_of(secrets.token_bytes(_SECRET_BYTES))


def token_of(secret: bytes) -> str:
    """Return a secret as a token."""
    return PREFIX + base64.urlsafe_b64encode(secret).rstrip(b"=").decode()


def make_token_id() -> str:
    """Return a new id, by which a token is listed and revoked."""
    return secrets.token_hex(4)


def token_digest(token: bytes) -> str:
    """Return the stored digest of a token: 256 random bits need no slow digest."""
    return hashlib.sha256(token).hexdigest()


@frozen
class Invite:
    """A stored invitation."""

    id: str
    role: str
    name: str = ""
    """The only name under which it may be used; empty: any free name."""
    key: str = ""
    """Key derived from the code, in hexadecimal; empty once it is used or closed."""
    made_s: float = 0.0
    expires_s: float = 0.0
    used_s: float | None = None
    request: str = ""
    """Digest of the request that used it."""
    answer: str = ""
    failures: int = 0
    by: str = ""

    def is_live(self, now_s: float) -> bool:
        """Return True if it can still be used."""
        return self.used_s is None and bool(self.key) and now_s < self.expires_s

    @property
    def is_ticket(self) -> bool:
        """True if it is the ticket of an allocation, whose id it has; codes of invitations have shorter ids."""
        return len(self.id) == ID_CHARACTERS

    @property
    def is_withdrawn(self) -> bool:
        """Whether an operator closed it before it was used."""
        return self.used_s is None and not self.key and self.failures < MOST_FAILURES


@frozen
class ApiTokenRecord:
    """A stored token of a user: its digest only."""

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
        """Return True if it is valid."""
        return self.revoked_s is None and (self.expires_s is None or now_s < self.expires_s)


@frozen
class IssuedCertificate:
    """A stored certificate of a machine: its serial number and validity."""

    serial: str
    name: str
    issued_s: float = 0.0
    expires_s: float = 0.0
    revoked_s: float | None = None
    why: str = ""

    def is_live(self, now_s: float) -> bool:
        """Return True if it is valid."""
        return self.revoked_s is None and now_s < self.expires_s


class TrustState:
    """All members. Changed in the writer's thread, read from any."""

    def __init__(self) -> None:
        self.invites: dict[str, Invite] = {}
        self.tokens: dict[str, ApiTokenRecord] = {}
        """By their digest."""
        self.certificates: dict[str, IssuedCertificate] = {}
        """By serial number; without long expired ones."""

    def machine(self, serial: str, name: str, now_s: float) -> Principal:
        """Return the machine of a certificate. The CA's signature was verified before."""
        found = self.certificates.get(serial)
        if found is None or not name or found.name != name:
            hint = "it may be older than a restored database: join again with a new invitation"
            raise Forbidden("the certificate was not issued by this coordinator", hint=hint)
        if found.revoked_s is not None:
            hint = f"at the coordinator: `stoker machines invite --name {name}`; here: stoker join CODE@HOST --again"
            raise Forbidden(f"the certificate of {name} was revoked{f': {found.why}' if found.why else ''}", hint=hint)
        if now_s >= found.expires_s:
            hint = f"at the coordinator: `stoker machines invite --name {name}`; here: stoker join CODE@HOST --again"
            raise Forbidden(f"the certificate of {name} has expired", hint=hint)
        return Principal(name=name, role=Role.WORKER)

    def person(self, token: bytes, now_s: float) -> ApiTokenRecord | None:
        """Return the record of a token if it is valid."""
        digest = token_digest(token)
        found = self.tokens.get(digest)
        if found is None or not hmac.compare_digest(found.sha256, digest) or not found.is_live(now_s):
            return None
        return found

    def certificates_of(self, machine: str, now_s: float) -> list[IssuedCertificate]:
        """Return a machine's valid certificates."""
        return [one for one in self.certificates.values() if one.name == machine and one.is_live(now_s)]

    def tokens_of(self, name: str, now_s: float) -> list[ApiTokenRecord]:
        """Return the valid tokens of a name."""
        return [one for one in self.tokens.values() if one.name == name and one.is_live(now_s)]

    def token_by_id(self, id: str) -> ApiTokenRecord | None:
        """Return a token by its id."""
        return next((one for one in self.tokens.values() if one.id == id), None)


REVOKED_NAME = "revoked"
_MOST_REVOKED_BYTES = 64 * 1024 * 1024
_CERTIFICATE, _TOKEN = "certificate", "token"
_BRIEF = "brief"
"""A certificate of an allocation's worker: `brief NUMBER EXPIRES`."""
_BRIEF_KEPT_S = 30 * 86400.0
_MANY_BRIEF = 1000
_WHY = "revoked before the database was restored"


class Revocations:
    """The revocations of one fleet, in a file beside the CA that no backup has: a restored database does not undo them.

    One line for each, append only: `certificate NUMBER` or `token DIGEST`. Written to disk before the database. Those
    of allocations' certificates are dropped when a coordinator starts, a month after the certificates expired.
    Without a path, revocations are in the database only.
    """

    def __init__(self, path: str = "") -> None:
        self._path = path

    def add_certificates(self, certificates: Iterable[IssuedCertificate], *, are_brief: bool = False) -> None:
        """Store the revocation of certificates; that of brief ones is dropped some time after they have expired."""
        if are_brief:
            self._add(_BRIEF, *(f"{one.serial} {int(one.expires_s)}" for one in certificates))
        else:
            self._add(_CERTIFICATE, *(one.serial for one in certificates))

    def add_token(self, sha256: str) -> None:
        """Store the revocation of a token."""
        self._add(_TOKEN, sha256)

    def apply(self, standing: TrustState, now_s: float) -> None:
        """Apply all stored revocations to a state that was read from a database."""
        lines = list(self._lines())
        self._drop_old(lines, now_s)
        for kind, id_ in lines:
            serial = id_.partition(" ")[0]
            if kind in (_CERTIFICATE, _BRIEF) and (certificate := standing.certificates.get(serial)) is not None:
                if certificate.revoked_s is None:
                    standing.certificates[serial] = changed(certificate, revoked_s=now_s, why=_WHY)
            elif kind == _TOKEN and (token := standing.tokens.get(id_)) is not None and token.revoked_s is None:
                standing.tokens[id_] = changed(token, revoked_s=now_s)

    def _add(self, kind: str, *ids: str) -> None:
        if not self._path:
            return
        with translated(self._path):
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            # Symbolic links are not followed.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(self._path, flags, 0o600)
            try:
                # On its own line, also behind a truncated one.
                os.write(file, "".join(f"\n{kind} {id}\n" for id in ids).encode())
                sync_descriptor(file)
            finally:
                os.close(file)

    def _drop_old(self, lines: list[tuple[str, str]], now_s: float) -> None:
        """Write the file without brief certificates that expired long ago, once there are many."""
        kept = [f"{kind} {id_}\n" for kind, id_ in lines if kind != _BRIEF or _end_of(id_) > now_s - _BRIEF_KEPT_S]
        if len(lines) - len(kept) >= _MANY_BRIEF:
            write_file(self._path, "".join(kept).encode(), mode=0o600)

    def _lines(self) -> Iterable[tuple[str, str]]:
        if not self._path:
            return
        try:
            text = read_regular(self._path, _MOST_REVOKED_BYTES).decode("ascii", errors="replace")
        except FileNotFoundError:
            return
        except OSError as error:
            # Without the list revoked members would get access.
            raise LocalFile(f"{self._path} can't be read: {error.strerror or error}", path=self._path) from None
        for line in text.splitlines():
            kind, _, id_ = line.partition(" ")
            if id_:
                yield kind, id_


def _end_of(brief: str) -> float:
    ends = brief.partition(" ")[2]
    return float(ends) if ends.isdecimal() else float("inf")


KEY_NAME = "ca.key"
CERTIFICATE_NAME = "ca.pem"
_MOST_BYTES = 64 * 1024
_BLOCK = re.compile(r"-----BEGIN ([A-Z ]+)-----.+?-----END \1-----\n?", re.DOTALL)


class FleetCa:
    """The CA of one fleet, ready to sign."""

    def __init__(self, folder: str, pair: KeyPair) -> None:
        self.folder = folder
        self.signer = Signer(pair)
        self.certificate_pem = pair.certificate_pem
        self.certificate_file = os.path.join(folder, CERTIFICATE_NAME)
        self._secret = hashlib.sha256(b"stoker/authority/derived/1\0" + pair.key_pem.encode()).digest()

    def derive(self, domain: str, *parts: str) -> bytes:
        """Return 32 secret bytes derived from the CA's key, always the same for the same parts."""
        return hmac.new(self._secret, encode([domain, *parts]), hashlib.sha256).digest()


def open_ca(folder: str, *, fleet: str, now_s: float) -> FleetCa:
    """Return the CA of a folder; created, readable by us only, if there is none."""
    path = os.path.join(folder, KEY_NAME)
    with translated(folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    if not os.path.lexists(path):
        made = make_ca(f"stoker fleet of {fleet}", now_s=now_s)
        # False: another process was first, and its CA is used.
        create_file(path, f"{made.key_pem}{made.certificate_pem}".encode(), 0o600)
    try:
        ca = FleetCa(folder, _read(path))
    except StokerError as error:
        if isinstance(error, Damaged):
            raise _damaged(path, error.message) from None
        raise
    _publish(ca)
    return ca


def _read(path: str) -> KeyPair:
    try:
        text = read_secret(path, _MOST_BYTES).decode()
    except LocalFile as error:
        error.add_hint("if it may have been read, move it away: a new CA is created, and machines join again")
        raise
    except UnicodeDecodeError:
        raise Damaged("not a text file") from None
    except OSError as error:
        raise LocalFile(f"the fleet's CA in {path} can't be read: {error.strerror or error}", path=path) from None
    blocks = {found[1]: found[0] for found in _BLOCK.finditer(text)}
    if set(blocks) != {"PRIVATE KEY", "CERTIFICATE"}:
        raise Damaged("not exactly one key and one certificate")
    return KeyPair(certificate_pem=blocks["CERTIFICATE"], key_pem=blocks["PRIVATE KEY"])


def _publish(ca: FleetCa) -> None:
    wanted = ca.certificate_pem.encode()
    try:
        is_there = read_regular(ca.certificate_file, _MOST_BYTES) == wanted
    except OSError:
        is_there = False
    if not is_there:
        write_file(ca.certificate_file, wanted)


def _damaged(path: str, why: str) -> Damaged:
    hint = "restore it from a backup; or move it away: a new CA is created, and every machine has to join again"
    return Damaged(f"the fleet's CA in {path} is damaged: {why}", hint=hint, path=path)


SERVER_NAME = "server.pem"
_MOST_CERTIFICATE_BYTES = 256 * 1024
_MARK = "-----BEGIN CERTIFICATE-----"


class ServerCertificate:
    """The certificate of one coordinator, renewed before it expires and when `names` returns other hosts or addresses.

    Key and certificate are in one file, `state/authority/server.pem`, readable by its owner only. The server checks
    periodically, and loads a new one.
    """

    def __init__(
        self, ca: FleetCa, names: Callable[[], Iterable[str]], *, clock: Clock, life_s: float = SERVER_LIFE_S
    ) -> None:
        self.path = os.path.join(ca.folder, SERVER_NAME)
        self._ca = ca
        self._names = names
        self._clock = clock
        self._life_s = life_s

    def ensure(self) -> bool:
        """Make a new certificate unless the present one has all names and is valid long enough; return True if made."""
        names = tuple(dict.fromkeys(self._names()))
        if self._is_good(frozenset(names)):
            return False
        key_pem = make_key()
        signed = self._ca.signer.server(key_pem, names, now_s=self._clock.wall_s(), life_s=self._life_s)
        write_file(self.path, f"{key_pem}{signed.certificate_pem}".encode(), mode=0o600)
        return True

    def _is_good(self, names: frozenset[str]) -> bool:
        try:
            text = read_regular(self.path, _MOST_CERTIFICATE_BYTES).decode()
            pem = text[text.index(_MARK) :]
            found = read_certificate(pem)
            has_names, is_ours = names <= names_in(pem), is_signed_by(pem, self._ca.certificate_pem)
        except (OSError, ValueError, Damaged):
            return False
        now_s = self._clock.wall_s()
        left_s = found.not_after_s - now_s
        return has_names and is_ours and found.not_before_s <= now_s and left_s > self._life_s / 3


MOST_FAILURES_EACH = 5
"""Wrong proofs from one address that count: one client must not close an invitation. A right one is always accepted."""
MOST_FAILURES = 200
"""Wrong proofs from all addresses together that close an invitation: of 2**50 codes that is one in 5e12."""
SLOT_S = 300.0
"""Our nonce is valid for one to two of these."""
REPEAT_S = 600.0
"""Time after its use, besides its lifetime, in which the same request gets the same response."""


class InviteVerdict(StrEnum):
    """The result of an attempt to join."""

    TAKE = "take"
    REPEAT = "repeat"
    """Used by the same request before: the response was lost."""
    WRONG = "wrong"
    """A wrong proof, which is counted."""
    COPIED = "copied"
    """A right proof with a ticket that another request has used."""
    REFUSE = "refuse"
    """Refused, but not a wrong code."""


@frozen
class InviteDecision:
    """The verdict, and the error to send."""

    verdict: InviteVerdict
    error: Forbidden | Refused | None = None


def server_nonce(ca: FleetCa, invite: str, nonce: str, now_s: float) -> str:
    """Return our nonce for a request now."""
    return _nonce(ca, invite, nonce, int(now_s // SLOT_S))


def key_of(ca: FleetCa, invite: Invite | None, id: str) -> bytes:
    """Return the key of an invitation, or an unknown one, so that responses do not reveal which ids exist."""
    if invite is not None and invite.key:
        return bytes.fromhex(invite.key)
    return ca.derive("stoker/join/nobody/1", id)


def judge_finish(ca: FleetCa, invite: Invite | None, said: JoinFinish, now_s: float) -> InviteDecision:
    """Decide about an attempt to join. Without a proof of the code the result reveals nothing about the invitation."""
    if invite is not None and may_repeat(invite, now_s) and invite.request == request_digest(said):
        return InviteDecision(verdict=InviteVerdict.REPEAT)
    slot = int(now_s // SLOT_S)
    if said.server_nonce not in {_nonce(ca, said.id, said.nonce, one) for one in (slot, slot - 1)}:
        return _refused(
            Refused("the attempt to join took too long", hint="join again with the same code", reason="slow")
        )
    proof = finish_proof(
        key_of(ca, invite, said.id),
        nonce=said.nonce,
        server_nonce=said.server_nonce,
        name=said.name,
        csr_pem=said.csr_pem,
    )
    if not is_same_proof(proof, said.proof) or invite is None or not invite.key:
        return InviteDecision(verdict=InviteVerdict.WRONG, error=wrong_code())
    return _judge_purpose(invite, said, now_s)


def may_repeat(invite: Invite, now_s: float) -> bool:
    """Return True if the request that used an invitation may get its response again."""
    return invite.used_s is not None and (now_s < invite.expires_s or now_s - invite.used_s <= REPEAT_S)


def not_invited(invite: Invite | None, now_s: float) -> Forbidden:
    """Return the error for an unknown or closed invitation."""
    if invite is None:
        return Forbidden("there is no invitation with this code", hint=_ASK_AGAIN, reason="unknown")
    if invite.used_s is not None:
        return Forbidden("the invitation was used already", hint=_ASK_AGAIN, reason="used")
    if invite.failures >= MOST_FAILURES:
        what = f"the invitation is closed: {invite.failures} wrong codes were tried with it"
        return Forbidden(what, hint=_ASK_AGAIN, reason="spent")
    what = "the invitation has expired" if now_s >= invite.expires_s else "the invitation was withdrawn"
    return Forbidden(what, hint=_ASK_AGAIN, reason="expired")


def request_digest(said: JoinFinish) -> str:
    """Return the digest that identifies a request."""
    return digest_value("stoker/join/request", said.model_dump(mode="json"))


def wrong_code() -> Forbidden:
    """Return the error for a wrong proof; it reveals nothing else."""
    what = "the code is wrong, or its invitation was used, withdrawn or spent"
    return Forbidden(what, hint=f"check its letters; {_ASK_AGAIN}", reason="wrong")


def _judge_purpose(invite: Invite, said: JoinFinish, now_s: float) -> InviteDecision:
    """Decide about a request with a right proof."""
    if invite.is_ticket and invite.used_s is not None:
        return InviteDecision(verdict=InviteVerdict.COPIED, error=not_invited(invite, now_s))
    if not invite.is_live(now_s):
        return _refused(not_invited(invite, now_s))
    if invite.name and invite.name != said.name:
        hint = f"join with --name {invite.name}"
        what = f"this invitation is for {invite.name!r}, not for {said.name!r}"
        return _refused(Forbidden(what, hint=hint, reason="name"))
    is_machine = invite.role == Role.WORKER.value
    if is_machine != bool(said.csr_pem):
        who, hint = (
            ("a machine", "leave --operator out") if is_machine else ("a person", "update stoker, then join again")
        )
        return _refused(Forbidden(f"this invitation is for {who}", hint=hint, reason="role"))
    return InviteDecision(verdict=InviteVerdict.TAKE)


def _nonce(ca: FleetCa, invite: str, nonce: str, slot: int) -> str:
    return ca.derive("stoker/join/nonce/1", invite, nonce, str(slot)).hex()[: 2 * NONCE_BYTES]


def _refused(error: Forbidden | Refused) -> InviteDecision:
    return InviteDecision(verdict=InviteVerdict.REFUSE, error=error)


_ASK_AGAIN = "get a new one at the coordinator: `stoker machines invite`"


@frozen
class Enrolment:
    """What a coordinator needs for joining: its CA, its addresses, and the lifetime of machines' certificates."""

    ca: FleetCa
    names: Callable[[], tuple[str, ...]]
    """Returns every known `HOST:PORT` of the coordinator, the best one first."""
    life_s: float = MACHINE_LIFE_S

    def sign(
        self, csr_pem: str, name: str, *, now_s: float, until_s: float | None = None
    ) -> tuple[str, IssuedCertificate]:
        """Return a new certificate of a machine, and its record; with `until_s`, the end of an allocation, until then.

        That one is not renewed, so a shorter lifetime of other machines' certificates does not count.
        """
        life_s = self.life_s if until_s is None else min(MACHINE_LIFE_S, until_s - now_s)
        signed = self.ca.signer.machine(csr_pem, name, now_s=now_s, life_s=life_s)
        issued = IssuedCertificate(serial=signed.serial, name=name, issued_s=now_s, expires_s=signed.not_after_s)
        return signed.certificate_pem, issued


# Rate limit of wrong codes and tokens: a burst per address, then one per period.

_MOST_ADDRESSES = 10_000


@frozen
class RateLimiterSettings:
    """Size of a burst, and the time per further try."""

    burst: int
    each_s: float


class RateLimiter:
    """Tries by address. The oldest are dropped, at the latest when their tries are available again."""

    def __init__(self, limit: RateLimiterSettings) -> None:
        self._limit = limit
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Address → number of used tries, and when."""

    def check(self, address: str, now_s: float) -> None:
        """Raise `RateLimited` if an address has no tries left."""
        if self._spent and self._left(address, now_s) < 1:
            wait_s = max(1, round(self._limit.each_s))
            raise RateLimited(
                f"too many tries from {address}", hint=f"wait {wait_s} s, then try again", retry_after_s=wait_s
            )

    def spend(self, address: str, now_s: float) -> None:
        """Count a try."""
        spent = self._limit.burst - self._left(address, now_s) + 1
        self._spent[address] = (min(spent, float(self._limit.burst)), now_s)
        self._spent.move_to_end(address)
        if len(self._spent) > _MOST_ADDRESSES:
            self._spent.popitem(last=False)

    def _left(self, address: str, now_s: float) -> float:
        found = self._spent.get(address)
        if found is None:
            return float(self._limit.burst)
        spent, at_s = found
        return self._limit.burst - max(0.0, spent - (now_s - at_s) / self._limit.each_s)
