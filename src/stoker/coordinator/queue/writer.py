"""The writer: takes commands a group at a time, decides, writes, commits once, answers.

If a group can't be committed, nothing of it happened: the copy in memory is made again, and the commands are done one
by one, so that each is answered for itself. If the database is in trouble, all of them are told so, and the next group
finds a new connection. Then, whether a commit arrived that nobody confirmed is read from the database.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from stoker.coordinator.auth import TrustState
from stoker.coordinator.database.database import Database, RowRefused, WriterConnection
from stoker.coordinator.database.tables import EVENTS_DROPPED_TO, MACHINES
from stoker.coordinator.queue.claims import claim
from stoker.coordinator.queue.classes import declare, greet, listed_words, user_of, wanted_from_dict
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
from stoker.coordinator.queue.machines import away, close_machine, look, open_machine
from stoker.coordinator.queue.members import TRUST_VERBS, forget_machine, load_standing, revoke_certificate
from stoker.coordinator.queue.moves import COMPLETED, update_followers
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
    CoordinatorTime,
    JobKind,
    LiveLease,
    QueueClaimRecord,
    QueueContext,
    QueueState,
    RegisteredMachine,
    choices_in,
    learn,
    learn_code,
    progress_end_s,
)
from stoker.coordinator.queue.sql import EndedRow, LeaseRow, Queries, records
from stoker.coordinator.queue.submission_check import CheckedSubmission, draft
from stoker.coordinator.queue.submit import submit
from stoker.coordinator.queue.transaction import RowChanged, WriterTransaction, words_of
from stoker.core.errors import AlreadyServing, BadInput, DatabaseTrouble, InternalError, StokerError
from stoker.core.events import FleetKinds
from stoker.core.frozen import changed
from stoker.core.job import JobState
from stoker.core.jsontext import loads
from stoker.core.leases import AttemptToken, FleetTimes, LeaseTiming, pace_of
from stoker.protocol.environment_messages import environment_digest
from stoker.protocol.job_messages import HostPolicy
from stoker.protocol.lease_messages import Claim, Hello, Renewal
from stoker.scheduler.machine_index import LeaseAllocation, totals_of
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.shares import HALF_LIFE_S, dominant_part

# Make the writer's copy of the rows: at a start, and whenever the copy may be wrong.

_LATELY_S = 3600.0
_TRIED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.RUNNING, JobState.CLAIMED)
"""Jobs in these states may have attempts that have ended."""
_HISTORY = 2000
"""So many jobs in each of these states are looked at."""
_HALF_LIVES = 5
"""Usage that is older counts no more."""
_READ_OTHERWISE = frozenset({"started_s", "is_cancelling", "message", "granted_s", "devices", "is_shared", "spec"})


def load(
    connection: WriterConnection, queries: Queries, setting: QueueContext, old: QueueState | None, lease_s: float
) -> QueueState:
    """Read everything. Leases start anew: nobody is judged by a renewal that may have been lost with the process.

    Of an `old` copy, what is in no row is kept: the time, the coordinator's own file, who declined what, who was
    silent, and what machines said they have. The scheduler forgets everything, and is told again what the rows say.
    """
    connection.begin()
    try:
        meta = dict(connection.read(queries.meta))
        (newest,) = connection.read(queries.newest)
        time = old.time if old is not None else CoordinatorTime(setting.clock, _stored_s(meta, newest))
        setting.scheduler.clear()
        book = QueueState(time, setting.scheduler, int(meta.get("generation", "1")))
        if old is not None:
            book.barred = old.barred
        book.seq, book.event_id, book.bundle_id = (number or 0 for number in newest[:3])
        book.dropping.dropped_to = int(meta.get(EVENTS_DROPPED_TO, "0"))
        book.next_delay_s = float("inf") if newest[4] is None else newest[4]
        book.has_after = newest[5] is not None
        _load_classes(connection, queries, book)
        _load_policies(connection, queries, book, old)
        book.standing = load_standing(connection, queries, time.now_s())
        setting.revocations.apply(book.standing, time.now_s())
        _load_machines(connection, queries, book, old)
        # What machines offer takes a while to work out.
        leases = [LeaseRow(*row) for row in connection.read(queries.leases)]
        ended = [
            EndedRow(*row)
            for state in _TRIED
            for row in connection.read(queries.ended, of_state=state.value, most=_HISTORY)
        ]
        offers = {offer.node: offer for offer in away(book)} if leases or ended else {}
        _load_history(book, ended, offers)
        for row in leases:
            live = _live(row, setting.times, time.tick_s(), lease_s)
            book.add_live(live)
            _restore(book, live, row.granted_s, offers.get(live.machine))
        _load_claims(connection, queries, book)
    finally:
        connection.roll_back()
    return book


def _stored_s(meta: dict[str, str], newest: tuple[Any, ...]) -> float:
    return max(float(meta.get("clock_s", "0")), newest[3] or 0.0)


def _load_classes(connection: WriterConnection, queries: Queries, book: QueueState) -> None:
    for class_id, _, text in connection.read(queries.classes):
        body = loads(text)
        stored = wanted = wanted_from_dict(body)
        if wanted.environment:
            choices = choices_in({"environment": body["choices"]})
            learn(book, choices)
            # The digest of an older row does not cover what its choices refuse, so jobs that refuse other things, or
            # nothing, may share the row. Those still open keep to it until they are submitted again; new ones do not.
            wanted = changed(stored, environment=environment_digest(choices))
        if wanted.code:
            learn_code(book, wanted.code)
        # An older row may equal a newer one now, if an older coordinator ran in between. New jobs join the newer one.
        kind = JobKind(wanted, body.get("like", ""), body.get("user", ""), body.get("stated_s"))
        if wanted == stored or kind not in book.classes:
            book.classes[kind] = class_id
        book.class_id = max(book.class_id, class_id)
        book.put_class(class_id, kind)
        for priority, count in connection.read(queries.levels, of_class=class_id):
            book.waiting.put_count(class_id, priority, count)


def _load_policies(connection: WriterConnection, queries: Queries, book: QueueState, old: QueueState | None) -> None:
    book.cluster = old.cluster if old is not None else None
    for (text,) in connection.read(queries.policies):
        policy = HostPolicy.model_validate_json(text)
        book.policies[policy.name] = policy
    book.listed = listed_words(book.cluster, book.policies.values())


def _load_machines(connection: WriterConnection, queries: Queries, book: QueueState, old: QueueState | None) -> None:
    """Machines are offered work when they next speak; those that did lately are expected to."""
    rows = records(MACHINES, connection.read(queries.machines))
    lately_s = max((fields["last_seen_s"] for fields in rows), default=0.0) - _LATELY_S
    for fields in rows:
        closed = loads(fields["closed_devices"]) if fields["closed_devices"] else {}
        is_expected = fields["last_seen_s"] >= lately_s
        machine = RegisteredMachine(
            row=fields,
            closed_devices=closed,
            seen_tick_s=book.time.tick_s() if is_expected else float("-inf"),
            # Which leases it lost before this start is not known.
            late_until_tick_s=float("inf"),
        )
        book.machines[machine.name] = machine
        book.tells_code_apart = book.tells_code_apart or bool(machine.accepts)
        before = old.machines.get(machine.name) if old is not None else None
        if before is not None:
            machine.seen_tick_s, machine.holdings = before.seen_tick_s, before.holdings
            machine.late_until_tick_s = before.late_until_tick_s


def _load_history(book: QueueState, ended: list[EndedRow], offers: dict[str, NodeOffer]) -> None:
    """Learn from attempts that ended lately how long their like takes, and how much of the fleet each user has had."""
    scheduler, now_s = book.scheduler, book.time.now_s()
    # Those that are expected to speak: the fleet of before the restart, as far as it is known.
    totals = totals_of(offer for name, offer in offers.items() if book.machines[name].is_expected)
    if any(totals):
        scheduler.shares.set_totals(totals, (), now_s)
    for row in sorted(ended, key=lambda row: row.ended_s):
        devices = loads(row.devices)
        one = scheduler.ready.classes[row.class_id].type
        speed = _speed(offers.get(row.machine), devices) if devices else one.cpu_speed
        if row.ending == COMPLETED and row.started_s is not None and speed is not None:
            scheduler.learn(row.class_id, (row.ended_s - row.started_s) * speed)
        if row.ended_s > now_s - _HALF_LIVES * HALF_LIFE_S:
            part = dominant_part(one.placed_shape(on_devices=bool(devices)), len(devices), totals)
            scheduler.shares.start(user_of(row.submitter), part, len(devices), row.granted_s)
            scheduler.shares.end(user_of(row.submitter), part, len(devices), row.ended_s)


def _restore(book: QueueState, live: LiveLease, granted_s: float, offer: NodeOffer | None) -> None:
    """Let the scheduler count a lease as it did before: from its grant on, as fast as its devices, by its progress."""
    scheduler, now_s, devices = book.scheduler, book.time.now_s(), list(live.allocation.devices)
    speed = _speed(offer, devices) if devices else None
    scheduler.leases.restore(live.allocation, now_s, live.started_s, granted_s=min(granted_s, now_s), speed=speed)
    machine = book.machines.get(live.machine)
    if machine is None or live.started_s is None or not live.progress:
        return
    told = loads(live.progress)
    # Progress is written down together with when its machine was heard.
    end_s = progress_end_s(live.started_s, told.get("step"), told.get("of"), min(now_s, machine.row["last_seen_s"]))
    if end_s is not None:
        scheduler.leases.expect(live.allocation, end_s, now_s)


def _speed(offer: NodeOffer | None, uuids: list[str]) -> float | None:
    """Return how fast jobs run on some devices of a machine; None: they are not known now."""
    speeds = {device.uuid: device.speed for device in offer.devices} if offer is not None else {}
    return min((speeds[uuid] for uuid in uuids), default=None) if all(uuid in speeds for uuid in uuids) else None


def _live(row: LeaseRow, times: FleetTimes, tick_s: float, lease_s: float) -> LiveLease:
    spec = loads(row.spec)
    started_s = row.started_s if row.state == "running" else None
    lasts_s = lease_s + times.grace_s
    return LiveLease(
        **{name: getattr(row, name) for name in LeaseRow._fields if name not in _READ_OTHERWISE},
        allocation=LeaseAllocation(
            machine=row.machine,
            class_id=row.class_id,
            devices=tuple(loads(row.devices)),
            is_shared=bool(row.is_shared),
        ),
        attempts=spec.get("attempts", 1),
        is_cancelling=bool(row.is_cancelling),
        cancel_why=row.message if row.is_cancelling else "",
        started_s=started_s,
        until_tick_s=tick_s + (lasts_s if started_s is not None else max(times.start_s, lasts_s)),
    )


def _load_claims(connection: WriterConnection, queries: Queries, book: QueueState) -> None:
    for request_id, incarnation, at_s, granted in connection.read(queries.claims):
        book.claims[request_id] = QueueClaimRecord(
            incarnation, at_s, tuple((seq, epoch) for seq, epoch in loads(granted))
        )


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
    Sweep: lambda turn, _: sweep(turn),
    InspectMachines: look,
    RevokeCertificate: revoke_certificate,
    **TRUST_VERBS,
    **HEALTH_VERBS,
    **EXEC_VERBS,
}


class PendingCommand(NamedTuple):
    """A command and what takes its answer."""

    command: Command
    then: Callable[[Answer | StokerError], None]
    drafts: CheckedSubmission | None = None


class Writer:
    """Everything here runs in one thread, except `holder_of`, `may_send`, `standing`, `pace` and `trouble`."""

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
        """Called with the machines that should ask again, in this order."""
        self.trouble: StokerError | None = None
        """What was wrong the last time, if it was."""
        self._connection: WriterConnection | None = None
        self._book: QueueState | None = None
        self._old: QueueState | None = None
        self._machines = 0
        self._swept_s = self._flushed_s = setting.clock.monotonic_s()
        self._run([], _begin)

    def take(self, letters: list[PendingCommand]) -> None:
        """Do a group of commands, and whatever is due beside them."""
        if letters:
            self._do(letters)
        self._do_chores()

    def holder_of(self, token: AttemptToken) -> str | None:
        """Return the machine whose lease a token is; none: it is nobody's now. From any thread, as `standing`."""
        live = self._known().live.get(token.job)
        return live.machine if live is not None and live.is_token(token) else None

    def may_send(self, machine: str) -> bool:
        """Return True if a machine holds a lease, or lost one and may send its result late. From any thread."""
        book = self._known()
        found = book.machines.get(machine)
        return found is not None and (bool(found.leases) or book.time.tick_s() < found.late_until_tick_s)

    def standing(self) -> TrustState:
        """Return who belongs to the fleet. From any thread; raises while nobody can say."""
        return self._known().standing

    def pace(self) -> LeaseTiming:
        """Return how long leases last now. From any thread."""
        pace = pace_of(self._setting.times, self._machines)
        book = self._book
        if book is None:
            return pace
        settles_s = book.time.started_tick_s + pace.lease_s + self._setting.times.grace_s - book.time.tick_s()
        return changed(pace, settling_s=max(0.0, settles_s))

    def _known(self) -> QueueState:
        book = self._book
        if book is None:
            raise self.trouble or DatabaseTrouble("the queue reads its rows again", hint="try again")
        return book

    def rest_s(self) -> float:
        """Return how long there is nothing to do if nobody asks."""
        return min(self._setting.times.flush_s, self._sweep_every_s or self._setting.times.flush_s)

    def close(self) -> None:
        """Write down what is only in memory, and let go of the database."""
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
        except Exception:  # noqa: BLE001 - whatever one command does wrong, the others are answered
            self._undo()
            for letter in letters:
                self._do_alone(letter)
            return
        self._answer(letters, answers)

    def _do_alone(self, letter: PendingCommand) -> None:
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

    def _do_chore(self, do: Callable[[WriterTransaction], object]) -> None:
        try:
            self._run([], do)
        except _OUT_OF_REACH as error:
            self._lose_connection(error)
        except Exception as error:  # noqa: BLE001 - it is shown by `trouble`, and tried again
            self._undo()
            self.trouble = _refusal(error)

    def _run(
        self, letters: list[PendingCommand], do: Callable[[WriterTransaction], object] | None = None
    ) -> list[Answer | StokerError]:
        """Do all of it in one transaction, and give the answers once they are durable."""
        pace = pace_of(self._setting.times, self._machines)
        connection, book, is_reread = self._ensure(pace)
        turn = WriterTransaction(self._setting, book, connection, self._words, pace)
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

    def _ensure(self, pace: LeaseTiming) -> tuple[WriterConnection, QueueState, bool]:
        """Give a connection and the copy of the rows, made anew if there is none to be trusted, and whether it was."""
        if self._connection is None:
            self._connection = self._database.connect_writer()
        is_reread = self._book is None
        if self._book is None:
            self._book = load(self._connection, self._words.queries, self._setting, self._old, pace.lease_s)
            self._old = None
        return self._connection, self._book, is_reread

    def _answer(self, letters: list[PendingCommand], answers: Sequence[Answer | StokerError]) -> None:
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


def _heard_of(turn: WriterTransaction) -> int:
    """Count the machines that speak; after a start, those that did before it."""
    since_s = turn.tick_s - turn.pace.lease_s - turn.setting.times.grace_s
    return sum(machine.seen_tick_s > since_s for machine in turn.book.machines.values())


def _begin(turn: WriterTransaction) -> None:
    end_leases_of_the_past(turn)
    turn.tell(FleetKinds.COORDINATOR_STARTED)


def _obey(turn: WriterTransaction, letter: PendingCommand) -> Answer | StokerError:
    command = letter.command
    try:
        if isinstance(command, Submit):
            return submit(turn, command, letter.drafts or draft(command.asked))
        return _VERBS[type(command)](turn, command)
    except (*_OUT_OF_REACH, InternalError):
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
    return InternalError(f"{type(error).__name__}: {error}")
