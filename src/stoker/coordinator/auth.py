"""Who belongs to the fleet: tokens, certificates and invitations in memory, the CA on disk, and attempts to join.

`TrustState` is a copy of rows that the queue's writer changes together with them, and that every request is judged by:
what was revoked a moment ago is refused now, also on a connection that was opened before. The CA is one file,
`state/authority/ca.key`, for its owner alone, made once; `ca.pem` beside it is the certificate alone. A file that
others may read, or that is damaged, is an error: nothing is ever made in its place.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import StrEnum

from stoker.core.clock import Clock
from stoker.core.digests import digest_value, encode
from stoker.core.errors import Damaged, Forbidden, LocalFile, RateLimited, Refused, StokerError
from stoker.core.frozen import changed, frozen
from stoker.core.leases import Principal, Role
from stoker.host.durable import create_file, read_regular, sync_descriptor, translated, write_file
from stoker.host.tls.certificates import (
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
from stoker.protocol.enrolment_messages import JoinFinish
from stoker.protocol.join_proofs import NONCE_BYTES, finish_proof, is_same_proof

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

REVOKED_NAME = "revoked"
_MOST_REVOKED_BYTES = 64 * 1024 * 1024
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
            text = read_regular(self._path, _MOST_REVOKED_BYTES).decode("ascii", errors="replace")
        except FileNotFoundError:
            return
        except OSError as error:
            # Not to know who was shut out must not let them in.
            raise LocalFile(f"{self._path} can't be read: {error.strerror or error}", path=self._path) from None
        for line in text.splitlines():
            kind, _, id_ = line.partition(" ")
            if id_:
                yield kind, id_


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
        """Return 32 bytes that only this CA's owner can know, always the same for the same words."""
        return hmac.new(self._secret, encode([domain, *parts]), hashlib.sha256).digest()


