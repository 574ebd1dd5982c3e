"""Jobs of the fleet and of this machine in one list, the newest first; page by page, never all at once unless asked."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any

from stoker.faces.cli.job_facts import facts_or_why_not
from stoker.faces.view.fleet import job_row, local_row
from stoker.model.frozen import frozen
from stoker.worker.job_folder import job_folders

if TYPE_CHECKING:
    from stoker.wire.client import FleetClient
    from stoker.wire.views import JobView

_PAGE = 200


@frozen
class Asked:
    """Which jobs are wanted; what is empty does not matter."""

    state: str = ""
    recipe: str = ""
    machine: str = ""


@frozen
class Listed:
    """One job of the list."""

    when_s: float
    body: dict[str, Any]
    """As JSON shows it; `where` is `here` or `fleet`."""
    view: JobView | None = None
    """Of a fleet's job."""

    def row(self, now_s: float) -> list[str]:
        """Lay it out."""
        return local_row(self.body, now_s) if self.view is None else job_row(self.view, now_s)


def list_jobs(runs: str, client: FleetClient | None, asked: Asked, *, here: str, page: int = _PAGE) -> Iterator[Listed]:
    """Give jobs, the newest first, asking for as few of them as are taken.

    With a client, attempts of its jobs that ran on this machine are not listed a second time.
    """
    local = local_jobs(runs, asked, here=here, with_attempts=client is None)
    fleet = fleet_jobs(client, asked, page=page) if client is not None else iter(())
    return merge(fleet, local, key=lambda one: one.when_s, reverse=True)


def fleet_jobs(client: FleetClient, asked: Asked, *, page: int = _PAGE) -> Iterator[Listed]:
    """Give the fleet's jobs, a page at a time."""
    after = ""
    while True:
        found = client.jobs(state=asked.state, recipe=asked.recipe, machine=asked.machine, after=after, limit=page)
        for view in found.jobs:
            yield Listed(when_s=view.submitted_s, body={**view.model_dump(mode="json"), "where": "fleet"}, view=view)
        after = found.next
        if not after:
            return


def local_jobs(runs: str, asked: Asked, *, here: str, with_attempts: bool) -> Iterator[Listed]:
    """Give the jobs of this machine; those that it ran for a fleet only if asked."""
    states = set(filter(None, asked.state.split(",")))
    if asked.machine not in ("", "here", here):
        return
    for folder in job_folders(runs):
        facts = facts_or_why_not(folder)
        if not with_attempts and facts.get("fleet"):
            continue
        if (states and facts["state"] not in states) or (asked.recipe and facts["recipe"] != asked.recipe):
            continue
        yield Listed(when_s=facts["started_s"] or 0.0, body={**facts, "where": "here"})


def first(jobs: Iterator[Listed], count: int) -> tuple[list[Listed], bool]:
    """Take so many, and say whether there are more."""
    taken = list(islice(jobs, count + 1))
    return taken[:count], len(taken) > count
