"""Failures on their way to people: an attempt that we ended ourselves, and a failed node as the whole run's error."""

from __future__ import annotations

from stoker.model.errors import (
    BadInput,
    OutOfMemory,
    ProcessLost,
    StageDiverged,
    StageFailed,
    StageInputError,
    StageTimeout,
    StokerError,
)
from stoker.model.frozen import changed
from stoker.model.retry import Cause
from stoker.model.units import format_duration
from stoker.plan.execution.attempting import Report, Running
from stoker.plan.outcome import Ending, NodeResult
from stoker.plan.runner import Failed, Usage

_BY_CAUSE: dict[Cause, type[StokerError]] = {
    Cause.TIMEOUT: StageTimeout,
    Cause.DIVERGED: StageDiverged,
    Cause.OOM_HOST: OutOfMemory,
    Cause.OOM_DEVICE: OutOfMemory,
    Cause.INPUT: StageInputError,
    Cause.LOST: ProcessLost,
}


def as_stopped(running: Running, failed: Failed) -> Failed:
    """Give why an attempt failed: if it was asked to stop, that is why, whatever it said on its way out."""
    if running.stop_cause is None:
        return failed
    stopped = changed(failed, cause=running.stop_cause)
    if running.stop_cause is Cause.TIMEOUT:
        limit = format_duration(running.node.limit_s or 0.0)
        return changed(stopped, message=f"ran past its limit of {limit}", hint="")
    if running.stop_why:
        hint = "smaller batches, or declare more (vram=SIZE)"
        return changed(stopped, message=running.stop_why, hint=hint, error_code=OutOfMemory.code)
    return stopped


def failure_of(running: Running, report: Report, failed: Failed) -> NodeResult:
    """Return the result of a node whose last attempt failed."""
    return NodeResult(
        ending=Ending.DIVERGED if failed.cause is Cause.DIVERGED else Ending.FAILED,
        key=running.execute.key,
        cause=failed.cause,
        message=failed.message,
        hint=failed.hint,
        seconds=report.seconds,
    )


def early_failure(error: StokerError) -> NodeResult:
    """Return the result of a node that could not be started: a file that is gone, no room for a lease or a folder."""
    cause = Cause.INPUT if isinstance(error, BadInput) else Cause.IO
    if isinstance(error, OutOfMemory):
        cause = Cause.OOM_HOST
    return NodeResult(ending=Ending.FAILED, cause=cause, message=str(error), hint=error.hint)


def left_behind(running: Running, now_s: float) -> Report:
    """Return the report of an attempt that would not stop."""
    return Report(
        name=running.name,
        attempt=running.number,
        seconds=now_s - running.started_s,
        committed=None,
        failed=Failed(cause=running.stop_cause or Cause.CANCELLED, message="it would not stop"),
        usage=Usage(),
    )


def error_of(name: str, result: NodeResult, error_code: str) -> StokerError:
    """Give the error whose class, code and exit code fit why the node failed."""
    kind = _BY_CODE.get(error_code) or (_BY_CAUSE.get(result.cause) if result.cause else None) or StageFailed
    return kind(f"{name}: {result.message}", hint=result.hint, node=name, cause=str(result.cause))


def _leaves(kind: type[StokerError]) -> dict[str, type[StokerError]]:
    found: dict[str, type[StokerError]] = {}
    for leaf in kind.__subclasses__():
        found[leaf.code] = leaf
        found.update(_leaves(leaf))
    return found


# Those that tell more than the cause does.
_TELLING = (
    "no_space", "no_permission", "local_file", "lock_held", "missing_extra", "corrupt_bytes",
    "program_not_found", "scratch_busy", "containment", "bug", "chat_template", "damaged",
)  # fmt: skip
_BY_CODE = {code: leaf for code, leaf in _leaves(StokerError).items() if code in _TELLING}
