"""The joining side of an invitation: verify the CA, check the machine, then request a certificate or a token.

    proven = begin(invitation, door)          # over TLS that proves nothing; the code's key proves the CA
    membership = finish(proven, name, door)   # over TLS of that CA alone

A request is stored before it is sent, and its result replaces it: a join that was killed in between continues with
`resume`, with the same code. A mistyped code and a man in the middle look alike at `begin`: the proof does not match
the code. A man in the middle who only forwards the first response is detected at `finish`: they have no certificate
of the verified CA.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import closing, suppress
from http import HTTPStatus
from math import isfinite
from typing import Protocol

from stoker.core.capability import Capability
from stoker.core.clock import Clock
from stoker.core.errors import (
    BadAnswer,
    Forbidden,
    LocalFile,
    NetworkFailed,
    NoCoordinator,
    NoPermission,
    NoSpace,
    Refused,
    StokerError,
    TicketRefused,
    Unavailable,
    Usage,
    VersionSkew,
)
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps, loads
from stoker.core.leases import Role
from stoker.core.retry import pause_s
from stoker.core.text import format_duration, is_node_name, one_line
from stoker.devices.checkup import Check, CheckStatus, MachineSurvey, check_devices, check_machine, check_surroundings
from stoker.host.durable import read_regular, write_file
from stoker.host.http.client import UnverifiedResponse
from stoker.host.http.exchange import FleetIdentity, Transport, asked_directly, read_address
from stoker.host.http.http_errors import Reason
from stoker.protocol.client import FleetClient
from stoker.protocol.codec import VERSION, VERSION_HEADER, from_json, to_json
from stoker.protocol.discovery import DEFAULT_PORT, FOLDER, SECURE, Membership, make_folder, write_joined
from stoker.protocol.enrolment_messages import (
    JOIN_BEGIN,
    NONCE_BYTES,
    JoinBegin,
    JoinBeginResponse,
    JoinCode,
    JoinFinish,
    JoinFinishResponse,
    JoinPurpose,
    NotACode,
    NotOneCertificate,
    Ticket,
    begin_proof,
    fingerprint,
    finish_proof,
    is_same_proof,
    join_key,
    one_certificate,
    read_code,
    unseal,
)
from stoker.protocol.refusals import no_coordinator_there, refusal
from stoker.protocol.transport import RequestTimeouts

# `CODE@HOST[:PORT]`, as a person pastes it: the code taken apart, and where to join.

_HINT = "CODE@HOST[:PORT], as `stoker machines invite` printed it"


@frozen
class Invitation:
    """Where to join, and with what."""

    id: str
    key: bytes
    """The key of the proofs."""
    url: str
    """`https://HOST:PORT`"""
    server_name: str = ""
    """The coordinator's host name in its certificate, if a relay has the address; empty: the URL's host."""

    @classmethod
    def of_code(cls, code: JoinCode, url: str) -> Invitation:
        """Return that of a code; slow, as `join_key` is."""
        return cls(id=code.id, key=join_key(code), url=url)

    @property
    def host(self) -> str:
        """Where, as people say it."""
        return self.url.removeprefix(SECURE)


def read_invitation(text: str) -> Invitation:
    """Read what a person pasted. Raises `Usage` with what is wrong with it."""
    code, at, host = text.strip().partition("@")
    if not at or not host:
        raise Usage(f"{text!r} has no host to join", hint=_HINT)
    scheme, separator, rest = host.partition("://")
    if separator and scheme != "https":
        raise Usage("a fleet is joined over TLS alone", hint=_HINT)
    host = (rest if separator else host).rstrip("/")
    if "/" in host:
        raise Usage(f"{host!r} is no host to join at", hint=_HINT)
    has_port = not host.endswith("]") and host.rpartition(":")[2].isdigit()
    address = read_address(f"{SECURE}{host}{'' if has_port else f':{DEFAULT_PORT}'}")
    if address.authorization or address.target != "/":
        # What stands before a second @ may be a password: it is not repeated.
        raise Usage(f"{address.origin.host!r} is no host to join at as it stands", hint=_HINT)
    try:
        return Invitation.of_code(read_code(code), str(address.origin))
    except NotACode as error:
        raise Usage(f"{code!r} is not a valid code: {error}", hint=_HINT) from None


_PREFIX = "pending-"
_LARGEST_BYTES = 64 * 1024
_OLD_S = 86_400.0
"""No code is valid for so long: an older file is of no use."""


@frozen
class PendingJoin:
    """`state/joined/pending-ID.json`: the request of an attempt to join, kept until its response is stored.

    A code works once. A join that was killed between the response and the last of its own files sends the same request
    again and gets the same response. The file has the machine's new key, readable by its owner alone; it is written
    before the request is sent and deleted once the response is stored.
    """

    url: str
    ca_pem: str
    """The certificate that the coordinator proved to be its own."""
    role: Role
    key_pem: str
    """A machine's; empty for a person."""
    said: JoinFinish


