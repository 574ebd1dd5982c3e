"""Invitations: what an attempt to join is worth, decided from the invitation, the words and the time alone.

The coordinator's own nonce is derived from the CA's secret, the other side's nonce and the time: nothing has to be
remembered between the two questions, and nobody can fill a memory by asking the first one again and again.
"""

from __future__ import annotations

from enum import StrEnum

from stoker.coordinator.authority.ca_files import FleetCa
from stoker.coordinator.authority.standing import Invite
from stoker.model.digests import digest_value
from stoker.model.errors import Refused
from stoker.model.fleet_errors import NotAllowed
from stoker.model.frozen import frozen
from stoker.model.principals import Role
from stoker.wire.enrolling import JoinFinish
from stoker.wire.join_proofs import NONCE_BYTES, finish_proof, is_same_proof

MOST_FAILURES_EACH = 5
"""Wrong proofs from one address that count: a stranger must not end what others wait for. A right one always counts."""
MOST_FAILURES = 200
"""Wrong proofs from all addresses together, which end an invitation: of 2**50 codes that is one in 5e12."""
SLOT_S = 300.0
"""A nonce of ours holds for one to two of these."""
REPEAT_S = 600.0
"""For so long after its use, and as long as it would live, the same words get the same answer again."""


class Verdict(StrEnum):
    """What becomes of an attempt."""

    TAKE = "take"
    REPEAT = "repeat"
    """It was used by these very words: the answer was lost on its way."""
    WRONG = "wrong"
    """It proves nothing, and is counted."""
    REFUSE = "refuse"
    """It can't be, and is no guess."""


@frozen
class Judged:
    """The verdict, and what is told."""

    verdict: Verdict
    error: NotAllowed | Refused | None = None


def server_nonce(ca: FleetCa, invite: str, nonce: str, now_s: float) -> str:
    """Give our nonce for somebody who asks now."""
    return _nonce(ca, invite, nonce, int(now_s // SLOT_S))


def key_of(ca: FleetCa, invite: Invite | None, id: str) -> bytes:
    """Return the key of an invitation, or one that nobody has, so that strangers do not learn which there are."""
    if invite is not None and invite.key:
        return bytes.fromhex(invite.key)
    return ca.derive("stoker/join/nobody/1", id)


def judge_finish(ca: FleetCa, invite: Invite | None, said: JoinFinish, now_s: float) -> Judged:
    """Decide about an attempt to join. Only who proves to have the code learns anything about the invitation."""
    if invite is not None and may_repeat(invite, now_s) and invite.request == request_digest(said):
        return Judged(verdict=Verdict.REPEAT)
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
        return Judged(verdict=Verdict.WRONG, error=wrong_code())
    return _judge_purpose(invite, said, now_s)


def may_repeat(invite: Invite, now_s: float) -> bool:
    """Say whether whoever used an invitation may hear the same answer again: as long as it would live, or a while."""
    return invite.used_s is not None and (now_s < invite.expires_s or now_s - invite.used_s <= REPEAT_S)


def not_invited(invite: Invite | None, now_s: float) -> NotAllowed:
    """Refuse a code that nobody waits for any more, or never did."""
    if invite is None:
        return NotAllowed("there is no invitation of that code", hint=_ASK_AGAIN, reason="unknown")
    if invite.used_s is not None:
        return NotAllowed("this invitation was used already", hint=_ASK_AGAIN, reason="used")
    if invite.failures >= MOST_FAILURES:
        what = f"this invitation is over: {invite.failures} wrong codes were tried with it"
        return NotAllowed(what, hint=_ASK_AGAIN, reason="spent")
    what = "this invitation has expired" if now_s >= invite.expires_s else "this invitation was taken back"
    return NotAllowed(what, hint=_ASK_AGAIN, reason="expired")


def request_digest(said: JoinFinish) -> str:
    """Give what tells one attempt's words from any other's."""
    return digest_value("stoker/join/request", said.model_dump(mode="json"))


def wrong_code() -> NotAllowed:
    """Return the refusal of a proof that no open invitation makes: it says no more than that."""
    what = "the code is wrong, or its invitation was used, withdrawn or spent"
    return NotAllowed(what, hint=f"check its letters; {_ASK_AGAIN}", reason="wrong")


def _judge_purpose(invite: Invite, said: JoinFinish, now_s: float) -> Judged:
    """Decide about somebody who has the code."""
    if not invite.is_live(now_s):
        return _refused(not_invited(invite, now_s))
    if invite.name and invite.name != said.name:
        hint = f"join with --name {invite.name}"
        what = f"this invitation is for {invite.name!r}, not for {said.name!r}"
        return _refused(NotAllowed(what, hint=hint, reason="name"))
    is_machine = invite.role == Role.WORKER.value
    if is_machine != bool(said.csr_pem):
        who, hint = (
            ("a machine", "leave --operator out") if is_machine else ("a person", "update stoker, then join again")
        )
        return _refused(NotAllowed(f"this invitation is for {who}", hint=hint, reason="role"))
    return Judged(verdict=Verdict.TAKE)


def _nonce(ca: FleetCa, invite: str, nonce: str, slot: int) -> str:
    return ca.derive("stoker/join/nonce/1", invite, nonce, str(slot)).hex()[: 2 * NONCE_BYTES]


def _refused(error: NotAllowed | Refused) -> Judged:
    return Judged(verdict=Verdict.REFUSE, error=error)


_ASK_AGAIN = "ask whoever runs the coordinator for a new one: `stoker machines invite`"
