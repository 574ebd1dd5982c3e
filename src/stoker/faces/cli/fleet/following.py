"""`stoker logs` of a job of the fleet: what its attempts printed, then or while they run, wherever that is.

It goes on by offset: across attempts on other machines, and across restarts of the coordinator.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.naming import FleetJob
from stoker.faces.cli.log_reading import LogReading
from stoker.model.errors import NotFound, Usage
from stoker.model.lifecycle import JobState
from stoker.worker.growing_lines import GrowingLines
from stoker.worker.shipping.mirrored import Mirrored, log_files

if TYPE_CHECKING:
    from stoker.wire.views import AttemptView, JobStory

_WAIT_S = 2.0
_LOOK_AGAIN_S = 0.5
_BETWEEN_S = 0.05
_PREPARING = "preparing"
PREPARING = f"{_PREPARING}.log"
_OUTPUT = "output"
"""What a worker of system A sent: its attempts have no job folder, and so no stages."""


def show_fleet_logs(call: Call, job: FleetJob, *, stage: str, attempt: int | None, follows: bool) -> int:
    """Show what a job of the fleet printed; with `follows` until it ends."""
    if job.is_sweep:
        points = job.points()
        if len(points) > 1:
            first = points[0].name
            raise Usage(f"{job.ref} has {len(points):,} points, each with logs of its own", hint=f"stoker logs {first}")
    call.out.is_watched = follows
    following = _Following(call, job, stage or job.stage)
    try:
        if attempt is not None:
            return following.show(_numbered(job.story, attempt), follows=follows)
        return following.show_all(follows=follows)
    finally:
        following.close()


def _numbered(story: JobStory, number: int) -> AttemptView:
    for attempt in story.attempts:
        if attempt.number == number:
            return attempt
    had = f"it had {len(story.attempts)}" if story.attempts else "it had none yet"
    raise NotFound(f"{story.job.name} had no attempt {number}; {had}", hint=f"stoker jobs show {story.job.name}")


class _Following:
    """The attempts of one job, one after the other."""

    def __init__(self, call: Call, job: FleetJob, stage: str) -> None:
        self._call = call
        self._job = job
        # A coordinator may start again while its jobs are followed; what was shown is not shown twice.
        self._client = job.client.more_patient()
        self._stage = stage
        self._said = ""
        self._mirror: Mirrored | None = None
        self._shown_last = ""

    def close(self) -> None:
        if self._mirror is not None:
            self._mirror.close()

    def show_all(self, *, follows: bool) -> int:
        """Show the last attempt that printed; with `follows` every one that comes after it, until the job ends."""
        story = self._job.story
        if not follows:
            if not story.attempts:
                raise NotFound(f"nothing has run of {story.job.name} yet", hint=f"stoker explain {story.job.name}")
            return self.show(story.attempts[-1], follows=False)
        shown = 0
        while True:
            fresh = [attempt for attempt in story.attempts if attempt.number > shown]
            # Of what ran before anybody followed, the last try is what matters.
            for attempt in fresh[-1:] if not shown else fresh:
                self.show(attempt, follows=True)
                shown = attempt.number
            story = self._client.job(self._job.view.id)
            if any(attempt.number > shown for attempt in story.attempts):
                continue
            state = JobState(story.job.state)
            if state.is_terminal:
                self._tell_end(story)
                return 0
            self._tell_wait(story)
            self._call.parts.clock.sleep(_LOOK_AGAIN_S)

    def show(self, attempt: AttemptView, *, follows: bool) -> int:
        """Show one attempt."""
        self.close()
        mirror = self._mirror = Mirrored(self._client, self._job.view.id, attempt.number, wants=log_files)
        self._shown_last = ""
        if attempt.number > 1:
            self._call.out.note(f"attempt {attempt.number}, on {attempt.machine}")
        reading: LogReading | None = None
        beside = {
            name: GrowingLines(os.path.join(mirror.folder.log_folder, f"{name}.log"))
            for name in (_PREPARING, _OUTPUT)
            if self._stage in ("", name)
        }
        while True:
            has_come = mirror.pull(wait_s=_WAIT_S if follows else 0.0)
            if reading is None and mirror.has("job.json"):
                beside.pop(_OUTPUT, None)
                reading = LogReading(self._call, mirror.folder, self._stage)
            self._show_beside(mirror, beside)
            if reading is not None:
                reading.read_on()
            if not follows or (mirror.is_over and not has_come):
                break
            if not has_come:
                self._call.parts.clock.sleep(_BETWEEN_S)
        if reading is not None:
            reading.finish()
        elif not follows and not self._shown_last:
            self._call.out.note(f"note: nothing of attempt {attempt.number} has arrived yet")
        return 0

    def _show_beside(self, mirror: Mirrored, logs: Mapping[str, GrowingLines]) -> None:
        """Show new lines of logs that no stage wrote, each under its name."""
        out = self._call.out
        for name, log in logs.items():
            for line in log.fresh() if mirror.has(f"logs/{name}.log") else ():
                if self._shown_last != name:
                    self._shown_last = name
                    out.line(f"==> {name} <==")
                text = line.decode(errors="backslashreplace")
                out.object({"node": name, "line": text})
                out.line(text)

    def _tell_end(self, story: JobStory) -> None:
        view = story.job
        why = f": {view.why}" if view.why else ""
        self._call.out.note(f"{view.name} {view.state}{why}")

    def _tell_wait(self, story: JobStory) -> None:
        said = f"{story.job.name} {story.job.why or 'waits'}"
        if said != self._said:
            self._said = said
            self._call.out.note(said)
