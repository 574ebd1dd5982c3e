"""The seam between deciding that a stage runs and running it: here, in a child, later in a gang or elsewhere.

A runner makes attempts; an attempt blocks in `run` until its work ended, however it ended, and never raises for what
the work did: failure is a value with a cause. `ask_to_stop` and `kill` come from another thread and may come late.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Protocol

from stoker.core.digests import ArtifactRef, Digest, KindRef
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
from stoker.core.jsontext import loads
from stoker.core.retry import FailureCause
from stoker.core.text import lazy_pattern, one_line, safe_name
from stoker.engine.kinds import Kind
from stoker.engine.metrics.metrics_file import SUFFIX
from stoker.engine.stage import Stage, StageContext, perform
from stoker.host.durable import translate
from stoker.host.identity import ProcessIdentity
from stoker.host.import_watch import ModuleSource, entry_point, import_only, may_have_run_other_code, received, watching


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
    """How much memory it may use, if that is limited."""
    process_key: str = ""
    """The key of the shared process that it joins; empty: it has a process of its own."""
    most: int = 0
    """How many members that shared process has at once; zero: any number."""
    in_pass: int = 0
    """For how many members in one pass memory is reserved; zero: for all."""
    short_of_base: Callable[[], str] = lambda: ""
    """Says why there is no room now for a shared process of its own, base and all; empty: there is."""
    emit: Callable[[dict[str, Any]], None] = lambda _report: None
    is_cancelled: Callable[[], bool] = lambda: False
    """True if the run is being stopped: for work that can't be interrupted from outside."""


@frozen
class AttemptUsage:
    """What an attempt used, where that could be measured."""

    peak_rss_bytes: int | None = None
    cpu_s: float | None = None
    was_killed_for_memory: bool = False
    """The kernel killed it at its cap: what it says of memory itself is not this."""
    member_usage: MemberUsage | None = None
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
    hint="run it again once its code no longer changes",
    error_code="code_edited",
)
"""The stage succeeded, but maybe not with the code in its key: it has to be decided about again."""


class StageAttempt(Protocol):
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

    def attempt(self, work: Work) -> StageAttempt:
        """Prepare one try; nothing runs yet."""


class InlineRunner:
    """Runs stages in this process: no isolation, no cost. For trivial, trusted work, and for tests."""

    is_here = True

    def check(self, works: Mapping[str, tuple[Stage, Mapping[str, Any]]]) -> None:
        """They are this process itself: nothing can be missing."""

    def attempt(self, work: Work) -> StageAttempt:
        return _InlineAttempt(work)


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

    # Of cancelled work the place does not matter.
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
    is_full = _FULL.search(text) is not None
    if isinstance(error, OSError) or is_full:
        number = errno.ENOSPC if is_full else getattr(error, "errno", None)
        known = translate(OSError(number, text), "") if number in (errno.ENOSPC, errno.EDQUOT) else None
        code, hint = (known.code, known.hint) if known else (StageFailed.code, "")
        message = message if known is None or "space left" in message else f"no space left: {message}"
        return StageFailure(cause=FailureCause.IO, message=message, hint=hint, detail=detail, error_code=code)
    return StageFailure(cause=FailureCause.USER, message=f"{message}{_where_raised(error)}", detail=detail)


_FULL = lazy_pattern(
    rf"No space left on device|\(os error ({errno.ENOSPC}|{errno.EDQUOT})\)|\d requested and \d+ written$"
)
"""Texts of libraries that lose the number of the error: safetensors, numpy."""

