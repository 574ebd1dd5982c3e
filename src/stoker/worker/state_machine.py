"""The worker's state machine: from a state and an event to the next state and instructions. Pure.

Rules, in order of precedence:

- Nothing is sent under a lease that expired by this machine's clock, counted from before the request that renewed it:
  its job is stopped and its result dropped. With `on_partition: keep` it continues; its result is sent if renewed.
- What the coordinator drops is stopped and forgotten; what it cancels is stopped, confirmed gone, then confirmed.
- Nothing is reported of an attempt that is being stopped until none of its processes runs.
- A worker that stops first releases everything, and claims nothing; at the second stop request it kills everything, and
  waits only a moment for the coordinator's response.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.core.errors import Drained, NotFound, RateLimited
from stoker.core.frozen import changed
from stoker.core.job import JobState
from stoker.core.leases import AttemptToken
from stoker.core.retry import pause_s
from stoker.core.text import format_duration
from stoker.protocol.lease_messages import ExecCall, Grant, LeaseInstruction, LeaseInstructionKind
from stoker.worker.assignment import AttemptEnd
from stoker.worker.worker_options import PAUSED
from stoker.worker.worker_state import (
    COORDINATOR,
    AttemptEnded,
    AttemptNotStarted,
    AttemptPhase,
    AttemptStarted,
    AttemptStopped,
    CheckpointSent,
    ClaimAnswered,
    ClaimJobs,
    ClockTick,
    DevicesChanged,
    ExitWorker,
    FinalReport,
    FinalReportAccepted,
    FinalReportKind,
    Forget,
    Happening,
    HeldLease,
    HelloAnswered,
    Instruction,
    LeaseLost,
    LogLine,
    MachineClosed,
    OpenExec,
    Renew,
    RenewalAnswered,
    ReportStart,
    RequestUnanswered,
    SendFinalReport,
    SendHello,
    SendResult,
    StartAttempt,
    StopAttempt,
    WithdrawClaim,
    WorkerRejected,
    WorkerShutdownMode,
    WorkerState,
    WorkerStopRequested,
)

HURRY_S = 2.0
"""How long what runs under a lease that is over may take to stop: less than the coordinator waits for before it gives
the job to another (`FleetTimes.grace_s`)."""
LAST_MOMENT_S = 1.0
"""How long a worker that stops at once waits for the coordinator's response."""
_RANK = {FinalReportKind.RELEASE: 0, FinalReportKind.CANCELLED: 1, FinalReportKind.NOTHING: 2}


