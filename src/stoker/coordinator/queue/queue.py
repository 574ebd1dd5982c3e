"""The queue: commands in, answers out once they are durable. One thread writes; readers have their own connections.

    queue = Queue(open_database(url, clock=clock), clock=clock, times=…, budgets=…, scheduler=…, has_object=…)
    answer = queue.ask(command)             # blocks; raises StokerError
    queue.post(command, then)               # `then(answer | error)` is called in the writer's thread

What was answered survives a crash; what was not may or may not have happened, and its repeat is answered as the first
would have been. The thread also looks by itself for what time alone has changed, unless it is told not to.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from stoker.coordinator.auth import Revocations, TrustState
from stoker.coordinator.database.database import Database
from stoker.coordinator.queue.commands import Answer, Command, Submit
from stoker.coordinator.queue.queue_state import QueueContext
from stoker.coordinator.queue.reader import QueueReader
from stoker.coordinator.queue.submission_check import draft
from stoker.coordinator.queue.writer import PendingCommand, Writer
from stoker.core.clock import Clock
from stoker.core.errors import StokerError, Unavailable
from stoker.core.leases import AttemptToken, Budgets, FleetTimes, LeaseTiming
from stoker.scheduler.scheduler import Scheduler

Then = Callable[[Answer | StokerError], None]
Listener = Callable[[int, bool], None]

MOST_TOGETHER = 256
"""Commands in one commit."""


def no_fault(_point: str) -> None:
    """Nothing goes wrong here."""


class Queue:
    """All jobs of a fleet, from their submission to their end.

    `has_object` says how many bytes lie under a digest, or that none do. `randomness` gives numbers from 0 to 1.
    `faults` is called at `before_commit`, `after_commit` and `before_answer`, so that tests can crash there.
    With `sweep_every_s` none, nothing expires until somebody asks for a `Sweep`.
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
        """Reads on their own connections, from any thread."""
        self._letters: SimpleQueue[PendingCommand | None] = SimpleQueue()
        self._door = threading.Lock()
        """So that nobody comes in behind the last one."""
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="queue-writer", daemon=True)
        self._thread.start()

    def ask(self, command: Command) -> Answer:
        """Return the answer, or raise the refusal, once it is durable."""
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
        """Take a command; `then` is called exactly once, in the writer's thread, and must not block or raise."""
        drafts = None
        if isinstance(command, Submit):
            try:
                # Thousands of digests: in the asker's thread, not in everybody's way.
                drafts = draft(command.asked)
            except StokerError as error:
                then(error)
                return
        with self._door:
            if not self._is_closed:
                self._letters.put(PendingCommand(command, then, drafts))
                return
        then(Unavailable("the coordinator is stopping", hint="ask again when it is back"))

    def is_current(self, token: AttemptToken, machine: str = "") -> bool:
        """Say from memory whether a token is its job's own now, and the machine's, where one is named. From any thread.

        The fence of file writes.
        """
        holder = self._writer.holder_of(token)
        return holder is not None and machine in ("", holder)

    def may_send(self, machine: str) -> bool:
        """Say from memory whether a machine can have bytes to send: of a lease, or of one that it lost. Any thread."""
        return self._writer.may_send(machine)

    def standing(self) -> TrustState:
        """Return who belongs to the fleet, from memory, for any thread. Only the writer changes it."""
        return self._writer.standing()

    def on_change(self, listener: Listener) -> None:
        """Call `listener(newest event, is_reread)` after every commit, in the writer's thread.

        It is also called when the rows had to be read again: then it is not known what is new, and whoever waits has to
        ask again.
        """
        self._writer.listeners.append(listener)

    def on_wish(self, listener: Callable[[Sequence[str]], None]) -> None:
        """Call `listener(machines)` when these should ask again, in this order; in the writer's thread.

        They are to do something with a lease of theirs, or may be granted something.
        """
        self._writer.callers.append(listener)

    def pace(self) -> LeaseTiming:
        """Return how long leases last now, and how much longer nothing expires."""
        return self._writer.pace()

    def trouble(self) -> StokerError | None:
        """Return what was wrong with the database the last time it was written, if anything was."""
        return self._writer.trouble

    def close(self) -> None:
        """Answer what was asked, write down what is known of leases, and let go of the database."""
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
        """Return everything that waits, up to a bound, and whether more may come; nothing after a while without any."""
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
