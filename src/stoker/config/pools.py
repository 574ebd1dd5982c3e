"""The `pools` of a cluster file: machines that a backend starts when jobs wait.

    pools:
      - name: a100
        backend: slurm
        via: login.example.org
        each: { cpu_cores: 8, ram_mb: 65536, gpus: [{ type: a100, vram_mb: 40960 }] }
        wall: 4h
        max: 8
        options: { partition: gpu, account: lab7 }
        setup: [module load python/3.11]

Options become arguments of the backend's command, and setup lines become lines of a shell script: `core.pool`
has the rules of what they may contain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from stoker.config.compose import scalar_text
from stoker.config.fields import (
    EnumField,
    Field,
    FileDiagnostics,
    Flag,
    IntegerField,
    ListOf,
    MapOf,
    MapSchema,
    NumberField,
    ParsedMap,
    Text,
    shown,
)
from stoker.config.positions import LocatedValue
from stoker.core.device import MIB
from stoker.core.frozen import changed, fields_of
from stoker.core.machine import NodeTransport, pool_name
from stoker.core.pool import (
    DEFAULT_WALL_S,
    LONGEST_WALL_S,
    Pool,
    PoolBackend,
    PoolGpu,
    PoolShape,
    pool_faults,
)
from stoker.core.text import format_duration, parse_duration

MOST_ALLOCATIONS = 10_000
_MOST_MIB = 2**30
_LEAST_WALL_S = 60.0
_MOST_IDLE_S = 366 * 86400.0
_DAY_S = 86400.0
_PART = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


class _Duration:
    """A duration with its unit: `90s`, `4h`."""

    def __init__(self, least_s: float, most_s: float, why: str = "") -> None:
        """`why` there is nothing longer."""
        self._least_s, self._most_s, self._why = least_s, most_s, why
        self.says = f"a duration from {format_duration(least_s)}, such as 90s, 15m or 4h"

    def read(self, node: LocatedValue, key: str, reading: FileDiagnostics) -> Any:
        try:
            is_text = type(node.value) is str and node.value.strip()[-1:].isalpha()
            seconds = parse_duration(node.value) if is_text else None
        except ValueError:
            seconds = None
        if seconds is None:
            return reading.refuse(node, key, f"{shown(node.value)} is not a duration", f"it is {self.says}")
        if not self._least_s <= seconds <= self._most_s:
            bound = "short" if seconds < self._least_s else "long"
            most = f"at most {format_duration(self._most_s)}{self._why}"
            hint = f"it is {self.says}" if bound == "short" else most
            return reading.refuse(node, key, f"{shown(node.value)} is too {bound}", hint)
        return seconds


class _OptionValue:
    """The value of a backend's option: a word, a number, or true for an option without a value."""

    says = "text on one line, a number, or true"

    def read(self, node: LocatedValue, key: str, reading: FileDiagnostics) -> Any:
        value = node.value
        if value is True:
            return ""
        if type(value) in (int, float):
            return f"{value}"
        if type(value) is str and value:
            return value
        return reading.refuse(node, key, f"{shown(value)} is not {self.says}")


_GPU = MapSchema(
    "GPU of a pool",
    (
        Field(
            "type",
            Text("a model such as a100"),
            "its model, as the backend names it",
            is_required=True,
        ),
        Field("vram_mb", IntegerField(least=1, most=_MOST_MIB, unit_bytes=MIB), "its memory in MiB", is_required=True),
        Field("count", IntegerField(least=1, most=64), "how many of them (default: 1)"),
    ),
)

_EACH = MapSchema(
    "pool's machine",
    (
        Field("cpu_cores", IntegerField(least=1, most=100_000), "cores of each machine (default: 1)"),
        Field("ram_mb", IntegerField(least=1, most=_MOST_MIB, unit_bytes=MIB), "memory of each in MiB"),
        Field("gpus", ListOf(_GPU), "its devices"),
        Field("slots", IntegerField(least=1, most=100_000), "jobs at once (default: one per device, or one)"),
    ),
)

