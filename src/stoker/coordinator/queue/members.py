"""Members of the fleet: invitations, certificates, tokens, forgotten machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stoker.coordinator.auth import (
    MOST_FAILURES,
    ApiTokenRecord,
    Invite,
    IssuedCertificate,
    TrustState,
    may_repeat,
    not_invited,
)
from stoker.coordinator.database.database import WriterConnection
from stoker.coordinator.database.tables import CERTIFICATES, INVITES, TOKENS
from stoker.coordinator.queue.commands import (
    FailInvite,
    ForgetMachine,
    IssueCertificate,
    MakeInvite,
    MakeToken,
    NoteTokens,
    QueueCommandResult,
    RevokeCertificate,
    RevokeToken,
    RotateToken,
    UseInvite,
    WithdrawInvite,
)
from stoker.coordinator.queue.machines import named
from stoker.coordinator.queue.sql import Queries, records
from stoker.coordinator.queue.transaction import WriterTransaction, forgive, forgive_machine, lose, plain, telling
from stoker.core.errors import Conflict, Forbidden, NotFound, RateLimited, Refused
from stoker.core.events import FleetKinds
from stoker.core.frozen import changed, fields_of
from stoker.core.retry import FailureCause
from stoker.core.text import counted

# Certificates of machines: issued, renewed, revoked.

MOST_LIVE = 8
"""Valid certificates of one machine; normally at most two."""


def issue_certificate(transaction: WriterTransaction, asked: IssueCertificate) -> QueueCommandResult:
    """Issue a machine's next certificate if its present one is still valid."""
    standing, name = transaction.book.standing, asked.certificate.name
    # It was valid when the request arrived; it may have been revoked since.
    standing.machine(asked.present, name, transaction.now_s)
    if transaction.book.launch.allocation_of(name) is not None:
        hint = "it is valid until the allocation's time limit; exit then"
        raise Refused(f"{name} belongs to an allocation: its certificate is not renewed", hint=hint, machine=name)
    if len(standing.certificates_of(name, transaction.now_s)) >= MOST_LIVE:
        hint = f"check that its folder is writable, or invite it again: `stoker machines invite --name {name}`"
        raise RateLimited(f"{name} has {MOST_LIVE} certificates already", hint=hint, retry_after_s=3600)
    put_certificate(transaction, asked.certificate, by=name)
    return QueueCommandResult(changed=(name,))


def revoke_all(transaction: WriterTransaction, machine: str, *, why: str, by: str) -> None:
    """Revoke all certificates of a machine."""
    revoke(transaction, transaction.book.standing.certificates_of(machine, transaction.now_s), why, by)


def put_certificate(
    transaction: WriterTransaction, certificate: IssuedCertificate, *, by: str, address: str = ""
) -> None:
    """Store a new certificate."""
    _put(transaction, certificate)
    fields = {"serial": certificate.serial, "expires_s": certificate.expires_s, "by": by, "address": plain(address)}
    transaction.tell(FleetKinds.CERTIFICATE_ISSUED, machine=certificate.name, fields=telling(fields))


def revoke(
    transaction: WriterTransaction,
    certificates: Sequence[IssuedCertificate],
    why: str,
    by: str,
    *,
    are_brief: bool = False,
) -> None:
    """Revoke certificates; brief ones are those of allocations."""
    if certificates:
        transaction.setting.revocations.add_certificates(certificates, are_brief=are_brief)
    for one in certificates:
        _put(transaction, changed(one, revoked_s=transaction.now_s, why=plain(why)))
        fields = {"serial": one.serial, "why": plain(why), "by": plain(by)}
        transaction.tell(FleetKinds.CERTIFICATE_REVOKED, machine=one.name, fields=telling(fields))


def _put(transaction: WriterTransaction, certificate: IssuedCertificate) -> None:
    transaction.book.standing.certificates[certificate.serial] = certificate
    transaction.write(transaction.statements.put_certificate, **fields_of(certificate))


# Tokens of users: made, rotated, revoked, used.


