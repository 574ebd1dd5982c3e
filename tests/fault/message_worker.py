"""A worker without processes: it decides as a real keeper does, and what it would do takes its time and happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stoker.coordinator.queue.commands import Write
from stoker.core.errors import BadInput, Conflict, Forbidden, Refused, StaleLease, StokerError, VersionSkew
from stoker.core.job import JobState
from stoker.core.leases import AttemptToken
from stoker.host.identity import mine
from stoker.protocol.lease_messages import (
    CancelConfirmed,
    Claim,
    Decline,
    Fail,
    Finish,
    Grant,
    LeaseReport,
    LeaseWrite,
    Release,
    Renewal,
    Start,
)
from stoker.worker.assignment import AttemptEnd
from stoker.worker.state_machine import decide
from stoker.worker.worker_state import (
    AttemptEnded,
    AttemptNotStarted,
    AttemptPhase,
    AttemptStarted,
    AttemptStopped,
    ClaimAnswered,
    ClaimJobs,
    ClockTick,
    ExitWorker,
    FinalReport,
    FinalReportAccepted,
    FinalReportKind,
    Forget,
    Happening,
    HelloAnswered,
    LeaseLost,
    Renew,
    RenewalAnswered,
    ReportStart,
    RequestUnanswered,
    SendHello,
    SendResult,
    StartAttempt,
    StartRefusal,
    StopAttempt,
    WithdrawClaim,
    WorkerPolicy,
    WorkerRejected,
    WorkerState,
)
from tests.contract.queue_words import hello_anew

if TYPE_CHECKING:
    from tests.fault.message_world import MessageWorld

COMPLETED = AttemptEnd(state=JobState.COMPLETED, seconds=2.0)
FAILED = AttemptEnd(state=JobState.FAILED, error={"error": "work_failed", "message": "exit 1"}, exit_code=1)
STOPPED = AttemptEnd(state=JobState.CANCELLED, error={"error": "terminated"}, exit_code=143)
NEVER = (VersionSkew, Forbidden, Conflict, StaleLease)
SIZE_BYTES = 10
DECLINED = 0.03
FAILS = 0.05
MEAN_S = 60.0
"""How long a job takes; many outlast a lease."""
AGAIN_S = 1.0


class Courier:
    """One attempt: what is executed, and what is still to be said of it, one word after the other."""

    def __init__(self, worker: MessageWorker, grant: Grant) -> None:
        self.worker = worker
        self.grant = grant
        self.token: AttemptToken = grant.token()
        self.stood_still = False
        self.is_over = False
        self._orders: list[tuple[LeaseWrite, Callable[[], None] | None]] = []
        self._is_speaking = False

    def say(self, said: LeaseWrite, heard: Callable[[], None] | None = None) -> None:
        if heard is not None:
            # What was to be sent before is no longer wanted.
            self._orders = [order for order in self._orders if order[1] is None]
        self._orders.append((said, heard))
        if not self._is_speaking:
            self._speak()

    def _speak(self) -> None:
        if self.is_over or not self._orders:
            self._is_speaking = False
            return
        self._is_speaking = True
        worker = self.worker
        if not worker.may_speak(self.token):
            worker.later(AGAIN_S, self._speak)
            return
        order = self._orders[0]

        def then(given: Any) -> None:
            if self.is_over:
                return
            if isinstance(given, (Refused, BadInput)):
                self._orders.clear()
                self._is_speaking = False
                worker.take(LeaseLost(now_s=worker.now_s, token=self.token, message=str(given)))
            elif isinstance(given, StokerError):
                worker.later(AGAIN_S, self._speak)
            else:
                self._orders = [one for one in self._orders if one is not order]
                if order[1] is not None:
                    order[1]()
                self._speak()

        worker.world.call(worker, Write(job=self.token.job, said=order[0]), worker.awake(then))


class MessageWorker:
    """One worker, from its start to its death, and again."""

    def __init__(self, world: MessageWorld, name: str) -> None:
        self.world, self.name = world, name
        self.is_alive = self.is_paused = False
        self._life = 0
        self._backlog: list[Callable[[], None]] = []
        self._offset_s = world.chance.uniform(0, 1e6)
        """Its clock has nothing to do with the coordinator's."""

    @property
    def now_s(self) -> float:
        return self.world.now_s + self._offset_s

    def start(self) -> None:
        if self.is_alive:
            return
        self.is_alive, self._life = True, self._life + 1
        self.is_paused, self._backlog = False, []
        self.keeping = WorkerState(wishes=WorkerPolicy(slots=2))
        self.couriers: dict[AttemptToken, Courier] = {}
        # Of the claim for jobs, and of that which only listens.
        self._open: dict[bool, tuple[str, float]] = {}
        self._asked: dict[bool, int] = {}
        self._ticks_at_s = float("inf")
        said = hello_anew(self.name)
        self._hello = said.model_copy(update={"incarnation": f"{self.name}-start-{self._life:04}", "slots": 2})
        self._greet()

    def die(self) -> None:
        """Kill -9: it and all it runs are gone."""
        if self.is_alive:
            self.is_alive = False
            for courier in self.couriers.values():
                courier.is_over = True
                self.world.ends(courier)

    def pause(self) -> None:
        self.is_paused = self.is_alive

    def wake(self) -> None:
        if not self.is_paused:
            return
        self.is_paused, backlog = False, self._backlog
        self._backlog = []
        for act in backlog:
            act()

    def may_speak(self, token: AttemptToken) -> bool:
        lease = self.keeping.leases.get(token)
        return lease is not None and (lease.is_harmless or not (lease.is_over or self.now_s >= lease.ends_s))

    def later(self, after_s: float, act: Callable[[], None]) -> None:
        """Do something after a while, if this life lasts so long, and once it is awake."""
        self.world.later(after_s, self.awake(lambda _: act(), None))

    def awake(self, act: Callable[[Any], None], *given: Any) -> Callable[..., None]:
        life = self._life

        def do(*more: Any) -> None:
            if not self.is_alive or life != self._life:
                return
            if self.is_paused:
                for courier in self.couriers.values():
                    courier.stood_still = True
                self._backlog.append(lambda: do(*more))
                return
            act(*(given or more))

        return do

    def take(self, happening: Happening) -> None:
        """Decide, remember, then do."""
        self.keeping, instructions = decide(self.keeping, happening)
        for instruction in instructions:
            self._perform(instruction)
            if not self.is_alive:
                return
        self._tick_when_due()

    def _tick_when_due(self) -> None:
        keeping = self.keeping
        due = [lease.ends_s for lease in keeping.leases.values() if not lease.is_over and not lease.is_harmless]
        if keeping.is_known and not keeping.is_renewing:
            due.append(keeping.renew_at_s)
        if keeping.is_known and keeping.asking is None:
            due.append(keeping.ask_at_s)
        at_s = max(min(due, default=float("inf")), self.now_s + 0.05)
        if at_s < self._ticks_at_s:
            self._ticks_at_s = at_s
            self.later(at_s - self.now_s, self._tick)

    def _tick(self) -> None:
        self._ticks_at_s = float("inf")
        self.take(ClockTick(now_s=self.now_s))

    def _perform(self, instruction: Any) -> None:
        match instruction:
            case SendHello() | ClaimJobs() | WithdrawClaim() | Renew():
                self._ask(instruction)
            case StartAttempt(token=token):
                self._begin(token)
            case ReportStart(token=token):
                self.couriers[token].say(Start(**_fence(token)))
            case StopAttempt(token=token):
                self._stop(token)
            case SendResult(token=token, last=last, end=end):
                self._send(token, last, end)
            case Forget(token=token):
                self._forget(token)
            case ExitWorker():
                self.die()
                self.world.seen.done["exit"] += 1
                self.world.later(self.world.chance.uniform(1, 30), self.start)

    def _ask(self, instruction: SendHello | ClaimJobs | WithdrawClaim | Renew) -> None:
        match instruction:
            case SendHello():
                self._greet()
            case ClaimJobs(most=most):
                self._claim(most)
            case WithdrawClaim():
                # Its connection is cut, and it is asked once more, without waiting.
                assert self.keeping.asking
                self._claim(self.keeping.asking, wait_s=0.0)
            case Renew():
                self._renew()

    def _greet(self) -> None:
        def then(given: Any) -> None:
            if isinstance(given, NEVER):
                self.take(WorkerRejected(now_s=self.now_s, error=given))
            elif isinstance(given, StokerError):
                self.later(AGAIN_S, self._greet)
            else:
                self.take(HelloAnswered(now_s=self.now_s, welcome=given))

        self.world.call(self, self._hello, self.awake(then))

    def _claim(self, most: int, wait_s: float = 20.0) -> None:
        listens = not most
        if listens not in self._open:
            self._open[listens] = (f"request-{self.name}-{self.world.new_number()}", self.now_s)
        request_id, asked_s = self._open[listens]
        self._asked[listens] = asked = self.world.new_number()

        def then(given: Any) -> None:
            if asked != self._asked[listens]:
                # It was called back.
                return
            if isinstance(given, StokerError):
                self._refused(given, was_claim=True, was_listening=listens)
            else:
                del self._open[listens]
                happening = ClaimAnswered(now_s=self.now_s, asked_s=asked_s, answer=given, was_listening=listens)
                self.take(happening)

        claim = Claim(
            request_id=request_id,
            worker=self.name,
            incarnation=self._hello.incarnation,
            most=most,
            wait_s=min(wait_s, self.keeping.lease_s / 3),
            stopping=tuple(lease.grant.job for lease in self.keeping.leases.values() if lease.last is not None),
        )
        self.world.call(self, claim, self.awake(then))

    def _renew(self) -> None:
        asked_s = self.now_s
        held = [lease for lease in self.keeping.leases.values() if asked_s < lease.ends_s or lease.keeps_on]
        tokens = tuple(lease.token for lease in held)
        reports = tuple(LeaseReport(job=token.job, **_fence(token)) for token in tokens)

        def then(given: Any) -> None:
            if isinstance(given, StokerError):
                self._refused(given, was_claim=False)
            else:
                # Like a real one that can't tell what lies on its disk: asked for it, it does not answer at once.
                answer = given.model_copy(update={"wants_holdings": False})
                self.take(RenewalAnswered(now_s=self.now_s, asked_s=asked_s, tokens=tokens, answer=answer))

        renewal = Renewal(worker=self.name, incarnation=self._hello.incarnation, leases=reports)
        self.world.call(self, renewal, self.awake(then))

    def _refused(self, error: StokerError, *, was_claim: bool, was_listening: bool = False) -> None:
        if isinstance(error, NEVER):
            self.take(WorkerRejected(now_s=self.now_s, error=error))
        else:
            jitter = self.world.chance.random()
            happening = RequestUnanswered(
                now_s=self.now_s, error=error, was_claim=was_claim, jitter=jitter, was_listening=was_listening
            )
            self.take(happening)

    def _courier(self, token: AttemptToken) -> Courier:
        if token not in self.couriers:
            self.couriers[token] = Courier(self, self.keeping.leases[token].grant)
        return self.couriers[token]

    def _begin(self, token: AttemptToken) -> None:
        courier, chance = self._courier(token), self.world.chance

        def begin() -> None:
            lease = self.keeping.leases.get(token)
            if lease is None or lease.phase is not AttemptPhase.STARTING:
                return
            if chance.random() < DECLINED:
                self.take(
                    AttemptNotStarted(
                        now_s=self.now_s, token=token, refusal=StartRefusal(reason="busy", message="no room")
                    )
                )
                return
            self.world.begins(courier)
            self.take(AttemptStarted(now_s=self.now_s, token=token, child=mine(), run="run"))
            self.later(chance.expovariate(1 / MEAN_S), end)

        def end() -> None:
            lease = self.keeping.leases.get(token)
            if lease is not None and lease.phase is AttemptPhase.RUNNING:
                self.world.ends(courier)
                self.take(
                    AttemptEnded(now_s=self.now_s, token=token, end=FAILED if chance.random() < FAILS else COMPLETED)
                )

        self.later(chance.uniform(0.05, 2.0), begin)

    def _stop(self, token: AttemptToken) -> None:
        courier = self._courier(token)

        def stopped() -> None:
            self.world.ends(courier)
            self.take(AttemptStopped(now_s=self.now_s, token=token, end=STOPPED))

        self.later(self.world.chance.uniform(0.1, 9.0), stopped)

    def _send(self, token: AttemptToken, last: FinalReport, end: AttemptEnd | None) -> None:
        fence = _fence(token)
        said: LeaseWrite
        if last.word is FinalReportKind.FINISH:
            sha256 = f"{token.job[:48]}{token.epoch:016x}"
            # Bytes first; that they arrive is not what is looked at here.
            self.world.fleet.objects[sha256] = SIZE_BYTES
            said = Finish(**fence, tree=sha256[::-1], archive_sha256=sha256, size_bytes=SIZE_BYTES)
        elif last.word is FinalReportKind.FAIL:
            said = Fail(**fence, cause="user" if end is None or not end.cause else str(end.cause), message=last.why)
        elif last.word is FinalReportKind.DECLINE:
            said = Decline(**fence, reason=last.reason or "declined", message=last.why)
        elif last.word is FinalReportKind.CANCELLED:
            said = CancelConfirmed(**fence)
        else:
            said = Release(**fence, why=last.why)
        self._courier(token).say(said, lambda: self.take(FinalReportAccepted(now_s=self.now_s, token=token)))

    def _forget(self, token: AttemptToken) -> None:
        courier = self.couriers.pop(token, None)
        if courier is not None:
            courier.is_over = True
            self.world.ends(courier)


def _fence(token: AttemptToken) -> dict[str, Any]:
    return {"attempt": token.attempt, "epoch": token.epoch, "generation": token.generation}
