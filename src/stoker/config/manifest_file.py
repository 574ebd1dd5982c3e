"""The manifest into jobs and policy: what to train, under which names, and what each job requires of a machine.

    [[jobs]]
    name    = "resnet"
    command = "python train.py --lr {lr}"       # or recipe = "tabular/gbt"; model = "gbt" is the older word
    sweep   = { lr = [1e-3, 1e-4] }
    min_vram_gib = 6

    [[hosts]]
    name = "lab1"
    deny_jobs = ["lora"]

TOML, or YAML with the same keys. All faults of a file are reported at once. The known recipes are passed in.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeVar

from stoker.config.cluster_file import JOB_LIST, MOST_MIB
from stoker.config.fields import (
    WRONG,
    Anything,
    ByPlatform,
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
    read_as,
    shown,
)
from stoker.config.manifest_rules import KnownNames, check_manifest
from stoker.config.positions import LocatedValue
from stoker.config.sweep import Sweep
from stoker.core.device import COMPUTE_BACKENDS, GIB, Backend
from stoker.core.errors import BadInput, InvalidManifest
from stoker.core.frozen import changed, frozen
from stoker.core.leases import Partition
from stoker.core.machine import (
    DEFAULT_RAM_BYTES,
    MOST_EXPECTED_S,
    MOST_PRIORITY,
    Cluster,
    DevicePreference,
    Node,
    Requirements,
    SchedulableJob,
)
from stoker.core.text import (
    JOB_NAME_RULE,
    NODE_NAME_RULE,
    is_job_name,
    is_metric_source,
    is_node_name,
    metric_source_fault,
    parse_duration,
)
from stoker.host.folders import placed_path

# Types of the manifest: jobs, and policy about machines, as in the file.
#
# Only what was read, with its defaults. Sweeps are not expanded here.

PROGRAM = "command"
"""Model name of a job with a `command`, for lists of models."""


class CodePlace(StrEnum):
    """Where a program runs."""

    COPY = "copy"
    """In a copy of its project, made for each attempt."""
    IN_PLACE = "in-place"
    """In the folder itself, on machines that have it."""


class JobEntry:
    """One `[[jobs]]` table. Exactly one of `recipe`, `model` and `command` is given.

    Not `frozen` by the decorator: of ten thousand each has a few of its thirty fields, and only those are set. Others
    are attributes of the class; those that only set a field of the job's spec are in `spec_fields` alone.
    """

    name: str
    recipe: str = ""
    model: str = ""
    """The older key for a recipe."""
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
    """Number of devices."""
    gpu_backend: Backend = Backend.CUDA
    ranks: int | None = None
    """Number of processes."""
    shares: bool = False
    """True if it may run beside others on its device."""
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
    metrics: tuple[str, ...] = ()
    code: CodePlace = CodePlace.COPY
    include: tuple[str, ...] = ()
    """Untracked files that belong to the project: patterns."""
    env: Mapping[str, str] = MappingProxyType({})
    """Platform → file to make an environment from; "" is any other platform."""
    python: Mapping[str, str] = MappingProxyType({})
    """Platform → interpreter, or the required version."""

    def __init__(self, **fields: Any) -> None:
        if "name" not in fields or not _KEYS.keys() >= fields.keys():
            message = f"a job has a name, and nothing beside its fields; got {', '.join(fields)}"
            raise TypeError(message)
        self.__dict__.update(fields)

    def __setattr__(self, name: str, _value: object) -> NoReturn:
        message = f"JobEntry.{name} can't be changed"
        raise AttributeError(message)

    def __eq__(self, other: object) -> bool:
        if type(other) is not JobEntry:
            return False
        return all(getattr(self, name, None) == getattr(other, name, None) for name in _KEYS)

    __hash__ = None  # type: ignore[assignment]  # there are maps among its values

    def __repr__(self) -> str:
        return f"JobEntry({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def spec_fields(self) -> dict[str, Any]:
        """Return the fields of a `JobSpec` that it sets, by name."""
        fields = {}
        for name, value in vars(self).items():
            # A field that is empty need not be checked ten thousand times.
            if value and (field := _KEYS[name].sets):
                fields[field] = parse_duration(value) if field in _SECONDS else value
        return fields

    @property
    def of(self) -> str:
        """Its recipe, by any of the keys."""
        return self.recipe or self.model or PROGRAM

    @property
    def wish(self) -> DevicePreference:
        """How it uses accelerators.

        Beside the two flags, its declarations about devices count: a number of them means required, memory on one means
        preferred (on a fleet without devices it still runs, as it always did), zero means none, a backend alone means
        required.
        """
        if self.require_cuda or (self.gpus and not self.prefer_cuda):
            return DevicePreference.REQUIRE
        if self.prefer_cuda or (self.min_vram_gib > 0 and self.gpus != 0):
            return DevicePreference.PREFER
        return DevicePreference.REQUIRE if "gpu_backend" in vars(self) else DevicePreference.NEVER

    def wanted(self) -> SchedulableJob:
        """Return it as input of placement."""
        return SchedulableJob(
            name=self.name,
            model=self.of,
            requirements=Requirements(
                wish=self.wish,
                backend=self.gpu_backend,
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


@frozen
class HostEntry:
    """One `[[hosts]]` table: policy about a machine, by its name."""

    name: str
    description: str = ""
    priority: int = 0
    allow_jobs: tuple[str, ...] = ()
    deny_jobs: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()
    """The fields that the file has; the others are not changed."""


@frozen
class Manifest:
    """The content of one file."""

    jobs: tuple[JobEntry, ...] = ()
    hosts: tuple[HostEntry, ...] = ()

    def find(self, name: str) -> JobEntry | None:
        """Return the job with that name, if there is one."""
        return next((job for job in self.jobs if job.name == name), None)


def overlaid(cluster: Cluster, hosts: Iterable[HostEntry]) -> Cluster:
    """Return the cluster with a manifest's policy in place of the cluster file's.

    A host that is no node of it is skipped: an enrolled machine needs no entry.
    """
    by_name = {host.name: host for host in hosts}
    if not by_name:
        return cluster
    return changed(cluster, nodes=tuple(_overlaid(node, by_name.get(node.name)) for node in cluster.nodes))


def _overlaid(node: Node, host: HostEntry | None) -> Node:
    if host is None:
        return node
    return changed(node, **{name: getattr(host, name) for name in host.given})


T = TypeVar("T")

WHAT = "manifest"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}", re.ASCII)
_MOST_GIB = MOST_MIB / 1024
_FORM_HINT = "one job is [[jobs]] and its keys below it"


class CommandLineField:
    """A program and its arguments: one text, split as by a shell, or a list of words."""

    says = "a command line, or a list of its words"

    def read(self, node: LocatedValue, key: str, reading: FileDiagnostics) -> Any:
        if type(node.value) is list:
            words = ListOf(Text("a word", may_be_empty=True)).read(node, key, reading)
        elif (text := Text(self.says).read(node, key, reading)) is WRONG:
            return WRONG
        else:
            try:
                words = _words(text)
            except ValueError as error:
                return reading.refuse(node, key, f"{shown(text)} can't be split: {str(error).lower()}")
        if words is not WRONG and not (words and words[0]):
            return reading.refuse(node, key, "is empty", "such as python train.py")
        return words


def _words(text: str) -> tuple[str, ...]:
    """Split a command line as a shell does. Without quotes, by spaces, thirty times as fast."""
    is_plain = text.isascii() and text.isprintable() and not _QUOTING.intersection(text)
    return tuple(text.split() if is_plain else shlex.split(text))


_QUOTING = frozenset("'\"\\")


def _is_inside(path: str) -> bool:
    return not path.startswith(("/", "~")) and ".." not in path.split("/") and path.isprintable()


def _is_placed(path: str) -> bool:
    try:
        return bool(placed_path(path))
    except BadInput:
        return False


def _is_time(text: str, most_s: float = sys.float_info.max) -> bool:
    try:
        return text.strip()[-1:].isalpha() and 0 < parse_duration(text) <= most_s
    except ValueError:
        return False


def _is_expected(text: str) -> bool:
    return _is_time(text, MOST_EXPECTED_S)


_NODES = ListOf(Text("a machine's name", fits=is_node_name, hint=NODE_NAME_RULE), is_set=True)
_GIB = NumberField(most=_MOST_GIB, unit_bytes=GIB)
_VARIABLE_NAME = Text("a variable's name", fits=lambda text: _VARIABLE.fullmatch(text) is not None)
_DATA_NAME = Text(
    "a variable's name, or a path below the working folder with a /",
    fits=lambda text: _is_placed(text) if "/" in text else _VARIABLE.fullmatch(text) is not None,
    hint="DATA, data/corpus or ./train.bin",
)
_PATH = Text("a path")
_WORD = Text(fits=str.isprintable)
_TIME = Text("a time such as 90s, 30m or 8h", fits=_is_time)
_EXPECTED = Text(f"a time such as 90s, 30m or 8h, at most {MOST_EXPECTED_S / 86400:.0f}d", fits=_is_expected)

JOB = MapSchema(
    "job",
    (
        Field("name", Text("a job's name", fits=is_job_name, hint=JOB_NAME_RULE), "its name", is_required=True),
        Field("recipe", _WORD, "recipe to run"),
        Field("model", _WORD, "older key for recipe"),
        Field("command", CommandLineField(), "program to run; {name} is filled in from hyper and sweep"),
        Field("mode", _WORD, "mode of training, for recipes that have several"),
        Field(
            "priority",
            IntegerField(least=-MOST_PRIORITY, most=MOST_PRIORITY),
            "queue priority; higher starts first (default: 0)",
            sets="priority",
        ),
        Field("require_cuda", Flag(), "starts only on a device"),
        Field("prefer_cuda", Flag(), "a device if one fits, otherwise the CPU"),
        Field("min_vram_gib", _GIB, "memory on each device, in GiB; alone, it implies prefer_cuda"),
        Field("min_ram_gib", _GIB, "memory of the machine, in GiB"),
        Field("min_cores", IntegerField(most=65_536), "physical cores"),
        Field("gpus", IntegerField(most=1024), "number of devices; alone, it implies require_cuda", may_be_null=True),
        Field(
            "gpu_backend",
            EnumField(COMPUTE_BACKENDS),
            "backend of its devices; alone, it implies require_cuda (default: cuda)",
        ),
        Field(
            "ranks",
            IntegerField(least=1, most=1024),
            "number of processes, started and stopped together; each on its own device if it uses devices",
            may_be_null=True,
        ),
        Field("shares", Flag(), "it may run beside others on its device, within min_vram_gib"),
        Field("base", _WORD, "shared with similar jobs on one device: a base model. Charged once"),
        Field("base_gib", _GIB, "the base's part of min_vram_gib, in GiB"),
        Field("transfer_mb", NumberField(), "data moved to the device and back, in MB, for the cost rule"),
        Field("mflop", NumberField(most=1e30), "computation there, in MFLOP, for the cost rule"),
        Field("allowed_hosts", _NODES, "only these machines; empty: all", sets="allowed_hosts"),
        Field("prefer_hosts", _NODES, "these before others, if they fit", sets="prefer_hosts"),
        Field("hyper", Anything((dict,), "a map of names and values"), "the recipe's arguments; lists are values"),
        Field("sweep", Anything((dict,), "a map of names and their values"), "what varies: a job for each point"),
        Field("seed", IntegerField(most=2**63 - 1), "random seed", may_be_null=True),
        Field(
            "split_recipe",
            Anything((str, dict), "text or a map"),
            "how data is split",
            may_be_null=True,
            sets="split_recipe",
        ),
        Field(
            "train_hosts",
            ListOf(_WORD, is_set=True),
            "machines whose data it is trained on; part of its identity",
            sets="train_hosts",
        ),
        Field(
            "data",
            MapOf(_PATH, _DATA_NAME),
            "files and folders, stoker:NAME, org/repo; the variable of that name holds the path; with a / in its name, "
            "it appears at that path below the working folder",
        ),
        Field(
            "outputs",
            ListOf(Text("a path below the working folder", fits=_is_inside), is_set=True),
            "outputs to return, beside $STOKER_OUT",
        ),
        Field(
            "metrics",
            ListOf(
                Text(
                    "a pattern with a group for the number, a path, or off",
                    fits=is_metric_source,
                    hint=metric_source_fault,
                )
            ),
            "where a program's metrics are read from beside its output, as --metrics does",
        ),
        Field(
            "code",
            EnumField(CodePlace),
            "copy: a program runs in a copy of its project; in-place: in the folder itself",
        ),
        Field(
            "include",
            ListOf(Text("a path below the working folder", fits=_is_inside), is_set=True),
            "untracked files that belong to the code: paths, or patterns such as configs/*.yaml",
        ),
        Field("env", ByPlatform(_PATH), "what to install: uv.lock, requirements.txt or pyproject.toml; by platform"),
        Field("python", ByPlatform(_PATH), "the machine's own interpreter, or a version such as 3.11; by platform"),
        Field("after", ListOf(_WORD, is_set=True), "jobs that have to complete first", sets="after"),
        Field(
            "secrets",
            ListOf(_VARIABLE_NAME, is_set=True),
            "variables of the worker's own, never stored",
            sets="secrets",
        ),
        Field(
            "attempts",
            IntegerField(least=1, most=100),
            "maximum attempts if the program fails (default: 1)",
            sets="attempts",
        ),
        Field("timeout", _TIME, "time limit of an attempt", sets="timeout_s"),
        Field(
            "expected",
            _EXPECTED,
            "expected duration on a device of speed 1 (an RTX 4090), or on the only machine that it "
            "allows; used until similar jobs were measured",
            sets="expected_s",
        ),
        Field(
            "on_partition",
            EnumField(Partition),
            "action when its lease ends and the coordinator can't be reached",
            sets="on_partition",
        ),
    ),
    meant={
        **dict.fromkeys(("args", "arguments", "config", "hyperparameters", "overrides", "params"), "hyper"),
        **dict.fromkeys(("cmd", "entrypoint", "program", "script"), "command"),
        **dict.fromkeys(("memory", "ram"), "min_ram_gib"),
        **dict.fromkeys(("cores", "cpus"), "min_cores"),
        **dict.fromkeys(("dependencies", "depends_on", "needs"), "after"),
        **dict.fromkeys(("host", "hosts", "machines"), "allowed_hosts"),
        "grid": "sweep",
        "inputs": "data",
        "retries": "attempts",
        **dict.fromkeys(("duration", "eta", "estimate", "expected_time", "runtime", "time"), "expected"),
        "vram": "min_vram_gib",
    },
)

_KEYS = {field.name: field for field in JOB.fields}
_SECONDS = frozenset({"timeout_s", "expected_s"})
"""Fields of a `JobSpec` in seconds; a manifest has a time with a unit."""

HOST = MapSchema(
    "host",
    (
        Field("name", Text("a machine's name", fits=is_node_name, hint=NODE_NAME_RULE), "its name", is_required=True),
        Field("description", Text(may_be_empty=True), "a note for people"),
        Field("priority", IntegerField(least=-(2**31)), "preferred over others if higher"),
        Field("allow_jobs", JOB_LIST, "only these jobs or recipes; empty: all"),
        Field("deny_jobs", JOB_LIST, "not these; takes precedence over allow_jobs"),
    ),
)

MANIFEST = MapSchema(
    WHAT,
    (
        Field("jobs", ListOf(JOB), "jobs to run", may_be_null=True),
        Field("hosts", ListOf(HOST), "policy about machines", may_be_null=True),
    ),
)


class ParsedJobEntry(NamedTuple):
    """One job while it is read: its values, and their places."""

    given: ParsedMap
    entry: JobEntry | None
    """None if it has no valid name; the faults have the reason."""
    sweep: Sweep | None
    """Its `sweep`; None if it has none, or an invalid one."""


ManifestBuilder = Callable[[Sequence[ParsedJobEntry], tuple[HostEntry, ...], FileDiagnostics], T]
"""Builds something from a manifest's jobs and hosts. It may note faults: places are known only meanwhile."""


