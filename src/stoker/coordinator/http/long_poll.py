"""Requests that are held open: claims until their machine is called, followers of files, listeners to events.

The queue calls machines that may get a grant now, or an instruction for a lease: only their claims are tried again, a
few at a time, in the order of the calls. So a new job costs one try, not one per worker. Only after the queue had to
read its state again are all claims tried again.

Events are read from the database once for all listeners. The newest are kept in memory; a listener that is further
behind reads the database. A listener holds only its position, so a slow one costs no memory, and a disconnected one
resumes after the last id that it saw.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, TypeAlias

from stoker.coordinator.http.http_messages import LOG, json_bytes
from stoker.core.errors import RateLimited, StokerError
from stoker.protocol.lease_messages import Claim, ClaimResponse

AT_ONCE = 8
"""Number of open claims tried at the same time."""
MOST_PER_WORKER = 2
"""Open claims per worker; one more ends the oldest."""
_NEXT = -1
"""Try as soon as possible."""

Ask: TypeAlias = Callable[[Claim], Awaitable[ClaimResponse]]
Gone: TypeAlias = Callable[[], Awaitable[None]]
Mark: TypeAlias = tuple[int, int]
"""Number of times that all claims were to be tried, and number of calls."""


class _Waiter:
    __slots__ = ("claim", "is_busy", "known", "listens", "signal", "tried", "trying")

    def __init__(self, claim: Claim, known: ClaimResponse, loop: asyncio.AbstractEventLoop) -> None:
        # The time until its machine leaves counts from the request: repeated later, it would move the end.
        self.claim = claim if claim.ends_in_s is None else claim.model_copy(update={"ends_in_s": None})
        self.listens = claim.most == 0
        """It requests no job; it is tried only when called."""
        self.known = known
        """The last response: no grant, and why."""
        self.signal: asyncio.Future[ClaimResponse] = loop.create_future()
        self.tried = 0
        """Value of `_changes` when it was last tried."""
        self.is_busy = False
        self.trying: asyncio.Task[None] | None = None


class WaitingClaims:
    """The open claims of one coordinator, inside its event loop."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._line: OrderedDict[str, _Waiter] = OrderedDict()
        """By request id, the least recently tried first."""
        self._called_line: OrderedDict[str, _Waiter] = OrderedDict()
        """Tried before all others: claims of called machines, in the order of calls."""
        self._by_worker: dict[str, list[_Waiter]] = {}
        """All claims."""
        self._trying = 0
        self._changes = 0
        """Number of times that all were to be tried, so that none is missed during a try."""
        self._calls = 0
        self._called: dict[str, int] = {}
        """By machine, its last call."""
        self._is_closed = False

    def __len__(self) -> int:
        return sum(map(len, self._by_worker.values()))

    def mark(self) -> Mark:
        """Return the mark to take before the first try: what happens until `wait` is not missed."""
        return self._changes, self._calls

    def holds(self, claim: Claim, granted: ClaimResponse) -> bool:
        """Return True if a claim with this response is held open."""
        return claim.wait_s > 0 and not self._is_closed and not (granted.grants or granted.orders or granted.execs)

    async def wait(self, claim: Claim, known: ClaimResponse, since: Mark, gone: Gone) -> ClaimResponse | None:
        """Hold a claim open. `gone` returns when the client disconnected; then there is no response."""
        if self._is_closed:
            return known
        waiter = _Waiter(claim, known, self._loop)
        self._enter(waiter)
        changes, calls = since
        waiter.tried = changes if self._called.get(claim.worker, 0) <= calls else _NEXT
        if waiter.tried == _NEXT or (waiter.tried != self._changes and not waiter.listens):
            # Before those that were tried since.
            self._put_in_called_line(waiter)
        try:
            self._try_some()
            return await self._wait(waiter, gone)
        finally:
            self._leave(waiter)

    def stir(self) -> None:
        """Try all claims again: what is new is unknown."""
        self._changes += 1
        self._try_some()

    def call(self, machines: Sequence[str]) -> None:
        """Try the claims of these machines again: in this order, after those that were called before.

        Of a machine that has one for jobs open only that: it brings instructions, too, and one that listens would say
        that the machine requests no job.
        """
        self._calls += 1
        self._called.update(dict.fromkeys(machines, self._calls))
        for waiter in [one for machine in machines for one in self._to_call(machine)]:
            waiter.tried = _NEXT
            if not waiter.is_busy:
                self._put_in_called_line(waiter)
        self._try_some()

    def _to_call(self, machine: str) -> list[_Waiter]:
        theirs = self._by_worker.get(machine, [])
        return [one for one in theirs if not one.listens] or theirs

    def close(self) -> None:
        """Answer all claims without a grant, from now on at once."""
        self._is_closed = True
        for waiter in [one for theirs in self._by_worker.values() for one in theirs]:
            if not waiter.is_busy:
                self._settle(waiter, waiter.known)

    async def _wait(self, waiter: _Waiter, gone: Gone) -> ClaimResponse | None:
        leaving = asyncio.ensure_future(gone())
        try:
            waits_s = waiter.claim.wait_s
            await asyncio.wait((waiter.signal, leaving), timeout=waits_s, return_when=asyncio.FIRST_COMPLETED)
            if waiter.trying is not None and not waiter.signal.done():
                # A try is under way: its grant must reach the client.
                await asyncio.wait((waiter.trying,))
            if waiter.signal.done():
                return waiter.signal.result()
            return None if leaving.done() else waiter.known
        finally:
            leaving.cancel()

    def _enter(self, waiter: _Waiter) -> None:
        claim = waiter.claim
        theirs = self._by_worker.setdefault(claim.worker, [])
        repeated = [one for one in theirs if one.claim.request_id == claim.request_id]
        too_many = theirs[: max(0, len(theirs) + 1 - MOST_PER_WORKER)]
        for older in {id(one): one for one in (*repeated, *too_many)}.values():
            self._settle(older, older.known)
        if not waiter.listens:
            self._line[claim.request_id] = waiter
        self._by_worker.setdefault(claim.worker, []).append(waiter)

    def _leave(self, waiter: _Waiter) -> None:
        claim = waiter.claim
        for line in (self._line, self._called_line):
            if line.get(claim.request_id) is waiter:
                del line[claim.request_id]
        theirs = self._by_worker.get(claim.worker, [])
        if waiter in theirs:
            theirs.remove(waiter)
            if not theirs:
                del self._by_worker[claim.worker]

    def _settle(self, waiter: _Waiter, granted: ClaimResponse) -> None:
        if not waiter.signal.done():
            waiter.signal.set_result(granted)
        self._leave(waiter)

    def _try_some(self) -> None:
        while self._trying < AT_ONCE and not self._is_closed:
            waiter = self._next()
            if waiter is None:
                return
            self._begin(waiter)
            self._trying += 1
            waiter.trying = self._loop.create_task(self._try(waiter))
            waiter.trying.add_done_callback(self._tried)

    def _next(self) -> _Waiter | None:
        """Return the claim to try next; None: there is none."""
        if self._called_line:
            return next(iter(self._called_line.values()))
        waiter = next(iter(self._line.values()), None)
        return None if waiter is None or waiter.is_busy or waiter.tried >= self._changes else waiter

    def _tried(self, _trying: asyncio.Task[None]) -> None:
        self._trying -= 1
        self._try_some()

    def _begin(self, waiter: _Waiter) -> None:
        waiter.is_busy = True
        waiter.tried = self._changes
        self._called_line.pop(waiter.claim.request_id, None)
        self._line.pop(waiter.claim.request_id, None)
        if not waiter.listens:
            self._line[waiter.claim.request_id] = waiter

    def _put_in_called_line(self, waiter: _Waiter) -> None:
        self._called_line.setdefault(waiter.claim.request_id, waiter)

    async def _try(self, waiter: _Waiter) -> None:
        try:
            granted = await self._ask(waiter.claim)
            waiter.known = granted
            if granted.grants or granted.orders or granted.execs or self._is_closed:
                self._settle(waiter, granted)
        except Exception as error:  # noqa: BLE001 - becomes the response
            if not waiter.signal.done():
                waiter.signal.set_exception(error)
                # Marks it as retrieved: the client may be gone.
                waiter.signal.exception()
        finally:
            waiter.is_busy = False
            waiter.trying = None
            if waiter.tried == _NEXT and waiter in self._by_worker.get(waiter.claim.worker, ()):
                self._put_in_called_line(waiter)


