"""Questions to the coordinator, each in a lane of its own: hello, claims, heartbeats. No lane waits for another.

A claim that nobody answered is asked again under the same id, and its answer's times count from before it was first
sent: a lost answer strands no job, and no lease is taken for longer than it is.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

from stoker.core.clock import Clock
from stoker.core.errors import (
    BadAnswer,
    Conflict,
    Forbidden,
    InternalError,
    NoCoordinator,
    StaleLease,
    StokerError,
    VersionSkew,
)
from stoker.core.frozen import frozen
from stoker.protocol.client import FleetClient
from stoker.protocol.lease_messages import (
    Claim,
    ClaimResponse,
    Hello,
    LeaseReport,
    MachineInventory,
    Renewal,
    Welcome,
    WorkerMeasurements,
)
from stoker.transfer.trees.tree_sources import TransferBackoff, is_later
from stoker.worker.worker_state import (
    ClaimAnswered,
    Happening,
    HelloAnswered,
    RenewalAnswered,
    RequestUnanswered,
    WorkerRejected,
)

# The connections of a worker to its coordinator: several, so that no request waits for another.


class ClaimConnection(Protocol):
    """A connection for one long poll; `cut` ends it."""

    def claim(self, claim: Claim) -> ClaimResponse: ...
    def cut(self) -> None: ...


@frozen
class WorkerConnections:
    """The connections of one worker."""

    url: str
    words: FleetClient
    """For short requests."""
    bytes: FleetClient
    """For files, trees and checkpoints of attempts."""
    ask: Callable[[], ClaimConnection]
    """Opens a connection for claims."""
    execs: FleetClient | None = None
    """For commands of operators; None: this worker runs none."""


T = TypeVar("T")

_NEVER = (VersionSkew, Forbidden, Conflict, StaleLease)
"""Answers to a worker as such, not to one of its attempts: another version, no right, another of its name."""


class SerialThread:
    """A thread that does one thing after another."""

    def __init__(self, name: str) -> None:
        self._acts: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, act: Callable[[], None]) -> None:
        self._acts.put(act)

    def close(self) -> None:
        self._acts.put(None)

    def _work(self) -> None:
        while (act := self._acts.get()) is not None:
            act()


def told_as_bug(act: Callable[[], T]) -> T:
    """Do something; what goes wrong by a bug of ours is raised as such: a lane that died would be silence for ever."""
    try:
        return act()
    except StokerError:
        raise
    except Exception as problem:
        raise InternalError(f"{type(problem).__name__}: {problem}") from problem


@frozen
class PendingClaim:
    """One question for work."""

    most: int
    wait_s: float
    measured: Callable[[], WorkerMeasurements]
    stopping: Callable[[], tuple[str, ...]]
    looks_around: bool
    """An empty answer is to say whether others still work."""


class ClaimLoop:
    """Asks, and reports what was answered."""

    def __init__(  # noqa: PLR0913 - what each question needs
        self,
        lines: WorkerConnections,
        *,
        hello: Callable[[], Hello],
        clock: Clock,
        report: Callable[[Happening], None],
        new_word: Callable[[], str],
        holds: Callable[[], MachineInventory | None] = lambda: None,
        ends_s: float | None = None,
    ) -> None:
        """Make it; `new_word` returns a new word for each claim, `holds` what the machine has.

        `ends_s` is when the worker ends, on the clock that also counts suspend.
        """
        self._lines = lines
        self._hello = hello
        self._clock = clock
        self._report = report
        self._new_word = new_word
        self._holds = holds
        self._ends_s = ends_s
        self._told: MachineInventory | None = None
        self._chance = random.SystemRandom().random
        self._greeting = SerialThread("stoker-hello")
        self._claims = SerialThread("stoker-claims")
        self._beats = SerialThread("stoker-heartbeat")
        self._is_greeting = False
        self._is_closed = threading.Event()
        self._asking: ClaimConnection | None = None
        self._is_called_back = False
        # The claim that was sent and not answered: its id, and when it was first sent.
        self._open: tuple[str, float] | None = None

    def greet(self) -> None:
        """Say hello until somebody answers."""
        if not self._is_greeting:
            self._is_greeting = True
            self._greeting.put(self._greet)

    def claim(self, asked: PendingClaim) -> None:
        """Ask for work, or listen for orders."""
        self._is_called_back = False
        self._claims.put(lambda: self._claim(asked))

    def call_back(self) -> None:
        """Cut an open question short: it is asked once more, without waiting."""
        self._is_called_back = True
        asking = self._asking
        if asking is not None:
            asking.cut()

    def renew(
        self, reports: Callable[[float], tuple[LeaseReport, ...]], measured: Callable[[], WorkerMeasurements]
    ) -> None:
        """Send a heartbeat. What it says is put together when it is sent, for the moment before that."""
        self._beats.put(lambda: self._renew(reports, measured))

    def say_goodbye(self, measured: Callable[[], WorkerMeasurements], *, within_s: float) -> None:
        """Tell the coordinator that this worker ends in order; who does not hear it in time finds out by itself."""

        def say() -> None:
            hello = self._hello()
            with suppress(StokerError):
                told_as_bug(
                    lambda: self._lines.words.renew(
                        Renewal(
                            worker=hello.worker, incarnation=hello.incarnation, measured=measured(), is_leaving=True
                        )
                    )
                )

        saying = threading.Thread(target=say, name="stoker-goodbye", daemon=True)
        saying.start()
        saying.join(within_s)

    def close(self) -> None:
        """Ask nothing more."""
        self._is_closed.set()
        self.call_back()
        for lane in (self._greeting, self._claims, self._beats):
            lane.close()

    def _greet(self) -> None:
        pauses = TransferBackoff()
        is_told = False
        while not self._is_closed.is_set():
            hello = self._hello()
            try:
                welcome = told_as_bug(partial(self._say_hello, hello))
            except StokerError as error:
                if not _is_passing(error):
                    self._report(WorkerRejected(now_s=self._clock.boottime_s(), error=error))
                    break
                if not is_told:
                    is_told = True
                    self._unanswered(error, was_claim=False)
                self._is_closed.wait(pauses.failed())
            else:
                self._report(HelloAnswered(now_s=self._clock.boottime_s(), welcome=welcome))
                if self._hello() is hello:
                    break
                # What the machine offers changed meanwhile.
                pauses = TransferBackoff()
        self._is_greeting = False

    def _say_hello(self, hello: Hello) -> Welcome:
        holdings = self._held()
        update = {"holdings": holdings, "ends_in_s": self._ends_in_s()}
        welcome = self._lines.words.hello(hello.model_copy(update=update))
        self._told = holdings
        return welcome

    def _ends_in_s(self) -> float | None:
        """Return in how long this worker ends; None: no end is known."""
        return None if self._ends_s is None else max(0.0, self._ends_s - self._clock.boottime_s())

    def _held(self) -> MachineInventory | None:
        """Return what the machine has; a disk that can't be read now must not silence a heartbeat."""
        try:
            return self._holds()
        except (StokerError, OSError):
            return self._told

    def _claim(self, asked: PendingClaim) -> None:
        if self._open is None:
            self._open = (self._new_word(), self._clock.boottime_s())
        request_id, asked_s = self._open
        hello = self._hello()

        def claim() -> Claim:
            return Claim(
                request_id=request_id,
                worker=hello.worker,
                incarnation=hello.incarnation,
                most=asked.most,
                wait_s=0.0 if self._is_called_back else asked.wait_s,
                measured=asked.measured(),
                stopping=asked.stopping(),
                ends_in_s=self._ends_in_s(),
            )

        try:
            answer = told_as_bug(lambda: self._ask(claim))
            others_work = asked.looks_around and not answer.grants and told_as_bug(self._others_work)
        except StokerError as error:
            self._refused(error, was_claim=True)
            return
        self._open = None
        now_s = self._clock.boottime_s()
        self._report(ClaimAnswered(now_s=now_s, asked_s=asked_s, answer=answer, others_work=others_work))

    def _ask(self, claim: Callable[[], Claim]) -> ClaimResponse:
        self._asking = asking = self._lines.ask()
        try:
            return asking.claim(claim())
        except StokerError:
            if not self._is_called_back or self._is_closed.is_set():
                raise
            return self._lines.words.claim(claim())
        finally:
            self._asking = None
            asking.cut()

    def _others_work(self) -> bool:
        jobs = self._lines.words.status().jobs
        return jobs.get("pending", 0) > 0 and jobs.get("claimed", 0) + jobs.get("running", 0) > 0

    def _renew(
        self, reports: Callable[[float], tuple[LeaseReport, ...]], measured: Callable[[], WorkerMeasurements]
    ) -> None:
        def renew() -> RenewalAnswered:
            hello, now = self._hello(), measured()
            asked_s = self._clock.boottime_s()
            leases = reports(asked_s)
            held = self._held()
            renewal = Renewal(
                worker=hello.worker,
                incarnation=hello.incarnation,
                leases=leases,
                measured=now,
                holdings=None if held == self._told else held,
                ends_in_s=self._ends_in_s(),
            )
            answer = self._lines.words.renew(renewal)
            self._told = held
            if answer.wants_holdings:
                self._told = None
                # Who has nothing to tell, or told it in vain, speaks again in its usual time.
                can_tell = held is not None and renewal.holdings is None
                answer = answer.model_copy(update={"wants_holdings": can_tell})
            tokens = tuple(one.token() for one in leases)
            return RenewalAnswered(now_s=self._clock.boottime_s(), asked_s=asked_s, tokens=tokens, answer=answer)

        try:
            answered = told_as_bug(renew)
        except StokerError as error:
            self._refused(error, was_claim=False)
            return
        self._report(answered)

    def _refused(self, error: StokerError, *, was_claim: bool) -> None:
        if self._is_closed.is_set():
            return
        if isinstance(error, _NEVER):
            self._report(WorkerRejected(now_s=self._clock.boottime_s(), error=error))
        else:
            self._unanswered(error, was_claim=was_claim)

    def _unanswered(self, error: StokerError, *, was_claim: bool) -> None:
        now_s = self._clock.boottime_s()
        self._report(RequestUnanswered(now_s=now_s, error=error, was_claim=was_claim, jitter=self._chance()))


def _is_passing(error: StokerError) -> bool:
    """Return whether a hello is worth repeating: what is no coordinator will not become one."""
    if isinstance(error, BadAnswer) or (isinstance(error, NoCoordinator) and error.data.get("is_lasting")):
        return False
    return is_later(error)
