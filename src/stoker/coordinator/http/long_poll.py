"""Claims that wait: a worker's question is held open until its machine is called, or its time is over.

The queue calls machines that may be granted something now, or are to do something with a lease: their questions are
asked again, a few at a time, in the order of the calls, and no others. So a new job costs one question, not one per
worker. Only after the queue had to read its rows again are all questions asked again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from stoker.core.errors import RateLimited
from stoker.protocol.lease_messages import Claim, ClaimResponse

AT_ONCE = 8
"""How many waiting claims are tried again at the same time."""
MOST_PER_WORKER = 2
"""A worker that asks once more than that gives up its oldest question."""
_AT_THE_NEXT_CHANCE = -1

Ask: TypeAlias = Callable[[Claim], Awaitable[ClaimResponse]]
Gone: TypeAlias = Callable[[], Awaitable[None]]
Mark: TypeAlias = tuple[int, int]
"""How many times all questions were to be asked again, and how many calls there had been."""


class _Waiter:
    __slots__ = ("claim", "is_busy", "known", "listens", "signal", "tried", "trying")

    def __init__(self, claim: Claim, known: ClaimResponse, loop: asyncio.AbstractEventLoop) -> None:
        # How long its machine stays was true when it was asked: said again later, it would move the end.
        self.claim = claim if claim.ends_in_s is None else claim.model_copy(update={"ends_in_s": None})
        self.listens = claim.most == 0
        """It wants no work; it is in line only when it is called."""
        self.known = known
        """The last answer: nothing for it, and why."""
        self.signal: asyncio.Future[ClaimResponse] = loop.create_future()
        self.tried = 0
        """How many changes there had been when it was last tried."""
        self.is_busy = False
        self.trying: asyncio.Task[None] | None = None


class WaitingClaims:
    """The claims that one coordinator holds open. Everything here happens in its event loop."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._line: OrderedDict[str, _Waiter] = OrderedDict()
        """By request id, who was tried least recently first."""
        self._called_line: OrderedDict[str, _Waiter] = OrderedDict()
        """Those that are asked before all others: called machines, the one that was called first first."""
        self._by_worker: dict[str, list[_Waiter]] = {}
        """All of them."""
        self._trying = 0
        self._changes = 0
        """Counts how often all were to ask again, so that this is not missed during a question."""
        self._calls = 0
        self._called: dict[str, int] = {}
        """By machine, which call was the last for it."""
        self._is_closed = False

    def __len__(self) -> int:
        return sum(map(len, self._by_worker.values()))

    def mark(self) -> Mark:
        """Take this before the queue is asked for the first time: what happens until `wait` is not missed."""
        return self._changes, self._calls

    def holds(self, claim: Claim, granted: ClaimResponse) -> bool:
        """Return whether a claim that was answered so goes on waiting."""
        return claim.wait_s > 0 and not self._is_closed and not (granted.grants or granted.orders or granted.execs)

    async def wait(self, claim: Claim, known: ClaimResponse, since: Mark, gone: Gone) -> ClaimResponse | None:
        """Hold a claim open. `gone` returns when whoever asked has left; then there is no answer."""
        if self._is_closed:
            return known
        waiter = _Waiter(claim, known, self._loop)
        self._enter(waiter)
        changes, calls = since
        waiter.tried = changes if self._called.get(claim.worker, 0) <= calls else _AT_THE_NEXT_CHANCE
        if waiter.tried == _AT_THE_NEXT_CHANCE or (waiter.tried != self._changes and not waiter.listens):
            # Before those who have heard of what happened meanwhile.
            self._put_in_called_line(waiter)
        try:
            self._try_some()
            return await self._wait(waiter, gone)
        finally:
            self._leave(waiter)

    def stir(self) -> None:
        """Let all questions be asked again: it is not known what is new."""
        self._changes += 1
        self._try_some()

    def call(self, machines: Sequence[str]) -> None:
        """Let the questions of these machines be asked again: in this order, after those that were called before."""
        self._calls += 1
        self._called.update(dict.fromkeys(machines, self._calls))
        for waiter in [one for machine in machines for one in self._by_worker.get(machine, ())]:
            waiter.tried = _AT_THE_NEXT_CHANCE
            if not waiter.is_busy:
                self._put_in_called_line(waiter)
        self._try_some()

    def close(self) -> None:
        """Answer everybody with nothing, from now on at once."""
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
                # It is being asked for just now: what it gets must reach whoever waits for it.
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
        """Return whose question is asked next; None: nobody's."""
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
        except Exception as error:  # noqa: BLE001 - whoever waits is told, whatever it was
            if not waiter.signal.done():
                waiter.signal.set_exception(error)
                # Perhaps nobody waits any more; then nobody has to be told.
                waiter.signal.exception()
        finally:
            waiter.is_busy = False
            waiter.trying = None
            if waiter.tried == _AT_THE_NEXT_CHANCE and waiter in self._by_worker.get(waiter.claim.worker, ()):
                self._put_in_called_line(waiter)


# Those who wait for a mirrored file to grow. Their number is bounded, and they hold no thread while they wait.

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
        """Return what is set when the file grows from now on; look how long the file is inside the with-block."""
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
