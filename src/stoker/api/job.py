"""`Job`, the handle that all faces use, and what a job's folder says: state, history and logs.

The folder is this machine's own, or an attempt's folder that was copied from a coordinator.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stoker.core.digests import Digest
from stoker.core.errors import NotFound
from stoker.core.events import Kinds
from stoker.core.frozen import changed, field_names, fresh, frozen
from stoker.core.job import JobSpec
from stoker.core.jsontext import loads
from stoker.core.text import safe_name
from stoker.engine.journal import older_generation, read_status
from stoker.host.writers import older_log
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.job_history import GrowingLines, NodeHistory, RunHistory, tell
from stoker.jobs.trials import Trial, TrialEnd, end_of, is_sweep, shared_nodes, trials_of_job
from stoker.store.records import Record

if TYPE_CHECKING:
    from stoker.api.app_parts import AppParts
    from stoker.core.job import JobSpec
    from stoker.engine.preview import NodeForecast
    from stoker.jobs.comparison import JobFacts, LookedAt, TrialFacts
    from stoker.jobs.trial_settings import Layers
    from stoker.protocol.view_messages import JobExplanation, JobView
    from stoker.store.results import ResultPart
    from stoker.store.trees import Heed

_MAKERS_NAMED = 3


class Job(ABC):
    """A job of this machine (`LocalJob`) or of a fleet (`FleetJob`), found by a name."""

    stage: str = ""
    """What followed the name: a stage, or a trial of a sweep."""

    @property
    def is_sweep(self) -> bool:
        """Whether the name means several jobs of a fleet. A sweep of this machine is one job."""
        return False

    @property
    @abstractmethod
    def ref(self) -> str:
        """The name of the job; that of a fleet's job as it was given."""

    @property
    @abstractmethod
    def spec(self) -> JobSpec:
        """What runs; of a fleet's sweep, that of the newest point."""

    @property
    @abstractmethod
    def view(self) -> AnyJobView:
        """The state of the job, or of the newest that has the name."""

    @abstractmethod
    def points(self) -> Sequence[AnyJobView]:
        """Return the state of each job that the name means: of a fleet's sweep, each point."""

    @abstractmethod
    def may_run(self) -> bool:
        """Return True unless all that the name means has ended."""

    @property
    @abstractmethod
    def result_folder(self) -> str:
        """The folder to which results are copied by default."""

    @abstractmethod
    def logs(
        self, stage: str = "", *, attempt: int | None = None, follow: bool = False
    ) -> Iterator[StageLogLine | str]:
        """Return what its stages printed, and as plain texts what else is to be known; with `follow` until it ends.

        Of a sweep, what each trial printed. `attempt` is the number of an attempt of a fleet's job (default: the last);
        raises `Usage` if the name means several points.
        """

    @abstractmethod
    def wait(self, limit_s: float | None, ended: Callable[[AnyJobView], None]) -> int:
        """Wait until each point has ended, calling `ended` for it; return how many had not when the limit came."""

    @abstractmethod
    def cancel(
        self,
        *,
        waits: bool = True,
        stopping: Callable[[Sequence[str]], None] = lambda _names: None,
        ended: Callable[[JobStop], None] = lambda _stop: None,
    ) -> Sequence[AnyJobView]:
        """Cancel every point that has not ended, or the trial that `stage` names; return them as they were.

        `stopping` is called with the names of those that run, before they are waited for; `ended` for each that has
        ended. Without `waits`, a fleet's job may still run on return; the request is durable. Raises `NotFound` or
        `InvalidTransition` if there is nothing to cancel.
        """

    @abstractmethod
    def explain(self, point: str = "") -> JobReasons:
        """Return why the job is in its state, and how its stages went; `point` is the id of a point of a sweep."""

    @abstractmethod
    def layers_of(self, key: str) -> tuple[Layers, list[str], set[str]]:
        """Return the layers behind the values of a key and what trials chose, all known paths, and which of them vary.

        Of all trials, or of the one that `stage` names.
        """

    @abstractmethod
    def results(self, stage: str = "") -> StoredResults:
        """Return what the job made, or one of its stages. Raises `NotFound` or `Refused` if there is nothing."""

    @abstractmethod
    def facts(self) -> JobFacts:
        """Return what is known of the job, for a comparison with others."""

    @abstractmethod
    def gather(self, looked: LookedAt = lambda _done, _total: None) -> tuple[JobFacts, list[TrialFacts]]:
        """Return what is known of the job, and of each of its trials, for a comparison.

        `looked` is called with the number of trials that were read, and of all.
        """

    @abstractmethod
    def receipts(self) -> Sequence[StoredReceipt]:
        """Return the receipt of the job, or of the trial that `stage` names; of a fleet's sweep, of each point.

        Raises `NotFound` with the reason if there is none.
        """

    @abstractmethod
    def remove(self) -> None:
        """Delete the journal and the logs of the job. Raises `InvalidTransition` if that can't be done."""


