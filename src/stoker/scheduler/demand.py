"""Ready jobs that no present machine has room for now: what more machines would be for.

The jobs are packed onto free room in the order of the queue, by the scheduler's own index, and taken out again. Jobs
beyond a limit of their user are no demand: more machines would not start them.
"""

from __future__ import annotations

from heapq import nsmallest

from stoker.core.errors import InternalError
from stoker.core.frozen import frozen
from stoker.scheduler.job_types import JobType, JobTypes
from stoker.scheduler.leases import Shares
from stoker.scheduler.machine_index import MachineIndex
from stoker.scheduler.node_index import PlacedJob
from stoker.scheduler.ready_queue import JobClass, ReadyHead, ReadyQueue

MOST_CLASSES = 200
"""Classes that are examined, in the order of the queue."""
MOST_PLACED = 100
"""Of jobs that still have room after so many, all are taken to have it: grants come first."""


@frozen
class UnmetDemand:
    """Jobs of one class and priority without room."""

    head: ReadyHead
    """The first ready job of the class, which may have room."""
    placed: int
    """How many jobs before them have room."""
    count: int


def unmet_demand(
    types: JobTypes, machines: MachineIndex, ready: ReadyQueue, shares: Shares, now_s: float | None
) -> list[UnmetDemand]:
    """Return the ready jobs that do not fit into what present, open machines have free, in the order of the queue.

    Without `now_s`, machines that leave count as if they stayed.
    """
    heads = nsmallest(MOST_CLASSES, ready.all_heads(), key=lambda head: (-head.priority, head.seq))
    packing = _Packing(types, machines, shares)
    packing.find_rooms(ready.bits, now_s)
    try:
        found = [(head, *packing.pack(head.count, ready.classes[head.class_id])) for head in heads]
    finally:
        packing.undo()
    return [UnmetDemand(head=head, placed=placed, count=count) for head, placed, count in found if count]


class _Packing:
    """Free room, and the jobs that were put there."""

    def __init__(self, types: JobTypes, machines: MachineIndex, shares: Shares) -> None:
        self._types = types
        self._machines = machines
        self._shares = shares
        self._placed: list[PlacedJob] = []
        self._rooms: dict[int, list[str]] = {}
        """Machines by the job types that could start there now and have the time."""
        self._timely: dict[str, int] = {}
        self._left: dict[str, tuple[int | None, int | None]] = {}
        """User → jobs and devices that the user may still start; None: any number."""

    def find_rooms(self, ready: int, now_s: float | None) -> None:
        """Find the machines on which something that is ready could start."""
        for machine in self._machines.machines.values():
            if machine.closed or machine.is_silent:
                continue
            timely = ready
            if machine.ends_s is not None and now_s is not None:
                timely &= machine.table.within(machine.ends_s - now_s)
            fits = timely and timely & self._machines.fits(machine)
            if fits:
                self._timely[machine.name] = timely
                self._rooms.setdefault(fits, []).append(machine.name)

    def pack(self, count: int, job_class: JobClass) -> tuple[int, int]:
        """Place so many jobs of a class; return how many have room, and how many more need it."""
        allowed = self._allowed(job_class.user, count, job_class.type)
        placed = self._place(job_class.type, allowed)
        has_more = placed < allowed and any(fits & job_class.type.bits for fits in self._rooms)
        return placed, 0 if has_more else allowed - placed

    def undo(self) -> None:
        """Take all jobs out again."""
        for placed in reversed(self._placed):
            self._machines.index.release(placed)

    def _place(self, one: JobType, most: int) -> int:
        count = 0
        for fits in [fits for fits in self._rooms if fits & one.bits]:
            machines = self._rooms.pop(fits)
            while machines and count < most and len(self._placed) < MOST_PLACED:
                machine = machines.pop()
                room, more = self._fill(machine, fits, one, most - count)
                count += more
                if room:
                    self._rooms.setdefault(room, []).append(machine)
            if machines:
                self._rooms.setdefault(fits, []).extend(machines)
        return count

    def _fill(self, machine: str, fits: int, one: JobType, most: int) -> tuple[int, int]:
        """Place jobs on one machine; return what fits there then, and how many were placed."""
        index, types, count = self._machines.index, self._types, 0
        while count < most and fits & one.bits and len(self._placed) < MOST_PLACED:
            able = fits & one.bits
            number = (able & -able).bit_length() - 1
            placed = index.place_on(machine, types.shape_of[number])
            if placed is None:
                message = f"a job of {types.shape_of[number]} was expected to fit {machine}, and the rule says no"
                raise InternalError(message)
            self._placed.append(placed)
            fits = types.expand(index.fitting(machine)) & self._timely[machine]
            count += 1
        return fits, count

    def _allowed(self, user: str, count: int, one: JobType) -> int:
        """Return how many of so many jobs the limits of their user leave, and count them."""
        left = self._left.get(user)
        jobs, devices = self._shares.left(user) if left is None else left
        # A job that may use the CPU needs none of its user's devices.
        needed = one.device_count if one.cpu_shape is None else 0
        if jobs is not None:
            count = min(count, jobs)
        if devices is not None and needed:
            count = min(count, devices // needed)
        self._left[user] = (
            None if jobs is None else jobs - count,
            None if devices is None else devices - count * needed,
        )
        return count
