"""Jobs on their way in: what is wanted, and what became of the wish."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from stoker.core.errors import BadInput
from stoker.core.frozen import frozen
from stoker.core.leases import Partition
from stoker.core.machine import (
    DEFAULT_RAM_BYTES,
    MOST_EXPECTED_S,
    MOST_PRIORITY,
    DevicePreference,
    Requirements,
    SchedulableJob,
)
from stoker.core.text import point_name
from stoker.host.folders import name_fault
from stoker.protocol.codec import StrictRequest, WireMessage, alike, said, to_json, values_in

MOST_JOBS = 100_000
"""Of one manifest or command line."""
MOST_JOBS_AT_ONCE = 5_000
"""In one request, with the next two limits: a client sends more in parts, which it makes (`client`)."""
MOST_SUBMISSION_BYTES = 8 << 20
MOST_SUBMISSION_VALUES = 500_000
"""As `values_in` counts them: each takes about a hundred bytes of memory once it is read."""
MOST_ORDER_BYTES = 256 << 10
"""Of one job, as it is stored: all that it names and holds."""
MOST_ORDER_VALUES = 10_000
"""Of one job's arguments, point and identity together."""
MOST_DEPTH = 32
MOST_KEY = 256
MOST_TEXT = 64 * 1024
"""Characters of one value."""
_SHOWN = 80
_CONTAINERS = frozenset({dict, list, tuple})
MOST_SOURCE = 4096
"""Characters; every job's row has it."""
PREFIX = 16
"""Digits of an id that tell all jobs of a manifest apart."""


def _inner(path: str) -> str:
    if path and (fault := name_fault(path)):
        message = f"no folder inside of a tree: {fault}"
        raise ValueError(message)
    return path


JobId = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
JobPrefix = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{PREFIX}}}$")]
Bytes = Annotated[int, Field(ge=0, le=1 << 60)]
CodeFolder = Annotated[str, Field(max_length=1024), AfterValidator(_inner)]
Priority = Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)]


class RequirementsBody(StrictRequest):
    """What a job asks of its machine: `model.requirements.Requirements`, field by field."""

    wish: DevicePreference = DevicePreference.NEVER
    device_count: Annotated[int, Field(ge=1, le=1024)] = 1
    vram_bytes: Bytes = 0
    ram_bytes: Bytes = DEFAULT_RAM_BYTES
    cores: Annotated[int, Field(ge=0, le=1 << 16)] = 0
    may_share: bool = False
    base: str = ""
    base_bytes: Bytes = 0
    base_ram_bytes: Bytes = 0
    transfer_mb: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] = 0.0
    mflop: Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)] = 0.0
    """These two within what a manifest may say: the cost rule multiplies them."""

    def requirements(self) -> Requirements:
        """Return them as placement reads them."""
        return Requirements(**{name: getattr(self, name) for name in type(self).model_fields})


class InputKind(StrEnum):
    """What an input is."""

    TREE = "tree"
    """A folder, by its tree's digest."""
    FILE = "file"
    """One file: a tree of one entry, by that tree's digest."""
    REPO = "repo"
    """A repository of the hub at a commit; each machine fetches it itself."""


def _plain_name(name: str) -> str:
    if "/" in name or "\0" in name or name in (".", ".."):
        raise ValueError("it is no name of a file")
    return name


class InputBody(StrictRequest):
    """Something that a job reads and that has to be on its machine before it starts."""

    where: Annotated[str, Field(pattern=r"^(env|arg):[A-Za-z0-9_.-]{1,200}$")]
    """What gets its path: `env:DATA`, a variable; `arg:data` or `arg:inputs.0`, an argument of the recipe."""
    kind: InputKind
    tree: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    name: Annotated[str, Field(max_length=255), AfterValidator(_plain_name)] = ""
    """What the file or folder is called; a part of a path, and no way to another place."""
    size_bytes: Bytes = 0
    files: Annotated[int, Field(ge=0)] = 0
    path: str = ""
    """Where it lies at whoever submits: a worker of the same machine uses it there, if its digest is still that."""
    host: str = ""
    """Whose path that is: the submitting machine's name."""
    repo: str = ""
    """`org/name@commit`."""


