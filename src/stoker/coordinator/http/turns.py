"""Turns at work that takes long: so many at once, few of one client, and few that wait. For one event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stoker.core.errors import RateLimited, Unavailable

RETRY_S = 5


class Turns:
    """Hands out turns in the order in which they were asked for.

    A client is refused at once: one that asks for much does not make others wait for all of it.
    """

    def __init__(self, what: str, *, at_once: int = 1, of_one: int = 2, most: int = 16, wait_s: float = 30.0) -> None:
        """`what` is the plural of what is done; `of_one` and `most` count running and waiting ones together."""
        self._what = what
        self._free = asyncio.Semaphore(at_once)
        self._of_one = of_one
        self._most = most
        self._wait_s = wait_s
        self._asked: Counter[str] = Counter()

    @asynccontextmanager
    async def of(self, owner: str) -> AsyncIterator[None]:
        """Wait for a turn of this client.

        Raises `RateLimited` if it has too many already, and `Unavailable` if all clients together have, or if none of
        them ends for long.
        """
        if self._asked[owner] >= self._of_one:
            message = f"{self._of_one} {self._what} of yours are not done yet"
            raise RateLimited(message, hint="send it again in a moment", retry_after_s=RETRY_S)
        if self._asked.total() >= self._most:
            raise self._busy()
        self._asked[owner] += 1
        try:
            try:
                async with asyncio.timeout(self._wait_s):
                    await self._free.acquire()
            except TimeoutError:
                raise self._busy() from None
            try:
                yield
            finally:
                self._free.release()
        finally:
            self._asked[owner] -= 1
            if not self._asked[owner]:
                del self._asked[owner]

    def _busy(self) -> Unavailable:
        message = f"{self._asked.total()} {self._what} of all users are not done yet"
        return Unavailable(message, hint="send it again in a moment", retry_after_s=RETRY_S)