class DecisionBuilder:
    """One decision in progress: the state changes, instructions are collected, at the end whatever is due is done."""

    def __init__(self, keeping: WorkerState, now_s: float) -> None:
        self.keeping = keeping
        self.now_s = now_s
        self.instructions: list[Instruction] = []

    def do(self, *instructions: Instruction) -> None:
        self.instructions += instructions

    def tell(self, kind: str, lease: HeldLease | None = None, **fields: Any) -> None:
        about: dict[str, Any] = {}
        if lease is not None:
            grant = lease.grant
            about = {"job": grant.spec.shown, "id": grant.job, "attempt": grant.attempt, "epoch": grant.epoch}
        self.do(LogLine(kind=kind, fields={**about, **fields}))

    def now_knows(self, **fields: Any) -> None:
        self.keeping = changed(self.keeping, **fields)

    def lease(self, token: AttemptToken) -> HeldLease | None:
        return self.keeping.leases.get(token)

    def put(self, lease: HeldLease) -> None:
        self.now_knows(leases={**self.keeping.leases, lease.token: lease})

    def remove(self, lease: HeldLease) -> None:
        self.now_knows(leases={token: one for token, one in self.keeping.leases.items() if token != lease.token})
        self.do(Forget(token=lease.token))

    def drop(self, lease: HeldLease, why: str) -> None:
        """Forget a lease without a final report."""
        self.tell("dropped", lease, why=why)
        self.remove(lease)

    def stop(self, lease: HeldLease, last: FinalReport, *, grace_s: float | None = None) -> None:
        """Stop an attempt, with this final report, or an earlier one of a higher rank."""
        if lease.last is not None and _RANK.get(lease.last.word, 0) > _RANK.get(last.word, 0):
            last = lease.last
        if lease.phase is AttemptPhase.SENDING:
            self._stop_sending(lease, last)
            return
        is_new = lease.phase is not AttemptPhase.STOPPING
        self.put(changed(lease, phase=AttemptPhase.STOPPING, last=last))
        if is_new or grace_s is not None:
            wanted_s = self.keeping.wishes.stop_grace_s if grace_s is None else grace_s
            self.do(StopAttempt(token=lease.token, grace_s=wanted_s))
        if is_new:
            self.tell("stopping", lease, why=last.why)

    def _stop_sending(self, lease: HeldLease, last: FinalReport) -> None:
        """Drop a lease in phase SENDING, or replace its final report by a cancellation."""
        if last.word is FinalReportKind.NOTHING:
            self.drop(lease, last.why)
        elif last.word is FinalReportKind.CANCELLED and (
            lease.last is None or lease.last.word is not FinalReportKind.CANCELLED
        ):
            self.send(lease, last, lease.end)

    def send(self, lease: HeldLease, last: FinalReport, end: AttemptEnd | None) -> None:
        """Send the final report; nothing, if the lease is no longer ours."""
        if last.word is FinalReportKind.NOTHING:
            self.drop(lease, last.why)
            return
        if self.keeping.leaving is not WorkerShutdownMode.NOW:
            self.put(changed(lease, phase=AttemptPhase.SENDING, last=last, end=end))
            self.do(SendResult(token=lease.token, last=last, end=end))
            return
        # Without a result: one that was not sent in time is computed again.
        if last.word is FinalReportKind.FINISH:
            last = FinalReport(word=FinalReportKind.RELEASE, why="the worker was stopped before its result was sent")
        until_s = self.now_s + LAST_MOMENT_S
        self.put(changed(lease, phase=AttemptPhase.SENDING, last=last, end=end, say_until_s=until_s))
        self.do(SendFinalReport(token=lease.token, last=last, end=end))

    def look_around(self) -> None:
        """Do what is due: expire leases, renew, claim, exit."""
        self.end_leases()
        self._end_waiting()
        keeping = self.keeping
        if keeping.leaving is not WorkerShutdownMode.NO:
            if not keeping.leases and (not keeping.asking or keeping.leaving is WorkerShutdownMode.NOW):
                self.do(ExitWorker(code=keeping.exit_code))
            else:
                self._renew_if_due()
            return
        self._renew_if_due()
        is_free = keeping.is_known and not keeping.leases and not keeping.asking
        is_done = keeping.wishes.is_once and keeping.taken
        if is_free and (is_done or (keeping.wishes.until_idle and keeping.closed)):
            # On a closed machine it would wait until that opens: it is to be started again then.
            code = 0 if is_done else Drained.exit_code
            self.leave(code, softly=True)
            self.do(ExitWorker(code=code))
        elif keeping.is_known and keeping.asking is None and self.now_s >= keeping.ask_at_s:
            if keeping.wanted:
                self.now_knows(asking=keeping.wanted)
                self.do(ClaimJobs(most=keeping.wanted))
            elif keeping.leases and not keeping.is_listening:
                # It stays open when there is room again: the next claim goes beside it, at once.
                self.now_knows(is_listening=True)
                self.do(ClaimJobs(most=0))

    def call_back(self) -> None:
        """Cut an open claim short: jobs that it was granted must not be lost."""
        if self.keeping.asking is not None and not self.keeping.is_called_back:
            self.now_knows(is_called_back=True)
            self.do(WithdrawClaim())

    def _renew_if_due(self) -> None:
        keeping = self.keeping
        is_time = keeping.has_news or self.now_s >= keeping.renew_at_s
        is_due = keeping.is_known and not keeping.is_renewing and is_time
        if is_due and keeping.leaving is not WorkerShutdownMode.NOW:
            self.now_knows(is_renewing=True, has_news=False)
            self.do(Renew())

    def end_leases(self) -> None:
        """Detect which leases have expired by this machine's clock."""
        for held in list(self.keeping.leases.values()):
            if held.is_over:
                self._hurry(held)
            if held.is_over or self.now_s < held.ends_s or held.is_harmless:
                continue
            lease = changed(held, is_over=True)
            self.put(lease)
            if lease.keeps_on and (lease.last is None or lease.last.word is FinalReportKind.FINISH):
                self.tell("lease_over", lease, why="continues; its result is sent when the coordinator is back")
            else:
                self.stop(lease, FinalReport(word=FinalReportKind.NOTHING, why="its lease was not renewed in time"))

    def _hurry(self, lease: HeldLease) -> None:
        """Kill what did not stop after its lease ended: another worker may get its job in a moment."""
        is_due = lease.phase is AttemptPhase.STOPPING and self.now_s >= lease.ends_s + HURRY_S
        if is_due and not lease.is_hurried:
            self.put(changed(lease, is_hurried=True))
            self.do(StopAttempt(token=lease.token, grace_s=0.0))

    def _end_waiting(self) -> None:
        """Drop final reports that were not accepted in time."""
        for lease in list(self.keeping.leases.values()):
            if lease.say_until_s is not None and self.now_s >= lease.say_until_s:
                self.drop(lease, "final report not accepted in time")

    def leave(self, code: int, *, softly: bool) -> None:
        self.now_knows(leaving=WorkerShutdownMode.SOFTLY if softly else WorkerShutdownMode.NOW, exit_code=code)


