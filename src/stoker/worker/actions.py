"""Perform the decisions of the state machine: threads, children, files, requests. Results are reported as events.

Nothing here blocks the worker's loop: slow work has a thread of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO

from stoker.core.errors import StokerError
from stoker.core.events import Kinds
from stoker.core.frozen import changed, fresh, frozen
from stoker.core.jsontext import loads
from stoker.core.leases import AttemptToken, Partition
from stoker.core.text import one_line
from stoker.engine.scratch import EARLIER_ATTEMPT
from stoker.host.durable import open_regular
from stoker.host.identity import Liveness, ProcessIdentity
from stoker.jobs.job_history import NodeHistory, RunHistory
from stoker.protocol.lease_messages import ExecCall, LeaseReport, WorkerMeasurements
from stoker.worker.attempt_process import RunningAttempt, WorkerRuntime
from stoker.worker.checkpoint_transfer import bring_checkpoint
from stoker.worker.coordinator_calls import ClaimLoop, PendingClaim, as_internal_error
from stoker.worker.exec_command import CommandSessions
from stoker.worker.preparation.prepare_child import stopped_by
from stoker.worker.state_machine import LAST_MOMENT_S
from stoker.worker.uploader import AttemptReporter, PreparingLog
from stoker.worker.worker_state import (
    COORDINATOR,
    AttemptEnded,
    AttemptNotStarted,
    AttemptPhase,
    AttemptStarted,
    AttemptStopped,
    ClaimJobs,
    Forget,
    HeldLease,
    Instruction,
    JournaledLease,
    LogLine,
    OpenExec,
    Predecessor,
    Renew,
    ReportStart,
    SendFinalReport,
    SendHello,
    SendResult,
    StartAttempt,
    StartRefusal,
    StopAttempt,
    WithdrawClaim,
    WorkerState,
)

_IDLE_WAIT_S = 1.0
"""Claim timeout of a worker with `--until-idle`."""


class InstructionRunner:
    """Performs instructions. The loop calls `perform`; other threads read `keeping`."""

    def __init__(
        self,
        runtime: WorkerRuntime,
        keeping: WorkerState,
        questions: ClaimLoop,
        sessions: CommandSessions | None = None,
    ) -> None:
        """Create it; `sessions` runs operators' commands beside attempts; None: exec is off."""
        self._runtime = runtime
        self._worker = runtime.worker
        self._clock = runtime.worker.clock
        self._questions = questions
        self._sessions = sessions
        self.claim_wait_s = 0.0
        self.keeping = keeping
        """The current state. Replaced by the loop; any thread reads it."""
        self._attempts: dict[AttemptToken, tuple[RunningAttempt, AttemptReporter]] = {}
        self._hearings: dict[AttemptToken, AttemptJournalTail] = {}
        self._logs: dict[AttemptToken, PreparingLog] = {}
        self._writing = threading.Lock()

    def adopt(self, lease: HeldLease) -> None:
        """Continue an attempt that an earlier worker process started."""
        underway, _ = self._new(lease)
        if lease.child is not None:
            underway.adopt(lease.run, lease.child)
            self._in_thread(lambda: self._report_end(lease.token, underway))

    def note(self, keeping: WorkerState) -> None:
        """Store the new state, and write to disk what a successor needs."""
        before, self.keeping = self.keeping, keeping
        if before.leases is keeping.leases:
            return
        with suppress(StokerError):
            for token, lease in keeping.leases.items():
                known = before.leases.get(token)
                if lease.run and (known is None or known.ends_s != lease.ends_s or not known.run):
                    self._runtime.journal.lease_file(lease.run).write(lease.ends_s, lease.grant.spec.on_partition)
            self.write_down()

    def perform(self, instruction: Instruction) -> None:  # noqa: C901 - a case for each instruction
        """Perform one instruction, or start to."""
        match instruction:
            case SendHello():
                self._questions.greet()
            case WithdrawClaim():
                self._questions.call_back()
            case Renew():
                self._questions.renew(self._reports, self._measured)
            case ClaimJobs(most=most):
                self._ask_for_work(most)
            case StartAttempt(token=token):
                self._begin(token)
            case ReportStart(token=token):
                self._tell_start(token)
            case StopAttempt(token=token, grace_s=grace_s):
                self._stop(token, grace_s)
            case SendResult(token=token, last=last, end=end):
                self._attempt(token)[1].send(last, end)
            case SendFinalReport(token=token, last=last, end=end):
                courier = self._attempt(token)[1]
                self._in_thread(lambda: courier.say_now(last, end))
            case OpenExec(call=call):
                self._open_exec(call)
            case Forget(token=token):
                self._forget(token)
            case LogLine(kind=kind, fields=fields):
                self._worker.tell(kind, fields)

    def keep_warm(self) -> None:
        """Keep the next child's start fast while a slot is free."""
        keeping = self.keeping
        if keeping.is_known and keeping.wanted and not keeping.closed:
            with suppress(StokerError):
                self._runtime.spawner.keep_warm()

    def say_goodbye(self) -> None:
        """Report to the coordinator that this worker stops, if the coordinator is known and answers."""
        if self.keeping.is_known and not self.keeping.is_away:
            self._questions.say_goodbye(self._measured, within_s=LAST_MOMENT_S)

    def close(self) -> None:
        """Release everything. Leases must be released before."""
        self._questions.close()
        if self._sessions is not None:
            self._sessions.close("the worker ends")
        for _, courier in self._attempts.values():
            courier.close()
        self._runtime.spawner.close()

    def may_speak(self, token: AttemptToken) -> bool:
        """Return True if a lease is valid by this machine's clock now."""
        lease = self.keeping.leases.get(token)
        if lease is None:
            return False
        is_over = lease.is_over or self._clock.boottime_s() >= lease.ends_s
        return lease.is_harmless or not is_over

    def _new(self, lease: HeldLease) -> tuple[RunningAttempt, AttemptReporter]:
        runtime = self._runtime
        log = self._logs[lease.token] = PreparingLog(runtime, lease.token)
        underway = RunningAttempt(runtime, lease.grant, log.hear)
        made = (underway, AttemptReporter(runtime, lease.grant))
        self._attempts[lease.token] = made
        return made

    def _attempt(self, token: AttemptToken) -> tuple[RunningAttempt, AttemptReporter]:
        found = self._attempts.get(token)
        return self._new(self.keeping.leases[token]) if found is None else found

    def _ask_for_work(self, most: int) -> None:
        keeping = self.keeping
        is_brief = keeping.wishes.until_idle and most > 0
        # Its times count from when it was sent: a long poll would use up a short lease.
        wait_s = min(self.claim_wait_s, keeping.lease_s / 3)
        wait_s = min(wait_s, _IDLE_WAIT_S) if is_brief else wait_s
        claim = PendingClaim(
            most=most, wait_s=wait_s, measured=self._measured, stopping=self._stopping, looks_around=is_brief
        )
        self._questions.claim(claim)

    def _stopping(self) -> tuple[str, ...]:
        """Return the jobs that are stopping."""
        return tuple(lease.grant.job for lease in self.keeping.leases.values() if lease.last is not None)

    def _begin(self, token: AttemptToken) -> None:
        underway, _ = self._attempt(token)
        lease = self.keeping.leases[token]
        self._in_thread(lambda: self._begin_now(lease, underway))

    def _begin_now(self, lease: HeldLease, underway: RunningAttempt) -> None:
        def write_down(run: str, child: ProcessIdentity) -> None:
            self.write_down(changed(lease, run=run, child=child))

        token = lease.token
        try:
            begun = as_internal_error(
                lambda: underway.begin(
                    lambda: self.keeping.leases.get(token, lease).ends_s,
                    lambda stop: self._bring(lease, underway, stop),
                    write_down,
                )
            )
        except StokerError as error:
            begun = StartRefusal(reason="start", message=str(error))
        log = self._logs.get(token)
        if log is not None:
            if isinstance(begun, StartRefusal):
                log.hear(f"not started here: {begun.message}")
                # While the lease is valid: later lines are refused.
                log.close()
            else:
                self._in_thread(log.close)
        now_s = self._clock.boottime_s()
        if isinstance(begun, StartRefusal):
            self._runtime.report(
                AttemptNotStarted(now_s=now_s, token=token, refusal=begun, has_brought=underway.has_brought)
            )
        elif begun is not None:
            self._runtime.report(
                AttemptStarted(
                    now_s=now_s, token=token, child=begun, run=underway.run, has_brought=underway.has_brought
                )
            )
            self._report_end(token, underway)

    def _bring(self, lease: HeldLease, underway: RunningAttempt, stop: threading.Event) -> None:
        """Fetch the checkpoint of an earlier attempt; without it the attempt starts at step 0.

        Heartbeats report the bytes that arrived: the coordinator extends the start while they grow.
        """
        granted = lease.grant.checkpoint
        if granted is None:
            return
        worker = self._worker

        def heed(size_bytes: int) -> None:
            underway.prepared += size_bytes

        try:
            with stopped_by(stop) as inner:
                arrived = as_internal_error(
                    lambda: bring_checkpoint(
                        worker.lines.bytes,
                        worker.store(),
                        granted,
                        worker.scratch,
                        run_id=EARLIER_ATTEMPT,
                        stop=inner,
                        clock=self._clock,
                        heed=heed,
                    )
                )
        except StokerError as error:
            self._worker.tell("checkpoint_missing", {"job": lease.grant.spec.shown, "why": str(error)})
        else:
            self._worker.tell(
                "checkpoint", {"job": lease.grant.spec.shown, "why": arrived.why, "placed": arrived.is_placed}
            )

    def _report_end(self, token: AttemptToken, underway: RunningAttempt) -> None:
        end = underway.wait()
        self._end_execs(token)
        self._runtime.report(AttemptEnded(now_s=self._clock.boottime_s(), token=token, end=end))

    def _open_exec(self, call: ExecCall) -> None:
        sessions, lease = self._sessions, self.keeping.leases.get(call.token())
        if sessions is None or lease is None:
            return
        if lease.phase is AttemptPhase.RUNNING:
            sessions.open(call, self._attempt(lease.token)[0].place)
            self._worker.tell(
                "exec", {"job": lease.grant.spec.shown, "program": call.argv[0] if call.argv else "a shell"}
            )
        else:
            sessions.refuse(call, f"{lease.grant.spec.shown} is not running: {lease.phase}")

    def _end_execs(self, token: AttemptToken) -> None:
        if self._sessions is not None:
            self._sessions.end(token, "the job has ended")

    def _tell_start(self, token: AttemptToken) -> None:
        underway, courier = self._attempt(token)
        courier.follow(underway.folder)
        courier.tell_start(underway.run)
        self._hearings[token] = AttemptJournalTail(underway.folder.status_path)

    def _stop(self, token: AttemptToken, grace_s: float) -> None:
        underway, _ = self._attempt(token)

        def stop() -> None:
            self._end_execs(token)
            end = underway.stop(grace_s)
            self._runtime.report(AttemptStopped(now_s=self._clock.boottime_s(), token=token, end=end))

        self._in_thread(stop)

    def _forget(self, token: AttemptToken) -> None:
        underway, courier = self._attempts.pop(token, (None, None))
        hearing = self._hearings.pop(token, None)
        self._logs.pop(token, None)
        if hearing is not None:
            hearing.close()
        if courier is not None:
            self._in_thread(courier.close)
        if underway is not None:
            underway.forget()

    def _reports(self, now_s: float) -> tuple[LeaseReport, ...]:
        """Return a report of each lease; skip expired ones, except those with `on_partition: keep`."""
        reports = []
        for token, lease in list(self.keeping.leases.items()):
            if now_s >= lease.ends_s and not lease.keeps_on:
                continue
            reports.append(self._report_of(token, lease))
        return tuple(reports)

    def _report_of(self, token: AttemptToken, lease: HeldLease) -> LeaseReport:
        found, hearing = self._attempts.get(token), self._hearings.get(token)
        runs = lease.phase in (AttemptPhase.RUNNING, AttemptPhase.STOPPING)
        heard = AttemptProgress() if hearing is None else hearing.look()
        return LeaseReport(
            job=token.job,
            **token.fence(),
            is_alive=not runs or (found is not None and found[0].is_alive()),
            step=heard.step,
            of=heard.of,
            metrics=heard.metrics,
            stage=heard.stage,
            says=_says(lease, heard, "" if found is None else found[0].says),
            prepared=0 if found is None else found[0].prepared,
        )

    def _measured(self) -> WorkerMeasurements:
        own = {by: why for by, why in self.keeping.closed.items() if by != COORDINATOR}
        return self._worker.machine.measured(own)

    def write_down(self, also: HeldLease | None = None) -> None:
        """Write the held leases to the journal."""
        with self._writing:
            leases = dict(self.keeping.leases)
            if also is not None:
                leases[also.token] = also
            self._runtime.journal.write(
                incarnation=self._runtime.incarnation, coordinator=self._worker.lines.url, leases=leases.values()
            )

    def _in_thread(self, act: Callable[[], None]) -> None:
        threading.Thread(target=act, name="stoker-attempt", daemon=True).start()


