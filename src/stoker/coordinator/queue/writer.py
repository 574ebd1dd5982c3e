"""The queue and its one writer thread: commands in, answers out once they are durable.

    queue = Queue(open_database(url, clock=clock), clock=clock, times=…, budgets=…, scheduler=…, has_object=…)
    answer = queue.ask(command)             # blocks; raises StokerError
    queue.post(command, then)               # `then(answer | error)` is called in the writer's thread

The writer takes commands in groups: it decides, writes, commits once, then answers. An answered command survives a
crash; an unanswered one may or may not have been done, and its repeat gets the same answer. If a group can't be
committed, nothing of it happened: the state is read again and the commands are done one by one, each with its own
answer. If the database fails, all commands get that error, and the next group opens a new connection; whether an
unconfirmed commit arrived is then read from the database. Readers have their own connections.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from stoker.coordinator.auth import Revocations, TrustState
from stoker.coordinator.database.database import Database, RowRefused, WriterConnection
from stoker.coordinator.queue.allocations import LAUNCH_VERBS, certificate_end_s
from stoker.coordinator.queue.claims import claim
from stoker.coordinator.queue.classes import declare, greet
from stoker.coordinator.queue.commands import (
    Answer,
    CancelJobs,
    CloseMachine,
    Command,
    Declare,
    DropTrees,
    ForgetMachine,
    InspectMachines,
    KeepTree,
    OpenMachine,
    PinJobs,
    PruneBundles,
    RequeueJobs,
    RevokeCertificate,
    SetPriority,
    Submit,
    Sweep,
    WantTree,
    Write,
)
from stoker.coordinator.queue.endings import write
from stoker.coordinator.queue.expiry import end_leases_of_the_past, renew, sweep, write_down
from stoker.coordinator.queue.health import HEALTH_VERBS
from stoker.coordinator.queue.load import load
from stoker.coordinator.queue.machines import close_machine, inspect_machines, open_machine
from stoker.coordinator.queue.members import TRUST_VERBS, forget_machine, revoke_certificate
from stoker.coordinator.queue.operator_commands import (
    EXEC_VERBS,
    cancel,
    drop_trees,
    keep_tree,
    pin,
    prune,
    requeue,
    set_priority,
    want_tree,
)
from stoker.coordinator.queue.queue_state import (
    QueueContext,
    QueueState,
)
from stoker.coordinator.queue.reader import QueueReader
from stoker.coordinator.queue.submission_check import CheckedSubmission, draft
from stoker.coordinator.queue.submit import submit
from stoker.coordinator.queue.transaction import RowChanged, WriterTransaction, update_followers, words_of
from stoker.core.clock import Clock
from stoker.core.errors import AlreadyServing, BadInput, DatabaseTrouble, InternalError, StokerError, Unavailable
from stoker.core.events import FleetKinds
from stoker.core.frozen import changed
from stoker.core.leases import AttemptToken, Budgets, FleetTimes, LeaseTiming, pace_of
from stoker.protocol.lease_messages import Claim, Hello, Renewal
from stoker.scheduler.scheduler import Scheduler

_VERBS: dict[type, Callable[[WriterTransaction, Any], Answer]] = {
    Claim: claim,
    Write: write,
    Renewal: renew,
    Hello: greet,
    CancelJobs: cancel,
    RequeueJobs: requeue,
    SetPriority: set_priority,
    PinJobs: pin,
    PruneBundles: prune,
    KeepTree: keep_tree,
    WantTree: want_tree,
    DropTrees: drop_trees,
    CloseMachine: close_machine,
    OpenMachine: open_machine,
    ForgetMachine: forget_machine,
    Declare: declare,
    Sweep: lambda transaction, _: sweep(transaction),
    InspectMachines: inspect_machines,
    RevokeCertificate: revoke_certificate,
    **TRUST_VERBS,
    **HEALTH_VERBS,
    **EXEC_VERBS,
    **LAUNCH_VERBS,
}


class PendingCommand(NamedTuple):
    """A command, and the callback for its answer."""

    command: Command
    then: Callable[[Answer | StokerError], None]
    drafts: CheckedSubmission | None = None


class Writer:
    """Everything here runs in one thread, except methods that are marked as thread-safe, and `trouble`."""

    def __init__(
        self, database: Database, setting: QueueContext, *, faults: Callable[[str], None], sweep_every_s: float | None
    ) -> None:
        self._database = database
        self._setting = setting
        self._faults = faults
        self._sweep_every_s = sweep_every_s
        self._words = words_of(database.dialect)
        self.listeners: list[Callable[[int, bool], None]] = []
        self.callers: list[Callable[[Sequence[str]], None]] = []
        """Called with the machines that should send a claim again, in this order."""
        self.trouble: StokerError | None = None
        """The error of the last transaction, if it failed."""
        self._connection: WriterConnection | None = None
        self._book: QueueState | None = None
        self._old: QueueState | None = None
        self._pace = pace_of(setting.times, 0)
        self._swept_s = self._flushed_s = setting.clock.monotonic_s()
        self._run([], _begin)

    def take(self, letters: list[PendingCommand]) -> None:
        """Do a group of commands, then periodic work that is due."""
        if letters:
            self._do(letters)
        self._do_chores()

    def holder_of(self, token: AttemptToken) -> str | None:
        """Return the machine that holds the lease of a token; None: the token is stale. Thread-safe."""
        live = self._known().live.get(token.job)
        return live.machine if live is not None and live.is_token(token) else None

    def may_send(self, machine: str) -> bool:
        """Return True if a machine holds a lease, or lost one and may send its result late. Thread-safe."""
        book = self._known()
        found = book.machines.get(machine)
        return found is not None and (bool(found.leases) or book.time.tick_s() < found.late_until_tick_s)

    def standing(self) -> TrustState:
        """Return the members of the fleet. Thread-safe. Raises while the state is being read."""
        return self._known().standing

    def certificate_end_s(self, machine: str, now_s: float) -> float | None:
        """Return until when a certificate of an allocation's worker is valid; None: no such worker. Thread-safe."""
        return certificate_end_s(self._known(), machine, now_s)

    def pace(self) -> LeaseTiming:
        """Return the current lease duration. Thread-safe."""
        pace, book = self._pace, self._book
        if book is None:
            return pace
        settles_s = book.time.started_tick_s + pace.lease_s + self._setting.times.grace_s - book.time.tick_s()
        return changed(pace, settling_s=max(0.0, settles_s))

    def _known(self) -> QueueState:
        book = self._book
        if book is None:
            raise self.trouble or DatabaseTrouble("the queue is reading its state again", hint="try again")
        return book

    def rest_s(self) -> float:
        """Return the time until the next periodic work."""
        return min(self._setting.times.flush_s, self._sweep_every_s or self._setting.times.flush_s)

    def close(self) -> None:
        """Store what is only in memory, and close the database."""
        if self._book is not None:
            self._do_chore(write_down)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _do(self, letters: list[PendingCommand]) -> None:
        answers: Sequence[Answer | StokerError]
        try:
            answers = self._run(letters)
        except _OUT_OF_REACH as error:
            self._lose_connection(error)
            answers = [error] * len(letters)
        except Exception:  # noqa: BLE001 - a failing command must not affect the others
            self._undo()
            for letter in letters:
                self._do_alone(letter)
            return
        self._answer(letters, answers)

    def _do_alone(self, letter: PendingCommand) -> None:
        """Do a command in its own transaction. If the state in memory was wrong, it was read again before."""
        answer: Answer | StokerError
        try:
            (answer,) = self._run([letter])
        except _OUT_OF_REACH as error:
            self._lose_connection(error)
            answer = error
        except Exception as error:  # noqa: BLE001 - becomes the answer
            self._undo()
            answer = _refusal(error)
        self._answer([letter], [answer])

    def _do_chores(self) -> None:
        tick_s = self._setting.clock.monotonic_s()
        if tick_s - self._flushed_s >= self._setting.times.flush_s:
            self._flushed_s = tick_s
            self._do_chore(write_down)
        if self._sweep_every_s is not None and tick_s - self._swept_s >= self._sweep_every_s:
            self._swept_s = tick_s
            self._do_chore(sweep)

    def _do_chore(self, do: Callable[[WriterTransaction], object]) -> None:
        try:
            self._run([], do)
        except _OUT_OF_REACH as error:
            self._lose_connection(error)
        except Exception as error:  # noqa: BLE001 - shown by `trouble`, and retried
            self._undo()
            self.trouble = _refusal(error)

    def _run(
        self, letters: list[PendingCommand], do: Callable[[WriterTransaction], object] | None = None
    ) -> list[Answer | StokerError]:
        """Do commands in one transaction, and return the answers once they are durable."""
        connection, book, is_reread = self._ensure()
        transaction = WriterTransaction(self._setting, book, connection, self._words, self._pace)
        answers = [_obey(transaction, letter) for letter in letters]
        if do is not None:
            do(transaction)
            self._pace = pace_of(self._setting.times, _heard_of(transaction))
        update_followers(transaction)
        transaction.call_machines()
        transaction.settle()
        if transaction.is_dirty:
            self._faults("before_commit")
        transaction.finish()
        self.trouble = None
        if transaction.is_dirty:
            self._faults("after_commit")
        if transaction.is_dirty or is_reread:
            # After a reread everything may be new: an unconfirmed commit may have arrived.
            for listener in self.listeners:
                with suppress(Exception):
                    listener(book.event_id, is_reread)
        for caller in self.callers if transaction.called else ():
            with suppress(Exception):
                caller(tuple(transaction.called))
        return answers

    def _ensure(self) -> tuple[WriterConnection, QueueState, bool]:
        """Return the connection, the state, and True if the state had to be read again."""
        if self._connection is None:
            self._connection = self._database.connect_writer()
        is_reread = self._book is None
        if self._book is None:
            self._book = load(self._connection, self._words.queries, self._setting, self._old, self._pace.lease_s)
            self._old = None
        return self._connection, self._book, is_reread

    def _answer(self, letters: list[PendingCommand], answers: Sequence[Answer | StokerError]) -> None:
        self._faults("before_answer")
        for letter, answer in zip(letters, answers, strict=True):
            # One caller may be gone; the others get their answers.
            with suppress(Exception):
                letter.then(answer)

    def _undo(self) -> None:
        """Roll back the transaction, and discard the state."""
        self._old, self._book = self._book or self._old, None
        if self._connection is not None:
            try:
                self._connection.roll_back()
            except Exception as error:  # noqa: BLE001 - the connection is unusable
                self._lose_connection(_refusal(error))

    def _lose_connection(self, error: StokerError) -> None:
        self.trouble = error
        self._old, self._book = self._book or self._old, None
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
            self._connection = None


