"""A real queue on a real database, driven as workers and people drive it, on a clock that stands still."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from stoker.coordinator.database.database import Database, open_database
from stoker.coordinator.queue.commands import Answer, CancelJobs, Command, RequeueJobs, Submit, Sweep, Write
from stoker.coordinator.queue.reader import QueueReader
from stoker.coordinator.queue.writer import Queue, no_fault
from stoker.core.capability import Capability
from stoker.core.clock import FakeClock
from stoker.core.job import JobSpec, job_id
from stoker.core.leases import Budgets, FleetTimes
from stoker.protocol.job_messages import JOB_BODY, Submission, SubmissionResponse
from stoker.protocol.lease_messages import (
    Claim,
    ClaimResponse,
    Fail,
    Finish,
    Grant,
    Hello,
    LeaseReport,
    Release,
    Renewal,
    Start,
)
from stoker.scheduler.scheduler import Scheduler

GIB = 1 << 30


def order(name: str, number: int = 0, *, recipe: str = "tabular/gbt", **more: Any) -> JobSpec:
    """Order a job that is like no other of another name or number."""
    identity = {"name": name, "number": number}
    fields: dict[str, Any] = {
        "id": job_id(recipe=recipe, schema_version=1, args=identity),
        "name": name,
        "number": number,
        "recipe": recipe,
        "args": identity,
        "identity": identity,
        "requirements": {"ram_bytes": GIB},
    }
    return JOB_BODY.validate_python(fields | more)


class Driven:
    """The queue of one database, and what it needs around it."""

    def __init__(
        self,
        url: str,
        clock: FakeClock | None = None,
        *,
        objects: dict[str, int] | None = None,
        faults: Callable[[str], None] | None = None,
    ) -> None:
        self.url = url
        self.faults = faults or no_fault
        """Called at the points at which the writer may crash."""
        self.times = FleetTimes()
        self.clock = clock or FakeClock()
        self.objects: dict[str, int] = {} if objects is None else objects
        self._requests = count(1)
        self.database: Database
        self.queue: Queue
        self.open()

    def open(self) -> None:
        self.database = open_database(self.url, clock=self.clock)
        self.queue = Queue(
            self.database,
            clock=self.clock,
            times=self.times,
            budgets=Budgets(),
            scheduler=Scheduler(),
            has_object=self.objects.get,
            randomness=lambda: 0.5,
            faults=self._reach,
            sweep_every_s=None,
        )

    def _reach(self, point: str) -> None:
        self.faults(point)

    @property
    def reader(self) -> QueueReader:
        return self.queue.reader

    def close(self) -> None:
        self.queue.close()
        self.database.close()

    def ask(self, command: Command) -> Answer:
        """Ask, a second after whatever was asked last."""
        self.clock.advance(1.0)
        return self.queue.ask(command)

    def submit(self, *jobs: JobSpec, only_of: str | None = None, **more: Any) -> SubmissionResponse:
        answer = self.ask(Submit(asked=Submission(jobs=jobs, **{"submitter": "me@desk", **more}), only_of=only_of))
        assert isinstance(answer, SubmissionResponse)
        return answer

    def join(self, *machines: str, slots: int = 4, accepts: tuple[str, ...] = ()) -> None:
        for machine in machines:
            found = Capability(
                hostname=machine,
                os="linux",
                arch="x86_64",
                cpu_cores=16,
                ram_total_bytes=64 * GIB,
                ram_available_bytes=64 * GIB,
            )
            self.ask(
                Hello(
                    worker=machine,
                    incarnation=f"incarnation-{machine}",
                    capability=found.to_dict(),
                    capability_digest=machine,
                    slots=slots,
                    accepts=accepts,
                )
            )

    def claim(self, machine: str = "m1", most: int = 1) -> tuple[Grant, ...]:
        asked = Claim(
            request_id=f"request-{next(self._requests)}",
            worker=machine,
            incarnation=f"incarnation-{machine}",
            most=most,
        )
        answer = self.ask(asked)
        assert isinstance(answer, ClaimResponse)
        return answer.grants

    def start(self, grant: Grant) -> None:
        self.ask(Write(job=grant.job, said=Start(**_token(grant))))

    def finish(self, grant: Grant, **metrics: float) -> None:
        self.start(grant)
        sha256 = f"{grant.job[:32]}{grant.attempt:032x}"
        self.objects[sha256] = 10
        said = Finish(
            **_token(grant), tree=sha256[::-1], archive_sha256=sha256, size_bytes=10, metrics=metrics, seconds=60.0
        )
        self.clock.advance(60.0)
        self.ask(Write(job=grant.job, said=said))

    def fail(self, grant: Grant, message: str = "ValueError: loss is nan") -> None:
        self.start(grant)
        self.ask(Write(job=grant.job, said=Fail(**_token(grant), cause="user", message=message)))

    def release(self, grant: Grant) -> None:
        self.ask(Write(job=grant.job, said=Release(**_token(grant), why="drained")))

    def renew(self, grant: Grant, **report: Any) -> None:
        lease = LeaseReport(job=grant.job, **_token(grant), **report)
        self.ask(Renewal(worker="m1", incarnation="incarnation-m1", leases=(lease,)))

    def sweep_late(self) -> None:
        """Let every lease run out, and look."""
        self.clock.advance(1000.0)
        self.ask(Sweep())

    def cancel(self, *jobs: str) -> None:
        self.ask(CancelJobs(jobs=jobs))

    def requeue(self, *jobs: str) -> None:
        self.ask(RequeueJobs(jobs=jobs))


def busy(url: str, objects: dict[str, int] | None = None) -> Driven:
    """Make a queue with some of everything: completed, failed, lost, cancelled, requeued, running, waiting, blocked."""
    fleet = Driven(url, objects=objects)
    fleet.submit(*(order("sweep", number, label=f"lr={number}") for number in range(1, 7)))
    fleet.submit(order("prep"), order("after", after=("prep",)), order("plain", priority=5))
    fleet.join("m1", "m2")
    (plain,) = fleet.claim()
    fleet.finish(plain, loss=0.5, accuracy=0.9)
    first, second, third, fourth = fleet.claim(most=4)
    fleet.finish(first, loss=0.25, accuracy=0.8)
    fleet.fail(second)
    fleet.release(third)
    fleet.start(fourth)
    fleet.sweep_late()
    fleet.join("m1", "m2")
    fleet.requeue(second.job)
    (again,) = fleet.claim("m2")
    fleet.finish(again, loss=0.125, accuracy=0.7)
    cancelled, runs = fleet.claim(most=2)
    fleet.start(runs)
    fleet.renew(runs, step=3, of=10, metrics={"loss": 0.75}, says="training")
    fleet.release(cancelled)
    fleet.cancel(cancelled.job)
    return fleet


def _token(grant: Grant) -> dict[str, Any]:
    return {"attempt": grant.attempt, "epoch": grant.epoch, "generation": grant.generation}
