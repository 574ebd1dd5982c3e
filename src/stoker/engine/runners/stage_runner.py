"""The seam between deciding that a stage runs and running it: here, in a child, later in a gang or elsewhere.

A runner makes attempts; an attempt blocks in `run` until its work ended, however it ended, and never raises for what
the work did: failure is a value with a cause. `ask_to_stop` and `kill` come from another thread and may come late.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from stoker.core.digests import ArtifactRef
from stoker.core.errors import (
    BadInput,
    Cancelled,
    CorruptBytes,
    Damaged,
    HashMismatch,
    NoSpace,
    OutOfMemory,
    StageDiverged,
    StageFailed,
    StageInputError,
    StokerError,
    Unavailable,
)
from stoker.core.frozen import fresh, frozen
from stoker.core.retry import FailureCause
from stoker.engine.kind import Kind
from stoker.engine.run_folders import RunFolders
from stoker.engine.runners.member_usage import MemberUsage
from stoker.engine.stage import Stage, StageContext, perform
from stoker.host.durable import translate
from stoker.host.identity import ProcessIdentity
from stoker.host.import_watch import ModuleSource, may_have_run_other_code, watching


@frozen
class GivenInput:
    """One artifact as a stage receives it: what it is, and where to read it (found out when first asked)."""

    ref: ArtifactRef
    where: Callable[[], str]


@frozen
class Work:
    """Everything one attempt needs."""

    node: str
    stage: Stage
    args: Mapping[str, Any]
    inputs: Mapping[str, tuple[GivenInput, ...]]
    out: str
    folders: RunFolders
    code: tuple[ModuleSource, ...] = ()
    """The source texts that the stage's code is: what does the work imports these, whatever lies on the disk."""
    devices: tuple[str, ...] = ()
    """Those it was given, by UUID."""
    variables: Mapping[str, str] = fresh(factory=dict)
    """By these its process sees its devices and no others; none if it was given none."""
    started: Callable[[ProcessIdentity], None] = lambda _identity: None
    """Call it with the process that does the work, as soon as there is one: from then on its devices are held by it."""
    claim: Mapping[str, Any] | None = None
    """By this a process that works for it gives them back, should its run be gone."""
    ranks: int = 1
    """As how many processes it runs."""
    attempt: int = 1
    scratch: str = ""
    """Where it may keep what the next attempt can use; made when it is first asked for."""
    resume_key: str = ""
    """Whose checkpoints it may go on from."""
    memory_bytes: int | None = None
    """How much memory it may use, if somebody has decided."""
    company: str = ""
    """The key of the company that it joins; empty: it has a process of its own."""
    most: int = 0
    """How many members that company has at once; zero: any number."""
    short_of_base: Callable[[], str] = lambda: ""
    """Says why there is no room now for a company of its own, base and all; empty: there is."""
    emit: Callable[[dict[str, Any]], None] = lambda _report: None
    is_cancelled: Callable[[], bool] = lambda: False
    """Whether the run is being stopped: for work that nobody can interrupt from outside."""


@frozen
class AttemptUsage:
    """What an attempt used, where that could be measured."""

    peak_rss_bytes: int | None = None
    cpu_s: float | None = None
    was_killed_for_memory: bool = False
    """The kernel killed it at its cap: what it says of memory itself is not this."""
    stay: MemberUsage | None = None
    """With whom it shared a process, if it did."""


@frozen
class StageSuccess:
    """The stage returned and what lies in its folder is of the kind it promised."""

    usage: AttemptUsage = AttemptUsage()
    manifest: Mapping[str, Any] | None = None
    """Of a program: what really ran, kept with its result."""


@frozen
class StageFailure:
    """The stage did not succeed."""

    cause: FailureCause
    message: str
    hint: str = ""
    detail: str = ""
    """The traceback, for the log."""
    error_code: str = "stage_failed"
    usage: AttemptUsage = AttemptUsage()


