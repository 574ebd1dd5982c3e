"""A job of a fleet, by its name: its logs, its end, its result, its trials, asked of the coordinator."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, NoReturn

from stoker.api.fleet_attempt import (
    FIRST_FILE,
    AttemptLog,
    FleetResult,
    SyncedAttempt,
    TrialHeading,
    fetch_result,
    folder_name,
    story_files,
)
from stoker.api.job import (
    Job,
    JobReasons,
    JobStop,
    StageLogLine,
    StoredReceipt,
    StoredResult,
    StoredResults,
    job_story,
    nodes_named,
)
from stoker.core.clock import Clock
from stoker.core.digests import digest_bytes
from stoker.core.errors import BadAnswer, InvalidTransition, NotFound, Refused, StokerError, Usage
from stoker.core.frozen import changed
from stoker.core.job import JobSpec, JobState, TrialNodes
from stoker.devices.this_machine import submitter_name
from stoker.jobs.pack.left_behind import missing_file_hint
from stoker.jobs.trial_settings import SUBMITTED, Layers, value_layers
from stoker.jobs.trials import Trial, TrialEnd
from stoker.protocol.client import FleetClient
from stoker.protocol.view_messages import AttemptView, DoneView, JobDetails, JobView

if TYPE_CHECKING:
    from stoker.api.app_parts import AppParts
    from stoker.jobs.comparison import JobFacts, LookedAt, TrialFacts
    from stoker.jobs.job_history import NodeHistory

_WAIT_S = 2.0
_LOOK_AGAIN_S = 0.5
_BETWEEN_S = 0.05
_BEAT_S = 15.0
_SHORTEST_BEAT_S = 0.05
_PAGE = 1000
_ENDS = frozenset(state.value for state in JobState if state.is_terminal)
_MANY_POINTS = 500
"""Each is fetched with all its curves: for more of them a note says what takes so long."""
_LAST_LINES = 30


class FleetJob(Job):
    """A job of a fleet that was asked for by name. `note` gets what a person should know beside the answers."""

    def __init__(
        self,
        client: FleetClient,
        ref: str,
        story: JobDetails,
        parts: AppParts,
        *,
        stage: str = "",
        note: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.client = client
        self._ref = ref
        self.story = story
        """Of the newest that has that name."""
        self.stage = stage
        self._parts = parts
        self._note = note
        self._opened: list[SyncedAttempt] = []

    @property
    def ref(self) -> str:
        """As it was asked for; the bare name of a sweep means all its points."""
        return self._ref

    @property
    def spec(self) -> JobSpec:
        return self.story.spec

    @property
    def view(self) -> JobView:
        return self.story.job

    @property
    def is_sweep(self) -> bool:
        return self.view.name.rpartition("/")[0] == self.ref

    def points(self) -> list[JobView]:
        """Return the jobs that the name means, in their order: of each point of a sweep the newest."""
        return points_of(self.client, self.ref) if self.is_sweep else [self.view]

    def may_run(self) -> bool:
        return not all(JobState(point.state).is_terminal for point in self.points())

    @property
    def result_folder(self) -> str:
        return folder_name(self.ref).replace("/", os.sep)

    def close(self) -> None:
        for mirror in self._opened:
            mirror.close()

    def logs(
        self, stage: str = "", *, attempt: int | None = None, follow: bool = False
    ) -> Iterator[StageLogLine | str]:
        """Return what the last attempt printed, or a numbered one; with `follow` every later one, until the job ends.

        It continues by offset: across attempts on other machines, and across restarts of the coordinator.
        """
        tail: deque[str] = deque(maxlen=_LAST_LINES)
        for one in self._log_lines(stage or self.stage, attempt, follow=follow):
            yield one
            tail.append(one if isinstance(one, str) else one.text)
        if follow and not JobState(self.view.state).is_terminal:
            self.story = self.client.job(self.view.id)
        if hint := self.hint(reversed(tail)):
            yield f"hint: {hint}"

    def _log_lines(self, stage: str, attempt: int | None, *, follow: bool) -> Iterator[StageLogLine | str]:
        story, name = self.story, self.view.name
        if self.is_sweep:
            points = self.points()
            if attempt is not None and len(points) > 1:
                raise Usage(f"{self.ref} has {len(points):,} points; name one", hint=f"stoker logs {points[0].name}")
            if attempt is None:
                yield from self._follow_points(stage) if follow else self._logs_of_points(points, stage)
                return
        if attempt is not None:
            found = [one for one in story.attempts if one.number == attempt]
            if not found:
                had = f"it had {len(story.attempts)}" if story.attempts else "it had none yet"
                raise NotFound(f"{name} had no attempt {attempt}; {had}", hint=f"stoker jobs show {name}")
            yield from self._logs_of(found[0], stage, follow=follow)
        elif not follow:
            if not story.attempts:
                raise NotFound(f"nothing has run of {name} yet", hint=f"stoker explain {name}")
            yield from self._logs_of(story.attempts[-1], stage, follow=False)
        else:
            yield from self._follow(stage)

    def _follow(self, stage: str) -> Iterator[StageLogLine | str]:
        story, shown, said = self.story, 0, ""
        client = self.client.more_patient()
        while True:
            fresh = [one for one in story.attempts if one.number > shown]
            # Of what ran before it was followed, the last attempt is what matters.
            for one in fresh[-1:] if not shown else fresh:
                yield from self._logs_of(one, stage, follow=True)
                shown = one.number
            story = client.job(self.view.id)
            view = story.job
            if any(one.number > shown for one in story.attempts):
                continue
            if JobState(view.state).is_terminal:
                yield f"{view.name} {view.state}{f': {view.why}' if view.why else ''}"
                return
            waits = f"{view.name} {view.why or 'waits'}"
            if waits != said:
                said = waits
                yield waits
            self._parts.clock.sleep(_LOOK_AGAIN_S)

    def _logs_of(self, attempt: AttemptView, stage: str, *, follow: bool) -> Iterator[StageLogLine | str]:
        if attempt.number > 1:
            yield f"attempt {attempt.number}, on {attempt.machine}"
        # A coordinator may start again while its jobs are followed; what was shown is not shown twice.
        client = self.client.more_patient()
        with closing(AttemptLog(client, self.view.id, attempt.number, stage, self._parts)) as log:
            while True:
                yield from log.read_on(wait_s=_WAIT_S if follow else 0.0)
                if not follow or log.is_over:
                    break
                if not log.has_come:
                    self._parts.clock.sleep(_BETWEEN_S)
            yield from log.finish(is_growing=not follow)

    def _logs_of_points(self, points: Sequence[JobView], stage: str) -> Iterator[StageLogLine | str]:
        """Return what the last attempt of every point printed."""
        if not any(point.attempt for point in points):
            raise NotFound(f"nothing has run of {self.ref} yet", hint=f"stoker explain {self.ref}")
        heading = TrialHeading()
        for point in points:
            if not point.attempt:
                yield f"note: nothing has run of {point.name} yet"
                continue
            with closing(AttemptLog(self.client, point.id, point.attempt, stage, self._parts)) as log:
                yield from heading.over(point, log.read_on())
                yield from heading.over(point, log.finish(is_growing=True))

    def _follow_points(self, stage: str) -> Iterator[StageLogLine | str]:
        """Return what all points print, as it arrives, until each has ended."""
        client, heading, clock = self.client.more_patient(), TrialHeading(), self._parts.clock
        open_logs: dict[str, AttemptLog] = {}
        ended: set[str] = set()
        try:
            while True:
                points = [point for point in points_of(client, self.ref) if point.id not in ended]
                if not points:
                    return
                for point in points:
                    log = open_logs.get(point.id)
                    if log is None and point.attempt:
                        log = AttemptLog(client, point.id, point.attempt, stage, self._parts)
                    if log is not None:
                        open_logs[point.id] = log
                        yield from heading.over(point, log.read_on())
                        if log.is_over and log.number < point.attempt:
                            yield from heading.over(point, log.finish(is_growing=False))
                            log.close()
                            yield f"{point.name}: attempt {log.number + 1}"
                            open_logs[point.id] = AttemptLog(client, point.id, log.number + 1, stage, self._parts)
                            continue
                    if JobState(point.state).is_terminal and (log is None or log.is_over):
                        if log is not None:
                            yield from heading.over(point, log.finish(is_growing=False))
                            open_logs.pop(point.id).close()
                        yield f"{point.name} {point.state}{f': {point.why}' if point.why else ''}"
                        ended.add(point.id)
                clock.sleep(_LOOK_AGAIN_S)
        finally:
            for log in open_logs.values():
                log.close()

    def wait(self, limit_s: float | None, ended: Callable[[JobView], None]) -> int:
        points = self.points()
        return len(points) - len(wait_for(self.client, points, clock=self._parts.clock, limit_s=limit_s, ended=ended))

    def cancel(
        self,
        *,
        waits: bool = True,
        stopping: Callable[[list[str]], None] = lambda _names: None,
        ended: Callable[[JobStop], None] = lambda _stop: None,
    ) -> list[JobView]:
        if self.stage:
            raise no_trial(self.ref, self.stage)
        clock = self._parts.clock
        started_s = clock.monotonic_s()
        points = self.points()
        live = [point for point in points if not JobState(point.state).is_terminal]
        if not live:
            state = points[0].state if len(points) == 1 else "all its points have ended"
            hint = f"stoker jobs show {self.ref}"
            raise InvalidTransition(f"{self.ref} is not running: {state}", hint=hint, state=state)
        self.client.cancel_jobs([point.id for point in live], by=self._submitter())
        if not waits:
            return live

        def has_ended(view: JobView) -> None:
            seconds = clock.monotonic_s() - started_s
            body = {"name": view.name, "job": view.id, "state": view.state, "seconds": round(seconds, 6)}
            ended(
                JobStop(
                    name=view.name,
                    label=view.label,
                    state=view.state,
                    seconds=seconds,
                    machine=view.machine,
                    body=body,
                )
            )

        if running := [point.name for point in live if point.state != JobState.PENDING]:
            stopping(running)
        wait_for(self.client, live, clock=clock, ended=has_ended)
        return live

    def requeue(self, *, with_completed: bool = False) -> tuple[list[JobView], DoneView]:
        """Start a job again that has ended; of a sweep, the points that failed or were cancelled, or all that ended.

        Return them as they were, and the coordinator's response. Raises `InvalidTransition` if there is none.
        """
        self._refuse_stage("jobs requeue")
        points = self.points()
        again = [
            point
            for point in points
            if JobState(point.state).is_terminal
            and (len(points) == 1 or with_completed or point.state != JobState.COMPLETED)
        ]
        if not again:
            state = points[0].state if len(points) == 1 else "no point failed or was cancelled"
            raise InvalidTransition(f"{self.ref} can't be requeued: {state}", hint=f"stoker jobs show {self.ref}")
        return again, self.client.requeue_jobs([point.id for point in again], by=self._submitter())

    def set_priority(self, priority: int) -> tuple[list[JobView], DoneView]:
        """Set the priority of every point that has not ended.

        Return them as they were, and the coordinator's response. Raises `InvalidTransition` if there is none.
        """
        self._refuse_stage("jobs priority")
        live = [point for point in self.points() if not JobState(point.state).is_terminal]
        if not live:
            state = f"is {self.view.state}" if not self.is_sweep else "has ended"
            hint = f"queue it again: stoker jobs requeue {self.ref}"
            raise InvalidTransition(f"{self.ref} {state}: not in the queue", hint=hint, state=self.view.state)
        ids = [point.id for point in live]
        return live, self.client.set_priority_of_jobs(ids, priority, by=self._submitter())

    def pin(self, *, is_pinned: bool = True) -> Iterator[tuple[JobView, DoneView]]:
        """Protect the result of each point from pruning, or no longer; return the coordinator's responses."""
        self._refuse_stage("store pin")
        change = self.client.pin if is_pinned else self.client.unpin
        for point in self.points():
            yield point, change(point.id, by=self._submitter())

    def _refuse_stage(self, command: str) -> None:
        if self.stage:
            hint = f"stoker {command} {self.ref}"
            raise Usage(f"{self.ref}/{self.stage} is not a whole job: the fleet queues jobs, not stages", hint=hint)

    def _submitter(self) -> str:
        return submitter_name(self._parts.settings.environment)

    def explain(self, point: str = "") -> JobReasons:
        """Return the reason of every machine, and how the stages of an ended job went."""
        found = self.client.explain(point or self.view.id)
        stages = self.stages() if found.job.id == self.view.id and JobState(found.job.state).is_terminal else []
        if self.stage:
            stages = nodes_named({one.node: one for one in stages}, self.stage, self.ref)
        hint = self.hint() if found.job.id == self.view.id else ""
        return JobReasons(view=found.job, stages=stages, placement=found, hint=hint)

    def hint(self, lines: Iterable[str] = ()) -> str:
        """Return what this machine knows of the reason of a failure; `lines` are the last of its output."""
        story = self.story
        if story.job.state != JobState.FAILED:
            return ""
        return missing_file_hint(story.spec, (story.job.why, str(story.error.get("message") or ""), *lines))

    def layers_of(self, key: str) -> tuple[Layers, list[str], set[str]]:
        """Return what `Job.layers_of` returns. The coordinator has the values, not the files that they came from."""
        points = self.points()
        if len(points) > _MANY_POINTS:
            self._note(f"fetching the settings of {len(points):,} points…")
        no_nodes = TrialNodes(final="", keep=(), nodes=())
        stories = (self.story if point.id == self.view.id else self.client.job(point.id) for point in points)
        trials = [Trial(spec=story.spec, nodes=no_nodes) for story in stories]
        layers, known, varying = value_layers(key, trials[0].spec, {}, trials)
        return (
            [(path, [(where or SUBMITTED, value) for where, value in stack]) for path, stack in layers],
            known,
            varying,
        )

    def remove(self) -> NoReturn:
        has_ended = JobState(self.view.state).is_terminal
        raise InvalidTransition(
            f"{self.ref} is a fleet job: fleet jobs can't be deleted",
            hint=f"{'' if has_ended else f'stoker cancel {self.ref}; '}name a job of this machine by its id",
        )

    def results(self, stage: str = "") -> StoredResults:
        """Return the result of the job, or of every completed point of a sweep, each with a folder of its own.

        Raises `Refused` if no point of a sweep has completed, `Usage` for a stage.
        """
        if stage or self.stage:
            hint = f"get its result: stoker get {self.ref}; results of stages stay on the worker"
            raise Usage(f"{self.ref} is a fleet job: the coordinator has only its final result", hint=hint)
        points = self.points()
        found = [point for point in points if not self.is_sweep or point.state == JobState.COMPLETED]
        if not found:
            raise Refused(f"no point of {self.ref} has completed", hint=f"stoker jobs show {self.ref}")
        with_result = {point.id for point in found}
        return StoredResults(
            found=map(self._result_of, found),
            missing=[(one.name, one.label, one.state) for one in points if one.id not in with_result],
            total=len(points),
        )

    def _result_of(self, point: JobView) -> StoredResult:
        """Return a point's result, to be fetched. Raises `NotFound` if it has none."""
        folder = folder_name(point.label or point.name.rpartition("/")[2]) if self.is_sweep else ""
        if point.state != JobState.COMPLETED:
            is_over = JobState(point.state).is_terminal
            where = f" on {point.machine}" if point.machine and not is_over else ""
            show, wait = f"stoker jobs show {point.name}", f"stoker jobs wait {point.name}; stoker explain {point.name}"
            lacks = f"{point.name} is {point.state}{where}: there is no result {'of it' if is_over else 'yet'}"
            raise NotFound(lacks, hint=show if is_over else wait)
        story = self.story if point.id == self.view.id else self.client.job(point.id)
        result = FleetResult.of(point.name, point.id, story.bundle, recipe=point.recipe, machine=point.machine)
        parts = self._parts
        return StoredResult(
            name=point.name,
            fetch=lambda heed: [fetch_result(self.client, result, parts.store, clock=parts.clock, heed=heed)],
            size_bytes=result.size_bytes,
            folder=folder,
            body={"job": point.id, "state": point.state, "tree": result.tree},
        )

    def receipts(self) -> list[StoredReceipt]:
        """Return the receipt of the job's last attempt, or of that of each point of a sweep that has ended.

        Raises `BadAnswer` if the coordinator sends another one than it recorded, or that of another job.
        """
        self._refuse_stage("receipt show")
        points = self.points()
        if not self.is_sweep:
            return [self._receipt_of(points[0])]
        found = []
        for point in points:
            with suppress(NotFound):
                found.append(self._receipt_of(point))
        if not found:
            raise NotFound(f"no point of {self.ref} has a receipt yet", hint=f"stoker jobs show {self.ref}")
        return found

    def _receipt_of(self, point: JobView) -> StoredReceipt:
        from stoker.jobs.job_receipt import RECEIPT, job_of, read_synced_receipt
        from stoker.store.statements import parse_statement

        if not point.attempt:
            raise NotFound(f"nothing has run of {point.name} yet", hint=f"stoker explain {point.name}")
        wanted = (FIRST_FILE, RECEIPT)
        with closing(SyncedAttempt(self.client, point.id, point.attempt, wants=wanted.__contains__)) as mirror:
            mirror.pull()
            if not mirror.has(RECEIPT):
                is_over = JobState(point.state).is_terminal
                why = "its worker was lost before it wrote one, or is of an earlier version"
                hint = why if is_over else "it is written when the attempt ends"
                raise NotFound(f"{point.name} has no receipt", hint=hint)
            data = read_synced_receipt(mirror.folder)
        story = self.story if point.id == self.view.id else self.client.job(point.id)
        attempt = next((one for one in story.attempts if one.number == point.attempt), None)
        recorded = str(attempt.facts.get("receipt", "")) if attempt is not None else ""
        statement = parse_statement(data, f"of {point.name}")
        if (recorded and digest_bytes(data) != recorded) or job_of(statement) != point.id:
            message = f"the receipt of {point.name} is not the one that its worker sent with the result"
            raise BadAnswer(message, hint="contact the coordinator's operator")
        if attempt is not None and statement.predicate.get("stoker_state") == JobState.COMPLETED != attempt.ending:
            # Written by a worker whose result came too late, or has not come yet.
            hint = f"the result of its attempt was not accepted: {attempt.ending or 'it still runs'}"
            raise NotFound(f"{point.name} has no receipt", hint=hint)
        return StoredReceipt(name=point.name, data=data, recorded_sha256=recorded)

    def stages(self) -> list[NodeHistory]:
        """Return how the stages of the job's last attempt went, as far as that is mirrored."""
        if not self.view.attempt:
            return []
        try:
            with closing(SyncedAttempt(self.client, self.view.id, self.view.attempt, wants=story_files)) as mirror:
                mirror.pull()
                return list(job_story(mirror.folder).nodes.values())
        except NotFound:
            return []
        except StokerError as error:
            self._note(f"note: the history of its stages can't be read: {error.message}")
            return []

    def facts(self, point: JobView | None = None) -> JobFacts:
        """Fetch what is known of the last attempt of the job, or of a point; it is deleted by `close`."""
        from stoker.jobs.comparison import JobFacts

        view = point or self.view
        if not view.attempt:
            raise NotFound(f"nothing has run of {view.name} yet", hint=f"stoker explain {view.name}")
        mirror = SyncedAttempt(
            self.client, view.id, view.attempt, wants=lambda path: not path.startswith(("logs/", "code/"))
        )
        self._opened.append(mirror)
        mirror.pull()
        if not mirror.has(FIRST_FILE):
            raise NotFound(f"nothing of {view.name} has arrived at the coordinator yet", hint="try again in a moment")
        return JobFacts(mirror.folder, self._parts.store)

    def gather(self, looked: LookedAt = lambda _done, _total: None) -> tuple[JobFacts, list[TrialFacts]]:
        """Return what is known of every point of a sweep; of one that has not run, its state.

        The job's facts are those of the first point that has run; `NotFound` if none has.
        """
        if not self.is_sweep:
            facts = self.facts()
            return facts, facts.trials(looked)
        points = self.points()
        first: JobFacts | None = None
        found: dict[str, list[TrialFacts]] = {}
        for count, point in enumerate(points, 1):
            looked(count, len(points))
            if not point.attempt:
                continue
            with suppress(NotFound):
                facts = self.facts(point)
                first = first or facts
                found[point.id] = [as_point(one, point) for one in facts.trials()]
        if first is None:
            raise NotFound(f"no point of {self.ref} has run yet", hint=f"stoker explain {self.ref}")
        known = [one.end.trial for trials in found.values() for one in trials]
        return first, [one for point in points for one in found.get(point.id) or [_without_attempt(point, known)]]


