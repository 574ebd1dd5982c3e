"""Tokens of people, in rows: made, put in another's place, taken back, used."""

from __future__ import annotations

from stoker.coordinator.authority.standing import HeldToken
from stoker.coordinator.queue.commands import Done
from stoker.coordinator.queue.moves import plain, telling
from stoker.coordinator.queue.trust_commands import MakeToken, NoteTokens, RevokeToken, RotateToken
from stoker.coordinator.queue.turn import Turn
from stoker.model.errors import NotFound, Refused
from stoker.model.fleet_errors import Conflict
from stoker.model.fleet_events import FleetKinds
from stoker.model.frozen import changed

TOKEN_FIELDS = ("id", "name", "role", "sha256", "issued_s", "expires_s", "revoked_s", "last_used_s", "by")


def make_token(turn: Turn, asked: MakeToken) -> Done:
    """Give somebody a token."""
    name = asked.token.name
    if turn.book.standing.tokens_of(name, turn.now_s):
        hint = "put a new one in its place (`stoker admin tokens rotate`), revoke it, or choose another name"
        raise Conflict(f"{name} has a token already", hint=hint, name=name)
    expires_s = None if asked.life_s is None else turn.now_s + asked.life_s
    put_token(turn, changed(asked.token, issued_s=turn.now_s, expires_s=expires_s))
    return Done(changed=(asked.token.id,), data={"expires_s": expires_s})


def rotate_token(turn: Turn, asked: RotateToken) -> Done:
    """Put a new token in the place of a live one."""
    old = _named(turn, asked.id)
    if not old.is_live(turn.now_s):
        raise Refused(f"the token {old.id} of {old.name} has ended", hint="make a new one: `stoker admin tokens make`")
    life_s = None if old.expires_s is None else old.expires_s - old.issued_s
    new = changed(
        asked.new,
        name=old.name,
        role=old.role,
        issued_s=turn.now_s,
        expires_s=None if life_s is None else turn.now_s + life_s,
        by=plain(asked.by)[:200],
    )
    _revoke(turn, old, asked.by)
    put_token(turn, new)
    return Done(changed=(old.id, new.id), data={"expires_s": new.expires_s})


def revoke_token(turn: Turn, asked: RevokeToken) -> Done:
    """Take a token back."""
    found = _named(turn, asked.id)
    if found.revoked_s is not None:
        return Done(notes=(f"the token {found.id} of {found.name} was revoked before",))
    _revoke(turn, found, asked.by)
    return Done(changed=(found.id,))


def revoke_tokens(turn: Turn, name: str, *, by: str) -> None:
    """Take back every live token of a name."""
    for one in turn.book.standing.tokens_of(name, turn.now_s):
        _revoke(turn, one, by)


def note_tokens(turn: Turn, asked: NoteTokens) -> Done:
    """Write down that tokens were used: seldom, and without an event."""
    for id_ in asked.ids:
        found = turn.book.standing.token_by_id(id_)
        if found is not None:
            _put(turn, changed(found, last_used_s=turn.now_s))
    return Done(changed=asked.ids)


def put_token(turn: Turn, token: HeldToken, *, address: str = "") -> None:
    """Let a token count."""
    _put(turn, token)
    fields = {"token": token.id, "name": token.name, "role": token.role, "by": token.by, "address": plain(address)}
    turn.tell(FleetKinds.TOKEN_MADE, fields=telling(fields))


def _revoke(turn: Turn, token: HeldToken, by: str) -> None:
    turn.setting.revocations.add_token(token.sha256)
    _put(turn, changed(token, revoked_s=turn.now_s))
    fields = {"token": token.id, "name": token.name, "by": plain(by)}
    turn.tell(FleetKinds.TOKEN_REVOKED, fields=telling(fields))


def _named(turn: Turn, id: str) -> HeldToken:
    found = turn.book.standing.token_by_id(id)
    if found is None:
        raise NotFound(f"there is no token {id!r}", hint="`stoker admin tokens` lists them")
    return found


def _put(turn: Turn, token: HeldToken) -> None:
    turn.book.standing.tokens[token.sha256] = token
    turn.write(turn.statements.put_token, **{name: getattr(token, name) for name in TOKEN_FIELDS})