def open_ca(folder: str, *, fleet: str, now_s: float) -> FleetCa:
    """Return the CA of a folder; made, for us alone, if there is none."""
    path = os.path.join(folder, KEY_NAME)
    with translated(folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    if not os.path.lexists(path):
        made = make_ca(f"stoker fleet of {fleet}", now_s=now_s)
        # False: another process was first, and its CA counts.
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
        mode = os.stat(path).st_mode
        text = read_regular(path, _MOST_BYTES).decode()
    except UnicodeDecodeError:
        raise Damaged("it is no text") from None
    except OSError as error:
        raise LocalFile(f"the fleet's CA in {path} can't be read: {error.strerror or error}", path=path) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        hint = (
            f"chmod 600 {path}; if somebody may have read it, move it away: a new CA is made, and machines join again"
        )
        raise LocalFile(f"others may read the fleet's CA key in {path}", hint=hint, path=path)
    blocks = {found[1]: found[0] for found in _BLOCK.finditer(text)}
    if set(blocks) != {"PRIVATE KEY", "CERTIFICATE"}:
        raise Damaged("it does not hold one key and one certificate")
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
    hint = "put back a backup of it; or move it away: a new CA is made, and every machine has to join again"
    return Damaged(f"the fleet's CA in {path} is damaged: {why}", hint=hint, path=path)


# The certificate that the coordinator itself shows: made anew before it expires, and when its names change.
#
# Key and certificate stand in one file, `state/authority/server.pem`, for its owner alone. Whoever serves asks now and
# then, and loads it again where it is new.

SERVER_NAME = "server.pem"
_SERVER_CERTIFICATE_MOST_BYTES = 256 * 1024
_MARK = "-----BEGIN CERTIFICATE-----"


class ServerCertificate:
    """One coordinator's. `names` gives the hosts and addresses by which it is asked, as they are now."""

    def __init__(
        self, ca: FleetCa, names: Callable[[], Iterable[str]], *, clock: Clock, life_s: float = SERVER_LIFE_S
    ) -> None:
        self.path = os.path.join(ca.folder, SERVER_NAME)
        self._ca = ca
        self._names = names
        self._clock = clock
        self._life_s = life_s

    def ensure(self) -> bool:
        """Have one that holds for our names and for a good while; true: it is a new one."""
        names = tuple(dict.fromkeys(self._names()))
        if self._is_good(frozenset(names)):
            return False
        key_pem = make_key()
        signed = self._ca.signer.server(key_pem, names, now_s=self._clock.wall_s(), life_s=self._life_s)
        write_file(self.path, f"{key_pem}{signed.certificate_pem}".encode(), mode=0o600)
        return True

    def _is_good(self, names: frozenset[str]) -> bool:
        try:
            text = read_regular(self.path, _SERVER_CERTIFICATE_MOST_BYTES).decode()
            pem = text[text.index(_MARK) :]
            found = read_certificate(pem)
            has_names, is_ours = names <= names_in(pem), is_signed_by(pem, self._ca.certificate_pem)
        except (OSError, ValueError, Damaged):
            return False
        now_s = self._clock.wall_s()
        left_s = found.not_after_s - now_s
        return has_names and is_ours and found.not_before_s <= now_s and left_s > self._life_s / 3


MOST_FAILURES_EACH = 5
"""Wrong proofs from one address that count: a stranger must not end what others wait for. A right one always counts."""
MOST_FAILURES = 200
"""Wrong proofs from all addresses together, which end an invitation: of 2**50 codes that is one in 5e12."""
SLOT_S = 300.0
"""A nonce of ours holds for one to two of these."""
REPEAT_S = 600.0
"""For so long after its use, and as long as it would live, the same words get the same answer again."""


class InviteVerdict(StrEnum):
    """What becomes of an attempt."""

    TAKE = "take"
    REPEAT = "repeat"
    """It was used by these very words: the answer was lost on its way."""
    WRONG = "wrong"
    """It proves nothing, and is counted."""
    REFUSE = "refuse"
    """It can't be, and is no guess."""


@frozen
class InviteDecision:
    """The verdict, and what is told."""

    verdict: InviteVerdict
    error: Forbidden | Refused | None = None


def server_nonce(ca: FleetCa, invite: str, nonce: str, now_s: float) -> str:
    """Return our nonce for somebody who asks now."""
    return _nonce(ca, invite, nonce, int(now_s // SLOT_S))


def key_of(ca: FleetCa, invite: Invite | None, id: str) -> bytes:
    """Return the key of an invitation, or one that nobody has, so that strangers do not learn which there are."""
    if invite is not None and invite.key:
        return bytes.fromhex(invite.key)
    return ca.derive("stoker/join/nobody/1", id)


def judge_finish(ca: FleetCa, invite: Invite | None, said: JoinFinish, now_s: float) -> InviteDecision:
    """Decide about an attempt to join. Only who proves to have the code learns anything about the invitation."""
    if invite is not None and may_repeat(invite, now_s) and invite.request == request_digest(said):
        return InviteDecision(verdict=InviteVerdict.REPEAT)
    slot = int(now_s // SLOT_S)
    if said.server_nonce not in {_nonce(ca, said.id, said.nonce, one) for one in (slot, slot - 1)}:
        return _refused(
            Refused("this attempt to join took too long", hint="join again with the same code", reason="slow")
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
    """Say whether whoever used an invitation may hear the same answer again: as long as it would live, or a while."""
    return invite.used_s is not None and (now_s < invite.expires_s or now_s - invite.used_s <= REPEAT_S)


def not_invited(invite: Invite | None, now_s: float) -> Forbidden:
    """Refuse a code that nobody waits for any more, or never did."""
    if invite is None:
        return Forbidden("there is no invitation of that code", hint=_ASK_AGAIN, reason="unknown")
    if invite.used_s is not None:
        return Forbidden("this invitation was used already", hint=_ASK_AGAIN, reason="used")
    if invite.failures >= MOST_FAILURES:
        what = f"this invitation is over: {invite.failures} wrong codes were tried with it"
        return Forbidden(what, hint=_ASK_AGAIN, reason="spent")
    what = "this invitation has expired" if now_s >= invite.expires_s else "this invitation was taken back"
    return Forbidden(what, hint=_ASK_AGAIN, reason="expired")


def request_digest(said: JoinFinish) -> str:
    """Return what tells one attempt's words from any other's."""
    return digest_value("stoker/join/request", said.model_dump(mode="json"))


def wrong_code() -> Forbidden:
    """Return the refusal of a proof that no open invitation makes: it says no more than that."""
    what = "the code is wrong, or its invitation was used, withdrawn or spent"
    return Forbidden(what, hint=f"check its letters; {_ASK_AGAIN}", reason="wrong")


def _judge_purpose(invite: Invite, said: JoinFinish, now_s: float) -> InviteDecision:
    """Decide about somebody who has the code."""
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


_ASK_AGAIN = "ask whoever runs the coordinator for a new one: `stoker machines invite`"


# What a coordinator needs to let others in: its CA, where they find it, and how long certificates of machines hold.


@frozen
class Enrolment:
    """Handed in once."""

    ca: FleetCa
    names: Callable[[], tuple[str, ...]]
    """Gives every `HOST:PORT` by which the coordinator can be joined as far as it knows, the best one first."""
    life_s: float = MACHINE_LIFE_S

    def sign(self, csr_pem: str, name: str, *, now_s: float) -> tuple[str, IssuedCertificate]:
        """Make a machine's certificate: what it gets, and what is stored of it."""
        signed = self.ca.signer.machine(csr_pem, name, now_s=now_s, life_s=self.life_s)
        issued = IssuedCertificate(serial=signed.serial, name=name, issued_s=now_s, expires_s=signed.not_after_s)
        return signed.certificate_pem, issued


# A limit on guessing: so many tries at once from one address, then only as many as come back with time.

_MOST_ADDRESSES = 10_000
_NETWORK_BITS = 64


@frozen
class RateLimiterSettings:
    """How many tries at once, and how long until one comes back."""

    burst: int
    each_s: float


def source_of(address: str) -> str:
    """Give what counts as one source: an IPv4 address, or the network of an IPv6 one, of which anybody has billions."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), _NETWORK_BITS), strict=False))


class RateLimiter:
    """Tries by address. The longest unheard of are forgotten, at the latest when they would be whole again."""

    def __init__(self, limit: RateLimiterSettings) -> None:
        self._limit = limit
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Address → how many tries were spent, and when that was."""

    def check(self, address: str, now_s: float) -> None:
        """Refuse an address that has none left."""
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