class EnvironmentChoice(StrictRequest):
    """One way to the interpreter that runs a program, for machines of one sort."""

    platform: Annotated[str, Field(max_length=100)] = ""
    """`linux-aarch64`, or `linux-aarch64-cp310`; empty: any that no other choice names."""
    kind: Annotated[str, Field(pattern=r"^(uv.lock|requirements|pyproject|python)$")]
    path: str = ""
    """The file, in the code's tree; of `python`, an interpreter on the machine itself."""
    digest: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """Of all files that the environment is made from; of `python` empty, or `environment_messages.own_digest`."""
    python: Annotated[str, Field(max_length=200)] = ""
    """Which version it wants: `3.11`, `>=3.10`."""
    extras: Annotated[tuple[str, ...], Field(max_length=100)] = ()
    """Of a project's optional dependencies, those that it installs."""
    refused: Annotated[dict[str, Annotated[str, Field(max_length=500)]], Field(max_length=100)] = {}
    """Platform → why it can't be made there, as far as its files tell whoever submits. No part of its digest."""


class JobSpec(StrictRequest):
    """One job as it is submitted: whole, checked and default-filled. Its id is made from what changes its result."""

    id: JobId
    name: Annotated[str, Field(min_length=1, max_length=200)]
    number: Annotated[int, Field(ge=0)] = 0
    """Of a sweep's points, from 1; 0: no sweep."""
    label: str = ""
    """`lr=0.001,seed=1`: a sweep point's folder."""
    point: dict[str, Any] = {}
    recipe: Annotated[str, Field(min_length=1, max_length=200)]
    schema_version: int = 1
    mode: Annotated[str, Field(max_length=200)] = ""
    args: dict[str, Any] = {}
    """As the recipe takes them; paths made whole."""
    identity: dict[str, Any] = {}
    """Those of `args` that belong to the id, files as their digests."""
    seed: int | None = None
    split_recipe: Any = None
    train_hosts: tuple[str, ...] = ()
    folder: str = ""
    """Where it was submitted: a program runs there."""
    project: str = ""
    """Which project a program belongs to, wherever it lies: part of its id. `COMMIT/sub/folder`, or a path."""
    code_tree: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """The tree that a program runs in, laid out anew for each attempt; empty: it runs in `folder` itself."""
    code_folder: CodeFolder = ""
    """Where in that tree it runs; empty: at its top."""
    commit: Annotated[str, Field(max_length=100, pattern=r"^[0-9A-Za-z._+-]*$")] = ""
    """What that tree stands on: `HASH`, `HASH+3` with so many uncommitted changes."""
    inputs: Annotated[tuple[InputBody, ...], Field(max_length=1000)] = ()
    environment: Annotated[tuple[EnvironmentChoice, ...], Field(max_length=100)] = ()
    """The first choice that names a machine's platform counts; none: the machine's own interpreter."""
    code: dict[str, str] = {}
    """File or module → digest, as they were at submission; recorded with the result, no part of the id."""
    priority: Priority = 0
    requirements: RequirementsBody = RequirementsBody()
    allowed_hosts: tuple[str, ...] = ()
    prefer_hosts: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    """Names of jobs (of a sweep: all its points), in this submission or known already."""
    secrets: tuple[str, ...] = ()
    """Names of variables taken from the worker's own environment; never their values."""
    attempts: Annotated[int, Field(ge=1, le=100)] = 1
    """How many failures of its own it may have, the first included."""
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    expected_s: Annotated[float, Field(gt=0, le=MOST_EXPECTED_S, allow_inf_nan=False)] | None = None
    """How long it is expected to take: on a device of speed 1, or on the only machine that it allows. None: not stated.
    No part of the id."""
    on_partition: Partition = Partition.STOP

    def wanted(self) -> SchedulableJob:
        """Return it as placement sees it."""
        return SchedulableJob(
            name=self.name,
            model=self.recipe,
            requirements=self.requirements.requirements(),
            priority=self.priority,
            allowed_hosts=self.allowed_hosts,
            preferred_hosts=self.prefer_hosts,
        )


def job_order(**fields: Any) -> JobSpec:
    """Make an order. `BadInput`, in one line, for what can't travel: a number beyond all use, text that is none."""
    try:
        return JobSpec(**fields)
    except ValidationError as error:
        raise BadInput(f"job {fields.get('name', '')!r} can't be submitted: {said(error)}") from None


