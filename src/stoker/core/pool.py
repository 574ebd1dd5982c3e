"""Pools and allocations: machines that can be started when jobs wait, what was requested, and what pools may contain.

    planned ─▶ submitted ─▶ waiting ─▶ started ─▶ serving ─▶ draining ─▶ ended
       │  ╲                                                               ▲
       ▼   ▶ doubtful (the answer was lost) ─▶ adopted, or ended ─────────┘
    refused

Only nouns, and which moves are allowed. A pool is a kind of machine with a backend behind it: a batch system, a list of
SSH hosts, or this machine. An allocation is one thing requested there: a Slurm job, a Ray job, a Kubernetes Job, a
worker on an SSH host. Its worker is an ordinary machine of the fleet with the name `POOL-ID`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum

from stoker.core.errors import Diagnostic, InvalidCluster
from stoker.core.frozen import changed, fresh, frozen
from stoker.core.text import counted, did_you_mean

LABEL = "stoker"
"""First part of an allocation's name at its backend."""
ID_CHARACTERS = 6
LONGEST_POOL_NAME = 40
KIT = "kit"
"""As the `python` of a pool: Stoker is brought along, also if the launcher's own interpreter could be used."""
DEFAULT_IDLE_S = 300.0
DEFAULT_WALL_S = 4 * 3600.0
LONGEST_WALL_S = 30 * 86400.0
"""As long as certificates live; also of a node over SSH, which has no time limit of its own."""
DEFAULT_BACKLOG = 2
DEFAULT_PATIENCE_S = 10.0
_LEAST_DRAIN_S = 120.0
_MOST_BROKEN = 2


class PoolBackend(StrEnum):
    """What starts the workers of a pool."""

    LOCAL = "local"
    """Child processes on the launcher's own machine."""
    SSH = "ssh"
    SLURM = "slurm"
    RAY = "ray"
    KUBERNETES = "kubernetes"


@frozen
class PoolGpu:
    """One declared device of a pool's machines. A pool knows no UUID before a machine of it has started."""

    type: str
    vram_mb: int
    """In MiB, as in the cluster file."""


@frozen
class PoolShape:
    """What each machine of a pool has."""

    cpu_cores: int = 1
    ram_mb: int | None = None
    gpus: tuple[PoolGpu, ...] = ()
    slots: int | None = None
    """Jobs at once on each machine; None: one for each device, or one."""

    def smaller(self, other: PoolShape) -> PoolShape:
        """Return what machines of both shapes have."""
        sizes = [size for size in (self.ram_mb, other.ram_mb) if size is not None]
        gpus = zip(self.gpus, other.gpus, strict=False)
        return PoolShape(
            cpu_cores=min(self.cpu_cores, other.cpu_cores),
            ram_mb=min(sizes, default=None),
            gpus=tuple(min(pair, key=lambda gpu: gpu.vram_mb) for pair in gpus),
            slots=self.slots,
        )

    def lacks(self, found: PoolShape) -> str:
        """Return what a machine has less than declared here, in words: `declared 8 cores, found 4`; empty: nothing.

        Sizes that differ by less than a tenth are equal, and RAM that differs by less than a fifth: systems keep some
        memory for themselves, and jobs get no RAM of the system reserve.
        """
        lacking = []
        if found.cpu_cores < self.cpu_cores:
            lacking.append(f"declared {counted(self.cpu_cores, 'core')}, found {found.cpu_cores}")
        if _is_less(found.ram_mb, self.ram_mb, tenths=8):
            lacking.append(f"declared {_gib(self.ram_mb)} of RAM, found {_gib(found.ram_mb)}")
        if len(found.gpus) < len(self.gpus):
            lacking.append(f"declared {counted(len(self.gpus), 'GPU')}, found {len(found.gpus)}")
        for declared, gpu in zip(self.gpus, found.gpus, strict=False):
            if _is_less(gpu.vram_mb, declared.vram_mb):
                lacking.append(f"declared {declared.type} with {_gib(declared.vram_mb)}, found {_gib(gpu.vram_mb)}")
                break
        return "; ".join(lacking)


