"""The values of jobs for a ranking: of this machine's job folders, and of a coordinator's leaderboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from stoker.core.errors import StokerError
from stoker.jobs.comparison import JobFacts
from stoker.jobs.job_folder import job_folders
from stoker.store.local_store import LocalStore
from stoker.views.leaderboard import RankedJob

if TYPE_CHECKING:
    from stoker.protocol.client import FleetClient

MOST_FOLDERS = 500
"""Newest job folders that are ranked."""
_MOST_ROWS = 1000
_RANKED = frozenset({"completed", "running"})


def local_values(
    runs: str,
    store: LocalStore,
    *,
    recipe: str = "",
    with_attempts: bool = True,
    looked: Callable[[int], None] = lambda _count: None,
) -> Iterator[RankedJob]:
    """Return every completed or running trial of this machine's newest jobs, with its metrics.

    Without `with_attempts`, attempts made for a fleet are left out. `looked` is called with the number of folders read.
    """
    for count, folder in enumerate(job_folders(runs), 1):
        if count > MOST_FOLDERS:
            return
        looked(count)
        try:
            facts = JobFacts(folder, store)
            is_meant = (not recipe or facts.spec.recipe == recipe) and (
                with_attempts or "fleet" not in facts.attempt.options
            )
            trials = facts.trials() if is_meant else []
        except StokerError:
            # Deleted meanwhile, or not readable: `stoker jobs` lists it as such.
            continue
        for one in trials:
            spec, end = one.end.trial.spec, one.end
            if end.state in _RANKED and end.metrics:
                yield RankedJob(
                    name=facts.spec.name if len(trials) == 1 else f"{facts.spec.name}/{spec.number}",
                    id=facts.attempt.id,
                    state=end.state,
                    where="here",
                    label=spec.label,
                    recipe=facts.spec.recipe,
                    metrics=end.metrics,
                    seconds=end.seconds,
                )


def fleet_values(client: FleetClient, metric: str, *, recipe: str = "") -> list[RankedJob]:
    """Return the fleet's completed and running jobs that have a metric. Raises `NotFound`, which names others."""
    board = client.leaderboard(metric, recipe=recipe, limit=_MOST_ROWS, is_live=True)
    return [RankedJob.of_fleet(row) for row in board.rows]