POOL = MapSchema(
    "pool",
    (
        Field(
            "name",
            Text("a pool's name"),
            "its name; workers are called NAME-ID",
            is_required=True,
        ),
        Field("backend", EnumField(PoolBackend), "what starts its workers", is_required=True),
        Field(
            "via",
            Text("an address"),
            "the host with Slurm's commands over SSH (default: the launcher's own), or the host of an SSH pool",
        ),
        Field("each", _EACH, "what each of its machines has"),
        Field(
            "wall",
            _Duration(_LEAST_WALL_S, LONGEST_WALL_S, ": no certificate of a worker lives longer"),
            "time limit of an allocation (default: 4h)",
        ),
        Field("min", IntegerField(least=0, most=MOST_ALLOCATIONS), "allocations that stay without jobs (default: 0)"),
        Field("max", IntegerField(least=1, most=MOST_ALLOCATIONS), "allocations at once (default: 1)"),
        Field("idle", _Duration(1.0, _MOST_IDLE_S), "a worker without a job for this long exits (default: 5m)"),
        Field(
            "backlog",
            IntegerField(least=1, most=MOST_ALLOCATIONS),
            "allocations that wait at the backend at once (default: 2)",
        ),
        Field("patience", _Duration(0.0, 86400.0), "how long a job waits before a request (default: 10s)"),
        Field("drain", _Duration(1.0, _MOST_IDLE_S), "time before the end to save checkpoints (default: 2m)"),
        Field(
            "options",
            MapOf(_OptionValue(), Text("an option such as partition")),
            "further options of the backend",
        ),
        Field("setup", ListOf(Text("a shell command")), "commands before the worker starts"),
        Field("python", Text("a path"), "a Python there that has Stoker; kit: Stoker is brought along"),
        Field("folder", Text("a path"), "a folder that launcher and machines share"),
        Field("automatic", Flag(), "false: it starts only by `stoker launch NAME` (default: true)"),
        Field("cost_per_hour", NumberField(), "cost of one machine, for reports"),
        Field("max_hours", NumberField(), "hours per day of all allocations together", may_be_null=True),
    ),
    meant={
        **dict.fromkeys(("type", "engine", "scheduler", "launcher"), "backend"),
        **dict.fromkeys(("time", "walltime", "wall_time", "time_limit", "timeout"), "wall"),
        **dict.fromkeys(("maximum", "max_jobs", "max_workers", "max_nodes", "size"), "max"),
        **dict.fromkeys(("minimum", "min_jobs", "min_workers"), "min"),
        **dict.fromkeys(("idle_timeout", "idle_time"), "idle"),
        **dict.fromkeys(("host", "login", "login_node"), "via"),
        **dict.fromkeys(("resources", "shape", "node"), "each"),
        **dict.fromkeys(("args", "extra", "sbatch"), "options"),
        **dict.fromkeys(("modules", "prologue", "worker_init"), "setup"),
    },
)


def check_pools(reading: FileDiagnostics, pools: Iterable[ParsedMap], nodes: Iterable[ParsedMap]) -> None:
    """Note the faults of pools that concern several keys or several pools, and of their texts."""
    names: dict[str, ParsedMap] = {}
    taken = _taken_names(reading, nodes)
    for pool in pools:
        name = pool.get("name")
        if name is not None:
            first = names.setdefault(name, pool)
            if first is not pool:
                line = first.at("name").line
                _refuse(reading, pool, "name", f"duplicate pool name {name!r}", f"first on line {line}")
            elif name in taken:
                _refuse(reading, pool, "name", f"{name!r} is a node of this file, too", "use another name")
        if pool.get("min", 0) > pool.get("max", 1):
            _refuse(reading, pool, "min", f"min {pool.get('min')} is more than max {pool.get('max', 1)}", "")
        wall_s, drain_s = pool.get("wall", DEFAULT_WALL_S), pool.get("drain")
        if drain_s is not None and drain_s > wall_s / 4:
            hint = f"at most {format_duration(wall_s / 4)}, a quarter of wall"
            _refuse(reading, pool, "drain", "drain leaves too little time for jobs", hint)
        each_hours = min(wall_s, _DAY_S) / 3600
        if (pool.get("max_hours") or each_hours) < each_hours:
            hint = f"at least {each_hours:g}, or a shorter wall"
            _refuse(reading, pool, "max_hours", "no machine could start: one may be there longer (wall)", hint)
        for fault in pool_faults(_stand_in(pool)):
            reading.refuse(_place(pool.node, fault.where), f"{pool.key}.{fault.where}", fault.message, fault.hint)