@frozen
class StageLogLine:
    """A line that a stage printed, or that was printed beside the stages."""

    node: str
    text: str
    heading: str = ""
    """Whose lines these are, where they are another's than the line before."""
    has_gap: bool = False
    """Whether a blank line belongs before the heading."""


@frozen
class JobStop:
    """The end of a job, or of one trial, that was to be cancelled."""

    name: str
    state: str
    """`cancelled`, or the state in which it ended before."""
    seconds: float
    label: str = ""
    machine: str = ""
    """Of a fleet's job: where it ran."""
    how: str = ""
    """Of a whole job of this machine: a `JobStopMethod`."""
    leaves_others: bool = False
    """Whether it is a trial of a job whose other trials continue."""
    body: Mapping[str, Any] = fresh(factory=dict)
    """As JSON shows it."""


@frozen
class JobReasons:
    """Why a job is in its state: its stages then and now, or its place in a fleet's queue."""

    view: AnyJobView
    stages: Sequence[NodeHistory] = ()
    """Of a fleet's job: of the last attempt, once the job has ended."""
    forecasts: Mapping[str, NodeForecast] = fresh(factory=dict)
    """What a run of a local job would do now, by node."""
    trouble: str = ""
    """Why there are no forecasts."""
    placement: JobExplanation | None = None
    """Of a fleet's job: the reason of every machine."""
    hint: str = ""
    """Of a fleet's job that failed: what this machine knows of the reason."""

    @property
    def verdict(self) -> str:
        """Why it is in its state, in one line."""
        return self.view.why if self.placement is None else self.placement.verdict

    @property
    def body(self) -> dict[str, Any]:
        """What JSON shows of it beside its stages."""
        return (
            {}
            if self.placement is None
            else {**self.placement.model_dump(mode="json"), "where": "fleet", "hint": self.hint}
        )

    def forecast_of(self, node: NodeHistory) -> NodeForecast | None:
        """Return the forecast of a node; instances of a fan-out share one."""
        return self.forecasts.get(node.node) or self.forecasts.get(node.node.partition("[")[0])


@frozen
class StoredResult:
    """A result of a job, or of one point of a sweep."""

    name: str
    fetch: Callable[[Heed], list[ResultPart]]
    """Fetches it into this machine's store; is called with the size of everything that arrives."""
    size_bytes: int | None = None
    """To be fetched; None: it is in the store."""
    folder: str = ""
    """Its own folder beside those of other points."""
    body: Mapping[str, Any] = fresh(factory=dict)
    """What JSON shows of it beside its name and files."""


@frozen
class StoredResults:
    """The results of a job, and which trials have none."""

    found: Iterable[StoredResult]
    """Each is looked up when it is taken. Raises `NotFound` if a result is not stored any more."""
    missing: Sequence[tuple[str, str, str]] = ()
    """Name, label and state of each trial without a result."""
    total: int = 1
    """Number of all trials."""


@frozen
class StoredReceipt:
    """The receipt of a job, or of one trial."""

    name: str
    data: bytes
    recorded_sha256: str = ""
    """Of a fleet's job: its digest as the coordinator recorded it with the result; empty if there is no result."""


