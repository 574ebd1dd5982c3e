"""One attempt from start to committed result, in a thread beside the loop.

Everything slow happens here: running, checking that inputs were left alone, taking the output into the store. The
executor's loop only reads the report. For an inline stage the loop waits a moment: nearly all of them are over by then,
and two threads that compete for the interpreter at every system call cost more than such a stage does (2.1 ms instead
of 1.2 ms). One that takes longer continues beside the loop.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from stoker.core.clock import Clock
from stoker.core.errors import Cancelled, InvalidInput, ProcessLost, StokerError
from stoker.core.events import MEMBER_USAGE, Event, Kinds
from stoker.core.frozen import changeable, fresh, frozen
from stoker.core.retry import FailureCause
from stoker.core.text import some_of
from stoker.engine.action import shared_process_key
from stoker.engine.device_gate import NOTHING_TAKEN, AttemptDevices, DeviceNotice
from stoker.engine.execution.schedule import QueuedNode
from stoker.engine.journal import StatusWriter
from stoker.engine.metrics.attempt_metrics import EarlierCurves, Reports
from stoker.engine.permits import MemoryGate, PermitGrant
from stoker.engine.plan import PlanNode
from stoker.engine.result_cache import Cache, CacheCommit, Execute, NodeProduct
from stoker.engine.runners.program.program_end import manifest_of_stage
from stoker.engine.runners.stage_runner import (
    CODE_EDITED,
    AttemptUsage,
    GivenInput,
    RunFolders,
    StageAttempt,
    StageFailure,
    StageRunner,
    StageSuccess,
    Work,
)
from stoker.engine.scratch import clear_scratch, resume_key, scratch_path
from stoker.host.durable import remove_tree
from stoker.host.import_watch import ModuleSource
from stoker.host.writers import LogFile
from stoker.store.tree_views import changed_inputs, open_view
from stoker.store.trees import ReadingStopped, heeding

READ_FIRST = "what it reads first"
"""What may change before a node begins, for people."""
EDITED_CODE = "its code, which it read itself or a program that it started may have read,"
"""What may change before a node ends, for people."""
_OUTDATED = StageFailure(cause=FailureCause.INPUT, message="what it reads first changed before it began")
# How long the loop waits for an inline stage before it looks around.
_INLINE_TURN_S = 0.1

_NAMED = 3
"""How many changed inputs a message names."""


@frozen
class AttemptReport:
    """How an attempt ended, for the loop."""

    name: str
    attempt: int
    seconds: float
    committed: CacheCommit | None
    failed: StageFailure | None
    usage: AttemptUsage
    outdated: str = ""
    """What has changed since it was decided about, so that nothing is kept: `READ_FIRST` or `EDITED_CODE`."""


@changeable
class InFlightAttempt:
    """An attempt under way, as the loop sees it."""

    name: str
    node: PlanNode
    execute: Execute
    grant: PermitGrant
    work: Work
    attempt: StageAttempt
    number: int
    started_s: float
    reports: Reports
    memory_bytes: int | None = None
    """Its cap."""
    is_here: bool = False
    """It runs in this process."""
    share_key: str = ""
    """The word of the shared process that it is a member of."""
    taken: AttemptDevices | None = None
    """Its devices."""
    stop_cause: FailureCause | None = None
    """Set once it was asked to stop: whatever it answers after that does not count."""
    stop_why: str = ""
    """For people, where the cause alone does not tell."""
    kill_at_s: float = 0.0
    is_killed: bool = False
    is_committing: bool = False
    """The work has ended well and its result is being kept."""
    is_over: threading.Event = fresh(factory=threading.Event)


class Attempts:
    """Starts attempts and collects their reports in one queue."""

    def __init__(
        self,
        *,
        cache: Cache,
        memory: MemoryGate,
        clock: Clock,
        folders: RunFolders,
        status: StatusWriter,
        is_cancelled: Callable[[], bool],
    ) -> None:
        self._cache = cache
        self._memory = memory
        self._clock = clock
        self._folders = folders
        self._status = status
        self._is_cancelled = is_cancelled
        self._kept: list[str] = []
        self._is_closed = False
        self._idle: list[queue.SimpleQueue[Callable[[], None] | None]] = []
        self.reports: queue.SimpleQueue[AttemptReport | None] = queue.SimpleQueue()

    def start(  # noqa: PLR0913 - what an attempt is made of
        self,
        waiting: QueuedNode,
        *,
        grant: PermitGrant,
        taken: AttemptDevices | None,
        number: int,
        runner: StageRunner,
        code: tuple[ModuleSource, ...],
        memory_bytes: int | None = None,
    ) -> InFlightAttempt:
        """Start one attempt; its report comes through the queue."""
        name, node, execute, inputs = waiting.name, waiting.node, waiting.execute, waiting.inputs
        staging = self._staging_for(node, execute, is_here=runner.is_here)
        scratch = self._scratch_of(node, execute)
        curves = self._folders.curves_of(name)
        earlier = EarlierCurves(scratch, (curves, self._folders.metrics_of(name))) if scratch else None
        reports = Reports(curves, self._clock, earlier)
        given = taken or NOTHING_TAKEN
        work = Work(
            node=name,
            stage=node.stage,
            args=node.args,
            inputs={
                port: tuple(GivenInput(ref=product.ref, where=self._where(product)) for product in products)
                for port, products in inputs.items()
            },
            out=staging,
            folders=self._folders,
            code=code,
            devices=given.devices,
            variables=given.variables,
            started=given.started,
            claim=given.claim,
            ranks=node.needs.ranks,
            attempt=number,
            scratch=scratch,
            resume_key=resume_key(node.stage, execute.action) if node.stage.is_program else "",
            memory_bytes=memory_bytes,
            process_key=shared_process_key(node.stage, waiting.needs.share_key, execute.action)
            if waiting.needs.share_key
            else "",
            most=waiting.needs.most,
            in_pass=waiting.needs.in_pass,
            short_of_base=lambda: self._memory.short_of_base(node),
            emit=lambda report: self._pass_on(name, reports.take(report)),
            is_cancelled=self._is_cancelled,
        )
        running = InFlightAttempt(
            name=name,
            node=node,
            execute=execute,
            grant=grant,
            work=work,
            attempt=runner.attempt(work),
            number=number,
            started_s=self._clock.monotonic_s(),
            reports=reports,
            memory_bytes=memory_bytes,
            is_here=runner.is_here,
            share_key=waiting.needs.share_key,
            taken=taken,
        )
        if runner.is_here:
            self._hand_over(lambda: self._see_through(running, staging, inputs))
            running.is_over.wait(_INLINE_TURN_S)
        else:
            threading.Thread(
                target=self._see_through, args=(running, staging, inputs), name=f"stage {name}", daemon=True
            ).start()
        return running

    def _hand_over(self, work: Callable[[], None]) -> None:
        """Run some work in an idle thread; start a thread if none is idle."""
        if self._idle:
            orders = self._idle.pop()
        else:
            orders = queue.SimpleQueue()
            threading.Thread(target=self._take_orders, args=(orders,), name="inline stages", daemon=True).start()
        orders.put(work)

    def _take_orders(self, orders: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while (work := orders.get()) is not None:
            work()
            self._idle.append(orders)
            # In this order: `close` either finds it among those that are idle, or was called before this.
            if self._is_closed:
                return

    def close(self) -> None:
        """End the threads that are idle, and remove the staging folders that were kept for the next attempt."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().put(None)
        while self._kept:
            # What stays is cleared as rubbish one day; it must not take a finished run's result with it.
            with suppress(StokerError):
                remove_tree(self._kept.pop())

    def wake(self) -> None:
        """Make the loop look around. May be called from a signal handler."""
        self.reports.put(None)

    def _staging_for(self, node: PlanNode, execute: Execute, *, is_here: bool) -> str:
        while is_here and self._kept:
            kept = self._kept.pop()
            # A process in another container, which can't see this one, may have removed it as a leftover.
            if os.path.isdir(kept):
                return kept
        stage_name = node.stage.name.replace("/", "-")
        return self._cache.store.new_staging(f"{stage_name}.{execute.key[:12]}")

    def _scratch_of(self, node: PlanNode, execute: Execute) -> str:
        """Name the scratch folder of a piece of work; of a program, as long as its checkpoints fit."""
        if node.stage.inline:
            return ""
        key = resume_key(node.stage, execute.action) if node.stage.is_program else execute.key
        return scratch_path(self._folders.scratch, key)

    def _clear(self, staging: str, *, keep: bool) -> None:
        """Empty a staging folder; nearly all of them are flat and writable, which needs no care.

        Only inline stages use a folder again: nothing that a process left behind may ever write into another's.
        """
        try:
            for name in os.listdir(staging):
                os.unlink(os.path.join(staging, name))
            if keep:
                self._kept.append(staging)
            else:
                os.rmdir(staging)
        except OSError:
            remove_tree(staging)

    def _where(self, product: NodeProduct) -> Callable[[], str]:
        def find() -> str:
            view = open_view(self._cache.store, product.record, below=product.folder)
            return os.path.join(view, product.folder) if product.folder else view

        return find

    def _see_through(self, running: InFlightAttempt, staging: str, inputs: dict[str, tuple[NodeProduct, ...]]) -> None:
        committed: CacheCommit | None = None
        failed: StageFailure | None = None
        usage = AttemptUsage()
        is_outdated = False
        try:
            with heeding(lambda _: self._go_on(running)):
                is_outdated = not self._cache.still_begins_with(running.node, running.execute.action)
            outcome = _OUTDATED if is_outdated else running.attempt.run()
            lost = running.reports.close()
            if lost:
                self._pass_on(running.name, {"log": lost})
            usage = outcome.usage
            if isinstance(outcome, StageSuccess):
                running.is_committing = True
                with heeding(lambda _: self._go_on(running)):
                    failed = self._objection(running, inputs)
                    if failed is None:
                        committed = self._commit(running, staging, outcome)
            else:
                failed = outcome
                self._tidy_after(running, outcome)
        except ReadingStopped:
            failed = StageFailure(cause=running.stop_cause or FailureCause.CANCELLED, message="it was asked to stop")
        except Cancelled as error:
            failed = StageFailure(cause=running.stop_cause or FailureCause.CANCELLED, message=str(error))
        except InvalidInput as error:
            listed = "; ".join(map(str, error.faults[:3]))
            failed = StageFailure(cause=FailureCause.VALIDATION, message=f"its result can't be stored: {listed}")
        except StokerError as error:
            failed = StageFailure(cause=FailureCause.IO, message=str(error), hint=error.hint, error_code=error.code)
        except Exception as error:  # noqa: BLE001 - a thread that dies without a report would hang the run
            failed = StageFailure(cause=FailureCause.IO, message=f"{type(error).__name__}: {error}", error_code="bug")
        finally:
            # Whatever happens here, the report goes out: the loop waits for it.
            with suppress(StokerError):
                # Not from one that was asked to stop: it may have been left behind, and outlive this run.
                self._clear(staging, keep=running.is_here and running.stop_cause is None)
            running.is_over.set()
            self.reports.put(
                AttemptReport(
                    name=running.name,
                    attempt=running.number,
                    seconds=self._clock.monotonic_s() - running.started_s,
                    committed=committed,
                    failed=failed,
                    usage=usage,
                    outdated=READ_FIRST if is_outdated else _edited_code(running, failed),
                )
            )

    def _pass_on(self, name: str, report: dict[str, Any]) -> None:
        """Write what a stage reports while it runs to the journal. Thread-safe."""
        if "step" in report:
            metrics = report.get("metrics", {})
            fields = {"node": name, "step": report["step"], "of": report.get("of"), "metrics": metrics}
            self._status.emit(Event(Kinds.STAGE_STEP, fields))
        elif "log" in report:
            self._status.emit(Event(Kinds.STAGE_LOG, {"node": name, "text": str(report["log"])}))
        elif "told" in report:
            at_once = {"at_once": True} if report.get("at_once") else {}
            self._status.emit(Event(Kinds.STAGE_TOLD, {"node": name, "text": str(report["told"]), **at_once}))

    def _tidy_after(self, running: InFlightAttempt, failed: StageFailure) -> None:
        """Keep what a failed stage has to say, and nothing that code other than its key's may have left."""
        if running.is_here and failed.detail:
            # The traceback of an inline stage lies where a child would have written it.
            log = LogFile(self._folders.log_of(running.name))
            log.write(failed.detail.encode(errors="replace"))
            log.close()
        if failed.error_code == CODE_EDITED.error_code and running.work.scratch:
            clear_scratch(running.work.scratch)

    def _objection(self, running: InFlightAttempt, inputs: dict[str, tuple[NodeProduct, ...]]) -> StageFailure | None:
        """Return why what a finished stage made may not be kept, if there is a reason."""
        if self._is_too_late(running):
            return StageFailure(
                cause=running.stop_cause or FailureCause.CANCELLED, message="it finished after it was asked to stop"
            )
        reads = self._cache.changed_reads(running.node, running.execute.action)
        if reads:
            return StageFailure(
                cause=FailureCause.IO,
                message=f"input changed while the stage ran: {some_of(reads, _NAMED)}",
                hint="run it again when nothing writes to its inputs",
            )
        if running.is_here:
            return None
        changed = [
            path
            for products in inputs.values()
            for product in products
            for path in changed_inputs(self._cache.store, product.record, below=product.folder)
        ]
        if not changed:
            return None
        return StageFailure(
            cause=FailureCause.VALIDATION,
            message=f"it changed its input ({', '.join(changed)})",
            hint="inputs are read-only: write below job.out",
        )

    def _commit(self, running: InFlightAttempt, staging: str, outcome: StageSuccess) -> CacheCommit:
        facts = {
            "stage": running.node.stage.name,
            "kind": str(running.node.stage.output.ref()),
            "seconds": round(self._clock.monotonic_s() - running.started_s, 6),
            "peak_rss_bytes": outcome.usage.peak_rss_bytes,
            # Whose result it is; their folder has the curves behind the last values of metrics.
            "attempt": self._folders.run_id,
            "node": running.name,
        }
        if running.taken is not None:
            facts["peak_gpu_bytes"] = running.taken.peak_bytes
        if outcome.usage.member_usage is not None:
            facts[MEMBER_USAGE] = outcome.usage.member_usage.to_json()
        if running.reports.last:
            facts["metrics"] = running.reports.last
        facts["manifest"] = outcome.manifest or manifest_of_stage(running.work)
        execute = running.execute
        committed = self._cache.commit(
            execute.action,
            execute.key,
            staging,
            facts=facts,
            force=execute.force,
            is_unwanted=lambda: self._is_too_late(running),
        )
        if not running.node.stage.inline:
            clear_scratch(self._scratch_of(running.node, execute))
        return committed

    def _go_on(self, running: InFlightAttempt) -> None:
        """Raise `ReadingStopped` if the attempt was asked to stop: reading a large folder takes long."""
        if self._is_too_late(running):
            raise ReadingStopped

    def _is_too_late(self, running: InFlightAttempt) -> bool:
        """Return True if the run or this attempt was asked to stop: its result is not accepted any more."""
        if running.stop_cause is None and self._is_cancelled():
            running.stop_cause = FailureCause.CANCELLED
        return running.stop_cause is not None


