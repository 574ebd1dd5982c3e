"""Nodes and clusters: what people declare about their machines, and under which policy work is put there.

Only nouns. The file they are read from is `config.cluster_file`'s; what a machine was found to have is a `Capability`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum

from stoker.core.device import GIB, MIB, Backend, MemoryType, usable_bytes
from stoker.core.frozen import fresh, frozen
from stoker.core.pool import LONGEST_POOL_NAME, LONGEST_WALL_S, Pool, PoolBackend, PoolGpu, PoolShape
from stoker.core.text import lazy_pattern


class NodeTransport(StrEnum):
    """How a node is reached."""

    LOCAL = "local"
    SSH = "ssh"


class NodeLaunch(StrEnum):
    """When the worker of an SSH node is started from elsewhere."""

    MANUAL = "manual"
    """By `stoker launch NAME`."""
    AUTO = "auto"
    """Also when jobs wait that fit it."""


@frozen
class Gpu:
    """One declared device."""

    uuid: str
    type: str
    vram_mb: int
    """In MiB, whatever its name says: the file format is older than this program."""
    memory_type: MemoryType = MemoryType.DISCRETE
    speed: float | None = None
    """As measured, relative to an RTX 4090; None: what its type is known for."""

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
    launch: NodeLaunch = NodeLaunch.MANUAL

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
    pools: tuple[Pool, ...] = ()
    """Machines that can be started when jobs wait."""

    @property
    def adapter_slots(self) -> int:
        return sum(node.max_adapters for node in self.nodes)

    @property
    def all_pools(self) -> tuple[Pool, ...]:
        """The declared pools, and one for each node over SSH."""
        return (*self.pools, *(_pool_of(node) for node in self.nodes if node.transport is NodeTransport.SSH))

    def find(self, name: str) -> Node | None:
        """Return the node of that name, if there is one."""
        return next((node for node in self.nodes if node.name == name), None)


def pool_name(node: str) -> str:
    """Return the name of the pool of a node over SSH: its own, within what pools may be called."""
    plain = "".join(char if char.isalnum() else "-" for char in node.lower())
    return plain[:LONGEST_POOL_NAME].strip("-") or "node"


def _pool_of(node: Node) -> Pool:
    """Return the pool whose only machine is a node over SSH."""
    gpus = tuple(PoolGpu(type=gpu.type, vram_mb=gpu.vram_mb) for gpu in node.gpus)
    return Pool(
        name=pool_name(node.name),
        backend=PoolBackend.SSH,
        via=f"{node.user}@{node.host}" if node.user else node.host,
        each=PoolShape(cpu_cores=node.cpu_cores or 1, ram_mb=node.ram_mb, gpus=gpus, slots=node.slots),
        wall_s=LONGEST_WALL_S,
        is_automatic=node.launch is NodeLaunch.AUTO,
    )


# Requirements: what a job asks of the machine it is put on. Only nouns.

DEFAULT_RAM_BYTES = 4 * GIB
MOST_PRIORITY = 1_000_000
"""Of a job, and below zero, too."""
MOST_EXPECTED_S = 366 * 86400.0
"""The longest duration that a submitter may state."""


class DevicePreference(StrEnum):
    """How a job stands to accelerators."""

    NEVER = "cpu"
    """It computes on the CPU."""
    PREFER = "prefer"
    """A device if one fits, else the CPU."""
    REQUIRE = "require"
    """A device, or it does not start."""


@frozen
class Requirements:
    """What one job needs. Zero means: nothing declared."""

    wish: DevicePreference = DevicePreference.NEVER
    backend: Backend = Backend.CUDA
    device_count: int = 1
    """How many devices, if it gets any."""
    vram_bytes: int = 0
    """On each device, never summed over several."""
    ram_bytes: int = DEFAULT_RAM_BYTES
    cores: int = 0
    may_share: bool = False
    """It may run beside others on its device, within `vram_bytes`."""
    base: str = ""
    """What it shares with its like on one device: the digest of a base model. Charged once per device."""
    base_bytes: int = 0
    """How much of `vram_bytes` that base is."""
    base_ram_bytes: int = 0
    """How much of `ram_bytes` the process takes that works for all jobs of one base on one device, or on the CPU."""
    transfer_mb: float = 0.0
    """What has to go to the device and back, for the cost rule; zero: unknown."""
    mflop: float = 0.0
    """What is computed there, for the cost rule; zero: unknown."""


@frozen
class SchedulableJob:
    """A job as placement sees it: its names, its wishes about machines, its requirements."""

    name: str
    model: str = ""
    """The recipe or model; allow and deny lists match it or the name."""
    requirements: Requirements
    priority: int = 0
    allowed_hosts: tuple[str, ...] = ()
    """Empty: all."""
    preferred_hosts: tuple[str, ...] = ()
    """Better than others if they fit."""
    environment: str = ""
    """What its Python environments amount to, by one digest; empty: it has none of its own."""
    code: str = ""
    """The word for its code (`code_word`), where some machine asks about that; else empty."""
    has_checkpoint: bool = False
    """It has saved a checkpoint before: it may end earlier than it is done, and continue elsewhere."""


@frozen
class Demand:
    """Waiting jobs with the same requirements that no free machine can take now."""

    job: SchedulableJob
    count: int
    since_s: float
    """Since when the first of them waits."""
    names: tuple[str, ...] = ()
    """The first few."""
    takes_s: float | None = None
    """Expected duration, where known."""


def code_word(tree: str, commit: str) -> str:
    """Return the word by which a machine that runs only certain code denies other programs. No job can be called so."""
    return f"code:{tree}:{commit}"


def environment_word(digest: str) -> str:
    """Return the word by which a machine that can't have an environment denies the jobs that need it.

    No job can be called so.
    """
    return f"env:{digest}"


_WORD = lazy_pattern(r"(linux|macos|windows)-([a-z0-9_]{2,20})(?:-cp(3)(\d{1,2}))?", re.ASCII)
_SYSTEMS = {"darwin": "macos", "macos": "macos", "win32": "windows", "windows": "windows"}
_MACHINES = {"arm64": "aarch64", "amd64": "x86_64", "x64": "x86_64"}
PLATFORM_RULE = "such as linux-aarch64, linux-x86_64 or linux-aarch64-cp310"


@frozen
class Platform:
    """A machine as Python environments see it: its system, processor, C library, and Pythons.

    Only nouns, and the words that manifests use for them: `linux-aarch64`, `linux-aarch64-cp310`.
    """

    system: str
    """`linux`, `macos`, `windows`."""
    machine: str
    """`x86_64`, `aarch64`."""
    libc: str = ""
    """`glibc 2.36`, `musl 1.2`; empty if unknown."""
    pythons: tuple[str, ...] = ()
    """Versions of the interpreters that environments may be made with: `3.11.7`; the preferred one first."""

    @property
    def name(self) -> str:
        """`linux-aarch64`."""
        return f"{self.system}-{self.machine}"

    @property
    def text(self) -> str:
        """`linux-aarch64-cp311`, by its preferred Python."""
        return f"{self.name}-{tag_of(self.pythons[0])}" if self.pythons else self.name

    def is_named(self, word: str) -> bool:
        """Return whether a word of a manifest means this machine."""
        return word == self.name or any(word == f"{self.name}-{tag_of(version)}" for version in self.pythons)


def platform_of(*, system: str, machine: str, libc: str = "", pythons: Iterable[str] = ()) -> Platform:
    """Return a machine's platform from facts, however its own system spells them."""
    system, machine = system.lower(), machine.lower()
    return Platform(
        system=_SYSTEMS.get(system, system),
        machine=_MACHINES.get(machine, machine),
        libc=libc,
        pythons=tuple(dict.fromkeys(version for version in pythons if version)),
    )


