"""Looks after the fleet's health: gathers, judges, writes down what is news, and closes a failing device.

Every minute, and within seconds of a failure on a device: one that is broken fails jobs as fast as it is given some.
In a thread of its own. What goes wrong here is tried again, and keeps nobody from work.
"""

from __future__ import annotations

from stoker.coordinator.alongside import Alongside
from stoker.coordinator.health.facts import Facts
from stoker.coordinator.health.gathering import Gatherer
from stoker.coordinator.health.symptoms import failing_devices, symptoms_of
from stoker.coordinator.queue.commands import CloseMachine, Closing
from stoker.coordinator.queue.health_commands import NoteSymptoms
from stoker.coordinator.queue.queue import Queue
from stoker.model.symptoms import Ailment, Symptom

EVERY_S = 60.0
SOON_S = 3.0
"""How often it is seen whether something failed on a device."""
BY = "the coordinator"


class HealthWatch(Alongside):
    """Watches while a with-block lasts."""

    def __init__(self, queue: Queue, gatherer: Gatherer, *, every_s: float = EVERY_S, soon_s: float = SOON_S) -> None:
        super().__init__("health")
        self._queue = queue
        self._gatherer = gatherer
        self._soon_s = soon_s
        self._looks_each = max(1, round(every_s / soon_s))

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
        waited = 0
        while not self._over.wait(self._soon_s):
            waited += 1
            with self._one_try():
                if waited >= self._looks_each or self._has_to_cordon():
                    waited = 0
                    self.look()

    def _has_to_cordon(self) -> bool:
        """Say whether a device is at fault that is still given work; nothing is asked where none has failed a job."""
        if not self._gatherer.sees_device_failures():
            return False
        facts = self._gatherer.gather()
        return bool(to_cordon(facts, failing_devices(facts)))


def to_cordon(facts: Facts, found: list[Symptom]) -> list[Symptom]:
    """Say which failing devices are still given work."""
    closed = {machine.name: machine.closed_devices for machine in facts.machines}
    return [one for one in found if one.ailment is Ailment.FAILING and one.device not in closed[one.machine]]
