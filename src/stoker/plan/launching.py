"""From waiting to running: room on the machine, then the lease on the key, then an attempt.

Says what became of a node that it tried to start; what follows from that is the executor's business.
"""

from __future__ import annotations

from stoker.model.errors import StokerError
from stoker.model.frozen import frozen
from stoker.plan.attempting import Attempts, Running
from stoker.plan.cache import Hit
from stoker.plan.engine import Engine
from stoker.plan.lease import Held
from stoker.plan.news import News
from stoker.plan.permits import Grant, Permits, Shortage
from stoker.plan.queueing import Waiting, WaitingRoom
from stoker.store.records import Record


@frozen
class Started:
    """It runs."""

    running: Running


@frozen
class Elsewhere:
    """Another process does this very work."""

    waiting: Waiting
    why: str


@frozen
class JustMade:
    """Another process has done this very work since it was looked up."""

    waiting: Waiting
    record: Record


@frozen
class NotStarted:
    """Something on this machine is in the way."""

    waiting: Waiting
    error: StokerError


class Launchpad:
    """Nodes that wait for room, and the room there is. Only the executor's loop uses it."""

    def __init__(self, engine: Engine, *, attempts: Attempts, news: News) -> None:
        self._engine = engine
        self._attempts = attempts
        self._news = news
        self._numbers: dict[str, int] = {}
        self.permits = Permits(engine.capacity)
        self.room = WaitingRoom()

    def launch_one(self) -> Started | Elsewhere | JustMade | NotStarted | None:
        """Try the first waiting node that there is room for; smaller ones may pass those that are short."""
        for waiting in self.room.first_of_each():
            grant = self.permits.take(waiting.node.stage.needs)
            if isinstance(grant, Shortage):
                if waiting.is_first_refusal():
                    self._news.blocked(waiting.name, waiting.node, grant.short_of)
                if waiting.has_waited_enough:
                    return None
                continue
            self.room.leave(waiting)
            tried = self._try(waiting, grant)
            if not isinstance(tried, Started):
                self.permits.give_back(grant)
            return tried
        return None

    def land(self, running: Running) -> None:
        """Give back what a running node held."""
        self.permits.give_back(running.grant)
        self._engine.leases.give_back(running.execute.key)

    def _try(self, waiting: Waiting, grant: Grant) -> Started | Elsewhere | JustMade | NotStarted:
        key = waiting.execute.key
        try:
            taken = self._engine.leases.take(key)
            if isinstance(taken, Held):
                return Elsewhere(waiting=waiting, why=taken.why)
            if not waiting.execute.force:
                look = self._engine.cache.look(waiting.node.stage, key)
                if isinstance(look, Hit) and look.has_bytes:
                    self._engine.leases.give_back(key)
                    return JustMade(waiting=waiting, record=look.record)
            return Started(running=self._start(waiting, grant))
        except StokerError as error:
            self._engine.leases.give_back(key)
            return NotStarted(waiting=waiting, error=error)

    def _start(self, waiting: Waiting, grant: Grant) -> Running:
        # Counted over the whole run, so that the report of an attempt that was left behind is known as old.
        number = self._numbers.get(waiting.name, 0) + 1
        self._numbers[waiting.name] = number
        self._news.begins(waiting.name, waiting.node, waiting.execute, number)
        self._news.tell()
        runner = self._engine.runner_for(waiting.node.stage)
        return self._attempts.start(waiting, grant=grant, number=number, runner=runner)
