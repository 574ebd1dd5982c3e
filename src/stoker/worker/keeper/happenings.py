"""What may happen to a keeper: answers, ends, orders, signals and the passing of time. Only nouns.

Each comes with the moment it became known, on the clock that also counts suspend; `asked_s` is the moment *before* a
question was sent, from which its answer's times count.
"""

from __future__ import annotations

from stoker.host.identity import ProcessIdentity
from stoker.model.errors import StokerError
from stoker.model.frozen import frozen
from stoker.model.leases import Token
from stoker.wire.leasing import Granted, Renewed, Welcome
from stoker.worker.keeper.ending import AttemptEnd


@frozen
class Ticked:
    """Time has passed."""

    now_s: float


@frozen
class Greeted:
    """The coordinator knows us."""

    now_s: float
    welcome: Welcome


@frozen
class Given:
    """A claim was answered, perhaps with nothing."""

    now_s: float
    asked_s: float
    answer: Granted
    others_work: bool = False
    """Jobs wait, and others are at work: something may yet become ours."""


@frozen
class Answered:
    """A renewal was answered."""

    now_s: float
    asked_s: float
    tokens: tuple[Token, ...]
    """The leases that it listed."""
    answer: Renewed


@frozen
class Unanswered:
    """Nobody answered a claim or a renewal, or not with what was asked for."""

    now_s: float
    error: StokerError
    was_claim: bool
    jitter: float
    """Between 0 and 1, so that a fleet does not come back all at once."""


@frozen
class Fatal:
    """The coordinator will never have us as we are: another version, no right to work, another of our name."""

    now_s: float
    error: StokerError


@frozen
class Began:
    """An attempt's child has its assignment."""

    now_s: float
    token: Token
    child: ProcessIdentity
    run: str
    has_brought: bool = False
    """The machine has something now that it had not: code, data, an environment."""


@frozen
class NotBegun:
    """A second look found that it can't start here now."""

    now_s: float
    token: Token
    reason: str
    message: str
    lasts: bool = False
    """It stays so until something is done on this machine."""
    has_brought: bool = False


@frozen
class Ended:
    """An attempt's child is gone."""

    now_s: float
    token: Token
    end: AttemptEnd


@frozen
class Stopped:
    """An attempt was stopped, and nothing of it runs any more."""

    now_s: float
    token: Token
    end: AttemptEnd


@frozen
class Settled:
    """The last word about an attempt was heard."""

    now_s: float
    token: Token


@frozen
class WentStale:
    """The coordinator says that an attempt is no longer ours."""

    now_s: float
    token: Token
    message: str


@frozen
class Closed:
    """Somebody on this machine wants no more work here; an empty reason opens it again."""

    now_s: float
    by: str
    why: str
    gives_back: bool = False
    """What runs has to go, too."""


@frozen
class DevicesChanged:
    """Devices of this machine are gone, or there again; the machine's offer says so already."""

    now_s: float
    gone: tuple[str, ...]
    back: tuple[str, ...]
    slots: int | None
    """How many jobs at once there are devices for; nothing: that was asked for."""


@frozen
class AskedToEnd:
    """A signal: the first time everything is given back, the second time it ends now."""

    now_s: float
    exit_code: int
    why: str


Happening = (
    Ticked
    | Greeted
    | Given
    | Answered
    | Unanswered
    | Fatal
    | Began
    | NotBegun
    | Ended
    | Stopped
    | Settled
    | WentStale
    | Closed
    | DevicesChanged
    | AskedToEnd
)
