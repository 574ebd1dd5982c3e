"""From a grant to a start: a quick look; if something is missing, a process of its own that brings it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from stoker.host.other_user import OtherUser
from stoker.model.clock import Clock
from stoker.model.errors import StokerError
from stoker.model.frozen import frozen
from stoker.wire.leasing import Grant
from stoker.worker.preparing.child import PreparingProgram, bring_by_child
from stoker.worker.preparing.here import Here
from stoker.worker.preparing.missing import Held, what_is_missing
from stoker.worker.preparing.small_trees import SmallTrees
from stoker.worker.preparing.telling import REFUSED, Told

_MOST_LOOKS = 3
"""What was brought may be pruned again before it is used; not for ever."""


@frozen
class NotPrepared:
    """Why a job does not start here: a word for machines, a line for people."""

    reason: str
    message: str
    lasts: bool = False
    """It stays so until something is done on this machine."""


@frozen
class Preparing:
    """What prepares jobs on this machine."""

    here: Here
    program: PreparingProgram
    ticket: Callable[[Grant, OtherUser | None], bytes]
    """What such a process is told: the job, the user that it runs as if it has one, the way to the coordinator."""
    clock: Clock
    small: SmallTrees | None = None
    """Brings code of which little is missing, without a process."""

    def prepare(
        self, grant: Grant, stop: threading.Event, heed: Callable[[Told], None], user: OtherUser | None = None
    ) -> Held | NotPrepared | None:
        """Have everything here that a job needs; or say why not. Nothing if it was stopped.

        With a `user`, the job runs as that user, and its environment is built so. `heed` hears of nothing but what is
        brought: what was all here is not told.
        """
        verified: tuple[str, ...] = ()
        for _ in range(_MOST_LOOKS):
            held = self.here.look(grant, verified, user)
            missing = what_is_missing(grant, held)
            if missing.impossible:
                return NotPrepared(reason="environment", message=missing.impossible, lasts=True)
            if missing.is_nothing:
                return held
            if missing.is_code_alone and self._is_brought_at_once(grant, stop):
                heed(Told())
                continue
            ended = bring_by_child(self.program, self.ticket(grant, user), stop, heed)
            if ended is None or stop.is_set():
                return None
            if ended.end == REFUSED:
                return NotPrepared(reason=ended.reason, message=ended.message, lasts=ended.lasts)
            verified = ended.verified
        return NotPrepared(reason="preparing", message="what was brought was gone again before it could be used")

    def _is_brought_at_once(self, grant: Grant, stop: threading.Event) -> bool:
        return self.small is not None and self.small.bring(grant.code_tree, stop)

    def sweep(self) -> None:
        """Take away what attempts left that ended with their keeper."""
        with suppress(StokerError):
            self.here.workspaces.sweep(self.clock.wall_s())