def _is_less(found: int | None, declared: int | None, *, tenths: int = 9) -> bool:
    return found is not None and declared is not None and found * 10 < declared * tenths


def _gib(size_mb: int | None) -> str:
    return f"{(size_mb or 0) / 1024:.1f} GiB"


@frozen
class Pool:
    """A kind of machine that can be started."""

    name: str
    backend: PoolBackend
    via: str = ""
    """The host with the backend's commands, over SSH, or the one of an SSH pool; empty: this machine."""
    each: PoolShape = PoolShape()
    """As declared; this much is requested."""
    found: PoolShape | None = None
    """What its last machines were found to have; None: none has joined since the pool was declared so."""
    without_gpus: int = 0
    """How many machines in a row were found without any of the declared GPUs."""
    wall_s: float = DEFAULT_WALL_S
    """The time limit of an allocation."""
    min: int = 0
    max: int = 1
    """Allocations at once."""
    idle_s: float = DEFAULT_IDLE_S
    """A worker without a job for this long exits."""
    backlog: int = DEFAULT_BACKLOG
    """Allocations that wait in the backend's queue at once."""
    patience_s: float = DEFAULT_PATIENCE_S
    """How long jobs wait before an allocation is requested for them."""
    drain_s: float | None = None
    """Time before the end in which jobs save their checkpoints; None: from the time limit."""
    options: Mapping[str, str] = fresh(factory=dict)
    """Further options of the backend, passed through."""
    setup: tuple[str, ...] = ()
    """Shell commands before the worker starts."""
    python: str = ""
    """A Python there that has Stoker; empty: the launcher's own if it is there, else Stoker is brought along."""
    folder: str = ""
    """A folder that the host of the commands and the pool's machines share; empty: the launcher's own, or with `via`
    one below the user's home there.
    """
    is_automatic: bool = True
    """False: its machines start only by `stoker launch NAME`."""
    cost_per_hour: float = 0.0
    max_hours: float | None = None
    """Hours per day, of all allocations together."""

    @property
    def shape(self) -> PoolShape:
        """What a machine of it has, as far as is known. One machine without GPUs is broken; two are the rule."""
        if self.found is None:
            return self.each
        is_broken = self.without_gpus < _MOST_BROKEN and not self.found.gpus
        return changed(self.found, gpus=self.each.gpus) if is_broken else self.found

    def with_machine(self, found: PoolShape, *, has_others: bool) -> Pool:
        """Return the pool after one more machine was found to have this; `has_others`: others of it serve."""
        known = self.found
        without_gpus = self.without_gpus + 1 if self.each.gpus and not found.gpus else 0
        least = known.smaller(found) if known is not None and has_others else found
        if known is not None and 0 < without_gpus < _MOST_BROKEN:
            # It is broken: the others have theirs.
            least = changed(least, gpus=known.gpus)
        elif not least.gpus:
            least = changed(least, gpus=found.gpus)
        return changed(self, found=least, without_gpus=without_gpus)

    @property
    def lacks(self) -> str:
        """What its machines have less than declared, in words; empty: nothing that is known."""
        return "" if self.found is None else self.each.lacks(self.found)

    @property
    def end_margin_s(self) -> float:
        """How long before the time limit a worker stops: for checkpoints to be saved and sent."""
        least_s = _LEAST_DRAIN_S if self.drain_s is None else self.drain_s
        return min(least_s, self.wall_s / 4)


class AllocationState(StrEnum):
    """Where an allocation stands."""

    PLANNED = "planned"
    """Its row is durable; the backend may not know of it yet."""
    DOUBTFUL = "doubtful"
    """The backend's answer was lost: it may have been submitted."""
    SUBMITTED = "submitted"
    WAITING = "waiting"
    """In the backend's queue."""
    STARTED = "started"
    """The backend runs it; its worker has not joined yet."""
    SERVING = "serving"
    """Its worker has joined the fleet."""
    DRAINING = "draining"
    """Its worker takes no more jobs."""
    REFUSED = "refused"
    """The backend did not accept it."""
    ENDED = "ended"