def values_fault(order: JobSpec) -> str:
    """Return which value of a job's arguments, point or identity is beyond the limits of one job; empty if none is."""
    waiting: list[tuple[str, Any, int]] = [
        ("identity", order.identity, 1),
        ("point", order.point, 1),
        ("args", order.args, 1),
    ]
    if type(order.split_recipe) in _CONTAINERS:
        waiting.append(("split_recipe", order.split_recipe, 1))
    count = 0
    while waiting:
        place, value, depth = waiting.pop()
        if depth > MOST_DEPTH:
            return f"{_short(place)} is nested more than {MOST_DEPTH} deep"
        count += len(value)
        if count > MOST_ORDER_VALUES:
            return f"its arguments, point and identity have more than {MOST_ORDER_VALUES:,} values, at {_short(place)}"
        for key, one in value.items() if type(value) is dict else enumerate(value):
            if type(key) is str and len(key) > MOST_KEY:
                return f"{_short(place)}: the key {_short(key)!r} has {len(key):,} characters; {MOST_KEY} are the most"
            kind = type(one)
            if kind is str and len(one) > MOST_TEXT:
                text = f"a text of {len(one):,} characters; {MOST_TEXT:,} are the most"
                return f"{_short(f'{place}.{key}')} is {text}"
            if one and kind in _CONTAINERS:
                waiting.append((f"{place}.{key}", one, depth + 1))
    return ""


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def order_alike(first: JobSpec, own: dict[str, Any]) -> JobSpec:
    """Make another order of the same sort: all as in `first`, which was checked, but for its `own` fields.

    Those are not checked here, and are only what cannot be wrong once the job's name, values and identity were checked
    as such: `id`, `name`, `number`, `label`, `point`, `args`, `identity`.
    """
    return alike(first, own)


class OnChangedCode(StrEnum):
    """What to do with completed jobs whose code is another now."""

    KEEP = "keep"
    RERUN = "rerun"


class HostPolicy(StrictRequest):
    """What a submitted manifest says about a machine; needs the operate role. Absent fields say nothing."""

    name: str
    description: str | None = None
    priority: Annotated[int, Field(ge=-(1 << 31), le=(1 << 31) - 1)] | None = None
    allow_jobs: tuple[str, ...] | None = None
    deny_jobs: tuple[str, ...] | None = None


class Submission(StrictRequest):
    """Jobs of one manifest or command line, or of a part of it; accepted together or not at all."""

    key: Annotated[str, Field(max_length=200)] = ""
    """The same key with the same jobs gives the same answer again; with others it is a conflict."""
    jobs: Annotated[tuple[JobSpec, ...], Field(max_length=MOST_JOBS)]
    hosts: tuple[HostPolicy, ...] = ()
    submitter: Annotated[str, Field(max_length=200)] = ""
    """`user@host`, as the submitting program says."""
    others: Annotated[tuple[JobPrefix, ...], Field(max_length=MOST_JOBS)] = ()
    """Of one part of a larger manifest: the first digits of the ids of jobs in its other parts."""
    source: Annotated[str, Field(max_length=MOST_SOURCE)] = ""
    """The manifest's path, or the command line."""
    on_changed_code: OnChangedCode = OnChangedCode.KEEP
    dry_run: bool = False
    """Say what would change, and change nothing."""


class SubmissionOutcome(StrEnum):
    """What a submission did to one job."""

    NEW = "new"
    KNOWN = "known"
    """It stands as it stood."""
    CHANGED = "changed"
    """Priority, requirements or number are others now, or its name, by what brought it; its state is not."""
    REQUEUED = "requeued"
    """It had failed, and its code is another now; or a rerun was asked for."""
    KEPT = "kept"
    """It had completed, its code is another now, and its result was kept: say so loudly."""


class JobSubmissionResult(WireMessage):
    """One job of a submission, afterwards."""

    id: str
    name: str
    number: int
    outcome: SubmissionOutcome
    state: str
    changes: tuple[str, ...] = ()
    """Which fields are others now."""
    known_as: str = ""
    """What the same job was called before, and still is unless its name or number changed; empty: not otherwise."""
    instead_of: str = ""
    """Of a new one: the id of the pending job that its source called so before, with other values or data. That one
    stays until somebody cancels it; `changes` says what is another.
    """
    submitter: str = ""
    """Of a job that another principal submitted: who. It was not changed."""
    withheld: tuple[str, ...] = ()
    """Of such a job, the fields in which this submission differs from it."""
    forecast: str = ""
    """Of a dry run, what would become of it: `waits, 3rd in line: expected on desk in about 10m00s`."""
    machine: str = ""
    """Of a dry run: where it is expected to start; empty: that is not known."""
    starts_s: float | None = None
    """Of a dry run: when; `None`: that is not known. The same for `ends_s`."""
    ends_s: float | None = None

    @property
    def told_as(self) -> SubmissionOutcome:
        """Return the outcome as people see it: a job whose values or data are others has changed."""
        return SubmissionOutcome.CHANGED if self.instead_of else self.outcome

    @property
    def shown(self) -> str:
        """What the job is called now."""
        is_renamed = "name" in self.changes or "number" in self.changes
        return self.known_as if self.known_as and not is_renamed else point_name(self.name, self.number)


