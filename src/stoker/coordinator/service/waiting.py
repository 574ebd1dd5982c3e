"""Claims that wait: a worker's question is held open until something may be for it, or its time is over.

Whoever was tried least recently is tried first, a few at a time: if those get something there may be more for the next
ones; if they learn that no job waits at all, the others need not ask. So one new job costs a few questions, not one per
worker. Who has room for none only listens: it is asked for when something is wished of it, and not before.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from stoker.wire.leasing import Claim, Granted

AT_ONCE = 8
"""How many waiting claims are tried again at the same time."""
MOST_PER_WORKER = 2
"""A worker that asks once more than that gives up its oldest question."""
_AT_THE_NEXT_CHANCE = -1

Ask: TypeAlias = Callable[[Claim], Awaitable[Granted]]
Gone: TypeAlias = Callable[[], Awaitable[None]]
Mark: TypeAlias = tuple[int, int]
"""How many changes and how many calls there had been."""


class _Waiter:
    __slots__ = ("claim", "is_busy", "known", "listens", "signal", "tried", "trying")

    def __init__(self, claim: Claim, known: Granted, loop: asyncio.AbstractEventLoop) -> None:
        self.claim = claim
        self.listens = claim.most == 0
        """It wants no work; it is in line only when it is called."""
        self.known = known
        """The last answer: nothing for it, and why."""
        self.signal: asyncio.Future[Granted] = loop.create_future()
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
        self._by_worker: dict[str, list[_Waiter]] = {}
        """All of them."""
        self._trying = 0
        self._changes = 0
        """Counts what became claimable by anybody, so that a change during a question is not missed."""
        self._calls = 0
        """Counts what was wished of any machine, alike."""
        self._empty_at = -1
        """How many changes there had been when no job waited at all."""
        self._is_closed = False

    def __len__(self) -> int:
        return sum(map(len, self._by_worker.values()))

    def mark(self) -> Mark:
        """Take this before the queue is asked for the first time: what happens until `wait` is not missed."""
        return self._changes, self._calls

    def holds(self, claim: Claim, granted: Granted) -> bool:
        """Say whether a claim that was answered so goes on waiting."""
        return claim.wait_s > 0 and not self._is_closed and not (granted.grants or granted.orders or granted.execs)

    async def wait(self, claim: Claim, known: Granted, since: Mark, gone: Gone) -> Granted | None:
        """Hold a claim open. `gone` returns when whoever asked has left; then there is no answer."""
        if self._is_closed:
            return known
        waiter = _Waiter(claim, known, self._loop)
        self._enter(waiter)
        changes, calls = since
        waiter.tried = changes if calls == self._calls else _AT_THE_NEXT_CHANCE
        if waiter.tried == self._changes:
            self._note_emptiness(waiter, known)
        elif waiter.tried == _AT_THE_NEXT_CHANCE or not waiter.listens:
            # Before those who have heard of what happened meanwhile.
            self._put_first(waiter)
        try:
            self._try_some()
            return await self._wait(waiter, gone)
        finally:
            self._leave(waiter)

    def stir(self) -> None:
        """Something became claimable, by anybody."""
        self._changes += 1
        self._try_some()

    def call(self, machines: frozenset[str]) -> None:
        """Something is wished of these machines: whoever asked for them asks again before all others."""
        self._calls += 1
        for waiter in [one for machine in machines for one in self._by_worker.get(machine, ())]:
            waiter.tried = _AT_THE_NEXT_CHANCE
            if not waiter.is_busy:
                self._put_first(waiter)
        self._try_some()

    def close(self) -> None:
        """Answer everybody with nothing, from now on at once."""
        self._is_closed = True
        for waiter in [one for theirs in self._by_worker.values() for one in theirs]:
            if not waiter.is_busy:
                self._settle(waiter, waiter.known)

    async def _wait(self, waiter: _Waiter, gone: Gone) -> Granted | None:
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
        if self._line.get(claim.request_id) is waiter:
            del self._line[claim.request_id]
        theirs = self._by_worker.get(claim.worker, [])
        if waiter in theirs:
            theirs.remove(waiter)
            if not theirs:
                del self._by_worker[claim.worker]

    def _settle(self, waiter: _Waiter, granted: Granted) -> None:
        if not waiter.signal.done():
            waiter.signal.set_result(granted)
        self._leave(waiter)

    def _try_some(self) -> None:
        while self._trying < AT_ONCE and self._line and not self._is_closed:
            waiter = next(iter(self._line.values()))
            has_heard = self._empty_at == self._changes or waiter.tried >= self._changes
            if waiter.is_busy or (has_heard and waiter.tried != _AT_THE_NEXT_CHANCE):
                return
            self._begin(waiter)
            self._trying += 1
            waiter.trying = self._loop.create_task(self._try(waiter))
            waiter.trying.add_done_callback(self._tried)

    def _tried(self, _trying: asyncio.Task[None]) -> None:
        self._trying -= 1
        self._try_some()

    def _begin(self, waiter: _Waiter) -> None:
        waiter.is_busy = True
        waiter.tried = self._changes
        self._line.pop(waiter.claim.request_id, None)
        if not waiter.listens:
            self._line[waiter.claim.request_id] = waiter

    def _put_first(self, waiter: _Waiter) -> None:
        self._line[waiter.claim.request_id] = waiter
        self._line.move_to_end(waiter.claim.request_id, last=False)

    def _note_emptiness(self, waiter: _Waiter, granted: Granted) -> None:
        if not waiter.listens and not granted.waiting and not granted.closed:
            self._empty_at = self._changes

    async def _try(self, waiter: _Waiter) -> None:
        changes = waiter.tried
        try:
            granted = await self._ask(waiter.claim)
            waiter.known = granted
            if granted.grants or granted.orders or granted.execs or self._is_closed:
                self._settle(waiter, granted)
            elif changes == self._changes:
                self._note_emptiness(waiter, granted)
        except Exception as error:  # noqa: BLE001 - whoever waits is told, whatever it was
            if not waiter.signal.done():
                waiter.signal.set_exception(error)
                # Perhaps nobody waits any more; then nobody has to be told.
                waiter.signal.exception()
        finally:
            waiter.is_busy = False
            waiter.trying = None
            if waiter.tried == _AT_THE_NEXT_CHANCE and waiter in self._by_worker.get(waiter.claim.worker, ()):
                self._put_first(waiter)
