"""Run one job on this machine: from its plan to results in the store and in a plain folder.

`stoker run` and a worker's attempt both call it. Order at the end: results in the store (by the executor), then the
plain folder, then the receipt, then `end.json`, then the last event.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Protocol

from stoker.core.clock import Clock
from stoker.core.digests import Digest
from stoker.core.errors import Cancelled, InternalError, StokerError, Terminated, TrialsCancelled, exit_code_of
from stoker.core.events import Event, Kinds
from stoker.core.frozen import changeable, changed, fresh, frozen
from stoker.core.job import JobSpec, JobState, variables_of
from stoker.core.text import BEST
from stoker.engine.execution.executor import Executor
from stoker.engine.journal import StatusWriter
from stoker.engine.key_leases import KeyLeases
from stoker.engine.plan import Plan
from stoker.engine.result_cache import NodeProduct
from stoker.engine.runners.stage_runner import RunFolders
from stoker.engine.types import Engine, NodeEnding, RunOptions, RunResult
from stoker.host.durable import remove_tree
from stoker.host.identity import mine, read_row
from stoker.jobs.job_folder import Attempt, JobEnd, JobFolder, job_folders
from stoker.jobs.job_receipt import JobReceipts, write_end_receipt
from stoker.jobs.results import clear_away, count_ends, error_of_sweep, settle_best
from stoker.jobs.stage_plan import stages_paper
from stoker.jobs.trials import KnownMetrics, TrialEnd, is_sweep, shared_nodes
from stoker.store.local_store import LocalStore
from stoker.store.places import names_in
from stoker.store.results import MaterialisedResult, ResultPart, lay_out, make_beside, point_last_at, set_aside

if TYPE_CHECKING:
    from stoker.jobs.builder import JobBuild
    from stoker.jobs.sweeps import IndexEntry, TrialCode
    from stoker.jobs.trial_watch import TrialWatch

_GOOD = frozenset({NodeEnding.HIT, NodeEnding.RAN})

EventListener = Callable[[Event, float, int], None]


@frozen
class ExecutionTools:
    """What running a job needs. `app` builds it."""

    engine: Engine
    store: LocalStore
    clock: Clock
    runs: str
    scratch: str


class Follower(Protocol):
    """Receives the events of a run, and works in threads of its own."""

    def begin(self, emit: Callable[[Event], None]) -> None:
        """Start; `emit` takes its own events."""

    def hear(self, event: Event, at_s: float, seq: int) -> None:
        """Receive an event. Called while the journal is being written: must not block."""

    def finish(self) -> None:
        """End, in bounded time: the run is over."""


@frozen
class JobResult:
    """The end of a job."""

    folder: JobFolder
    result: RunResult | None
    laid_out: MaterialisedResult | None
    error: StokerError | None
    state: JobState
    trials: tuple[TrialEnd, ...] = ()
    """Of a sweep, the ends of its trials, in that order."""


@frozen
class Continuation:
    """What a run keeps from earlier ones."""

    kept: Mapping[str, Digest] = fresh(factory=dict)
    """Node → key of the result that is kept."""
    index: IndexEntry | None = None
    """The index of a program's finished trials."""
    ran_code: TrialCode | None = None
    """Of a program's sweep: checks whether its code is edited during the run."""
    note: str = ""


