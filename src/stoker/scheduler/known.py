"""What is known of the shapes that were asked for: the amounts they ask for, the hosts they name, whether any shares.

Nodes are told apart by it and by nothing else: two nodes that lie between the same two amounts admit the same shapes.
"""

from __future__ import annotations

from bisect import insort

from stoker.scheduler.offers import Sharing
from stoker.scheduler.pools import DeviceKind
from stoker.scheduler.shapes import Shape


class Known:
    """All shapes together."""

    def __init__(self) -> None:
        self.vram_amounts: list[float] = [0]
        """What they ask for on a device, sorted; the two below alike."""
        self.ram_amounts: list[float] = [0]
        self.core_amounts: list[float] = [0]
        self.host_lists: dict[frozenset[str], int] = {}
        """Lists of hosts that they name, each with its bit."""
        self._has_sharers = False

    def learn(self, shape: Shape) -> list[frozenset[str]]:
        """Take in a shape; gives the lists of hosts that nobody named before."""
        for amounts, asked in (
            (self.vram_amounts, shape.vram_bytes),
            (self.vram_amounts, shape.increment_bytes),
            (self.ram_amounts, shape.ram_bytes),
            (self.core_amounts, shape.cores),
        ):
            if asked not in amounts:
                insort(amounts, asked)
        self._has_sharers |= shape.may_share
        new = [hosts for hosts in (shape.allowed_hosts, shape.preferred_hosts) if hosts]
        new = [hosts for hosts in dict.fromkeys(new) if hosts not in self.host_lists]
        for hosts in new:
            self.host_lists[hosts] = 1 << len(self.host_lists)
        return new

    def is_shared(self, kind: DeviceKind) -> bool:
        """Say whether any of them might share devices of this kind."""
        return kind.sharing is Sharing.ALWAYS or (self._has_sharers and kind.sharing is Sharing.ASKED)
