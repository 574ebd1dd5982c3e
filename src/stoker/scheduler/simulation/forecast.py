"""A forecast: where and when the jobs of a snapshot start, by letting the scheduler run forward.

Bounded: after `MOST_DECISIONS` it is only known that a job does not start before the time that was reached. Durations
are those that the scheduler expects; a start that follows the end of a job without an estimate is a guess, and marked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stoker.core.frozen import frozen
from stoker.scheduler.job_types import JobType
from stoker.scheduler.leases import HoldReason, ShareView
from stoker.scheduler.machine_index import MatchableMachine
from stoker.scheduler.ready_queue import UserQueue
from stoker.scheduler.simulation.simulator import NOWHERE, Simulator
from stoker.scheduler.simulation.workload import batch_of
from stoker.scheduler.snapshot import Snapshot

MOST_DECISIONS = 2000


@frozen
class ExpectedStart:
    """Where and when a job is expected to start. Times are seconds from the snapshot."""

    machine: str
    devices: tuple[str, ...] = ()
    start_s: float
    end_s: float
    why: str
    """What decides that it is this job's turn there (`leases.StartReason`)."""
    is_start_known: bool = True
    """Every job that ends before it on this machine has an estimate."""
    is_end_known: bool = True
    """So has the job itself."""


@frozen
class MachineHold:
    """A machine on which a job would fit now, and why it does not start there."""

    machine: str
    reason: str
    """A `HoldReason`."""
    end_s: float | None = None
    """When it would end if it started there now; `None`: no estimate."""
    first: int | None = None
    """The number of a job that goes first there."""
    left_s: float | None = None
    """How long the machine stays; `None`: no end is known."""


@frozen
class JobForecast:
    """What is expected of one job."""

    start: ExpectedStart | None = None
    not_before_s: float | None = None
    """Of a job whose start is further away than the forecast goes."""
    held_back: tuple[MachineHold, ...] = ()


class SnapshotForecast:
    """The forecast of one snapshot. One thread uses it."""

    def __init__(self, snapshot: Snapshot, *, most: int = MOST_DECISIONS) -> None:
        self.snapshot = snapshot
        self._most = most
        self._batch = batch_of(snapshot)
        self._rows = {number: row for row, number in enumerate(self._batch.numbers) if row >= self._batch.running}
        self._run = self._made()
        self._fits = self._fitting(self._run)
        users = {one.user for one in self._run.scheduler.ready.classes.values()}
        self.shares: Mapping[str, ShareView] = self._run.scheduler.shares.views(sorted(users), 0.0)
        """How the users with running or ready jobs stand beside each other."""
        self._run.begin()
        self._first: dict[str, int] = {}
        """By machine, the first job that starts there now."""
        for job in self._run.log.started:
            self._first.setdefault(self._run.offers[self._run.log.node_of[job]].node, self._batch.numbers[job])
        self._is_still = True
        """The run is at the moment of the snapshot: every machine has asked, and nothing has happened since."""
        self._still: Simulator | None = None
        """Another run that is, once this one is not."""

    def of(self, job: int, *, tells: bool = True) -> JobForecast | None:
        """Return what is expected of a ready job; None if the snapshot does not number it.

        Without `tells` it is not found out why it does not start now.
        """
        row = self._rows.get(job)
        if row is None:
            return None
        is_later = self._start(row) is None or self._run.log.start_s[row] > 0
        held_back = self._held_back(row) if tells and is_later else ()
        self._run_to({row})
        run, start = self._run, self._start(row)
        is_over = start is None and run.decisions < self._most and not run.is_cut
        return JobForecast(
            start=start, not_before_s=run.now_s if start is None and not is_over else None, held_back=held_back
        )

    def is_numbered(self, job: int) -> bool:
        """Return whether a job is among the ready jobs that have numbers."""
        return job in self._rows

    def ends_s(self, jobs: Collection[int]) -> float | None:
        """Return when all of these jobs are done; None if that is further away than the forecast goes, or a guess."""
        rows = {self._rows[job] for job in jobs if job in self._rows}
        self._run_to(rows)
        starts = [self._start(row) for row in rows]
        ends_s = [one.end_s for one in starts if one is not None and one.is_start_known and one.is_end_known]
        return max(ends_s) if ends_s and len(ends_s) == len(starts) else None

    def _made(self) -> Simulator:
        offers = [one.offer for one in self.snapshot.machines]
        return Simulator(offers, self._batch, snapshot=self.snapshot)

    def _run_to(self, rows: set[int]) -> None:
        """Run on until these jobs have started, unless that is too far away."""
        if any(self._start(row) is None for row in rows):
            self._is_still = False
            self._run.go(until=self._most, awaited=rows)

    def _now(self) -> Simulator:
        """Return a run at the moment of the snapshot."""
        if self._is_still:
            return self._run
        if self._still is None:
            self._still = self._made()
            self._still.begin()
        return self._still

    def _start(self, row: int) -> ExpectedStart | None:
        run, log = self._run, self._run.log
        if log.node_of[row] == NOWHERE:
            return None
        one = run.scheduler.ready.classes[self._batch.class_ids[self._batch.shape_of[row]]].type
        is_start_known = row not in log.guessed
        return ExpectedStart(
            machine=run.offers[log.node_of[row]].node,
            devices=log.devices[row] or (),
            start_s=log.start_s[row],
            end_s=log.end_s[row],
            why=str(log.why[row]),
            is_start_known=is_start_known,
            is_end_known=is_start_known and one.is_known,
        )

    @staticmethod
    def _fitting(run: Simulator) -> dict[str, int]:
        """Return by machine what fits there now."""
        machines = run.scheduler.machines
        return {name: machines.fits(one) for name, one in machines.machines.items() if not one.is_silent}

    def _held_back(self, row: int) -> tuple[MachineHold, ...]:
        scheduler = self._now().scheduler
        job_class = scheduler.ready.classes[self._batch.class_ids[self._batch.shape_of[row]]]
        queue = scheduler.ready.levels.get(self._batch.priority_of[row], {}).get(job_class.user)
        one = job_class.type
        if queue is None or not queue.counts[one.index]:
            return ()
        found = []
        for name, fits in self._fits.items():
            machine = scheduler.machines.machines[name]
            if fits & one.bits and not machine.closed:
                found.append(self._held_on(machine, queue, one))
        return tuple(found)

    def _held_on(self, machine: MatchableMachine, queue: UserQueue, one: JobType) -> MachineHold:
        scheduler = self._now().scheduler
        speeds = [option.speed for option in one.options if option.node_type == machine.table.number]
        reason = str(scheduler.policy.reason(machine, queue, one, 0.0))
        is_taken = not scheduler.machines.fits(machine) & one.bits
        return MachineHold(
            machine=machine.name,
            reason=str(HoldReason.ORDER) if is_taken else reason,
            end_s=one.expected_s / max(speeds) if one.is_known and speeds else None,
            first=self._first.get(machine.name) if is_taken else None,
            left_s=machine.ends_s,
        )
