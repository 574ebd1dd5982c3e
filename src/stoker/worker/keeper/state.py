"""What a keeper knows at one moment: its leases, where each stands, and what is wished of it. Only nouns.

All times are on the clock that also counts suspend.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from stoker.host.identity import ProcessIdentity
from stoker.model.frozen import fresh, frozen
from stoker.model.leases import Partition, Token
from stoker.wire.leasing import Grant
from stoker.worker.keeper.ending import AttemptEnd

COORDINATOR = "coordinator"
"""Who else may close a worker: what it says of us is not told back to it."""


STOP_GRACE_S = 10.0


class Phase(StrEnum):
    """Where an attempt stands."""

    STARTING = "starting"
    """Looked at once more, and handed to a child."""
    RUNNING = "running"
    STOPPING = "stopping"
    """Its processes are being ended; nothing is said until none is left."""
    SENDING = "sending"
    """Nothing of it runs any more: what it made, and the last word, are on their way."""


class Word(StrEnum):
    """The last word about an attempt."""

    FINISH = "finish"
    FAIL = "fail"
    RELEASE = "release"
    CANCELLED = "cancelled"
    DECLINE = "decline"
    NOTHING = "nothing"
    """It is no longer ours to speak of: its result is dropped."""


@frozen
class LastWord:
    """What will be said of an attempt, and why."""

    word: Word
    why: str = ""
    reason: str = ""
    """Of a decline: which check failed."""
    lasts: bool = False
    """Of a decline: it would fail again."""


@frozen
class Lease:
    """One lease of this worker, and the attempt under it."""

    grant: Grant
    phase: Phase
    ends_s: float
    """Until when it is ours, counted from before the request that gave or renewed it."""
    run: str = ""
    """The attempt's folder in `runs/`."""
    child: ProcessIdentity | None = None
    last: LastWord | None = None
    end: AttemptEnd | None = None
    is_over: bool = False
    """It ended by our own clock: nothing may be said under it, unless the job keeps on and somebody renews it."""
    is_hurried: bool = False
    """It is over, and what ran under it did not stop when it was asked: it was ended then."""
    say_until_s: float | None = None
    """Who ends now waits no longer than this for its last word to be heard."""

    @property
    def token(self) -> Token:
        return self.grant.token()

    @property
    def keeps_on(self) -> bool:
        """Whether its attempt goes on when nobody can be asked; what has not started yet has nothing to lose."""
        return self.grant.on_partition is Partition.KEEP and self.phase is not Phase.STARTING

    @property
    def is_harmless(self) -> bool:
        """Whether nothing of it ever ran and it is only being given back: that may be said at any time."""
        return not self.run and self.phase is Phase.SENDING


class Leaving(StrEnum):
    """How a keeper ends."""

    NO = "no"
    SOFTLY = "softly"
    """Everything is given back first."""
    NOW = "now"
    """Everything is ended; whoever answers at once is told."""


@frozen
class Wishes:
    """What whoever started the worker wants of it."""

    slots: int = 1
    beside: int = 0
    """How many more it asks for at a time while a job of its own shares a device: whether there is room for any, the
    coordinator says. None where somebody counted its slots."""
    is_once: bool = False
    """One job, then no more."""
    until_idle: bool = False
    """End when nothing is left for it."""
    stop_grace_s: float = STOP_GRACE_S
    """Between asking a program to end and ending it."""
    ends_s: float | None = None
    """When it gives everything back and ends, on the clock that also counts suspend; None: when it is told to."""


@frozen
class Keeping:
    """Everything that decisions are made from."""

    wishes: Wishes
    leases: Mapping[Token, Lease] = fresh(factory=dict)
    is_known: bool = False
    """The coordinator has answered our hello: before that nothing else is asked."""
    heartbeat_s: float = 30.0
    lease_s: float = 90.0
    renew_at_s: float = 0.0
    is_renewing: bool = False
    has_news: bool = False
    """What the machine has is another than it told last: a heartbeat is due, however young the last one is."""
    asking: int | None = None
    """How many jobs the open question is for, 0 if it only listens for orders; nothing: none is open."""
    is_called_back: bool = False
    """That question is being cut short."""
    ask_at_s: float = 0.0
    misses: int = 0
    """How many questions in a row nobody answered."""
    is_barred: bool = False
    """It was told that they will not be answered before somebody does something: the fleet has another CA."""
    taken: int = 0
    """How many jobs it was given since it started."""
    closed: Mapping[str, str] = fresh(factory=dict)
    """Why it takes no work, by who says so: its owner, its disk, the coordinator."""
    leaving: Leaving = Leaving.NO
    exit_code: int = 0

    @property
    def free_slots(self) -> int:
        return max(0, self.wishes.slots - len(self.leases))

    @property
    def wanted(self) -> int:
        """How many jobs there is room for and nothing here against; what the coordinator has against it, it knows."""
        is_closed = any(by != COORDINATOR for by in self.closed)
        if is_closed or (self.wishes.is_once and self.taken):
            return 0
        is_shared = any(lease.grant.is_shared for lease in self.leases.values())
        room = self.free_slots + (self.wishes.beside if is_shared else 0)
        return min(1, room) if self.wishes.is_once else room

    @property
    def is_away(self) -> bool:
        """Whether the coordinator did not answer when it was last asked."""
        return self.misses > 0
