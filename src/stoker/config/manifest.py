"""The manifest's nouns: the jobs that are wanted, and policy about machines, as the file says them.

Only what was read, with its defaults. Sweeps stand as they were written: whoever queues jobs expands them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NoReturn

from stoker.model.frozen import changed, frozen
from stoker.model.leases import Partition
from stoker.model.nodes import Cluster, Node
from stoker.model.requirements import DEFAULT_RAM_BYTES, Requirements, WantedJob, Wish
from stoker.model.resources import GIB

PROGRAM = "command"
"""What a job with a `command` is an instance of, where lists name models."""


class CodePlace(StrEnum):
    """Where a program runs."""

    COPY = "copy"
    """In a copy of its project, made anew for each attempt."""
    IN_PLACE = "in-place"
    """In the folder itself, on machines that have it."""


class JobEntry:
    """One `[[jobs]]` table. Exactly one of `recipe`, `model` and `command` is given.

    Not `frozen` by the decorator: of ten thousand each says a few of its thirty fields, and only those are set. What it
    does not say is its class's.
    """

    name: str
    recipe: str = ""
    model: str = ""
    """The older word for a recipe."""
    command: tuple[str, ...] = ()
    mode: str = ""
    priority: int = 0
    require_cuda: bool = False
    prefer_cuda: bool = False
    min_vram_gib: float = 0.0
    """On each device."""
    min_ram_gib: float = DEFAULT_RAM_BYTES / GIB
    min_cores: int = 0
    gpus: int | None = None
    """How many devices."""
    ranks: int | None = None
    """As how many processes it runs."""
    shares: bool = False
    """Whether it may run beside others on its device."""
    base: str = ""
    base_gib: float = 0.0
    transfer_mb: float = 0.0
    mflop: float = 0.0
    allowed_hosts: tuple[str, ...] = ()
    prefer_hosts: tuple[str, ...] = ()
    hyper: Mapping[str, Any] = MappingProxyType({})
    sweep: Mapping[str, Any] = MappingProxyType({})
    seed: int | None = None
    split_recipe: Any = None
    train_hosts: tuple[str, ...] = ()
    data: Mapping[str, str] = MappingProxyType({})
    outputs: tuple[str, ...] = ()
    code: CodePlace = CodePlace.COPY
    include: tuple[str, ...] = ()
    """Untracked files that belong to the project all the same: patterns."""
    env: Mapping[str, str] = MappingProxyType({})
    """Platform → file to make an environment from; "" is any other platform."""
    python: Mapping[str, str] = MappingProxyType({})
    """Platform → interpreter, or the version that is wanted."""
    after: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    attempts: int = 1
    """How many failures of its own it may have, the first included."""
    timeout: str = ""
    """How long one attempt may run, as it was written: 8h. Empty: as long as it takes."""
    expected: str = ""
    """How long it is expected to take, as it was written. Empty: not stated."""
    on_partition: Partition = Partition.STOP

    def __init__(self, **said: Any) -> None:
        if "name" not in said or not _FIELDS.issuperset(said):
            message = f"a job has a name, and nothing beside its fields; got {', '.join(said)}"
            raise TypeError(message)
        self.__dict__.update(said)

    def __setattr__(self, name: str, _value: object) -> NoReturn:
        message = f"JobEntry.{name} can't be changed"
        raise AttributeError(message)

    def __eq__(self, other: object) -> bool:
        return type(other) is JobEntry and all(getattr(self, name) == getattr(other, name) for name in _FIELDS)

    __hash__ = None  # type: ignore[assignment]  # there are maps among its values

    def __repr__(self) -> str:
        return f"JobEntry({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    @property
    def of(self) -> str:
        """What it is an instance of: its recipe, by whichever word."""
        return self.recipe or self.model or PROGRAM

    @property
    def wish(self) -> Wish:
        """How it stands to accelerators.

        Beside the two flags, what it declares about devices speaks: a number of them is required, memory on one is
        preferred (on a fleet without devices it still runs, as it always did), none of them is none.
        """
        if self.require_cuda or (self.gpus and not self.prefer_cuda):
            return Wish.REQUIRE
        if self.prefer_cuda or (self.min_vram_gib > 0 and self.gpus != 0):
            return Wish.PREFER
        return Wish.NEVER

    def wanted(self) -> WantedJob:
        """Give it as placement sees it."""
        return WantedJob(
            name=self.name,
            model=self.of,
            requirements=Requirements(
                wish=self.wish,
                device_count=self.gpus or self.ranks or 1,
                vram_bytes=int(self.min_vram_gib * GIB),
                ram_bytes=int(self.min_ram_gib * GIB),
                cores=self.min_cores,
                may_share=self.shares,
                base=self.base,
                base_bytes=int(self.base_gib * GIB),
                transfer_mb=self.transfer_mb,
                mflop=self.mflop,
            ),
            priority=self.priority,
            allowed_hosts=self.allowed_hosts,
            preferred_hosts=self.prefer_hosts,
        )


_FIELDS = frozenset(JobEntry.__annotations__)


@frozen
class HostEntry:
    """One `[[hosts]]` table: policy about a machine, by its name."""

    name: str
    description: str = ""
    priority: int = 0
    allow_jobs: tuple[str, ...] = ()
    deny_jobs: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()
    """Which of these the file says; about the others it has no opinion."""


@frozen
class Manifest:
    """Everything that one file wants."""

    jobs: tuple[JobEntry, ...] = ()
    hosts: tuple[HostEntry, ...] = ()

    def find(self, name: str) -> JobEntry | None:
        """Give the job of that name, if there is one."""
        return next((job for job in self.jobs if job.name == name), None)


def overlaid(cluster: Cluster, hosts: Iterable[HostEntry]) -> Cluster:
    """Give the cluster with what a manifest says about its nodes in place of what the cluster file said.

    A host that is no node of it is passed over: an enrolled machine needs no entry.
    """
    said = {host.name: host for host in hosts}
    if not said:
        return cluster
    return changed(cluster, nodes=tuple(_overlaid(node, said.get(node.name)) for node in cluster.nodes))


def _overlaid(node: Node, host: HostEntry | None) -> Node:
    if host is None:
        return node
    return changed(node, **{name: getattr(host, name) for name in host.given})
