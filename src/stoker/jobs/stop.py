"""Stop a job that another process runs, or one trial of it. Always confirmed.

A job: its owner is asked, and ended firmly if it is not gone in time. A trial: the request is a file in the job's
folder, and the job's journal records the trial's end; the owner continues with the others.

The owner is known by identity, so a recycled number is never signalled. Only the owner is asked: it stops its stages
itself and writes down how the job ended. If it has to be killed, so is everything it had started, and the end is
written down for it.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from enum import StrEnum

from stoker.core.clock import Clock
from stoker.core.errors import InvalidTransition, ProcessLost, Terminated
from stoker.core.events import Kinds
from stoker.core.frozen import frozen
from stoker.core.job import JobState
from stoker.core.jsontext import loads
from stoker.engine.journal import older_generation
from stoker.host.identity import Liveness, ProcessIdentity, identity_from, is_alive, living_rows
from stoker.host.processes import stop_group
from stoker.jobs.job_folder import JobEnd, JobFolder
from stoker.jobs.job_history import GrowingLines
from stoker.jobs.job_receipt import write_end_receipt
from stoker.jobs.trials import Trial, nodes_to_cancel, read_trials

# The owner gives its stages ten seconds before it kills them; it gets those and some for itself.
PATIENCE_S = 15.0
# A trial's end is written after its folder is laid out, which may wait for other trials.
TRIAL_PATIENCE_S = 60.0
_LEFTOVERS_S = 2.0
_LOOK_AGAIN_S = 0.05


class JobStopMethod(StrEnum):
    """What it took."""

    POLITE = "polite"
    FIRM = "firm"


@frozen
class StoppedJob:
    """How a job was stopped, and how long that took."""

    how: JobStopMethod
    seconds: float


@frozen
class StoppedTrial:
    """How a trial ended that was to be cancelled, and how long that took."""

    state: str
    seconds: float


def stop_job(folder: JobFolder, *, clock: Clock, patience_s: float = PATIENCE_S) -> StoppedJob:
    """Stop a running job; when this returns, nothing of it runs. Refuses if it does not run, or not on this machine."""
    owner = _owner_of_running(folder)
    started_s = clock.monotonic_s()
    family = _descendants(owner)
    _ask(owner)
    while is_alive(owner) is Liveness.ALIVE:
        if clock.monotonic_s() - started_s >= patience_s:
            _end_firmly(owner, [*family, *_descendants(owner)], clock)
            _write_end(folder, clock)
            return StoppedJob(how=JobStopMethod.FIRM, seconds=clock.monotonic_s() - started_s)
        clock.sleep(_LOOK_AGAIN_S)
    _write_end(folder, clock)
    return StoppedJob(how=JobStopMethod.POLITE, seconds=clock.monotonic_s() - started_s)


def stop_trial(folder: JobFolder, trial: Trial, *, clock: Clock, patience_s: float = TRIAL_PATIENCE_S) -> StoppedTrial:
    """Cancel one trial of a running sweep; when this returns, nothing of it runs, and the others go on.

    Raises `InvalidTransition` if the trial has ended, or others need all that it does; `ProcessLost` if it does not
    stop.
    """
    owner = _owner_of_running(folder)
    name = f"{folder.spec().name}/{trial.spec.number}"
    ends = _TrialEnds(folder, trial.spec.number)
    state = ends.look()
    if state:
        raise InvalidTransition(f"trial {name} is not running: {state}", state=state)
    requested = folder.trials_to_cancel() | {trial.spec.number}
    if not nodes_to_cancel(read_trials(folder), requested).intersection(trial.nodes.nodes):
        raise InvalidTransition(f"trial {name} can't be cancelled alone: other trials need all that it does")
    started_s = clock.monotonic_s()
    folder.cancel_trial(trial.spec.number)
    while True:
        is_over = is_alive(owner) is not Liveness.ALIVE
        state = ends.look()
        seconds = clock.monotonic_s() - started_s
        if state or is_over:
            return StoppedTrial(state=state or str(JobState.CANCELLED), seconds=seconds)
        if seconds >= patience_s:
            raise ProcessLost(
                f"trial {name} has not stopped after {patience_s:.0f} s; the request to cancel it remains",
                hint=f"stoker cancel {folder.spec().name} stops the whole job",
            )
        clock.sleep(_LOOK_AGAIN_S)


class _TrialEnds:
    """Looks in a job's journal for the end of one trial."""

    def __init__(self, folder: JobFolder, number: int) -> None:
        self._lines = GrowingLines(older_generation(folder.status_path), folder.status_path)
        self._number = number

    def look(self) -> str:
        """Return the state in which the trial has ended; empty if that is not in the journal yet."""
        for line in self._lines.fresh():
            if b'"trial_end"' in line:
                with suppress(ValueError):
                    event = loads(line)
                    if event.get("kind") == Kinds.TRIAL_END and event.get("trial") == self._number:
                        return str(event.get("state"))
        return ""


def _owner_of_running(folder: JobFolder) -> ProcessIdentity:
    """Return the process that runs a job. Raises `InvalidTransition`, or `ProcessLost` if it runs elsewhere."""
    state, why = folder.state()
    owner = folder.owner()
    name = folder.spec().name
    if state is not JobState.RUNNING or owner is None:
        raise InvalidTransition(f"job {name} is not running: {state}{f', {why}' if why else ''}", state=str(state))
    if is_alive(owner) is Liveness.UNKNOWN:
        raise ProcessLost(
            f"job {name} runs on {owner.host}, which can't be seen from here",
            hint=f"stoker cancel {name}, on {owner.host}",
        )
    return owner


def _ask(owner: ProcessIdentity) -> None:
    with suppress(ProcessLookupError):
        if sys.platform != "linux":
            os.kill(owner.pid, signal.SIGTERM)
            return
        # The descriptor stays with the process it was opened for: what we compare is what we signal.
        descriptor = os.pidfd_open(owner.pid)
        try:
            if is_alive(owner) is Liveness.ALIVE:
                signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        finally:
            os.close(descriptor)


def _end_firmly(owner: ProcessIdentity, family: list[ProcessIdentity], clock: Clock) -> None:
    stop_group(owner, grace_s=0.0, clock=clock)
    for identity in dict.fromkeys(family):
        # The warm process ends by itself when its parent is gone; this is for whatever does not.
        if is_alive(identity) is Liveness.ALIVE:
            stop_group(identity, grace_s=_LEFTOVERS_S, clock=clock)


def _descendants(owner: ProcessIdentity) -> list[ProcessIdentity]:
    children: dict[int, list[tuple[int, int]]] = {}
    for row in living_rows():
        children.setdefault(row.parent_pid, []).append((row.pid, row.start_ticks))
    found, waiting = [], [owner.pid]
    while waiting:
        for pid, start_ticks in children.pop(waiting.pop(), []):
            found.append(identity_from(pid, start_ticks))
            waiting.append(pid)
    return found


def _write_end(folder: JobFolder, clock: Clock) -> None:
    """Write the job's end, unless its process did. No other process writes here any more."""
    if folder.ended() is None:
        error = Terminated("it was cancelled and had to be ended from outside")
        attempt = folder.begun()
        end = JobEnd.given_up(error, started_s=attempt.started_s, ended_s=clock.wall_s())
        write_end_receipt(folder, attempt, end)
        folder.end(end)