class SubmissionResponse(WireMessage):
    """The answer to a submission; jobs in its order."""

    jobs: tuple[JobSubmissionResult, ...]
    counts: dict[str, int]
    """By outcome."""
    vanished: tuple[str, ...] = ()
    """Pending jobs that the same source had brought and now does not name; they stay until somebody cancels them."""
    dry_run: bool = False
    done_s: float | None = None
    """Of a dry run: when all jobs that it would bring are done; `None`: that is not known."""


# A large submission in parts: each is one request that a coordinator takes, and their answers are one answer.
#
# A part is accepted as a whole or not at all. Parts are sent one after the other, those first that others come after;
# what was accepted before one is refused stays, and the same submission again submits the rest.


@frozen
class SubmissionPart:
    """Some jobs of a submission, as they are sent."""

    positions: tuple[int, ...]
    """Where they stand in the submission."""
    body: bytes


def parts_of(submission: Submission) -> list[SubmissionPart]:
    """Return a submission as it is sent: in one part, if it is within the limits of one request.

    Raises `BadInput` if jobs of several parts wait for each other in a circle.
    """
    total = len(submission.jobs)
    if total <= MOST_JOBS_AT_ONCE:
        body = to_json(submission)
        if total <= 1 or _fits(body):
            return [SubmissionPart(positions=tuple(range(total)), body=body)]
    return list(_split(submission, _in_order(submission.jobs), MOST_JOBS_AT_ONCE))


def joined(parts: Sequence[SubmissionPart], answers: Sequence[SubmissionResponse]) -> SubmissionResponse:
    """Return the answers to all parts as one, jobs in the order of the submission."""
    if len(parts) == 1:
        return answers[0]
    jobs: dict[int, JobSubmissionResult] = {}
    counts: Counter[str] = Counter()
    for part, answer in zip(parts, answers, strict=True):
        jobs.update(zip(part.positions, answer.jobs, strict=True))
        counts.update(answer.counts)
    return SubmissionResponse(
        jobs=tuple(jobs[at] for at in sorted(jobs)),
        counts=dict(counts),
        vanished=_vanished(answers),
        dry_run=answers[0].dry_run,
    )


def _split(submission: Submission, positions: Sequence[int], most_jobs: int) -> Iterator[SubmissionPart]:
    for start in range(0, len(positions), most_jobs):
        some = tuple(positions[start : start + most_jobs])
        body = to_json(_part(submission, some))
        if len(some) == 1 or _fits(body):
            yield SubmissionPart(positions=some, body=body)
        else:
            yield from _split(submission, some, (len(some) + 1) // 2)


def _part(submission: Submission, positions: tuple[int, ...]) -> Submission:
    here = set(positions)
    others = tuple(job.id[:PREFIX] for at, job in enumerate(submission.jobs) if at not in here)
    key = f"{submission.key}.{positions[0]}" if submission.key else ""
    # What the manifest says about machines is said once.
    hosts = submission.hosts if 0 in here else ()
    jobs = tuple(submission.jobs[at] for at in positions)
    return submission.model_copy(update={"key": key, "jobs": jobs, "hosts": hosts, "others": others})


def _fits(body: bytes) -> bool:
    return len(body) <= MOST_SUBMISSION_BYTES and values_in(body) <= MOST_SUBMISSION_VALUES


def _in_order(jobs: Sequence[JobSpec]) -> list[int]:
    """Return the positions of jobs, each behind those that it comes after, else as they stand."""
    if not any(job.after for job in jobs):
        return list(range(len(jobs)))
    by_name: dict[str, list[int]] = {}
    after: dict[str, set[str]] = {}
    for at, job in enumerate(jobs):
        by_name.setdefault(job.name, []).append(at)
        after.setdefault(job.name, set()).update(word.partition("/")[0] for word in job.after)
    # Points of one sweep may come after each other.
    graph = {name: [word for word in words if word != name and word in by_name] for name, words in after.items()}
    try:
        return [at for name in TopologicalSorter(graph).static_order() for at in by_name[name]]
    except CycleError as error:
        circle = " → ".join(error.args[1][::-1])
        raise BadInput(f"jobs would wait for themselves: {circle}", hint="nothing was submitted") from None


def _vanished(answers: Sequence[SubmissionResponse]) -> tuple[str, ...]:
    """Return what no part found: `name`, or `name as id` where a part calls another job so."""
    texts: dict[str, str] = {}
    found: Counter[str] = Counter()
    for text in (text for answer in answers for text in answer.vanished):
        name = text.partition(" ")[0]
        found[name] += 1
        texts[name] = max(texts.get(name, ""), text, key=len)
    return tuple(texts[name] for name, count in found.items() if count >= len(answers))
