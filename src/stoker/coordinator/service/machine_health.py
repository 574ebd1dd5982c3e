"""Machines as people see them, with how they are: symptoms, their workers' reports, skew, their certificates' ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from stoker.coordinator.queue.queue import Queue
from stoker.model.clock import Clock
from stoker.model.frozen import frozen
from stoker.model.symptoms import is_skewed
from stoker.wire.views import MachineView, SymptomView


@frozen
class MachineHealth:
    """Adds it. Reads the database, so it blocks."""

    machines: Callable[[str], tuple[MachineView, ...]]
    queue: Queue
    clock: Clock
    version: str

    def of(self, name: str = "") -> tuple[MachineView, ...]:
        """Give every machine, or the one of a name."""
        reader, now_s = self.queue.reader, self.clock.wall_s()
        symptoms: dict[str, list[SymptomView]] = defaultdict(list)
        for one in reader.symptoms(name):
            symptoms[one.machine].append(one)
        reports = {row.name: row.report for row in reader.machines(name)} if name else {}
        standing = self.queue.standing()
        return tuple(
            view.model_copy(
                update={
                    "symptoms": tuple(symptoms.get(view.name, ())),
                    "report": reports.get(view.name, {}),
                    "is_skewed": is_skewed(view.version, self.version),
                    "certificate_until_s": max(
                        (one.expires_s for one in standing.certificates_of(view.name, now_s)), default=None
                    ),
                }
            )
            for view in self.machines(name)
        )
