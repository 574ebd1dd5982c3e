"""Stages: typed units of work, declared by decorating a function whose annotations are the declaration.

`StageContext` is what a stage sees of the run while it works, `SharedContext` what the function of a shared process
sees of its members.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import typing
from collections.abc import Callable, Mapping
from operator import index
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from stoker.core.device import COMPUTE_BACKENDS, Needs
from stoker.core.errors import Cancelled, InternalError, StageDiverged
from stoker.core.frozen import frozen
from stoker.core.retry import RetryPolicy
from stoker.engine.args import ArgsSchema
from stoker.engine.kinds import Kind

if TYPE_CHECKING:
    from pathlib import Path


Digests = Mapping[str, tuple[str, ...]]
"""What a stage reads, by content: of each input port and of each argument that names files."""


@frozen
class ProcessSharing:
    """How attempts of a stage with equal share keys become members of one process, of one user, on one device.

    It runs `run(shared)`. The stage's own function does the same work for one attempt in a process of its own.
    """

    run: str
    """The function of the process, `module:function`; its argument is a `SharedContext`."""
    key: Callable[[Any, Digests], str]
    """Returns the share key of an attempt, from its arguments and the digests of what it reads: all that members must
    have in common, such as the content of a base model and its precision. An attempt with an empty key runs alone."""
    fits: str = ""
    """A function, `module:function`, of an attempt's arguments and the free bytes of the machine's memory; it returns
    smaller arguments that would fit, as text, empty if none would."""


DEFAULT_RETRY = RetryPolicy()

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)*", re.ASCII)


@frozen
class Port:
    """One input of a stage."""

    name: str
    kind: type[Kind[Any]]
    takes_many: bool


@frozen
class Stage:
    """One declared stage. Identity is the catalogue name and version, never the place of its code."""

    name: str
    version: int
    run: Callable[..., Any]
    ports: tuple[Port, ...]
    output: type[Kind[Any]]
    gives_list: bool
    args: ArgsSchema
    takes_job: bool
    needs: Needs
    deterministic: bool
    cached: bool
    """False: never skipped, whatever is known."""
    retry: RetryPolicy
    timeout_s: float | None
    """Soft limit; the grace that follows it is the run's business."""
    diverges_on: tuple[str, ...]
    uses: tuple[str, ...]
    """Distributions whose version is part of the key."""
    inline: bool
    """Trivial, trusted work that runs in the engine's own process."""
    is_program: bool
    """Its function gives the `Program` that does the work."""
    preflight: Callable[[Any], list[str]] | None
    fingerprint: Callable[[], str] | None
    """More code identity, for stages whose work is done by files outside Python."""
    together: ProcessSharing | None = None
    """How its attempts share a process; nothing: each has its own."""
    foresee: Callable[[Any], str | None] | None = None
    """Reads what its arguments name, for a dry run: raises what running would find wrong there, gives what it would
    tell of it."""

    # one object for each that is declared: it equals itself alone
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def module(self) -> str:
        return self.run.__module__

    @property
    def entry(self) -> str:
        """Where a child process finds it: `module:name`."""
        return f"{self.run.__module__}:{self.run.__qualname__}"

    @property
    def summary(self) -> str:
        return (self.run.__doc__ or "").strip().split("\n")[0]

    def port(self, name: str) -> Port | None:
        return next((port for port in self.ports if port.name == name), None)


