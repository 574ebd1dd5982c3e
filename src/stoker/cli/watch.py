"""`--watch`: jobs of the fleet followed to their ends. To stop watching stops nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.screens import open_screen
from stoker.core.errors import StokerError
from stoker.core.events import FleetKinds
from stoker.core.job import JobState
from stoker.views.stage_lines import metrics_text
from stoker.views.text_tables import ASCII, UNICODE, span

if TYPE_CHECKING:
    from stoker.protocol.client import FleetClient
    from stoker.protocol.job_messages import JobSubmissionResult
    from stoker.protocol.view_messages import JobView


_BEAT_S = 2.0
_NAMES_A_LOOK = 20
_PAGES_A_NAME = 20
_MOST_RUNNING = 12
_NOBODY_S = 10.0
"""So long the first machine may take to join: a worker that was started along with this command needs a moment."""
_NO_MACHINE = "a machine that is not here"
_NOT_COMPLETED = "a job that did not complete"
_BACK = {
    FleetKinds.JOB_RETRYING: "failed, and is tried again",
    FleetKinds.JOB_EXPIRED: "its worker was lost; back in the queue",
    FleetKinds.JOB_RELEASED: "given back by its worker; back in the queue",
    FleetKinds.JOB_DECLINED: "its worker would not start it; back in the queue",
}


def watch(call: CommandContext, client: FleetClient, jobs: Iterable[JobSubmissionResult]) -> int:
    """Follow jobs until none is left that may still run; 0 if all completed, else 1."""
    call.out.is_watched = True
    watching = JobWatcher(call, client, jobs)
    try:
        watching.follow()
    except KeyboardInterrupt:
        watching.close()
        count = watching.left
        going = "1 job goes" if count == 1 else f"{count:,} jobs go"
        call.out.complain(f"{going} on without you: stoker jobs lists them, stoker cancel NAME ends one")
        raise
    finally:
        watching.close()
    return watching.conclude()


class JobWatcher:
    """What is known of the jobs that are followed. Events tell of moves; a look now and then tells how far each is."""

    def __init__(self, call: CommandContext, client: FleetClient, jobs: Iterable[JobSubmissionResult]) -> None:
        self._out = call.out
        self._clock = call.parts.clock
        # A coordinator may start again while its jobs are followed.
        self._client = client.more_patient()
        self._signs = UNICODE if self._out.is_unicode else ASCII
        self._left: dict[str, str] = {}
        """The base names of jobs that have not ended, by id."""
        self._views: dict[str, JobView] = {}
        self._counts: dict[JobState, int] = {}
        self._stuck: dict[str, str] = {}
        """What nothing here will let run, by name, and what it waits for."""
        self._lock = threading.Lock()
        self._is_closed = False
        self._screen = open_screen(self._out, self._clock)
        for job in jobs:
            if JobState(job.state).is_terminal:
                self._count(JobState(job.state))
            else:
                self._left[job.id] = _base(job.shown)

    @property
    def left(self) -> int:
        """How many have not ended."""
        return len(self._left)

    def follow(self) -> None:
        """Listen until all have ended, or nothing that is left can run by itself."""
        if not self._left:
            return
        self._screen.begin(self.running)
        began_s = self._clock.monotonic_s()
        # What happened before the stream was open is found by asking.
        looked_s = began_s - _BEAT_S
        for event in self._client.events(beat_s=_BEAT_S):
            is_ours = event is not None and event.data.get("job") in self._left
            if event is not None and is_ours:
                self._take(event.kind, event.data)
            has_looked = self._clock.monotonic_s() - looked_s >= _BEAT_S
            if has_looked:
                self._look()
                looked_s = self._clock.monotonic_s()
            if not self._left or ((is_ours or has_looked) and self._are_all_stuck(looked_s - began_s)):
                return

    def close(self) -> None:
        """Give the screen back."""
        if not self._is_closed:
            self._is_closed = True
            self._screen.close()

    def conclude(self) -> int:
        """Return how it all ended."""
        total = sum(self._counts.values())
        listed = ", ".join(f"{count:,} {state}" for state, count in self._counts.items())
        is_good = set(self._counts) <= {JobState.COMPLETED}
        if total > 1:
            self._out.line(f"{total:,} jobs: {listed}")
        if not is_good:
            self._out.note("hint: stoker jobs --status failed, then stoker logs NAME")
        if not self._left:
            return 0 if is_good else 1
        count, why = len(self._left), " and ".join(dict.fromkeys(self._stuck.values()))
        waits = "1 job waits" if count == 1 else f"{count:,} jobs wait"
        self._out.line(f"{waits} for {why}: stoker explain {next(iter(self._stuck))}")
        return 1

    def running(self, _now_s: float, _at_least_s: float) -> list[str]:
        """Return a line for each job that runs, and one for those that wait."""
        with self._lock:
            views = [view for view in self._views.values() if view.id in self._left]
            waiting = len(self._left) - sum(view.state == JobState.RUNNING for view in views)
        running = [view for view in views if view.state == JobState.RUNNING]
        lines = [_running_text(view) for view in running[:_MOST_RUNNING]]
        if len(running) > _MOST_RUNNING:
            lines.append(f"{len(running) - _MOST_RUNNING:,} more are running")
        only = next((view for view in views if view.state == JobState.PENDING and view.why), None)
        if waiting == 1 and only is not None:
            lines.append(f"{only.name} {only.why}")
        elif waiting:
            lines.append(f"{waiting:,} wait{'s' if waiting == 1 else ''}")
        return lines

    def _take(self, kind: str, data: dict[str, Any]) -> None:
        self._out.object(data)
        job, state = str(data["job"]), str(data.get("to", ""))
        if state and JobState(state).is_terminal:
            self._settle(job, str(data.get("name", "")), JobState(state))
        elif kind in _BACK:
            on = f" ({data['machine']})" if data.get("machine") else ""
            self._screen.lasting(f"{self._signs.again} {data.get('name', job)}  {_BACK[kind]}{on}")
        elif kind == FleetKinds.JOB_STARTED:
            self._see([self._client.job(job).job])

    def _look(self) -> None:
        """Ask how the jobs stand, those that were not asked about for longest first."""
        names = list(islice(dict.fromkeys(self._left.values()), _NAMES_A_LOOK))
        for name in names:
            after = ""
            for _ in range(_PAGES_A_NAME):
                page = self._client.jobs(name=name, after=after)
                self._see(page.jobs)
                after = page.next
                if not after:
                    break
        # Those that were looked at go to the end of the line.
        looked = set(names)
        seen = {job: name for job, name in self._left.items() if name in looked}
        self._left = {**{job: name for job, name in self._left.items() if name not in looked}, **seen}

    def _are_all_stuck(self, waited_s: float) -> bool:
        """Return whether nothing that is left could run on the machines known now without an operator.

        The points of a sweep ask for the same, so one of them speaks for all.
        """
        with self._lock:
            live = [view for view in self._views.values() if view.id in self._left]
        if len(live) < len(self._left) or any(view.state != JobState.PENDING for view in live):
            return False
        waiting: dict[str, list[str]] = {}
        self._stuck = {}
        for view in {_base(view.name): view for view in live}.values():
            shown = self._client.explain(view.id)
            if shown.never and (shown.machines or waited_s >= _NOBODY_S):
                self._stuck[view.name] = _NO_MACHINE
            elif any(JobState(state).is_terminal for state in shown.after.values()):
                self._stuck[view.name] = _NOT_COMPLETED
            elif shown.after:
                waiting[view.name] = list(shown.after)
            else:
                return False
        stuck = {_base(name) for name in self._stuck}
        while found := [name for name, after in waiting.items() if stuck.intersection(map(_base, after))]:
            stuck.update(map(_base, found))
            for name in found:
                del waiting[name]
        return not waiting

    def _see(self, views: Iterable[JobView]) -> None:
        for view in views:
            if view.id not in self._left:
                continue
            with self._lock:
                self._views[view.id] = view
            state = JobState(view.state)
            if state.is_terminal:
                self._settle(view.id, view.name, state, view)

    def _settle(self, job: str, name: str, state: JobState, view: JobView | None = None) -> None:
        if self._left.pop(job, None) is None:
            return
        self._count(state)
        if view is None:
            try:
                view = self._client.job(job).job
            except StokerError:
                # That it ended is known; only how is not.
                self._screen.lasting(f"{self._sign(state)} {name}  {state}")
                return
        self._screen.lasting(f"{self._sign(state)} {ended_text(view, state)}")

    def _count(self, state: JobState) -> None:
        self._counts[state] = self._counts.get(state, 0) + 1

    def _sign(self, state: JobState) -> str:
        if state is JobState.COMPLETED:
            return self._out.paint(self._signs.ran, "green")
        return self._out.paint(self._signs.failed, "red") if state is JobState.FAILED else self._signs.left


def _base(name: str) -> str:
    """Return what the points of a sweep are called together."""
    base, _, number = name.rpartition("/")
    return base if number.isdigit() else name


def ended_text(view: JobView, state: JobState) -> str:
    """Return how a job ended."""
    took = span(view.ended_s - view.started_s) if view.ended_s is not None and view.started_s is not None else ""
    if state is JobState.COMPLETED:
        said = [took, metrics_text(view.metrics), f"on {view.machine}" if view.machine else ""]
    else:
        said = [str(state), took, view.why]
    return "  ".join(part for part in (view.name, view.label, *said) if part)


def _running_text(view: JobView) -> str:
    step = ""
    if view.step is not None:
        step = f"{100 * view.step // view.of} %" if view.of else f"step {view.step:,}"
    on = f"on {view.machine}" if view.machine else ""
    metrics = metrics_text(view.metrics, is_over=False)
    return "  ".join(part for part in (view.name, view.label, step, metrics, view.says, on) if part)


# Lines about many jobs: the first of them, and how many more there are. JSON has all of them elsewhere.

_MOST_LISTED = 20


class FirstLines:
    """Says a line for each job, of a large sweep only the first ones."""

    def __init__(self, call: CommandContext) -> None:
        self._out = call.out
        self._count = 0

    def say(self, line: str) -> None:
        """Say one, if not too many were said."""
        self._count += 1
        if self._count <= _MOST_LISTED:
            self._out.line(line)

    def end(self) -> None:
        """Say how many were left out."""
        if self._count > _MOST_LISTED:
            self._out.line(f"… and {self._count - _MOST_LISTED:,} more")