def _says(lease: HeldLease, heard: AttemptProgress, prepares: str) -> str:
    """Return the status line for people; the state already shows that it has not started."""
    if lease.phase is AttemptPhase.RUNNING:
        return heard.says
    return prepares if lease.phase is AttemptPhase.STARTING else str(lease.phase)


@frozen
class WorkerRecovery:
    """What a restarted worker takes over: attempts of an earlier process, adopted or stopped."""

    incarnation: str
    """The predecessor's if an attempt is adopted, else empty: a new one is made."""
    adopted: tuple[HeldLease, ...]
    ended: tuple[JournaledLease, ...]
    """Leases whose processes must be stopped."""


def inherit(
    predecessor: Predecessor | None, *, coordinator: str, now_s: float, liveness: Mapping[str, Liveness]
) -> WorkerRecovery:
    """Decide which leases to adopt; `liveness` maps each run to the state of its process.

    An attempt whose lease expired by the boot-time clock is stopped, unless it has `on_partition: keep`. One whose
    process is gone but whose lease is valid is adopted, to report its end.
    """
    if predecessor is None:
        return WorkerRecovery(incarnation="", adopted=(), ended=())
    adopted, ended = [], []
    for written in predecessor.leases:
        keeps_on = written.grant.spec.on_partition is Partition.KEEP
        is_ours = predecessor.coordinator == coordinator and (keeps_on or now_s < written.ends_s)
        if is_ours and liveness[written.run] is not Liveness.UNKNOWN:
            lease = HeldLease(
                grant=written.grant,
                phase=AttemptPhase.RUNNING,
                ends_s=written.ends_s,
                run=written.run,
                child=written.child,
                is_over=now_s >= written.ends_s,
            )
            adopted.append(lease)
        else:
            ended.append(written)
    incarnation = predecessor.incarnation if adopted else ""
    return WorkerRecovery(incarnation=incarnation, adopted=tuple(adopted), ended=tuple(ended))