MOST_FOLLOWERS = 500

EventPlace: TypeAlias = tuple[str, int, str]
"""A job, an attempt, a path."""


class Followers:
    """Wakes requests that wait for a mirrored file to grow. Bounded in number; they use no thread while they wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[EventPlace, set[asyncio.Event]] = {}
        self._count = 0
        self._is_closed = False

    def __len__(self) -> int:
        return self._count

    def grew(self, job: str, attempt: int, path: str) -> None:
        """Wake the followers of a file that grew. Thread-safe."""
        if (job, attempt, path) in self._waiting:
            self._loop.call_soon_threadsafe(self._wake, (job, attempt, path))

    def ended(self, job: str) -> None:
        """Wake the followers of a job that changed, in the loop: its attempt may have ended."""
        for place in [place for place in self._waiting if place[0] == job]:
            self._wake(place)

    @contextmanager
    def following(self, place: EventPlace) -> Iterator[asyncio.Event]:
        """Yield an event that is set when the file grows from now on; check the file's size inside the with-block."""
        grown, theirs = asyncio.Event(), self._waiting.setdefault(place, set())
        theirs.add(grown)
        try:
            yield grown
        finally:
            theirs.discard(grown)
            # Woken followers were removed already, and another may follow the same file since.
            if not theirs and self._waiting.get(place) is theirs:
                del self._waiting[place]

    async def wait(self, grown: asyncio.Event, wait_s: float) -> None:
        """Wait until the file has grown, or for so long."""
        if self._count >= MOST_FOLLOWERS:
            raise RateLimited(
                f"{MOST_FOLLOWERS} requests follow files of this coordinator already",
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
        """Wake all followers, from now on at once."""
        self._is_closed = True
        for place in list(self._waiting):
            self._wake(place)

    def _wake(self, place: EventPlace) -> None:
        for grown in self._waiting.pop(place, ()):
            grown.set()


MOST_LAUNCH_WAIT_S = 30.0
_RECENT_S = 1.0


class SubmissionSignal:
    """Wakes launchers that wait for jobs or for requests of operators, in the event loop."""

    def __init__(self) -> None:
        self._submitted = asyncio.Event()
        self._last_s = float("-inf")

    def submitted(self) -> None:
        """Wake all that wait."""
        self._last_s = asyncio.get_running_loop().time()
        submitted, self._submitted = self._submitted, asyncio.Event()
        submitted.set()

    async def wait(self, wait_s: float) -> None:
        """Wait for the next submission, or for so long. Right after one, return: a launcher may have missed it."""
        if wait_s and asyncio.get_running_loop().time() - self._last_s > _RECENT_S:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._submitted.wait(), wait_s)


