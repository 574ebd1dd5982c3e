"""Invitations, in rows: made, tried in vain, used once."""

from __future__ import annotations

from stoker.coordinator.authority.invites import MOST_FAILURES, may_repeat, not_invited
from stoker.coordinator.authority.standing import Invite
from stoker.coordinator.queue.certifying import put_certificate, revoke_all
from stoker.coordinator.queue.commands import Done
from stoker.coordinator.queue.moves import plain, telling
from stoker.coordinator.queue.people import put_token, revoke_tokens
from stoker.coordinator.queue.trust_commands import FailInvite, MakeInvite, UseInvite, WithdrawInvite
from stoker.coordinator.queue.turn import Turn
from stoker.model.errors import NotFound, Refused
from stoker.model.fleet_errors import Conflict, NotAllowed
from stoker.model.fleet_events import FleetKinds
from stoker.model.frozen import changed

MOST_OPEN = 100
"""Invitations that nobody has used yet."""


def make_invite(turn: Turn, asked: MakeInvite) -> Done:
    """Let somebody join for a while. An id is used again only once nobody can mean the old one."""
    known, now_s = turn.book.standing.invites, turn.now_s
    old = known.get(asked.invite.id)
    if old is not None and (old.is_live(now_s) or may_repeat(old, now_s)):
        raise Conflict("another invitation has that id", hint="take another one")
    if sum(one.is_live(now_s) for one in known.values()) >= MOST_OPEN:
        raise Refused(f"{MOST_OPEN} invitations are open already", hint="use them, or wait until they are over")
    made = changed(asked.invite, made_s=now_s, expires_s=now_s + asked.life_s, by=plain(asked.invite.by)[:200])
    _put(turn, made)
    fields = {"invite": made.id, "role": made.role, "name": made.name, "expires_s": made.expires_s, "by": made.by}
    turn.tell(FleetKinds.INVITED, fields=telling(fields))
    return Done(changed=(made.id,), data={"expires_s": made.expires_s})


def fail_invite(turn: Turn, asked: FailInvite) -> Done:
    """Count a wrong code; after some of them the invitation is over."""
    found = turn.book.standing.invites.get(asked.id)
    if found is None or not found.is_live(turn.now_s):
        return Done()
    failures = found.failures + 1
    is_over = failures >= MOST_FAILURES
    _put(turn, changed(found, failures=failures, key="" if is_over else found.key))
    fields = {"invite": found.id, "failures": failures, "is_over": is_over, "address": plain(asked.address)}
    turn.tell(FleetKinds.JOIN_REFUSED, fields=fields)
    return Done(changed=(found.id,), data={"left": MOST_FAILURES - failures})


def withdraw_invite(turn: Turn, asked: WithdrawInvite) -> Done:
    """Take an invitation back that nobody has used."""
    found = turn.book.standing.invites.get(asked.id)
    if found is None:
        raise NotFound(f"there is no invitation {asked.id!r}", hint="`stoker machines invite --list` lists them")
    if not found.is_live(turn.now_s):
        return Done(notes=(f"the invitation {found.id} is over already",))
    _put(turn, changed(found, key=""))
    turn.tell(FleetKinds.INVITE_WITHDRAWN, fields={"invite": found.id, **({"by": plain(asked.by)} if asked.by else {})})
    return Done(changed=(found.id,))


def use_invite(turn: Turn, asked: UseInvite) -> Done:
    """Let somebody in, once. The same words again get the same answer, any others none."""
    standing, now_s = turn.book.standing, turn.now_s
    found = standing.invites.get(asked.id)
    if found is not None and found.used_s is not None and found.request == asked.request:
        return Done(data={"answer": found.answer})
    if found is None or not found.is_live(now_s):
        raise not_invited(found, now_s)
    given = asked.certificate or asked.token
    if given is None or (found.name and given.name != found.name):
        raise NotAllowed(f"this invitation is for {found.name!r}", reason="name")
    if asked.certificate is not None:
        if standing.certificates_of(given.name, now_s) or _is_without_certificate(turn, given.name):
            _see_free(found, given.name, "machine")
            revoke_all(turn, given.name, why="it joined again", by=found.by)
        put_certificate(turn, asked.certificate, by=found.by, address=asked.address)
    elif asked.token is not None:
        if standing.tokens_of(given.name, now_s):
            _see_free(found, given.name, "person")
            revoke_tokens(turn, given.name, by=found.by)
        put_token(turn, changed(asked.token, by=found.by), address=asked.address)
    _put(turn, changed(found, used_s=now_s, key="", request=asked.request, answer=asked.answer))
    return Done(changed=(given.name,), data={"answer": asked.answer})


def _is_without_certificate(turn: Turn, name: str) -> bool:
    """Return whether a machine of the fleet has this name that never joined: a worker of the coordinator's own user."""
    issued = turn.book.standing.certificates.values()
    return name in turn.book.machines and not any(one.name == name for one in issued)


def _see_free(invite: Invite, name: str, sort: str) -> None:
    """Refuse a name that somebody has, unless the invitation is for exactly that one: whoever made it meant it."""
    if invite.name != name:
        raise Conflict(
            f"a {sort} {name!r} belongs to the fleet already",
            hint=f"join under another name (--name), or have this one invited: `stoker machines invite --name {name}`",
            name=name,
            reason="name",
        )


def _put(turn: Turn, invite: Invite) -> None:
    turn.book.standing.invites[invite.id] = invite
    turn.write(turn.statements.put_invite, **{name: getattr(invite, name) for name in INVITE_FIELDS})


INVITE_FIELDS = (
    "id", "role", "name", "key", "made_s", "expires_s", "used_s", "request", "answer", "failures", "by",
)  # fmt: skip
