"""How an attempt ended, as its folder and its process tell; and what that means to the coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.model import errors
from stoker.model.frozen import fresh, frozen
from stoker.model.lifecycle import JobState
from stoker.model.retry import Cause
from stoker.worker.job_folder import JobEnd

_BY_CODE: dict[str, Cause] = {
    errors.OutOfMemory.code: Cause.OOM_HOST,
    errors.NoRoom.code: Cause.OOM_DEVICE,
    errors.RoomTimeout.code: Cause.OOM_DEVICE,
    errors.StageTimeout.code: Cause.TIMEOUT,
    errors.PlanDeadline.code: Cause.TIMEOUT,
    errors.StageDiverged.code: Cause.DIVERGED,
    errors.StageInputError.code: Cause.INPUT,
    errors.ProcessLost.code: Cause.LOST,
    errors.Cancelled.code: Cause.LOST,
    errors.Terminated.code: Cause.LOST,
    **{
        kind.code: Cause.IO
        for kind in (
            errors.Bug,
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


_CAUSES = frozenset(map(str, Cause))
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
    def cause(self) -> Cause:
        """Why it failed: as whoever ran the stage said, else by the error's code."""
        said = self.error.get("data")
        named = said.get("cause") if isinstance(said, Mapping) else None
        if named in _CAUSES:
            return Cause(str(named))
        if not self.is_told:
            return Cause.LOST
        code = str(self.error.get("error", ""))
        return _BY_CODE.get(code) or (Cause.INPUT if self.exit_code in _INPUT_CODES else Cause.USER)


def end_of(written: JobEnd | None, *, how: str = "") -> AttemptEnd:
    """Give the end that a job folder tells of; `how` is what is known of a process that wrote none."""
    if written is None:
        said = "its process went away without a word"
        error = {"error": errors.ProcessLost.code, "message": f"{said}: {how}" if how else said}
        return AttemptEnd(state=JobState.FAILED, error=error, exit_code=1, is_told=False)
    return AttemptEnd(
        state=written.state, error=written.error or {}, exit_code=written.exit_code, seconds=written.elapsed_s
    )
