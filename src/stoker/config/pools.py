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

Options become arguments of the backend's command, and setup lines become lines of a shell script. Neither may contain
line breaks or control characters, and an option that Stoker sets itself is refused.
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
from stoker.core.frozen import fields_of
from stoker.core.pool import (
    DEFAULT_WALL_S,
    Pool,
    PoolBackend,
    PoolGpu,
    PoolShape,
)
from stoker.core.text import format_duration, parse_duration

MOST_ALLOCATIONS = 10_000
_MOST_MIB = 2**30
_LEAST_WALL_S = 60.0
_MOST_WALL_S = 366 * 86400.0
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?", re.ASCII)
_NAME_RULE = "lower-case letters, digits and - inside, 40 at most: it is part of names that backends restrict"
_OPTION = re.compile(r"[a-z][a-z0-9-]{0,63}", re.ASCII)
_ADDRESS = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}@)?[A-Za-z0-9][A-Za-z0-9.:-]{0,253}", re.ASCII)
_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_OWN_OPTIONS = {
    **dict.fromkeys(("time", "time-min", "deadline"), "wall"),
    **dict.fromkeys(("cpus-per-task", "mincpus"), "each.cpu_cores"),
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu"), "each.ram_mb"),
    **dict.fromkeys(("gres", "gpus", "gpus-per-node", "gpus-per-task"), "each.gpus"),
    **dict.fromkeys(("array",), "max"),
    **dict.fromkeys(
        ("job-name", "comment", "parsable", "requeue", "no-requeue", "ntasks", "nodes", "wrap", "test-only", "wait"), ""
    ),
}
"""Options that Stoker sets, with the key that determines them."""


class _Duration:
    """A duration with its unit: `90s`, `4h`."""

    def __init__(self, least_s: float, most_s: float) -> None:
        self._least_s, self._most_s = least_s, most_s
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
            return reading.refuse(node, key, f"{shown(node.value)} is too {bound}", f"it is {self.says}")
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
        if type(value) is str and value and is_script_line(value):
            return value
        return reading.refuse(node, key, f"{shown(value)} is not {self.says}")


def is_script_line(text: str) -> bool:
    """Return True if a text is one line without control characters."""
    return text.isprintable() and len(text) <= 2000


