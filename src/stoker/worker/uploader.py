"""Results and reports of an attempt, sent to the coordinator in order, with retries.

Bytes, then name: logs and metrics are mirrored and the bundle is stored by the coordinator before the report that
refers to it is sent. A report is only sent while the lease is valid by this machine's clock. After a response that the
attempt belongs to another worker, nothing more is sent.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from stoker.core.digests import Tree
from stoker.core.errors import (
    BadInput,
    Cancelled,
    Conflict,
    Damaged,
    Forbidden,
    InternalError,
    NotFound,
    Refused,
    StokerError,
    VersionSkew,
)
from stoker.core.job import JobState
from stoker.core.leases import AttemptToken
from stoker.core.retry import FailureCause
from stoker.core.text import one_line
from stoker.engine.journal import read_status
from stoker.host.durable import remove_tree, translated
from stoker.host.writers import LogFile
from stoker.jobs.job_folder import JobFolder, read_python
from stoker.jobs.job_history import tell
from stoker.jobs.job_receipt import receipt_digest
from stoker.jobs.results import parts_of_job
from stoker.jobs.trial_settings import read_config
from stoker.jobs.trials import KnownMetrics, TrialEnd, end_of, trials_of_job
from stoker.protocol.lease_messages import CancelConfirmed, Decline, Fail, Finish, Grant, LeaseWrite, Release, Start
from stoker.store.local_store import LocalStore
from stoker.store.results import tree_of
from stoker.transfer.mirror import AttemptFolderSync
from stoker.transfer.trees.tree_sources import TransferBackoff
from stoker.transfer.trees.tree_upload import StoreFileSource, send_tree
from stoker.worker.assignment import AttemptEnd
from stoker.worker.attempt_process import WorkerRuntime
from stoker.worker.checkpoint_transfer import CheckpointShipper, WatchedScratch
from stoker.worker.preparation.input_check import data_facts
from stoker.worker.worker_state import (
    CheckpointSent,
    FinalReport,
    FinalReportAccepted,
    FinalReportKind,
    LeaseLost,
    WorkerRejected,
)


def finish_of(
    grant: Grant, folder: JobFolder, end: AttemptEnd, tree: Tree, *, store: LocalStore, worker: str
) -> Finish:
    """Return the message that records an attempt's result: its tree, metrics, code, and where it ran."""
    trial = trials_of_job(folder)[0]
    trial_end = KnownMetrics(store).added_to(end_of(trial, tell(read_status(folder.status_path)), frozenset()))
    code = read_config(folder).get("code")
    return Finish(
        **grant.token().fence(),
        tree=tree.digest(),
        size_bytes=tree.size_bytes,
        metrics={name: float(value) for name, value in trial_end.metrics.items()},
        seconds=max(0.0, end.seconds),
        code={str(name): str(digest) for name, digest in code.items()} if isinstance(code, dict) else grant.spec.code,
        facts=_facts(grant, folder, trial_end, worker),
    )


def _facts(grant: Grant, folder: JobFolder, trial_end: TrialEnd, worker: str) -> dict[str, Any]:
    facts = {
        "worker": worker,
        "run": folder.attempt,
        "devices": list(grant.devices),
        "environment": folder.environment(),
        "python": read_python(folder),
        "code_tree": grant.spec.code_tree,
        "commit": grant.spec.commit,
        "data": data_facts(grant),
        "receipt": receipt_digest(folder),
        "was_known": trial_end.is_kept,
        "peak_bytes": trial_end.peak_bytes,
        "peak_gpu_bytes": trial_end.peak_gpu_bytes,
    }
    return {name: value for name, value in facts.items() if value not in (None, "", [], {}, False)}


DRAIN_S = 30.0
"""How long a release or a cancellation waits for the rest of logs and checkpoints."""
_EXIT_S = 5.0
"""Between the last checkpoint and the end of a worker's time."""
_LOOK_AGAIN_S = 0.2
_DRAIN_TURN_S = 1.0
_LONGEST_MESSAGE = 3900
_LONGEST_HINT = 1900
_MOST_REFUSALS = 3