def is_platform(word: str) -> bool:
    """Return whether a word can name a platform."""
    return _WORD.fullmatch(word) is not None


def python_of(word: str) -> str:
    """Return the version that a platform's word asks for: `3.10` of `linux-aarch64-cp310`; empty: any."""
    found = _WORD.fullmatch(word)
    return f"{found[3]}.{found[4]}" if found is not None and found[4] else ""


def tag_of(version: str) -> str:
    """Return the tag of a Python's version: `cp311` of `3.11.7`."""
    return "cp" + "".join(version.split(".")[:2])


_NUMBERS = lazy_pattern(r"\d+")
_PART = lazy_pattern(r"(===|==|!=|~=|>=|<=|>|<)?\s*(\d+(?:\.\d+){0,3})(\.\*)?")
_PLACES = 3


def fits(version: str, wish: str) -> bool:
    """Return True if a version fits a requirement (`3.11`, `>=3.10,<3.13`); empty: any; an unreadable one: none.

    Only numbers matter for interpreters, so no packaging library is needed.
    """
    have = _numbers(version)
    return not wish.strip() or all(_fits_part(have, part.strip()) for part in wish.split(","))


def _fits_part(have: tuple[int, ...], part: str) -> bool:
    found = _PART.fullmatch(part)
    if found is None:
        return False
    sign, wanted, is_any = found[1] or "", _numbers(found[2]), bool(found[3])
    begins = have[: len(wanted)] == wanted
    if sign == "~=":
        return _filled(have) >= _filled(wanted) and have[: len(wanted) - 1] == wanted[:-1]
    if sign in ("", "==", "===", "!="):
        # 3.11 alone means any 3.11.
        is_open = is_any or (not sign and len(wanted) < _PLACES)
        return (begins if is_open else _filled(have) == _filled(wanted)) is not (sign == "!=")
    return _compared(sign, _filled(have), _filled(wanted))


def _compared(sign: str, have: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    if sign.startswith(">"):
        return have > wanted or (sign == ">=" and have == wanted)
    return have < wanted or (sign == "<=" and have == wanted)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in _NUMBERS.findall(text)[:_PLACES])


def _filled(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return (*numbers, *([0] * (_PLACES - len(numbers))))
