"""Trials: the points of a job's sweep, each with its arguments and its part of the job's plan. One, if nothing varies.

They are written (`trials.jsonl`) before the first one starts, so that the request is known of a killed job too. The
end of each is read from the journal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from stoker.core.digests import Digest
from stoker.core.errors import NotFound
from stoker.core.frozen import changed, fresh, frozen
from stoker.core.job import JobSpec, TrialNodes
from stoker.core.jsontext import dumps, loads
from stoker.core.retry import FailureCause
from stoker.core.text import lazy_pattern
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.job_history import NodeHistory, RunHistory
from stoker.store.records import Record

if TYPE_CHECKING:
    from stoker.config.sweep import SweepPoint
    from stoker.engine.plan import Plan
    from stoker.store.local_store import LocalStore


TRIALS = "trials.jsonl"
_GOOD = ("ran", "hit")


@frozen
class Trial:
    """One point of a sweep: its job, and its nodes of the plan that all trials share."""

    spec: JobSpec
    """Numbered from 1: `last/3` is the third. Its label names its folder; the label is empty if nothing varies."""
    nodes: TrialNodes
    measured_on: Mapping[str, Any] = fresh(factory=dict)
    """Those of its arguments that decide what its metrics are taken from."""

    def to_json(self) -> dict[str, Any]:
        return {
            "v": 1,
            "n": self.spec.number,
            "label": self.spec.label,
            "point": self.spec.point,
            "job_id": self.spec.id,
            "final": self.nodes.final,
            "keep": list(self.nodes.keep),
            "nodes": list(self.nodes.nodes),
            "args": self.spec.args,
            **({"measured_on": dict(self.measured_on)} if self.measured_on else {}),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], job: JobSpec) -> Trial:
        """Read a trial of a job back. Raises `KeyError`, `TypeError` or `ValueError` if it is not one."""
        nodes = TrialNodes(
            final=str(raw["final"]),
            keep=tuple(map(str, raw["keep"])),
            nodes=tuple(map(str, raw["nodes"])),
        )
        spec = changed(
            job,
            id=str(raw["job_id"]),
            number=int(raw["n"]),
            label=str(raw["label"]),
            point=dict(raw["point"]),
            args=dict(raw["args"]),
        )
        return cls(spec=spec, nodes=nodes, measured_on=dict(raw.get("measured_on", {})))


def varied_by(point: SweepPoint, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what varies at a point of a sweep, by path; of a group, the option that was chosen."""
    varied = {}
    for path, choice in point.choices:
        value: Any = values
        for step in path.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        varied[path] = choice.text if value is None or isinstance(value, Mapping) else value
    return varied


def write_trials(trials: Iterable[Trial]) -> bytes:
    """Return trials as lines."""
    return "".join(f"{dumps(trial.to_json())}\n" for trial in trials).encode()


def read_trials(folder: JobFolder) -> list[Trial]:
    """Return the trials in a job's folder; none if it was built from a plan file. Skips lines that are no trial."""
    lines = folder.paper(TRIALS).splitlines()
    if not lines:
        return []
    job, trials = folder.spec(), []
    for line in lines:
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            trials.append(Trial.from_json(loads(line), job))
    return trials


def trials_of_job(folder: JobFolder) -> list[Trial]:
    """Return a job's trials; a single one for a job that was built from a plan file."""
    trials = read_trials(folder)
    if trials:
        return trials
    return [Trial(spec=changed(folder.spec(), number=1), nodes=TrialNodes(final="", keep=(), nodes=()))]


@frozen
class TrialEnd:
    """The state of a trial."""

    trial: Trial
    state: str
    """completed, failed, cancelled, running or pending."""
    is_kept: bool = False
    """Its result was known: nothing of it ran in this job."""
    seconds: float | None = None
    """Run time of its own stages; shared stages are not counted."""
    cause: str = ""
    message: str = ""
    hint: str = ""
    metrics: Mapping[str, float] = fresh(factory=dict)
    """The last value of each."""
    peak_bytes: int | None = None
    """Of the machine's memory."""
    peak_gpu_bytes: int | None = None
    """On the fullest device."""
    keys: Mapping[str, str] = fresh(factory=dict)
    """Of its result and of what its plan keeps, by node."""
    digest: str = ""
    """Of its result."""
    out: str | None = None
    """The folder of its result as plain files."""
    known: tuple[str, ...] = ()
    """Keys of its nodes whose results were known: their records have the metrics."""