class AllocationCause(StrEnum):
    """Why an allocation ended."""

    FINISHED = "finished"
    """Its worker exited by itself: idle, or its time was over."""
    CANCELLED = "cancelled"
    """By the launcher or an operator of the fleet."""
    CANCELLED_THERE = "cancelled_there"
    """By somebody at the backend."""
    PREEMPTED = "preempted"
    """By the backend: for other work, at its time limit, with its node."""
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"
    NEVER_JOINED = "never_joined"
    NOT_SUBMITTED = "not_submitted"
    """The backend never had it."""
    REFUSED = "refused"


FREE_CAUSES = frozenset({AllocationCause.CANCELLED, AllocationCause.CANCELLED_THERE, AllocationCause.PREEMPTED})
"""Endings that cost the jobs of an allocation's machine nothing: they are preempted, not lost."""
_ON_ITS_WAY = frozenset(
    {AllocationState.PLANNED, AllocationState.DOUBTFUL, AllocationState.SUBMITTED, AllocationState.WAITING}
)
_OVER = frozenset({AllocationState.REFUSED, AllocationState.ENDED})
_ORDER = (
    AllocationState.PLANNED,
    AllocationState.DOUBTFUL,
    AllocationState.SUBMITTED,
    AllocationState.WAITING,
    AllocationState.STARTED,
    AllocationState.SERVING,
    AllocationState.DRAINING,
    AllocationState.ENDED,
)


def may_move(old: AllocationState, new: AllocationState) -> bool:
    """Return True if an allocation may go from one state to another: forwards, or from doubt into any live state."""
    if old in _OVER:
        return False
    if new is AllocationState.REFUSED:
        return old in (AllocationState.PLANNED, AllocationState.DOUBTFUL)
    if new is AllocationState.WAITING and old is AllocationState.STARTED:
        # The backend may put a job back into its queue before the job has done anything.
        return True
    return _ORDER.index(new) > _ORDER.index(old)


@frozen
class Allocation:
    """One thing requested of a backend."""

    id: str
    pool: str
    epoch: int = 0
    """The pool's when it was planned."""
    state: AllocationState = AllocationState.PLANNED
    backend_id: str = ""
    """As the backend names it; `12_3` for a member of an array."""
    reason: str = ""
    """The backend's own words about its state."""
    wanted: tuple[str, ...] = ()
    """Names of jobs that it was requested for; the first few."""
    planned_s: float = 0.0
    submitted_s: float | None = None
    may_start_s: float | None = None
    """When the backend expects to start it, while it waits."""
    started_s: float | None = None
    serving_s: float | None = None
    ends_s: float | None = None
    """When its time limit ends it."""
    signalled_s: float | None = None
    """When its worker was signalled to end, by its launcher or its backend; None: not yet."""
    ended_s: float | None = None
    cause: AllocationCause | None = None
    message: str = ""
    grants: int = 0
    """Jobs that its worker was granted."""
    idle_s: float = 0.0
    """How long its worker had no job."""

    @property
    def machine(self) -> str:
        """The name of its worker."""
        return f"{self.pool}-{self.id}"

    @property
    def name(self) -> str:
        """Its name at the backend."""
        return f"{LABEL}-{self.pool}-{self.id}"

    @property
    def is_over(self) -> bool:
        return self.state in _OVER

    @property
    def is_on_its_way(self) -> bool:
        """Return True if it has not started yet."""
        return self.state in _ON_ITS_WAY

    @property
    def is_idle_room(self) -> bool:
        """Return True if it will bring a machine that the fleet does not see yet."""
        return self.is_on_its_way or self.state is AllocationState.STARTED