# Progress of an attempt, from its journal: step, metrics, one line for people.

_MOST_BYTES = 4 * 1024 * 1024
_MOST_METRICS = 64
_LONGEST_LINE = 200


@frozen
class AttemptProgress:
    """The progress of an attempt."""

    step: int | None = None
    of: int | None = None
    metrics: dict[str, float] = fresh(factory=dict)
    stage: str = ""
    says: str = ""


class AttemptJournalTail:
    """Follows one journal; each call reads what was written since the last one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._torn = b""
        self._story = RunHistory()
        self._last: NodeHistory | None = None
        self._says = ""

    def look(self) -> AttemptProgress:
        """Read new lines; return the progress. A missing or unreadable journal gives none."""
        for line in self._new_lines():
            try:
                event = loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                self._take(event)
        node = self._last
        if node is None:
            return AttemptProgress(says=self._says)
        numbers = {
            one_line(name, _LONGEST_LINE): number
            for name, value in list(node.metrics.items())[:_MOST_METRICS]
            if (number := _number(value)) is not None
        }
        step, of = (value if isinstance(value, int) else None for value in (node.step, node.of))
        return AttemptProgress(step=step, of=of, metrics=numbers, stage=node.node, says=self._says)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _take(self, event: dict[str, object]) -> None:
        node = self._story.take(event)
        self._last = node or self._last
        kind = event.get("kind")
        if kind in (Kinds.STAGE_LOG, Kinds.STAGE_TOLD):
            self._says = one_line(str(event.get("text", "")), _LONGEST_LINE)
        elif kind == Kinds.STAGE_WAITING:
            self._says = one_line(f"waits: {event.get('why', '')}", _LONGEST_LINE)
        elif kind == Kinds.STAGE_BEGIN:
            self._says = ""

    def _new_lines(self) -> list[bytes]:
        read = self._read()
        lines = (self._torn + read).split(b"\n")
        self._torn = lines.pop()
        return lines

    def _read(self) -> bytes:
        try:
            if self._file is None:
                self._file = open_regular(self._path)
            read = self._file.read(_MOST_BYTES)
            if not read and os.fstat(self._file.fileno()).st_ino != os.stat(self._path).st_ino:
                # The journal was rotated; the old file has been read to its end.
                self.close()
                self._file = open_regular(self._path)
                read = self._file.read(_MOST_BYTES)
        except OSError:
            return b""
        return read


def _number(value: object) -> float | None:
    """Return a metric as a float, or None: a value that can't be sent must not break the heartbeat."""
    if not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None
