"""Ready jobs that no present machine has room for now: what more machines would be for.

The jobs are packed onto free room in the order of the queue, by the scheduler's own index, and taken out again. Jobs
beyond a limit of their user are no demand: more machines would not start them.
"""

from __future__ import annotations

from heapq import nsmallest

from stoker.core.frozen import frozen
from stoker.scheduler.job_types import JobType, JobTypes
from stoker.scheduler.leases import Shares
from stoker.scheduler.machine_index import MachineIndex
from stoker.scheduler.node_index import PlacedJob
from stoker.scheduler.ready_queue import JobClass, ReadyHead, ReadyQueue

MOST_CLASSES = 200
"""Classes that are examined, in the order of the queue."""
MOST_PLACED = 500
"""With more free room than this nothing else is demand: grants come first."""


@frozen
class UnmetDemand:
    """Jobs of one class and priority without room."""

    head: ReadyHead
    """The first ready job of the class, which may have room."""
    placed: int
    """How many jobs before them have room."""
    count: int


def unmet_demand(
    types: JobTypes, machines: MachineIndex, ready: ReadyQueue, shares: Shares, now_s: float
) -> list[UnmetDemand]:
    """Return the ready jobs that do not fit into what present, open machines have free, in the order of the queue."""
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
        self._rooms: dict[str, int] = {}
        """Machine → job types that could start there now and have the time."""
        self._timely: dict[str, int] = {}
        self._left: dict[str, tuple[int | None, int | None]] = {}
        """User → jobs and devices that the user may still start; None: any number."""

    def find_rooms(self, ready: int, now_s: float) -> None:
        """Find the machines on which something that is ready could start."""
        for machine in self._machines.machines.values():
            if machine.closed or machine.is_silent:
                continue
            timely = ready if machine.ends_s is None else ready & machine.table.within(machine.ends_s - now_s)
            fits = timely and timely & self._machines.fits(machine)
            if fits:
                self._rooms[machine.name], self._timely[machine.name] = fits, timely

    def pack(self, count: int, job_class: JobClass) -> tuple[int, int]:
        """Place so many jobs of a class; return how many have room, and how many more need it."""
        allowed = self._allowed(job_class.user, count, job_class.type)
        placed = self._place(job_class.type, allowed)
        return placed, 0 if len(self._placed) >= MOST_PLACED else allowed - placed

    def undo(self) -> None:
        """Take all jobs out again."""
        for placed in reversed(self._placed):
            self._machines.index.release(placed)

    def _place(self, one: JobType, most: int) -> int:
        index, types, count = self._machines.index, self._types, 0
        for machine in [name for name, fits in self._rooms.items() if fits & one.bits]:
            while count < most and len(self._placed) < MOST_PLACED and (fits := self._rooms[machine] & one.bits):
                number = (fits & -fits).bit_length() - 1
                placed = index.place_on(machine, types.shape_of[number])
                if placed is None:
                    self._rooms[machine] &= ~(1 << number)
                    continue
                self._placed.append(placed)
                self._rooms[machine] = types.expand(index.fitting(machine)) & self._timely[machine]
                count += 1
        return count

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