def write_pending(state: str, pending: PendingJoin, *, now_s: float) -> None:
    """Store an attempt before it is made. Expired ones are deleted."""
    folder = make_folder(state)
    with suppress(OSError):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if name.startswith(_PREFIX) and now_s - os.lstat(path).st_mtime > _OLD_S:
                os.unlink(path)
    record = {
        "v": 1,
        "url": pending.url,
        "ca_pem": pending.ca_pem,
        "role": pending.role.value,
        "key_pem": pending.key_pem,
        "said": pending.said.model_dump(mode="json"),
    }
    write_file(_path(state, pending.said.id), dumps(record).encode(), mode=0o600)


def read_pending(state: str, invite: str) -> PendingJoin | None:
    """Return the attempt made with an invitation; None if there is none or it is unreadable."""
    try:
        record = loads(read_regular(_path(state, invite), _LARGEST_BYTES))
        return PendingJoin(
            url=str(record["url"]),
            ca_pem=str(record["ca_pem"]),
            role=Role(record["role"]),
            key_pem=str(record["key_pem"]),
            said=JoinFinish.model_validate(record["said"]),
        )
    except (OSError, ValueError, KeyError, TypeError, StokerError):
        return None


def drop_pending(state: str, invite: str) -> None:
    """Delete it, and the folder if that is empty."""
    with suppress(OSError):
        os.unlink(_path(state, invite))
        os.rmdir(os.path.join(state, FOLDER))


def _path(state: str, invite: str) -> str:
    return os.path.join(state, FOLDER, f"{_PREFIX}{invite}.json")


_ANSWER_S = 15.0
_LONGEST_VERSION = 40
_NOT_YET_VALID, _EXPIRED = 9, 10
_OTHER_NAME = frozenset({62, 64})
_ON_THE_WAY = frozenset({"clock", "host", "intercepted"})
"""Reasons from the way to the coordinator: it has not received the request."""


class JoinTransport(Protocol):
    """How a joining machine reaches a coordinator."""

    @property
    def clock(self) -> Clock: ...

    def ask_unproven(self, url: str, body: bytes, headers: dict[str, str]) -> UnverifiedResponse:
        """Send one request to a server that has proven nothing."""

    def open_transport(
        self, longest_wait_s: float, *, direct: tuple[str, ...] = (), fleet: FleetIdentity | None = None
    ) -> Transport: ...


@frozen
class VerifiedCoordinator:
    """A coordinator that has proven itself, and what it invites to."""

    invitation: Invitation
    nonce: str
    server_nonce: str
    ca_pem: str
    """Exactly the certificate that was proven."""
    role: Role
    name: str
    """The only one that may join; empty: any."""
    version: str
    offset_s: float
    """How far this machine's clock is ahead of the coordinator's. Not proven; only reported."""

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.ca_pem)


