"""`--watch`: follow fleet jobs until they end. Stopping the watch does not stop the jobs."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.screens import open_screen
from stoker.core.errors import StokerError
from stoker.core.events import FleetKinds
from stoker.core.job import JobState
from stoker.core.text import counted
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
_JOIN_S = 10.0
"""Time for the first machine to join before a note says that there is none."""
_NO_MACHINE = "a machine that the fleet does not have"
_NOT_COMPLETED = "a job that did not complete"
_BACK = {
    FleetKinds.JOB_RETRYING: "failed; retrying",
    FleetKinds.JOB_EXPIRED: "worker lost; back in the queue",
    FleetKinds.JOB_RELEASED: "released by its worker; back in the queue",
    FleetKinds.JOB_DECLINED: "declined by its worker; back in the queue",
}


def watch(call: CommandContext, client: FleetClient, jobs: Iterable[JobSubmissionResult]) -> int:
    """Follow jobs until none can still run; return 0 if all completed, else 1."""
    call.out.is_watched = True
    watching = JobWatcher(call, client, jobs)
    try:
        watching.follow()
    except KeyboardInterrupt:
        watching.close()
        count = watching.left
        still = counted(count, "job continues", "jobs continue")
        call.out.complain(f"{still}; list: stoker jobs; stop: stoker cancel NAME")
        raise
    finally:
        watching.close()
    return watching.conclude()


class JobWatcher:
    """The state of the followed jobs: changes come as events, progress by polling."""

    def __init__(self, call: CommandContext, client: FleetClient, jobs: Iterable[JobSubmissionResult]) -> None:
        self._out = call.out
        self._clock = call.parts.clock
        # The coordinator may be restarted meanwhile.
        self._client = client.more_patient()
        self._signs = UNICODE if self._out.is_unicode else ASCII
        self._left: dict[str, str] = {}
        """Base names of unfinished jobs by id."""
        self._views: dict[str, JobView] = {}
        self._counts: dict[JobState, int] = {}
        self._hint: str | None = None
        """What this machine knows of the first failure."""
        self._stuck: dict[str, str] = {}
        """Jobs that can't run, by name, and what they wait for."""
        self._is_noted = False
        """A note said that the fleet has no machine."""
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
        """Number of unfinished jobs."""
        return len(self._left)

    def follow(self) -> None:
        """Follow events until all jobs have ended or no job can run without an operator."""
        if not self._left:
            return
        self._screen.begin(self.running)
        began_s = self._clock.monotonic_s()
        # Poll once for changes before the stream was open.
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
        """Close the screen."""
        if not self._is_closed:
            self._is_closed = True
            self._screen.close()

    def conclude(self) -> int:
        """Print the result and return the exit code."""
        total = sum(self._counts.values())
        listed = ", ".join(f"{count:,} {state}" for state, count in self._counts.items())
        is_good = set(self._counts) <= {JobState.COMPLETED}
        if total > 1:
            self._out.line(f"{total:,} jobs: {listed}")
        if not is_good:
            self._out.note(f"hint: {self._hint or 'stoker jobs --status failed, then stoker logs NAME'}")
        if not self._left:
            return 0 if is_good else 1
        count, why = len(self._left), " and ".join(dict.fromkeys(self._stuck.values()))
        waits = counted(count, "job waits", "jobs wait")
        self._out.line(f"{waits} for {why}: stoker explain {next(iter(self._stuck))}")
        return 1

    def running(self, _now_s: float, _at_least_s: float) -> list[str]:
        """Return a line for each running job, and one for the waiting ones."""
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
            lines.append(f"{waiting:,} waiting")
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
        """Poll the states of the jobs, least recently polled first."""
        names = list(islice(dict.fromkeys(self._left.values()), _NAMES_A_LOOK))
        for name in names:
            after = ""
            for _ in range(_PAGES_A_NAME):
                page = self._client.jobs(name=name, after=after)
                self._see(page.jobs)
                after = page.next
                if not after:
                    break
        # Polled jobs move to the end.
        looked = set(names)
        seen = {job: name for job, name in self._left.items() if name in looked}
        self._left = {**{job: name for job, name in self._left.items() if name not in looked}, **seen}

    def _are_all_stuck(self, waited_s: float) -> bool:
        """Return True if no remaining job can run on the known machines without an operator.

        The points of a sweep have the same requirements, so one of them is explained.
        """
        with self._lock:
            live = [view for view in self._views.values() if view.id in self._left]
        if len(live) < len(self._left) or any(view.state != JobState.PENDING for view in live):
            return False
        waiting: dict[str, list[str]] = {}
        self._stuck = {}
        for view in {_base(view.name): view for view in live}.values():
            shown = self._client.explain(view.id)
            if shown.never and shown.machines:
                self._stuck[view.name] = _NO_MACHINE
            elif shown.never:
                self._note_no_machine(waited_s)
                return False
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

    def _note_no_machine(self, waited_s: float) -> None:
        """Note once that no machine has joined: the first one may be able to run everything."""
        if waited_s >= _JOIN_S and not self._is_noted:
            self._is_noted = True
            self._out.note("note: the fleet has no machine yet; start a worker: stoker work")

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
                # The job has ended; only the details are missing.
                self._screen.lasting(f"{self._sign(state)} {name}  {state}")
                return
        self._screen.lasting(f"{self._sign(state)} {ended_text(view, state)}")
        if state is JobState.FAILED and self._hint is None:
            with suppress(StokerError):
                from stoker.jobs.pack.left_behind import missing_file_hint

                self._hint = missing_file_hint(self._client.job(job).spec, (view.why,))

    def _count(self, state: JobState) -> None:
        self._counts[state] = self._counts.get(state, 0) + 1

    def _sign(self, state: JobState) -> str:
        if state is JobState.COMPLETED:
            return self._out.paint(self._signs.ran, "green")
        return self._out.paint(self._signs.failed, "red") if state is JobState.FAILED else self._signs.left


def _base(name: str) -> str:
    """Return the common name of a sweep's points."""
    base, _, number = name.rpartition("/")
    return base if number.isdigit() else name


def ended_text(view: JobView, state: JobState) -> str:
    """Return how a job ended."""
    took = span(view.ended_s - view.started_s) if view.ended_s is not None and view.started_s is not None else ""
    if state is JobState.COMPLETED:
        texts = [took, metrics_text(view.metrics), f"on {view.machine}" if view.machine else ""]
    else:
        texts = [str(state), took, view.why]
    return "  ".join(part for part in (view.name, view.label, *texts) if part)


def _running_text(view: JobView) -> str:
    step = ""
    if view.step is not None:
        step = f"{100 * view.step // view.of} %" if view.of else f"step {view.step:,}"
    on = f"on {view.machine}" if view.machine else ""
    metrics = metrics_text(view.metrics, is_over=False)
    return "  ".join(part for part in (view.name, view.label, step, metrics, view.says, on) if part)


# Lines about many jobs: the first ones and the number of the others. JSON lists all.

_MOST_LISTED = 20


class FirstLines:
    """Prints a line for each job, for a large sweep only the first ones."""

    def __init__(self, call: CommandContext) -> None:
        self._out = call.out
        self._count = 0

    def say(self, line: str) -> None:
        """Print a line, if not too many were printed."""
        self._count += 1
        if self._count <= _MOST_LISTED:
            self._out.line(line)

    def end(self) -> None:
        """Print the number of the others."""
        if self._count > _MOST_LISTED:
            self._out.line(f"… and {self._count - _MOST_LISTED:,} more")
