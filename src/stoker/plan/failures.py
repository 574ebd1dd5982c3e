"""A failed node as the error that the whole run reports."""

from __future__ import annotations

from stoker.model.errors import (
    OutOfMemory,
    ProcessLost,
    StageDiverged,
    StageFailed,
    StageInputError,
    StageTimeout,
    StokerError,
)
from stoker.model.retry import Cause
from stoker.plan.outcome import NodeResult

_BY_CAUSE: dict[Cause, type[StokerError]] = {
    Cause.TIMEOUT: StageTimeout,
    Cause.DIVERGED: StageDiverged,
    Cause.OOM_HOST: OutOfMemory,
    Cause.OOM_DEVICE: OutOfMemory,
    Cause.INPUT: StageInputError,
    Cause.LOST: ProcessLost,
}


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
    "program_not_found", "scratch_busy", "containment", "bug",
)  # fmt: skip
_BY_CODE = {code: leaf for code, leaf in _leaves(StokerError).items() if code in _TELLING}
