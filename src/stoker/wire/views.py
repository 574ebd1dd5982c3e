"""What people and their programs see: jobs, attempts, events, machines, status, explanations.

All of it is somebody's word: a submitter's, a worker's, a coordinator's. What is shown as part of a line is made safe
to show as it is read, and numbers that no honest side says are no answer.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator

from stoker.model.lifecycle import JobState
from stoker.model.printable import outside
from stoker.wire.protocol import Message

_MOST_COUNT = 1 << 100


def _finite(value: float) -> float:
    if not math.isfinite(value):
        message = "no time that can be"
        raise ValueError(message)
    return value


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _usable(value: int) -> int:
    if abs(value) > _MOST_COUNT:
        message = "a number beyond all use"
        raise ValueError(message)
    return value


Line = Annotated[str, AfterValidator(outside)]
"""Part of a line: nothing in it breaks the line, and no terminal obeys it."""
Seconds = Annotated[float, AfterValidator(_finite)]
Guess = Annotated[float, AfterValidator(_known)]
"""Seconds that were estimated or told by somebody: beyond all numbers means that nobody knows."""
Count = Annotated[int, AfterValidator(_usable)]
State = Annotated[str, AfterValidator(lambda value: JobState(value).value)]


class JobView(Message):
    """A job in a list."""

    id: str
    name: Line
    """`resnet/3` for a point of a sweep."""
    label: Line = ""
    recipe: Line
    mode: Line = ""
    state: State
    is_cancelling: bool = False
    priority: Count
    epoch: Count
    attempt: Count
    """How many grants it had."""
    machine: Line = ""
    """Where it runs, or ran last."""
    devices: tuple[Line, ...] = ()
    submitter: Line = ""
    submitted_s: Seconds
    changed_s: Seconds
    started_s: Seconds | None = None
    ended_s: Seconds | None = None
    step: int | None = None
    of: int | None = None
    metrics: dict[Line, float] = {}
    says: str = ""
    why: str = ""
    """Of a pending job, what it waits for; of a failed one, its cause and message."""
    result: Line = ""
    """The bundle's tree digest."""


class AttemptView(Message):
    """One try at a job."""

    number: Count
    epoch: Count
    generation: Count
    machine: Line
    incarnation: Line
    devices: tuple[Line, ...] = ()
    granted_s: Seconds
    started_s: Seconds | None = None
    ended_s: Seconds | None = None
    ending: Line = ""
    """completed, failed, released, declined, expired, cancelled; empty while it runs."""
    cause: Line = ""
    message: str = ""
    hint: str = ""
    exit_code: Count | None = None
    facts: dict[str, Any] = {}
    """Of one that completed, where it ran: interpreter and packages, devices, peaks."""


class JobStory(Message):
    """Everything about one job."""

    job: JobView
    args: dict[str, Any] = {}
    requirements: dict[str, Any] = {}
    code: dict[str, str] = {}
    folder: str = ""
    project: str = ""
    code_tree: str = ""
    """What a program runs in a copy of; empty: it runs in the folder itself."""
    commit: str = ""
    inputs: tuple[dict[str, Any], ...] = ()
    """Data that was ordered: `wire.orders.InputBody`, one by one."""
    environment: tuple[dict[str, Any], ...] = ()
    """Ways to its interpreter that were ordered: `wire.orders.EnvironmentChoice`, one by one."""
    after: tuple[Line, ...] = ()
    attempts: tuple[AttemptView, ...] = ()
    counts: dict[Line, Count] = {}
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
    total: Count | None = None
    """How many there are, where a counter knows it."""


class SymptomView(Message):
    """Something that is wrong with a machine or one of its devices."""

    machine: Line
    device: Line = ""
    symptom: Line
    since_s: Seconds
    message: Line = ""
    hint: Line = ""
    """The command that helps."""