def _edited_code(running: InFlightAttempt, failed: StageFailure | None) -> str:
    """Return `EDITED_CODE` if that is why it failed; one that was asked to stop ended because of that."""
    is_so = failed is not None and failed.error_code == CODE_EDITED.error_code and running.stop_cause is None
    return EDITED_CODE if is_so else ""


# What a killed attempt may need to give its report.
_LAST_WORDS_S = 10.0


class InFlightAttempts:
    """The attempts of one run, by node. Only the executor's loop uses it.

    A time-out and a cancelled run first ask; an attempt that has not ended after the grace period is killed. Work in
    our own process can't be killed: it is left behind, and whatever it answers is not taken.
    """

    def __init__(self, *, clock: Clock, grace_s: float) -> None:
        self._clock = clock
        self._grace_s = grace_s
        self._running: dict[str, InFlightAttempt] = {}

    def __len__(self) -> int:
        """How many run at once; a shared process is one, however many members it has."""
        alone = sum(1 for running in self._running.values() if not running.share_key)
        return alone + len(self.share_keys)

    def __contains__(self, name: str) -> bool:
        return name in self._running

    @property
    def share_keys(self) -> frozenset[str]:
        """Return the words of the shared processes that some are members of."""
        return frozenset(running.share_key for running in self._running.values() if running.share_key)

    def add(self, running: InFlightAttempt) -> None:
        """Take in an attempt that has been started."""
        self._running[running.name] = running

    def take(self, report: AttemptReport) -> InFlightAttempt | None:
        """Take out the attempt that a report is about; nothing if that was left behind."""
        running = self._running.get(report.name)
        if running is None or running.number != report.attempt:
            return None
        return self._running.pop(report.name)

    def notice(self, noticed: DeviceNotice) -> str:
        """Ask work that holds far more of a device than it was promised to stop; returns the warning.

        Empty for work that is over: its end reported what it took.
        """
        if noticed.taken is None:
            return noticed.message
        running = next((one for one in self._running.values() if one.taken is noticed.taken), None)
        if running is None:
            return ""
        if noticed.is_over_limit and running.stop_cause is None and not running.is_committing:
            running.stop_why = f"out of GPU memory: {noticed.message}"
            self._ask(running, FailureCause.OOM_DEVICE)
        return f"{running.name}: {noticed.message}"

    def ask_all(self) -> None:
        """Ask every attempt to stop, because the run is stopping."""
        for running in self._running.values():
            self._ask(running, FailureCause.CANCELLED)

    def ask(self, names: Iterable[str]) -> None:
        """Ask the attempts of these nodes to stop, those that run."""
        for name in names:
            if name in self._running:
                self._ask(self._running[name], FailureCause.CANCELLED)

    def watch(self) -> list[InFlightAttempt]:
        """Ask those past their limit, kill those past their grace; give, and let go of, those that can't be killed."""
        now_s = self._clock.monotonic_s()
        left_behind = []
        for running in self._running.values():
            limit_s = running.node.limit_s
            is_late = limit_s is not None and now_s - running.started_s > limit_s
            # Work that has ended in time is not late because its result takes long to keep.
            if is_late and not running.is_committing:
                self._ask(running, FailureCause.TIMEOUT)
            if running.stop_cause is None or running.is_killed or now_s < running.kill_at_s:
                continue
            running.is_killed = True
            if not _kill(running):
                left_behind.append(running)
        for running in left_behind:
            del self._running[running.name]
        return left_behind

    def drop_all(self) -> None:
        """Stop every attempt and wait for it; for a loop that can't continue itself."""
        self.ask_all()
        deadline_s = self._clock.monotonic_s() + self._grace_s
        for running in self._running.values():
            if not running.is_over.wait(max(0.0, deadline_s - self._clock.monotonic_s())) and _kill(running):
                running.is_over.wait(_LAST_WORDS_S)
        self._running.clear()

    def _ask(self, running: InFlightAttempt, cause: FailureCause) -> None:
        if running.stop_cause is None:
            running.stop_cause = cause
            running.kill_at_s = self._clock.monotonic_s() + self._grace_s
            with suppress(ProcessLost):
                running.attempt.ask_to_stop()


def _kill(running: InFlightAttempt) -> bool:
    try:
        return running.attempt.kill()
    except ProcessLost:
        # It survived even that: nothing more can be done here.
        return False