def stage(  # noqa: PLR0913 - a declaration says everything at once
    name: str,
    *,
    version: int = 1,
    needs: Needs = Needs(),  # noqa: B008 - frozen
    deterministic: bool = True,
    cached: bool = True,
    retry: RetryPolicy = DEFAULT_RETRY,
    timeout_s: float | None = None,
    diverges_on: tuple[str, ...] = (),
    uses: tuple[str, ...] = (),
    inline: bool = False,
    preflight: Callable[[Any], list[str]] | None = None,
    fingerprint: Callable[[], str] | None = None,
    program: type[Kind[Any]] | None = None,
    together: ProcessSharing | None = None,
    foresee: Callable[[Any], str | None] | None = None,
) -> Callable[[Callable[..., Any]], Stage]:
    """Declare a function as a stage.

    With `program`, the function gives a `Program` to run in its place, whose files are then of that kind. `preflight`
    looks at arguments whenever a plan is made, so it costs next to nothing; `foresee` may read whole files.
    """
    _check_declaration(name, version=version, needs=needs, retry=retry, timeout_s=timeout_s)

    def declare(run: Callable[..., Any]) -> Stage:
        hints = typing.get_type_hints(run)
        parameters = _parameters_of(name, run)
        output, gives_list = _kind_of(program or hints.get("return"), f"stage {name}: the return annotation")
        ports = []
        for parameter in parameters:
            if parameter not in ("job", "args"):
                kind, takes_many = _kind_of(hints.get(parameter), f"stage {name}: parameter {parameter}")
                ports.append(Port(name=parameter, kind=kind, takes_many=takes_many))
        if "args" in parameters and "args" not in hints:
            message = f"stage {name}: parameter args is not annotated with its dataclass"
            raise TypeError(message)
        return Stage(
            name=name,
            version=version,
            run=run,
            ports=tuple(ports),
            output=output,
            gives_list=gives_list,
            args=ArgsSchema(hints["args"] if "args" in parameters else None),
            takes_job="job" in parameters,
            needs=needs,
            deterministic=deterministic,
            cached=cached,
            retry=retry,
            timeout_s=timeout_s,
            diverges_on=diverges_on,
            uses=uses,
            inline=inline,
            is_program=program is not None,
            preflight=preflight,
            fingerprint=fingerprint,
            together=together,
            foresee=foresee,
        )

    return declare


def perform(of: Stage, job: Any, inputs: Mapping[str, Any], args: Any) -> Any:
    """Call a stage's function with its context, inputs and arguments."""
    call = dict(inputs)
    if of.takes_job:
        call["job"] = job
    if of.args.type is not None:
        call["args"] = args
    return of.run(**call)


def _check_declaration(name: str, *, version: int, needs: Needs, retry: RetryPolicy, timeout_s: float | None) -> None:
    """Raise `ValueError` for numbers and names that could only fail later, in a run."""
    for is_wrong, what in (
        (not _NAME.fullmatch(name), "its name is letters, digits and - _ . in parts divided by /"),
        (version < 1, f"versions count from 1, not {version}"),
        *((True, what) for what in contradictions_in(needs)),
        (retry.attempts < 1, "attempts include the first, so there is at least one"),
        (retry.backoff_s < 0, "the backoff is negative"),
        (timeout_s is not None and not timeout_s > 0, f"a limit of {timeout_s} s is not positive"),
    ):
        if is_wrong:
            message = f"stage {name!r}: {what}"
            raise ValueError(message)


def contradictions_in(needs: Needs) -> list[str]:
    """Return what a stage can't need, one line each: for a stage itself, and for what a plan says of a node."""
    rules = (
        (_is_below_zero(needs), "needs must not be negative"),
        (needs.shares and not (needs.gpu and needs.vram_gib), "sharing a device needs gpu and vram_gib"),
        (needs.vram_gib and not needs.gpu, "device memory without a device"),
        (needs.gpu_backend and not needs.gpu, "gpu_backend without a device"),
        (
            needs.gpu_backend and needs.gpu_backend not in COMPUTE_BACKENDS,
            f"gpu_backend is {needs.gpu_backend!r}, not one of {', '.join(COMPUTE_BACKENDS)}",
        ),
        (needs.base_gib > needs.vram_gib, "the base is a part of vram_gib"),
        (needs.base_memory_gib > needs.memory_gib, "the base is a part of memory_gib"),
        (needs.ranks < 1, f"it runs as one rank at least, not {needs.ranks}"),
        (needs.ranks > 1 and needs.gpu not in {0, needs.ranks}, f"{needs.ranks} ranks have a device each, or none"),
    )
    return [what for is_wrong, what in rules if is_wrong]


