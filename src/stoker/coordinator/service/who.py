"""Who asks, inside a request: what the door has judged, for the routes behind it.

async def cancel(self, ref: Ref, who: Who, asked: JobAsk | None = None) -> Response:
… CancelJobs(jobs=…, by=recorded(who, asked.by))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request

from stoker.model.principals import Principal, Role, verified_name

PEER = "stoker.peer"
"""Where a request's scope has its connection's other end."""
PRINCIPAL = "stoker.principal"
STILL = "stoker.still"
_LONGEST = 200
_LOCAL_USER = "local user"


def _principal(request: Request) -> Principal:
    found: Principal = request.scope[PRINCIPAL]
    return found


def _still(request: Request) -> Callable[[], bool]:
    found: Callable[[], bool] = request.scope[STILL]
    return found


Who = Annotated[Principal, Depends(_principal)]
Still = Annotated[Callable[[], bool], Depends(_still)]
"""Says whether whoever asked may still: for answers that never end."""


def recorded(who: Principal, claimed: str) -> str:
    """Return who is recorded: the name that was verified, and behind it what the program says of itself.

    A principal without a name is the operator of this home, whose user id the kernel has verified: `local user`. What
    its program says of itself is recorded instead, in a form that can't be taken for a verified name
    (`model.principals.verified_name`).
    """
    if not who.name:
        said = f"{_LOCAL_USER} ({claimed})" if verified_name(claimed) else claimed.strip() or _LOCAL_USER
        return said[:_LONGEST]
    return f"{who.name} ({claimed})"[:_LONGEST] if claimed and claimed != who.name else who.name


def changes_only(who: Principal) -> str | None:
    """Return whose jobs a principal may change: its own, or with the role operate all (None)."""
    return None if who.may(Role.OPERATE) else who.name


def owner_of(who: Principal) -> str:
    """Return whose an upload or a body is. All processes of the coordinator's own user have the same owner.

    Those of which nothing is known have another one together: if each chose its own, they could take all room.
    """
    if not who.is_known:
        return "anybody"
    if not who.name:
        return ""
    return f"{'machine' if who.role is Role.WORKER else 'person'} {who.name}"