def end_of(trial: Trial, story: RunHistory, shared: frozenset[str]) -> TrialEnd:
    """Return the state of a trial, from its nodes in the journal. `shared` are nodes of several trials."""
    nodes = [story.nodes[name] for name in trial.nodes.nodes if name in story.nodes]
    # A trial that shares all it has with others is none the less itself.
    is_all_shared = shared.issuperset(trial.nodes.nodes)
    own = [node for node in nodes if is_all_shared or node.node not in shared]
    final = story.nodes.get(trial.nodes.final)
    failed = next((node for node in nodes if node.ending in ("failed", "diverged")), None)
    seconds = [node.seconds for node in own if node.seconds is not None]
    peaks = [node.peak_rss_bytes for node in own if node.peak_rss_bytes is not None]
    gpu_peaks = [node.peak_gpu_bytes for node in own if node.peak_gpu_bytes is not None]
    ends = [story.nodes.get(name) for name in (trial.nodes.final, *trial.nodes.keep)]
    is_whole = all(node is not None and node.ending in _GOOD for node in ends)
    state = "completed" if is_whole else "failed" if failed is not None else _unfinished(own)
    metrics: dict[str, float] = {}
    for node in nodes:
        metrics.update(node.metrics)
    return TrialEnd(
        trial=trial,
        state=state,
        is_kept=is_whole and all(node.ending == "hit" for node in own),
        seconds=sum(seconds) if seconds else None,
        cause=failed.cause if failed else "",
        message=failed.message if failed else "",
        hint=failed.hint if failed else "",
        metrics=metrics,
        peak_bytes=max(peaks, default=None),
        peak_gpu_bytes=max(gpu_peaks, default=None),
        keys=_keys(trial, story) if is_whole else {},
        digest=final.digest if is_whole and final is not None else "",
        known=tuple(node.key for node in nodes if node.ending == "hit" and node.key),
    )


def _keys(trial: Trial, story: RunHistory) -> dict[str, str]:
    """Return the keys of what a trial made, those of a fan-out by instance."""
    wanted = (trial.nodes.final, *trial.nodes.keep)
    found: dict[str, str] = {}
    for name in wanted:
        node = story.nodes.get(name)
        instances = [f"{name}[{index}]" for index in range(node.instances or 0)] if node else []
        for one in instances or [name]:
            instance = story.nodes.get(one)
            if instance is not None and instance.key and instance.ending in _GOOD:
                found[one] = instance.key
    return found


class KnownMetrics:
    """Metrics from the records of known results. Trials share nodes, so each record is read once."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self._read: dict[str, Mapping[str, float]] = {}

    def added_to(self, end: TrialEnd) -> TrialEnd:
        """Add the metrics of those of a trial's nodes that did not run."""
        metrics: dict[str, float] = {}
        for key in end.known:
            metrics.update(self._of(key))
        return changed(end, metrics={**metrics, **end.metrics}) if metrics else end

    def _of(self, key: str) -> Mapping[str, float]:
        if key not in self._read:
            record = self._store.peek(Digest(key))
            kept = record.body.get("metrics") if isinstance(record, Record) else None
            self._read[key] = kept if isinstance(kept, dict) else {}
        return self._read[key]


def trial_numbered(trials: Sequence[Trial], text: str, job: str) -> Trial:
    """Return the trial that `NAME/3` means, or `NAME/LABEL`; `NotFound` if there is none."""
    found = next((trial for trial in trials if text in (str(trial.spec.number), trial.spec.label)), None)
    if found is None or not is_sweep(trials):
        hint = f"it has {len(trials)}; such as {job}/1" if is_sweep(trials) else "it is no sweep"
        raise NotFound(f"job {job} has no trial {text!r}", hint=hint)
    return found


def is_sweep(trials: Sequence[Trial]) -> bool:
    """Return True if trials are points of a sweep, which may have only one."""
    return len(trials) > 1 or any(trial.spec.label for trial in trials)


def shared_nodes(trials: Iterable[Trial]) -> frozenset[str]:
    """Return the nodes that belong to more than one trial."""
    seen: set[str] = set()
    shared: set[str] = set()
    for trial in trials:
        shared.update(seen.intersection(trial.nodes.nodes))
        seen.update(trial.nodes.nodes)
    return frozenset(shared)