def begin(invitation: Invitation, door: JoinTransport) -> VerifiedCoordinator:
    """Request the fleet's CA, and verify by the invitation's key that it is the right one."""
    nonce = secrets.token_hex(NONCE_BYTES)
    asked_s = door.clock.wall_s()
    begun = _ask_begin(invitation, JoinBegin(id=invitation.id, nonce=nonce), door)
    heard_s = door.clock.wall_s()
    key = invitation.key
    try:
        expected = begin_proof(
            key, nonce=nonce, server_nonce=begun.nonce, ca_pem=begun.ca_pem, role=begun.role, name=begun.name
        )
        is_proven = is_same_proof(expected, begun.proof)
    except NotOneCertificate:
        is_proven = False
    purpose = _purpose(begun, key, nonce) if is_proven else None
    if purpose is None:
        raise _unproven(invitation)
    if purpose.name and not is_node_name(purpose.name):
        raise no_coordinator_there(invitation.url, f"it invites {one_line(purpose.name, 100)!r}, which is no name")
    return VerifiedCoordinator(
        invitation=invitation,
        nonce=nonce,
        server_nonce=begun.nonce,
        ca_pem=_pem(one_certificate(begun.ca_pem)),
        role=purpose.role,
        name=purpose.name,
        # Neither is proven: a man in the middle may have set it.
        version=one_line(begun.version, _LONGEST_VERSION),
        offset_s=(asked_s + heard_s) / 2 - begun.server_s if isfinite(begun.server_s) and begun.server_s else 0.0,
    )


def _purpose(begun: JoinBeginResponse, key: bytes, nonce: str) -> JoinPurpose | None:
    """Return what the invitation is for; None if the response is not sealed with the code's key."""
    if not begun.sealed:
        return JoinPurpose(role=begun.role, name=begun.name)
    text = unseal(key, begun.sealed, nonce=nonce, server_nonce=begun.nonce)
    return None if text is None else from_json(JoinPurpose, text.encode())


def resume(invitation: Invitation, name: str, door: JoinTransport, *, state: str) -> Membership | None:
    """Continue an attempt with this invitation that was cut off after its request was stored; None if there is none.

    Also None if the coordinator no longer accepts that request: the caller then begins again. `name` is the requested
    name; empty: any.
    """
    pending = read_pending(state, invitation.id)
    if pending is None or pending.url != invitation.url or name not in ("", pending.said.name):
        return None
    said = pending.said
    proof = finish_proof(
        invitation.key, nonce=said.nonce, server_nonce=said.server_nonce, name=said.name, csr_pem=said.csr_pem
    )
    if not is_same_proof(proof, said.proof):
        return None
    proven = VerifiedCoordinator(
        invitation=invitation,
        nonce=said.nonce,
        server_nonce=said.server_nonce,
        ca_pem=pending.ca_pem,
        role=pending.role,
        name=said.name,
        version="",
        offset_s=0.0,
    )
    try:
        return _complete(proven, said, pending.key_pem, door, state)
    except (Forbidden, Refused) as error:
        if error.data.get("reason") in _ON_THE_WAY:
            raise
        drop_pending(state, said.id)
        return None


def finish(proven: VerifiedCoordinator, name: str, door: JoinTransport, *, state: str) -> Membership:
    """Prove that we have the invitation's key, get what it is for, and keep it."""
    from stoker.host.certificates import make_csr, make_key  # noqa: PLC0415 - cryptography costs a tenth of a second

    is_machine = proven.role is Role.WORKER
    key_pem = make_key() if is_machine else ""
    csr_pem = make_csr(key_pem, name) if is_machine else ""
    said = JoinFinish(
        id=proven.invitation.id,
        nonce=proven.nonce,
        server_nonce=proven.server_nonce,
        name=name,
        csr_pem=csr_pem,
        proof=finish_proof(
            proven.invitation.key, nonce=proven.nonce, server_nonce=proven.server_nonce, name=name, csr_pem=csr_pem
        ),
    )
    pending = PendingJoin(url=proven.invitation.url, ca_pem=proven.ca_pem, role=proven.role, key_pem=key_pem, said=said)
    write_pending(state, pending, now_s=door.clock.wall_s())
    try:
        return _complete(proven, said, key_pem, door, state)
    except StokerError as error:
        if not _is_open(error):
            drop_pending(state, said.id)
        raise


