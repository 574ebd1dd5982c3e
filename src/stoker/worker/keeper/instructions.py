"""What a decision wants done. Only nouns; `acting` does them."""

from __future__ import annotations

from typing import Any

from stoker.model.frozen import fresh, frozen
from stoker.model.leases import Token
from stoker.wire.leasing import ExecCall
from stoker.worker.keeper.ending import AttemptEnd
from stoker.worker.keeper.state import LastWord


@frozen
class Greet:
    """Say hello again: the coordinator does not know us, or not what this machine has now."""


@frozen
class AskForWork:
    """Claim up to so many jobs; of none, only listen for orders."""

    most: int


@frozen
class CallBack:
    """Take an open claim back; whatever it was given meanwhile comes as an answer."""


@frozen
class Renew:
    """Send a heartbeat for all leases."""


@frozen
class Begin:
    """Look again, and hand the attempt to a child."""

    token: Token


@frozen
class TellStart:
    """Say that it runs."""

    token: Token


@frozen
class Stop:
    """End an attempt's processes: politely, after `grace_s` firmly, and see that none is left."""

    token: Token
    grace_s: float


@frozen
class Send:
    """Send what an attempt made, as far as its last word needs it, and then that word."""

    token: Token
    last: LastWord
    end: AttemptEnd | None


@frozen
class SayNow:
    """Say the last word at once and once; what is on its way is no longer wanted."""

    token: Token
    last: LastWord
    end: AttemptEnd | None


@frozen
class OpenExec:
    """Run an operator's command beside an attempt."""

    call: ExecCall


@frozen
class Forget:
    """Nothing of this lease is left to do."""

    token: Token


@frozen
class Tell:
    """Tell people: one line."""

    kind: str
    fields: dict[str, Any] = fresh(factory=dict)


@frozen
class Exit:
    """Nothing is held any more: end with this code."""

    code: int


Instruction = (
    Greet | AskForWork | CallBack | Renew | Begin | TellStart | Stop | Send | SayNow | OpenExec | Forget | Tell | Exit
)
