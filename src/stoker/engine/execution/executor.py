"""Run a plan: look up, run what misses, keep what it makes. One loop decides; threads do.

Promises: a node's result is used only after its record is durable; the first failure is the one reported; when `run`
returns nothing of ours is still running, except in-process work that would not stop and was abandoned, which is said.
Sequential is the same loop with one place.
"""

from __future__ import annotations

import queue
from collections.abc import Iterable
from typing import Any

from stoker.core.errors import (
    BadInput,
    OutOfMemory,
    PlanDeadline,
    ProcessLost,
    StageDiverged,
    StageFailed,
    StageInputError,
    StageTimeout,
    StokerError,
)
from stoker.core.events import MEMBER_USAGE, Kinds
from stoker.core.frozen import changed
from stoker.core.retry import FailureCause, RetryAfterDelay, decide_retry
from stoker.core.text import format_duration
from stoker.engine.execution.dispatch import (
    CancelledNodes,
    DeferredNodes,
    NodeLauncher,
)
from stoker.engine.execution.schedule import ENDED, NodeState, PlanProgress, QueuedNode, Schedule
from stoker.engine.execution.stage_attempts import (
    EDITED_CODE,
    AttemptReport,
    Attempts,
    InFlightAttempt,
    InFlightAttempts,
)
from stoker.engine.journal import StatusWriter
from stoker.engine.plan import Plan, searched_seldom
from stoker.engine.result_cache import CacheCommit, Execute, LoopReadBudget, NodeDecider, Resolver, Use
from stoker.engine.runners.stage_runner import AttemptUsage, RunFolders, StageFailure
from stoker.engine.types import Engine, NodeEnding, NodeResult, RunOptions, RunResult
from stoker.store.trees import heeding

# Failures on their way to people: an attempt that we ended ourselves, and a failed node as the whole run's error.

_BY_CAUSE: dict[FailureCause, type[StokerError]] = {
    FailureCause.TIMEOUT: StageTimeout,
    FailureCause.DIVERGED: StageDiverged,
    FailureCause.OOM_HOST: OutOfMemory,
    FailureCause.OOM_DEVICE: OutOfMemory,
    FailureCause.INPUT: StageInputError,
    FailureCause.LOST: ProcessLost,
}


def as_stopped(running: InFlightAttempt, failed: StageFailure) -> StageFailure:
    """Return why an attempt failed: if it was asked to stop, that is why, whatever it said on its way out."""
    if running.stop_cause is None:
        return failed
    stopped = changed(failed, cause=running.stop_cause)
    if running.stop_cause is FailureCause.TIMEOUT:
        limit = format_duration(running.node.limit_s or 0.0)
        return changed(stopped, message=f"ran past its limit of {limit}", hint="")
    if running.stop_why:
        hint = "smaller batches, or declare more (vram=SIZE)"
        return changed(stopped, message=running.stop_why, hint=hint, error_code=OutOfMemory.code)
    return stopped


def failure_of(running: InFlightAttempt, report: AttemptReport, failed: StageFailure) -> NodeResult:
    """Return the result of a node whose last attempt failed."""
    return NodeResult(
        ending=NodeEnding.DIVERGED if failed.cause is FailureCause.DIVERGED else NodeEnding.FAILED,
        key=running.execute.key,
        cause=failed.cause,
        message=failed.message,
        hint=failed.hint,
        seconds=report.seconds,
    )


def early_failure(error: StokerError) -> NodeResult:
    """Return the result of a node that could not be started: a file that is gone, no room for a lease or a folder."""
    cause = FailureCause.INPUT if isinstance(error, BadInput) else FailureCause.IO
    if isinstance(error, OutOfMemory):
        cause = FailureCause.OOM_HOST
    return NodeResult(ending=NodeEnding.FAILED, cause=cause, message=str(error), hint=error.hint)


def left_behind(running: InFlightAttempt, now_s: float) -> AttemptReport:
    """Return the report of an attempt that would not stop."""
    return AttemptReport(
        name=running.name,
        attempt=running.number,
        seconds=now_s - running.started_s,
        committed=None,
        failed=StageFailure(cause=running.stop_cause or FailureCause.CANCELLED, message="it would not stop"),
        usage=AttemptUsage(),
    )


