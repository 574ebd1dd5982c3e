"""What every route needs: the queue, what is kept, who waits and who follows; and threads for what blocks.

Reads of the database, bytes of files and whole submissions each have threads of their own, so that one sort of traffic
never waits for another. Control calls need none at all.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, BinaryIO, ParamSpec, TypeAlias, TypeVar

from stoker.coordinator.http.exec_sessions import ExecSessions
from stoker.coordinator.http.feeds import SECONDS, SIZES, EventFeed, Histogram, MetricsPage
from stoker.coordinator.http.long_poll import Followers, WaitingClaims
from stoker.coordinator.http.overview import Explanations
from stoker.coordinator.queue.commands import Answer, Command, NoteTokens, Submit, Write
from stoker.coordinator.queue.queue import Queue
from stoker.coordinator.storage.storage import CoordinatorStorage
from stoker.core.clock import Clock
from stoker.core.errors import StokerError
from stoker.core.frozen import frozen
from stoker.core.leases import FleetTimes
from stoker.protocol.job_messages import Submission, SubmissionResponse
from stoker.protocol.lease_messages import Claim, ClaimResponse
from stoker.protocol.view_messages import DoneView

# Where the event loop asks the queue: commands go in one by one, answers come back a group at a time.
#
# The queue answers in its own writer thread, once per command and after the group's commit, and tells of each commit.
# Waking the loop is what costs, so all that a commit brings shares one wake-up.

Then: TypeAlias = Callable[[Answer | StokerError], None]


class QueueBridge:
    """One event loop's way to the queue, and what it has counted there."""

    def __init__(
        self,
        post: Callable[[Command, Then], None],
        loop: asyncio.AbstractEventLoop,
        *,
        on_change: Callable[[int, bool], None],
    ) -> None:
        """Ask by the queue's `post`; `on_change` is called as its listeners are, in the loop."""
        self._post = post
        self._loop = loop
        self._on_change = on_change
        self._answers: deque[tuple[_Asked, Answer | StokerError]] = deque()
        self._changes: deque[tuple[int, bool]] = deque()
        self._is_awaited = False
        self.asked: dict[str, int] = {}
        """Commands by sort."""
        self.refused: dict[str, int] = {}
        """Refusals by code."""
        self.grants = 0
        self.seconds = Histogram(SECONDS)
        self.group_sizes = Histogram(SIZES)

    def post(self, command: Command, then: Then) -> None:
        """Ask, and have the answer or the refusal brought to `then`, in the loop. It must not raise."""
        asked = _Asked(command, then, self._loop.time())
        self._post(command, lambda answer: self._bring(asked, answer))

    async def ask(self, command: Command) -> Any:
        """Return the queue's answer, or raise its refusal."""
        future = self._loop.create_future()
        self.post(command, _settling(future))
        return await future

    async def ask_through(self, threads: Executor, command: Command) -> Any:
        """The same for a command that takes a while to be taken in."""
        future = self._loop.create_future()
        asked = _Asked(command, _settling(future), self._loop.time())
        await self._loop.run_in_executor(threads, self._post, command, lambda answer: self._bring(asked, answer))
        return await future

    def bring_change(self, newest: int, is_reread: bool) -> None:  # noqa: FBT001 - as the queue calls it
        """Take word of a commit, in the writer's thread."""
        self._changes.append((newest, is_reread))
        self._wake()

    def _bring(self, asked: _Asked, answer: Answer | StokerError) -> None:
        self._answers.append((asked, answer))
        self._wake()

    def _wake(self) -> None:
        # Set before the loop is called and cleared before it takes: what comes while it takes wakes it again.
        if not self._is_awaited:
            self._is_awaited = True
            try:
                self._loop.call_soon_threadsafe(self._hand_out)
            except RuntimeError:
                # The loop has ended, and with it whoever asked.
                self._answers.clear()

    def _hand_out(self) -> None:
        self._is_awaited = False
        answers, now_s = self._answers, self._loop.time()
        count = 0
        while answers:
            asked, answer = answers.popleft()
            count += 1
            self._note(asked, answer, now_s)
            asked.then(answer)
        if count:
            self.group_sizes.add(count)
        if self._changes:
            self._hand_out_changes()

    def _hand_out_changes(self) -> None:
        changes, newest, is_reread = self._changes, 0, False
        while changes:
            newest, reread = changes.popleft()
            is_reread = is_reread or reread
        self._on_change(newest, is_reread)

    def _note(self, asked: _Asked, answer: Answer | StokerError, now_s: float) -> None:
        self.asked[asked.sort] = self.asked.get(asked.sort, 0) + 1
        self.seconds.add(now_s - asked.at_s)
        if isinstance(answer, ClaimResponse):
            self.grants += len(answer.grants)
        elif isinstance(answer, StokerError):
            self.refused[answer.code] = self.refused.get(answer.code, 0) + 1


class _Asked:
    __slots__ = ("at_s", "sort", "then")

    def __init__(self, command: Command, then: Then, at_s: float) -> None:
        self.then = then
        self.at_s = at_s
        self.sort = type(command.said if isinstance(command, Write) else command).__name__.lower()


