"""Nodes and clusters: what people declare about their machines, and under which policy work is put there.

Only nouns. The file they are read from is `config.cluster_file`'s; what a machine was found to have is a `Capability`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from stoker.model.devices import MIB, MemoryType, usable_bytes
from stoker.model.frozen import fresh, frozen


class NodeTransport(StrEnum):
    """How a node is reached."""

    LOCAL = "local"
    SSH = "ssh"


@frozen
class Gpu:
    """One declared device."""

    uuid: str
    type: str
    vram_mb: int
    """In MiB, whatever its name says: the file format is older than this program."""
    memory_type: MemoryType = MemoryType.DISCRETE

    @property
    def total_bytes(self) -> int:
        return self.vram_mb * MIB

    @property
    def usable_bytes(self) -> int:
        return usable_bytes(self.total_bytes, self.memory_type)


@frozen
class Node:
    """One declared machine; its name is its host id."""

    name: str
    host: str
    transport: NodeTransport = NodeTransport.LOCAL
    user: str = ""
    gpus: tuple[Gpu, ...] = ()
    max_adapters: int = 1
    """How many jobs it takes at once, as system B counts them. More than one means that jobs may share its devices."""
    cpu_cores: int | None = None
    ram_mb: int | None = None
    """In MiB, as `vram_mb`."""
    slots: int | None = None
    """How many jobs at once; `max_adapters` if that is more than one, else a job per device."""
    shares_devices: bool | None = None
    """Whether jobs may share a device; `None`: if `max_adapters` is more than one."""
    allow_jobs: tuple[str, ...] = ()
    deny_jobs: tuple[str, ...] = ()
    priority: int = 0
    description: str = ""

    @property
    def most_jobs(self) -> int:
        """How many jobs it takes at once."""
        if self.slots is not None:
            return self.slots
        return self.max_adapters if self.max_adapters > 1 else max(1, len(self.gpus))

    @property
    def may_share(self) -> bool:
        """Whether its devices take more than one job at once."""
        return self.max_adapters > 1 if self.shares_devices is None else self.shares_devices

    @property
    def usable_bytes(self) -> int:
        """What its devices hold together. Never the room of one job: a job's memory is per device."""
        return sum(gpu.usable_bytes for gpu in self.gpus)


@frozen
class UserPolicy:
    """What an operator allows one user."""

    weight: float = 1.0
    """A user with twice the weight has twice the share, within a priority."""
    most_jobs: int | None = None
    """How many jobs at once; None: any number."""
    most_devices: int | None = None


ANY_USER = "*"
"""Under this name stands the policy of users without one of their own."""


@frozen
class Cluster:
    """All declared machines, and what users are allowed on them."""

    nodes: tuple[Node, ...]
    users: Mapping[str, UserPolicy] = fresh(factory=dict)
    """By name."""

    @property
    def adapter_slots(self) -> int:
        return sum(node.max_adapters for node in self.nodes)

    def find(self, name: str) -> Node | None:
        """Give the node of that name, if there is one."""
        return next((node for node in self.nodes if node.name == name), None)
