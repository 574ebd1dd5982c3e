"""Mixes: which machines and which jobs a simulation is made of, as the file beside this module says. Only nouns."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from stoker.model.frozen import frozen
from stoker.model.requirements import Wish

Range = tuple[float, float]


@frozen
class NodeKind:
    """Machines that are alike."""

    name: str
    gpus: tuple[tuple[str, int, int], ...] = ()
    """Type, memory in MiB, how many."""
    is_unified: bool = False
    cores: int
    ram_gib: int
    slots: int
    shares: bool = False


@frozen
class JobFamily:
    """Jobs that are drawn from the same ranges."""

    share: float
    wish: Wish
    devices: tuple[int, ...] = (1,)
    vram_gib: Range = (0.0, 0.0)
    ram_gib: Range
    cores: tuple[int, ...]
    minutes: Range
    may_share: bool = False
    bases: int = 0
    """How many base models they are adapters of; 0: of none. `vram_gib` is then what comes on top of the base."""
    base_gib: Range = (0.0, 0.0)


@frozen
class Mix:
    """A fleet and a queue, by shares."""

    name: str
    about: str
    seed: int
    jobs_per_node: int
    """How long a queue makespans are measured with."""
    kinds: tuple[tuple[NodeKind, float], ...]
    families: tuple[JobFamily, ...]
    priorities: tuple[tuple[int, float], ...]


@cache
def mixes() -> Mapping[str, Mix]:
    """Give the mixes that ship, by name, in the order of their file."""
    told = tomllib.loads(files(__package__).joinpath("mixes.toml").read_text(encoding="utf-8"))
    kinds = {name: _kind(name, fields) for name, fields in told["kinds"].items()}
    return {name: _mix(name, fields, kinds) for name, fields in told["mixes"].items()}


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
        wish=Wish(fields["wish"]),
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
