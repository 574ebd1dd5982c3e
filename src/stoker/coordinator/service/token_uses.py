"""When tokens were last used: written down seldom, so that no request waits for it."""

from __future__ import annotations

from stoker.coordinator.queue.trust_commands import NoteTokens
from stoker.coordinator.service.office import Office

EVERY_S = 600.0
"""A use is told to the queue at most so often for each token."""


class TokenUses:
    """Hears of every use."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._told: dict[str, float] = {}

    def note(self, id: str) -> None:
        """Take word of a use."""
        now_s = self._office.clock.monotonic_s()
        if now_s - self._told.get(id, float("-inf")) >= EVERY_S:
            self._told[id] = now_s
            self._office.counter.post(NoteTokens(ids=(id,)), lambda _answer: None)
