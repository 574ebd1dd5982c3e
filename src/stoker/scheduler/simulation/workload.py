"""Workloads of the simulation: mixes from `mixes.toml`, and the fleets and queues drawn from a mix and a seed.

The same seed gives the same nodes and jobs everywhere: only `Random.random()` is used, whose values Python keeps from
version to version.
"""

from __future__ import annotations

import tomllib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import accumulate
from math import pow as pow_
from random import Random
from typing import Any

from stoker.core.device import GIB, MemoryType
from stoker.core.frozen import frozen
from stoker.core.machine import DevicePreference, Gpu, Node, Requirements, SchedulableJob
from stoker.scheduler.job_types import UNKNOWN_S
from stoker.scheduler.snapshot import Snapshot, used_classes

Range = tuple[float, float]
_SPREAD = 1.25
"""A job takes between its shape's time divided by this and multiplied by this."""
_FLATNESS = 0.6
"""How unevenly jobs are spread over the shapes of a family: the n-th is 1 / n**flatness as frequent as the first."""
_MIB_STEP = 64
_TRIES = 100


@frozen
class NodeKind:
    """Nodes of one kind."""

    name: str
    gpus: tuple[tuple[str, int, int], ...] = ()
    """Type, memory in MiB, count."""
    is_unified: bool = False
    cores: int
    ram_gib: int
    slots: int
    shares: bool = False


@frozen
class JobFamily:
    """Jobs that are drawn from the same ranges."""

    share: float
    wish: DevicePreference
    devices: tuple[int, ...] = (1,)
    vram_gib: Range = (0.0, 0.0)
    ram_gib: Range
    cores: tuple[int, ...]
    minutes: Range
    may_share: bool = False
    bases: int = 0
    """The number of base models whose adapters they train; 0: none. `vram_gib` is then the memory beside the base."""
    base_gib: Range = (0.0, 0.0)


@frozen
class Mix:
    """A fleet and a queue, as shares of kinds of nodes and families of jobs."""

    name: str
    about: str
    seed: int
    jobs_per_node: int
    """The length of the queue in measurements of the makespan."""
    kinds: tuple[tuple[NodeKind, float], ...]
    families: tuple[JobFamily, ...]
    priorities: tuple[tuple[int, float], ...]


@frozen
class JobShape:
    """Jobs of equal requirements, and how long one takes on a device of speed 1."""

    wanted: SchedulableJob
    expected_s: float
    weight: float
    is_stated: bool = True
    """The scheduler knows their durations; otherwise it learns them from finished jobs."""
    like: str = ""
    """Shapes with the same word here are learned from, too."""


class WorkloadBatch:
    """A queue in the order of submission, in columns: there may be millions of jobs."""

    def __init__(self, shapes: Sequence[JobShape], *, makes_priorities: bool = True) -> None:
        self.shapes = tuple(shapes)
        self.has_priorities = makes_priorities
        self.shape_of = array("I")
        self.work_s = array("d")
        """How long each takes on a device of speed 1."""
        self.priority_of = array("i")
        self.user_of = array("H")
        self.come_s = array("d")
        """When each becomes ready; never earlier than the one before."""
        self.users = 1
        self.running = 0
        """So many at the beginning run already."""
        self.numbers = array("q")
        """What each is called in the queue of which this is a copy; of an invented one, its place."""
        self.class_ids: tuple[int, ...] = ()
        """Of a copy, the class of each shape."""
        self.more: dict[tuple[int, int], tuple[int, int]] = {}
        """By class and priority: the number of the first, and how many, that follow and are only counted."""

    def __len__(self) -> int:
        return len(self.shape_of)

    def add(self, shape: int, work_s: float, priority: int = 0, *, user: int = 0, come_s: float = 0.0) -> None:
        """Append a job to the queue."""
        self.shape_of.append(shape)
        self.work_s.append(work_s)
        self.priority_of.append(priority)
        self.user_of.append(user)
        self.come_s.append(come_s)
        self.users = max(self.users, user + 1)


def batch_of(snapshot: Snapshot, most: int = 0) -> WorkloadBatch:
    """Return the jobs of a snapshot: those that run, then those that wait, in the order of the queue.

    Of those that it only counts, `most` are made into jobs: the next of their class.
    """
    classes = used_classes(snapshot)
    place_of = {one.class_id: place for place, one in enumerate(classes)}
    work_s = [UNKNOWN_S if one.expected_s is None else one.expected_s for one in classes]
    batch = WorkloadBatch(
        [JobShape(wanted=one.wanted, expected_s=work, weight=1.0) for one, work in zip(classes, work_s, strict=True)]
    )
    batch.class_ids = tuple(place_of)
    for lease in snapshot.leases:
        place = place_of[lease.class_id]
        batch.add(place, work_s[place])
        batch.numbers.append(lease.job)
    batch.running = len(batch)
    waiting: list[tuple[float, int, int, int]] = []
    for level in snapshot.ready:
        place = place_of[level.class_id]
        numbers = level.numbers()
        made = min(level.more, most)
        most -= made
        after = numbers[-1] + 1 if numbers else 0
        numbers += range(after, after + made)
        if level.more > made:
            batch.more[level.class_id, level.priority] = after + made, level.more - made
        waiting += [(level.come_s, number, place, level.priority) for number in numbers]
    for come_s, number, place, priority in sorted(waiting):
        batch.add(place, work_s[place], priority, come_s=come_s)
        batch.numbers.append(number)
    return batch


