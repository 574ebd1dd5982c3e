"""Requests to the coordinator, each kind in a thread of its own: hello, claims, heartbeats. None waits for another.

A claim without a response is sent again with the same request id, and lease times count from before it was first
sent: a lost response strands no job, and no lease is held longer than granted.
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
"""Responses about the worker itself, not about an attempt: version skew, no permission, duplicate name."""


class SerialThread:
    """A thread that runs callables one after another."""

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


def as_internal_error(act: Callable[[], T]) -> T:
    """Call `act`; raise `InternalError` for an unexpected exception, which would otherwise end the calling thread."""
    try:
        return act()
    except StokerError:
        raise
    except Exception as problem:
        raise InternalError(f"{type(problem).__name__}: {problem}") from problem


@frozen
class PendingClaim:
    """One claim request."""

    most: int
    wait_s: float
    measured: Callable[[], WorkerMeasurements]
    stopping: Callable[[], tuple[str, ...]]
    looks_around: bool
    """True: after an empty response, query whether other workers still have jobs."""


class _ClaimLine:
    """Claims that are sent one after another: those for jobs, or those that only wait for instructions."""

    def __init__(self, name: str) -> None:
        self.thread = SerialThread(name)
        self.asking: ClaimConnection | None = None
        self.is_called_back = False
        self.open: tuple[str, float] | None = None
        """The claim without a response: its id, and when it was first sent."""

    def call_back(self) -> None:
        """Cut an open claim short: it is sent once more, without waiting."""
        self.is_called_back = True
        asking = self.asking
        if asking is not None:
            asking.cut()


class ClaimLoop:
    """Sends requests, and reports the responses."""

    def __init__(  # noqa: PLR0913 - what each question needs
        self,
        lines: WorkerConnections,
        *,
        hello: Callable[[], Hello],
        clock: Clock,
        report: Callable[[Happening], None],
        new_word: Callable[[], str],
        holds: Callable[[], MachineInventory | None] = lambda: None,
        stops_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Create it; `new_word` returns a new request id, `holds` the inventory of this machine.

        `stops_s` returns when the worker stops, on the boot-time clock.
        """
        self._lines = lines
        self._hello = hello
        self._clock = clock
        self._report = report
        self._new_word = new_word
        self._holds = holds
        self._stops_s = stops_s
        self._sent_holdings: MachineInventory | None = None
        self._chance = random.SystemRandom().random
        self._greeting = SerialThread("stoker-hello")
        self._claims = _ClaimLine("stoker-claims")
        self._listening = _ClaimLine("stoker-listening")
        self._beats = SerialThread("stoker-heartbeat")
        self._is_greeting = False
        self._is_closed = threading.Event()

    def greet(self) -> None:
        """Send hello until the coordinator responds."""
        if not self._is_greeting:
            self._is_greeting = True
            self._greeting.put(self._greet)

    def claim(self, pending: PendingClaim) -> None:
        """Request jobs, or wait for instructions; one of each at a time."""
        line = self._claims if pending.most else self._listening
        line.is_called_back = False
        line.thread.put(lambda: self._claim(line, pending))

    def call_back(self) -> None:
        """Cut an open claim for jobs short: it is sent once more, without waiting."""
        self._claims.call_back()

    def renew(
        self, reports: Callable[[float], tuple[LeaseReport, ...]], measured: Callable[[], WorkerMeasurements]
    ) -> None:
        """Send a heartbeat. Its content is computed when it is sent."""
        self._beats.put(lambda: self._renew(reports, measured))

    def say_goodbye(self, measured: Callable[[], WorkerMeasurements], *, within_s: float) -> None:
        """Report to the coordinator that this worker stops. Gives up after `within_s`; its leases then expire."""

        def say() -> None:
            hello = self._hello()
            with suppress(StokerError):
                as_internal_error(
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
        """Stop sending requests."""
        self._is_closed.set()
        lines = (self._claims, self._listening)
        for line in lines:
            line.call_back()
        for lane in (self._greeting, self._beats, *(line.thread for line in lines)):
            lane.close()

    def _greet(self) -> None:
        pauses = TransferBackoff()
        is_reported = False
        while not self._is_closed.is_set():
            hello = self._hello()
            try:
                welcome = as_internal_error(partial(self._say_hello, hello))
            except StokerError as error:
                if not _is_passing(error):
                    self._report(WorkerRejected(now_s=self._clock.boottime_s(), error=error))
                    break
                if not is_reported:
                    is_reported = True
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
        self._sent_holdings = holdings
        return welcome

    def _ends_in_s(self) -> float | None:
        """Return the seconds until this worker stops; None: it has no end time."""
        stops_s = self._stops_s()
        return None if stops_s is None else max(0.0, stops_s - self._clock.boottime_s())

    def _held(self) -> MachineInventory | None:
        """Return this machine's inventory, or the last one sent: an unreadable disk must not stop heartbeats."""
        try:
            return self._holds()
        except (StokerError, OSError):
            return self._sent_holdings

    def _claim(self, line: _ClaimLine, pending: PendingClaim) -> None:
        if line.open is None:
            line.open = (self._new_word(), self._clock.boottime_s())
        request_id, asked_s = line.open
        hello = self._hello()

        def claim() -> Claim:
            return Claim(
                request_id=request_id,
                worker=hello.worker,
                incarnation=hello.incarnation,
                most=pending.most,
                wait_s=0.0 if line.is_called_back else pending.wait_s,
                measured=pending.measured(),
                stopping=pending.stopping(),
                ends_in_s=self._ends_in_s(),
            )

        try:
            answer = as_internal_error(lambda: self._ask(line, claim))
            others_work = pending.looks_around and not answer.grants and as_internal_error(self._others_work)
        except StokerError as error:
            self._refused(error, was_claim=True, was_listening=not pending.most)
            return
        line.open = None
        now_s = self._clock.boottime_s()
        answered = ClaimAnswered(
            now_s=now_s, asked_s=asked_s, answer=answer, others_work=others_work, was_listening=not pending.most
        )
        self._report(answered)

    def _ask(self, line: _ClaimLine, claim: Callable[[], Claim]) -> ClaimResponse:
        line.asking = asking = self._lines.ask()
        try:
            return asking.claim(claim())
        except StokerError:
            if not line.is_called_back or self._is_closed.is_set():
                raise
            return self._lines.words.claim(claim())
        finally:
            line.asking = None
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
                holdings=None if held == self._sent_holdings else held,
                ends_in_s=self._ends_in_s(),
            )
            answer = self._lines.words.renew(renewal)
            self._sent_holdings = held
            if answer.wants_holdings:
                self._sent_holdings = None
                # A worker without an inventory, or whose inventory was not accepted, sends again at the usual interval.
                can_tell = held is not None and renewal.holdings is None
                answer = answer.model_copy(update={"wants_holdings": can_tell})
            tokens = tuple(one.token() for one in leases)
            return RenewalAnswered(now_s=self._clock.boottime_s(), asked_s=asked_s, tokens=tokens, answer=answer)

        try:
            answered = as_internal_error(renew)
        except StokerError as error:
            self._refused(error, was_claim=False)
            return
        self._report(answered)

    def _refused(self, error: StokerError, *, was_claim: bool, was_listening: bool = False) -> None:
        if self._is_closed.is_set():
            return
        if isinstance(error, _NEVER):
            self._report(WorkerRejected(now_s=self._clock.boottime_s(), error=error))
        else:
            self._unanswered(error, was_claim=was_claim, was_listening=was_listening)

    def _unanswered(self, error: StokerError, *, was_claim: bool, was_listening: bool = False) -> None:
        now_s, jitter = self._clock.boottime_s(), self._chance()
        happening = RequestUnanswered(
            now_s=now_s, error=error, was_claim=was_claim, jitter=jitter, was_listening=was_listening
        )
        self._report(happening)


def _is_passing(error: StokerError) -> bool:
    """Return True if a hello is worth repeating: a server that is no coordinator will not become one."""
    if isinstance(error, BadAnswer) or (isinstance(error, NoCoordinator) and error.data.get("is_lasting")):
        return False
    return is_later(error)
