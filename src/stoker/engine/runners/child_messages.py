"""What runs inside a stage's process: find the stage, do the work, answer once.

A request to end (SIGTERM) is raised as `Cancelled` where the stage's code stands, so that its `finally` blocks run.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from stoker.core.digests import ArtifactRef, Digest, KindRef
from stoker.core.errors import Cancelled
from stoker.core.jsontext import loads
from stoker.engine.runners.stage_runner import StageFailure, StageSuccess, failure_of, run_stage
from stoker.engine.stage import Stage, StageContext
from stoker.host.entry_points import entry_point
from stoker.host.import_watch import import_only, received

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
    """Have a request to end raised as `Cancelled` within; after it there is nothing left to interrupt."""
    told = _Told()
    signal.signal(signal.SIGTERM, told)
    try:
        yield lambda: told.to_stop
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
        # A message may hold whatever its stage met; nobody reads a book, and nobody else's answer waits for one.
        "message": outcome.message[:_LONGEST_MESSAGE],
        "hint": outcome.hint[:_LONGEST_MESSAGE],
        "detail": outcome.detail[-8192:],
        "error_code": outcome.error_code,
    }


class _Told:
    """Whether the stage was asked to stop. Remembered, since its own code may have caught what was raised."""

    def __init__(self) -> None:
        self.to_stop = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.to_stop = True
        message = "it was asked to stop"
        raise Cancelled(message)