_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 30.0
_BY_ORDER = {
    LeaseInstructionKind.CANCEL: FinalReportKind.CANCELLED,
    LeaseInstructionKind.DROP: FinalReportKind.NOTHING,
    LeaseInstructionKind.RELEASE: FinalReportKind.RELEASE,
}


def decide(keeping: WorkerState, happening: Happening) -> tuple[WorkerState, list[Instruction]]:
    """Return the next state after an event, and instructions in order."""
    turn = DecisionBuilder(keeping, happening.now_s)
    if not isinstance(happening, RenewalAnswered):
        # First of all: a worker suspended past its lease must notice that before anything else. Only a response may
        # come late and still renew, if it was requested in time.
        turn.end_leases()
    if not isinstance(happening, ClockTick):
        _TAKERS[type(happening)](turn, happening)
    if turn.keeping.leaving is WorkerShutdownMode.NO:
        _leave_in_time(turn)
    turn.look_around()
    return turn.keeping, turn.instructions


def _leave_in_time(turn: DecisionBuilder) -> None:
    """Leave at the end of the worker's time, and after a long time without a lease, also if no coordinator answers."""
    keeping, wishes = turn.keeping, turn.keeping.wishes
    if turn.now_s >= (keeping.stops_s or float("inf")):
        _leave_softly(turn, 0, "time limit reached")
        return
    if wishes.idle_s is None:
        return
    since_s = turn.now_s if keeping.idle_since_s is None else keeping.idle_since_s
    turn.now_knows(idle_since_s=None if keeping.leases else since_s)
    is_idle = not keeping.leases and turn.now_s - since_s >= wishes.idle_s
    if is_idle and turn.now_s >= keeping.stays_until_s:
        _leave_softly(turn, 0, f"idle for {format_duration(wishes.idle_s)}")