def no_trial(ref: str, trial: str) -> NotFound:
    """Return the error of a trial that a job does not have."""
    return NotFound(f"job {ref} has no trial {trial!r}", hint=f"stoker jobs show {ref} lists them")


def as_point(one: TrialFacts, point: JobView) -> TrialFacts:
    """Return a job's only trial under the sweep's number and label, in the state that the coordinator has for it."""
    trial = one.end.trial
    # Each machine has places of its own for data. What all points have in common does not tell them apart.
    own = {name: trial.spec.point[name] for name in trial.measured_on if name in trial.spec.point}
    measured_on = {name: trial.measured_on[name] if value is None else value for name, value in own.items()}
    number = int(point.name.rpartition("/")[2])
    trial = changed(trial, spec=changed(trial.spec, number=number, label=point.label), measured_on=measured_on)
    is_failed = point.state in (JobState.FAILED, JobState.CANCELLED)
    message = one.end.message or (point.why if is_failed else "")
    # An attempt may have ended though its job waits for the next one, and what a lost worker wrote says that it runs.
    return changed(one, end=changed(one.end, trial=trial, state=point.state, message=message))


def _without_attempt(point: JobView, known: Sequence[Trial]) -> TrialFacts:
    """Return a point that has not run, from its label and state: to ask for each would take a request for each.

    All but what is swept is taken from those that are known.
    """
    from stoker.config.sweep import read_label
    from stoker.jobs.comparison import TrialFacts

    values = read_label(point.label)
    name, _, number = point.name.rpartition("/")
    spec = JobSpec(
        id=point.id,
        name=name,
        number=int(number),
        label=point.label,
        point={path: values.get(path) for path in dict.fromkeys(path for one in known for path in one.spec.point)},
        recipe=point.recipe,
        args=known[0].spec.args if known else {},
    )
    trial = Trial(spec=spec, nodes=TrialNodes(final="", keep=(), nodes=()))
    return TrialFacts(end=TrialEnd(trial=trial, state=point.state, message=point.why), curve_files=())


