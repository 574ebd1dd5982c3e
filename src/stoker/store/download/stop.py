"""Being asked to stop, from a signal's side and from the download's side.

`ask` may be called by a signal's own code: it takes no lock and waits for nobody. What waits in a read is woken because
its connection is cut; what waits in a pause is woken by a flag. The first error asked with is the one that is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from stoker.model.clock import Clock
from stoker.model.errors import StokerError

_NAP_S = 0.1


class Stop:
    """A wish that may come at any moment: end, keep what is there, and raise this. One may serve many downloads."""

    def __init__(self) -> None:
        self._error: StokerError | None = None
        self._cuts: dict[int, Callable[[], None]] = {}

    def ask(self, error: StokerError) -> None:
        """Ask for the end: cut what is under way."""
        if self._error is None:
            self._error = error
        for cut in list(self._cuts.values()):
            with suppress(Exception):
                cut()

    def check(self) -> None:
        """Raise what was asked with, if anybody asked."""
        if self._error is not None:
            raise self._error

    @contextmanager
    def cutting(self, cut: Callable[[], None]) -> Iterator[None]:
        """Have `cut` called when somebody asks during this block, which does not begin if somebody has."""
        key = id(cut)
        self._cuts[key] = cut
        try:
            self.check()
            yield
        finally:
            self._cuts.pop(key, None)

    def sleep(self, seconds: float, clock: Clock) -> None:
        """Let time pass in short naps, so that asking ends it soon."""
        deadline_s = clock.monotonic_s() + seconds
        self.check()
        while (left_s := deadline_s - clock.monotonic_s()) > 0:
            clock.sleep(min(_NAP_S, left_s))
            self.check()