def error_of(name: str, result: NodeResult, error_code: str) -> StokerError:
    """Return the error whose class, code and exit code fit why the node failed."""
    kind = _BY_CODE.get(error_code) or (_BY_CAUSE.get(result.cause) if result.cause else None) or StageFailed
    return kind(f"{name}: {result.message}", hint=result.hint, node=name, cause=str(result.cause))


def _leaves(kind: type[StokerError]) -> dict[str, type[StokerError]]:
    found: dict[str, type[StokerError]] = {}
    for leaf in kind.__subclasses__():
        found[leaf.code] = leaf
        found.update(_leaves(leaf))
    return found


# Those that tell more than the cause does.
_TELLING = (
    "no_space", "no_permission", "local_file", "lock_held", "missing_extra", "corrupt_bytes",
    "program_not_found", "scratch_busy", "containment", "bug", "chat_template", "damaged",
    "regression", "gate_undecided",
)  # fmt: skip
_BY_CODE = {code: leaf for code, leaf in _leaves(StokerError).items() if code in _TELLING}


_LONGEST_NAP_S = 0.25
# However many nodes are ready, the loop tells its news and looks around this often.
_LONGEST_TURN_S = 0.1
_MAX_REWINDS = 2
_EDITED = "{} was edited while this ran; the run kept to the code as it was: run again for the new code"
# Causes behind which there may be an input whose bytes vanished while the stage was reading.
_BLAMED_ON_INPUTS = frozenset({FailureCause.USER, FailureCause.INPUT, FailureCause.IO, FailureCause.LOST})


