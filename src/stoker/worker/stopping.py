"""Stop a job that another process runs: ask its owner, wait until that is gone, else end it firmly. Always confirmed.

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

from stoker.host.identity import Liveness, ProcessIdentity, identity_from, is_alive
from stoker.host.process_table import living_rows
from stoker.host.processes import stop_group
from stoker.model.clock import Clock
from stoker.model.errors import IllegalMove, ProcessLost, Terminated
from stoker.model.frozen import frozen
from stoker.model.lifecycle import JobState
from stoker.worker.job_folder import JobEnd, JobFolder

# The owner gives its stages ten seconds before it kills them; it gets those and some for itself.
PATIENCE_S = 15.0
_LEFTOVERS_S = 2.0
_LOOK_AGAIN_S = 0.05


class Stop(StrEnum):
    """What it took."""

    POLITE = "polite"
    FIRM = "firm"


@frozen
class StoppedJob:
    """How a job was stopped, and how long that took."""

    how: Stop
    seconds: float


def stop_job(folder: JobFolder, *, clock: Clock, patience_s: float = PATIENCE_S) -> StoppedJob:
    """Stop a running job; when this returns, nothing of it runs. Refuses if it does not run, or not on this machine."""
    state, why = folder.state()
    owner = folder.owner()
    name = folder.spec().name
    if state is not JobState.RUNNING or owner is None:
        raise IllegalMove(f"job {name} is not running: {state}{f', {why}' if why else ''}", state=str(state))
    if is_alive(owner) is Liveness.UNKNOWN:
        raise ProcessLost(
            f"job {name} runs on {owner.host}, which can't be seen from here",
            hint=f"stoker cancel {name}, on {owner.host}",
        )
    started_s = clock.monotonic_s()
    family = _descendants(owner)
    _ask(owner)
    while is_alive(owner) is Liveness.ALIVE:
        if clock.monotonic_s() - started_s >= patience_s:
            _end_firmly(owner, [*family, *_descendants(owner)], clock)
            _write_end(folder, clock)
            return StoppedJob(how=Stop.FIRM, seconds=clock.monotonic_s() - started_s)
        clock.sleep(_LOOK_AGAIN_S)
    _write_end(folder, clock)
    return StoppedJob(how=Stop.POLITE, seconds=clock.monotonic_s() - started_s)


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
    """Write down that the job was stopped, unless it did so itself. Nobody else writes here any more."""
    if folder.ended() is None:
        error = Terminated("it was cancelled and had to be ended from outside")
        folder.end(JobEnd.given_up(error, started_s=folder.spec().started_s, ended_s=clock.wall_s()))