_OUT_OF_REACH = (DatabaseTrouble, AlreadyServing)


def _heard_of(transaction: WriterTransaction) -> int:
    """Return the number of machines seen lately; after a start, those seen before it."""
    since_s = transaction.tick_s - transaction.pace.lease_s - transaction.setting.times.grace_s
    return sum(machine.seen_tick_s > since_s for machine in transaction.book.machines.values())


def _begin(transaction: WriterTransaction) -> None:
    end_leases_of_the_past(transaction)
    transaction.tell(FleetKinds.COORDINATOR_STARTED)


def _obey(transaction: WriterTransaction, letter: PendingCommand) -> Answer | StokerError:
    command = letter.command
    try:
        if isinstance(command, Submit):
            return submit(transaction, command, letter.drafts or draft(command.asked))
        return _VERBS[type(command)](transaction, command)
    except (*_OUT_OF_REACH, InternalError):
        # An internal error may have left half of the changes: nothing of it must be committed.
        raise
    except StokerError as error:
        return error


def _refusal(error: Exception) -> StokerError:
    if isinstance(error, StokerError):
        return error
    if isinstance(error, RowChanged):
        return DatabaseTrouble("another process modified the queue database", hint="try again")
    if isinstance(error, RowRefused):
        return BadInput(f"the database refused a value: {error}")
    return InternalError(f"{type(error).__name__}: {error}")


