"""What a worker finds out about its machine, told to its coordinator: soon after its start, and once a day.

In a thread of its own, and never in the way: a coordinator that knows no reports, or is away, is asked again later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from stoker.model.clock import Clock
from stoker.model.errors import StokerError
from stoker.wire.asking import DoneView
from stoker.wire.health import Found, MachineReport
from stoker.wire.protocol import VERSION
from stoker.worker.recurring import Recurring

FIRST_S = 3.0
"""Let it say hello and begin its first job."""
AGAIN_S = 60.0
"""The longest pause before a report that was not taken comes again; the first ones are short: it may come too early."""
DAY_S = 24 * 3600.0
_TRIES = 10


class Reported(Protocol):
    """A line to the coordinator."""

    def report(self, report: MachineReport) -> DoneView: ...


class Reporting(Recurring):
    """Reports until it is closed."""

    def __init__(
        self, line: Reported, *, name: str, version: str, look: Callable[[], tuple[Found, ...]], clock: Clock
    ) -> None:
        super().__init__("report", first_s=FIRST_S)
        self._line = line
        self._name = name
        self._version = version
        self._look = look
        self._clock = clock
        self._tries = 0

    def act(self) -> float:
        """Look and report once; say after how many seconds to do so again."""
        try:
            self._line.report(
                MachineReport(
                    worker=self._name,
                    version=self._version,
                    protocol=VERSION,
                    findings=self._look(),
                    wall_s=self._clock.wall_s(),
                )
            )
        except StokerError:
            self._tries += 1
            if self._tries < _TRIES:
                return min(FIRST_S * 2.0**self._tries, AGAIN_S)
        self._tries = 0
        return DAY_S

    def _after(self, problem: Exception) -> float:
        # What a look that failed would have said is missing for a day.
        return DAY_S