def _take_greeting(turn: DecisionBuilder, greeted: HelloAnswered) -> None:
    welcome = greeted.welcome
    _hear_closed(turn, welcome.closed)
    wishes = turn.keeping.wishes
    if welcome.slots:
        wishes = changed(wishes, slots=welcome.slots, beside=0)
    _hear_voice(turn)
    if not turn.keeping.is_known:
        # Nothing could be granted until now.
        turn.now_knows(idle_since_s=None)
    turn.now_knows(
        wishes=wishes,
        is_known=True,
        heartbeat_s=welcome.heartbeat_s,
        lease_s=welcome.lease_s,
        renew_at_s=turn.now_s,
        ask_at_s=turn.now_s,
    )
    turn.tell("joined", worker=welcome.worker, slots=wishes.slots, lease_s=welcome.lease_s, drift=list(welcome.drift))


def _take_grants(turn: DecisionBuilder, given: ClaimAnswered) -> None:
    _hear_voice(turn)
    had_asked, was_called_back = not given.was_listening, turn.keeping.is_called_back and not given.was_listening
    turn.now_knows(**_closed_claim(was_listening=given.was_listening))
    _hear_closed(turn, given.answer.closed)
    for grant in given.answer.grants:
        _take_grant(turn, given, grant)
    for order in given.answer.orders:
        for lease in list(turn.keeping.leases.values()):
            if (order.job, order.epoch) == (lease.token.job, lease.token.epoch):
                _obey(turn, lease, order)
    _hear_calls(turn, given.answer.execs)
    keeping = turn.keeping
    # A delayed job may become ready, and a running job may release another.
    is_more_expected = keeping.leases or keeping.closed or given.others_work or given.answer.next_s is not None
    if given.answer.grants:
        # The claim may have been open for long, and its times count from when it was sent.
        if turn.now_s - given.asked_s > keeping.heartbeat_s / 4:
            turn.now_knows(renew_at_s=min(keeping.renew_at_s, turn.now_s))
    elif had_asked and keeping.wishes.until_idle and not is_more_expected:
        turn.tell("idle", waiting=dict(given.answer.waiting))
        turn.leave(0, softly=True)
    elif not was_called_back:
        turn.now_knows(ask_at_s=turn.now_s + _FIRST_PAUSE_S)


def _closed_claim(*, was_listening: bool) -> dict[str, Any]:
    """Return what changes in a worker's state when one of its two claims is over."""
    return {"is_listening": False} if was_listening else {"asking": None, "is_called_back": False}


def _take_grant(turn: DecisionBuilder, given: ClaimAnswered, grant: Grant) -> None:
    keeping, token = turn.keeping, grant.token()
    if token in keeping.leases:
        return
    lease = HeldLease(grant=grant, phase=AttemptPhase.STARTING, ends_s=given.asked_s + grant.lease_s)
    turn.put(lease)
    turn.now_knows(taken=keeping.taken + 1)
    turn.tell("granted", lease)
    if why := _why_not(turn, lease):
        turn.send(lease, FinalReport(word=FinalReportKind.RELEASE, why=why), None)
    else:
        turn.do(StartAttempt(token=token))


def _why_not(turn: DecisionBuilder, lease: HeldLease) -> str:
    """Return why a grant is released unstarted; empty if it is not."""
    if turn.keeping.leaving is not WorkerShutdownMode.NO:
        return "the worker is leaving"
    if turn.now_s >= lease.ends_s:
        return "the grant came too late"
    return next(iter(turn.keeping.closed.values()), "")


def _take_answer(turn: DecisionBuilder, answered: RenewalAnswered) -> None:
    _hear_voice(turn)
    answer = answered.answer
    turn.now_knows(
        is_renewing=False,
        heartbeat_s=answer.heartbeat_s,
        lease_s=answer.lease_s,
        renew_at_s=answered.now_s if answer.wants_holdings else answered.asked_s + answer.heartbeat_s,
        # Without another response it leaves: nothing shows that the coordinator is still there.
        stays_until_s=answered.now_s + answer.lease_s if answer.stays else 0.0,
    )
    _hear_closed(turn, answer.closed)
    orders = {(order.job, order.epoch): order for order in answer.orders}
    for token in answered.tokens:
        lease = turn.lease(token)
        if lease is None:
            continue
        order = orders.get((token.job, token.epoch))
        # A job that is being stopped because its lease expired does not come back.
        is_past = lease.is_over and not lease.keeps_on
        if not is_past and (order is None or order.do is not LeaseInstructionKind.DROP):
            lease = changed(lease, is_over=False, ends_s=max(lease.ends_s, answered.asked_s + answer.lease_s))
            turn.put(lease)
        if order is not None:
            _obey(turn, lease, order)
    _hear_calls(turn, answer.execs)