KEPT = 4096
BATCH = 500
MOST_LISTENERS = 200
PAUSE_S = 0.05
"""At least this long between two reads: commits come by the hundred."""
BEAT_S = 10.0

ReadEvents: TypeAlias = Callable[[int, int], Awaitable[tuple[dict[str, Any], ...]]]


class EventFeed:
    """One coordinator's events as they happen, for all listeners inside its event loop."""

    def __init__(self, read: ReadEvents) -> None:
        self._read = read
        self._kept: deque[tuple[int, bytes]] = deque()
        self._from = self._reached = -1
        """Events behind the first, up to the second, are kept."""
        self._newest = 0
        self._moved = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._listeners = 0
        self._is_closed = False

    @property
    def listeners(self) -> int:
        return self._listeners

    def note(self, newest: int) -> None:
        """Note that there are events up to this one."""
        self._newest = max(newest, self._newest)
        if self._listeners and self._reading is None and self._reached < self._newest and not self._is_closed:
            self._reading = asyncio.ensure_future(self._catch_up())

    def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        self._moved.set()

    def check_room(self) -> None:
        """Raise `RateLimited` if there are too many listeners."""
        if self._listeners >= MOST_LISTENERS:
            raise RateLimited(
                f"{MOST_LISTENERS} clients listen to this coordinator's events already",
                hint="try again in a while, or query a job's own events",
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
        """Return the events behind a position as a piece of a stream, and the new position; None: the stream is over.

        An empty piece: there were none for so long.
        """
        moved = self._moved
        if self._from <= place <= self._reached:
            found = self._kept_after(place)
        else:
            found = [(event["seq"], event_text(event)) for event in await self._read(place, BATCH)]
        if found:
            return found[-1][0], b"".join(text for _, text in found)
        # Events noted without listeners were not read.
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
                    # Too many to keep: a listener that is behind reads them itself.
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
    """Return an event in the format of server-sent events."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event["seq"], str(event["kind"]).encode(), json_bytes(event))
