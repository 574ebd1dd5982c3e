"""What a worker hands to the child that runs one attempt: one line on its standard input, and a lease file.

The lease file says until when the attempt may run. The worker writes it with every renewal, the child reads it: so a
job ends with its lease even if its worker was killed or stands still.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from stoker.core import errors
from stoker.core.clock import Clock
from stoker.core.frozen import fields_of, fresh, frozen
from stoker.core.job import JobSpec, JobState
from stoker.core.jsontext import dumps, loads
from stoker.core.leases import AttemptToken, Partition
from stoker.core.retry import FailureCause
from stoker.host.durable import read_regular, translated
from stoker.jobs.job_folder import JobEnd

_LARGEST_BYTES = 200


@frozen
class Assignment:
    """One attempt, for its child."""

    spec: JobSpec
    token: AttemptToken
    folder: str
    """Where its program runs on this machine."""
    devices: list[str] = fresh(factory=list)
    is_shared: bool = False
    vram_bytes: int = 0
    interpreter: str = ""
    """One that came beside its code and takes the place of the job's; empty: none."""
    run: str
    """What its folder in `runs/` is called."""
    lease_path: str
    coordinator: str = ""
    worker: str = ""
    grace_s: float = 10.0
    environment: dict[str, str] = fresh(factory=dict)
    """Variables that are added for this attempt."""
    secrets: dict[str, str] = fresh(factory=dict)
    """Variables that are added, too, and whose values are kept out of everything that is written. Never on a disk."""
    paths: dict[str, str] = fresh(factory=dict)
    """Where on this machine each input lies (`JobInput.where` → path)."""
    facts: dict[str, Any] = fresh(factory=dict)
    """What it runs with, by digest: code, commit, data."""
    python: dict[str, Any] = fresh(factory=dict)
    """Of a program with an environment: its interpreter and packages (`environments.answers.Ready.facts`)."""

    run_as: dict[str, Any] = fresh(factory=dict)
    """The user that its programs run as (`host.users`); empty: the worker's own."""

    def to_line(self) -> bytes:
        """Return it as one line."""
        nested = {"spec": self.spec.to_json(), "token": fields_of(self.token)}
        return dumps({**fields_of(self), **nested}).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Assignment:
        """Read what `to_line` gave. Raises `ValueError`, `KeyError` or `TypeError` on anything else."""
        raw: dict[str, Any] = loads(line)
        return cls(**{**raw, "spec": JobSpec.from_json(raw["spec"]), "token": AttemptToken(**raw["token"])})


class LeaseFile:
    """Until when an attempt may run, on the clock that also counts suspend."""

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, ends_s: float, partition: Partition) -> None:
        """Say it again. Readers see the old line or the new one; it need not survive a power cut, nothing else does."""
        with translated(self.path):
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            fresh_path = f"{self.path}.new"
            with open(fresh_path, "w", encoding="ascii") as file:
                file.write(f"{ends_s:.6f} {partition}\n")
            os.replace(fresh_path, self.path)

    def remove(self) -> None:
        """Take the right to run away; who still runs ends."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)

    def why_over(self, now_s: float) -> str:
        """Return why whoever runs under it has to end; nothing if it may go on."""
        try:
            ends, partition = read_regular(self.path, _LARGEST_BYTES).decode("ascii").split()
            if partition == Partition.KEEP or now_s < float(ends):
                return ""
        except FileNotFoundError:
            return "its worker has let go of it"
        except (OSError, ValueError):
            return "nobody can say how long its lease lasts"
        return "its lease is over, and nobody renewed it"


# Ends an attempt whose lease is over: its own look at the lease file, whatever became of its worker.

LOOK_EVERY_S = 0.5


class LeaseWatch:
    """A block beside which the lease is watched; `on_over` is called once, from a thread, with the reason."""

    def __init__(
        self, lease: LeaseFile, *, clock: Clock, on_over: Callable[[str], None], every_s: float = LOOK_EVERY_S
    ) -> None:
        self._lease = lease
        self._clock = clock
        self._on_over = on_over
        self._every_s = every_s
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stoker-lease-watch", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_done.wait(self._every_s):
            why = self._lease.why_over(self._clock.boottime_s())
            if why:
                self._on_over(why)
                return


# How an attempt ended, as its folder and its process tell; and what that means to the coordinator.

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
