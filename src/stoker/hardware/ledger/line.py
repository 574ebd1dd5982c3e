"""A place in line: looked from again and again, without waiting there.

Who has a loop of its own looks when the descriptor becomes readable, and every few seconds besides; `Ledger.wait` is
the loop for everybody else. The first look that finds no room draws a number; nobody who comes later gets a device that
this one waits for. A place that is not looked from for half a minute holds nobody up, but keeps its number.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import Self

from stoker.hardware.ledger.answers import Held, NeverFits, NoRoomNow
from stoker.hardware.ledger.asking import Ask
from stoker.hardware.ledger.bell import Bell, listen
from stoker.hardware.ledger.clerk import Clerk, Look
from stoker.hardware.ledger.phases import Phase


class Place:
    """One wish that waits for its turn. One thread at a time; `leave` it, or use it as a block."""

    def __init__(self, clerk: Clerk, ask: Ask, remember: Callable[[Held], None]) -> None:
        self.ask = ask
        self._clerk = clerk
        self._remember = remember
        self._id = os.urandom(8).hex()
        self._pid = os.getpid()
        self._bell = Bell(self._id)
        self._looked: Look | None = None

    def fileno(self) -> int:
        """Give what becomes readable when a look may be worth while; -1 where there is no such thing."""
        return self._bell.fileno()

    def look(self) -> Held | NoRoomNow | NeverFits:
        """Try once more. What was granted leaves the line; so does what never fits."""
        # Before the look, so that nothing that happens after it is missed.
        self._bell.quieten()
        ticket = None if self._looked is None else self._looked.ticket
        self._looked = self._clerk.look(self.ask, ticket, place=self._id)
        answer = self._looked.answer
        if isinstance(answer, Held):
            self._remember(answer)
        if not isinstance(answer, NoRoomNow):
            self._bell.close()
        return answer

    def listen(self, wait_s: float) -> bool:
        """Wait until something happened that may change the answer, at most so long; say whether it did."""
        looked = self._looked
        with self._clerk.phases.during(Phase.WAIT):
            if looked is None:
                return True
            return listen(self._bell, looked.in_the_way, looked.users, wait_s)

    def leave(self) -> None:
        """Give the place up, if it is still held."""
        # A child that was forked meanwhile must not give up what is its parent's.
        if self._looked is not None and self._looked.ticket is not None and self._pid == os.getpid():
            self._clerk.leave(self._looked.ticket)
        self._looked = None
        self._bell.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()
