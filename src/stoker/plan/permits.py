"""Permits: what running stages hold of the machine, taken as a whole vector or not at all.

Because a vector is taken in one step by one loop, two stages can't each hold what the other waits for. A request for
more cores than there are is cut down and then runs alone; one for more memory than there is was refused before it came
here (`admitting`). Devices are not counted here: all runs on the machine share them (`device_gate`).
"""

from __future__ import annotations

from stoker.model.frozen import frozen
from stoker.model.resources import Capacity, Needs, Resource


@frozen
class Grant:
    """What one stage holds."""

    cpu: int
    network: int
    disk: int
    memory_bytes: int


@frozen
class Shortage:
    """What there is not enough of right now, in the fixed order of resources."""

    short_of: tuple[Resource, ...]


class Permits:
    """What is left of a capacity. Not for several threads: the executor's loop owns it."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self._cpu = capacity.cpu
        self._network = capacity.network
        self._disk = capacity.disk
        self._memory_bytes = capacity.memory_bytes

    def take(self, needs: Needs) -> Grant | Shortage:
        """Take all that a stage needs, or nothing and say what is short."""
        wanted = self._cut_down(needs)
        short = [
            resource
            for resource, need, left in (
                (Resource.CPU, wanted.cpu, self._cpu),
                (Resource.NETWORK, wanted.network, self._network),
                (Resource.DISK, wanted.disk, self._disk),
                (Resource.MEMORY, wanted.memory_bytes, self._memory_bytes),
            )
            if need > left
        ]
        if short:
            return Shortage(short_of=tuple(short))
        self._cpu -= wanted.cpu
        self._network -= wanted.network
        self._disk -= wanted.disk
        self._memory_bytes -= wanted.memory_bytes
        return wanted

    def give_back(self, grant: Grant) -> None:
        """Return what a stage held."""
        self._cpu += grant.cpu
        self._network += grant.network
        self._disk += grant.disk
        self._memory_bytes += grant.memory_bytes

    def _cut_down(self, needs: Needs) -> Grant:
        limit = self.capacity.memory_bytes
        return Grant(
            cpu=min(needs.cpu, self.capacity.cpu),
            network=min(needs.network, self.capacity.network),
            disk=min(needs.disk, self.capacity.disk),
            memory_bytes=min(needs.memory_bytes, limit) if limit else 0,
        )
