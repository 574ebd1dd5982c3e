"""`stoker cancel` of jobs of the fleet: a wish that is written down, and a word when nothing of them runs any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.many import FirstLines
from stoker.faces.cli.fleet.naming import FleetJob
from stoker.faces.view.times import span
from stoker.model.errors import IllegalMove, NotFound
from stoker.model.lifecycle import JobState
from stoker.worker.submitting.person import who_asks

if TYPE_CHECKING:
    from stoker.wire.views import JobView


def cancel_fleet_job(call: Call, job: FleetJob, *, waits: bool) -> int:
    """Cancel a job of the fleet: one point of a sweep, or every point that has not ended."""
    out, clock = call.out, call.parts.clock
    points = [point for point in job.points() if not job.stage or point.label == job.stage]
    if not points:
        raise NotFound(f"job {job.ref} has no trial {job.stage!r}", hint=f"stoker jobs show {job.ref} lists them")
    live = [point for point in points if not JobState(point.state).is_terminal]
    if not live:
        state = points[0].state if len(points) == 1 else "all its points have ended"
        raise IllegalMove(f"{job.ref} is not running: {state}", hint=f"stoker jobs show {job.ref}", state=state)
    started_s = clock.monotonic_s()
    job.client.cancel_jobs([point.id for point in live], by=who_asks(call.parts.settings.environment))
    running = [point for point in live if point.state != JobState.PENDING]
    if waits and running:
        names = running[0].name if len(running) == 1 else f"{len(running)} jobs"
        out.note(f"stopping {names}; Ctrl-C stops waiting, the cancel request remains")
    lines = FirstLines(call)
    if not waits:
        for point in live:
            out.object({"name": point.name, "job": point.id, "state": point.state, "is_cancelling": True})
            lines.say(f"cancelling {_called(point)}")
        lines.end()
        out.note(f"hint: stoker jobs wait {job.ref} says when nothing of it runs any more")
        return 0
    from stoker.wire.waiting import wait_for

    lost: list[JobView] = []

    def ended(view: JobView) -> None:
        took = clock.monotonic_s() - started_s
        out.object({"name": view.name, "job": view.id, "state": view.state, "seconds": round(took, 6)})
        if view.state == JobState.CANCELLED:
            lines.say(f"cancelled {_called(view)}{f' on {view.machine}' if view.machine else ''} ({span(took)})")
        else:
            lost.append(view)
            lines.say(f"{_called(view)} had {view.state} before it could be cancelled")

    wait_for(job.client, live, clock=clock, ended=ended)
    lines.end()
    return 0 if len(lost) < len(live) else 1


def _called(view: JobView) -> str:
    return f"{view.name}  {view.label}" if view.label else view.name