def make_token(transaction: WriterTransaction, asked: MakeToken) -> QueueCommandResult:
    """Create a token."""
    name = asked.token.name
    if transaction.book.standing.tokens_of(name, transaction.now_s):
        hint = "replace it: `stoker admin tokens rotate`; or revoke it, or choose another name"
        raise Conflict(f"{name} has a token already", hint=hint, name=name)
    expires_s = None if asked.life_s is None else transaction.now_s + asked.life_s
    put_token(transaction, changed(asked.token, issued_s=transaction.now_s, expires_s=expires_s))
    return QueueCommandResult(changed=(asked.token.id,), data={"expires_s": expires_s})


def rotate_token(transaction: WriterTransaction, asked: RotateToken) -> QueueCommandResult:
    """Replace a valid token by a new one."""
    old = _named(transaction, asked.id)
    if not old.is_live(transaction.now_s):
        raise Refused(
            f"token {old.id} of {old.name} expired or was revoked", hint="make a new one: `stoker admin tokens make`"
        )
    life_s = None if old.expires_s is None else old.expires_s - old.issued_s
    new = changed(
        asked.new,
        name=old.name,
        role=old.role,
        issued_s=transaction.now_s,
        expires_s=None if life_s is None else transaction.now_s + life_s,
        by=plain(asked.by)[:200],
    )
    _revoke(transaction, old, asked.by)
    put_token(transaction, new)
    return QueueCommandResult(changed=(old.id, new.id), data={"expires_s": new.expires_s})


def revoke_token(transaction: WriterTransaction, asked: RevokeToken) -> QueueCommandResult:
    """Revoke a token."""
    found = _named(transaction, asked.id)
    if found.revoked_s is not None:
        return QueueCommandResult(notes=(f"token {found.id} of {found.name} is revoked already",))
    _revoke(transaction, found, asked.by)
    return QueueCommandResult(changed=(found.id,))


def revoke_tokens(transaction: WriterTransaction, name: str, *, by: str) -> None:
    """Revoke all valid tokens of a name."""
    for one in transaction.book.standing.tokens_of(name, transaction.now_s):
        _revoke(transaction, one, by)


def note_tokens(transaction: WriterTransaction, asked: NoteTokens) -> QueueCommandResult:
    """Store that tokens were used: seldom, and without an event."""
    for id_ in asked.ids:
        found = transaction.book.standing.token_by_id(id_)
        if found is not None:
            _put_people(transaction, changed(found, last_used_s=transaction.now_s))
    return QueueCommandResult(changed=asked.ids)


def put_token(transaction: WriterTransaction, token: ApiTokenRecord, *, address: str = "") -> None:
    """Store a new token."""
    _put_people(transaction, token)
    fields = {"token": token.id, "name": token.name, "role": token.role, "by": token.by, "address": plain(address)}
    transaction.tell(FleetKinds.TOKEN_MADE, fields=telling(fields))


def _revoke(transaction: WriterTransaction, token: ApiTokenRecord, by: str) -> None:
    transaction.setting.revocations.add_token(token.sha256)
    _put_people(transaction, changed(token, revoked_s=transaction.now_s))
    fields = {"token": token.id, "name": token.name, "by": plain(by)}
    transaction.tell(FleetKinds.TOKEN_REVOKED, fields=telling(fields))


def _named(transaction: WriterTransaction, id: str) -> ApiTokenRecord:
    found = transaction.book.standing.token_by_id(id)
    if found is None:
        raise NotFound(f"there is no token {id!r}", hint="`stoker admin tokens` lists them")
    return found


def _put_people(transaction: WriterTransaction, token: ApiTokenRecord) -> None:
    transaction.book.standing.tokens[token.sha256] = token
    transaction.write(transaction.statements.put_token, **fields_of(token))


MOST_OPEN = 100
"""Number of unused invitations."""


def make_invite(transaction: WriterTransaction, asked: MakeInvite) -> QueueCommandResult:
    """Create an invitation. An id is reused only when the old invitation can no longer be used."""
    known, now_s = transaction.book.standing.invites, transaction.now_s
    old = known.get(asked.invite.id)
    if old is not None and (old.is_live(now_s) or may_repeat(old, now_s)):
        raise Conflict("another invitation has this id", hint="use another one")
    if sum(one.is_live(now_s) and not one.is_ticket for one in known.values()) >= MOST_OPEN:
        raise Refused(f"{MOST_OPEN} invitations are open already", hint="use them, or wait until they expire")
    made = changed(asked.invite, made_s=now_s, expires_s=now_s + asked.life_s, by=plain(asked.invite.by)[:200])
    put_invitation(transaction, made)
    fields = {"invite": made.id, "role": made.role, "name": made.name, "expires_s": made.expires_s, "by": made.by}
    transaction.tell(FleetKinds.INVITED, fields=telling(fields))
    return QueueCommandResult(changed=(made.id,), data={"expires_s": made.expires_s})