_CAUSES: tuple[tuple[type[StokerError], FailureCause], ...] = (
    (Cancelled, FailureCause.CANCELLED),
    (StageDiverged, FailureCause.DIVERGED),
    (OutOfMemory, FailureCause.OOM_HOST),
    (BadInput, FailureCause.INPUT),
    # Fetched again, bytes may be whole; a file that was damaged elsewhere stays as it is.
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


@frozen
class RunFolders:
    """The folders of one run for logs and metrics, and of all runs for scratch. They exist, but for `scratch`."""

    run_id: str
    logs: str
    metrics: str
    scratch: str
    """Shared by all runs: below it each piece of work has a folder under its key."""
    name: str = ""
    """What people call the job."""
    variables_of: Callable[[str], Mapping[str, str]] = lambda _node: {}
    """Returns the variables of the job that a node belongs to, for its programs."""

    @property
    def job(self) -> str:
        """The name by which people ask about this run."""
        return self.name or self.run_id

    def log_of(self, node: str) -> str:
        """Name the log of a node."""
        return os.path.join(self.logs, f"{safe_name(node)}.log")

    def curves_of(self, node: str) -> str:
        """Name the file of metrics that we write for a node."""
        return os.path.join(self.metrics, f"{safe_name(node)}{SUFFIX}")

    def metrics_of(self, node: str) -> str:
        """Name the file of metrics that a node's own program may write."""
        return os.path.join(self.metrics, f"{safe_name(node)}.program{SUFFIX}")

    def control_of(self, node: str, attempt: int) -> str:
        """Name the file through which an attempt's own program reports; hidden, for it goes nowhere else."""
        return os.path.join(self.metrics, f".{safe_name(node)}.{attempt}.control.jsonl")


# Which members shared a process, for the record of an attempt. Pure.


MOST_MEMBERS_NAMED = 16
_LONGEST_NAME = 200


@frozen
class MemberUsage:
    """Which others a member shared its process with, from its join to its end."""

    process: int
    """The pid of the shared process."""
    members: int
    """The maximum number of members at once, itself included."""
    others: int
    """How many other members there were at any time."""
    named: tuple[str, ...]
    """The first of these, each as JOB/STAGE."""

    def to_json(self) -> dict[str, Any]:
        return {"process": self.process, "members": self.members, "others": self.others, "with": list(self.named)}


def read_member_usage(body: object) -> MemberUsage | None:
    """Return the usage that `to_json` made this from; None if it is not one."""
    if not isinstance(body, Mapping):
        return None
    counts = [one for name in ("process", "members", "others") if type(one := body.get(name)) is int and one >= 0]
    named = body.get("with")
    if len(counts) < 3 or not isinstance(named, list):
        return None
    process, members, others = counts
    return MemberUsage(
        process=process, members=members, others=others, named=tuple(map(member_name, named[:MOST_MEMBERS_NAMED]))
    )


def member_name(name: object) -> str:
    """Return the name of a member as it is recorded: one line, of bounded length."""
    return one_line(str(name), _LONGEST_NAME)


# What runs inside a stage's process: find the stage, do the work, answer once.


_LONGEST_MESSAGE = 1 << 16


def run_work(request: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Do what a request says and send one answer: finished, or failed with its cause."""
    work = work_in(request)
    pid = os.getpid()
    with asked_to_stop() as is_told:
        outcome = do_work(work, lambda report: pass_on(report, emit), is_told)
    if os.getpid() != pid:
        # A fork of the stage that came back through its code: only the stage itself answers.
        os._exit(1)
    answer(outcome, emit)


def work_in(request: dict[str, Any]) -> dict[str, Any]:
    """Return the work that a request is about; its code is imported as the request has it from here on."""
    (sources_fd,) = request["fds"]
    import_only(received(sources_fd))
    work: dict[str, Any] = loads(request["work"])
    return work


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Raise a termination signal as `Cancelled` inside this block, and at no other place."""
    request = _StopRequest()
    signal.signal(signal.SIGTERM, request)
    try:
        yield lambda: request.to_stop
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def do_work(
    work: dict[str, Any], report: Callable[[dict[str, Any]], None], is_cancelled: Callable[[], bool]
) -> StageSuccess | StageFailure:
    """Find the stage and do what a request says of it; whatever goes wrong is its outcome."""
    try:
        stage = find_stage(work["entry"])
        job = context_of(work, stage, report, is_cancelled)
        values = checked_args(work, stage)
        return run_stage(stage, job, given_inputs(work), values, work["out"])
    except BaseException as error:  # noqa: BLE001 - whatever it is, the run has to hear of it
        return failure_of(error)


def context_of(
    work: dict[str, Any], stage: Stage, report: Callable[[dict[str, Any]], None], is_cancelled: Callable[[], bool]
) -> StageContext:
    """Return what a stage sees of the run, as a request says."""
    return StageContext(
        node=work["node"],
        out=work["out"],
        emit=report,
        is_cancelled=is_cancelled,
        diverges_on=stage.diverges_on,
        devices=tuple(work["devices"]),
        attempt=work["attempt"],
        scratch=work["scratch"],
    )


def checked_args(work: dict[str, Any], stage: Stage) -> dict[str, Any]:
    """Return the arguments that a request names. Raises `ValueError` for what the stage does not take."""
    values, faults = stage.args.check(work["args"], owner=work["node"])
    if faults:
        message = "; ".join(map(str, faults))
        raise ValueError(message)
    return values


def answer(outcome: StageSuccess | StageFailure, emit: Callable[[dict[str, Any]], None]) -> None:
    """Send the one answer, and leave the traceback in the log."""
    # The answer first: the log may lie on a disk that is full.
    emit({"answer": answer_of(outcome)})
    if isinstance(outcome, StageFailure):
        with suppress(OSError, ValueError):
            sys.stderr.write(outcome.detail)
            sys.stderr.flush()


def find_stage(entry: str) -> Stage:
    """Import a stage by `module:name`."""
    found = entry_point(entry)
    if not isinstance(found, Stage):
        message = f"{entry} is not a stage"
        raise TypeError(message)
    return found


def given_inputs(work: dict[str, Any]) -> dict[str, list[tuple[ArtifactRef, Callable[[], str]]]]:
    """Return the inputs that a request names, by port."""
    return {port: [_given(*given) for given in givens] for port, givens in work["inputs"].items()}


def _given(kind: str, digest: str, where: str) -> tuple[ArtifactRef, Callable[[], str]]:
    name, _, version = kind.rpartition("@")
    return ArtifactRef(KindRef(name, int(version)), Digest(digest)), lambda: where


def pass_on(report: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Send a stage's report up; lines for its log go there."""
    if "log" in report:
        sys.stdout.write(f"{report['log']}\n")
    else:
        emit(report)


def answer_of(outcome: StageSuccess | StageFailure) -> dict[str, Any]:
    """Return an outcome in the words that the run reads."""
    if not isinstance(outcome, StageFailure):
        return {"outcome": "finished"}
    return {
        "outcome": "failed",
        "cause": str(outcome.cause),
        # A message may hold whatever its stage met; it is bounded, so that no other answer waits for it.
        "message": outcome.message[:_LONGEST_MESSAGE],
        "hint": outcome.hint[:_LONGEST_MESSAGE],
        "detail": outcome.detail[-8192:],
        "error_code": outcome.error_code,
    }


class _StopRequest:
    """True if the stage was asked to stop. Its own code may have caught the exception."""

    def __init__(self) -> None:
        self.to_stop = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.to_stop = True
        message = "it was asked to stop"
        raise Cancelled(message)