class Executor:
    """Runs one plan once."""

    def __init__(
        self, plan: Plan, engine: Engine, *, status: StatusWriter, folders: RunFolders, options: RunOptions
    ) -> None:
        self._plan = plan
        self._engine = engine
        self._clock = engine.clock
        self._options = options
        self._status = status
        self._progress = PlanProgress(plan)
        self._schedule = Schedule()
        self._asides = DeferredNodes()
        self._resolver = Resolver(
            plan=plan.name, cache=engine.cache, history=engine.history, rerun=options.rerun, kept=options.kept
        )
        self._attempts = Attempts(
            cache=engine.cache,
            memory=engine.memory,
            clock=engine.clock,
            folders=folders,
            status=status,
            is_cancelled=lambda: self._cancel is not None,
        )
        self._moment = LoopReadBudget()
        uses_devices = any(node.needs.gpu for node in plan.nodes)
        self._launchpad = NodeLauncher(
            engine,
            attempts=self._attempts,
            status=status,
            moment=self._moment,
            job=folders.job,
            uses_devices=uses_devices,
            solo=options.solo,
        )
        self._reading = NodeDecider(self._resolver, self._moment, engine.clock, self._attempts.wake)
        self._in_flight = InFlightAttempts(clock=engine.clock, grace_s=options.grace_s)
        self._tries: dict[str, int] = {}
        self._rewinds: dict[str, int] = {}
        self._failures = 0
        self._error: StokerError | None = None
        self._cancel: StokerError | None = None
        self._cancelled_nodes = CancelledNodes()
        self._is_stopping = False
        self._has_more_to_do = False
        self._wanted = frozenset({plan.final, *plan.keep})
        self._warnings: list[str] = []

    def cancel(self, error: StokerError) -> None:
        """Ask the run to stop for this reason. May be called from a signal handler or another thread."""
        self._cancel = self._cancel or error
        self._attempts.wake()

    def cancel_nodes(self, names: Iterable[str]) -> None:
        """Ask the run to stop these nodes, and to go on with those that do not need them. From one thread at a time."""
        self._cancelled_nodes.add(names)
        self._attempts.wake()

    def run(self) -> RunResult:
        """Run to the end, whatever the end is."""
        started_s = self._clock.monotonic_s()
        self._engine.cache.begin_run()
        for rank, node in enumerate(self._plan.nodes):
            self._schedule.add(node.id, rank=(rank,), needs=node.producers())
        deadline_s = None if self._options.deadline_s is None else started_s + self._options.deadline_s
        try:
            self._launchpad.refuse_the_impossible(self._plan.nodes)
            self._launchpad.announce(self._plan.nodes)
            with heeding(self._moment.heed), searched_seldom():
                self._start_what_can()
                while not self._schedule.is_over:
                    self._wait()
                    self._look_around(deadline_s)
                    self._start_what_can()
        except BaseException:
            # Not even the journal could be written, or this is a bug: either way nothing of ours may go on alone.
            self._in_flight.drop_all()
            raise
        finally:
            self._reading.stop_all()
            self._attempts.close()
            self._launchpad.devices.close()
            self._engine.leases.give_back_all()
            self._engine.history.close()
        if self._rewinds:
            self._progress.collect_again()
        self._warnings += map(_EDITED.format, self._engine.cache.edited())
        return RunResult(
            nodes=self._progress.results,
            final=self._plan.final,
            elapsed_s=self._clock.monotonic_s() - started_s,
            error=self._error,
            warnings=tuple(self._warnings),
        )

    def _start_what_can(self) -> None:
        """Decide about what is ready and start what there is room for, for one turn of the loop."""
        until_s = self._clock.monotonic_s() + _LONGEST_TURN_S
        self._consider_what_is_ready(until_s)
        while self._launch_one() and self._clock.monotonic_s() < until_s:
            self._consider_what_is_ready(until_s)
        self._has_more_to_do = self._clock.monotonic_s() >= until_s
        self._status.emit_held()

    def _consider_what_is_ready(self, until_s: float) -> None:
        while not self._launchpad.room.is_full and self._clock.monotonic_s() < until_s:
            if self._cancel is not None:
                self._stop_for(self._cancel)
            name = self._schedule.next_ready()
            if name is None:
                break
            if self._is_stopping or name in self._cancelled_nodes:
                self._end_cancelled(name)
                continue
            try:
                self._consider(name)
            except StokerError as error:
                self._fail_early(name, error)

    def _consider(self, name: str) -> None:
        """Decide about a node whose inputs are all there."""
        if self._progress.is_unexpanded_fan(name):
            self._expand(name)
            return
        if self._progress.is_expanded_fan(name):
            self._progress.collect(name)
            self._schedule.done(name)
            return
        node = self._progress.nodes[name]
        inputs = self._progress.inputs_of(name)
        refs = {port: tuple(product.ref for product in given) for port, given in inputs.items()}
        needs_bytes = node.id in self._wanted or name in self._rewinds
        decision = self._reading.decide(name, node, refs, needs_bytes=needs_bytes)
        if decision is None:
            self._schedule.park(name)
            return
        if isinstance(decision, Use):
            self._use(name, decision)
            return
        if decision.damage:
            self._status.hold(Kinds.CACHE_CORRUPT, node=name, key=decision.key, damage=decision.damage)
        if self._rewind_inputs(name):
            return
        needs = self._launchpad.needs_of(node, decision)
        self._schedule.park(name)
        if self._asides.take_off(decision.key, name):
            rank = self._schedule.rank(name)
            waiting = QueuedNode(name=name, node=node, execute=decision, inputs=inputs, rank=rank, needs=needs)
            self._launchpad.room.enter(waiting)

    def _expand(self, name: str) -> None:
        """Turn a fan-out whose list is known into its instances."""
        try:
            instances = self._progress.expand(name, self._progress.items_for(name))
        except ValueError as error:
            self._fail(name, NodeResult(ending=NodeEnding.FAILED, cause=FailureCause.INPUT, message=str(error)))
            return
        node = self._progress.nodes[name]
        self._status.hold(Kinds.STAGE_EXPANDED, node=name, stage=node.stage.name, count=len(instances))
        self._schedule.fan_out(name, instances, needs=node.producers())
        if not instances:
            self._progress.collect(name)
            self._schedule.done(name)

    def _rewind_inputs(self, name: str) -> bool:
        """Send producers whose bytes are gone back to work; True if the node has to wait for them."""
        gone = [source for source in self._progress.read_by(name) if not self._progress.results[source].has_bytes]
        for source in gone:
            # Several nodes may want the same bytes: only the first of them sends their producer back.
            if self._schedule.state(source) is NodeState.DONE:
                self._rewinds[source] = self._rewinds.get(source, 0) + 1
                if self._rewinds[source] > _MAX_REWINDS:
                    message = f"the bytes of {source} keep vanishing"
                    self._fail(name, NodeResult(ending=NodeEnding.FAILED, cause=FailureCause.IO, message=message))
                    return True
                self._status.hold(Kinds.STAGE_REWIND, node=source, wanted_by=name)
            self._schedule.rewind(source, then=name)
        return bool(gone)

    def _launch_one(self) -> bool:
        """Start the next waiting node; return False if there is none, or no room."""
        is_full = len(self._in_flight) >= self._options.max_in_flight
        if self._is_stopping or (is_full and not self._in_flight.share_keys):
            self._launchpad.stand_aside()
            return False
        # One more member of a shared process is not one more at once.
        tried = self._launchpad.launch_one(joining=self._in_flight.share_keys if is_full else None)
        if tried is None:
            return False
        if tried.running is not None:
            self._asides.forget(tried.running.name)
            self._tries[tried.running.name] = self._tries.get(tried.running.name, 0) + 1
            self._in_flight.add(tried.running)
            return True
        name, execute = tried.waiting.name, tried.waiting.execute
        if tried.held is not None:
            if self._asides.poll_later(name, self._clock.monotonic_s()):
                waits_for = f"waits for {tried.held.who}"
                self._status.hold(
                    Kinds.STAGE_WAITING, node=name, key=execute.key, why=tried.held.why, waits_for=waits_for
                )
        elif tried.record is not None:
            self._use(name, Use(action=execute.action, key=execute.key, record=tried.record, has_bytes=True))
        elif tried.outdated:
            self._decide_again(name, tried.outdated)
        elif tried.error is not None:
            self._fail_early(name, tried.error)
        self._land(execute)
        return True

    def _decide_again(self, name: str, what: str, before_it: str = "start") -> None:
        """Decide about a parked node again, since `what` changed before it could start or end: not for ever."""
        if self._asides.decide_later(name, self._clock.monotonic_s()):
            text = f"{what} was edited before it could {before_it}: checking it again"
            self._status.hold(Kinds.STAGE_LOG, node=name, text=text)
            return
        message, hint = f"{what} keeps changing before it can {before_it}", "run it again when that stays as it is"
        self._fail(name, NodeResult(ending=NodeEnding.FAILED, cause=FailureCause.IO, message=message, hint=hint))

    def _use(self, name: str, use: Use) -> None:
        node = self._progress.nodes[name]
        self._asides.forget(name)
        self._progress.results[name] = NodeResult(
            ending=NodeEnding.HIT,
            key=use.key,
            products=self._engine.cache.products(node.stage, use.record),
            has_bytes=use.has_bytes,
        )
        digest = use.record.digest
        self._status.hold(Kinds.STAGE_SKIPPED, node=name, stage=node.stage.name, key=use.key, digest=digest)
        self._schedule.done(name)

    def _take_report(self, report: AttemptReport) -> None:
        running = self._in_flight.take(report)
        if running is not None:
            self._end_attempt(running, report)

    def _end_attempt(self, running: InFlightAttempt, report: AttemptReport) -> None:
        if self._cancel is not None:
            # A stage may have seen it before this loop did, and ended because of it.
            self._stop_for(self._cancel)
        self._launchpad.land(running, report)
        self._land(running.execute)
        if not report.outdated:
            self._asides.has_begun(running.name)
        if report.committed is not None:
            self._finish(running, report, report.committed)
        elif report.failed is not None:
            self._settle_failure(running, report, report.failed)

    def _finish(self, running: InFlightAttempt, report: AttemptReport, committed: CacheCommit) -> None:
        name, execute = running.name, running.execute
        self._engine.history.note(
            plan=self._plan.name,
            node=name,
            action=execute.action,
            key=execute.key,
            at_s=self._clock.wall_s(),
            seconds=report.seconds,
        )
        self._progress.results[name] = NodeResult(
            ending=NodeEnding.RAN,
            key=execute.key,
            products=self._engine.cache.products(running.node.stage, committed.record),
            seconds=report.seconds,
        )
        self._resolver.was_run(execute.key)
        self._tries.pop(name, None)
        self._tell_end(running, report, committed)
        self._schedule.done(name)

    def _tell_end(self, running: InFlightAttempt, report: AttemptReport, committed: CacheCommit) -> None:
        stage, key, record = running.node.stage, running.execute.key, committed.record
        if committed.differs_from is not None:
            self._status.hold(
                Kinds.CACHE_DIFFERS,
                node=running.name,
                key=key,
                before=committed.differs_from,
                ours=committed.ours,
                kept=record.digest,
                expected=not stage.deterministic or running.execute.force,
            )
        more: dict[str, Any] = {}
        if running.taken is not None:
            more |= {"devices": list(running.taken.devices), "peak_gpu_bytes": running.taken.peak_bytes}
        if report.usage.member_usage is not None:
            more[MEMBER_USAGE] = report.usage.member_usage.to_json()
        self._status.hold(
            Kinds.STAGE_END,
            node=running.name,
            stage=stage.name,
            key=key,
            digest=record.digest,
            seconds=round(report.seconds, 6),
            size_bytes=record.tree.size_bytes,
            peak_rss_bytes=report.usage.peak_rss_bytes,
            metrics=running.reports.last,
            **more,
        )

    def _settle_failure(self, running: InFlightAttempt, report: AttemptReport, failed: StageFailure) -> None:
        """Decide whether a failed node is cancelled, decided about again, retried or failed."""
        name, failed = running.name, as_stopped(running, failed)
        cause = failed.cause
        if cause is FailureCause.CANCELLED and (self._is_stopping or name in self._cancelled_nodes):
            self._end_cancelled(name)
            return
        if report.outdated and not self._is_stopping:
            self._tries[name] -= 1
            self._schedule.park(name)
            self._decide_again(name, report.outdated, "end" if report.outdated == EDITED_CODE else "start")
            return
        may_be_lost = cause in _BLAMED_ON_INPUTS and not self._is_stopping
        if may_be_lost and self._progress.has_lost_inputs(name, self._engine.cache.has_bytes):
            self._schedule.park(name)
            self._schedule.unpark(name)
            return
        decision = decide_retry(running.node.retry or running.node.stage.retry, cause, self._tries[name])
        if isinstance(decision, RetryAfterDelay) and not self._is_stopping:
            delay_s = decision.delay_s
            self._status.hold(
                Kinds.STAGE_RETRYING,
                node=name,
                attempt=running.number,
                cause=str(cause),
                message=failed.message,
                delay_s=delay_s,
            )
            self._schedule.park(name)
            self._asides.back_off(name, delay_s, self._clock.monotonic_s())
            return
        result = failure_of(running, report, failed)
        self._fail(name, result, attempt=running.number, error_code=failed.error_code)

    def _fail(self, name: str, result: NodeResult, *, attempt: int = 1, error_code: str = StageFailed.code) -> None:
        self._failures += 1
        self._error = self._error or error_of(name, result, error_code)
        self._progress.results[name] = result
        self._asides.forget(name)
        self._status.hold(
            Kinds.STAGE_FAILED,
            node=name,
            stage=self._progress.nodes[name].stage.name,
            attempt=attempt,
            cause=str(result.cause),
            message=result.message,
            hint=result.hint,
            seconds=round(result.seconds, 6),
        )
        has_diverged = result.ending is NodeEnding.DIVERGED
        self._prune_below(name, NodeState.DIVERGED if has_diverged else NodeState.FAILED)
        limit = self._options.max_failures
        if not (has_diverged or self._options.keep_going) or (limit is not None and self._failures >= limit):
            self._stop()

    def _fail_early(self, name: str, error: StokerError) -> None:
        """Fail a node that could not even be begun: a file that is gone, no room for a lease or a folder."""
        self._fail(name, early_failure(error), error_code=error.code)

    def _cancel_nodes(self) -> None:
        """Stop what runs of the nodes that were cancelled by themselves, and end what does not run."""
        ending = self._cancelled_nodes.still_open(self._progress.nodes, self._schedule.has_ended)
        if not ending:
            return
        for waiting in self._launchpad.room.drop(set(ending)):
            self._land(waiting.execute)
        self._in_flight.ask(ending)
        for name in ending:
            # One may have ended with another that it needs; what runs ends with its report.
            if name not in self._in_flight and self._schedule.state(name) not in (NodeState.RUNNING, *ENDED):
                self._end_cancelled(name)

    def _end_cancelled(self, name: str) -> None:
        for ended in (name, *self._schedule.end(name, NodeState.CANCELLED)):
            self._progress.results[ended] = NodeResult(ending=NodeEnding.CANCELLED)
            self._asides.forget(ended)
            self._reading.stop(ended)
            # Only one that was cancelled by itself has a cause: the others end with the run.
            alone = {"cause": str(FailureCause.CANCELLED)} if ended in self._cancelled_nodes else {}
            stage = self._progress.nodes[ended].stage.name
            self._status.hold(Kinds.STAGE_CANCELLED, node=ended, stage=stage, **alone)

    def _prune_below(self, name: str, state: NodeState) -> None:
        below = self._schedule.end(name, state)
        # Who waits for room has all it needs, unless a producer was sent back to work and failed.
        for waiting in self._launchpad.room.drop(set(below)) if name in self._rewinds else ():
            self._land(waiting.execute)
        for pruned in below:
            self._reading.stop(pruned)
            result = NodeResult(ending=NodeEnding.PRUNED, cause=FailureCause.UPSTREAM, message=f"needs {name}")
            self._progress.results[pruned] = result
            stage = self._progress.nodes[pruned].stage.name
            self._status.hold(Kinds.STAGE_PRUNED, node=pruned, stage=stage, because=name)

    def _stop(self) -> None:
        """Stop the run: nothing new starts, what runs is asked to end, and the loop waits for it."""
        if self._is_stopping:
            return
        self._is_stopping = True
        self._in_flight.ask_all()
        for name in [*self._launchpad.room.empty(), *self._asides.release_all(), *self._reading.stop_all()]:
            self._schedule.unpark(name)

    def _land(self, execute: Execute) -> None:
        for twin in self._asides.land(execute.key):
            self._schedule.unpark(twin)

    def _wait(self) -> None:
        """Sleep until something ends or it is time to look around; take in whatever has ended."""
        longest_s = 0.0 if self._has_more_to_do else _LONGEST_NAP_S
        nap_s = self._asides.nap_s(self._clock.monotonic_s(), longest_s)
        reports = self._attempts.reports
        try:
            report = reports.get(timeout=nap_s) if nap_s > 0 else reports.get_nowait()
            while True:
                if report is not None:
                    self._take_report(report)
                report = reports.get_nowait()
        except queue.Empty:
            return

    def _look_around(self, deadline_s: float | None) -> None:
        now_s = self._clock.monotonic_s()
        if self._cancel is not None:
            self._stop_for(self._cancel)
        elif deadline_s is not None and now_s >= deadline_s:
            limit = format_duration(self._options.deadline_s or 0.0)
            self._stop_for(PlanDeadline(f"the plan ran past its limit of {limit}"))
        if self._cancelled_nodes:
            self._cancel_nodes()
        for name in (*self._asides.due(now_s), *self._reading.ended()):
            self._schedule.unpark(name)
        self._reading.tell(self._status)
        for running in self._in_flight.watch():
            self._leave_behind(running, now_s)
        self._engine.leases.renew_due()
        for noticed in self._launchpad.devices.noticed():
            if warning := self._in_flight.notice(noticed):
                self._status.hold(Kinds.WARNING, message=warning)
        self._status.tick()

    def _stop_for(self, error: StokerError) -> None:
        """Stop for a reason from outside; a run that stops already keeps the reason it has."""
        if not self._is_stopping:
            self._error = error
            self._stop()

    def _leave_behind(self, running: InFlightAttempt, now_s: float) -> None:
        self._warnings.append(f"{running.name} did not stop and was left running")
        self._end_attempt(running, left_behind(running, now_s))
