"""How an attempt ended, as its folder and its process tell; and what that means to the coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.core import errors
from stoker.core.frozen import fresh, frozen
from stoker.core.job import JobState
from stoker.core.retry import FailureCause
from stoker.jobs.job_folder import JobEnd

_BY_CODE: dict[str, FailureCause] = {
    errors.OutOfMemory.code: FailureCause.OOM_HOST,
    errors.InsufficientDeviceMemory.code: FailureCause.OOM_DEVICE,
    errors.DeviceWaitTimeout.code: FailureCause.OOM_DEVICE,
    errors.StageTimeout.code: FailureCause.TIMEOUT,
    errors.PlanDeadline.code: FailureCause.TIMEOUT,
    errors.StageDiverged.code: FailureCause.DIVERGED,
    errors.StageInputError.code: FailureCause.INPUT,
    errors.ProcessLost.code: FailureCause.LOST,
    errors.Cancelled.code: FailureCause.LOST,
    errors.Terminated.code: FailureCause.LOST,
    **{
        kind.code: FailureCause.IO
        for kind in (
            errors.InternalError,
            errors.ContainmentUnavailable,
            errors.CorruptBytes,
            errors.LocalFile,
            errors.LockHeld,
            errors.NetworkFailed,
            errors.NoPermission,
            errors.NoSpace,
            errors.ScratchBusy,
        )
    },
}
"""Of errors that do not say their cause themselves. Who is asked to end, and not by us, is lost."""


_CAUSES = frozenset(map(str, FailureCause))
# Cluster, manifest, config, recipe arguments.
_INPUT_CODES = range(20, 30)


@frozen
class AttemptEnd:
    """How an attempt's process ended."""

    state: JobState
    error: Mapping[str, Any] = fresh(factory=dict)
    exit_code: int = 0
    seconds: float = 0.0
    is_told: bool = True
    """It wrote its end down itself; else its process went away without a word."""

    @property
    def is_completed(self) -> bool:
        return self.state is JobState.COMPLETED

    @property
    def message(self) -> str:
        return str(self.error.get("message", ""))

    @property
    def hint(self) -> str:
        return str(self.error.get("hint", ""))

    @property
    def cause(self) -> FailureCause:
        """Why it failed: as whoever ran the stage said, else by the error's code."""
        said = self.error.get("data")
        named = said.get("cause") if isinstance(said, Mapping) else None
        if named in _CAUSES:
            return FailureCause(str(named))
        if not self.is_told:
            return FailureCause.LOST
        code = str(self.error.get("error", ""))
        return _BY_CODE.get(code) or (FailureCause.INPUT if self.exit_code in _INPUT_CODES else FailureCause.USER)


def end_of(written: JobEnd | None, *, how: str = "") -> AttemptEnd:
    """Return the end that a job folder tells of; `how` is what is known of a process that wrote none."""
    if written is None:
        said = "its process went away without a word"
        error = {"error": errors.ProcessLost.code, "message": f"{said}: {how}" if how else said}
        return AttemptEnd(state=JobState.FAILED, error=error, exit_code=1, is_told=False)
    return AttemptEnd(
        state=written.state, error=written.error or {}, exit_code=written.exit_code, seconds=written.elapsed_s
    )
