"""Stages: typed units of work. Declared by decorating a function whose annotations are the declaration.

    @stage("tabular/split", version=1)
    def split(job: StageContext, table: Labelled, args: SplitArgs) -> Split: ...

`job` is the context and `args` the arguments; every other parameter is an input port of the kind it is annotated with,
`list[Kind]` a port that takes several. The returned kind is the output; `list[Kind]` is a list to fan out over.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

from stoker.model.frozen import frozen
from stoker.model.resources import Needs
from stoker.model.retry import RetryPolicy
from stoker.plan.args import ArgsSchema
from stoker.plan.kind import Kind
from stoker.plan.together import Together

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
    together: Together | None = None
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
    together: Together | None = None,
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
    """Raise `ValueError` for numbers and names that could only go wrong later, in somebody's run."""
    for is_wrong, what in (
        (not _NAME.fullmatch(name), "its name is letters, digits and - _ . in parts divided by /"),
        (version < 1, f"versions count from 1, not {version}"),
        *((True, what) for what in contradictions_in(needs)),
        (retry.attempts < 1, "attempts include the first, so there is at least one"),
        (retry.backoff_s < 0, "a pause can't be negative"),
        (timeout_s is not None and not timeout_s > 0, f"a limit of {timeout_s} s leaves no time to run"),
    ):
        if is_wrong:
            message = f"stage {name!r}: {what}"
            raise ValueError(message)


def contradictions_in(needs: Needs) -> list[str]:
    """Return what a stage can't need, one line each: for a stage itself, and for what a plan says of a node."""
    rules = (
        (_is_below_zero(needs), "it can't need less than nothing"),
        (needs.shares and not (needs.gpu and needs.vram_gib), "who shares a device says how much of it: gpu, vram_gib"),
        (needs.vram_gib and not needs.gpu, "device memory without a device"),
        (needs.base_gib > needs.vram_gib, "the base is a part of vram_gib"),
        (needs.base_memory_gib > needs.memory_gib, "the base is a part of memory_gib"),
        (needs.ranks < 1, f"it runs as one rank at least, not {needs.ranks}"),
        (needs.ranks > 1 and needs.gpu not in {0, needs.ranks}, f"{needs.ranks} ranks have a device each, or none"),
    )
    return [what for is_wrong, what in rules if is_wrong]


def _is_below_zero(needs: Needs) -> bool:
    held = (needs.cpu, needs.gpu, needs.network, needs.disk, needs.memory_gib, needs.vram_gib)
    return min(*held, needs.base_gib, needs.base_memory_gib, needs.most) < 0


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