def _complete(
    proven: VerifiedCoordinator, said: JoinFinish, key_pem: str, door: JoinTransport, state: str
) -> Membership:
    """Send the request, store its result, and only then delete the stored request."""
    joined = _with_client(proven, door, lambda client: client.finish_join(said))
    _check(joined, proven, said.name, said.csr_pem)
    member = Membership(
        url=proven.invitation.url,
        name=joined.name,
        role=joined.role,
        fingerprint=proven.fingerprint,
        joined_s=door.clock.wall_s(),
        expires_s=joined.expires_s,
        server_name=proven.invitation.server_name,
    )
    membership = write_joined(
        state,
        member,
        ca_pem=proven.ca_pem,
        certificate_pem=joined.certificate_pem,
        key_pem=key_pem,
        token=joined.token,
    )
    drop_pending(state, said.id)
    return membership


_TICKET_PATIENCE_S = 300.0
"""How long a worker with a ticket tries to reach its coordinator."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 15.0


def join_with_ticket(
    ticket: Ticket, door: JoinTransport, *, state: str, limit_s: float | None, note: Callable[[str], None]
) -> Membership:
    """Join under a ticket's name. While the coordinator can't be reached, try again for 5 minutes, at most `limit_s`.

    Raises `TicketRefused` with the coordinator's reason.
    """
    invitation = Invitation(id=ticket.id, key=bytes.fromhex(ticket.key), url=ticket.url, server_name=ticket.server_name)
    ends_s = door.clock.boottime_s() + min(_TICKET_PATIENCE_S, _TICKET_PATIENCE_S if limit_s is None else limit_s)
    count = 0
    while True:
        try:
            return resume(invitation, ticket.name, door, state=state) or _join_as(ticket.name, invitation, door, state)
        except StokerError as error:
            again_s = pause_s(count, secrets.randbelow(1000) / 1000, first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S)
            is_slow = isinstance(error, Refused) and error.data.get("reason") == "slow"
            if not (is_slow or _is_passing(error)) or door.clock.boottime_s() + again_s > ends_s:
                raise _ticket_error(error, ticket) from error
            if not count:
                note(f"note: not joined yet, trying again: {error}")
        count += 1
        door.clock.sleep(again_s)


def _join_as(name: str, invitation: Invitation, door: JoinTransport, state: str) -> Membership:
    proven = begin(invitation, door)
    if proven.role is not Role.WORKER or proven.name != name:
        raise Forbidden(f"the invitation is not for a machine with the name {name}", reason="name")
    return finish(proven, name, door, state=state)


def _ticket_error(error: StokerError, ticket: Ticket) -> StokerError:
    """Return the error of a worker whose ticket is not accepted; an error that has another cause as it is."""
    reason = error.data.get("reason")
    if not isinstance(error, Refused) or isinstance(error, VersionSkew) or reason in _ON_THE_WAY:
        return error
    what = f"refused: {error.message}"
    if reason == "unproven":
        what = "is not known there (used, expired, or of another fleet), or the connection is intercepted"
    return TicketRefused(
        f"{ticket.url.removeprefix(SECURE)}: ticket {ticket.id} of {ticket.name} {what}",
        hint=(
            "a ticket works once, for one allocation; request another one: "
            f"stoker launch {ticket.name.rpartition('-')[0] or 'POOL'}"
        ),
        reason=reason,
    )


def _ask_begin(invitation: Invitation, said: JoinBegin, door: JoinTransport) -> JoinBeginResponse:
    url = invitation.url
    try:
        answer = door.ask_unproven(f"{url}{JOIN_BEGIN}", to_json(said), {VERSION_HEADER: str(VERSION)})
    except NetworkFailed as error:
        raise _unreachable(error, invitation.host) from error
    if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
        raise refusal(answer.status, answer.data, is_ours=VERSION_HEADER in answer.headers, url=url)
    try:
        return from_json(JoinBeginResponse, answer.data)
    except ValueError as error:
        raise no_coordinator_there(url, f"{JOIN_BEGIN}: {error}") from None


def _with_client(
    proven: VerifiedCoordinator, door: JoinTransport, act: Callable[[FleetClient], JoinFinishResponse]
) -> JoinFinishResponse:
    identity = FleetIdentity(ca_pem=proven.ca_pem, server_name=proven.invitation.server_name)
    transport = door.open_transport(_ANSWER_S, direct=asked_directly(proven.invitation.url), fleet=identity)
    with closing(transport):
        client = FleetClient(
            transport,
            proven.invitation.url,
            clock=door.clock,
            patience=RequestTimeouts(answer_s=_ANSWER_S, retry_s=_ANSWER_S),
        )
        try:
            return act(client)
        except NoCoordinator as error:
            raise _untrusted(error, proven) from error


def _is_passing(error: StokerError) -> bool:
    """Return True if a later request may succeed: the coordinator is down, restarts, or has too many requests."""
    is_other = isinstance(error, BadAnswer | NoSpace | NoPermission) or bool(error.data.get("is_lasting"))
    return isinstance(error, Unavailable) and not is_other


def _is_open(error: StokerError) -> bool:
    """Return True if the coordinator may have accepted the request despite this error: no response, no disk space."""
    return _is_passing(error) or isinstance(error, LocalFile | NoSpace | NoPermission)


def _check(joined: JoinFinishResponse, proven: VerifiedCoordinator, name: str, csr_pem: str) -> None:
    """Raise if the response does not contain what the invitation was for, under the requested name."""
    lacks = not joined.certificate_pem if csr_pem else not joined.token
    # A token is sent in a header, and control characters in a name would reach a terminal.
    is_odd = joined.name != name or not (joined.token.isascii() and joined.token.isprintable())
    if lacks or is_odd or joined.role is not proven.role:
        raise no_coordinator_there(proven.invitation.url, "it gave something else than the invitation was for")


def _unproven(invitation: Invitation) -> Forbidden:
    return Forbidden(
        f"what answers at {invitation.host} can't prove that it made this code; nothing was sent to it",
        hint=(
            "check the code's letters, and that it was neither used nor withdrawn; otherwise the connection is "
            "intercepted: join from another network"
        ),
        reason="unproven",
    )


def _unreachable(error: NetworkFailed, host: str) -> StokerError:
    reason = error.data.get("reason")
    hint = error.hint
    if reason == Reason.REFUSED:
        hint = "is `stoker serve --listen 0.0.0.0` running there? without --listen it serves its own machine alone"
    elif reason == Reason.DNS:
        hint = "use the coordinator's address instead of its name: CODE@192.168.1.10"
    elif reason in (Reason.CONNECT_TIMEOUT, Reason.UNREACHABLE):
        hint = "is it on the same network, and does its firewall let the port through?"
    elif reason == Reason.TLS:
        hint = "what listens there speaks no TLS as coordinators do: is the port right?"
    about = {name: error.data.get(name) for name in ("reason", "is_lasting")}
    return NoCoordinator(f"no coordinator can be reached at {host}: {error.message}", hint=hint, **about)


def _untrusted(error: NoCoordinator, proven: VerifiedCoordinator) -> StokerError:
    """Return the error for a server that lacks the certificate that was proven."""
    if error.data.get("reason") != Reason.CERTIFICATE:
        return error
    code, host = error.data.get("verify_code"), proven.invitation.host
    if code in (_NOT_YET_VALID, _EXPIRED):
        off = "behind" if proven.offset_s < 0 else "ahead"
        return Forbidden(
            f"this machine's clock is {abs(proven.offset_s):.0f} s {off}: certificates of {host} don't hold now",
            hint="set the clock (`timedatectl set-ntp true`), then join again with the same code",
            reason="clock",
        )
    if code in _OTHER_NAME:
        bare = host.rpartition(":")[0]
        return Forbidden(
            f"the coordinator's certificate is not for {bare}",
            hint=f"join by a name that `stoker machines invite` printed, or `stoker serve --advertise {bare}` there",
            reason="host",
        )
    return Forbidden(
        f"connection to {host} is intercepted: its certificate is not from the fleet's CA; nothing was sent to it",
        hint="join from another network, or by another address of the coordinator",
        reason="intercepted",
    )


def _pem(der: bytes) -> str:
    import ssl  # noqa: PLC0415 - only who joins needs it here

    return ssl.DER_cert_to_PEM_cert(der)


_TRUE_S = 1.0
_HARMLESS_S = 600.0
_TOO_FAR_S = 12 * 3600.0
"""Certificates hold from a day before they are made; nearer to that, none may be relied on."""
_OF_SURVEY = frozenset({"disk", "containment"})


@frozen
class JoinCheckFacts:
    """The facts that were collected."""

    capability: Capability
    survey: MachineSurvey
    store_trouble: str
    """Why the store can't be written; empty: it can."""
    offset_s: float
    """How far its clock is ahead of the coordinator's."""
    version: str
    """Of this program."""
    coordinator_version: str