def fail_invite(transaction: WriterTransaction, asked: FailInvite) -> QueueCommandResult:
    """Count a wrong code; after `MOST_FAILURES` the invitation is closed."""
    found = transaction.book.standing.invites.get(asked.id)
    # A ticket's key can't be guessed: wrong ones must not close it.
    if found is None or found.is_ticket or not found.is_live(transaction.now_s):
        return QueueCommandResult()
    failures = found.failures + 1
    is_over = failures >= MOST_FAILURES
    put_invitation(transaction, changed(found, failures=failures, key="" if is_over else found.key))
    fields = {"invite": found.id, "failures": failures, "is_over": is_over, "address": plain(asked.address)}
    transaction.tell(FleetKinds.JOIN_REFUSED, fields=fields)
    return QueueCommandResult(changed=(found.id,), data={"left": MOST_FAILURES - failures})


def withdraw_invite(transaction: WriterTransaction, asked: WithdrawInvite) -> QueueCommandResult:
    """Withdraw an unused invitation."""
    found = transaction.book.standing.invites.get(asked.id)
    if found is None:
        raise NotFound(f"there is no invitation {asked.id!r}", hint="the id is the first part of the code")
    if not found.is_live(transaction.now_s):
        return QueueCommandResult(notes=(f"invitation {found.id} is closed already",))
    put_invitation(transaction, changed(found, key=""))
    transaction.tell(
        FleetKinds.INVITE_WITHDRAWN, fields={"invite": found.id, **({"by": plain(asked.by)} if asked.by else {})}
    )
    return QueueCommandResult(changed=(found.id,))


def use_invite(transaction: WriterTransaction, asked: UseInvite) -> QueueCommandResult:
    """Redeem an invitation once. Idempotent: the same request gets the same answer."""
    standing, now_s = transaction.book.standing, transaction.now_s
    found = standing.invites.get(asked.id)
    if found is not None and found.used_s is not None and found.request == asked.request:
        return QueueCommandResult(data={"answer": found.answer})
    if found is None or not found.is_live(now_s):
        raise not_invited(found, now_s)
    given = asked.certificate or asked.token
    if given is None or (found.name and given.name != found.name):
        raise Forbidden(f"this invitation is for {found.name!r}", reason="name")
    if asked.certificate is not None:
        if standing.certificates_of(given.name, now_s) or _is_without_certificate(transaction, given.name):
            _see_free(found, given.name, "machine")
            revoke_all(transaction, given.name, why="it joined again", by=found.by)
        put_certificate(transaction, asked.certificate, by=found.by, address=asked.address)
    elif asked.token is not None:
        if standing.tokens_of(given.name, now_s):
            _see_free(found, given.name, "person")
            revoke_tokens(transaction, given.name, by=found.by)
        put_token(transaction, changed(asked.token, by=found.by), address=asked.address)
    # The key of a ticket stays, to recognise a second worker that has it.
    key = found.key if found.is_ticket else ""
    put_invitation(transaction, changed(found, used_s=now_s, key=key, request=asked.request, answer=asked.answer))
    return QueueCommandResult(changed=(given.name,), data={"answer": asked.answer})


def _is_without_certificate(transaction: WriterTransaction, name: str) -> bool:
    """Return True if a machine has this name without a certificate: a worker of the coordinator's own user."""
    issued = transaction.book.standing.certificates.values()
    return name in transaction.book.machines and not any(one.name == name for one in issued)


def _see_free(invite: Invite, name: str, sort: str) -> None:
    """Refuse a name in use, unless the invitation is for exactly this name."""
    if invite.name != name:
        raise Conflict(
            f"a {sort} {name!r} belongs to the fleet already",
            hint=f"join under another name (--name), or invite this one: `stoker machines invite --name {name}`",
            name=name,
            reason="name",
        )


def put_invitation(transaction: WriterTransaction, invite: Invite) -> None:
    """Store an invitation."""
    transaction.book.standing.invites[invite.id] = invite
    transaction.write(transaction.statements.put_invite, **fields_of(invite))


