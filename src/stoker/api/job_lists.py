"""Jobs of the fleet and of this machine in one list, the newest first, page by page; and the state of a whole fleet."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from typing import TYPE_CHECKING

from stoker.api.job import LocalJobView
from stoker.core.frozen import frozen
from stoker.core.job import JobState
from stoker.jobs.job_folder import job_folders
from stoker.views.fleet_lines import FleetOverview

if TYPE_CHECKING:
    from stoker.api.job import AnyJobView
    from stoker.protocol.client import FleetClient

_RUNNING = 10
_LEADERS = 3
_PAGE = 200


def look_at_fleet(client: FleetClient) -> FleetOverview:
    """Ask for the state of a fleet."""
    return FleetOverview(
        url=client.url,
        status=client.status(),
        machines=client.machines(),
        running=client.jobs(state=JobState.RUNNING, limit=_RUNNING).jobs,
        leaders=client.leaderboard(limit=_LEADERS),
    )


@frozen
class JobFilter:
    """Which jobs are listed; what is empty does not matter."""

    state: str = ""
    recipe: str = ""
    machine: str = ""


def list_jobs(
    runs: str, client: FleetClient | None, asked: JobFilter, *, here: str, page: int = _PAGE
) -> Iterator[AnyJobView]:
    """Return jobs, the newest first, asking for as few of them as are taken.

    With a client, attempts of its jobs that ran on this machine are not listed a second time.
    """
    local = _local_jobs(runs, asked, here=here, with_attempts=client is None)
    fleet = _fleet_jobs(client, asked, page=page) if client is not None else iter(())
    return merge(fleet, local, key=_begun_s, reverse=True)


def _begun_s(view: AnyJobView) -> float:
    return (view.started_s or 0.0) if isinstance(view, LocalJobView) else view.submitted_s


def _fleet_jobs(client: FleetClient, asked: JobFilter, *, page: int) -> Iterator[AnyJobView]:
    after = ""
    while True:
        found = client.jobs(state=asked.state, recipe=asked.recipe, machine=asked.machine, after=after, limit=page)
        yield from found.jobs
        after = found.next
        if not after:
            return


def _local_jobs(runs: str, asked: JobFilter, *, here: str, with_attempts: bool) -> Iterator[AnyJobView]:
    states = set(filter(None, asked.state.split(",")))
    if asked.machine not in ("", "here", here):
        return
    for folder in job_folders(runs):
        view = LocalJobView.of_any(folder)
        if not with_attempts and view.fleet:
            continue
        if (states and view.state not in states) or (asked.recipe and view.recipe != asked.recipe):
            continue
        yield view
