"""What people and their programs see: jobs, attempts, events, machines, status, explanations."""

from __future__ import annotations

from typing import Any

from stoker.wire.protocol import Message


class JobView(Message):
    """A job in a list."""

    id: str
    name: str
    """`resnet/3` for a point of a sweep."""
    label: str = ""
    recipe: str
    mode: str = ""
    state: str
    is_cancelling: bool = False
    priority: int
    epoch: int
    attempt: int
    """How many grants it had."""
    machine: str = ""
    """Where it runs, or ran last."""
    devices: tuple[str, ...] = ()
    submitter: str = ""
    submitted_s: float
    changed_s: float
    started_s: float | None = None
    ended_s: float | None = None
    step: int | None = None
    of: int | None = None
    metrics: dict[str, float] = {}
    says: str = ""
    why: str = ""
    """Of a pending job, what it waits for; of a failed one, its cause and message."""
    result: str = ""
    """The bundle's tree digest."""


class AttemptView(Message):
    """One try at a job."""

    number: int
    epoch: int
    generation: int
    machine: str
    incarnation: str
    devices: tuple[str, ...] = ()
    granted_s: float
    started_s: float | None = None
    ended_s: float | None = None
    ending: str = ""
    """completed, failed, released, declined, expired, cancelled; empty while it runs."""
    cause: str = ""
    message: str = ""
    hint: str = ""
    exit_code: int | None = None


class JobStory(Message):
    """Everything about one job."""

    job: JobView
    args: dict[str, Any] = {}
    requirements: dict[str, Any] = {}
    code: dict[str, str] = {}
    folder: str = ""
    after: tuple[str, ...] = ()
    attempts: tuple[AttemptView, ...] = ()
    counts: dict[str, int] = {}
    """Attempts by cause, as they count against budgets."""
    events: tuple[dict[str, Any], ...] = ()
    """The newest, oldest first."""
    bundle: dict[str, Any] = {}
    error: dict[str, Any] = {}


class JobPage(Message):
    """A page of jobs, newest first."""

    jobs: tuple[JobView, ...]
    next: str = ""
    """Hand this back for the page after; empty: that was the last."""
    total: int | None = None
    """How many there are, where a counter knows it."""


class MachineView(Message):
    """A machine as the coordinator knows it."""

    name: str
    state: str
    """ready, busy, drained, cordoned, paused, silent, gone."""
    why: str = ""
    until_s: float | None = None
    incarnation: str = ""
    version: str = ""
    last_seen_s: float
    slots: int
    held: int
    jobs: tuple[str, ...] = ()
    cores: int | None = None
    ram_bytes: int | None = None
    """What it offers: the smaller of what was found and what was declared; nothing where nobody knows."""
    devices: tuple[dict[str, Any], ...] = ()
    capability: dict[str, Any] = {}
    drift: tuple[str, ...] = ()


class FleetStatus(Message):
    """The whole fleet in one look."""

    version: str
    protocol: int
    generation: int
    started_s: float
    server_s: float
    database: str
    """Its sort and place, without secrets."""
    jobs: dict[str, int]
    """By state."""
    machines: dict[str, int]
    lease_s: float
    heartbeat_s: float
    settling_s: float = 0.0
    """How much longer nothing expires, after a start."""


class JobExplanation(Message):
    """Why a job is where it is."""

    job: JobView
    verdict: str
    """One line: `waits, 1st in line`, `runs on desk`, `never on this fleet: …`."""
    never: str = ""
    """Of a pending job: why no machine that is known now could take it, were it idle; empty if one could."""
    after: dict[str, str] = {}
    """Of a pending job: the jobs that have to complete first and have not, by name, with their states."""
    place_in_line: int | None = None
    ahead: int | None = None
    starts_s: float | None = None
    """When it may start, from measured durations; nothing if nobody knows."""
    based_on: str = ""
    """What that is an estimate from: `median of 12 runs of tabular/gbt`."""
    machines: tuple[dict[str, Any], ...] = ()
    """One row per node: `NodeVerdict.to_dict()` and what holds it now, until when."""
    changes: tuple[str, ...] = ()
    """What would let it start now."""
    declines: tuple[dict[str, Any], ...] = ()