TRUST_VERBS: dict[type, Callable[[WriterTransaction, Any], QueueCommandResult]] = {
    MakeInvite: make_invite,
    FailInvite: fail_invite,
    WithdrawInvite: withdraw_invite,
    IssueCertificate: issue_certificate,
    MakeToken: make_token,
    RotateToken: rotate_token,
    RevokeToken: revoke_token,
    NoteTokens: note_tokens,
}


def load_standing(connection: WriterConnection, queries: Queries, now_s: float) -> TrustState:
    """Return the members as in the rows, without expired certificates."""
    standing = TrustState()
    invites = records(INVITES, connection.read(queries.invites))
    tokens = records(TOKENS, connection.read(queries.tokens))
    certificates = records(CERTIFICATES, connection.read(queries.certificates, after_s=now_s))
    standing.invites = {row["id"]: Invite(**row) for row in invites}
    standing.tokens = {row["sha256"]: ApiTokenRecord(**row) for row in tokens}
    standing.certificates = {row["serial"]: IssuedCertificate(**row) for row in certificates}
    return standing


# Machines that no longer belong to the fleet: forgotten, or with their last certificate revoked.


def forget_machine(transaction: WriterTransaction, asked: ForgetMachine) -> QueueCommandResult:
    """Remove a machine and revoke its certificates; refused without one if it would be back at once."""
    if not transaction.book.standing.certificates_of(asked.machine, transaction.now_s):
        _see_gone(transaction, asked.machine, is_forced=asked.is_forced)
    revoke_all(transaction, asked.machine, why="forgotten", by=asked.by)
    remove_machine(transaction, asked.machine, "the machine was forgotten", asked.by)
    return QueueCommandResult(changed=(asked.machine,))


def revoke_certificate(transaction: WriterTransaction, asked: RevokeCertificate) -> QueueCommandResult:
    """Revoke one certificate. A machine without another one is removed until it joins again."""
    standing = transaction.book.standing
    found = standing.certificates.get(asked.serial)
    if found is None:
        raise NotFound(f"there is no certificate {asked.serial[:12]}", hint="`stoker machines show` lists them")
    if found.revoked_s is not None:
        return QueueCommandResult(notes=(f"the certificate of {found.name} is revoked already",))
    revoke(transaction, [found], asked.why, asked.by)
    if not standing.certificates_of(found.name, transaction.now_s) and found.name in transaction.book.machines:
        remove_machine(transaction, found.name, "its certificate was revoked", asked.by)
    return QueueCommandResult(changed=(found.name,))


def _see_gone(transaction: WriterTransaction, name: str, *, is_forced: bool) -> None:
    """Refuse to forget a machine whose next request would bring it back, and open, though it was drained."""
    machine = named(transaction, name)
    if machine.leases:
        jobs = sorted(live.job.id for live in machine.leases.values())
        raise Refused(
            f"{name} still holds {counted(len(jobs), 'lease')}",
            hint="drain it, or wait until its leases end",
            jobs=jobs,
        )
    if machine.is_offered and not is_forced:
        raise Refused(
            f"the worker of {name} still runs: its next request would bring {name} back, and open",
            hint=f"stop it first; {name} counts as gone after the lease duration and the grace period without a "
            "request. --force forgets it now",
            machine=name,
        )


def remove_machine(transaction: WriterTransaction, name: str, why: str, by: str, *, is_free: bool = False) -> None:
    """Remove a machine; its leases end at once, and if `is_free` as preempted, without a charge."""
    book = transaction.book
    machine = book.machines.get(name)
    # Without a machine, it joined and never registered.
    if machine is not None:
        for live in list(machine.leases.values()):
            if is_free:
                forgive(transaction, live, why, cause=FailureCause.PREEMPTED.value)
            else:
                lose(transaction, live, why)
        if is_free and machine.late_until_tick_s > transaction.tick_s:
            # It lost leases, lately or before a restart.
            forgive_machine(transaction, name)
        del book.machines[name]
        book.scheduler.remove_machine(name)
        book.barred.pop(name, None)
        transaction.write(transaction.statements.drop_machine, at_name=name)
    transaction.tell(FleetKinds.MACHINE_FORGOTTEN, machine=name, fields={"by": plain(by)} if by else None)
