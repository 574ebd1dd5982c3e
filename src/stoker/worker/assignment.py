"""The assignment of one attempt to its child: one line on its standard input, and a lease file.

The lease file contains the end of the lease. The worker writes it with every renewal, the child reads it: so a job
stops with its lease even if its worker was killed or hangs. If no worker can take the attempt over, it ends as soon as
its worker is gone: the job may be running elsewhere long before the lease expires.
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
from stoker.host.identity import Liveness, ProcessIdentity, is_alive
from stoker.jobs.job_folder import JobEnd

SAME_REQUEST_S = 2.0
"""A batch system signals every process of an allocation, in any order: requests to end that follow the first so soon
are the same one."""
_LARGEST_BYTES = 200


@frozen
class Assignment:
    """One attempt, as its child gets it."""

    spec: JobSpec
    token: AttemptToken
    folder: str
    """Where its program runs on this machine."""
    devices: list[str] = fresh(factory=list)
    is_shared: bool = False
    vram_bytes: int = 0
    interpreter: str = ""
    """An interpreter that came with its code and replaces the job's; empty: none."""
    run: str
    """The name of its folder in `runs/`."""
    lease_path: str
    ends_with: dict[str, Any] = fresh(factory=dict)
    """The identity of the worker's process if nothing continues the attempt after it; empty: its successor may."""
    coordinator: str = ""
    worker: str = ""
    grace_s: float = 10.0
    environment: dict[str, str] = fresh(factory=dict)
    """Variables added for this attempt."""
    secrets: dict[str, str] = fresh(factory=dict)
    """Variables added too, whose values are masked in everything written. Never stored on disk."""
    paths: dict[str, str] = fresh(factory=dict)
    """The path of each input on this machine, by `JobInput.where`."""
    facts: dict[str, Any] = fresh(factory=dict)
    """Digests of code, commit and data."""
    python: dict[str, Any] = fresh(factory=dict)
    """Interpreter and packages of a program with an environment (`EnvironmentReady.facts`)."""

    run_as: dict[str, Any] = fresh(factory=dict)
    """The user of its programs (`host.users`); empty: the worker's own."""

    def to_line(self) -> bytes:
        """Return it as one line."""
        nested = {"spec": self.spec.to_json(), "token": fields_of(self.token)}
        return dumps({**fields_of(self), **nested}).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Assignment:
        """Parse a line of `to_line`. Raises `ValueError`, `KeyError` or `TypeError` if it is invalid."""
        raw: dict[str, Any] = loads(line)
        return cls(**{**raw, "spec": JobSpec.from_json(raw["spec"]), "token": AttemptToken(**raw["token"])})


class LeaseFile:
    """The end of an attempt's lease, on the boot-time clock."""

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, ends_s: float, partition: Partition) -> None:
        """Replace the file atomically. Not synced: after a power cut no attempt is left to read it."""
        with translated(self.path):
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            fresh_path = f"{self.path}.new"
            with open(fresh_path, "w", encoding="ascii") as file:
                file.write(f"{ends_s:.6f} {partition}\n")
            os.replace(fresh_path, self.path)

    def remove(self) -> None:
        """Revoke the lease; a process that still runs under it stops."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)

    def why_over(self, now_s: float) -> str:
        """Return why the attempt must stop; empty if its lease is valid."""
        try:
            ends, partition = read_regular(self.path, _LARGEST_BYTES).decode("ascii").split()
            if partition == Partition.KEEP or now_s < float(ends):
                return ""
        except FileNotFoundError:
            return "lease released by its worker"
        except (OSError, ValueError):
            return "lease file unreadable"
        return "lease expired: not renewed before its deadline"


LOOK_EVERY_S = 0.5


class LeaseWatch:
    """Watches a lease file during a block, in case the worker is gone; calls `on_over` once, with the reason.

    With a `worker` it also calls `on_gone`, once and instead, when that process has ended.
    """

    def __init__(
        self,
        lease: LeaseFile,
        *,
        clock: Clock,
        on_over: Callable[[str], None],
        worker: ProcessIdentity | None = None,
        on_gone: Callable[[], None] = lambda: None,
        every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._lease = lease
        self._clock = clock
        self._on_over = on_over
        self._worker = worker
        self._on_gone = on_gone
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
            if self._worker is not None and is_alive(self._worker) is Liveness.GONE:
                self._on_gone()
                return
            why = self._lease.why_over(self._clock.boottime_s())
            if why:
                self._on_over(why)
                return


# How an attempt ended, from its folder and its process; and its failure cause for the coordinator.

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
"""Causes of errors that name none themselves. An attempt stopped by others than its worker is lost."""


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
    is_written: bool = True
    """True if it wrote its end itself; False if its process exited without writing its result."""

    @property
    def is_completed(self) -> bool:
        return self.state is JobState.COMPLETED

    @property
    def is_terminated(self) -> bool:
        """True if it ended because it received SIGTERM."""
        return self.error.get("error") == errors.Terminated.code

    @property
    def message(self) -> str:
        return str(self.error.get("message", ""))

    @property
    def hint(self) -> str:
        return str(self.error.get("hint", ""))

    @property
    def cause(self) -> FailureCause:
        """Why it failed: the cause that its error names, else by the error's code."""
        data = self.error.get("data")
        named = data.get("cause") if isinstance(data, Mapping) else None
        if named in _CAUSES:
            return FailureCause(str(named))
        if not self.is_written:
            return FailureCause.LOST
        code = str(self.error.get("error", ""))
        return _BY_CODE.get(code) or (FailureCause.INPUT if self.exit_code in _INPUT_CODES else FailureCause.USER)


def end_of(written: JobEnd | None, *, how: str = "") -> AttemptEnd:
    """Return the end from a job folder; `how` describes the exit of a process that wrote none."""
    if written is None:
        message = "process exited without writing its result"
        error = {"error": errors.ProcessLost.code, "message": f"{message}: {how}" if how else message}
        return AttemptEnd(state=JobState.FAILED, error=error, exit_code=1, is_written=False)
    return AttemptEnd(
        state=written.state, error=written.error or {}, exit_code=written.exit_code, seconds=written.elapsed_s
    )