@changeable
class Execution:
    """One attempt at a job that was built, in this process."""

    build: JobBuild
    attempt: Attempt
    tools: ExecutionTools
    out: str | None
    """The plain folder for the results (`stoker-out/NAME`); None: none. `run` may choose one beside it."""
    options: RunOptions = fresh(factory=RunOptions)
    listeners: tuple[EventListener, ...] = ()
    index: IndexEntry | None = None
    """The index of finished trials of a program's sweep, by which a later run continues it."""
    ran_code: TrialCode | None = None
    """Of a program's sweep: records which code each trial ran."""
    gives_up: bool = True
    """Stop a sweep in which all trials fail in the same way."""
    followers: tuple[Follower, ...] = ()
    """Called with each event of the run."""
    foreseen: Mapping[str, Any] = fresh(factory=dict)
    """More fields of its first event."""
    _executor: Executor | None = None
    _cancelled: StokerError | None = None
    _cancelled_nodes: frozenset[str] = frozenset()
    _guard: threading.Lock = fresh(factory=threading.Lock)
    _emit: Callable[[Event], None] | None = None
    _receipts: JobReceipts | None = None
    _made_out: str = ""
    """The folder made for the results because a running job uses the requested one."""

    def cancel(self, error: StokerError) -> None:
        """Request a stop. May be called from a signal handler."""
        self._cancelled = error
        if self._executor is not None:
            self._executor.cancel(error)

    def run(self) -> JobResult:
        """Run to the end. Raises only if the job's folder can't be written, or for an internal error."""
        tools = self.tools
        receipts = self._begin()
        folder = receipts.folder
        watch = self._watch(folder) if is_sweep(self.build.trials) else None
        followers = self.followers if watch is None else (*self.followers, watch)
        listeners = (self._hear_code, receipts.hear, *self.listeners, *(one.hear for one in followers))
        status = StatusWriter(folder.status_path, source=self.attempt.id, clock=tools.clock, listeners=listeners)
        result: RunResult | None = None
        laid_out: MaterialisedResult | None = None
        error: StokerError | None = None
        self._emit = status.emit
        with closing(status):
            for one in followers:
                one.begin(status.emit)
            try:
                try:
                    result = self._execute(folder, status)
                finally:
                    for one in followers:
                        one.finish()
                error = result.error or (watch.trouble if watch else None)
                if watch is not None and error is result.error:
                    error = error_of_sweep(error, watch.ends, len(self.build.trials))
                laid_out = self._lay_out(result) if watch is None else None
            except StokerError as problem:
                error = error or problem
            except Exception as problem:
                self._write_end(receipts, self._end(result, InternalError(f"{type(problem).__name__}: {problem}")))
                raise
            ends = watch.ends if watch is not None else ()
            self._settle_out(ends, laid_out)
            end = self._end(result, error, laid_out, has_out=any(one.out for one in ends))
            self._write_end(receipts, end, ends)
            fields = {name: value for name, value in end.to_json().items() if name not in ("v", "keys", "parts")}
            if watch is not None:
                fields["trials"] = count_ends(ends, len(self.build.trials))
            status.emit(Event(Kinds.RUN_END, fields))
        self._end_index()
        return JobResult(folder=folder, result=result, laid_out=laid_out, error=error, state=end.state, trials=ends)

    def _end_index(self) -> None:
        # Without this line the next job keeps a few more trials than it had to.
        with suppress(StokerError):
            if self.index is not None:
                self.index.end()

    def _begin(self) -> JobReceipts:
        """Make the job's folder; return what makes its receipts."""
        papers = {**self.build.papers, **stages_paper(self.build.plan)}
        folder = JobFolder.begin(self.tools.runs, self.attempt, mine(), papers)
        self._receipts = JobReceipts(folder, self.attempt, self.tools.store, papers=papers, code=self.build.code)
        return self._receipts

    def _execute(self, folder: JobFolder, status: StatusWriter) -> RunResult:
        status.emit(Event(Kinds.RUN_BEGIN, self._begin_fields()))
        self._claim_out(folder)
        clear_stale_staging(self.tools.store, self.tools.engine.leases)
        specs = self._specs()
        folders = changed(
            folders_of(folder, self.tools),
            name=self.attempt.spec.name,
            variables_of=lambda node: variables_of(specs.get(node.partition("[")[0], self.attempt.spec)),
        )
        executor = Executor(self.build.plan, self.tools.engine, status=status, folders=folders, options=self.options)
        with self._guard:
            self._executor = executor
            if self._cancelled_nodes:
                executor.cancel_nodes(self._cancelled_nodes)
        if self._cancelled is not None:
            executor.cancel(self._cancelled)
        result = executor.run()
        for warning in result.warnings:
            status.emit(Event(Kinds.WARNING, {"message": warning}))
        return result

    def _write_end(self, receipts: JobReceipts, end: JobEnd, trials: tuple[TrialEnd, ...] = ()) -> None:
        """Write the job's receipt, then its end. If the receipt fails the work has not: a warning has the reason."""
        try:
            receipts.write(end, trials=trials)
        except (StokerError, OSError) as error:
            self._warn(Event(Kinds.WARNING, {"message": f"no receipt could be written: {error}"}))
        receipts.folder.end(end)

    def _specs(self) -> dict[str, JobSpec]:
        """Return the trial of a sweep that each node belongs to; without nodes that several trials share."""
        trials = self.build.trials if is_sweep(self.build.trials) else ()
        shared = shared_nodes(trials)
        return {node: trial.spec for trial in trials for node in trial.nodes.nodes if node not in shared}

    def _begin_fields(self) -> dict[str, Any]:
        return {
            "job": self.attempt.spec.name,
            "attempt": self.attempt.id,
            "job_id": self.attempt.spec.id,
            "recipe": self.attempt.spec.recipe,
            "plan": self.build.plan.name,
            "stages": len(self.build.plan.nodes),
            **self.foreseen,
        }

    def _hear_code(self, event: Event, _at_s: float, _seq: int) -> None:
        if self.ran_code is not None and event.kind == Kinds.STAGE_BEGIN:
            self.ran_code.begin(str(event.fields["node"]))

    def _watch(self, folder: JobFolder) -> TrialWatch:
        from stoker.jobs.trial_watch import TrialWatch  # noqa: PLC0415 - for sweeps alone

        return TrialWatch(
            self.build.trials,
            settle=self._settle,
            give_up=self.cancel if self.gives_up else _go_on,
            cancel_nodes=self._cancel_nodes,
            requests=folder.trials_to_cancel,
            metrics=KnownMetrics(self.tools.store),
        )

    def _cancel_nodes(self, names: frozenset[str]) -> None:
        """Cancel some nodes and continue with the rest; called from the thread that watches trials."""
        with self._guard:
            self._cancelled_nodes = names
            if self._executor is not None:
                self._executor.cancel_nodes(names)

    def _settle(self, end: TrialEnd) -> str | None:
        """Record a trial, lay it out, write its receipt, then warn if it ran edited code; return its plain folder."""
        try:
            out = self._lay_out_trial(end)
            if self._receipts is not None:
                code = self.ran_code.files_of(end.trial) if self.ran_code is not None else None
                self._receipts.add_trial(end, out=out, ended_s=self.tools.clock.wall_s(), code=code)
            return out
        finally:
            if self.ran_code is not None:
                self._warn(self.ran_code.warning(end.trial))

    def _lay_out_trial(self, end: TrialEnd) -> str | None:
        """Record a trial, lay it out as plain files, and return where. Of a failed one, remove an older result."""
        from stoker.jobs.results import parts_of_trial  # noqa: PLC0415 - for sweeps alone

        trial, is_good = end.trial, end.state == "completed"
        if self.index is not None and is_good and not end.is_kept:
            code = self.ran_code.of(trial) if self.ran_code is not None else self.index.code
            self.index.note(trial.spec.id, key=end.keys[trial.nodes.final], digest=end.digest, code=code)
        if self.out is None:
            return None
        folder = os.path.join(self.out, trial.spec.label)
        if not is_good:
            clear_away(self.tools.store, folder)
            return None
        self._set_aside(for_trials=True)
        parts = parts_of_trial(self.tools.store, end, below="", recipe=self.attempt.spec.recipe)
        laid_out = lay_out(self.tools.store, parts, folder)
        point_last_at(os.path.dirname(self.out), os.path.basename(self.out))
        return laid_out.folder

    def _settle_out(self, ends: tuple[TrialEnd, ...], laid_out: MaterialisedResult | None) -> None:
        """Set the plain folder's link to the best trial; remove a folder that stayed empty."""
        if self.ran_code is not None:
            self._warn(self.ran_code.summary((end.trial for end in ends), len(self.build.trials)))
        self._settle_best(ends, laid_out)
        if self._made_out:
            # Fails, as it should, if anything lies in it.
            with suppress(OSError):
                os.rmdir(self._made_out)

    def _warn(self, warning: Event | None) -> None:
        """Write a warning to the journal. A failure to write it is ignored: the work is done."""
        if warning is not None and self._emit is not None:
            with suppress(StokerError, OSError):
                self._emit(warning)

    def _settle_best(self, ends: tuple[TrialEnd, ...], laid_out: MaterialisedResult | None) -> None:
        """Point `best` at the best trial, or remove it if there is none. Warn if another file has that name."""
        if self.out is None or (laid_out is not None and BEST in laid_out.files):
            return
        best, in_the_way = self._best_of(ends), ""
        label = best.trial.spec.label if best is not None else None
        # The work has not failed if a link can't be made.
        with suppress(StokerError, OSError):
            in_the_way = settle_best(self.out, label, [trial.spec.label for trial in self.build.trials])
        if in_the_way:
            message = f"{in_the_way} exists and is not a link of Stoker: no link to the best trial, {label}"
            self._warn(Event(Kinds.WARNING, {"message": message}))

    def _best_of(self, ends: tuple[TrialEnd, ...]) -> TrialEnd | None:
        """Return the best of the trials that shared a process, if they can be compared, or the only one."""
        done = [end for end in ends if end.out is not None]
        if not done or not any(node.stage.together for node in self.build.plan.nodes):
            return None
        from stoker.jobs.trial_watch import rank_trials  # noqa: PLC0415 - for sweeps alone

        ranked = rank_trials(done, self.build.trials[0].spec.args)
        if ranked is not None and ranked.best is not None:
            return ranked.best.end
        return done[0] if len(done) == 1 else None

    def _lay_out(self, result: RunResult) -> MaterialisedResult | None:
        parts = result_parts(self.build.plan, result) if self.out is not None else []
        if not parts or self.out is None:
            return None
        self._set_aside(for_trials=False)
        laid_out = lay_out(self.tools.store, parts, self.out)
        point_last_at(os.path.dirname(self.out), os.path.basename(self.out))
        return laid_out

    def _claim_out(self, folder: JobFolder) -> None:
        """Claim the folder for the results, or one beside it if a running job lays out the other shape there.

        The claim is written before other claims are read: of two that start at once, at least one sees the other.
        """
        if self.out is None:
            return
        for_trials = is_sweep(self.build.trials)
        folder.claim_out(self.out, for_trials=for_trials)
        if not any(
            one.attempt != folder.attempt
            and one.may_be_running()
            and one.claims_out(self.out, for_trials=not for_trials)
            for one in job_folders(self.tools.runs)
        ):
            return
        wanted, self.out = self.out, make_beside(self.out)
        self._made_out = self.out
        folder.claim_out(self.out, for_trials=for_trials)
        if self._emit is not None:
            shape = "a single run" if for_trials else "a sweep"
            message = f"{shape} that is still running writes to {wanted}: results of this run go to {self.out}"
            self._emit(Event(Kinds.WARNING, {"message": message}))

    def _set_aside(self, *, for_trials: bool) -> None:
        """Move results of the other shape (a sweep's or a single run's) out of the folder, with a warning."""
        older = set_aside(self.out, for_trials=for_trials) if self.out is not None else ""
        if older and self._emit is not None:
            shape = "a single run" if for_trials else "a sweep"
            message = f"{self.out} had the results of {shape}: moved to {older}"
            self._emit(Event(Kinds.WARNING, {"message": message}))

    def _end(
        self,
        result: RunResult | None,
        error: StokerError | None,
        laid_out: MaterialisedResult | None = None,
        *,
        has_out: bool = False,
    ) -> JobEnd:
        state = JobState.COMPLETED if error is None else JobState.FAILED
        if isinstance(error, Cancelled | Terminated | TrialsCancelled):
            state = JobState.CANCELLED
        nodes = result.nodes if result else {}
        return JobEnd(
            state=state,
            ended_s=self.tools.clock.wall_s(),
            hits=result.hits if result else 0,
            ran=result.ran if result else 0,
            failed=len(result.failures()) if result else 0,
            elapsed_s=round(result.elapsed_s, 6) if result else 0.0,
            exit_code=exit_code_of(error) if error else 0,
            error=error.to_dict() if error else None,
            keys={name: str(node.key) for name, node in nodes.items() if node.key and node.ending in _GOOD},
            out=laid_out.folder if laid_out else self.out if has_out else None,
            parts=(self.build.plan.final, *self.build.plan.keep),
        )