def wait_for(
    client: FleetClient,
    jobs: Iterable[JobView],
    *,
    clock: Clock,
    limit_s: float | None = None,
    ended: Callable[[JobView], None] = lambda _view: None,
) -> dict[str, JobView]:
    """Wait until jobs have ended, and return those that have, by id; fewer if the limit came first.

    `ended` is called for each as it ends. A coordinator that starts again meanwhile is waited for, too. Events wake it;
    nothing is polled.
    """
    client = client.more_patient()
    until_s = None if limit_s is None else clock.monotonic_s() + limit_s
    left = {view.id: view for view in jobs}
    found: dict[str, JobView] = {}

    def note(view: JobView) -> None:
        if view.id in left and JobState(view.state).is_terminal:
            del left[view.id]
            found[view.id] = view
            ended(view)

    # Silence is noticed once in a beat, so a limit is kept to a tenth of it.
    beat_s = _BEAT_S if limit_s is None else max(_SHORTEST_BEAT_S, min(_BEAT_S, limit_s / 10))
    events = client.events(beat_s=beat_s)
    # The stream is open before the first look: what happens in between is heard.
    next(events)
    for view in _as_they_stand(client, left):
        note(view)
    while left and (until_s is None or clock.monotonic_s() < until_s):
        event = next(events)
        if event is not None and event.data.get("job") in left and event.data.get("to") in _ENDS:
            note(client.job(str(event.data["job"])).job)
    return found


def _as_they_stand(client: FleetClient, jobs: Mapping[str, JobView]) -> Iterator[JobView]:
    """Return jobs as they are now: the points of a sweep page by page, the rest one by one."""
    missing = dict(jobs)
    for sweep in {view.name.rpartition("/")[0] for view in jobs.values()} if len(jobs) > 1 else ():
        for view in points_of(client, sweep) if sweep else ():
            if missing.pop(view.id, None) is not None:
                yield view
    for job in missing:
        yield client.job(job).job


def points_of(client: FleetClient, name: str) -> list[JobView]:
    """Return the points of a sweep by its bare name, in their order: of each the newest. None if it is no sweep."""
    found: dict[int, JobView] = {}
    after = ""
    while True:
        page = client.jobs(name=name, after=after, limit=_PAGE)
        for view in page.jobs:
            base, _, number = view.name.rpartition("/")
            if base == name and number.isascii() and number.isdigit():
                found.setdefault(int(number), view)
        after = page.next
        if not after:
            return [found[number] for number in sorted(found)]
