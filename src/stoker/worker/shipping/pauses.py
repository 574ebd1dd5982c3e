"""How long to wait after failures in a row: longer each time, with jitter, so that a fleet does not come at once."""

from __future__ import annotations

import random
from collections.abc import Callable

from stoker.model.retry import pause_s

FIRST_S = 0.2
LONGEST_S = 15.0


class Pauses:
    """The pauses of one conversation."""

    def __init__(
        self, *, first_s: float = FIRST_S, longest_s: float = LONGEST_S, chance: Callable[[], float] | None = None
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._chance = chance or random.SystemRandom().random
        self._failures = 0

    def worked(self) -> None:
        """Something went well: the next failure is a first one."""
        self._failures = 0

    def failed(self) -> float:
        """Give how long to wait before it is tried again."""
        self._failures += 1
        return pause_s(self._failures - 1, self._chance(), first_s=self._first_s, longest_s=self._longest_s)