CODE_EDITED = StageFailure(
    cause=FailureCause.INPUT,
    message="its code was edited while it ran, and it had started a program or read its source itself",
    hint="run it again when its code stays as it is",
    error_code="code_edited",
)
"""The stage succeeded, but maybe not with the code in its key: it has to be decided about again."""


class Attempt(Protocol):
    """One try at a stage."""

    def run(self) -> StageSuccess | StageFailure:
        """Do the work; block until it ended."""

    def ask_to_stop(self) -> None:
        """Ask politely."""

    def kill(self) -> bool:
        """End it now; says whether that is possible here."""


class StageRunner(Protocol):
    """A way to run stages."""

    is_here: bool
    """Work is so small that the loop itself does it: starting a thread would cost more than the work."""

    def check(self, works: Mapping[str, tuple[Stage, Mapping[str, Any]]]) -> None:
        """Refuse, before anything runs, what can't be started here: stages with their arguments, by node."""

    def attempt(self, work: Work) -> Attempt:
        """Prepare one try; nothing runs yet."""

    def close(self) -> None:
        """Let go of what the runner keeps ready."""


class InlineRunner:
    """Runs stages in this process: no isolation, no cost. For trivial, trusted work, and for tests."""

    is_here = True

    def check(self, works: Mapping[str, tuple[Stage, Mapping[str, Any]]]) -> None:
        """They are this process itself: nothing can be missing."""

    def attempt(self, work: Work) -> Attempt:
        return _InlineAttempt(work)

    def close(self) -> None:
        return


class _InlineAttempt:
    def __init__(self, work: Work) -> None:
        self._work = work
        self._stop = threading.Event()

    def run(self) -> StageSuccess | StageFailure:
        work = self._work
        inputs = {name: [(given.ref, given.where) for given in givens] for name, givens in work.inputs.items()}
        job = StageContext(
            node=work.node,
            out=work.out,
            emit=work.emit,
            is_cancelled=lambda: self._stop.is_set() or work.is_cancelled(),
            diverges_on=work.stage.diverges_on,
            devices=work.devices,
            attempt=work.attempt,
            scratch=work.scratch,
        )
        with watching(work.code) as watch:
            outcome = run_stage(work.stage, job, inputs, work.args, work.out)
            return CODE_EDITED if isinstance(outcome, StageSuccess) and watch.may_have_run_other_code() else outcome

    def ask_to_stop(self) -> None:
        self._stop.set()

    def kill(self) -> bool:
        return False


def run_stage(
    stage: Stage,
    job: StageContext,
    inputs: Mapping[str, Sequence[tuple[ArtifactRef, Callable[[], str]]]],
    args: Mapping[str, Any],
    out: str,
) -> StageSuccess | StageFailure:
    """Call a stage's function and check what it made. Every exception becomes a cause."""
    try:
        made = perform(stage, job, handles_of(stage, inputs), stage.args.make(args))
    except BaseException as error:  # noqa: BLE001 - the stage's code may raise anything at all
        return failure_of(error)
    return judge_made(stage, made, out)


def handles_of(
    stage: Stage, inputs: Mapping[str, Sequence[tuple[ArtifactRef, Callable[[], str]]]]
) -> dict[str, Kind[Any] | list[Kind[Any]]]:
    """Return a stage's inputs as it takes them, by port. Raises `StageInputError` for one of another kind."""
    handed: dict[str, Kind[Any] | list[Kind[Any]]] = {}
    for port in stage.ports:
        for ref, _ in inputs[port.name]:
            if ref.kind != port.kind.ref():
                raise StageInputError(f"input {port.name} takes {port.kind.ref()}, was given {ref.kind}")
        handles = [port.kind(ref.digest, where) for ref, where in inputs[port.name]]
        handed[port.name] = handles if port.takes_many else handles[0]
    return handed


