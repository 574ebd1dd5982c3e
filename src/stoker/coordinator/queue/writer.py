"""The writer: takes commands a group at a time, decides, writes, commits once, answers.

If a group can't be committed, nothing of it happened: the copy in memory is made again, and the commands are done one
by one, so that each is answered for itself. If the database is in trouble, all of them are told so, and the next group
finds a new connection. Then, whether a commit arrived that nobody confirmed is read from the database.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from stoker.coordinator.authority.standing import Standing
from stoker.coordinator.database.opening import Database
from stoker.coordinator.database.writer_connection import RowRefused, WriterConnection
from stoker.coordinator.queue.acceptance import greet
from stoker.coordinator.queue.batch import RowChanged
from stoker.coordinator.queue.book import Book
from stoker.coordinator.queue.claiming import claim
from stoker.coordinator.queue.commands import (
    Answer,
    CancelJobs,
    CloseMachine,
    Command,
    Declare,
    DropTrees,
    ForgetMachine,
    KeepTree,
    Look,
    OpenMachine,
    PinJobs,
    PruneBundles,
    RequeueJobs,
    SetPriority,
    Submit,
    Sweep,
    WantTree,
    Write,
)
from stoker.coordinator.queue.contents import drop_trees, keep_tree, want_tree
from stoker.coordinator.queue.declaring import declare
from stoker.coordinator.queue.drafting import Drafts, draft
from stoker.coordinator.queue.executing import EXEC_VERBS
from stoker.coordinator.queue.fleet_health import HEALTH_VERBS
from stoker.coordinator.queue.following import update_followers
from stoker.coordinator.queue.forgetting import forget_machine, revoke_certificate
from stoker.coordinator.queue.loading import load
from stoker.coordinator.queue.looking import look
from stoker.coordinator.queue.operating import cancel, requeue, set_priority
from stoker.coordinator.queue.renewing import renew, write_down
from stoker.coordinator.queue.retaining import pin, prune
from stoker.coordinator.queue.roster import close_machine, open_machine
from stoker.coordinator.queue.setting import Setting
from stoker.coordinator.queue.settling import write
from stoker.coordinator.queue.submitting import submit
from stoker.coordinator.queue.sweeping import end_leases_of_the_past, sweep
from stoker.coordinator.queue.trust_commands import RevokeCertificate
from stoker.coordinator.queue.trusting import TRUST_VERBS
from stoker.coordinator.queue.turn import Turn, words_of
from stoker.model.errors import BadInput, Bug, StokerError
from stoker.model.fleet_errors import AlreadyServing, DatabaseTrouble
from stoker.model.fleet_events import FleetKinds
from stoker.model.frozen import changed
from stoker.model.leases import Token
from stoker.model.pacing import Pace, pace_of
from stoker.wire.leasing import Claim, Hello, Renewal

_VERBS: dict[type, Callable[[Turn, Any], Answer]] = {
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
    Sweep: lambda turn, _: sweep(turn),
    Look: look,
    RevokeCertificate: revoke_certificate,
    **TRUST_VERBS,
    **HEALTH_VERBS,
    **EXEC_VERBS,
}


class Letter:
    """A command and who waits for its answer."""

    __slots__ = ("command", "drafts", "then")

    def __init__(
        self, command: Command, then: Callable[[Answer | StokerError], None], drafts: Drafts | None = None
    ) -> None:
        self.command = command
        self.then = then
        self.drafts = drafts


class Writer:
    """Everything here runs in one thread, except `holder_of`, `may_send`, `standing`, `pace` and `trouble`."""

    def __init__(
        self, database: Database, setting: Setting, *, faults: Callable[[str], None], sweep_every_s: float | None
    ) -> None:
        self._database = database
        self._setting = setting
        self._faults = faults
        self._sweep_every_s = sweep_every_s
        self._words = words_of(database.dialect)
        self.listeners: list[Callable[[int, bool], None]] = []
        self.callers: list[Callable[[Sequence[str]], None]] = []
        """Called with the machines that should ask again, in this order."""
        self.trouble: StokerError | None = None
        """What was wrong the last time, if it was."""
        self._connection: WriterConnection | None = None
        self._book: Book | None = None
        self._old: Book | None = None
        self._machines = 0
        self._swept_s = self._flushed_s = setting.clock.monotonic_s()
        self._run([], _begin)

    def take(self, letters: list[Letter]) -> None:
        """Do a group of commands, and whatever is due beside them."""
        if letters:
            self._do(letters)
        self._do_chores()

    def holder_of(self, token: Token) -> str | None:
        """Give the machine whose lease a token is; none: it is nobody's now. From any thread, as `standing`."""
        live = self._known().live.get(token.job)
        return live.machine if live is not None and live.is_token(token) else None

    def may_send(self, machine: str) -> bool:
        """Return True if a machine holds a lease, or lost one and may send its result late. From any thread."""
        book = self._known()
        found = book.machines.get(machine)
        return found is not None and (bool(found.leases) or book.time.tick_s() < found.late_until_tick_s)

    def standing(self) -> Standing:
        """Give who belongs to the fleet. From any thread; raises while nobody can say."""
        return self._known().standing

    def pace(self) -> Pace:
        """Say how long leases last now. From any thread."""
        pace = pace_of(self._setting.times, self._machines)
        book = self._book
        if book is None:
            return pace
        settles_s = book.time.started_tick_s + pace.lease_s + self._setting.times.grace_s - book.time.tick_s()
        return changed(pace, settling_s=max(0.0, settles_s))

    def _known(self) -> Book:
        book = self._book
        if book is None:
            raise self.trouble or DatabaseTrouble("the queue reads its rows again", hint="try again")
        return book

    def rest_s(self) -> float:
        """Say how long there is nothing to do if nobody asks."""
        return min(self._setting.times.flush_s, self._sweep_every_s or self._setting.times.flush_s)

    def close(self) -> None:
        """Write down what is only in memory, and let go of the database."""
        if self._book is not None:
            self._do_chore(write_down)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _do(self, letters: list[Letter]) -> None:
        answers: Sequence[Answer | StokerError]
        try:
            answers = self._run(letters)
        except _OUT_OF_REACH as error:
            self._lose_connection(error)
            answers = [error] * len(letters)
        except Exception:  # noqa: BLE001 - whatever one command does wrong, the others are answered
            self._undo()
            for letter in letters:
                self._do_alone(letter)
            return
        self._answer(letters, answers)

    def _do_alone(self, letter: Letter) -> None:
        """Do a command by itself. If rows were others than the copy said, the copy is right by now."""
        answer: Answer | StokerError
        try:
            (answer,) = self._run([letter])
        except _OUT_OF_REACH as error:
            self._lose_connection(error)
            answer = error
        except Exception as error:  # noqa: BLE001 - it is told to whoever asked
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

    def _do_chore(self, do: Callable[[Turn], object]) -> None:
        try:
            self._run([], do)
        except _OUT_OF_REACH as error:
            self._lose_connection(error)
        except Exception as error:  # noqa: BLE001 - it is shown by `trouble`, and tried again
            self._undo()
            self.trouble = _refusal(error)

    def _run(self, letters: list[Letter], do: Callable[[Turn], object] | None = None) -> list[Answer | StokerError]:
        """Do all of it in one transaction, and give the answers once they are durable."""
        pace = pace_of(self._setting.times, self._machines)
        connection, book, is_reread = self._ensure(pace)
        turn = Turn(self._setting, book, connection, self._words, pace)
        answers = [_obey(turn, letter) for letter in letters]
        if do is not None:
            do(turn)
            self._machines = _heard_of(turn)
        update_followers(turn)
        turn.call_machines()
        turn.settle()
        if turn.is_dirty:
            self._faults("before_commit")
        turn.finish()
        self.trouble = None
        if turn.is_dirty:
            self._faults("after_commit")
        if turn.is_dirty or is_reread:
            # What was read again may be news to all: a commit that was not confirmed may have arrived.
            for listener in self.listeners:
                with suppress(Exception):
                    listener(book.event_id, is_reread)
        for caller in self.callers if turn.called else ():
            with suppress(Exception):
                caller(tuple(turn.called))
        return answers

    def _ensure(self, pace: Pace) -> tuple[WriterConnection, Book, bool]:
        """Give a connection and the copy of the rows, made anew if there is none to be trusted, and whether it was."""
        if self._connection is None:
            self._connection = self._database.connect_writer()
        is_reread = self._book is None
        if self._book is None:
            self._book = load(self._connection, self._words.queries, self._setting, self._old, pace.lease_s)
            self._old = None
        return self._connection, self._book, is_reread

    def _answer(self, letters: list[Letter], answers: Sequence[Answer | StokerError]) -> None:
        self._faults("before_answer")
        for letter, answer in zip(letters, answers, strict=True):
            # Whoever asked may be gone; the others are not.
            with suppress(Exception):
                letter.then(answer)

    def _undo(self) -> None:
        """Leave the transaction, and trust the copy of the rows no more."""
        self._old, self._book = self._book or self._old, None
        if self._connection is not None:
            try:
                self._connection.roll_back()
            except Exception as error:  # noqa: BLE001 - a connection that can't even do that is of no use
                self._lose_connection(_refusal(error))

    def _lose_connection(self, error: StokerError) -> None:
        self.trouble = error
        self._old, self._book = self._book or self._old, None
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
            self._connection = None


