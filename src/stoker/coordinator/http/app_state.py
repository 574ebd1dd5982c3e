"""What every route needs: the queue, storage, open claims and event streams, and threads for blocking work.

Database reads, file transfers and submissions have separate threads, so that one kind of traffic never waits for
another. Control calls need none.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, BinaryIO, ParamSpec, TypeVar

from stoker.coordinator.http.change_feed import ChangeFeed, ChangeReader
from stoker.coordinator.http.exec_sessions import ExecSessions
from stoker.coordinator.http.long_poll import EventFeed, Followers, SubmissionSignal, WaitingClaims
from stoker.coordinator.http.overview import Explanations
from stoker.coordinator.http.turns import Turns
from stoker.coordinator.queue.commands import Answer, Command, NoteTokens, Submit, Write
from stoker.coordinator.queue.writer import Queue, Then
from stoker.coordinator.storage.storage import CoordinatorStorage
from stoker.coordinator.storage.telemetry import gauges_of
from stoker.core.clock import Clock
from stoker.core.errors import StaleLease, StokerError
from stoker.core.frozen import frozen
from stoker.core.leases import FleetTimes, Principal, Role
from stoker.protocol.job_messages import Submission, SubmissionResponse
from stoker.protocol.lease_messages import Claim, ClaimResponse
from stoker.protocol.view_messages import DoneView

# Metrics in Prometheus format.

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Histogram:
    """Counts of values by upper bounds. One thread adds to it."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str) -> Iterable[str]:
        """Return the histogram in Prometheus format."""
        total = 0
        for bound, count in zip(self._bounds, self._counts, strict=False):
            total += count
            yield f'{name}_bucket{{le="{bound:g}"}} {total}'
        total += self._counts[-1]
        yield f'{name}_bucket{{le="+Inf"}} {total}'
        yield f"{name}_sum {self._sum:.6f}"
        yield f"{name}_count {total}"


class MetricsPage:
    """A page of metrics."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def one(self, name: str, kind: str, help: str, value: float) -> None:
        """Add one number."""
        self.by(name, kind, help, "", {"": value})

    def by(self, name: str, kind: str, help: str, label: str, values: Mapping[str, float]) -> None:
        """Add numbers by a label."""
        self._head(name, kind, help)
        for value_of, value in sorted(values.items()):
            labelled = f'{{{label}="{_escaped(value_of)}"}}' if label else ""
            self._lines.append(f"{name}{labelled} {value:.17g}")

    def labelled(self, name: str, help: str, values: Iterable[tuple[Mapping[str, str], float]]) -> None:
        """Add gauges with any labels; nothing if there is no value."""
        lines = [f"{name}{{{_labels(labels)}}} {value:.17g}" for labels, value in values]
        if lines:
            self._head(name, "gauge", help)
            self._lines += lines

    def histogram(self, name: str, help: str, values: Histogram) -> None:
        """Add a histogram."""
        self._head(name, "histogram", help)
        self._lines += values.lines(name)

    def to_bytes(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()

    def _head(self, name: str, kind: str, help: str) -> None:
        self._lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class QueueBridge:
    """One event loop's access to the queue, with counters: commands go in one by one, answers come back in groups.

    The queue answers in its writer thread, once per command and after the group's commit, and reports each commit.
    Waking the loop is expensive, so all answers of a commit share one wake-up.
    """

    def __init__(
        self,
        post: Callable[[Command, Then], None],
        loop: asyncio.AbstractEventLoop,
        *,
        on_change: Callable[[int, bool], None],
    ) -> None:
        """Use the queue's `post`; `on_change` is called like its listeners, in the loop."""
        self._post = post
        self._loop = loop
        self._on_change = on_change
        self._answers: deque[tuple[_PendingCommand, Answer | StokerError]] = deque()
        self._changes: deque[tuple[int, bool]] = deque()
        self._is_awaited = False
        self.commands: dict[str, int] = {}
        """Number of commands by kind."""
        self.refused: dict[str, int] = {}
        """Number of refusals by code."""
        self.grants = 0
        self.seconds = Histogram(SECONDS)
        self.group_sizes = Histogram(SIZES)

    def post(self, command: Command, then: Then) -> None:
        """Post a command; `then` is called with the answer or the error, in the loop. It must not raise."""
        pending = _PendingCommand(command, then, self._loop.time())
        self._post(command, lambda answer: self._bring(pending, answer))

    async def ask(self, command: Command) -> Any:
        """Return the queue's answer, or raise its error."""
        future = self._loop.create_future()
        self.post(command, _settling(future))
        return await future

    async def ask_through(self, threads: Executor, command: Command) -> Any:
        """Return the queue's answer to a command whose check blocks: it is posted in a thread."""
        future = self._loop.create_future()
        pending = _PendingCommand(command, _settling(future), self._loop.time())
        await self._loop.run_in_executor(threads, self._post, command, lambda answer: self._bring(pending, answer))
        return await future

    def bring_change(self, newest: int, is_reread: bool) -> None:  # noqa: FBT001 - as the queue calls it
        """Receive a commit's number, in the writer's thread."""
        self._changes.append((newest, is_reread))
        self._wake()

    def _bring(self, pending: _PendingCommand, answer: Answer | StokerError) -> None:
        self._answers.append((pending, answer))
        self._wake()

    def _wake(self) -> None:
        # Set before the loop is called and cleared before it reads: what arrives while it reads wakes it again.
        if not self._is_awaited:
            self._is_awaited = True
            try:
                self._loop.call_soon_threadsafe(self._hand_out)
            except RuntimeError:
                # The loop has ended, and with it all callers.
                self._answers.clear()

    def _hand_out(self) -> None:
        self._is_awaited = False
        answers, now_s = self._answers, self._loop.time()
        count = 0
        while answers:
            pending, answer = answers.popleft()
            count += 1
            self._note(pending, answer, now_s)
            pending.then(answer)
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

    def _note(self, pending: _PendingCommand, answer: Answer | StokerError, now_s: float) -> None:
        self.commands[pending.sort] = self.commands.get(pending.sort, 0) + 1
        self.seconds.add(now_s - pending.at_s)
        if isinstance(answer, ClaimResponse):
            self.grants += len(answer.grants)
        elif isinstance(answer, StokerError):
            self.refused[answer.code] = self.refused.get(answer.code, 0) + 1