_GPU = MapSchema(
    "GPU of a pool",
    (
        Field(
            "type",
            Text("a model such as a100", fits=lambda text: _TYPE.fullmatch(text) is not None),
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
            Text("a pool's name", fits=lambda text: _NAME.fullmatch(text) is not None, hint=_NAME_RULE),
            "its name; workers are called NAME-ID",
            is_required=True,
        ),
        Field("backend", EnumField(PoolBackend), "what starts its workers", is_required=True),
        Field(
            "via",
            Text("an address", fits=lambda text: _ADDRESS.fullmatch(text) is not None, hint="HOST or USER@HOST"),
            "the host with the backend's commands, over SSH (default: the launcher's own)",
        ),
        Field(
            "hosts",
            ListOf(
                Text("an address", fits=lambda text: _ADDRESS.fullmatch(text) is not None, hint="HOST or USER@HOST"),
                is_set=True,
            ),
            "machines of an SSH pool",
        ),
        Field("each", _EACH, "what each of its machines has"),
        Field("wall", _Duration(_LEAST_WALL_S, _MOST_WALL_S), "time limit of an allocation (default: 4h)"),
        Field("min", IntegerField(least=0, most=MOST_ALLOCATIONS), "allocations that stay without jobs (default: 0)"),
        Field("max", IntegerField(least=1, most=MOST_ALLOCATIONS), "allocations at once (default: 1)"),
        Field("idle", _Duration(1.0, _MOST_WALL_S), "a worker without a job for this long exits (default: 5m)"),
        Field(
            "backlog",
            IntegerField(least=1, most=MOST_ALLOCATIONS),
            "allocations that wait at the backend at once (default: 2)",
        ),
        Field("patience", _Duration(0.0, 86400.0), "how long a job waits before a request (default: 10s)"),
        Field("drain", _Duration(1.0, _MOST_WALL_S), "time before the end to save checkpoints (default: 2m)"),
        Field(
            "options",
            MapOf(_OptionValue(), Text("an option such as partition", fits=lambda one: bool(_OPTION.fullmatch(one)))),
            "further options of the backend",
        ),
        Field("setup", ListOf(Text("a shell command", fits=is_script_line)), "commands before the worker starts"),
        Field("python", Text("a path", fits=is_script_line), "a Python there that has Stoker"),
        Field("folder", Text("a path", fits=is_script_line), "a folder that launcher and machines share"),
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


def check_pools(reading: FileDiagnostics, pools: Iterable[ParsedMap], nodes: set[str]) -> None:
    """Note the faults of pools that concern several keys, or several pools."""
    names: dict[str, ParsedMap] = {}
    for pool in pools:
        name = pool.get("name")
        if name is not None:
            first = names.setdefault(name, pool)
            if first is not pool:
                line = first.at("name").line
                _refuse(reading, pool, "name", f"duplicate pool name {name!r}", f"first on line {line}")
            elif name in nodes:
                _refuse(reading, pool, "name", f"{name!r} is a node of this file, too", "use another name")
        if pool.get("min", 0) > pool.get("max", 1):
            _refuse(reading, pool, "min", f"min {pool.get('min')} is more than max {pool.get('max', 1)}", "")
        _check_backend(reading, pool)
        for option in pool.get("options", {}):
            if option in _OWN_OPTIONS:
                key = _OWN_OPTIONS[option]
                hint = f"it follows from {key}" if key else "remove it"
                message = f"Stoker sets {option} itself"
                reading.refuse(pool.at("options").value[option], f"{pool.key}.options.{option}", message, hint)


def _check_backend(reading: FileDiagnostics, pool: ParsedMap) -> None:
    backend = pool.get("backend")
    if backend is PoolBackend.SSH and not pool.get("hosts") and not pool.says("hosts"):
        _refuse(reading, pool, "backend", "an SSH pool has hosts", "hosts: [me@lab1, me@lab2]")
    if backend not in (None, PoolBackend.SSH) and pool.says("hosts"):
        _refuse(reading, pool, "hosts", f"hosts are for SSH pools, not for {backend}", "remove it")
    if backend not in (None, PoolBackend.SLURM) and pool.says("via"):
        _refuse(reading, pool, "via", f"via is for Slurm pools, not for {backend}", "remove it")
    wall_s, drain_s = pool.get("wall", DEFAULT_WALL_S), pool.get("drain")
    if drain_s is not None and drain_s > wall_s / 4:
        hint = f"at most {format_duration(wall_s / 4)}, a quarter of wall"
        _refuse(reading, pool, "drain", "drain leaves too little time for jobs", hint)


def _refuse(reading: FileDiagnostics, pool: ParsedMap, name: str, message: str, hint: str) -> None:
    reading.refuse(pool.at(name), f"{pool.key}.{name}", message, hint)


_SECONDS = {"wall": "wall_s", "idle": "idle_s", "patience": "patience_s", "drain": "drain_s"}


def pool_of(given: ParsedMap) -> Pool:
    """Return a pool that was read without a fault."""
    values = {_SECONDS.get(name, name): value for name, value in given.values.items()}
    if "each" in values:
        each: ParsedMap = values["each"]
        gpus = [
            PoolGpu(type=gpu.get("type"), vram_mb=gpu.get("vram_mb"))
            for gpu in each.get("gpus", ())
            for _ in range(gpu.get("count", 1))
        ]
        values["each"] = PoolShape(
            cpu_cores=each.get("cpu_cores", 1), ram_mb=each.get("ram_mb"), gpus=tuple(gpus), slots=each.get("slots")
        )
    if values["backend"] is PoolBackend.SSH:
        values.setdefault("max", max(1, len(values.get("hosts", ()))))
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
    return f"{key}: {scalar_text(str(value) if isinstance(value, PoolBackend) else value)}"