@cache
def mixes() -> Mapping[str, Mix]:
    """Return the mixes of `mixes.toml` by name, in the order of the file."""
    kinds = node_kinds()
    return {name: _mix(name, fields, kinds) for name, fields in _document()["mixes"].items()}


@cache
def node_kinds() -> Mapping[str, NodeKind]:
    """Return the kinds of nodes of `mixes.toml` by name, in the order of the file."""
    return {name: _kind(name, fields) for name, fields in _document()["kinds"].items()}


@cache
def _document() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("mixes.toml").read_text(encoding="utf-8"))


def make_nodes(mix: Mix, count: int, seed: int) -> tuple[Node, ...]:
    """Return a fleet: each kind by its share, in an order drawn from the seed."""
    counts = apportion([share for _, share in mix.kinds], count)
    kinds = [kind for (kind, _), many in zip(mix.kinds, counts, strict=True) for _ in range(many)]
    shuffle(kinds, _drawing("fleet", seed))
    width = len(str(max(count - 1, 0)))
    return tuple(make_node(kind, f"{kind.name}-{number:0{width}d}") for number, kind in enumerate(kinds))


def make_shapes(mix: Mix, count: int, seed: int) -> tuple[JobShape, ...]:
    """Return the shapes of a queue: of each family by its share, at least one."""
    random = _drawing("shapes", seed)
    counts = [max(1, many) for many in apportion([family.share for family in mix.families], count)]
    while sum(counts) > max(count, len(counts)):
        counts[counts.index(max(counts))] -= 1
    whole = sum(family.share for family in mix.families)
    made: list[JobShape] = []
    known: set[Requirements] = set()
    for family, many in zip(mix.families, counts, strict=True):
        parts = [(place + 1) ** -_FLATNESS for place in range(many)]
        for part in parts:
            wanted = SchedulableJob(
                name=f"shape-{len(made):03d}", requirements=_new_requirements(family, random, known)
            )
            expected_s = _between(family.minutes, random) * 60
            weight = family.share / whole * part / sum(parts)
            made.append(JobShape(wanted=wanted, expected_s=expected_s, weight=weight))
    return tuple(made)


def make_batch(  # noqa: PLR0913 - what a queue is made of
    mix: Mix,
    shapes: Sequence[JobShape],
    count: int,
    seed: int,
    *,
    is_equal: bool = False,
    users: int = 1,
    span_s: float = 0.0,
) -> WorkloadBatch:
    """Return a queue of jobs; with `is_equal` all have the same priority.

    The jobs are `users`' in unequal parts, and come one by one over `span_s`, at times drawn evenly.
    """
    random = _drawing("jobs", seed).random
    batch = WorkloadBatch(shapes, makes_priorities=not is_equal)
    limits = list(accumulate(shape.weight for shape in shapes))
    last = len(shapes) - 1
    priorities = [priority for priority, _ in mix.priorities]
    priority_limits = list(accumulate(share for _, share in mix.priorities))
    for _ in range(count):
        shape = min(last, bisect_right(limits, random() * limits[-1]))
        work_s = round(shapes[shape].expected_s * pow_(_SPREAD, 2 * random() - 1), 3)
        drawn = random()
        priority = 0 if is_equal else priorities[bisect_right(priority_limits, drawn * priority_limits[-1])]
        batch.add(shape, work_s, priority)
    if users > 1 or span_s:
        _spread(batch, users, span_s, _drawing("arrivals", seed).random)
    return batch


def _spread(batch: WorkloadBatch, users: int, span_s: float, random: Callable[[], float]) -> None:
    """Give jobs to users, to the n-th 1 / n**flatness as many as to the first, and let them come over a time."""
    batch.users = users
    limits = list(accumulate((place + 1) ** -_FLATNESS for place in range(users)))
    batch.user_of = array("H", [bisect_right(limits, random() * limits[-1]) for _ in range(len(batch))])
    batch.come_s = array("d", sorted(round(random() * span_s, 3) for _ in range(len(batch))))


