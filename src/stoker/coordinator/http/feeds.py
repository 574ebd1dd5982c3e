"""Events as they happen, for everybody who listens: read from the database once, handed to all.

The newest are kept in memory; whoever is further behind reads the database. A listener holds nothing but its place, so
a slow one costs no memory, and one that was cut goes on from the last id it saw.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, TypeAlias

from stoker.coordinator.http.http_messages import LOG, json_bytes
from stoker.core.errors import RateLimited, StokerError

KEPT = 4096
BATCH = 500
MOST_LISTENERS = 200
PAUSE_S = 0.05
"""At least this long between two reads: commits come by the hundred."""
BEAT_S = 10.0

ReadEvents: TypeAlias = Callable[[int, int], Awaitable[tuple[dict[str, Any], ...]]]


class EventFeed:
    """One coordinator's events, inside its event loop."""

    def __init__(self, read: ReadEvents) -> None:
        self._read = read
        self._kept: deque[tuple[int, bytes]] = deque()
        self._from = self._reached = -1
        """What lies behind the one, up to the other, is kept."""
        self._newest = 0
        self._moved = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._listeners = 0
        self._is_closed = False

    @property
    def listeners(self) -> int:
        return self._listeners

    def note(self, newest: int) -> None:
        """Hear that there are events up to this one."""
        self._newest = max(newest, self._newest)
        if self._listeners and self._reading is None and self._reached < self._newest and not self._is_closed:
            self._reading = asyncio.ensure_future(self._catch_up())

    def close(self) -> None:
        """Let all listeners go."""
        self._is_closed = True
        self._moved.set()

    def check_room(self) -> None:
        """Refuse one more listener where there are too many."""
        if self._listeners >= MOST_LISTENERS:
            raise RateLimited(
                f"{MOST_LISTENERS} listen to this coordinator's events already",
                hint="try again in a while, or ask for a job's own events",
                retry_after_s=10,
            )

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Count one more listener for the length of a with-block."""
        self._listeners += 1
        try:
            yield
        finally:
            self._listeners -= 1

    async def after(self, place: int, wait_s: float) -> tuple[int, bytes] | None:
        """Return what follows a place, as a piece of a stream, and the place behind it; nothing if it is over.

        An empty piece: there was nothing for so long.
        """
        moved = self._moved
        if self._from <= place <= self._reached:
            found = self._kept_after(place)
        else:
            found = [(event["seq"], event_text(event)) for event in await self._read(place, BATCH)]
        if found:
            return found[-1][0], b"".join(text for _, text in found)
        # What was told of while nobody listened was not read.
        self.note(self._newest)
        with suppress(TimeoutError):
            await asyncio.wait_for(moved.wait(), wait_s)
        return None if self._is_closed else (place, b"")

    def _kept_after(self, place: int) -> list[tuple[int, bytes]]:
        behind = 0
        for number, _ in reversed(self._kept):
            if number <= place:
                break
            behind += 1
        start = len(self._kept) - behind
        return list(islice(self._kept, start, min(start + BATCH, len(self._kept))))

    async def _catch_up(self) -> None:
        try:
            while self._listeners and self._reached < self._newest and not self._is_closed:
                if self._newest - self._reached > KEPT:
                    # Too much was missed to be kept: whoever wants it reads it.
                    self._kept.clear()
                    self._from = self._reached = self._newest - BATCH
                events = await self._read(self._reached, BATCH)
                if not events:
                    return
                self._keep(events)
                await asyncio.sleep(PAUSE_S)
        except StokerError as error:
            LOG.warning("reading events: %s", error)
        finally:
            self._reading = None

    def _keep(self, events: tuple[dict[str, Any], ...]) -> None:
        self._kept.extend((event["seq"], event_text(event)) for event in events)
        self._reached = events[-1]["seq"]
        while len(self._kept) > KEPT:
            self._from = self._kept.popleft()[0]
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


def event_text(event: dict[str, Any]) -> bytes:
    """Return an event as a stream of events has it."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event["seq"], str(event["kind"]).encode(), json_bytes(event))


# Figures as Prometheus reads them: jobs and machines by state, what workers asked and got, how long commands took.

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Histogram:
    """How often something was at most so large. Only one thread adds to it."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count one more."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str) -> Iterable[str]:
        """Return it as Prometheus reads it."""
        total = 0
        for bound, count in zip(self._bounds, self._counts, strict=False):
            total += count
            yield f'{name}_bucket{{le="{bound:g}"}} {total}'
        total += self._counts[-1]
        yield f'{name}_bucket{{le="+Inf"}} {total}'
        yield f"{name}_sum {self._sum:.6f}"
        yield f"{name}_count {total}"


class MetricsPage:
    """A page of figures on its way out."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def one(self, name: str, kind: str, help: str, value: float) -> None:
        """Write one number."""
        self.by(name, kind, help, "", {"": value})

    def by(self, name: str, kind: str, help: str, label: str, values: Mapping[str, float]) -> None:
        """Write numbers apart by a label."""
        self._head(name, kind, help)
        for value_of, value in sorted(values.items()):
            labelled = f'{{{label}="{_escaped(value_of)}"}}' if label else ""
            self._lines.append(f"{name}{labelled} {value:.17g}")

    def histogram(self, name: str, help: str, values: Histogram) -> None:
        """Write how something is spread."""
        self._head(name, "histogram", help)
        self._lines += values.lines(name)

    def to_bytes(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()

    def _head(self, name: str, kind: str, help: str) -> None:
        self._lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