def folders_of(folder: JobFolder, tools: ExecutionTools) -> RunFolders:
    """Return the folders of a run's logs and metrics."""
    return RunFolders(
        run_id=folder.attempt,
        logs=folder.log_folder,
        metrics=folder.metrics_folder,
        scratch=tools.scratch,
    )


def _go_on(_why: StokerError) -> None:
    """Do not give up a sweep."""


def abandon(tools: ExecutionTools, attempt: Attempt, error: StokerError) -> None:
    """Write the end of an attempt and remove its staging folders: the last act of a process that must exit now."""
    folder = JobFolder(os.path.join(tools.runs, attempt.id))
    if folder.ended() is None:
        end = JobEnd.given_up(error, started_s=attempt.started_s, ended_s=tools.clock.wall_s())
        write_end_receipt(folder, attempt, end)
        folder.end(end)
    staging = tools.store.places.staging
    for name in os.listdir(staging):
        if name.startswith(f".{os.getpid()}."):
            remove_tree(os.path.join(staging, name))


def result_parts(plan: Plan, result: RunResult) -> list[ResultPart]:
    """Return the results to lay out: the final one at the top, kept ones in folders of their own."""
    parts = []
    for node_id in (plan.final, *plan.keep):
        for name in _results_of(result, node_id):
            node = result.nodes[name]
            if node.key is not None and node.ending in _GOOD and node.has_bytes:
                # Items of a list lie in one record.
                parts += [_part(plan, node_id, node.key, one, name) for one in node.products[:1]]
    return parts