def _is_below_zero(needs: Needs) -> bool:
    held = (needs.cpu, needs.gpu, needs.network, needs.disk, needs.memory_gib, needs.vram_gib)
    shared = (needs.base_gib, needs.base_memory_gib, needs.state_gib, needs.pass_gib, needs.most, needs.in_pass)
    return min(*held, *shared) < 0


def _parameters_of(name: str, run: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(run).parameters.values()
    loose = [
        str(parameter)
        for parameter in parameters
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    if loose:
        message = f"stage {name}: parameters are given by name, so {', '.join(loose)} can't be one"
        raise TypeError(message)
    return [parameter.name for parameter in parameters]


def _kind_of(annotation: Any, where: str) -> tuple[type[Kind[Any]], bool]:
    takes_many = typing.get_origin(annotation) is list
    inner = typing.get_args(annotation)[0] if takes_many else annotation
    if not (isinstance(inner, type) and issubclass(inner, Kind)):
        message = f"{where} is {annotation!r}, not a kind or a list of one"
        raise TypeError(message)
    if not hasattr(inner, "name"):
        message = f"{where} is the kind {inner.__name__}, which has no name"
        raise TypeError(message)
    return inner, takes_many


K = TypeVar("K", bound=Kind[Any])


_LONGEST_TOLD = 500


class StageContext:
    """Passed to a stage as `job`: where to write, how to report, when to stop. All writing goes below `out`."""

    def __init__(  # noqa: PLR0913 - what a stage may know
        self,
        *,
        node: str,
        out: str,
        emit: Callable[[dict[str, Any]], None],
        is_cancelled: Callable[[], bool],
        diverges_on: tuple[str, ...] = (),
        devices: tuple[str, ...] = (),
        attempt: int = 1,
        scratch: str = "",
    ) -> None:
        self.node = node
        self.devices = devices
        self.attempt = attempt
        self._out = out
        self._scratch = scratch
        self._emit = emit
        self._is_cancelled = is_cancelled
        self._diverges_on = diverges_on
        self._items = 0

    @property
    def out(self) -> Path:
        """The staging folder of this attempt: empty at the start, taken into the store if the stage succeeds."""
        return _path(self._out)

    @property
    def scratch(self) -> Path:
        """A folder that survives attempts and runs until this work succeeds: the place for checkpoints."""
        if self._scratch:
            os.makedirs(self._scratch, exist_ok=True)
        return _path(self._scratch or self._out)

    def save(self, kind: type[K], value: Any) -> K:
        """Write a value through its kind's codec and give the handle to return."""
        kind.save(value, kind.path_in(self._out))
        return kind.at(self._out)

    def made(self, kind: type[K]) -> K:
        """Return the handle to return when the stage wrote below `out` by itself."""
        return kind.at(self._out)

    def save_item(self, kind: type[K], value: Any) -> K:
        """Write one item of a list output; items keep the order in which they are saved."""
        folder = os.path.join(self._out, f"{self._items:06d}")
        os.mkdir(folder)
        self._items += 1
        kind.save(value, kind.path_in(folder))
        return kind.at(folder)

    def step(self, step: int, *, of: int | None = None, **metrics: float) -> None:
        """Report progress and metrics. Cheap; may be dropped under pressure; stops the stage if it diverged."""
        self.check()
        values = {name: float(value) for name, value in metrics.items()}
        # Plain numbers, whatever library they come from: they go through JSON.
        self._emit({"step": index(step), "of": None if of is None else index(of), "metrics": values})
        for name in self._diverges_on:
            if name in values and not math.isfinite(values[name]):
                raise StageDiverged(
                    f"{name} is {values[name]} at step {step}", hint="lower the learning rate", metric=name, step=step
                )

    def log(self, text: str) -> None:
        """Write a line to the stage's log."""
        self._emit({"log": text})

    def tell(self, text: str, *, at_once: bool = False) -> None:
        """Say in a line what people should see while it runs; it stands in the log, too.

        `at_once` is for what is news of this stage alone: it is shown under its name, and does not wait for its end.
        """
        self.log(text)
        self._emit({"told": text[:_LONGEST_TOLD], **({"at_once": True} if at_once else {})})

    def check(self) -> None:
        """Raise if the run is being cancelled: call it now and then in long loops."""
        if self._is_cancelled():
            raise Cancelled(f"{self.node} was asked to stop")


def _path(of: str) -> Path:
    from pathlib import Path  # noqa: PLC0415 - milliseconds that a cached run never needs

    return Path(of)


@frozen
class SharedBase:
    """The base that jobs of one recipe share in one process, and the memory of the base and of the job's own part.

    A recipe derives it from checked arguments (`@recipe(shares=…)`) without running anything, so that the scheduler can
    place jobs with the same base on one machine.
    """

    share_key: str
    """The share key, as `ProcessSharing.key` of the stage returns it."""
    base_bytes: int
    """On a device: of the base, once."""
    member_bytes: int
    """On a device: of this job, beside the base."""
    base_ram_bytes: int
    """In RAM, if it computes on the CPU: of the base, and of this job."""
    member_ram_bytes: int
    about: str = ""
    """The base, for display."""


Shares = Callable[[Any, Callable[[str], str]], SharedBase | None]
"""Returns what a job shares, from a recipe's checked arguments and a function that digests the file at a path."""


# What the function of a shared process sees.


class Member:
    """One member of a shared process. No other current member has its number."""

    def __init__(
        self,
        number: int,
        *,
        job: StageContext,
        inputs: Mapping[str, Any],
        args: Any,
        answer: Callable[[Kind[Any] | BaseException], None],
        is_gone: Callable[[], bool] = lambda: False,
    ) -> None:
        self.number = number
        self.job = job
        """The context of its stage; `job.check()` raises `Cancelled` if this member must stop, or its run is gone."""
        self.inputs = inputs
        """Handles of kinds by port: one, or a list."""
        self.args = args
        """The stage's dataclass, or None."""
        self._answer = answer
        self._is_gone = is_gone
        self._is_active = True

    @property
    def is_gone(self) -> bool:
        """True if this member's run is gone. Call `finished` or `failed` in this case too."""
        return self._is_gone()

    @property
    def is_active(self) -> bool:
        """True until `finished` or `failed` was called."""
        return self._is_active

    def finished(self, made: Kind[Any]) -> None:
        """Report the result of its stage: a handle from `job.save` or `job.made`."""
        self._end(made)

    def failed(self, error: BaseException) -> None:
        """Report why it ended without a result. Other members are not affected."""
        self._end(error)

    def _end(self, outcome: Kind[Any] | BaseException) -> None:
        if not self._is_active:
            raise InternalError(f"member {self.number} ({self.job.node}) was reported to have ended twice")
        self._is_active = False
        self._answer(outcome)


class SharedContext(Protocol):
    """The members of one shared process. Not thread-safe."""

    devices: tuple[str, ...]
    """Devices of the process, by UUID."""

    @property
    def ceiling_bytes(self) -> int | None:
        """The maximum memory of a device for the current members; None: all of it."""

    @property
    def in_pass(self) -> int:
        """For how many members in one pass memory is reserved; zero: for all."""

    def new_members(self, wait_s: float) -> list[Member]:
        """Return the members that joined since the last call; wait up to `wait_s` if there are none."""

    @property
    def is_over(self) -> bool:
        """True if there are no members and no more can join: the function should return."""


class SoloContext:
    """A `SharedContext` with one member, in the stage's own process; the stage's function returns its result."""

    def __init__(self, job: StageContext, inputs: Mapping[str, Any], args: Any) -> None:
        self.devices = job.devices
        self.ceiling_bytes: int | None = None
        self.in_pass = 0
        self._outcome: Kind[Any] | BaseException | None = None
        self._joining = [Member(0, job=job, inputs=inputs, args=args, answer=self._take)]

    def new_members(self, wait_s: float) -> list[Member]:
        joined, self._joining = self._joining, []
        return joined

    @property
    def is_over(self) -> bool:
        return self._outcome is not None

    def result(self) -> Any:
        """Return what the member made. Raises the error that it failed with."""
        if self._outcome is None:
            raise InternalError("the member did not report an outcome")
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def _take(self, outcome: Kind[Any] | BaseException) -> None:
        self._outcome = outcome