def _stand_in(given: ParsedMap) -> Pool:
    """Return a pool, possibly with faults, whose texts can be checked: what is missing or wrong is replaced."""
    read = pool_of(changed(given, values={"name": "name", "backend": PoolBackend.SLURM, **given.values}))
    # Each backend has options of its own.
    return read if "backend" in given.values else changed(read, options={})


def _taken_names(reading: FileDiagnostics, nodes: Iterable[ParsedMap]) -> set[str]:
    """Return names that no pool may have: of nodes, and of the pools that nodes over SSH are."""
    pools: dict[str, str] = {}
    names = set()
    for node in nodes:
        name = node.get("name", "")
        names.add(name)
        if name and node.get("transport") is NodeTransport.SSH:
            first = pools.setdefault(pool_name(name), name)
            if first != name:
                message = f"{name!r} and {first!r} would be one pool, {pool_name(name)!r}"
                _refuse(reading, node, "name", message, "use names that differ in more than signs and case")
    return names | pools.keys()


def _place(node: LocatedValue, where: str) -> LocatedValue:
    """Return the place of a value by its path below a pool, or of the innermost map that there is."""
    for found in _PART.finditer(where):
        inside = node.value
        if found[1] is not None and type(inside) is dict and found[1] in inside:
            node = inside[found[1]]
        elif found[2] is not None and type(inside) is list and int(found[2]) < len(inside):
            node = inside[int(found[2])]
        else:
            break
    return node


def _refuse(reading: FileDiagnostics, pool: ParsedMap, name: str, message: str, hint: str) -> None:
    reading.refuse(pool.at(name), f"{pool.key}.{name}", message, hint)


_SECONDS = {"wall": "wall_s", "idle": "idle_s", "patience": "patience_s", "drain": "drain_s"}
_NAMED = {**_SECONDS, "automatic": "is_automatic"}


def pool_of(given: ParsedMap) -> Pool:
    """Return a pool that was read; required keys that are missing in its devices were noted as faults."""
    values = {_NAMED.get(name, name): value for name, value in given.values.items()}
    if "each" in values:
        each: ParsedMap = values["each"]
        gpus = [
            PoolGpu(type=gpu.get("type", "gpu"), vram_mb=gpu.get("vram_mb", 1))
            for gpu in each.get("gpus", ())
            for _ in range(gpu.get("count", 1))
        ]
        values["each"] = PoolShape(
            cpu_cores=each.get("cpu_cores", 1), ram_mb=each.get("ram_mb"), gpus=tuple(gpus), slots=each.get("slots")
        )
    return Pool(**values)


_DEFAULTS = fields_of(Pool(name="", backend=PoolBackend.LOCAL))


def write_pools(pools: Iterable[Pool]) -> Iterator[str]:
    """Return the lines of a YAML file that reads back as the same pools, without defaults."""
    for number, pool in enumerate(pools):
        if number == 0:
            yield "pools:"
        first = "- "
        for key, value in fields_of(pool).items():
            if key in ("name", "backend") or value != _DEFAULTS[key]:
                yield f"  {first}{_line(key, value)}"
                first = "  "


def _line(key: str, value: Any) -> str:
    if key == "each":
        parts = [f"cpu_cores: {value.cpu_cores}"]
        if value.ram_mb is not None:
            parts.append(f"ram_mb: {value.ram_mb}")
        if value.gpus:
            gpus = ", ".join(f"{{type: {scalar_text(gpu.type)}, vram_mb: {gpu.vram_mb}}}" for gpu in value.gpus)
            parts.append(f"gpus: [{gpus}]")
        if value.slots is not None:
            parts.append(f"slots: {value.slots}")
        return f"each: {{{', '.join(parts)}}}"
    if key == "options":
        inside = (f"{name}: {scalar_text(text) if text else 'true'}" for name, text in value.items())
        return f"options: {{{', '.join(inside)}}}"
    if type(value) is tuple:
        return f"{key}: [{', '.join(map(scalar_text, value))}]"
    for name, field in _SECONDS.items():
        if key == field:
            return f"{name}: {value:g}s"
    key = key.removeprefix("is_")
    return f"{key}: {scalar_text(str(value) if isinstance(value, PoolBackend) else value)}"
