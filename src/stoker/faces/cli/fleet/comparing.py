"""Jobs of the fleet for `stoker compare`: their mirrored folders, read like those of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.naming import FleetJob
from stoker.model.errors import NotFound
from stoker.model.frozen import changed
from stoker.worker.gathering import Gathered, Gathering
from stoker.worker.shipping.mirrored import Mirrored

if TYPE_CHECKING:
    from stoker.wire.views import JobView

_MANY_POINTS = 500
"""Each is fetched with all its curves: for more of them it is said what takes so long."""


def gathering_of(call: Call, job: FleetJob, point: JobView | None = None) -> Gathering:
    """Fetch what is known of a job's last attempt. It goes with the command."""
    view = point or job.view
    if not view.attempt:
        raise NotFound(f"nothing has run of {view.name} yet", hint=f"stoker explain {view.name}")
    mirror = Mirrored(job.client, view.id, view.attempt, wants=lambda path: not path.startswith(("logs/", "code/")))
    call.keep_open(mirror)
    mirror.pull()
    if not mirror.has("job.json"):
        raise NotFound(f"nothing of {view.name} has arrived at the coordinator yet", hint="try again in a moment")
    return Gathering(mirror.folder, call.parts.store)


def gathered_points(call: Call, job: FleetJob) -> tuple[Gathering, list[Gathered]]:
    """Fetch what is known of every point of a sweep that has run; the first of them speaks for all."""
    points = [point for point in job.points() if point.attempt]
    if not points:
        raise NotFound(f"no point of {job.ref} has run yet", hint=f"stoker explain {job.ref}")
    if len(points) > _MANY_POINTS:
        call.out.note(f"fetching what {len(points):,} points measured, with their curves…")
    first = gathering_of(call, job, points[0])
    found = [_as_point(one, points[0]) for one in first.trials()]
    for point in points[1:]:
        found += [_as_point(one, point) for one in gathering_of(call, job, point).trials()]
    return first, found


def _as_point(one: Gathered, point: JobView) -> Gathered:
    """Call a job's only trial what the sweep calls it."""
    number = int(point.name.rpartition("/")[2])
    trial = one.end.trial
    # Each machine has places of its own for data. What all points have in common does not tell them apart.
    own = {name: trial.point[name] for name in trial.measured_on if name in trial.point}
    measured_on = {name: trial.measured_on[name] if value is None else value for name, value in own.items()}
    trial = changed(trial, number=number, label=point.label, measured_on=measured_on)
    return changed(one, end=changed(one.end, trial=trial))
