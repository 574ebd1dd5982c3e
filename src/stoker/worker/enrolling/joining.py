"""The joining side of an invitation: prove whose CA it is, look at the machine, then ask for a certificate or a token.

    proven = begin(invitation, door)          # over TLS that proves nothing; the code's key proves the CA
    membership = finish(proven, name, door)   # over TLS of that CA alone

What is asked for is written down before it is asked, and what was given replaces it: who is killed in between goes on
with `resume`, by the same code. A code that is mistyped and a stranger in between look alike at
`begin`: the proof is not the one that this code makes. A stranger who only passes the first answer on is found at
`finish`: they have no certificate of the proven CA.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import closing
from http import HTTPStatus
from math import isfinite
from typing import Protocol

from stoker.host.http.addresses import asked_directly
from stoker.host.http.exchange import Transport
from stoker.host.http.failures import Reason
from stoker.host.http.settings import FleetIdentity
from stoker.host.http.unproven import UnprovenAnswer
from stoker.model.clock import Clock
from stoker.model.errors import BadAnswer, LocalFile, NetworkFailed, NoSpace, Refused, StokerError, Unavailable
from stoker.model.fleet_errors import NoCoordinator, NotAllowed
from stoker.model.frozen import frozen
from stoker.model.names import is_node_name
from stoker.model.principals import Role
from stoker.model.printable import one_line
from stoker.wire.client import FleetClient
from stoker.wire.codec import from_json, to_json
from stoker.wire.enrolling import JoinBegin, JoinBegun, Joined, JoinFinish, JoinPurpose
from stoker.wire.join_proofs import (
    NONCE_BYTES,
    JoinCode,
    NotOneCertificate,
    begin_proof,
    fingerprint,
    finish_proof,
    is_same_proof,
    join_key,
    one_certificate,
    unseal,
)
from stoker.wire.joined import Given, Membership, write_joined
from stoker.wire.protocol import VERSION, VERSION_HEADER
from stoker.wire.refusals import no_coordinator_there, refusal
from stoker.wire.speaking import Patience
from stoker.wire.trust_calls import JOIN_BEGIN
from stoker.worker.enrolling.invitation import Invitation
from stoker.worker.enrolling.pending import Pending, drop_pending, read_pending, write_pending

_ANSWER_S = 15.0
_LONGEST_VERSION = 40
_NOT_YET_VALID, _EXPIRED = 9, 10
_OTHER_NAME = frozenset({62, 64})
_ON_THE_WAY = frozenset({"clock", "host", "intercepted"})
"""Reasons that are none of the coordinator's: it has not heard of the attempt."""


class Door(Protocol):
    """How whoever joins reaches a coordinator."""

    @property
    def clock(self) -> Clock: ...

    def ask_unproven(self, url: str, body: bytes, headers: dict[str, str]) -> UnprovenAnswer:
        """Ask one question of somebody who has proven nothing."""

    def open_transport(
        self, longest_wait_s: float, *, direct: tuple[str, ...] = (), fleet: FleetIdentity | None = None
    ) -> Transport: ...


@frozen
class Proven:
    """A coordinator that has proven itself, and what it invites to."""

    url: str
    host: str
    code: JoinCode
    key: bytes
    nonce: str
    server_nonce: str
    ca_pem: str
    """Exactly the certificate that was proven."""
    role: Role
    name: str
    """The only one that may join; empty: any."""
    version: str
    offset_s: float
    """How far this machine's clock is ahead of the coordinator's. Not proven, and only told."""

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.ca_pem)


def begin(invitation: Invitation, door: Door) -> Proven:
    """Ask who is there, and have them prove by the code which CA is the fleet's."""
    nonce = secrets.token_hex(NONCE_BYTES)
    asked_s = door.clock.wall_s()
    begun = _ask_begin(invitation, JoinBegin(id=invitation.code.id, nonce=nonce), door)
    heard_s = door.clock.wall_s()
    key = join_key(invitation.code)
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
    return Proven(
        url=invitation.url,
        host=invitation.host,
        code=invitation.code,
        key=key,
        nonce=nonce,
        server_nonce=begun.nonce,
        ca_pem=_pem(one_certificate(begun.ca_pem)),
        role=purpose.role,
        name=purpose.name,
        # Neither is proven: anybody on the way may have put it there.
        version=one_line(begun.version, _LONGEST_VERSION),
        offset_s=(asked_s + heard_s) / 2 - begun.server_s if isfinite(begun.server_s) and begun.server_s else 0.0,
    )


def _purpose(begun: JoinBegun, key: bytes, nonce: str) -> JoinPurpose | None:
    """Return what the invitation is for; nothing if whoever answered has not sealed it with the code's key."""
    if not begun.sealed:
        return JoinPurpose(role=begun.role, name=begun.name)
    text = unseal(key, begun.sealed, nonce=nonce, server_nonce=begun.nonce)
    return None if text is None else from_json(JoinPurpose, text.encode())