def _hear_calls(turn: DecisionBuilder, calls: tuple[ExecCall, ...]) -> None:
    """Run operators' commands beside attempts that are ours now, and no others."""
    for call in calls:
        if turn.lease(call.token()) is not None:
            turn.do(OpenExec(call=call))


def _obey(turn: DecisionBuilder, lease: HeldLease, order: LeaseInstruction) -> None:
    is_sending = lease.phase is AttemptPhase.SENDING
    if is_sending and (
        order.do is LeaseInstructionKind.RELEASE or (order.do is LeaseInstructionKind.DROP and not lease.is_over)
    ):
        # Its final report may have been accepted, and only the response lost: it is sent again.
        return
    turn.stop(lease, FinalReport(word=_BY_ORDER[order.do], why=order.why or str(order.do)))


def _take_silence(turn: DecisionBuilder, unanswered: RequestUnanswered) -> None:
    """Continue, and ask again with backoff and jitter."""
    if isinstance(unanswered.error, NotFound):
        # It was restarted, or an operator removed this machine.
        turn.now_knows(is_known=False)
        turn.do(SendHello())
    keeping = turn.keeping
    # A lasting error is logged even if the worker is already known to be offline.
    is_lasting = bool(unanswered.error.data.get("is_lasting"))
    if not keeping.is_away or (is_lasting and not keeping.is_barred):
        about = {"hint": unanswered.error.hint} if is_lasting else {}
        turn.tell("away", None, why=str(unanswered.error), held=len(keeping.leases), **about)
    turn.now_knows(is_barred=keeping.is_barred or is_lasting)
    first_s = _LONGEST_PAUSE_S if isinstance(unanswered.error, RateLimited) else _FIRST_PAUSE_S
    # With leases to lose, it asks at least three times before the first of them ends.
    longest_s = min(_LONGEST_PAUSE_S, keeping.lease_s / 4)
    again_s = turn.now_s + pause_s(keeping.misses, unanswered.jitter, first_s=first_s, longest_s=longest_s)
    if unanswered.was_claim:
        # The coordinator may have restarted, and lost what only a heartbeat reports: send that now.
        renew_at_s = keeping.renew_at_s if keeping.is_away else min(keeping.renew_at_s, again_s)
        closed = _closed_claim(was_listening=unanswered.was_listening)
        turn.now_knows(**closed, ask_at_s=again_s, renew_at_s=renew_at_s, misses=keeping.misses + 1)
    else:
        turn.now_knows(is_renewing=False, renew_at_s=again_s, misses=keeping.misses + 1)


def _take_fatal(turn: DecisionBuilder, fatal: WorkerRejected) -> None:
    if turn.keeping.leaving is WorkerShutdownMode.NO:
        turn.tell("refused", why=str(fatal.error), hint=fatal.error.hint)
    turn.leave(fatal.error.exit_code, softly=False)
    turn.now_knows(asking=None, is_listening=False, is_renewing=False)
    report = FinalReport(word=FinalReportKind.NOTHING, why=str(fatal.error))
    for lease in list(turn.keeping.leases.values()):
        turn.stop(lease, report, grace_s=turn.keeping.wishes.stop_grace_s)


def _take_begin(turn: DecisionBuilder, began: AttemptStarted) -> None:
    turn.now_knows(has_news=turn.keeping.has_news or began.has_brought)
    lease = turn.lease(began.token)
    if lease is None:
        return
    lease = changed(lease, child=began.child, run=began.run)
    if lease.phase is not AttemptPhase.STARTING:
        # It was stopped while it was being started: the stop handles the child.
        turn.put(lease)
        return
    turn.put(changed(lease, phase=AttemptPhase.RUNNING))
    turn.tell("started", lease, run=began.run)
    turn.do(ReportStart(token=began.token))


