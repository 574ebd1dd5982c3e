"""How good a place is: system B's formula, its terms kept apart so that they can be shown.

    score = room / need × speed ÷ (1 + jobs there)

Sharing a device: free usable memory beside what the job takes. On the CPU: what is left of the machine beside what
the job takes, both in slices of 4 GiB and one core, whichever of the two is scarcer. Alone on a device spare memory
is of no use to the job, and a device larger than it needs is one that a larger job can't have: there the first term
is one plus the used part. Scores only order places; what comes before them is a `Rank`.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from stoker.model.devices import MIB
from stoker.model.requirements import DEFAULT_RAM_BYTES
from stoker.model.resources import GIB
from stoker.scheduler.speeds import CPU_SPEED

SLICE_RAM_BYTES = DEFAULT_RAM_BYTES
"""One slice of a machine is this and one core."""


class Rank(NamedTuple):
    """What decides before the score does, in this order; larger is better."""

    wished: int
    """It is the kind of place that the job would rather have: a device or the CPU."""
    preferred: int
    """Its host is one that the job prefers."""
    priority: int
    """The node's."""
    fitting: int
    """The job's base is on the device already; for a CPU job: it takes nobody's device slot."""


class Key(NamedTuple):
    """By what places are compared; larger is better, and the first node wins among equals."""

    rank: Rank
    score: float


def shared_score(room_bytes: float, need_bytes: int, speed: float, jobs: int) -> float:
    """Score a device that the job would share."""
    return room_bytes / max(need_bytes, MIB) * speed / (1 + jobs)


def alone_score(need_bytes: int, total_bytes: int, speed: float) -> float:
    """Score a device that the job would have to itself. Who declares nothing is taken to need all of it."""
    return speed * (1 + (need_bytes / total_bytes if need_bytes else 1.0))


def cpu_score(free_slices: float | None, need_slices: float, jobs: int) -> float:
    """Score a machine's CPU. Where nobody knows what is left, it is taken to be just enough."""
    ratio = 1.0 if free_slices is None else free_slices / need_slices
    return ratio * CPU_SPEED / (1 + jobs)


def slices_of(ram_left_bytes: float, cores_left: float) -> float | None:
    """Give what is left of a machine, in slices; nothing if both are endless, which is to say unknown.

    RAM counts in whole GiB: machines that differ by less are equally good.
    """
    if ram_left_bytes == inf:
        return None if cores_left == inf else cores_left
    return min(ram_left_bytes // GIB * GIB / SLICE_RAM_BYTES, cores_left)


def slices_needed(ram_bytes: int, cores: int) -> float:
    """Give what a job takes of a machine, in slices; one if it declares nothing."""
    return max(ram_bytes / SLICE_RAM_BYTES, float(cores)) or 1.0
