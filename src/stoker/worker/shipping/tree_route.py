"""The way by which one tree comes: the best place that is known, another one when it fails, the coordinator in the end.

Machines that fail are not asked again. The coordinator is, with pauses, as long as bytes still come now and then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from stoker.model.clock import Clock
from stoker.model.errors import (
    Bug,
    Cancelled,
    HashMismatch,
    LocalFile,
    LockHeld,
    NoPermission,
    NoSpace,
    NotFound,
    NotOnServer,
    StokerError,
    Unavailable,
)
from stoker.model.fleet_errors import NotAllowed
from stoker.store.download.stop import Stop
from stoker.worker.shipping.origins import Origin, Origins
from stoker.worker.shipping.pauses import Pauses

REFRESH_S = 30.0
"""How often the coordinator hears that the tree still comes."""
TRIES = 5
"""How often in a row the coordinator may fail without a new byte."""
EARLY_S = 20.0
"""How long a place may lack what it is about to get itself, without a new byte from it."""
_EARLY_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 1.0
"""A link that is back is to be found soon."""
_NOT_YET = 503
_WRONG_TRIES = 2
_OURS = (NoSpace, NoPermission, LocalFile, LockHeld, Cancelled, Bug)

T = TypeVar("T")


class TreeRoute:
    """Safe to use from several threads: whichever finds a place bad, all leave it."""

    def __init__(self, origins: Origins, tree: str, stop: Stop, clock: Clock) -> None:
        self.tree = tree
        self._origins = origins
        self._stop = stop
        self._clock = clock
        self._turn = threading.RLock()
        self._pauses = Pauses(longest_s=_LONGEST_PAUSE_S)
        self._bad: set[str] = set()
        self._now: tuple[Origin, ...] = ()
        self._asked_s: float | None = None
        self._failures = 0
        self._wrong = 0
        self._lacking_since_s: dict[str, float] = {}

    def take(self, ask: Callable[[Origin], T]) -> T:
        """Do something at the best place, and again at another where that one fails. Raises the last one's error."""
        while True:
            self._stop.check()
            origin = self._best()
            try:
                return ask(origin)
            except StokerError as error:
                self._stop.check()
                if isinstance(error, _OURS):
                    raise
                self._failed(origin, error)

    def worked(self) -> None:
        """Bytes came: what failed before does not count any more. Tells the coordinator now and then."""
        self._failures = 0
        self._lacking_since_s.clear()
        self._pauses.worked()
        if self._is_refresh_due():
            self._refresh()

    def lacks(self, origin: Origin, digest: str) -> NotFound:
        """Make the error of a place that has not what it should."""
        where = origin.machine or "the coordinator"
        return NotFound(f"{where} has no file {digest[:12]} of tree {self.tree[:12]}", hint="submit it again")

    def _best(self) -> Origin:
        with self._turn:
            if not self._now:
                self._find()
            return self._now[0]

    def _find(self) -> None:
        self._asked_s = self._clock.monotonic_s()
        self._now = self._origins.find(self.tree, frozenset(self._bad))
        if not self._now:
            raise NotFound(
                f"nobody in the fleet has tree {self.tree[:12]}",
                hint="submit the job again: what it needs is sent anew",
                tree=self.tree,
            )

    def _refresh(self) -> None:
        """Say that it still comes. Where it comes from stays, as long as that works; nobody waits for the answer."""
        with self._turn:
            if not self._is_refresh_due():
                return
            self._asked_s = self._clock.monotonic_s()
        try:
            self._origins.find(self.tree, frozenset(self._bad))
        except StokerError:
            # It can't be reached just now; what comes, comes from elsewhere perhaps.
            return

    def _is_refresh_due(self) -> bool:
        return self._asked_s is not None and self._clock.monotonic_s() - self._asked_s > REFRESH_S

    def _failed(self, origin: Origin, error: StokerError) -> None:
        """Leave a place, or wait and try it again; raises where there is no use."""
        pause_s = 0.0
        with self._turn:
            if origin not in self._now:
                # Another thread found out before.
                return
            if origin.machine and self._is_early(origin, error):
                pause_s = _EARLY_PAUSE_S
            elif origin.machine:
                self._bad.add(origin.machine)
                self._now = ()
            else:
                self._failures += 1
                self._wrong += isinstance(error, HashMismatch)
                is_lasting = isinstance(error, NotFound | NotOnServer | NotAllowed) or bool(
                    error.data.get("is_lasting")
                )
                if is_lasting or self._failures >= TRIES or self._wrong >= _WRONG_TRIES:
                    raise error
                pause_s = self._pauses.failed()
                self._now = ()
        self._stop.sleep(pause_s, self._clock)

    def _is_early(self, origin: Origin, error: StokerError) -> bool:
        """Whether a place that is still getting the tree itself may have what it lacks in a moment."""
        is_lacking = isinstance(error, NotFound | NotOnServer) or error.data.get("status") == _NOT_YET
        if not origin.is_partial or not (is_lacking or type(error) is Unavailable):
            return False
        now_s = self._clock.monotonic_s()
        return now_s - self._lacking_since_s.setdefault(origin.machine, now_s) < EARLY_S