def _take_refusal(turn: DecisionBuilder, refused: AttemptNotStarted) -> None:
    turn.now_knows(has_news=turn.keeping.has_news or refused.has_brought)
    lease = turn.lease(refused.token)
    if lease is None or lease.phase is not AttemptPhase.STARTING:
        return
    refusal = refused.refusal
    turn.tell("declined", lease, reason=refusal.reason, why=refusal.message)
    # A declined job would be offered again at once: let another worker have it first.
    turn.now_knows(ask_at_s=max(turn.keeping.ask_at_s, turn.now_s + 1.0))
    last = FinalReport(word=FinalReportKind.DECLINE, why=refusal.message, reason=refusal.reason, lasts=refusal.lasts)
    turn.send(lease, last, None)


def _take_checkpoint(turn: DecisionBuilder, sent: CheckpointSent) -> None:
    if (lease := turn.lease(sent.token)) is not None:
        turn.put(changed(lease, sent_in_s=sent.took_s))


def _take_end(turn: DecisionBuilder, ended: AttemptEnded) -> None:
    lease = turn.lease(ended.token)
    if lease is None or lease.phase not in (AttemptPhase.STARTING, AttemptPhase.RUNNING):
        return
    end = ended.end
    turn.tell("ended", lease, state=str(end.state), why=end.message, seconds=end.seconds)
    if end.is_completed:
        turn.send(lease, FinalReport(word=FinalReportKind.FINISH), end)
    elif lease.is_over:
        turn.send(lease, FinalReport(word=FinalReportKind.NOTHING, why="its lease was over"), end)
    else:
        turn.send(lease, FinalReport(word=FinalReportKind.FAIL, why=end.message), end)


def _take_stop(turn: DecisionBuilder, stopped: AttemptStopped) -> None:
    lease = turn.lease(stopped.token)
    if lease is None or lease.phase is not AttemptPhase.STOPPING:
        return
    last = lease.last or FinalReport(word=FinalReportKind.RELEASE)
    # A worker that stops at once does not check whether the attempt had ended by itself.
    is_asked = last.word is FinalReportKind.RELEASE and turn.keeping.leaving is not WorkerShutdownMode.NOW
    if is_asked and stopped.end.is_completed:
        # It had just ended by itself.
        last = FinalReport(word=FinalReportKind.FINISH)
    elif is_asked and stopped.end.state is JobState.FAILED and stopped.end.is_written:
        last = FinalReport(word=FinalReportKind.FAIL, why=stopped.end.message)
    turn.tell("stopped", lease, why=last.why, word=str(last.word))
    turn.send(lease, last, stopped.end)


def _take_settlement(turn: DecisionBuilder, settled: FinalReportAccepted) -> None:
    lease = turn.lease(settled.token)
    if lease is None:
        return
    last = lease.last or FinalReport(word=FinalReportKind.NOTHING)
    turn.tell("settled", lease, word=str(last.word), why=last.why)
    turn.remove(lease)
    if last.word is not FinalReportKind.DECLINE:
        # A slot is free, and the coordinator answers.
        turn.now_knows(ask_at_s=min(turn.keeping.ask_at_s, turn.now_s))


def _take_staleness(turn: DecisionBuilder, stale: LeaseLost) -> None:
    lease = turn.lease(stale.token)
    if lease is None:
        return
    if lease.phase is AttemptPhase.SENDING:
        turn.drop(lease, stale.message)
    else:
        turn.stop(lease, FinalReport(word=FinalReportKind.NOTHING, why=stale.message))


