"""Submissions: their jobs, the checks of these jobs, and the response."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    Field,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core.core_schema import CoreSchema

from stoker.core.device import COMPUTE_BACKENDS, Backend
from stoker.core.errors import BadInput
from stoker.core.frozen import fields_of, frozen
from stoker.core.job import EnvironmentChoice, JobInput, JobSpec
from stoker.core.machine import MOST_EXPECTED_S, MOST_PRIORITY, Requirements
from stoker.core.text import point_name
from stoker.host.folders import name_fault
from stoker.protocol.codec import Checked, StrictRequest, WireMessage, adapter_of, said, to_json, values_in

MOST_JOBS = 100_000
"""Of one manifest or command line."""
MOST_JOBS_AT_ONCE = 5_000
"""In one request, with the next two limits: a client sends more in parts (`parts_of`)."""
MOST_SUBMISSION_BYTES = 8 << 20
MOST_SUBMISSION_VALUES = 500_000
"""As `values_in` counts them: each takes about a hundred bytes of memory when parsed."""
MOST_ORDER_BYTES = 256 << 10
"""Of one job as it is stored."""
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
"""Number of digits of an id that are unique within a manifest."""


def _inner(path: str) -> str:
    if path and (fault := name_fault(path)):
        message = f"not a folder inside a tree: {fault}"
        raise ValueError(message)
    return path


JobId = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
JobPrefix = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{PREFIX}}}$")]
Bytes = Annotated[int, Field(ge=0, le=1 << 60)]
Priority = Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)]


def _plain_name(name: str) -> str:
    if "/" in name or "\0" in name or name in (".", ".."):
        raise ValueError("not a file name")
    return name


def _with_devices(backend: Backend) -> Backend:
    if backend not in COMPUTE_BACKENDS:
        message = f"not one of {', '.join(COMPUTE_BACKENDS)}"
        raise ValueError(message)
    return backend


RequirementsBody = Annotated[
    Requirements,
    Checked(
        # Coordinators and workers before it refuse the field.
        omitted_by_default=("backend",),
        backend=Annotated[Backend, AfterValidator(_with_devices)],
        device_count=Annotated[int, Field(ge=1, le=1024)],
        vram_bytes=Bytes,
        ram_bytes=Bytes,
        cores=Annotated[int, Field(ge=0, le=1 << 16)],
        base_bytes=Bytes,
        base_ram_bytes=Bytes,
        # These two have the limits of a manifest: the cost rule multiplies them.
        transfer_mb=Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)],
        mflop=Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)],
    ),
]
InputBody = Annotated[
    JobInput,
    Checked(
        where=Annotated[str, Field(pattern=r"^((env|arg):[A-Za-z0-9_.-]{1,200}|at:[^\x00-\x1f\x7f]{1,1024})$")],
        tree=Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")],
        name=Annotated[str, Field(max_length=255), AfterValidator(_plain_name)],
        size_bytes=Bytes,
        files=Annotated[int, Field(ge=0)],
    ),
]
EnvironmentBody = Annotated[
    EnvironmentChoice,
    Checked(
        platform=Annotated[str, Field(max_length=100)],
        kind=Annotated[str, Field(pattern=r"^(uv.lock|requirements|pyproject|python)$")],
        digest=Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")],
        python=Annotated[str, Field(max_length=200)],
        extras=Annotated[tuple[str, ...], Field(max_length=100)],
        refused=Annotated[dict[str, Annotated[str, Field(max_length=500)]], Field(max_length=100)],
    ),
]
JobBody = Annotated[
    JobSpec,
    Checked(
        # A submission has ten thousand of them, each created by `checked_spec` or `spec_alike`.
        is_rechecked=False,
        # Coordinators and workers before it refuse the field.
        omitted_by_default=("words",),
        id=JobId,
        name=Annotated[str, Field(min_length=1, max_length=200)],
        number=Annotated[int, Field(ge=0)],
        recipe=Annotated[str, Field(min_length=1, max_length=200)],
        mode=Annotated[str, Field(max_length=200)],
        words=Annotated[tuple[Annotated[str, Field(max_length=MOST_TEXT)], ...], Field(max_length=MOST_ORDER_VALUES)],
        code_tree=Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")],
        code_folder=Annotated[str, Field(max_length=1024), AfterValidator(_inner)],
        commit=Annotated[str, Field(max_length=100, pattern=r"^[0-9A-Za-z._+-]*$")],
        inputs=Annotated[tuple[InputBody, ...], Field(max_length=1000)],
        environment=Annotated[tuple[EnvironmentBody, ...], Field(max_length=100)],
        priority=Priority,
        requirements=RequirementsBody,
        attempts=Annotated[int, Field(ge=1, le=100)],
        timeout_s=Annotated[float, Field(gt=0, allow_inf_nan=False)] | None,
        expected_s=Annotated[float, Field(gt=0, le=MOST_EXPECTED_S, allow_inf_nan=False)] | None,
    ),
]
"""A `JobSpec` in a message, with the checks for one from another program."""
JobFacts = Annotated[
    JobSpec,
    Checked(
        is_rechecked=False,
        is_open=True,
        inputs=tuple[Annotated[JobInput, Checked(is_open=True)], ...],
        environment=tuple[Annotated[EnvironmentChoice, Checked(is_open=True)], ...],
        requirements=Annotated[Requirements, Checked(is_open=True, omitted_by_default=("backend",))],
    ),
]
"""A `JobSpec` in a response, which readers of other versions must understand: no limits, unknown fields are ignored."""
JOB_BODY: TypeAdapter[JobSpec] = adapter_of(JobBody)
REQUIREMENTS_BODY: TypeAdapter[Requirements] = adapter_of(RequirementsBody)
INPUT_BODY: TypeAdapter[JobInput] = adapter_of(InputBody)
ENVIRONMENT_BODY: TypeAdapter[EnvironmentChoice] = adapter_of(EnvironmentBody)


def checked_spec(**fields: Any) -> JobSpec:
    """Return a checked spec. Raises `BadInput` with one line if a value is out of range or of a wrong type."""
    try:
        return JOB_BODY.validate_python(fields)
    except ValidationError as error:
        raise BadInput(f"job {fields.get('name', '')!r} can't be submitted: {said(error)}") from None


def spec_alike(fields: dict[str, Any], own: dict[str, Any]) -> JobSpec:
    """Return another spec with the `fields` of a checked one, but for its `own` fields.

    Those are not checked here. Allowed are only fields that can't be wrong once the job's name, values and identity
    were checked: `id`, `name`, `number`, `label`, `point`, `args`, `identity`.
    """
    return JobSpec(**{**fields, **own})


def values_fault(order: JobSpec) -> str:
    """Return which value of a job's arguments, point or identity exceeds the limits of one job; empty if none does."""
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
            return f"arguments, point and identity have more than {MOST_ORDER_VALUES:,} values, at {_short(place)}"
        for key, one in value.items() if type(value) is dict else enumerate(value):
            if type(key) is str and len(key) > MOST_KEY:
                return f"{_short(place)}: key {_short(key)!r} has {len(key):,} characters; the limit is {MOST_KEY}"
            kind = type(one)
            if kind is str and len(one) > MOST_TEXT:
                return f"{_short(f'{place}.{key}')} has {len(one):,} characters; the limit is {MOST_TEXT:,}"
            if one and kind in _CONTAINERS:
                waiting.append((f"{place}.{key}", one, depth + 1))
    return ""


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