class AttemptReporter:
    """Sends the reports of one attempt, from a thread of its own."""

    def __init__(self, runtime: WorkerRuntime, grant: Grant) -> None:
        self._runtime = runtime
        self._worker = runtime.worker
        self._grant = grant
        self._token = grant.token()
        self._fence = self._token.fence()
        self._orders: queue.SimpleQueue[tuple[threading.Event, Callable[[], object]] | None] = queue.SimpleQueue()
        # Each is set once its order is obsolete.
        self._unwanted: list[threading.Event] = []
        self._stop = threading.Event()
        self._is_closed = False
        self._mirror: AttemptFolderSync | None = None
        self._checkpoints: CheckpointShipper | None = None
        self._folder: JobFolder | None = None
        self._thread = threading.Thread(target=self._work, name="stoker-uploader", daemon=True)
        self._thread.start()

    def follow(self, folder: JobFolder) -> None:
        """Start to mirror an attempt's files, and to send its checkpoints."""
        runtime, worker = self._runtime, self._worker
        self._folder = folder
        client, check_lease = worker.lines.bytes, partial(runtime.check_lease, self._token)
        self._mirror = AttemptFolderSync(folder.path, self._token, client, clock=worker.clock, check_lease=check_lease)
        self._mirror.begin()
        self._checkpoints = CheckpointShipper(
            WatchedScratch(root=worker.scratch, run_id=folder.attempt),
            self._token,
            client,
            clock=worker.clock,
            check_lease=check_lease,
            log=self._tell_not_shipped,
            on_sent=self._note_sent,
        )
        self._checkpoints.begin()

    def tell_start(self, run: str) -> None:
        """Report that it runs."""
        report = Start(**self._fence, run=run)
        self._order(lambda: self._say(report))

    def send(self, last: FinalReport, end: AttemptEnd | None) -> None:
        """Send its result and the final report; orders before it are obsolete."""
        for event in self._unwanted:
            event.set()
        stop = self._order(lambda: self._conclude(last, end))
        self._unwanted.append(stop)

    def say_now(self, last: FinalReport, end: AttemptEnd | None) -> None:
        """Send the final report at once, from any thread, and once; orders before it are obsolete."""
        for event in self._unwanted:
            event.set()
        runtime, worker = self._runtime, self._worker
        try:
            if runtime.may_speak(self._token):
                worker.lines.words.write(self._token.job, self._final_message(last, end))
        except StokerError as error:
            runtime.report(LeaseLost(now_s=worker.clock.boottime_s(), token=self._token, message=str(error)))
        else:
            runtime.report(FinalReportAccepted(now_s=worker.clock.boottime_s(), token=self._token))

    def close(self) -> None:
        """Stop sending."""
        self._is_closed = True
        for event in (*self._unwanted, self._stop):
            event.set()
        self._orders.put(None)
        for follower in (self._mirror, self._checkpoints):
            if follower is not None:
                follower.close()
        for trouble in self._mirror.troubles if self._mirror is not None else ():
            self._tell_not_shipped(trouble)

    def _tell_not_shipped(self, why: str) -> None:
        """Log that files stay on this machine alone."""
        grant = self._grant
        about = {"job": grant.spec.shown, "id": grant.job, "attempt": grant.attempt}
        self._worker.tell("not_shipped", {**about, "why": why})

    def _order(self, act: Callable[[], object]) -> threading.Event:
        stop = threading.Event()
        self._orders.put((stop, act))
        return stop

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            self._stop, act = order
            if self._is_closed:
                # `close` could not know of this order's own event.
                return
            try:
                act()
            except StokerError as error:
                self._give_up(error)
            except Exception as problem:  # noqa: BLE001 - a bug of ours must not keep a lease for ever
                self._give_up(InternalError(f"{type(problem).__name__}: {problem}"))

    def _give_up(self, error: StokerError) -> None:
        if isinstance(error, VersionSkew | Forbidden):
            self._runtime.report(WorkerRejected(now_s=self._worker.clock.boottime_s(), error=error))
            return
        if not isinstance(error, Refused):
            # A bug, or corrupt bytes: report it now, not when the lease ends.
            with suppress(Exception):
                why = f"its worker could not bring it to an end: {error}"
                self._fail(FailureCause.IO, why, hint=error.hint, end=AttemptEnd(state=JobState.FAILED, exit_code=1))
        self._runtime.report(LeaseLost(now_s=self._worker.clock.boottime_s(), token=self._token, message=str(error)))

    def _conclude(self, last: FinalReport, end: AttemptEnd | None) -> None:
        if last.word is FinalReportKind.FINISH and end is not None and self._folder is not None:
            is_said = self._finish(self._folder, end)
        else:
            self._bring_rest(last, end)
            is_said = self._say(self._final_message(last, end))
        if is_said:
            self._runtime.report(FinalReportAccepted(now_s=self._worker.clock.boottime_s(), token=self._token))

    def _bring_rest(self, last: FinalReport, end: AttemptEnd | None) -> None:
        """Send logs and checkpoints: all of a failure, of others what can be sent in time."""
        if last.word is FinalReportKind.DECLINE:
            return
        if last.word is FinalReportKind.FAIL and end is not None:
            self._drain(wait_s=None)
            return
        if last.word is not FinalReportKind.CANCELLED and self._checkpoints is not None:
            self._checkpoints.settle(self._worker.clock.monotonic_s() + self._settle_s())
        self._drain(wait_s=DRAIN_S)

    def _settle_s(self) -> float:
        """Return how long the last checkpoint may take: of a worker with an end, as long as it drains before that."""
        wishes = self._worker.wishes
        if wishes.ends_s is None:
            return DRAIN_S
        left_s = wishes.ends_s - self._worker.clock.boottime_s() - _EXIT_S
        return max(DRAIN_S, min(left_s, wishes.most_drain_s))

    def _note_sent(self, took_s: float) -> None:
        now_s = self._worker.clock.boottime_s()
        self._runtime.report(CheckpointSent(now_s=now_s, token=self._token, took_s=took_s))

    def _final_message(self, last: FinalReport, end: AttemptEnd | None) -> LeaseWrite:
        """Return the message of a final report without a result."""
        why = one_line(last.why, _LONGEST_HINT)
        if last.word is FinalReportKind.DECLINE:
            return Decline(**self._fence, reason=last.reason or "declined", message=why, lasts=last.lasts)
        if last.word is FinalReportKind.CANCELLED:
            return CancelConfirmed(**self._fence, why=why)
        if last.word is FinalReportKind.FAIL and end is not None:
            return self._failure(end.cause, end.message, hint=end.hint, end=end)
        return Release(**self._fence, why=why)

    def _finish(self, folder: JobFolder, end: AttemptEnd) -> bool:
        self._drain(wait_s=None)
        worker, store = self._worker, self._worker.store()
        refusals = 0
        while True:
            try:
                parts = parts_of_job(store, folder, tell(read_status(folder.status_path)))
                tree = tree_of(parts)
                source = StoreFileSource(store, *(part.record for part in parts))
                send_tree(worker.lines.bytes, tree, source, stop=self._stop, waits_for_space=True)
            except Cancelled:
                return False
            except (BadInput, Damaged, NotFound) as error:
                # The result is no longer whole here, or the coordinator does not accept it: the job has to run again.
                return self._fail(FailureCause.IO, f"its result can't be sent: {error}", hint=error.hint, end=end)
            finish = finish_of(self._grant, folder, end, tree, store=store, worker=worker.name)
            try:
                return self._say(finish)
            except Conflict:
                # The coordinator lacks the tree, though it was sent: a prune may have removed it.
                refusals += 1
                if refusals == _MOST_REFUSALS:
                    raise

    def _fail(self, cause: FailureCause, message: str, *, hint: str, end: AttemptEnd) -> bool:
        return self._say(self._failure(cause, message, hint=hint, end=end))

    def _failure(self, cause: FailureCause, message: str, *, hint: str, end: AttemptEnd) -> Fail:
        return Fail(
            **self._fence,
            cause=str(cause),
            message=one_line(message, _LONGEST_MESSAGE),
            hint=one_line(hint, _LONGEST_HINT),
            error=dict(end.error),
            exit_code=end.exit_code or 1,
            seconds=max(0.0, end.seconds),
        )

    def _drain(self, wait_s: float | None) -> None:
        """Send the rest of logs and metrics; without a limit, until all is sent or the order is obsolete."""
        if self._checkpoints is not None:
            self._checkpoints.close()
        mirror, clock = self._mirror, self._worker.clock
        if mirror is None:
            return
        until_s = None if wait_s is None else clock.monotonic_s() + wait_s
        while not self._stop.is_set():
            turn_s = clock.monotonic_s() + _DRAIN_TURN_S
            if mirror.drain(turn_s if until_s is None else min(turn_s, until_s)):
                return
            if mirror.ended_by is not None:
                raise mirror.ended_by
            if until_s is not None and clock.monotonic_s() >= until_s:
                return

    def _say(self, report: LeaseWrite) -> bool:
        """Send a report until it is accepted; return False if stopped. Raises errors that will not pass."""
        pauses = TransferBackoff()
        while not self._stop.is_set():
            if not self._runtime.may_speak(self._token):
                # The lease is renewed in a moment, or the state machine decides that it is over.
                self._stop.wait(_LOOK_AGAIN_S)
                continue
            try:
                self._worker.lines.words.write(self._token.job, report)
            except (Refused, BadInput):
                raise
            except StokerError:
                self._stop.wait(pauses.failed())
            else:
                return True
        return False