def apportion(shares: Sequence[float], count: int) -> list[int]:
    """Divide a whole number by shares: rounded down, and the rest to the largest remainders."""
    whole = sum(shares)
    exact = [count * share / whole for share in shares]
    counts = [int(part) for part in exact]
    by_loss = sorted(range(len(shares)), key=lambda place: (counts[place] - exact[place], place))
    for place in by_loss[: count - sum(counts)]:
        counts[place] += 1
    return counts


def shuffle(things: list[NodeKind], random: Random) -> None:
    """Shuffle in place, every order equally likely."""
    for place in range(len(things) - 1, 0, -1):
        other = int(random.random() * (place + 1))
        things[place], things[other] = things[other], things[place]


def _kind(name: str, fields: dict[str, Any]) -> NodeKind:
    return NodeKind(
        name=name,
        gpus=tuple((str(type_), int(vram_mb), int(count)) for type_, vram_mb, count in fields.get("gpus", ())),
        is_unified=fields.get("unified", False),
        cores=fields["cores"],
        ram_gib=fields["ram_gib"],
        slots=fields["slots"],
        shares=fields.get("shares", False),
    )


def _mix(name: str, fields: dict[str, Any], kinds: Mapping[str, NodeKind]) -> Mix:
    return Mix(
        name=name,
        about=fields["about"],
        seed=fields["seed"],
        jobs_per_node=fields["jobs_per_node"],
        kinds=tuple((kinds[kind], float(share)) for kind, share in fields["nodes"].items()),
        families=tuple(map(_family, fields["jobs"])),
        priorities=tuple((int(priority), float(share)) for priority, share in fields["priorities"].items()),
    )


def _family(fields: dict[str, Any]) -> JobFamily:
    ranges = {name: _range(fields[name]) for name in ("vram_gib", "base_gib") if name in fields}
    return JobFamily(
        share=float(fields["share"]),
        wish=DevicePreference(fields["wish"]),
        devices=tuple(fields.get("devices", (1,))),
        ram_gib=_range(fields["ram_gib"]),
        cores=tuple(fields["cores"]),
        minutes=_range(fields["minutes"]),
        may_share=fields.get("may_share", False),
        bases=fields.get("bases", 0),
        **ranges,
    )


def _range(pair: list[float]) -> Range:
    low, high = pair
    return float(low), float(high)


def _drawing(what: str, seed: int) -> Random:
    return Random(f"{what} {seed}")  # noqa: S311 - reproducible on purpose


def make_node(kind: NodeKind, name: str) -> Node:
    """Return a node of a kind."""
    memory_type = MemoryType.UNIFIED if kind.is_unified else MemoryType.DISCRETE
    types = [(type_, vram_mb) for type_, vram_mb, count in kind.gpus for _ in range(count)]
    return Node(
        name=name,
        host=name,
        gpus=tuple(
            Gpu(uuid=f"GPU-{name}-{index}", type=type_, vram_mb=vram_mb, memory_type=memory_type)
            for index, (type_, vram_mb) in enumerate(types)
        ),
        max_adapters=kind.slots if kind.shares else 1,
        cpu_cores=kind.cores,
        ram_mb=kind.ram_gib * 1024,
        slots=kind.slots,
        shares_devices=kind.shares,
    )


def _new_requirements(family: JobFamily, random: Random, known: set[Requirements]) -> Requirements:
    """Draw until the requirements are new; after some tries accept known ones, as narrow ranges may have no more."""
    drawn = _requirements(family, random)
    for _ in range(_TRIES):
        if drawn not in known:
            break
        drawn = _requirements(family, random)
    known.add(drawn)
    return drawn


def _requirements(family: JobFamily, random: Random) -> Requirements:
    base = 1 + int(random.random() * family.bases) if family.bases else 0
    # All adapters of a base have the same base size.
    base_bytes = _mib(_between(family.base_gib, _drawing("base", base))) if base else 0
    is_on_device = family.wish is not DevicePreference.NEVER
    return Requirements(
        wish=family.wish,
        device_count=_one_of(family.devices, random) if is_on_device else 1,
        vram_bytes=base_bytes + _mib(_between(family.vram_gib, random)) if is_on_device else 0,
        ram_bytes=_mib(_between(family.ram_gib, random)),
        cores=_one_of(family.cores, random),
        may_share=family.may_share,
        base=f"base-{base}" if base else "",
        base_bytes=base_bytes,
    )


def _between(range_: Range, random: Random) -> float:
    low, high = range_
    return low * pow_(high / low, random.random())


def _one_of(values: Sequence[int], random: Random) -> int:
    return values[int(random.random() * len(values))]


def _mib(gib: float) -> int:
    """Return bytes in steps of 64 MiB, at least one step."""
    step = _MIB_STEP * 1024**2
    return max(1, int(gib * GIB / step)) * step
