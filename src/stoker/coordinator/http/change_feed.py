"""Rows that change, for all open screens: read once, encoded once, at most every 250 ms.

A frame has the rows of jobs and machines that new events are about, the number of all jobs by state, and the number of
the last event that it includes. Progress of running jobs is no event: it is compared once a second, and a client that
polls names the last frame that it has, to get what was made since. A client that is more than 4,096 events behind, or
too slow for the frames that are kept, gets `resync`: it reads everything again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Protocol, TypeVar

from sqlalchemy import Connection

from stoker.coordinator.http.http_messages import LOG
from stoker.coordinator.http.overview import Explanations
from stoker.coordinator.queue.read_screens import read_progress
from stoker.coordinator.queue.reader import QueueReader
from stoker.core.clock import Clock
from stoker.core.errors import RateLimited, StokerError
from stoker.core.frozen import frozen
from stoker.protocol.codec import to_json
from stoker.protocol.screen_messages import ChangedRows
from stoker.protocol.view_messages import MachineView

EVERY_S = 0.25
ROWS_PER_S = 400
"""After a frame with more than a hundred rows the next one comes later: claims go before screens."""
LONGEST_S = 1.0
LOOK_S = 1.0
"""Between two looks at progress and machines."""
BEAT_S = 10.0
LINGER_S = 5.0
"""Frames are made for so long after the last listener left: one that polls comes back."""
KEPT = 64
MOST_LISTENERS = 100
_MOST_MACHINES = 100
"""In a frame; others follow with the next look."""

HELLO, ROWS, BEAT, RESYNC = "hello", "rows", "beat", "resync"


@frozen
class ChangeFrame:
    """One message to all listeners."""

    number: int
    """Counts up; the events of two frames may end with the same one."""
    kind: str
    before: int
    """The last event of the frame before."""
    seq: int
    body: bytes
    """A `ChangedRows` as JSON."""
    rows: ChangedRows | None = None

    def to_bytes(self) -> bytes:
        """Return the frame in the format of server-sent events."""
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (self.seq, self.kind.encode(), self.body)


class ChangeReader:
    """Reads what changed. `frame` is for one caller at a time, `since` for any. Blocks."""

    def __init__(self, reader: QueueReader, views: Explanations, clock: Clock) -> None:
        self._reader = reader
        self._views = views
        self._clock = clock
        self._progress: dict[int, int] | None = None
        self._machines: set[str] = set()
        """Those that changed since the last look."""

    def frame(self, after: int, *, looks: bool) -> ChangedRows:
        """Return the rows that changed after an event; with `looks` also progress, and the machines since then."""
        found = self._reader.changes(after, self._moved if looks else lambda _connection: ())
        self._machines |= found.machines
        machines: tuple[MachineView, ...] = ()
        if looks and self._machines:
            some = sorted(self._machines)[:_MOST_MACHINES]
            self._machines.difference_update(some)
            machines = self._rows_of(some)
        return ChangedRows(
            seq=found.seq,
            server_s=self._clock.wall_s(),
            jobs=found.jobs,
            machines=machines,
            counts=found.counts,
            resync=found.is_too_much,
        )

    def since(self, after: int) -> ChangedRows:
        """Return everything that changed after an event."""
        found = self._reader.changes(after)
        is_too_much = found.is_too_much or len(found.machines) > _MOST_MACHINES
        return ChangedRows(
            seq=found.seq,
            server_s=self._clock.wall_s(),
            jobs=() if is_too_much else found.jobs,
            machines=() if is_too_much else self._rows_of(list(found.machines)),
            counts=found.counts,
            resync=is_too_much,
        )

    def newest(self) -> int:
        """Return the number of the last event."""
        return self._reader.newest_event()

    def _moved(self, connection: Connection) -> list[int]:
        """Return the numbers of live jobs whose progress has changed since the last look."""
        before, now = self._progress, read_progress(connection)
        self._progress = now
        return [] if before is None else [seq for seq, text in now.items() if before.get(seq, text) != text]

    def _rows_of(self, names: list[str]) -> tuple[MachineView, ...]:
        if not names:
            return ()
        return self._views.machines(among=names, is_brief=True)


T = TypeVar("T")


class RunInThread(Protocol):
    """Calls a function that blocks in a thread."""

    def __call__(self, ask: Callable[[], T], /) -> Awaitable[T]: ...


class ChangeFeed:
    """The frames of one coordinator, inside its event loop."""

    def __init__(self, reader: ChangeReader, run: RunInThread, clock: Clock) -> None:
        self._reader = reader
        self._run = run
        self._clock = clock
        self._frames: deque[ChangeFrame] = deque(maxlen=KEPT)
        self._number = 0
        self._reached = -1
        """The last event of the last frame."""
        self._noted = asyncio.Event()
        self._made = asyncio.Event()
        self._begun = asyncio.Event()
        self._making: asyncio.Task[None] | None = None
        self._listeners = 0
        self._is_closed = False
        self._last_bug = ""

    @property
    def listeners(self) -> int:
        return self._listeners

    def note(self) -> None:
        """Note that there are new events."""
        self._noted.set()

    def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        for one in (self._noted, self._made, self._begun):
            one.set()

    def check_room(self) -> None:
        """Raise `RateLimited` if there are too many listeners."""
        if self._listeners >= MOST_LISTENERS:
            raise RateLimited(
                f"{MOST_LISTENERS} screens listen to this coordinator already",
                hint="close some, or try again in a while",
                retry_after_s=10,
            )

    async def stream(self, place: int | None, may_still: Callable[[], bool]) -> AsyncGenerator[ChangeFrame, None]:
        """Yield the frames behind an event (None: from now on), while the client has access.

        The first is `hello`, without a body.
        """
        with self._listening():
            await self._begun.wait()
            number = self._number
            found = await self._catch_up(place)
            first = found.seq if place is None else place
            yield ChangeFrame(number=number, kind=HELLO, before=first, seq=first, body=b"")
            if found.resync or found.seq > first:
                kind, body = RESYNC if found.resync else ROWS, await self._run(lambda: to_json(found))
                yield ChangeFrame(number=number, kind=kind, before=first, seq=found.seq, body=body)
            place = found.seq
            while (frame := await self._next(number, place, 2 * BEAT_S)) is not None and may_still():
                number, place = frame.number, frame.seq
                yield frame

    async def poll(self, after: int, wait_s: float, frame: int = 0) -> bytes:
        """Return what changed after an event and a frame (0: none), as JSON; wait for so long if nothing did."""
        with self._listening():
            await self._begun.wait()
            number, kept = self._number, self._kept_after(after, frame)
            if len(kept) == 1:
                return kept[0].body
            if kept:
                return await self._run(lambda: to_json(_joined(kept)))
            found = (await self._catch_up(after)).model_copy(update={"frame": number})
            if not (found.resync or found.seq > after) and wait_s > 0:
                until_s = asyncio.get_running_loop().time() + wait_s
                while (following := await self._next(number, after, until_s=until_s)) is not None:
                    if following.kind != BEAT:
                        return following.body
                    number = following.number
            return await self._run(lambda: to_json(found))

    @contextmanager
    def _listening(self) -> Iterator[None]:
        self.check_room()
        self._listeners += 1
        if self._making is None and not self._is_closed:
            self._begun.clear()
            self._making = asyncio.ensure_future(self._make())
        try:
            yield
        finally:
            self._listeners -= 1

    async def _catch_up(self, place: int | None) -> ChangedRows:
        reader = self._reader
        return await self._run(lambda: reader.since(reader.newest() if place is None else place))

    def _kept_after(self, place: int, number: int) -> list[ChangeFrame]:
        """Return the kept frames behind an event and a frame (0: the first behind the event); none if some are missing.

        A client of the coordinator before this one may name any frame.
        """
        if not self._frames or place < self._frames[0].before or number > self._number:
            return []
        if not number:
            return list(islice((one for one in self._frames if one.seq > place), 1))
        following = [one for one in self._frames if one.number > number and one.seq >= place and one.kind != BEAT]
        is_gapless = number >= self._frames[0].number - 1 and (not following or following[0].before <= place)
        return following if is_gapless else []

    async def _next(
        self, number: int, place: int, wait_s: float = 0.0, *, until_s: float | None = None
    ) -> ChangeFrame | None:
        """Return the frame after one; None: there was none for so long, or the feed is closed."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s if until_s is None else until_s
        while not self._is_closed:
            following = [frame for frame in self._frames if frame.number > number]
            if following and following[0].number > number + 1:
                # Some are no longer kept.
                return self._resync(self._frames[-1])
            # One that was read before this client's own rows would set them back.
            found = next((frame for frame in following if frame.seq >= place), None)
            if found is not None:
                return found
            number = following[-1].number if following else number
            try:
                await asyncio.wait_for(self._made.wait(), until_s - loop.time())
            except TimeoutError:
                return None
        return None

    def _resync(self, last: ChangeFrame) -> ChangeFrame:
        rows = ChangedRows(seq=last.seq, frame=last.number, server_s=self._clock.wall_s(), resync=True)
        return ChangeFrame(number=last.number, kind=RESYNC, before=last.before, seq=last.seq, body=to_json(rows))

    async def _make(self) -> None:
        """Make frames until there is no listener for a while."""
        loop = asyncio.get_running_loop()
        try:
            # Before a listener reads what it missed: what happens in between is in a frame.
            self._reached = await self._run(self._reader.newest)
            self._frames.clear()
            # A number is left out: who listened to the frames before may have missed some.
            self._number += 1
            self._begun.set()
            looked_s = published_s = heard_s = loop.time()
            while not self._is_closed:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._noted.wait(), max(0.0, looked_s + LOOK_S - loop.time()))
                self._noted.clear()
                began_s = loop.time()
                heard_s = began_s if self._listeners else heard_s
                if began_s - heard_s > LINGER_S:
                    return
                looks = began_s - looked_s >= LOOK_S
                looked_s = began_s if looks else looked_s
                count = await self._make_one(looks=looks, is_beat=began_s - published_s >= BEAT_S)
                published_s = published_s if count is None else began_s
                every_s = max(EVERY_S, min(LONGEST_S, (count or 0) / ROWS_PER_S))
                await asyncio.sleep(max(0.0, every_s - (loop.time() - began_s)))
        finally:
            self._making = None
            self._begun.set()

    async def _make_one(self, *, looks: bool, is_beat: bool) -> int | None:
        """Make a frame if there is something new; return the number of its rows (None: there was nothing)."""
        before, reader, number = self._reached, self._reader, self._number + 1

        def read() -> tuple[ChangedRows, bytes]:
            rows = reader.frame(before, looks=looks).model_copy(update={"frame": number})
            has_more = rows.seq > before or rows.jobs or rows.machines or rows.resync
            return rows, to_json(rows) if has_more or is_beat else b""

        try:
            rows, body = await self._run(read)
        except StokerError as error:
            LOG.warning("reading changes: %s", error)
            return None
        except Exception as error:  # noqa: BLE001 - one row that can't be read must not stop all screens
            if str(error) != self._last_bug:
                self._last_bug = str(error)
                LOG.error("reading changes: internal error, continuing", exc_info=error)
            return None
        if not body:
            return None
        self._number = number
        has_rows = rows.seq > before or rows.jobs or rows.machines
        kind = RESYNC if rows.resync else ROWS if has_rows else BEAT
        self._frames.append(ChangeFrame(number=number, kind=kind, before=before, seq=rows.seq, body=body, rows=rows))
        self._reached = rows.seq
        made, self._made = self._made, asyncio.Event()
        made.set()
        return len(rows.jobs)


def _joined(frames: Sequence[ChangeFrame]) -> ChangedRows:
    """Return the rows of several frames in one, the newest of each."""
    found = [frame.rows for frame in frames if frame.rows is not None]
    return found[-1].model_copy(
        update={
            "jobs": tuple({job.id: job for rows in found for job in rows.jobs}.values()),
            "machines": tuple({machine.name: machine for rows in found for machine in rows.machines}.values()),
            "resync": any(rows.resync for rows in found),
        }
    )