@frozen
class LocalJobView:
    """The state of a job of this machine. Its fields are those of its JSON."""

    name: str
    attempt: str
    """The name of its folder."""
    job_id: str | None = None
    recipe: str = "?"
    state: str = "unreadable"
    why: str = ""
    started_s: float | None = None
    ended_s: float | None = None
    elapsed_s: float | None = None
    hits: int | None = None
    ran: int | None = None
    failed: int | None = None
    exit_code: int | None = None
    out: str | None = None
    fleet: Any = None
    """Of an attempt that this machine made for a fleet: which."""

    @classmethod
    def of(cls, folder: JobFolder) -> LocalJobView:
        """Read it from a job's folder. Raises `NotFound` if the folder can't be read."""
        attempt, end = folder.begun(), folder.ended()
        state, why = folder.state()
        error = end.error if end else None
        of_end = ("ended_s", "elapsed_s", "hits", "ran", "failed", "exit_code", "out")
        return cls(
            name=attempt.spec.name,
            attempt=attempt.id,
            job_id=attempt.spec.id,
            recipe=attempt.spec.recipe,
            state=str(state),
            why=why or (str(error.get("message", "")) if error else ""),
            started_s=attempt.started_s,
            **{name: getattr(end, name) for name in of_end if end},
            fleet=attempt.options.get("fleet"),
        )

    @classmethod
    def of_any(cls, folder: JobFolder) -> LocalJobView:
        """Read it from a job's folder; of one that can't be read, the state is `unreadable`."""
        try:
            return cls.of(folder)
        except NotFound as error:
            return cls(name="?", attempt=folder.attempt, why=error.hint or str(error))

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in field_names(LocalJobView)}


if TYPE_CHECKING:
    AnyJobView = JobView | LocalJobView
    """The state of a job of either side. `JobView` needs pydantic, which a plain install does not have."""


def view_as_json(view: AnyJobView) -> dict[str, Any]:
    """Return the state of a job as JSON shows it; `where` is `here` or `fleet`."""
    if isinstance(view, LocalJobView):
        return {**view.to_json(), "where": "here"}
    return {**view.model_dump(mode="json"), "where": "fleet"}


def job_story(folder: JobFolder) -> RunHistory:
    """Read what the journal says of a job; where its beginning is lost, the end still knows what has a result."""
    story, end = tell(read_status(folder.status_path)), folder.ended()
    for name, key in end.keys.items() if end is not None else ():
        node = story.nodes.setdefault(name, NodeHistory(node=name, ending="ran"))
        node.key = node.key or key
    return story


def nodes_named(
    nodes: Mapping[str, NodeHistory], target: str, job: str, trials: Sequence[Trial] = ()
) -> list[NodeHistory]:
    """Return the nodes that a name means: a node, a fan-out's instances, all of a stage, or those of one trial.

    `sweep/3` and `sweep/lr=0.1` are a trial, `sweep/3/train` one of its stages.
    """

    def is_meant(node: NodeHistory, *names: str) -> bool:
        return any(name in (node.node, node.stage) or node.node.startswith(f"{name}[") for name in names)

    whose, _, inner = target.partition("/")
    chosen = next((one for one in trials if is_sweep(trials) and whose in (str(one.spec.number), one.spec.label)), None)
    if chosen is None:
        found = [node for node in nodes.values() if is_meant(node, target)]
    else:
        own = [node for node in nodes.values() if node.node.partition("[")[0] in chosen.nodes.nodes]
        found = [node for node in own if not inner or is_meant(node, inner, f"{chosen.spec.number}.{inner}")]
        if not own:
            raise NotFound(
                f"trial {chosen.spec.number} of {job} ({chosen.spec.label}) has not run", hint=f"stoker explain {job}"
            )
    if not found:
        from stoker.core.text import did_you_mean

        known = ", ".join(list(nodes)[:12]) or "none yet"
        raise NotFound(f"job {job} has no stage {target!r}", hint=did_you_mean(target, nodes) or f"its stages: {known}")
    return found


def trial_ends(trials: Sequence[Trial], story: RunHistory, *, is_running: bool) -> list[TrialEnd]:
    """Return the state of each trial of a job; in a job that has ended, what did not begin will not."""
    shared = shared_nodes(trials)
    ends = [end_of(trial, story, shared) for trial in trials]
    left = {} if is_running else {"pending": "not run", "running": "stopped"}
    return [changed(end, state=left.get(end.state, end.state)) for end in ends]


