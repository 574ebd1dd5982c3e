"""Lines for long questions: each is asked on a connection of its own, so that cutting it cuts nothing else.

One that was answered serves the next question, too: over TLS a new connection costs more than the answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from stoker.host.http.exchange import Transport
from stoker.wire.client import FleetClient
from stoker.wire.leasing import Claim, Granted

Line = tuple[FleetClient, Transport]


class ClaimingLines:
    """Opens them, and keeps one that is free. Safe to use from several threads."""

    def __init__(self, open_line: Callable[[], Line]) -> None:
        self._open_line = open_line
        self._lock = threading.Lock()
        self._spare: Line | None = None

    def ask(self) -> ClaimingLine:
        """Give a line for one question."""
        with self._lock:
            spare, self._spare = self._spare, None
        return ClaimingLine(spare or self._open_line(), self._keep)

    def close(self) -> None:
        """Close the one that is kept."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            spare[1].close()

    def _keep(self, line: Line) -> None:
        with self._lock:
            before, self._spare = self._spare, line
        if before is not None:
            before[1].close()


class ClaimingLine:
    """One question. `cut` ends it: while it is asked, for whoever waits; afterwards it only gives the line back."""

    def __init__(self, line: Line, keep: Callable[[Line], None]) -> None:
        self._line = line
        self._keep = keep
        self._lock = threading.Lock()
        self._is_answered = False
        self._is_over = False

    def claim(self, claim: Claim) -> Granted:
        """Ask it."""
        answer = self._line[0].claim(claim)
        with self._lock:
            # One that was cut as its answer came is spoilt all the same.
            self._is_answered = not self._is_over
        return answer

    def cut(self) -> None:
        """End it, once; from any thread."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        if self._is_answered:
            self._keep(self._line)
            return
        transport = self._line[1]
        transport.abort()
        transport.close()