Then = Callable[[Answer | StokerError], None]
ChangeListener = Callable[[int, bool], None]

MOST_TOGETHER = 256
"""Commands in one commit."""


def no_fault(_point: str) -> None:
    """Inject no fault."""


class Queue:
    """All jobs of a fleet, from their submission to their end.

    `has_object` returns the size of a stored object, or None. `randomness` returns numbers from 0 to 1.
    `faults` is called at `before_commit`, `after_commit` and `before_answer`, so that tests can crash there.
    With `sweep_every_s` None, nothing expires until a `Sweep` command.
    """

    def __init__(  # noqa: PLR0913 - everything is handed in
        self,
        database: Database,
        *,
        clock: Clock,
        times: FleetTimes,
        budgets: Budgets,
        scheduler: Scheduler,
        has_object: Callable[[str], int | None],
        randomness: Callable[[], float] | None = None,
        faults: Callable[[str], None] = no_fault,
        sweep_every_s: float | None = 1.0,
        version: str = "",
        revocations: Revocations | None = None,
    ) -> None:
        setting = QueueContext(
            clock=clock,
            times=times,
            budgets=budgets,
            scheduler=scheduler,
            has_object=has_object,
            randomness=randomness or random.Random().random,  # noqa: S311 - spreads retries, guards nothing
            version=version,
            revocations=revocations or Revocations(),
        )
        self.budgets = budgets
        self._writer = Writer(database, setting, faults=faults, sweep_every_s=sweep_every_s)
        self.reader = QueueReader(database, clock=clock, limits=scheduler.limit_reached)
        """Reads on its own connections. Thread-safe."""
        self._letters: SimpleQueue[PendingCommand | None] = SimpleQueue()
        self._door = threading.Lock()
        """No command is accepted behind the last one."""
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="queue-writer", daemon=True)
        self._thread.start()

    def ask(self, command: Command) -> Answer:
        """Return the answer once it is durable, or raise the error. Blocks."""
        answered = threading.Event()
        found: list[Answer | StokerError] = []

        def then(answer: Answer | StokerError) -> None:
            found.append(answer)
            answered.set()

        self.post(command, then)
        answered.wait()
        if isinstance(found[0], StokerError):
            raise found[0]
        return found[0]

    def post(self, command: Command, then: Then) -> None:
        """Queue a command; `then` is called exactly once, in the writer's thread, and must not block or raise."""
        drafts = None
        if isinstance(command, Submit):
            try:
                # Thousands of digests: in the caller's thread, so that the writer stays free.
                drafts = draft(command.asked)
            except StokerError as error:
                then(error)
                return
        with self._door:
            if not self._is_closed:
                self._letters.put(PendingCommand(command, then, drafts))
                return
        then(Unavailable("the coordinator is stopping", hint="try again when it is back"))

    def is_current(self, token: AttemptToken, machine: str = "") -> bool:
        """Return True if a token is current, and its lease held by `machine` if one is named. Thread-safe.

        The fence of file writes; answered from memory.
        """
        holder = self._writer.holder_of(token)
        return holder is not None and machine in ("", holder)

    def may_send(self, machine: str) -> bool:
        """Return True if a machine can have bytes to send: of a lease, or of a lost one. Thread-safe; from memory."""
        return self._writer.may_send(machine)

    def standing(self) -> TrustState:
        """Return the members of the fleet, from memory. Thread-safe. Only the writer changes it."""
        return self._writer.standing()

    def certificate_end_s(self, machine: str, now_s: float) -> float | None:
        """Return until when a certificate of an allocation's worker is valid; None: no such worker. Thread-safe."""
        return self._writer.certificate_end_s(machine, now_s)

    def on_change(self, listener: ChangeListener) -> None:
        """Call `listener(newest event, is_reread)` after every commit, in the writer's thread.

        It is also called when the state had to be read again: then what is new is unknown, and every waiting caller has
        to query again.
        """
        self._writer.listeners.append(listener)

    def on_wish(self, listener: Callable[[Sequence[str]], None]) -> None:
        """Call `listener(machines)` when these should send a claim again, in this order; in the writer's thread.

        There is an instruction for one of their leases, or they may get a grant.
        """
        self._writer.callers.append(listener)

    def pace(self) -> LeaseTiming:
        """Return the current lease duration, and how long no lease expires."""
        return self._writer.pace()

    def trouble(self) -> StokerError | None:
        """Return the error of the last transaction, if it failed."""
        return self._writer.trouble

    def close(self) -> None:
        """Answer all queued commands, store the state of leases, and close the database."""
        with self._door:
            if self._is_closed:
                return
            self._is_closed = True
            self._letters.put(None)
        self._thread.join()
        self._writer.close()

    def _serve(self) -> None:
        is_open = True
        while is_open:
            letters, is_open = self._take()
            self._writer.take(letters)

    def _take(self) -> tuple[list[PendingCommand], bool]:
        """Return the queued commands, up to a limit, and False after the last one; none after `rest_s` without any."""
        letters: list[PendingCommand] = []
        try:
            letter = self._letters.get(timeout=self._writer.rest_s())
            while letter is not None:
                letters.append(letter)
                if len(letters) >= MOST_TOGETHER:
                    return letters, True
                letter = self._letters.get_nowait()
        except Empty:
            return letters, True
        return letters, False