_DRAIN_S = 2.0


class PreparingLog:
    """Lines about an attempt before it starts, stored and mirrored beside its later output. One thread at a time.

    Created with its first line: an attempt whose inputs are all here has none.
    """

    def __init__(self, runtime: WorkerRuntime, token: AttemptToken) -> None:
        name = f"preparing-{token.job[:16]}-{token.attempt}-{token.epoch}"
        self._folder = os.path.join(runtime.journal.spool_folder, name)
        self._runtime = runtime
        self._token = token
        self._turn = threading.Lock()
        self._log: LogFile | None = None
        self._mirror: AttemptFolderSync | None = None

    def hear(self, text: str) -> None:
        """Write a line; ignore write errors."""
        if not text:
            return
        with self._turn, suppress(StokerError):
            if self._log is None:
                logs = os.path.join(self._folder, "logs")
                with translated(logs):
                    os.makedirs(logs, mode=0o700, exist_ok=True)
                self._log = LogFile(os.path.join(logs, "preparing.log"))
                self._mirror = AttemptFolderSync(
                    self._folder,
                    self._token,
                    self._runtime.worker.lines.bytes,
                    clock=self._runtime.worker.clock,
                    check_lease=partial(self._runtime.check_lease, self._token),
                )
                self._mirror.begin()
            self._log.write(f"{text}\n".encode(errors="replace"))

    def close(self) -> None:
        """Send the rest of it, for a short time, and delete it here."""
        with self._turn:
            log, mirror, self._log, self._mirror = self._log, self._mirror, None, None
        if log is not None:
            log.close()
        if mirror is not None:
            mirror.drain(self._runtime.worker.clock.monotonic_s() + _DRAIN_S)
            with suppress(StokerError):
                remove_tree(self._folder)
