"""Those who wait for a mirrored file to grow. Their number is bounded, and they hold no thread while they wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from stoker.model.errors import RateLimited

MOST_FOLLOWERS = 500

Place: TypeAlias = tuple[str, int, str]
"""A job, an attempt, a path."""


class Followers:
    """Wakes whoever waits for a file, inside an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[Place, set[asyncio.Event]] = {}
        self._count = 0
        self._is_closed = False

    def __len__(self) -> int:
        return self._count

    def grew(self, job: str, attempt: int, path: str) -> None:
        """Hear that a file grew, in any thread."""
        if (job, attempt, path) in self._waiting:
            self._loop.call_soon_threadsafe(self._wake, (job, attempt, path))

    def ended(self, job: str) -> None:
        """Hear, in the loop, that something happened to a job: its attempt may be over."""
        for place in [place for place in self._waiting if place[0] == job]:
            self._wake(place)

    @contextmanager
    def following(self, place: Place) -> Iterator[asyncio.Event]:
        """Give what is set when the file grows from now on; look how long the file is inside the with-block."""
        grown, theirs = asyncio.Event(), self._waiting.setdefault(place, set())
        theirs.add(grown)
        try:
            yield grown
        finally:
            theirs.discard(grown)
            # Whoever was woken has been taken out already, and another may have come to the same place since.
            if not theirs and self._waiting.get(place) is theirs:
                del self._waiting[place]

    async def wait(self, grown: asyncio.Event, wait_s: float) -> None:
        """Wait until the file has grown, or for so long."""
        if self._count >= MOST_FOLLOWERS:
            raise RateLimited(
                f"{MOST_FOLLOWERS} follow files of this coordinator already",
                hint="try again in a while, or read without waiting",
                retry_after_s=5,
            )
        if self._is_closed:
            return
        self._count += 1
        try:
            await asyncio.wait_for(grown.wait(), wait_s)
        except TimeoutError:
            pass
        finally:
            self._count -= 1

    def close(self) -> None:
        """Wake everybody, from now on at once."""
        self._is_closed = True
        for place in list(self._waiting):
            self._wake(place)

    def _wake(self, place: Place) -> None:
        for grown in self._waiting.pop(place, ()):
            grown.set()
