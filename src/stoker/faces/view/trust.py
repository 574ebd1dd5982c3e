"""Invitations, tokens and memberships of a fleet, as lines of text."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from stoker.faces.view.times import ago, span
from stoker.model.principals import Role
from stoker.wire.finding import DEFAULT_PORT

if TYPE_CHECKING:
    from stoker.wire.enrolling import Invited, TokenView

_USUAL_PORT = f":{DEFAULT_PORT}"
TOKEN_HEADER = ("id", "name", "role", "made", "last used", "ends", "by")


def invited_lines(invited: Invited, *, now_s: float) -> list[str]:
    """Say what an invitation is for, and what to type on the other side: a line for every way there."""
    is_machine = invited.role is Role.WORKER
    who = "a machine" if is_machine else f"a person who may {invited.role}"
    named = f" called {invited.name}" if invited.name else ""
    lines = [
        f"{invited.code} invites {who}{named}, once, within {span(invited.expires_s - now_s)}; on its side:",
        *(f"  {line}" for line in join_lines(invited)),
    ]
    if len(lines) > 2:
        lines.append("(any one of them: whichever name is known there)")
    return lines


def join_lines(invited: Invited) -> list[str]:
    """Give the commands that accept an invitation, the best one first."""
    names = (name.removesuffix(_USUAL_PORT) for name in invited.names or (invited.url.partition("://")[2],))
    how = "" if invited.role is Role.WORKER else " --operator"
    return [f"stoker join{how} {invited.code}@{name}" for name in names]


def token_row(token: TokenView, now_s: float) -> list[str]:
    """Give a token as a row of a table."""
    return [
        token.id,
        token.name,
        str(token.role),
        ago(token.issued_s, now_s),
        "never" if token.last_used_s is None else ago(token.last_used_s, now_s),
        _end(token, now_s),
        token.by,
    ]


def day(at_s: float | None) -> str:
    """Give a moment as a date; nothing where there is no end."""
    return "no end" if at_s is None else f"{datetime.fromtimestamp(at_s).astimezone():%Y-%m-%d %H:%M}"


def _end(token: TokenView, now_s: float) -> str:
    if token.revoked_s is not None:
        return f"revoked {ago(token.revoked_s, now_s)}"
    if token.expires_s is None:
        return "never"
    if token.expires_s <= now_s:
        return f"ended {ago(token.expires_s, now_s)}"
    return f"in {span(token.expires_s - now_s)}"