class SpecMessage(WireMessage):
    """A message about one job: in JSON, the `spec_fields` of its spec are beside its own fields."""

    spec: JobBody
    spec_fields: ClassVar[tuple[str, ...]]

    @classmethod
    def spec_beside(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of the spec that the message's own fields hold."""
        raise NotImplementedError

    @model_validator(mode="before")
    @classmethod
    def _from_flat(cls, raw: Any) -> Any:
        if not isinstance(raw, dict) or "spec" in raw:
            return raw
        spec = {name: raw[name] for name in cls.spec_fields if name in raw}
        return {**raw, "spec": {**spec, **cls.spec_beside(raw)}}

    @model_serializer
    def _to_flat(self) -> dict[str, Any]:
        spec = self.spec
        flat = {**self.__dict__, **{name: getattr(spec, name) for name in self.spec_fields}}
        del flat["spec"]
        flat["inputs"] = [fields_of(one) for one in spec.inputs]
        flat["environment"] = [fields_of(one) for one in spec.environment]
        if "requirements" in flat:
            flat["requirements"] = REQUIREMENTS_BODY.dump_python(spec.requirements)
        return flat

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        # A serializer's result has no schema of its own.
        made = handler({name: value for name, value in schema.items() if name != "serialization"})
        flat = handler.resolve_ref_schema(made)
        spec = handler.resolve_ref_schema(flat["properties"].pop("spec"))
        flat["properties"] |= {name: spec["properties"][name] for name in cls.spec_fields}
        of_the_spec = [name for name in spec["required"] if name in cls.spec_fields]
        flat["required"] = [*of_the_spec, *(name for name in flat["required"] if name != "spec")]
        return made


class OnChangedCode(StrEnum):
    """What to do with completed jobs whose code has changed."""

    KEEP = "keep"
    RERUN = "rerun"


class HostPolicy(StrictRequest):
    """Policy of a machine in a submitted manifest; needs the operate role. Absent fields change nothing."""

    name: str
    description: str | None = None
    priority: Annotated[int, Field(ge=-(1 << 31), le=(1 << 31) - 1)] | None = None
    allow_jobs: tuple[str, ...] | None = None
    deny_jobs: tuple[str, ...] | None = None


class Submission(StrictRequest):
    """Jobs of one manifest or command line, or of a part of it; all are accepted or none."""

    key: Annotated[str, Field(max_length=200)] = ""
    """Idempotency key: a repeat with the same jobs gets the same response, with other jobs a conflict."""
    jobs: Annotated[tuple[JobBody, ...], Field(max_length=MOST_JOBS)]
    hosts: tuple[HostPolicy, ...] = ()
    submitter: Annotated[str, Field(max_length=200)] = ""
    """`user@host`, as reported by the client."""
    others: Annotated[tuple[JobPrefix, ...], Field(max_length=MOST_JOBS)] = ()
    """Of one part of a larger manifest: the first digits of the ids of jobs in its other parts."""
    source: Annotated[str, Field(max_length=MOST_SOURCE)] = ""
    """The manifest's path, or the command line."""
    on_changed_code: OnChangedCode = OnChangedCode.KEEP
    dry_run: bool = False
    """Return what would change, and change nothing."""


class SubmissionOutcome(StrEnum):
    """The effect of a submission on a job."""

    NEW = "new"
    KNOWN = "known"
    """It exists and is unchanged."""
    CHANGED = "changed"
    """Priority, requirements, number, or the name, were updated; the state was not."""
    REQUEUED = "requeued"
    """It had failed and its code changed, or a rerun was requested."""
    KEPT = "kept"
    """It had completed, its code changed, and its result was kept; clients must warn."""


class JobSubmissionResult(WireMessage):
    """What a submission did to one job."""

    id: str
    name: str
    number: int
    outcome: SubmissionOutcome
    state: str
    changes: tuple[str, ...] = ()
    """The fields that changed."""
    known_as: str = ""
    """The earlier name of the same job, still in use unless name or number changed; empty: no other name."""
    instead_of: str = ""
    """Of a new job: the id of the pending job that had this name in the same source, with other values or data. That
    job remains until it is cancelled; `changes` lists the differences.
    """
    submitter: str = ""
    """Of a job that another user submitted: that user. It was not changed."""
    withheld: tuple[str, ...] = ()
    """Of such a job: the fields in which this submission differs."""
    forecast: str = ""
    """Of a dry run, the forecast: `pending, queue position 3: expected on desk in about 10m00s`."""
    machine: str = ""
    """Of a dry run: the machine on which it is expected to start; empty: unknown."""
    starts_s: float | None = None
    """Of a dry run: the expected start; `None`: unknown. The same for `ends_s`."""
    ends_s: float | None = None

    @property
    def shown_outcome(self) -> SubmissionOutcome:
        """Return the outcome to show: a job with new values or data is shown as changed."""
        return SubmissionOutcome.CHANGED if self.instead_of else self.outcome

    @property
    def shown(self) -> str:
        """The job's current name."""
        is_renamed = "name" in self.changes or "number" in self.changes
        return self.known_as if self.known_as and not is_renamed else point_name(self.name, self.number)


class SubmissionResponse(WireMessage):
    """The response to a submission; jobs in its order."""

    jobs: tuple[JobSubmissionResult, ...]
    counts: dict[str, int]
    """By outcome."""
    vanished: tuple[str, ...] = ()
    """Pending jobs of the same source that this submission does not name; they remain until cancelled."""
    dry_run: bool = False
    done_s: float | None = None
    """Of a dry run: when all its jobs are done; `None`: unknown."""


@frozen
class SubmissionPart:
    """Some jobs of a large submission, as sent in one request; the responses of all parts are joined to one.

    A part is accepted as a whole or not at all. Parts are sent one after the other, dependencies first. If a part is
    refused, the parts before it remain, and sending the same submission again submits the rest.
    """

    positions: tuple[int, ...]
    """Their indexes in the submission."""
    body: bytes


def parts_of(submission: Submission) -> list[SubmissionPart]:
    """Return the requests of a submission: one part, if it is within the limits of one request.

    Raises `BadInput` if jobs of several parts depend on each other in a cycle.
    """
    total = len(submission.jobs)
    if total <= MOST_JOBS_AT_ONCE:
        body = to_json(submission)
        if total <= 1 or _fits(body):
            return [SubmissionPart(positions=tuple(range(total)), body=body)]
    return list(_split(submission, _in_order(submission.jobs), MOST_JOBS_AT_ONCE))


def joined(parts: Sequence[SubmissionPart], answers: Sequence[SubmissionResponse]) -> SubmissionResponse:
    """Return the responses to all parts as one, jobs in the order of the submission."""
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
    # The policy of machines is sent once.
    hosts = submission.hosts if 0 in here else ()
    jobs = tuple(submission.jobs[at] for at in positions)
    return submission.model_copy(update={"key": key, "jobs": jobs, "hosts": hosts, "others": others})


def _fits(body: bytes) -> bool:
    return len(body) <= MOST_SUBMISSION_BYTES and values_in(body) <= MOST_SUBMISSION_VALUES


def _in_order(jobs: Sequence[JobSpec]) -> list[int]:
    """Return the positions of jobs in dependency order, else in the given order."""
    if not any(job.after for job in jobs):
        return list(range(len(jobs)))
    by_name: dict[str, list[int]] = {}
    after: dict[str, set[str]] = {}
    for at, job in enumerate(jobs):
        by_name.setdefault(job.name, []).append(at)
        after.setdefault(job.name, set()).update(word.partition("/")[0] for word in job.after)
    # Points of one sweep may depend on each other.
    graph = {name: [word for word in words if word != name and word in by_name] for name, words in after.items()}
    try:
        return [at for name in TopologicalSorter(graph).static_order() for at in by_name[name]]
    except CycleError as error:
        circle = " → ".join(error.args[1][::-1])
        raise BadInput(f"jobs depend on each other in a cycle: {circle}", hint="nothing was submitted") from None


def _vanished(answers: Sequence[SubmissionResponse]) -> tuple[str, ...]:
    """Return what every part reports: `name`, or `name as id` where a part uses the name for another job."""
    texts: dict[str, str] = {}
    found: Counter[str] = Counter()
    for text in (text for answer in answers for text in answer.vanished):
        name = text.partition(" ")[0]
        found[name] += 1
        texts[name] = max(texts.get(name, ""), text, key=len)
    return tuple(texts[name] for name, count in found.items() if count >= len(answers))