@frozen
class PoolState:
    """A pool with what the coordinator keeps about it."""

    pool: Pool
    is_declared: bool = True
    """False: the cluster file no longer has it, and some of its allocations have not ended."""
    paused: str = ""
    """Why it starts nothing; empty: it does."""
    watcher: str = ""
    """Who starts its workers now; empty: nobody."""
    epoch: int = 0
    """Rises with every change of the watcher; a write of an older one is refused."""
    watched_until_s: float = 0.0
    resumed_s: float = 0.0
    """When an operator last resumed it: what happened before no longer counts against it."""
    hours: float | None = None
    """Machine hours of the last day, by the coordinator's rows; None: only the given allocations count."""
    idle_hours: float = 0.0
    """Hours without a job of the workers that served in the last day. Not stored."""
    problem: str = ""
    """Why its watcher can't work with its backend now, in the watcher's words; empty: it can. Not stored."""


def staying(state: PoolState, allocations: Iterable[Allocation]) -> frozenset[str]:
    """Return the ids of a pool's allocations whose workers stay when they are idle: its minimum.

    Those with the most time left; the same ones for everybody who looks, so that the others may leave.
    """
    if not state.pool.min or not state.is_declared:
        return frozenset()
    serving = [one for one in allocations if one.pool == state.pool.name and one.state is AllocationState.SERVING]
    serving.sort(key=lambda one: (-one.ends_s if one.ends_s is not None else float("-inf"), one.id))
    return frozenset(one.id for one in serving[: state.pool.min])


@frozen
class LaunchRequest:
    """Machines of a pool that an operator requested; the pool's launcher carries it out once."""

    id: str
    pool: str
    count: int = 0
    """0: as many as waiting jobs need."""
    requester: str = ""
    requested_s: float = 0.0
    done_s: float | None = None
    """When allocations were planned for it, or when it was closed without any."""
    allocations: tuple[str, ...] = ()
    """Ids of the allocations that were planned for it."""
    message: str = ""
    """Why it was closed without allocations."""
    code: str = ""
    """The code of the error that closed it; empty: no error."""

    @property
    def is_open(self) -> bool:
        return self.done_s is None


# What a pool's texts may contain, so that no name, option or path can break out of a script, a command or a manifest.
#
# Pure. Setup commands are the one exception: they are shell commands and are sent as they are, one line each.


