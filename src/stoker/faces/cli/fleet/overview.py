"""The fleet in one look for `stoker status`: counters, machines, who runs what, and the best results so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stoker.faces.view.fleet import JOB_HEADER, MACHINE_HEADER, job_row, leader_table, machine_row
from stoker.faces.view.health import symptom_lines
from stoker.faces.view.tables import table
from stoker.faces.view.times import span
from stoker.model.frozen import frozen
from stoker.model.lifecycle import JobState
from stoker.model.units import format_duration

if TYPE_CHECKING:
    from stoker.wire.asking import Leaderboard
    from stoker.wire.client import FleetClient
    from stoker.wire.views import FleetStatus, JobView, MachineView

_RUNNING = 10
_MACHINES = 10
_LEADERS = 3


@frozen
class FleetLook:
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


def look_at_fleet(client: FleetClient) -> FleetLook:
    """Ask how the fleet stands."""
    return FleetLook(
        url=client.url,
        status=client.status(),
        machines=client.machines(),
        running=client.jobs(state=JobState.RUNNING, limit=_RUNNING).jobs,
        leaders=client.leaderboard(limit=_LEADERS),
    )


def _counts(counts: Mapping[str, int], order: list[str] | None = None) -> str:
    names = [name for name in order or sorted(counts) if counts.get(name)]
    return ", ".join(f"{counts[name]:,} {name}" for name in names) or "none"