def self_test(facts: JoinCheckFacts) -> tuple[Check, ...]:
    """Check a machine before it joins a fleet: devices, disk, clock, write permission.

    Pure: facts in, checks out. A failed check stops the join before the coordinator gets the machine's name.
    """
    return (
        *check_machine(facts.capability),
        *check_devices(facts.capability),
        *(check for check in check_surroundings(facts.survey) if check.name in _OF_SURVEY),
        _store(facts.store_trouble),
        check_clock(facts.offset_s),
        _python(facts),
    )


def check_clock(offset_s: float) -> Check:
    """Check how far this machine's clock is ahead of the coordinator's."""
    away_s = abs(offset_s)
    if away_s < _TRUE_S:
        return Check(name="clock", verdict=CheckStatus.OK, message="as the coordinator's")
    way = "ahead of" if offset_s > 0 else "behind"
    span = f"{away_s:.1f} s" if away_s < 60 else format_duration(away_s)
    message = f"{span} {way} the coordinator's"
    if away_s <= _HARMLESS_S:
        return Check(name="clock", verdict=CheckStatus.WARN, message=f"{message} (harmless)")
    hint = "`timedatectl set-ntp true` keeps it right"
    verdict = CheckStatus.WARN if away_s <= _TOO_FAR_S else CheckStatus.BAD
    return Check(name="clock", verdict=verdict, message=f"{message}: certificates may not hold here", hint=hint)


def _store(trouble: str) -> Check:
    if not trouble:
        return Check(name="store", verdict=CheckStatus.OK, message="can be written")
    return Check(name="store", verdict=CheckStatus.BAD, message=trouble, hint="STOKER_HOME names another place")


def _python(facts: JoinCheckFacts) -> Check:
    versions = f"{facts.capability.python_version}, Stoker {facts.version}"
    if facts.coordinator_version in ("", facts.version):
        return Check(name="python", verdict=CheckStatus.OK, message=versions)
    message = f"{versions}; the coordinator has {facts.coordinator_version}"
    hint = "fine within one version; `pip install --upgrade stoker` brings both to the same"
    return Check(name="python", verdict=CheckStatus.WARN, message=message, hint=hint)