def read_manifest(name: str, path: str, known: KnownNames | None = None) -> Manifest:
    """Read a manifest, called `name` in messages. `known` are the names that it may refer to.

    Raises `InvalidManifest` with all faults, or `LocalFile` if it can't be read at all.
    """
    return read_manifest_into(manifest_as_it_is, name, path, known)


def read_manifest_into(
    make: ManifestBuilder[T], name: str, path: str, known: KnownNames | None = None, *, data: bytes | None = None
) -> T:
    """Read a manifest and build something from it; faults noted meanwhile are raised with all the rest.

    With its `data` no file is read.
    """
    return read_as(WHAT, name, path, lambda reading, tree: made_of(make, reading, tree, known), data)


def made_of(
    make: ManifestBuilder[T], reading: FileDiagnostics, tree: LocatedValue | None, known: KnownNames | None = None
) -> T:
    """Build something from an open file."""
    jobs: tuple[ParsedMap, ...] = ()
    hosts: tuple[ParsedMap, ...] = ()
    sweeps: dict[str, Sweep] = {}
    if tree is not None:
        read: ParsedMap = MANIFEST.read(tree, "", reading)
        jobs, hosts = read.get("jobs", ()), read.get("hosts", ())
        if not any(item.value for name, item in tree.value.items() if name in ("jobs", "hosts")):
            reading.refuse(tree, "jobs", "a manifest has at least one job", _FORM_HINT)
        sweeps = check_manifest(jobs, hosts, reading, known or KnownNames())
    made = make(
        [ParsedJobEntry(given=job, entry=_entry_of(job), sweep=sweeps.get(job.key)) for job in jobs],
        tuple(
            HostEntry(**host.values, given=frozenset(host.values) - {"name"}) for host in hosts if "name" in host.values
        ),
        reading,
    )
    reading.raise_any(InvalidManifest)
    return made


def _entry_of(job: ParsedMap) -> JobEntry | None:
    return JobEntry(**job.values) if "name" in job.values else None


def manifest_as_it_is(
    jobs: Sequence[ParsedJobEntry], hosts: tuple[HostEntry, ...], _reading: FileDiagnostics
) -> Manifest:
    """Make nothing else of a manifest."""
    return Manifest(jobs=tuple(job.entry for job in jobs if job.entry is not None), hosts=hosts)
