"""Permits: what running stages hold of the machine, taken as a whole vector or not at all.

Because a vector is taken in one step by one loop, two stages can't each hold what the other waits for. A request for
more cores than there are is cut down and then runs alone; one for more memory than there is was refused before it came
here (`admitting`). What a company holds once, cores and its base, is taken with its first member and goes back with its
last one. Devices are not counted here: all runs on the machine share them (`device.gate`).
"""

from __future__ import annotations

from stoker.model.frozen import changed, frozen
from stoker.model.resources import Capacity, Needs, Resource


@frozen
class Grant:
    """What one stage holds."""

    cpu: int
    network: int
    disk: int
    memory_bytes: int
    company: str = ""


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
        self._companies: dict[str, tuple[int, Grant]] = {}

    def members_of(self, company: str) -> int:
        """Say how many members of a company hold something."""
        return self._companies[company][0] if company in self._companies else 0

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
        return self._seated(needs, wanted) if needs.company else wanted

    def give_back(self, grant: Grant) -> None:
        """Return what a stage held."""
        if grant.company:
            grant = self._left(grant)
        self._cpu += grant.cpu
        self._network += grant.network
        self._disk += grant.disk
        self._memory_bytes += grant.memory_bytes

    def _seated(self, needs: Needs, taken: Grant) -> Grant:
        """Give what a member holds by itself; what its company holds is kept apart."""
        count, base = self._companies.get(needs.company, (0, None))
        own_bytes = taken.memory_bytes
        if base is None:
            own_bytes = max(0, taken.memory_bytes - needs.base_memory_bytes)
            base = changed(taken, memory_bytes=taken.memory_bytes - own_bytes)
        self._companies[needs.company] = (count + 1, base)
        return Grant(cpu=0, network=0, disk=0, memory_bytes=own_bytes, company=needs.company)

    def _left(self, grant: Grant) -> Grant:
        """Give what is free when a member has left: of the last one also what its company held."""
        count, base = self._companies.pop(grant.company)
        if count > 1:
            self._companies[grant.company] = (count - 1, base)
            return grant
        return changed(base, memory_bytes=base.memory_bytes + grant.memory_bytes)

    def _cut_down(self, needs: Needs) -> Grant:
        limit = self.capacity.memory_bytes
        if self.members_of(needs.company):
            own_bytes = max(0, needs.memory_bytes - needs.base_memory_bytes)
            return Grant(cpu=0, network=0, disk=0, memory_bytes=min(own_bytes, limit) if limit else 0)
        return Grant(
            cpu=min(needs.cpu, self.capacity.cpu),
            network=min(needs.network, self.capacity.network),
            disk=min(needs.disk, self.capacity.disk),
            memory_bytes=min(needs.memory_bytes, limit) if limit else 0,
        )
