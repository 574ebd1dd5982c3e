"""Invitations: what an attempt to join is worth, decided from the invitation, the words and the time alone.

The coordinator's own nonce is derived from the CA's secret, the other side's nonce and the time: nothing has to be
remembered between the two questions, and nobody can fill a memory by asking the first one again and again.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from enum import StrEnum

from stoker.coordinator.auth.ca_files import FleetCa
from stoker.coordinator.auth.membership import Invite, IssuedCertificate
from stoker.core.digests import digest_value
from stoker.core.errors import Forbidden, RateLimited, Refused
from stoker.core.frozen import frozen
from stoker.core.leases import Role
from stoker.host.tls.certificates import MACHINE_LIFE_S
from stoker.protocol.enrolment_messages import JoinFinish
from stoker.protocol.join_proofs import NONCE_BYTES, finish_proof, is_same_proof

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