_OUT_OF_REACH = (DatabaseTrouble, AlreadyServing)


def _heard_of(turn: Turn) -> int:
    """Count the machines that speak; after a start, those that did before it."""
    since_s = turn.tick_s - turn.pace.lease_s - turn.setting.times.grace_s
    return sum(machine.seen_tick_s > since_s for machine in turn.book.machines.values())


def _begin(turn: Turn) -> None:
    end_leases_of_the_past(turn)
    turn.tell(FleetKinds.COORDINATOR_STARTED)


def _obey(turn: Turn, letter: Letter) -> Answer | StokerError:
    command = letter.command
    try:
        if isinstance(command, Submit):
            return submit(turn, command, letter.drafts or draft(command.asked))
        return _VERBS[type(command)](turn, command)
    except (*_OUT_OF_REACH, Bug):
        # A bug may have come half way through: nothing of it must be committed.
        raise
    except StokerError as error:
        return error


def _refusal(error: Exception) -> StokerError:
    if isinstance(error, StokerError):
        return error
    if isinstance(error, RowChanged):
        return DatabaseTrouble("somebody else changes the queue's rows", hint="try again")
    if isinstance(error, RowRefused):
        return BadInput(f"the database does not take this: {error}")
    return Bug(f"{type(error).__name__}: {error}")
