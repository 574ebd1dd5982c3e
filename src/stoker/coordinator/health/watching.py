"""Looks after the fleet's health every minute: gathers, judges, writes down what is news, and closes a failing device.

In a thread of its own. What goes wrong here is tried again a minute later, and keeps nobody from work.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from stoker.coordinator.health.facts import Facts
from stoker.coordinator.health.gathering import Gatherer
from stoker.coordinator.health.symptoms import symptoms_of
from stoker.coordinator.queue.commands import CloseMachine, Closing
from stoker.coordinator.queue.health_commands import NoteSymptoms
from stoker.coordinator.queue.queue import Queue
from stoker.model.errors import StokerError
from stoker.model.symptoms import Ailment, Symptom

EVERY_S = 60.0
BY = "the coordinator"


class HealthWatch:
    """Watches while a with-block lasts."""

    def __init__(self, queue: Queue, gatherer: Gatherer, *, every_s: float = EVERY_S) -> None:
        self._queue = queue
        self._gatherer = gatherer
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stoker-health", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def look(self) -> list[Symptom]:
        """Look once, act, and give what is wrong."""
        facts = self._gatherer.gather()
        found = symptoms_of(facts)
        self._queue.ask(NoteSymptoms(symptoms=tuple(found)))
        for symptom in to_cordon(facts, found):
            closing = CloseMachine(
                machine=symptom.machine,
                how=Closing.CORDON,
                devices=(symptom.device,),
                why=symptom.message,
                by=BY,
            )
            self._queue.ask(closing)
        return found

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            with suppress(StokerError):
                self.look()


def to_cordon(facts: Facts, found: list[Symptom]) -> list[Symptom]:
    """Say which failing devices are still given work."""
    closed = {machine.name: machine.closed_devices for machine in facts.machines}
    return [one for one in found if one.ailment is Ailment.FAILING and one.device not in closed[one.machine]]