def _settling(future: asyncio.Future[Any]) -> Then:
    def settle(answer: Answer | StokerError) -> None:
        if future.done():
            return
        if isinstance(answer, StokerError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    return settle


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
TOKEN_EVERY_S = 600.0
"""The use of a token is recorded at most so often."""
ORDER_THREADS = 1
"""Submissions are checked one after the other: each may be a hundred megabytes."""


@frozen
class CoordinatorInfo:
    """What a coordinator says of itself."""

    version: str
    database: str
    """Its sort and place, without secrets."""
    started_s: float
    times: FleetTimes


class ServiceContext:
    """One coordinator, inside its event loop."""

    def __init__(
        self,
        *,
        queue: Queue,
        keeping: CoordinatorStorage,
        views: Explanations,
        about: CoordinatorInfo,
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
        self._tokens_noted: dict[str, float] = {}
        self._reads = ThreadPoolExecutor(READERS, thread_name_prefix="reads")
        self._files = ThreadPoolExecutor(FILE_THREADS, thread_name_prefix="files")
        self._bulk_answers = 0
        self._orders = ThreadPoolExecutor(ORDER_THREADS, thread_name_prefix="orders")
        # Of its own, and one: a forecast computes for up to a second or two, and readers must not wait for several.
        self._forecasts = ThreadPoolExecutor(1, thread_name_prefix="forecasts")
        # Of its own: hundreds who want the whole past must not keep anybody else from reading.
        self._past = ThreadPoolExecutor(1, thread_name_prefix="past")
        self.counter = QueueBridge(queue.post, loop, on_change=self._on_change)
        self.execs = ExecSessions(clock, is_current=queue.is_current)
        self.waiting = WaitingClaims(self.claim)
        self.feed = EventFeed(lambda after, limit: _in(self._past, self.reader.events, after, limit))
        self.followers = Followers(loop)
        queue.on_change(self.counter.bring_change)
        queue.on_wish(self._bring_wish)
        keeping.attempt_files.on_growth(self.followers.grew)

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

    async def submit(self, submission: Submission, *, only_of: str | None) -> SubmissionResponse:
        """Hand in jobs, for a principal that may change `only_of`'s alone (None: all)."""
        submitted: SubmissionResponse = await self.counter.ask_through(
            self._orders, Submit(asked=submission, only_of=only_of)
        )
        return submitted

    async def reload(self, *, dry_run: bool, by: str = "") -> DoneView:
        """Read cluster file and manifest again; `by` is recorded, empty for the coordinator itself."""
        return await self.order(self._reload, dry_run, by)

    def note_token(self, id: str) -> None:
        """Record that a token was used: seldom, and without anybody waiting for it."""
        now_s = self.clock.monotonic_s()
        if now_s - self._tokens_noted.get(id, float("-inf")) >= TOKEN_EVERY_S:
            self._tokens_noted[id] = now_s
            self.counter.post(NoteTokens(ids=(id,)), lambda _answer: None)

    def machine_counts(self) -> dict[str, int]:
        """Count the machines by state. Blocks."""
        return dict(Counter(machine.state for machine in self.views.machines("")))

    def figures(self) -> bytes:
        """Return the figures of this coordinator as Prometheus reads them. Blocks."""
        page, counter = MetricsPage(), self.counter
        page.by("stoker_jobs", "gauge", "Jobs by state.", "state", self.reader.counts())
        page.by("stoker_machines", "gauge", "Machines by state.", "state", self.machine_counts())
        page.by("stoker_asked_total", "counter", "What was asked of the queue.", "command", counter.asked)
        page.by("stoker_refusals_total", "counter", "What the queue refused, by code.", "code", counter.refused)
        page.one("stoker_grants_total", "counter", "Leases granted.", counter.grants)
        page.histogram("stoker_answer_seconds", "From a command to its durable answer.", counter.seconds)
        page.histogram("stoker_group_size", "Answers that one commit brought.", counter.group_sizes)
        page.one("stoker_waiting_claims", "gauge", "Claims that are held open.", len(self.waiting))
        page.one("stoker_event_listeners", "gauge", "Streams of events.", self.feed.listeners)
        page.one("stoker_file_followers", "gauge", "Who waits for a file to grow.", len(self.followers))
        page.one("stoker_uptime_seconds", "gauge", "Since the start.", self.clock.wall_s() - self.about.started_s)
        return page.to_bytes()

    def close(self) -> None:
        """Answer all that wait; nothing is held open from now on."""
        self.execs.close()
        self.waiting.close()
        self.feed.close()
        self.followers.close()

    def end(self) -> None:
        """Let go of the threads, once nobody asks any more."""
        for threads in (self._reads, self._forecasts, self._files, self._orders, self._past):
            threads.shutdown(wait=True, cancel_futures=True)

    async def claim(self, claim: Claim) -> ClaimResponse:
        """Ask the queue for work for a machine; the answer also has the commands that it is to run inside jobs."""
        granted: ClaimResponse = await self.counter.ask(claim)
        return self.execs.told(claim.worker, granted)

    def _bring_wish(self, machines: Sequence[str]) -> None:
        """Take word of machines that should ask again, in the writer's thread."""
        self._loop.call_soon_threadsafe(self.waiting.call, machines)

    def _on_change(self, newest: int, is_reread: bool) -> None:  # noqa: FBT001 - as the queue calls it
        self.feed.note(newest)
        if is_reread:
            self.waiting.stir()


def _in(threads: ThreadPoolExecutor, ask: Callable[..., T], *args: Any, **named: Any) -> Awaitable[T]:
    return asyncio.get_running_loop().run_in_executor(threads, lambda: ask(*args, **named))
