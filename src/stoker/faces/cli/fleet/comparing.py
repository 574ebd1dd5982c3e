"""Jobs of the fleet for `stoker compare`: their mirrored folders, read like those of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from stoker.config.label import read_label
from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.naming import FleetJob
from stoker.model.digests import Digest
from stoker.model.errors import NotFound
from stoker.model.frozen import changed
from stoker.model.lifecycle import JobState
from stoker.plan.sweep_plan import TrialNodes
from stoker.worker.gathering import Gathered, Gathering
from stoker.worker.shipping.mirrored import Mirrored
from stoker.worker.trials import Trial, TrialEnd

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
    """Return what is known of every point of a sweep: of one that has not run, its state.

    The first one that has run speaks for all; `NotFound` if none has.
    """
    points = job.points()
    if len(points) > _MANY_POINTS:
        call.out.note(f"fetching what {len(points):,} points measured, with their curves…")
    speaker: Gathering | None = None
    found: dict[str, list[Gathered]] = {}
    for point in points:
        if not point.attempt:
            continue
        with suppress(NotFound):
            gathering = gathering_of(call, job, point)
            speaker = speaker or gathering
            found[point.id] = [_as_point(one, point) for one in gathering.trials()]
    if speaker is None:
        raise NotFound(f"no point of {job.ref} has run yet", hint=f"stoker explain {job.ref}")
    known = [one.end.trial for trials in found.values() for one in trials]
    return speaker, [one for point in points for one in found.get(point.id) or [_without_attempt(point, known)]]


def _without_attempt(point: JobView, known: Sequence[Trial]) -> Gathered:
    """Return a point that has not run, from its label and state: to ask for each would take a request for each.

    All but what is swept is taken from those that are known.
    """
    values = read_label(point.label)
    trial = Trial(
        number=_number(point),
        label=point.label,
        point={name: values.get(name) for name in dict.fromkeys(name for one in known for name in one.point)},
        args=known[0].args if known else {},
        job_id=Digest(point.id),
        nodes=TrialNodes(final="", keep=(), nodes=()),
    )
    return Gathered(end=TrialEnd(trial=trial, state=point.state, message=point.why), curve_files=())


def _number(point: JobView) -> int:
    return int(point.name.rpartition("/")[2])


def _as_point(one: Gathered, point: JobView) -> Gathered:
    """Return a job's only trial under the sweep's number and label, in the state that the coordinator has for it."""
    number = _number(point)
    trial = one.end.trial
    # Each machine has places of its own for data. What all points have in common does not tell them apart.
    own = {name: trial.point[name] for name in trial.measured_on if name in trial.point}
    measured_on = {name: trial.measured_on[name] if value is None else value for name, value in own.items()}
    trial = changed(trial, number=number, label=point.label, measured_on=measured_on)
    is_failed = point.state in (JobState.FAILED, JobState.CANCELLED)
    message = one.end.message or (point.why if is_failed else "")
    # An attempt may have ended though its job waits for the next one, and what a lost worker wrote says that it runs.
    return changed(one, end=changed(one.end, trial=trial, state=point.state, message=message))