class MachineView(Message):
    """A machine as the coordinator knows it."""

    name: Line
    state: Line
    """ready, busy, drained, cordoned, paused, left, silent, gone."""
    why: str = ""
    until_s: Seconds | None = None
    incarnation: Line = ""
    version: Line = ""
    last_seen_s: Seconds
    slots: Count
    held: Count
    jobs: tuple[Line, ...] = ()
    cores: Count | None = None
    ram_bytes: Count | None = None
    """What it offers: the smaller of what was found and what was declared; nothing where nobody knows."""
    devices: tuple[dict[str, Any], ...] = ()
    capability: dict[str, Any] = {}
    drift: tuple[Line, ...] = ()
    environments: dict[str, Any] = {}
    """What it says of Python environments: `wire.leasing.Holdings`, without its trees."""
    trees: Count = 0
    """How many trees of code and data it has."""
    symptoms: tuple[SymptomView, ...] = ()
    report: dict[str, Any] = {}
    """What its worker last found out: `at_s`, `offset_s` (its clock less ours), `version`, `protocol`, `findings`."""
    is_skewed: bool = False
    """Its program is another version than the coordinator's."""
    ends_s: Seconds | None = None
    """When it goes away, as its worker announced; nothing: no end is known."""
    certificate_until_s: Seconds | None = None
    """Of a machine that joined: when its certificate ends, unless it is renewed."""


class FleetStatus(Message):
    """The whole fleet in one look."""

    version: Line
    protocol: Count
    generation: Count
    started_s: Seconds
    server_s: Seconds
    database: Line
    """Its sort and place, without secrets."""
    jobs: dict[Line, Count]
    """By state."""
    machines: dict[Line, Count]
    lease_s: Seconds
    heartbeat_s: Seconds
    settling_s: Seconds = 0.0
    """How much longer nothing expires, after a start."""
    symptoms: tuple[SymptomView, ...] = ()


class ExpectedView(Message):
    """Where and when the scheduler is expected to start a waiting job."""

    machine: Line = ""
    """Empty: the start is further away than the forecast goes."""
    devices: tuple[Line, ...] = ()
    starts_s: Guess | None = None
    """`None`: a job before it has no estimate."""
    ends_s: Guess | None = None
    not_before_s: Guess | None = None
    """Of a start that is further away: the time that the forecast reached."""
    why: Line = ""
    """What decides that it is this job's turn: `oldest`, `longest_first`, `base_is_here`."""


class HeldBackView(Message):
    """A machine that has room for a waiting job now, and why the job does not start there."""

    machine: Line
    reason: Line
    """`faster_machine`, `order`, `kept`, …"""
    text: Line
    ends_s: Guess | None = None
    """When the job would end if it started there now."""


class ShareOfUser(Message):
    """How a user stands beside the others with running or ready jobs."""

    user: Line
    share: Guess | None = None
    """Of the recent usage of these users."""
    fair_share: Guess | None = None
    """What the weights give."""
    usage_s: Guess | None = None
    """In seconds of the whole fleet; usage of a day ago counts half."""
    jobs: Count
    devices: Count


class ScheduleView(Message):
    """The state of the scheduler, to simulate what comes."""

    schedule: dict[str, Any]
    """`scheduler.snapshot.Snapshot.to_dict()`."""
    names: dict[Line, Line] = {}
    """The names of the first ready jobs, by their number in the schedule."""
    blocked: Count = 0
    """Pending jobs that are not ready: they wait for another job, or for their next try."""


class JobExplanation(Message):
    """Why a job is where it is."""

    job: JobView
    verdict: Line
    """One line: `waits, 1st in line`, `runs on desk`, `never on this fleet: …`."""
    never: Line = ""
    """Of a pending job: why no machine that is known now could take it, were it idle; empty if one could."""
    after: dict[Line, Line] = {}
    """Of a pending job: the jobs that have to complete first and have not, by name, with their states."""
    together: tuple[Line, ...] = ()
    """Jobs that run in one process with it, or would if it started now: they share its base."""
    place_in_line: Count | None = None
    ahead: Count | None = None
    starts_s: Guess | None = None
    """When it may start, from measured durations; nothing if nobody knows."""
    based_on: Line = ""
    """What that is an estimate from: `median of 12 runs of tabular/gbt`."""
    machines: tuple[dict[str, Any], ...] = ()
    """One row per node: `NodeVerdict.to_dict()` and what holds it now, until when."""
    changes: tuple[Line, ...] = ()
    """What would let it start now."""
    declines: tuple[dict[str, Any], ...] = ()
    expected: ExpectedView | None = None
    """Of a job that waits: where and when it starts, by a forecast of the scheduler."""
    held_back: tuple[HeldBackView, ...] = ()
    """Of a job that waits: machines with room for it, and why it does not start there."""
    share: ShareOfUser | None = None
    """Of the job's submitter."""
    chosen: Line = ""
    """Of a job that has a machine: why it was granted to that one."""