def resume(invitation: Invitation, name: str, door: Door, *, state: str) -> Membership | None:
    """Go on with an attempt by this code that was cut off after its words were written down; nothing if none was.

    Nothing, too, if the coordinator does not take those words any more: whoever asks begins anew then. `name` is the
    one that is wanted now; empty: any.
    """
    pending = read_pending(state, invitation.code.id)
    if pending is None or pending.url != invitation.url or name not in ("", pending.said.name):
        return None
    said, key = pending.said, join_key(invitation.code)
    proof = finish_proof(key, nonce=said.nonce, server_nonce=said.server_nonce, name=said.name, csr_pem=said.csr_pem)
    if not is_same_proof(proof, said.proof):
        return None
    proven = Proven(
        url=invitation.url,
        host=invitation.host,
        code=invitation.code,
        key=key,
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
    except (NotAllowed, Refused) as error:
        if error.data.get("reason") in _ON_THE_WAY:
            raise
        drop_pending(state, said.id)
        return None


def finish(proven: Proven, name: str, door: Door, *, state: str) -> Membership:
    """Prove that we have the code, get what it is for, and keep it."""
    from stoker.host.tls.keys import make_csr, make_key  # noqa: PLC0415 - cryptography costs a tenth of a second

    is_machine = proven.role is Role.WORKER
    key_pem = make_key() if is_machine else ""
    csr_pem = make_csr(key_pem, name) if is_machine else ""
    said = JoinFinish(
        id=proven.code.id,
        nonce=proven.nonce,
        server_nonce=proven.server_nonce,
        name=name,
        csr_pem=csr_pem,
        proof=finish_proof(
            proven.key, nonce=proven.nonce, server_nonce=proven.server_nonce, name=name, csr_pem=csr_pem
        ),
    )
    pending = Pending(url=proven.url, ca_pem=proven.ca_pem, role=proven.role, key_pem=key_pem, said=said)
    write_pending(state, pending, now_s=door.clock.wall_s())
    try:
        return _complete(proven, said, key_pem, door, state)
    except StokerError as error:
        if not _is_open(error):
            drop_pending(state, said.id)
        raise


def _complete(proven: Proven, said: JoinFinish, key_pem: str, door: Door, state: str) -> Membership:
    """Say the words, keep what they bring, and only then forget them."""
    joined = _with_client(proven, door, lambda client: client.finish_join(said))
    _check(joined, proven, said.name, said.csr_pem)
    given = Given(
        url=proven.url,
        name=joined.name,
        role=joined.role,
        ca_pem=proven.ca_pem,
        fingerprint=proven.fingerprint,
        certificate_pem=joined.certificate_pem,
        key_pem=key_pem,
        token=joined.token,
        joined_s=door.clock.wall_s(),
        expires_s=joined.expires_s,
    )
    membership = write_joined(state, given)
    drop_pending(state, said.id)
    return membership


def _ask_begin(invitation: Invitation, said: JoinBegin, door: Door) -> JoinBegun:
    url = invitation.url
    try:
        answer = door.ask_unproven(f"{url}{JOIN_BEGIN}", to_json(said), {VERSION_HEADER: str(VERSION)})
    except NetworkFailed as error:
        raise _unreachable(error, invitation.host) from error
    if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
        raise refusal(answer.status, answer.data, is_ours=VERSION_HEADER in answer.headers, url=url)
    try:
        return from_json(JoinBegun, answer.data)
    except ValueError as error:
        raise no_coordinator_there(url, f"{JOIN_BEGIN}: {error}") from None


def _with_client(proven: Proven, door: Door, act: Callable[[FleetClient], Joined]) -> Joined:
    identity = FleetIdentity(ca_pem=proven.ca_pem)
    transport = door.open_transport(_ANSWER_S, direct=asked_directly(proven.url), fleet=identity)
    with closing(transport):
        client = FleetClient(
            transport, proven.url, clock=door.clock, patience=Patience(answer_s=_ANSWER_S, retry_s=_ANSWER_S)
        )
        try:
            return act(client)
        except NoCoordinator as error:
            raise _untrusted(error, proven) from error


def _is_open(error: StokerError) -> bool:
    """Say whether the coordinator may have taken the words although this came of it: no answer, or no room for it."""
    is_answer = isinstance(error, BadAnswer) or bool(error.data.get("is_lasting"))
    return isinstance(error, LocalFile | NoSpace | Unavailable) and not is_answer


def _check(joined: Joined, proven: Proven, name: str, csr_pem: str) -> None:
    """Refuse an answer that does not give what the invitation was for, under the name that was said."""
    lacks = not joined.certificate_pem if csr_pem else not joined.token
    # A token goes into a header, and whatever a terminal obeys in a name would be shown.
    is_odd = joined.name != name or not (joined.token.isascii() and joined.token.isprintable())
    if lacks or is_odd or joined.role is not proven.role:
        raise no_coordinator_there(proven.url, "it gave something else than the invitation was for")


def _unproven(invitation: Invitation) -> NotAllowed:
    return NotAllowed(
        f"what answers at {invitation.host} can't prove that it made this code; nothing was sent to it",
        hint=(
            "check the code's letters, and that nobody has used or withdrawn it; else somebody stands between here and "
            "the coordinator: join from another network"
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


def _untrusted(error: NoCoordinator, proven: Proven) -> StokerError:
    """Say plainly what it means that whoever answers now has not the certificate that was proven."""
    if error.data.get("reason") != Reason.CERTIFICATE:
        return error
    code = error.data.get("verify_code")
    if code in (_NOT_YET_VALID, _EXPIRED):
        off = "behind" if proven.offset_s < 0 else "ahead"
        return NotAllowed(
            f"this machine's clock is {abs(proven.offset_s):.0f} s {off}: certificates of {proven.host} don't hold now",
            hint="set the clock (`timedatectl set-ntp true`), then join again with the same code",
            reason="clock",
        )
    if code in _OTHER_NAME:
        bare = proven.host.rpartition(":")[0]
        return NotAllowed(
            f"the coordinator's certificate is not for {bare}",
            hint=f"join by a name that `stoker machines invite` printed, or `stoker serve --advertise {bare}` there",
            reason="host",
        )
    return NotAllowed(
        f"somebody stands between here and {proven.host}: the certificate shown is not of the fleet's CA; nothing was "
        "given to them",
        hint="join from another network, or by another address of the coordinator",
        reason="intercepted",
    )


def _pem(der: bytes) -> str:
    import ssl  # noqa: PLC0415 - only who joins needs it here

    return ssl.DER_cert_to_PEM_cert(der)