POOL_NAME_RULE = "a to z, 0 to 9, and - inside; at most 40 of them"

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_TYPE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_OPTION = re.compile(r"[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?")
# Of an SSH destination: a name of ssh's configuration, HOST, USER@HOST; an IPv6 address is written without brackets.
_HOST = re.compile(r"([A-Za-z0-9_.-]+@)?[A-Za-z0-9_][A-Za-z0-9_.:%-]*")
# What has a meaning in no shell, also not after an expansion. A space separates options in a line of `#SBATCH`.
_VALUE = re.compile(r"[A-Za-z0-9_.,:;=+@%/*&|\[\]()<>!?~^-]*")
_PATH = re.compile(r"/[A-Za-z0-9_.,:=+@%/-]*")
_HOLE = "{ticket:"
_LONGEST_VALUE = 500
# Of Kubernetes: names of objects, and keys and values of labels.
_OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]*")
_KEY = r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_LABEL_VALUE = r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?"
_SELECTOR = re.compile(rf"{_KEY}={_LABEL_VALUE}(,{_KEY}={_LABEL_VALUE})*")
_TOLERATION = rf"{_KEY}(={_LABEL_VALUE})?(:(NoSchedule|PreferNoSchedule|NoExecute))?"
_TOLERATIONS = re.compile(rf"{_TOLERATION}(,{_TOLERATION})*")
_NUMBER = r"[0-9]{1,9}(\.[0-9]{1,4})?"
_KNOWN: Mapping[PoolBackend, Mapping[str, tuple[re.Pattern[str], str]]] = {
    PoolBackend.KUBERNETES: {
        "context": (re.compile(r"[A-Za-z0-9_.:/@-]+"), "a context of the kubeconfig"),
        "gpu-resource": (re.compile(r"[a-z0-9.-]+/[A-Za-z0-9_.-]+"), "a resource such as nvidia.com/gpu"),
        "image": (_IMAGE, "an image such as registry.example.org/stoker:1.2"),
        "image-pull-secret": (_OBJECT, "the name of a Secret"),
        "namespace": (_OBJECT, "a namespace"),
        "node-selector": (_SELECTOR, "KEY=VALUE,KEY=VALUE"),
        "priority-class": (_OBJECT, "a PriorityClass"),
        "run-as-user": (re.compile(r"[0-9]{1,9}"), "a user's number"),
        "runtime-class": (_OBJECT, "a RuntimeClass"),
        "service-account": (_OBJECT, "a ServiceAccount"),
        "tolerations": (_TOLERATIONS, "KEY=VALUE:NoSchedule,KEY:NoExecute"),
    },
    PoolBackend.RAY: {
        "address": (
            re.compile(
                r"https?://([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9_.-]+)*/?"
                # 8265 is the dashboard's port: its address has a scheme.
                r"|(ray://)?([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):(?!8265$)[0-9]{1,5}"
            ),
            "the dashboard, such as http://127.0.0.1:8265; without one ray://HOST:10001, or HOST:6379 of this cluster",
        ),
        "resources": (
            re.compile(rf"[A-Za-z0-9_.:-]+={_NUMBER}(,[A-Za-z0-9_.:-]+={_NUMBER})*"),
            "NAME=NUMBER,NAME=NUMBER: custom resources of the cluster",
        ),
    },
}
"""Options of backends that pass no others through, with what their values may be."""
_REQUIRED = {PoolBackend.KUBERNETES: "image", PoolBackend.RAY: "address"}
# What a launcher sets by itself; another value would break how allocations are found, fenced or ended.
_OURS = {
    PoolBackend.SLURM: frozenset(
        {
            *("array", "chdir", "comment", "cpus-per-task", "error", "export", "export-file", "gres", "input"),
            *("job-name", "mem", "no-requeue", "nodes", "ntasks", "open-mode", "output", "parsable", "requeue"),
            *("test-only", "time", "wait", "wrap", "time-min", "deadline", "begin", "hold", "signal", "dependency"),
            *("mem-per-cpu", "mem-per-gpu", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"),
            *("ntasks-per-node", "ntasks-per-core", "ntasks-per-socket", "cluster", "clusters", "uid", "gid"),
            *("get-user-env", "kill-on-invalid-dep", "quiet", "verbose", "ignore-pbs"),
        }
    )
}
_INSTEAD = {
    "cpus-per-task": "each.cpu_cores",
    "mem": "each.ram_mb",
    "gres": "each.gpus",
    "time": "wall",
}


def pool_faults(pool: Pool) -> tuple[Diagnostic, ...]:
    """Return all faults of a pool's texts, each at its key."""
    return (*_names(pool), *_options(pool), *_setup(pool))


def require_valid(pool: Pool) -> None:
    """Raise `InvalidCluster` with all faults of a pool's texts."""
    if faults := pool_faults(pool):
        raise InvalidCluster(f"pool {pool.name[:60]!r}: {faults[0]}", faults=faults)


def is_ssh_destination(text: str) -> bool:
    """Return True for a text that workers are started at over SSH: HOST or USER@HOST."""
    return _HOST.fullmatch(text) is not None


def _names(pool: Pool) -> tuple[Diagnostic, ...]:
    faults = []
    if not _NAME.fullmatch(pool.name):
        faults.append(Diagnostic("name", f"{pool.name[:80]!r} is not a pool's name", POOL_NAME_RULE))
    if pool.via and not is_ssh_destination(pool.via):
        faults.append(Diagnostic("via", f"{pool.via[:80]!r} is not an SSH destination", "HOST or USER@HOST"))
    for number, gpu in enumerate(pool.each.gpus):
        if not _TYPE.fullmatch(gpu.type):
            where = f"each.gpus[{number}].type"
            faults.append(Diagnostic(where, f"{gpu.type[:80]!r} is not a type", "letters, digits, and _ . - inside"))
    if pool.backend is PoolBackend.LOCAL and pool.via:
        hint = "backend: ssh starts workers on another host"
        faults.append(Diagnostic("via", "local starts workers on the launcher's own machine", hint))
    faults += _paths(pool)
    if pool.backend is PoolBackend.SSH and not pool.via:
        faults.append(Diagnostic("via", "required: the SSH host on which workers start", "HOST or USER@HOST"))
    if pool.backend in (PoolBackend.LOCAL, PoolBackend.SSH) and pool.max > 1 and pool.each.gpus:
        hint = "one worker with several slots: max: 1, each: { slots: N }"
        faults.append(Diagnostic("max", "workers of one machine would all offer its first devices", hint))
    return tuple(faults)


def _paths(pool: Pool) -> list[Diagnostic]:
    faults = []
    if pool.python == KIT and pool.backend in (PoolBackend.RAY, PoolBackend.KUBERNETES):
        faults.append(Diagnostic("python", f"no kit for {pool.backend}", "a Python there that has Stoker"))
    for name, path in (("python", pool.python if pool.python != KIT else ""), ("folder", pool.folder)):
        if path and not _PATH.fullmatch(path):
            message = f"{path[:80]!r} is not an absolute path of plain characters"
            faults.append(Diagnostic(name, message, "no spaces, quotes or characters of a shell"))
    return faults


def _options(pool: Pool) -> tuple[Diagnostic, ...]:
    faults = []
    if pool.backend is PoolBackend.LOCAL and pool.options:
        return (Diagnostic("options", "local has no options", "remove them"),)
    ours = _OURS.get(pool.backend, frozenset())
    known = _KNOWN.get(pool.backend)
    required = _REQUIRED.get(pool.backend)
    if known is not None and required is not None and required not in pool.options:
        faults.append(Diagnostic(f"options.{required}", f"required for {pool.backend}", known[required][1]))
    for name, value in pool.options.items():
        where = f"options.{name[:80]}"
        if not _OPTION.fullmatch(name):
            faults.append(Diagnostic(where, f"{name[:80]!r} is not an option's name", "letters, digits, and - inside"))
        elif known is not None and name not in known:
            hint = did_you_mean(name, known) or f"{pool.backend} has {', '.join(known)}"
            faults.append(Diagnostic(where, f"{name[:80]!r} is not an option of {pool.backend}", hint))
        elif name in ours or any(one.startswith(name) for one in ours):
            # Slurm takes the beginning of an option for the option.
            instead = _INSTEAD.get(name)
            faults.append(Diagnostic(where, "set by the launcher", f"use {instead}" if instead else "remove it"))
        if known is not None and name in known:
            pattern, rule = known[name]
            if len(value) > _LONGEST_VALUE or not pattern.fullmatch(value):
                faults.append(Diagnostic(where, f"{value[:80]!r} is not valid", rule))
        elif len(value) > _LONGEST_VALUE or not _VALUE.fullmatch(value):
            faults.append(
                Diagnostic(where, f"{value[:80]!r} has characters that are not allowed", "no spaces, quotes or $")
            )
    return tuple(faults)


def _setup(pool: Pool) -> tuple[Diagnostic, ...]:
    faults = []
    for number, line in enumerate(pool.setup):
        if any((ord(character) < 0x20 and character != "\t") or ord(character) == 0x7F for character in line):
            faults.append(Diagnostic(f"setup[{number}]", "has a line break or a control character", "one command each"))
        elif _HOLE in line:
            faults.append(Diagnostic(f"setup[{number}]", f"{_HOLE} stands for a ticket"))
        elif line.lstrip().startswith("#SBATCH"):
            faults.append(Diagnostic(f"setup[{number}]", "#SBATCH is not a command", "use options"))
    return tuple(faults)
