"""What every route needs: the queue, what is kept, who waits and who follows; and threads for what blocks.

Reads of the database, bytes of files and whole submissions each have threads of their own, so that one sort of traffic
never waits for another. Control calls need none at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, ParamSpec, TypeVar

from stoker.coordinator.keeping.keeping import Keeping
from stoker.coordinator.queue.commands import Command, Submit
from stoker.coordinator.queue.queue import Queue
from stoker.coordinator.service.counter import Counter
from stoker.coordinator.service.event_feed import EventFeed
from stoker.coordinator.service.exec_desk import ExecDesk
from stoker.coordinator.service.following import Followers
from stoker.coordinator.service.waiting import WaitingClaims
from stoker.model.clock import Clock
from stoker.model.frozen import frozen
from stoker.model.leases import FleetTimes
from stoker.wire.asking import DoneView
from stoker.wire.leasing import Claim, Granted
from stoker.wire.orders import Submission, Submitted
from stoker.wire.views import JobExplanation, MachineView, ScheduleView

P = ParamSpec("P")
T = TypeVar("T")

PIECE_BYTES = 128 * 1024
"""Of an answer that is not read yet, in memory; hundreds of clients may be slow at the same time."""
BULK_PIECE_BYTES = 1024 * 1024
BULK_ANSWERS = 8
"""Answers at a time whose bytes are read in larger pieces, which costs half as much; these have 16 MiB in memory at
most: a piece that is not read yet, and the next one.
"""
READERS = 4
FILE_THREADS = 4
ORDER_THREADS = 1
"""Submissions are checked one after the other: each may be a hundred megabytes."""


@frozen
class About:
    """What a coordinator says of itself."""

    version: str
    database: str
    """Its sort and place, without secrets."""
    started_s: float
    times: FleetTimes


@frozen
class Views:
    """Answers that need more than the database: placement's opinion, the pace of heartbeats."""

    machines: Callable[[str], tuple[MachineView, ...]]
    """All, or the one of a name."""
    explain: Callable[[str], JobExplanation]
    forecast: Callable[[Submission, Submitted], Submitted]
    """Of a dry run, what would become of its jobs."""
    schedule: Callable[[], ScheduleView]
    """The state of the scheduler."""


class Office:
    """One coordinator, inside its event loop."""

    def __init__(
        self,
        *,
        queue: Queue,
        keeping: Keeping,
        views: Views,
        about: About,
        clock: Clock,
        reload: Callable[[bool, str], DoneView],
    ) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self.queue = queue
        self.reader = queue.reader
        self.keeping = keeping
        self.views = views
        self.about = about
        self.clock = clock
        self._reload = reload
        self._reads = ThreadPoolExecutor(READERS, thread_name_prefix="reads")
        self._files = ThreadPoolExecutor(FILE_THREADS, thread_name_prefix="files")
        self._bulk_answers = 0
        self._orders = ThreadPoolExecutor(ORDER_THREADS, thread_name_prefix="orders")
        # Of its own, and one: a forecast computes for up to a second or two, and readers must not wait for several.
        self._forecasts = ThreadPoolExecutor(1, thread_name_prefix="forecasts")
        # Of its own: hundreds who want the whole past must not keep anybody else from reading.
        self._past = ThreadPoolExecutor(1, thread_name_prefix="past")
        self.counter = Counter(queue, loop, on_change=self._on_change)
        self.execs = ExecDesk(clock, is_current=queue.is_current)
        self.waiting = WaitingClaims(self._ask_again)
        self.feed = EventFeed(lambda after, limit: _in(self._past, self.reader.events, after, limit))
        self.followers = Followers(loop)
        queue.on_change(self.counter.bring_change)
        queue.on_wish(self._bring_wish)
        keeping.on_growth(self.followers.grew)

    async def ask(self, command: Command) -> Any:
        """Ask the queue."""
        return await self.counter.ask(command)

    async def read(self, ask: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Ask the database, in a thread for that."""
        return await _in(self._reads, ask, *args, **named)

    async def foresee(self, ask: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Make a forecast, in the one thread for that."""
        return await _in(self._forecasts, ask, *args, **named)

    async def keep(self, ask: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Read or write bytes, in a thread for that."""
        return await _in(self._files, ask, *args, **named)

    async def pieces(self, stream: BinaryIO) -> AsyncIterator[bytes]:
        """Yield the bytes of a stream, the next ones once those before were taken; close it at the end."""
        is_bulk = self._bulk_answers < BULK_ANSWERS
        self._bulk_answers += is_bulk
        try:
            while piece := await self.keep(stream.read, BULK_PIECE_BYTES if is_bulk else PIECE_BYTES):
                yield piece
        finally:
            self._bulk_answers -= is_bulk
            stream.close()

    async def order(self, ask: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Check or take in a submission, in a thread for that."""
        return await _in(self._orders, ask, *args, **named)

    async def submit(self, submission: Submission, *, only_of: str | None) -> Submitted:
        """Hand in jobs, for a principal that may change `only_of`'s alone (None: all)."""
        submitted: Submitted = await self.counter.ask_through(self._orders, Submit(asked=submission, only_of=only_of))
        return submitted

    async def reload(self, *, dry_run: bool, by: str = "") -> DoneView:
        """Read cluster file and manifest again; `by` is recorded, empty for the coordinator itself."""
        return await self.order(self._reload, dry_run, by)

    def close(self) -> None:
        """Let everybody go who waits; nothing is held open from now on."""
        self.execs.close()
        self.waiting.close()
        self.feed.close()
        self.followers.close()

    def end(self) -> None:
        """Let go of the threads, once nobody asks any more."""
        for threads in (self._reads, self._forecasts, self._files, self._orders, self._past):
            threads.shutdown(wait=True, cancel_futures=True)

    async def _ask_again(self, claim: Claim) -> Granted:
        granted: Granted = await self.counter.ask(claim)
        return self.execs.told(claim.worker, granted)

    def _bring_wish(self, machines: Sequence[str]) -> None:
        """Take word of machines that should ask again, in the writer's thread."""
        self._loop.call_soon_threadsafe(self.waiting.call, machines)

    def _on_change(self, newest: int, *, is_reread: bool) -> None:
        self.feed.note(newest)
        if is_reread:
            self.waiting.stir()


def _in(threads: ThreadPoolExecutor, ask: Callable[..., T], *args: Any, **named: Any) -> Awaitable[T]:
    return asyncio.get_running_loop().run_in_executor(threads, lambda: ask(*args, **named))
