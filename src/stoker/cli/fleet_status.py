"""Jobs of the fleet and of this machine in one list, the newest first; page by page, never all at once unless asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any

from stoker.cli.job_handle import facts_or_why_not
from stoker.core.frozen import frozen
from stoker.core.job import JobState
from stoker.core.text import format_duration
from stoker.jobs.job_folder import job_folders
from stoker.views.fleet_lines import (
    JOB_HEADER,
    MACHINE_HEADER,
    job_row,
    leader_table,
    local_row,
    machine_row,
    symptom_lines,
)
from stoker.views.text_tables import span, table

if TYPE_CHECKING:
    from stoker.protocol.client import FleetClient
    from stoker.protocol.view_messages import FleetStatus, JobView, Leaderboard, MachineView


# The fleet in one look for `stoker status`: counters, machines, who runs what, and the best results so far.

_RUNNING = 10
_MACHINES = 10
_LEADERS = 3


@frozen
class FleetOverview:
    """How a fleet stands."""

    url: str
    status: FleetStatus
    machines: tuple[MachineView, ...]
    running: tuple[JobView, ...]
    leaders: Leaderboard

    def to_dict(self) -> dict[str, Any]:
        return {
            "url": self.url,
            **self.status.model_dump(mode="json"),
            "machine_list": [one.model_dump(mode="json", exclude={"capability"}) for one in self.machines],
            "running": [one.model_dump(mode="json") for one in self.running],
            "leaderboard": self.leaders.model_dump(mode="json"),
        }

    def lines(self, now_s: float, *, columns: int) -> Iterator[str]:
        """Draw it."""
        status = self.status
        yield f"fleet of {self.url}, {status.database}, up for {span(max(0.0, now_s - status.started_s))}"
        yield f"jobs: {_counts(status.jobs, [str(state) for state in JobState])}"
        yield f"machines: {_counts(status.machines)}"
        if status.settling_s > 0 and self.machines:
            yield f"it started lately: whoever is silent keeps its jobs for {format_duration(status.settling_s)} more"
        yield from symptom_lines(status.symptoms, now_s)
        if self.machines:
            yield ""
            rows = [machine_row(one, now_s) for one in self.machines[:_MACHINES]]
            yield from table(rows, header=MACHINE_HEADER, columns=columns)
            if len(self.machines) > _MACHINES:
                yield f"and {len(self.machines) - _MACHINES} more: stoker machines"
        if self.running:
            yield ""
            yield from table([job_row(one, now_s) for one in self.running], header=JOB_HEADER, columns=columns)
            more = status.jobs.get("running", 0) - len(self.running)
            if more > 0:
                yield f"and {more:,} more run: stoker jobs --status running"
        if self.leaders.rows:
            yield ""
            yield from leader_table(self.leaders.rows, self.leaders.metric, columns=columns)


def look_at_fleet(client: FleetClient) -> FleetOverview:
    """Ask how the fleet stands."""
    return FleetOverview(
        url=client.url,
        status=client.status(),
        machines=client.machines(),
        running=client.jobs(state=JobState.RUNNING, limit=_RUNNING).jobs,
        leaders=client.leaderboard(limit=_LEADERS),
    )


def _counts(counts: Mapping[str, int], order: list[str] | None = None) -> str:
    names = [name for name in order or sorted(counts) if counts.get(name)]
    return ", ".join(f"{counts[name]:,} {name}" for name in names) or "none"


_PAGE = 200


@frozen
class JobFilter:
    """Which jobs are wanted; what is empty does not matter."""

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

    def row(self, now_s: float) -> list[str]:
        """Lay it out."""
        return local_row(self.body, now_s) if self.view is None else job_row(self.view, now_s)


def list_jobs(
    runs: str, client: FleetClient | None, asked: JobFilter, *, here: str, page: int = _PAGE
) -> Iterator[JobListItem]:
    """Return jobs, the newest first, asking for as few of them as are taken.

    With a client, attempts of its jobs that ran on this machine are not listed a second time.
    """
    local = local_jobs(runs, asked, here=here, with_attempts=client is None)
    fleet = fleet_jobs(client, asked, page=page) if client is not None else iter(())
    return merge(fleet, local, key=lambda one: one.when_s, reverse=True)


def fleet_jobs(client: FleetClient, asked: JobFilter, *, page: int = _PAGE) -> Iterator[JobListItem]:
    """Return the fleet's jobs, a page at a time."""
    after = ""
    while True:
        found = client.jobs(state=asked.state, recipe=asked.recipe, machine=asked.machine, after=after, limit=page)
        for view in found.jobs:
            yield JobListItem(
                when_s=view.submitted_s, body={**view.model_dump(mode="json"), "where": "fleet"}, view=view
            )
        after = found.next
        if not after:
            return


def local_jobs(runs: str, asked: JobFilter, *, here: str, with_attempts: bool) -> Iterator[JobListItem]:
    """Return the jobs of this machine; those that it ran for a fleet only if asked."""
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


def first(jobs: Iterator[JobListItem], count: int) -> tuple[list[JobListItem], bool]:
    """Take so many, and say whether there are more."""
    taken = list(islice(jobs, count + 1))
    return taken[:count], len(taken) > count