class JobLogReader:
    """The logs of one job folder, read from where the last look ended: log files of stages, events of the others."""

    def __init__(self, folder: JobFolder, stage: str, parts: AppParts) -> None:
        self._folder = folder
        self._stage = stage
        self._parts = parts
        self._trials = trials_of_job(folder)
        self._story = RunHistory()
        self._journal = GrowingLines(older_generation(folder.status_path), folder.status_path)
        self._logs: dict[str, GrowingLines] = {}
        self._printed: set[str] = set()
        self._shown = ""

    def read_on(self) -> Iterator[StageLogLine]:
        """Return what was printed since the last look."""
        said = []
        for line in self._journal.fresh():
            try:
                event = loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                self._story.take(event)
                if event.get("kind") == Kinds.STAGE_LOG:
                    said.append((str(event.get("node")), str(event.get("text"))))
        wanted = {node.node for node in self._nodes()}
        for name, text in said:
            if name in wanted:
                yield self._line(name, text)
        for name in self._story.nodes:
            if name in wanted:
                for line in self._log(name).fresh():
                    yield self._line(name, line.decode(errors="backslashreplace"))

    def finish(self) -> Iterator[StageLogLine | str]:
        """Return last lines without an end, and why there is nothing if there is nothing."""
        for name, log in self._logs.items():
            for line in log.rest():
                yield self._line(name, line.decode(errors="backslashreplace"))
        if self._stage:
            for node in self._nodes():
                if node.node not in self._printed:
                    why = self._why_silent(node)
                    yield f"note: {node.node} printed nothing here{f': {why}' if why else ''}"
        elif not self._printed:
            yield "note: nothing was printed: no stage ran, or none had anything to say"
            made = list(dict.fromkeys(maker[0] for node in self._nodes() if (maker := self._maker_of(node))))
            if made:
                listed = ", ".join(f"stoker logs {attempt}" for attempt in made[:_MAKERS_NAMED])
                more = f" and {len(made) - _MAKERS_NAMED} more" if len(made) > _MAKERS_NAMED else ""
                yield f"note: what was known was made earlier: {listed}{more}"

    def _why_silent(self, node: NodeHistory) -> str:
        if node.ending != "hit":
            return node.message or ("" if node.ending == "ran" else node.ending)
        maker = self._maker_of(node)
        where = f"; where it did: stoker logs {'/'.join(maker)}" if maker else ""
        return f"its result was known, so it did not run{where}"

    def _maker_of(self, node: NodeHistory) -> tuple[str, str] | None:
        """Return the job and the stage that made a result which was known, if that job is still here."""
        if node.ending != "hit" or not node.key:
            return None
        record = self._parts.store.peek(Digest(node.key))
        body = record.body if isinstance(record, Record) else {}
        attempt, name = body.get("attempt"), body.get("node")
        if not isinstance(attempt, str) or not isinstance(name, str) or os.path.basename(attempt) != attempt:
            return None
        is_here = os.path.isdir(os.path.join(os.path.dirname(self._folder.path), attempt))
        return (attempt, name) if is_here else None

    def _nodes(self) -> list[NodeHistory]:
        if not self._stage:
            return list(self._story.nodes.values())
        return nodes_named(self._story.nodes, self._stage, self._folder.spec().name, self._trials)

    def _log(self, name: str) -> GrowingLines:
        if name not in self._logs:
            path = os.path.join(self._folder.log_folder, f"{safe_name(name)}.log")
            self._logs[name] = GrowingLines(older_log(path), path)
        return self._logs[name]

    @cached_property
    def _titles(self) -> dict[str, str]:
        return {node: one.spec.label for one in self._trials for node in one.nodes.nodes if one.spec.label}

    def _line(self, name: str, text: str) -> StageLogLine:
        self._printed.add(name)
        if self._stage or self._shown == name:
            return StageLogLine(node=name, text=text)
        before, self._shown = self._shown, name
        title = f" ({self._titles[name]})" if name[:1].isdigit() and name in self._titles else ""
        return StageLogLine(node=name, text=text, heading=f"{name}{title}", has_gap=bool(before))
