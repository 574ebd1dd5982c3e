"""Jobs of the fleet and of this machine in one list, the newest first, page by page; and the state of a whole fleet."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from typing import TYPE_CHECKING, Any

from stoker.api.job import facts_or_why_not
from stoker.core.frozen import frozen
from stoker.core.job import JobState
from stoker.jobs.job_folder import job_folders
from stoker.views.fleet_lines import FleetOverview

if TYPE_CHECKING:
    from stoker.protocol.client import FleetClient
    from stoker.protocol.view_messages import JobView

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


@frozen
class JobListItem:
    """One job of the list."""

    when_s: float
    body: dict[str, Any]
    """As JSON shows it; `where` is `here` or `fleet`."""
    view: JobView | None = None
    """Of a fleet's job."""


def list_jobs(
    runs: str, client: FleetClient | None, asked: JobFilter, *, here: str, page: int = _PAGE
) -> Iterator[JobListItem]:
    """Return jobs, the newest first, asking for as few of them as are taken.

    With a client, attempts of its jobs that ran on this machine are not listed a second time.
    """
    local = _local_jobs(runs, asked, here=here, with_attempts=client is None)
    fleet = _fleet_jobs(client, asked, page=page) if client is not None else iter(())
    return merge(fleet, local, key=lambda one: one.when_s, reverse=True)


def _fleet_jobs(client: FleetClient, asked: JobFilter, *, page: int) -> Iterator[JobListItem]:
    after = ""
    while True:
        found = client.jobs(state=asked.state, recipe=asked.recipe, machine=asked.machine, after=after, limit=page)
        for view in found.jobs:
            body = {**view.model_dump(mode="json"), "where": "fleet"}
            yield JobListItem(when_s=view.submitted_s, body=body, view=view)
        after = found.next
        if not after:
            return


def _local_jobs(runs: str, asked: JobFilter, *, here: str, with_attempts: bool) -> Iterator[JobListItem]:
    states = set(filter(None, asked.state.split(",")))
    if asked.machine not in ("", "here", here):
        return
    for folder in job_folders(runs):
        facts = facts_or_why_not(folder)
        if not with_attempts and facts.get("fleet"):
            continue
        if (states and facts["state"] not in states) or (asked.recipe and facts["recipe"] != asked.recipe):
            continue
        yield JobListItem(when_s=facts["started_s"] or 0.0, body={**facts, "where": "here"})