def _take_closing(turn: DecisionBuilder, closed: MachineClosed) -> None:
    if not _set_closed(turn, closed.by, closed.why):
        return
    turn.now_knows(renew_at_s=min(turn.keeping.renew_at_s, turn.now_s))
    if closed.why and turn.keeping.asking:
        turn.call_back()
    if closed.why and closed.gives_back:
        _give_all_back(turn, closed.why)


def _take_devices(turn: DecisionBuilder, devices: DevicesChanged) -> None:
    """Send hello again, with what the machine offers now. An attempt on a device that is gone fails by itself."""
    if devices.gone:
        turn.tell("devices_gone", devices=list(devices.gone))
    if devices.back:
        turn.tell("devices_back", devices=list(devices.back))
    if devices.slots is not None:
        turn.now_knows(wishes=changed(turn.keeping.wishes, slots=devices.slots))
    turn.do(SendHello())


def _take_leave(turn: DecisionBuilder, asked: WorkerStopRequested) -> None:
    keeping = turn.keeping
    if keeping.leaving is WorkerShutdownMode.NO:
        _leave_softly(turn, asked.exit_code, asked.why)
        return
    if keeping.leaving is WorkerShutdownMode.NOW:
        return
    turn.leave(asked.exit_code, softly=False)
    turn.tell("leaving_now", held=len(keeping.leases))
    last = FinalReport(word=FinalReportKind.RELEASE, why="the worker was stopped at once")
    for lease in list(keeping.leases.values()):
        if lease.phase is AttemptPhase.SENDING:
            turn.send(lease, lease.last or last, lease.end)
        else:
            turn.stop(lease, last, grace_s=0.0)


def _leave_softly(turn: DecisionBuilder, exit_code: int, why: str) -> None:
    """Claim nothing more, release everything, then exit."""
    turn.leave(exit_code, softly=True)
    turn.tell("leaving", why=why, held=len(turn.keeping.leases))
    if turn.keeping.asking:
        turn.call_back()
    _give_all_back(turn, why)


def _give_all_back(turn: DecisionBuilder, why: str) -> None:
    for lease in list(turn.keeping.leases.values()):
        if lease.phase is not AttemptPhase.SENDING:
            turn.stop(lease, FinalReport(word=FinalReportKind.RELEASE, why=why))


def _hear_voice(turn: DecisionBuilder) -> None:
    if turn.keeping.is_away:
        turn.tell("back")
    turn.now_knows(misses=0, is_barred=False)


def _hear_closed(turn: DecisionBuilder, why: str) -> None:
    """Store that the coordinator closed this machine; it requests running jobs back itself."""
    is_our_own = any(why == one for by, one in turn.keeping.closed.items() if by != COORDINATOR)
    _set_closed(turn, COORDINATOR, "" if is_our_own else why)


def _set_closed(turn: DecisionBuilder, by: str, why: str) -> bool:
    """Store and log that the machine is closed, or open again; return False if it was already.

    Owner and coordinator both report a pause: it is logged once.
    """
    before = turn.keeping.closed.get(by, "")
    if why == before:
        return False
    others = {who: one for who, one in turn.keeping.closed.items() if who != by}
    turn.now_knows(closed={**others, by: why} if why else others)
    if not ((why or before).startswith(PAUSED) and any(one.startswith(PAUSED) for one in others.values())):
        turn.tell("closed" if why else "open", by=by, why=why)
    return True


_TAKERS: dict[type, Callable[[DecisionBuilder, Any], None]] = {
    HelloAnswered: _take_greeting,
    ClaimAnswered: _take_grants,
    RenewalAnswered: _take_answer,
    RequestUnanswered: _take_silence,
    WorkerRejected: _take_fatal,
    AttemptStarted: _take_begin,
    AttemptNotStarted: _take_refusal,
    CheckpointSent: _take_checkpoint,
    AttemptEnded: _take_end,
    AttemptStopped: _take_stop,
    FinalReportAccepted: _take_settlement,
    LeaseLost: _take_staleness,
    MachineClosed: _take_closing,
    DevicesChanged: _take_devices,
    WorkerStopRequested: _take_leave,
}