def _unfinished(own: list[NodeHistory]) -> str:
    """Return the state of a trial that neither has its result nor failed.

    What never began is pending, also after the whole run was cancelled; a trial that was cancelled by itself is
    cancelled. While one of its nodes still runs, so does the trial.
    """
    if any(node.ending == "running" for node in own):
        return "running"
    cancelled = [node for node in own if node.ending == "cancelled"]
    if not any(node.attempts for node in own) and not any(node.cause for node in cancelled):
        return "pending"
    return "cancelled" if cancelled else "running"


def nodes_to_cancel(trials: Sequence[Trial], numbers: Collection[int]) -> frozenset[str]:
    """Return the nodes that only these trials need: those that stop if the trials are cancelled."""
    unwanted: set[str] = set()
    needed: set[str] = set()
    for trial in trials:
        (unwanted if trial.spec.number in numbers else needed).update(trial.nodes.nodes)
    return frozenset(unwanted - needed)


# When to give up a sweep: if all trials so far failed in the same way, the rest will too.

ENOUGH = 3
"""So many failures of one kind, and nothing that went well, are no accident."""

# Not the number that a program ended with, which is the failure itself.
_VARIABLE = lazy_pattern(r"(?<!exit )(?<!signal )(?:0x[0-9a-fA-F]+|\b\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")


@frozen
class SweepAbort:
    """Stop the sweep."""

    why: str


def decide_give_up(ends: Sequence[TrialEnd], left: int) -> SweepAbort | None:
    """Decide from the trials that have ended whether to run the rest.

    Kept results do not count. Neither do trials that diverged: that depends on their own values.
    """
    failed = [end for end in ends if end.state == "failed"]
    if not left or len(failed) < ENOUGH or any(end.state == "completed" and not end.is_kept for end in ends):
        return None
    if any(end.cause == FailureCause.DIVERGED for end in failed):
        return None
    kinds = {(end.cause, _kind_of(end.message)) for end in failed}
    if len(kinds) > 1:
        return None
    return SweepAbort(why=f"all {len(failed)} trials that ran failed in the same way: {failed[0].message}")


def _kind_of(message: str) -> str:
    """Return a message without the numbers in it, which tell trials apart but not failures."""
    return _VARIABLE.sub("#", message)


# What trials were measured on. Metrics over different data are not comparable.


class MeasuredTrial(Protocol):
    """A trial with metrics."""

    @property
    def n(self) -> int:
        """Its number."""

    @property
    def measured_on(self) -> Mapping[str, Any]:
        """The arguments that decided what its metrics were taken from."""


T = TypeVar("T", bound=MeasuredTrial)


@frozen
class ComparableTrials(Generic[T]):
    """Trials that may be compared with each other."""

    told_by: Mapping[str, Any]
    """The arguments that distinguish it from other groups; empty if there is no other."""
    trials: tuple[T, ...]


def on_grounds(trials: Sequence[T], measured: Sequence[T]) -> list[ComparableTrials[T]]:
    """Group trials that were measured on the same data, in their order; the group of the lowest number first.

    Only those that were `measured` define the groups: a trial without a value is not compared. A group without a
    measured trial comes last.
    """
    names = dict.fromkeys(name for trial in measured for name in trial.measured_on)
    differing = [name for name in names if len({_spelt(trial, [name]) for trial in measured}) > 1]
    found: dict[str, list[T]] = {}
    for trial in trials:
        found.setdefault(_spelt(trial, differing), []).append(trial)
    numbers = {trial.n for trial in measured}

    def place(group: Sequence[T]) -> tuple[bool, int]:
        own = [trial.n for trial in group]
        return numbers.isdisjoint(own), min(own)

    groups = sorted(found.values(), key=place)
    return [
        ComparableTrials(told_by={name: group[0].measured_on.get(name) for name in differing}, trials=tuple(group))
        for group in groups
    ]


def settled(measured_on: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """Return the arguments that metrics depend on; for one that is not set, the value of the plan's stages.

    So a trial that sets a default is comparable with one that leaves it out.
    """
    return {name: _meant(name, plan) if value is None else value for name, value in measured_on.items()}


def _meant(name: str, plan: Plan) -> Any:
    given = {dumps(node.args[name]): node.args[name] for node in plan.nodes if name in node.args}
    return next(iter(given.values())) if len(given) == 1 else None


def _spelt(trial: MeasuredTrial, names: Iterable[str]) -> str:
    return dumps([trial.measured_on.get(name) for name in names])
