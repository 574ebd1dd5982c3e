"""One attempt from start to committed result, in a thread beside the loop.

Everything slow happens here: running, checking that inputs were left alone, taking the output into the store. The
executor's loop only reads the report. For an inline stage the loop waits a moment: nearly all of them are over by then,
and two threads that compete for the interpreter at every system call cost more than such a stage does (2.1 ms instead
of 1.2 ms). One that takes longer goes on beside the loop.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from stoker.host.durable import remove_tree
from stoker.host.imports import Source
from stoker.host.log_file import LogFile
from stoker.model.clock import Clock
from stoker.model.errors import Cancelled, Faults, StokerError
from stoker.model.frozen import changeable, fresh, frozen
from stoker.model.printable import some_of
from stoker.model.retry import Cause
from stoker.plan.admitting import MemoryGate
from stoker.plan.cache import Cache, Committed, Product
from stoker.plan.checkpoints import resume_key
from stoker.plan.company.keys import company_key
from stoker.plan.device.gate import NOTHING_TAKEN, Taken
from stoker.plan.execution.queueing import Waiting
from stoker.plan.graph import Node
from stoker.plan.metrics.earlier import EarlierCurves
from stoker.plan.permits import Grant
from stoker.plan.program.manifest import manifest_of_stage
from stoker.plan.reports import Reports
from stoker.plan.resolve import Execute
from stoker.plan.run_folders import RunFolders
from stoker.plan.runner import CODE_EDITED, Attempt, Failed, Finished, GivenInput, StageRunner, Usage, Work
from stoker.plan.scratch import clear_scratch, scratch_path
from stoker.store.trees import ReadingStopped, heeding
from stoker.store.views import changed_inputs, open_view

READ_FIRST = "what it reads first"
"""What may change before a node begins, for people."""
EDITED_CODE = "its code, which it read itself or a program that it started may have read,"
"""What may change before a node ends, for people."""
_OUTDATED = Failed(cause=Cause.INPUT, message="what it reads first changed before it began")
# How long the loop waits for an inline stage before it looks around.
_INLINE_TURN_S = 0.1

_NAMED = 3
"""How many changed inputs a message names."""


@frozen
class Report:
    """How an attempt ended, for the loop."""

    name: str
    attempt: int
    seconds: float
    committed: Committed | None
    failed: Failed | None
    usage: Usage
    outdated: str = ""
    """What has changed since it was decided about, so that nothing is kept: `READ_FIRST` or `EDITED_CODE`."""


@changeable
class Running:
    """An attempt under way, as the loop sees it."""

    name: str
    node: Node
    execute: Execute
    grant: Grant
    work: Work
    attempt: Attempt
    number: int
    started_s: float
    reports: Reports
    memory_bytes: int | None = None
    """Its cap."""
    is_here: bool = False
    """It runs in this process."""
    company: str = ""
    """The word of the company that it is a member of."""
    taken: Taken | None = None
    """Its devices."""
    stop_cause: Cause | None = None
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
        emit_step: Callable[[str, dict[str, Any]], None],
        is_cancelled: Callable[[], bool],
    ) -> None:
        self._cache = cache
        self._memory = memory
        self._clock = clock
        self._folders = folders
        self._emit_step = emit_step
        self._is_cancelled = is_cancelled
        self._kept: list[str] = []
        self._is_closed = False
        self._idle: list[queue.SimpleQueue[Callable[[], None] | None]] = []
        self.reports: queue.SimpleQueue[Report | None] = queue.SimpleQueue()

    def start(  # noqa: PLR0913 - what an attempt is made of
        self,
        waiting: Waiting,
        *,
        grant: Grant,
        taken: Taken | None,
        number: int,
        runner: StageRunner,
        code: tuple[Source, ...],
        memory_bytes: int | None = None,
    ) -> Running:
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
            company=company_key(node.stage, waiting.needs.company, execute.action) if waiting.needs.company else "",
            most=waiting.needs.most,
            short_of_base=lambda: self._memory.short_of_base(node),
            emit=lambda report: self._emit_step(name, reports.take(report)),
            is_cancelled=self._is_cancelled,
        )
        running = Running(
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
            company=waiting.needs.company,
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
        """Have a thread that is idle do some work; one more if none is."""
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

    def _staging_for(self, node: Node, execute: Execute, *, is_here: bool) -> str:
        while is_here and self._kept:
            kept = self._kept.pop()
            # Somebody who can't see this process, in another container, may have cleared it away as a dead one's.
            if os.path.isdir(kept):
                return kept
        stage_name = node.stage.name.replace("/", "-")
        return self._cache.store.new_staging(f"{stage_name}.{execute.key[:12]}")

    def _scratch_of(self, node: Node, execute: Execute) -> str:
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

    def _where(self, product: Product) -> Callable[[], str]:
        def find() -> str:
            view = open_view(self._cache.store, product.record, below=product.folder)
            return os.path.join(view, product.folder) if product.folder else view

        return find

    def _see_through(self, running: Running, staging: str, inputs: dict[str, tuple[Product, ...]]) -> None:
        committed: Committed | None = None
        failed: Failed | None = None
        usage = Usage()
        is_outdated = False
        try:
            with heeding(lambda _: self._go_on(running)):
                is_outdated = not self._cache.still_begins_with(running.node, running.execute.action)
            outcome = _OUTDATED if is_outdated else running.attempt.run()
            lost = running.reports.close()
            if lost:
                self._emit_step(running.name, {"log": lost})
            usage = outcome.usage
            if isinstance(outcome, Finished):
                running.is_committing = True
                with heeding(lambda _: self._go_on(running)):
                    failed = self._objection(running, inputs)
                    if failed is None:
                        committed = self._commit(running, staging, outcome)
            else:
                failed = outcome
                self._tidy_after(running, outcome)
        except ReadingStopped:
            failed = Failed(cause=running.stop_cause or Cause.CANCELLED, message="it was asked to stop")
        except Cancelled as error:
            failed = Failed(cause=running.stop_cause or Cause.CANCELLED, message=str(error))
        except Faults as error:
            listed = "; ".join(map(str, error.faults[:3]))
            failed = Failed(cause=Cause.VALIDATION, message=f"what it made can't be kept: {listed}")
        except StokerError as error:
            failed = Failed(cause=Cause.IO, message=str(error), hint=error.hint, error_code=error.code)
        except Exception as error:  # noqa: BLE001 - a thread that dies without a report would hang the run
            failed = Failed(cause=Cause.IO, message=f"{type(error).__name__}: {error}", error_code="bug")
        finally:
            # Whatever happens here, the report goes out: the loop waits for it.
            with suppress(StokerError):
                # Not from one that was asked to stop: it may have been left behind, and outlive this run.
                self._clear(staging, keep=running.is_here and running.stop_cause is None)
            running.is_over.set()
            self.reports.put(
                Report(
                    name=running.name,
                    attempt=running.number,
                    seconds=self._clock.monotonic_s() - running.started_s,
                    committed=committed,
                    failed=failed,
                    usage=usage,
                    outdated=READ_FIRST if is_outdated else _edited_code(running, failed),
                )
            )

    def _tidy_after(self, running: Running, failed: Failed) -> None:
        """Keep what a failed stage has to say, and nothing that code other than its key's may have left."""
        if running.is_here and failed.detail:
            self._log(running.name, failed.detail)
        if failed.error_code == CODE_EDITED.error_code and running.work.scratch:
            clear_scratch(running.work.scratch)

    def _log(self, name: str, text: str) -> None:
        """Keep the traceback of an inline stage where a child would have written it."""
        log = LogFile(self._log_path(name))
        log.write(text.encode(errors="replace"))
        log.close()

    def _log_path(self, name: str) -> str:
        return self._folders.log_of(name)

    def _objection(self, running: Running, inputs: dict[str, tuple[Product, ...]]) -> Failed | None:
        """Say why what a finished stage made may not be kept, if there is a reason."""
        if self._is_too_late(running):
            return Failed(cause=running.stop_cause or Cause.CANCELLED, message="it finished after it was asked to stop")
        reads = self._cache.changed_reads(running.node, running.execute.action)
        if reads:
            return Failed(
                cause=Cause.IO,
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
        return Failed(
            cause=Cause.VALIDATION,
            message=f"it changed its input ({', '.join(changed)})",
            hint="inputs are read-only: write below job.out",
        )

    def _commit(self, running: Running, staging: str, outcome: Finished) -> Committed:
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
        if outcome.usage.stay is not None:
            facts["company"] = outcome.usage.stay.to_json()
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

    def _go_on(self, running: Running) -> None:
        """Stop reading for an attempt that was asked to stop: a large folder takes longer than anybody waits."""
        if self._is_too_late(running):
            raise ReadingStopped

    def _is_too_late(self, running: Running) -> bool:
        """Whether the run, or this attempt, was told to stop: what it gives is not taken any more."""
        if running.stop_cause is None and self._is_cancelled():
            running.stop_cause = Cause.CANCELLED
        return running.stop_cause is not None


def _edited_code(running: Running, failed: Failed | None) -> str:
    """Return `EDITED_CODE` if that is why it failed; one that was asked to stop ended because of that."""
    is_so = failed is not None and failed.error_code == CODE_EDITED.error_code and running.stop_cause is None
    return EDITED_CODE if is_so else ""