def _results_of(result: RunResult, node_id: str) -> list[str]:
    """Return the names of the results of a node: its own, or those of its instances."""
    node = result.nodes.get(node_id)
    if node is None:
        return []
    return [node_id] if node.instances is None else [f"{node_id}[{index}]" for index in range(node.instances)]


def _part(plan: Plan, node_id: str, key: Digest, product: NodeProduct, name: str) -> ResultPart:
    return ResultPart(
        record=product.record,
        folder="" if name == plan.final else name,
        sidecar={
            "node": name,
            "kind": product.ref.kind.name,
            "version": product.ref.kind.version,
            "digest": product.ref.digest,
            "stage": plan.node(node_id).stage.name,
            "key": key,
            "made_at": product.record.body.get("made_at"),
        },
    )


def clear_stale_staging(store: LocalStore, leases: KeyLeases) -> None:
    """Remove staging folders of killed runs. Lists one folder if there are none."""
    if names_in(store.places.staging):
        for path in stale_staging(store, leases.held()):
            with suppress(StokerError):
                remove_tree(path)


def stale_staging(store: LocalStore, held: list[Digest]) -> Iterator[str]:
    """Return the staging folders `.PID.….KEY` whose process is gone.

    A process in another container can't be seen, but it renews its lease on the key.
    """
    busy = {key[:12] for key in held}
    for name in names_in(store.places.staging):
        pid, _, rest = name.removeprefix(".").partition(".")
        row = read_row(int(pid)) if pid.isdigit() else None
        if pid.isdigit() and (row is None or row.is_gone) and rest.rpartition(".")[2] not in busy:
            yield os.path.join(store.places.staging, name)