class _PendingCommand:
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


A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")

PIECE_BYTES = 128 * 1024
"""Unsent bytes of a response in memory; hundreds of clients may be slow at the same time."""
BULK_PIECE_BYTES = 1024 * 1024
BULK_ANSWERS = 8
"""Number of responses read in larger pieces, at half the cost; together at most 16 MiB in memory: an unsent piece and
the next one each.
"""
READERS = 4
FILE_THREADS = 4
LONG_THREADS = 2
CHECK_WAIT_S = 60.0
"""As long as two checks may take."""
TOKEN_EVERY_S = 600.0
"""Minimum time between two records of a token's use."""
ORDER_THREADS = 1
"""Submissions are checked one after the other: each may take a hundred megabytes."""


@frozen
class CoordinatorInfo:
    """Facts about a coordinator."""

    version: str
    database: str
    """Its kind and address, without secrets."""
    started_s: float
    times: FleetTimes
    name: str = ""
    """Of its machine."""
    build: str = ""
    """Of the pages that it serves: another one asks for a reload."""


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
        # One separate thread: a forecast computes for up to two seconds, and readers must not wait for several.
        self._forecasts = ThreadPoolExecutor(1, thread_name_prefix="forecasts")
        # Separate: a simulation, or a check of a sent manifest, takes many seconds; each has one turn at a time.
        self._long = ThreadPoolExecutor(LONG_THREADS, thread_name_prefix="long")
        self.explanations = Turns("explanations", at_once=1, of_one=8, most=100)
        self.simulations = Turns("simulations")
        self.checks = Turns("checks of manifests or jobs", wait_s=CHECK_WAIT_S)
        # Separate: hundreds of clients that read all past events must not block other readers.
        self._past = ThreadPoolExecutor(1, thread_name_prefix="past")
        self.counter = QueueBridge(queue.post, loop, on_change=self._on_change)
        self.execs = ExecSessions(clock, is_current=queue.is_current)
        self.waiting = WaitingClaims(self.claim)
        self.feed = EventFeed(lambda after, limit: _in(self._past, self.reader.events, after, limit))
        self.changes = ChangeFeed(ChangeReader(self.reader, views, clock), self.read, clock)
        self.followers = Followers(loop)
        self.submissions = SubmissionSignal()
        queue.on_change(self.counter.bring_change)
        queue.on_wish(self._call_machines)
        keeping.attempt_files.on_growth(self.followers.grew)

    def check_any_lease(self, who: Principal) -> None:
        """Raise `StaleLease` for a machine that can have nothing to send: it holds no lease, nor lost one recently."""
        if who.role is Role.WORKER and who.name and not self.queue.may_send(who.name):
            raise StaleLease(f"{who.name} holds no lease, so it has nothing to send", hint="claim a job first")

    async def ask(self, command: Command) -> Any:
        """Ask the queue."""
        return await self.counter.ask(command)

    async def read(self, ask: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Run a database read in its thread pool."""
        return await _in(self._reads, ask, *args, **named)

    async def run_forecast(self, ask: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Compute a forecast in its thread."""
        return await _in(self._forecasts, ask, *args, **named)

    async def compute(self, ask: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Compute what takes many seconds; within a turn."""
        return await _in(self._long, ask, *args, **named)

    async def keep(self, ask: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Read or write files in their thread pool."""
        return await _in(self._files, ask, *args, **named)

    async def pieces(self, stream: BinaryIO) -> AsyncIterator[bytes]:
        """Yield the bytes of a stream, each piece after the one before was sent; close it at the end."""
        is_bulk = self._bulk_answers < BULK_ANSWERS
        self._bulk_answers += is_bulk
        try:
            while piece := await self.keep(stream.read, BULK_PIECE_BYTES if is_bulk else PIECE_BYTES):
                yield piece
        finally:
            self._bulk_answers -= is_bulk
            stream.close()

    async def order(self, ask: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Check a submission in its thread."""
        return await _in(self._orders, ask, *args, **named)

    async def submit(self, submission: Submission, *, only_of: str | None) -> SubmissionResponse:
        """Submit jobs, for a user that may change only jobs of `only_of` (None: all)."""
        submitted: SubmissionResponse = await self.counter.ask_through(
            self._orders, Submit(asked=submission, only_of=only_of)
        )
        self.submissions.submitted()
        return submitted

    async def reload(self, *, dry_run: bool, by: str = "") -> DoneView:
        """Reload cluster file and manifest; `by` is recorded, empty for the coordinator itself."""
        return await self.order(self._reload, dry_run, by)

    def note_token(self, id: str) -> None:
        """Record that a token was used: seldom, and without waiting for the record."""
        now_s = self.clock.monotonic_s()
        if now_s - self._tokens_noted.get(id, float("-inf")) >= TOKEN_EVERY_S:
            self._tokens_noted[id] = now_s
            self.counter.post(NoteTokens(ids=(id,)), lambda _answer: None)

    def machine_counts(self) -> dict[str, int]:
        """Return the number of machines by state. Blocks."""
        return dict(Counter(machine.state for machine in self.views.machines("")))

    def figures(self) -> bytes:
        """Return the metrics of this coordinator in Prometheus format. Blocks."""
        page, counter = MetricsPage(), self.counter
        page.by("stoker_jobs", "gauge", "Jobs by state.", "state", self.reader.counts())
        page.by("stoker_machines", "gauge", "Machines by state.", "state", self.machine_counts())
        page.by("stoker_asked_total", "counter", "Commands to the queue.", "command", counter.commands)
        page.by("stoker_refusals_total", "counter", "Refused commands, by code.", "code", counter.refused)
        page.one("stoker_grants_total", "counter", "Leases granted.", counter.grants)
        page.histogram("stoker_answer_seconds", "Time from a command to its durable answer.", counter.seconds)
        page.histogram("stoker_group_size", "Answers per commit.", counter.group_sizes)
        page.one("stoker_waiting_claims", "gauge", "Claims held open.", len(self.waiting))
        page.one("stoker_event_listeners", "gauge", "Open event streams.", self.feed.listeners)
        page.one("stoker_screens", "gauge", "Screens that listen to changes.", self.changes.listeners)
        page.one("stoker_file_followers", "gauge", "Requests that wait for a file to grow.", len(self.followers))
        for name, help, values in gauges_of(self.keeping.telemetry.all_latest()):
            page.labelled(name, help, values)
        page.one("stoker_uptime_seconds", "gauge", "Time since the start.", self.clock.wall_s() - self.about.started_s)
        return page.to_bytes()

    def close(self) -> None:
        """Answer all open requests; none is held open from now on."""
        self.execs.close()
        self.waiting.close()
        self.feed.close()
        self.changes.close()
        self.followers.close()
        self.submissions.submitted()

    def end(self) -> None:
        """Shut down the thread pools; call after the last request."""
        for threads in (self._reads, self._forecasts, self._long, self._files, self._orders, self._past):
            threads.shutdown(wait=True, cancel_futures=True)

    async def claim(self, claim: Claim) -> ClaimResponse:
        """Send a claim to the queue; the response includes exec sessions that the worker has to start."""
        response: ClaimResponse = await self.counter.ask(claim)
        return self.with_execs(claim.worker, response)

    def with_execs(self, worker: str, answer: A) -> A:
        """Return an answer to a worker with the exec sessions that it has to start."""
        return self.execs.with_calls(worker, answer) if self.execs.sessions else answer

    def _call_machines(self, machines: Sequence[str]) -> None:
        """Receive machines that should send a claim again, in the writer's thread."""
        self._loop.call_soon_threadsafe(self.waiting.call, machines)

    def _on_change(self, newest: int, is_reread: bool) -> None:  # noqa: FBT001 - as the queue calls it
        self.feed.note(newest)
        self.changes.note()
        if is_reread:
            self.waiting.stir()


def _in(threads: ThreadPoolExecutor, ask: Callable[..., T], *args: Any, **named: Any) -> Awaitable[T]:
    return asyncio.get_running_loop().run_in_executor(threads, lambda: ask(*args, **named))
