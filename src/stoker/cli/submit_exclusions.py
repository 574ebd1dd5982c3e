"""Trials of a sweep that have no result: `stoker get` copies the others, lists these, and ends with 1."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.cli.context import CommandContext
from stoker.cli.job_handle import trial_ends
from stoker.core.errors import NotFound
from stoker.core.frozen import frozen
from stoker.core.job import JobState
from stoker.core.text import some_of
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.job_history import RunHistory
from stoker.jobs.rerun_spec import trials_of_job
from stoker.jobs.trials import is_sweep

_MOST_NAMED = 5
_WAITING = frozenset(str(state) for state in JobState if not state.is_terminal)


@frozen
class UnfinishedTrial:
    """A trial of a sweep that has no result."""

    name: str
    """`resnet/3`."""
    label: str
    state: str


def tell_left(call: CommandContext, sweep: str, left: Sequence[UnfinishedTrial], total: int) -> None:
    """Report trials that were not copied, if there are any; the command then ends with 1."""
    if not left:
        return
    for one in left:
        call.out.object({"name": one.name, "label": one.label, "state": one.state, "folder": None, "files": []})
    named = some_of([f"{one.name} ({one.label}) is {one.state}" for one in left], _MOST_NAMED)
    ended = next((one.name for one in left if one.state not in _WAITING), "")
    hints = [f"stoker logs {ended}"] if ended else []
    if any(one.state in _WAITING for one in left):
        hints.append(f"stoker jobs wait {sweep}, then `stoker get` again with --force")
    lack = "has no result and was" if len(left) == 1 else "have no result and were"
    call.incomplete = NotFound(
        f"{len(left):,} of {total:,} trials of {sweep} {lack} not copied: {named}",
        hint="; ".join(hints),
    )


def trials_left(folder: JobFolder, story: RunHistory, *, is_running: bool) -> tuple[list[UnfinishedTrial], int]:
    """Return the trials that have no result by a job's story, and how many trials it has; none if it is no sweep."""
    trials = trials_of_job(folder)
    if not is_sweep(trials):
        return [], 0
    name = folder.spec().name
    ends = trial_ends(trials, story, is_running=is_running)
    left = [
        UnfinishedTrial(name=f"{name}/{one.trial.number}", label=one.trial.label, state=one.state)
        for one in ends
        if one.state != "completed"
    ]
    return left, len(ends)