def judge_made(stage: Stage, made: Any, out: str) -> StageSuccess | StageFailure:
    """Return whether what a stage gave, and wrote, is what it promises."""
    try:
        _check_made(stage, made, out)
    except Exception as error:  # noqa: BLE001 - a validator may raise anything
        import traceback  # noqa: PLC0415 - milliseconds that a cached run never needs

        text = str(error) or type(error).__name__
        return StageFailure(
            cause=FailureCause.VALIDATION,
            message=f"what it made is not a {stage.output.ref()}: {text}",
            detail=traceback.format_exc(),
        )
    return CODE_EDITED if may_have_run_other_code() else StageSuccess()


def failure_of(error: BaseException) -> StageFailure:
    """Turn what a stage raised into a cause and one line for people."""
    import traceback  # noqa: PLC0415 - milliseconds that a cached run never needs

    # Where it was when somebody no longer wanted it is nobody's business.
    detail = f"{error}\n" if isinstance(error, Cancelled) else "".join(traceback.format_exception(error))
    if isinstance(error, StokerError):
        cause = next((cause for kind, cause in _CAUSES if isinstance(error, kind)), FailureCause.USER)
        return StageFailure(cause=cause, message=str(error), hint=error.hint, detail=detail, error_code=error.code)
    name = type(error).__name__
    text = str(error).strip().split("\n")[0][:300]
    message = f"{name}: {text}" if text else name
    if isinstance(error, MemoryError):
        return StageFailure(cause=FailureCause.OOM_HOST, message=message, detail=detail, error_code=OutOfMemory.code)
    if name == "OutOfMemoryError":  # torch.cuda's, without importing torch
        return StageFailure(cause=FailureCause.OOM_DEVICE, message=message, detail=detail, error_code=OutOfMemory.code)
    if isinstance(error, OSError):
        known = translate(error, error.filename or "") if error.errno in (errno.ENOSPC, errno.EDQUOT) else None
        code, hint = (known.code, known.hint) if known else (StageFailed.code, "")
        return StageFailure(cause=FailureCause.IO, message=message, hint=hint, detail=detail, error_code=code)
    return StageFailure(cause=FailureCause.USER, message=f"{message}{_where_raised(error)}", detail=detail)


_CAUSES: tuple[tuple[type[StokerError], FailureCause], ...] = (
    (Cancelled, FailureCause.CANCELLED),
    (StageDiverged, FailureCause.DIVERGED),
    (OutOfMemory, FailureCause.OOM_HOST),
    (BadInput, FailureCause.INPUT),
    # Fetched again, bytes may be whole; a file that somebody else damaged stays as it is.
    (CorruptBytes, FailureCause.USER),
    (HashMismatch, FailureCause.USER),
    (Damaged, FailureCause.INPUT),
    (NoSpace, FailureCause.IO),
    (Unavailable, FailureCause.IO),
)


def _where_raised(error: BaseException) -> str:
    import traceback  # noqa: PLC0415 - milliseconds that a cached run never needs

    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    last = frames[-1]
    return f" ({last.filename.rpartition('/')[2]}:{last.lineno})"


def _check_made(stage: Stage, made: Any, out: str) -> None:
    """Raise `ValueError` unless the stage returned, and wrote, what it declares."""
    if stage.gives_list:
        items = sorted(os.listdir(out))
        if not isinstance(made, list) or not all(isinstance(item, stage.output) for item in made):
            message = f"it returned {made!r}, not a list of handles from job.save_item"
            raise ValueError(message)
        if [f"{out}/{item}" for item in items] != [item.staged_in for item in made]:
            message = f"it returned {len(made)} items but wrote {len(items)}, or in another order"
            raise ValueError(message)
        for item in items:
            if not os.listdir(f"{out}/{item}"):
                # A tree has no empty folders: the item would vanish from the list.
                message = f"item {item} is empty"
                raise ValueError(message)
            stage.output.check_folder(f"{out}/{item}")
        return
    if not isinstance(made, Kind) or type(made).ref() != stage.output.ref():
        message = f"it returned {made!r}, not a handle from job.save or job.made"
        raise ValueError(message)
    if made.staged_in != out:
        message = "it returned a handle on something else than what it wrote below job.out"
        raise ValueError(message)
    stage.output.check_folder(out)
