"""The trials of a job beside each other: what varies, what came out, best first. Plain data, for any face to show."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from stoker.config.sweep import label_of
from stoker.core.digests import Digest
from stoker.core.errors import StokerError
from stoker.core.frozen import changed, fresh, frozen
from stoker.core.job import JobState, TrialNodes
from stoker.core.jsontext import dumps, loads
from stoker.core.text import safe_name
from stoker.engine.journal import read_status
from stoker.engine.metrics.curves import Point, curves
from stoker.engine.metrics.metric_names import Direction, preference
from stoker.engine.metrics.metrics_file import SUFFIX
from stoker.engine.ranking import Measure, best_first, measure_for
from stoker.host.durable import open_regular
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.job_history import NodeHistory, RunHistory, tell
from stoker.jobs.program import RECIPE
from stoker.jobs.trial_settings import JobSetting, is_same_value, masked, own_values, settings_of
from stoker.jobs.trials import ComparableTrials, Trial, TrialEnd, end_of, on_grounds, read_trials, shared_nodes
from stoker.store.local_store import LocalStore
from stoker.store.records import Record

_LARGEST_BYTES = 256 * 1024 * 1024
# What a trial is called that has not ended though its job has.
_LEFT = {"pending": "not run", "running": "stopped"}


LookedAt = Callable[[int, int], None]
"""Is called with the number of trials that were read, and of all."""


@frozen
class TrialFacts:
    """One trial with all that is known of it."""

    end: TrialEnd
    curve_files: tuple[str, ...]


class JobFacts:
    """Everything known of one job by its folder and the store: states, metrics and curves of its trials; read once.

    A result that was known before has its metrics in its record, and its curves in the folder of the job that made it.
    """

    def __init__(self, folder: JobFolder, store: LocalStore | None) -> None:
        """Without a store, as at a coordinator, nothing is known of results of other jobs."""
        self.folder = folder
        self.attempt = folder.begun()
        self.spec = self.attempt.spec
        self.story = _whole_story(folder)
        self._store = store
        self._records: dict[str, Record | None] = {}
        self._listed: dict[str, frozenset[str]] = {}
        self._config = _object_in(os.path.join(folder.path, "config.json"))

    def trials(self, looked: LookedAt = lambda _done, _total: None) -> list[TrialFacts]:
        """Return every trial in the order of the sweep; a job without one is a single trial."""
        trials = self.wanted()
        shared = shared_nodes(trials)
        is_running = self.folder.state()[0] is JobState.RUNNING
        found = []
        for trial in trials:
            found.append(self._gathered(trial, shared, is_running=is_running))
            looked(len(found), len(trials))
        return found

    def wanted(self) -> list[Trial]:
        """Return the trials as they were wanted."""
        return read_trials(self.folder) or [self._only_trial()]

    def settings(self, trial: Trial | None = None) -> dict[str, JobSetting]:
        """Return every parameter by dotted name: as the job has it, or as one of its trials does."""
        return settings_of(self.spec, self._config, trial)

    def program_files(self, trial: Trial) -> dict[str, str]:
        """Return the digest of each file of its program: as it was ordered, or edited when this trial began."""
        ordered = {str(name): str(digest) for name, digest in _mapping(self._config.get("code")).items()}
        edited = self.story.edited.get(trial.spec.number, {})
        return {**ordered, **{str(name): str(digest) or "gone" for name, digest in edited.items()}}

    def records(self, trial: Trial | None = None) -> dict[str, Record]:
        """Return the record of each node that has a result, of the whole job or of one trial."""
        names = list(self.story.nodes) if trial is None else list(trial.nodes.nodes)
        found = {name: self._record(self.story.nodes[name]) for name in names if name in self.story.nodes}
        return {name: record for name, record in found.items() if record is not None}

    def known_curve_files(self) -> dict[str, list[str]]:
        """Return the metrics files of stages whose results were known, by stage: of the runs that made them."""
        found = {}
        for node in self.story.nodes.values():
            body = _body(self._record(node)) if node.ending == "hit" else {}
            if body:
                made_by, made_as = str(body.get("attempt", "")), str(body.get("node", node.node))
                found[safe_name(node.node)] = self._curve_files(made_by, made_as)
        return {stage: paths for stage, paths in found.items() if paths}

    def _only_trial(self) -> Trial:
        ended = self.folder.ended()
        names = tuple(self.story.nodes)
        final = ended.parts[0] if ended is not None and ended.parts else names[-1] if names else ""
        nodes = TrialNodes(final=final, keep=(), nodes=names)
        return Trial(spec=changed(self.spec, number=1), nodes=nodes)

    def _gathered(self, trial: Trial, shared: frozenset[str], *, is_running: bool) -> TrialFacts:
        end = end_of(trial, self.story, shared)
        metrics: dict[str, float] = {}
        files: dict[str, None] = {}
        seconds = [] if end.seconds is None else [end.seconds]
        peaks = [] if end.peak_bytes is None else [end.peak_bytes]
        gpu_peaks = [] if end.peak_gpu_bytes is None else [end.peak_gpu_bytes]
        for node in (self.story.nodes[name] for name in trial.nodes.nodes if name in self.story.nodes):
            is_known = node.ending == "hit" or (node.ending == "ran" and not node.metrics)
            body = _body(self._record(node)) if is_known else {}
            known = node.metrics or body.get("metrics")
            metrics |= {name: float(value) for name, value in _mapping(known).items() if type(value) in (int, float)}
            made_by, made_as = str(body.get("attempt", self.folder.attempt)), str(body.get("node", node.node))
            files |= dict.fromkeys(self._curve_files(made_by, made_as))
            if node.node not in shared and node.ending == "hit":
                seconds += [body["seconds"]] if type(body.get("seconds")) in (int, float) else []
                peaks += [body["peak_rss_bytes"]] if type(body.get("peak_rss_bytes")) is int else []
                gpu_peaks += [body["peak_gpu_bytes"]] if type(body.get("peak_gpu_bytes")) is int else []
        end = changed(
            end,
            state=end.state if is_running else _LEFT.get(end.state, end.state),
            metrics=metrics,
            # Also of what was known before: it says what a trial costs, not what this job spent.
            seconds=sum(seconds) if seconds else None,
            peak_bytes=max(peaks, default=None),
            peak_gpu_bytes=max(gpu_peaks, default=None),
        )
        return TrialFacts(end=end, curve_files=tuple(files))

    def _curve_files(self, attempt: str, node: str) -> list[str]:
        if os.path.basename(attempt) != attempt:
            return []
        folder = os.path.join(os.path.dirname(self.folder.path), attempt, "metrics")
        if folder not in self._listed:
            names: list[str] = []
            with suppress(OSError):
                names = os.listdir(folder)
            self._listed[folder] = frozenset(names)
        stem = safe_name(node)
        known = (f"{stem}{SUFFIX}", f"{stem}.program{SUFFIX}")
        return [os.path.join(folder, name) for name in known if name in self._listed[folder]]

    def _record(self, node: NodeHistory) -> Record | None:
        if node.node not in self._records:
            self._records[node.node] = None
            if self._store is not None and node.key and node.ending in ("hit", "ran"):
                with suppress(StokerError):
                    found = self._store.peek(Digest(node.key))
                    self._records[node.node] = found if isinstance(found, Record) else None
        return self._records[node.node]


def _whole_story(folder: JobFolder) -> RunHistory:
    """Read the journal. If its beginning is lost, the results in `end.json` count."""
    story = tell(read_status(folder.status_path))
    ended = folder.ended()
    for name, key in ended.keys.items() if ended is not None else ():
        node = story.nodes.setdefault(name, NodeHistory(node=name, ending="hit"))
        node.key = node.key or key
    return story


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _body(record: Record | None) -> Mapping[str, Any]:
    return record.body if record is not None else {}


def _object_in(path: str) -> dict[str, Any]:
    try:
        raw = loads(_bytes_of(path))
    except ValueError:
        return {}
    return raw if isinstance(raw, dict) else {}


def _bytes_of(path: str) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(_LARGEST_BYTES)
    except OSError:
        return b""


CURVES_DRAWN = 24
"""How many trials' curves are read for a picture: more of them is a hedge, not a picture."""
_CURVE_POINTS = 600
_CURVE_METRICS = 3
_FAILED = frozenset({"failed", "cancelled"})


COSTS = ("seconds", "peak_bytes", "peak_gpu_bytes")
"""What is measured of every trial, whatever it reports."""


@frozen
class TrialRow:
    """One trial as it stands in a comparison."""

    n: int
    label: str
    state: str
    is_kept: bool
    params: Mapping[str, Any]
    """The varying parameters, each with its value here."""
    metrics: Mapping[str, float]
    seconds: float | None
    peak_bytes: int | None
    peak_gpu_bytes: int | None
    """On the fullest device."""
    message: str
    curve_files: tuple[str, ...] = ()
    is_named: bool = False
    """True if the label is a name, not made from what varies."""
    measured_on: Mapping[str, Any] = fresh(factory=dict)
    """The arguments that decided what its metrics were taken from."""

    @property
    def costs(self) -> dict[str, float | None]:
        """What it took, by the names of `COSTS`."""
        return {"seconds": self.seconds, "peak_bytes": self.peak_bytes, "peak_gpu_bytes": self.peak_gpu_bytes}

    @property
    def is_done(self) -> bool:
        return self.state == "completed"

    @property
    def is_failed(self) -> bool:
        return self.state in _FAILED

    def to_json(self) -> dict[str, Any]:
        return {
            "trial": self.n,
            "label": self.label,
            "state": self.state,
            "is_kept": self.is_kept,
            "params": dict(self.params),
            "metrics": dict(self.metrics),
            **self.costs,
            "message": self.message,
            "measured_on": dict(self.measured_on),
        }


@frozen
class Comparison:
    """All trials of a job, by what they are ranked by."""

    job: str
    attempt: str
    recipe: str
    rows: tuple[TrialRow, ...]
    varying: tuple[str, ...]
    """Parameters with more than one value, in the order of the sweep."""
    fixed: Mapping[str, Any]
    """Parameters that are the same in every trial."""
    metrics: tuple[str, ...]
    """Every metric that some trial has: what is ranked by first, then by how much it is likely to matter."""
    measure: Measure | None

    @property
    def grounds(self) -> list[ComparableTrials[TrialRow]]:
        """Those that may be compared with each other, best first."""
        return on_grounds(self.rows, [row for row in self.rows if self.is_ranked(row)])

    @property
    def places(self) -> dict[int, int]:
        """By a trial's number its place, from 1, best first, among those that it may be compared with."""
        return {row.n: place for ground in self.grounds for place, row in enumerate(ground.trials, 1)}

    @property
    def best(self) -> TrialRow | None:
        """The first one, if it has a value to be best by and all that have one were measured on the same."""
        grounds = self.grounds
        return self.best_on(grounds[0]) if len(grounds) == 1 else None

    @property
    def speaker(self) -> TrialRow | None:
        """The best trial, or the first if there is no best of all."""
        return self.best or min(self.rows, key=lambda row: row.n, default=None)

    def best_on(self, ground: ComparableTrials[TrialRow]) -> TrialRow | None:
        """Return the first of those that may be compared with each other, if it has a value to be best by."""
        first = ground.trials[0]
        return first if self.is_ranked(first) else None

    def is_ranked(self, row: TrialRow) -> bool:
        """Return True if a trial did not fail and has a value of what is ranked by."""
        return self.measure is not None and self.measure.metric in row.metrics and not row.is_failed


@frozen
class Curves:
    """Curves of one metric over each other, best trial first."""

    metric: str
    lines: tuple[tuple[TrialRow, tuple[Point, ...]], ...]


def compare_trials(  # noqa: PLR0913 - whose trials they are, and what was asked of them
    trials: Sequence[TrialFacts],
    *,
    job: str,
    attempt: str,
    recipe: str,
    values: Mapping[str, Any],
    by: str = "",
    direction: Direction | None = None,
) -> Comparison:
    """Put trials beside each other. `values` are the job's parameters by dotted name, as they stand without a sweep."""
    points = [one.end.trial.spec.point for one in trials]
    swept = list(dict.fromkeys(name for point in points for name in point))
    varying = tuple(name for name in swept if len({_spelt(point.get(name, values.get(name))) for point in points}) > 1)
    rows = [_row(one, varying, values) for one in trials]
    measure = measure_for(rows, values, by=by, direction=direction)
    names = dict.fromkeys(name for row in rows for name in row.metrics)
    first = [measure.metric] if measure is not None else []
    settled = {name: points[0].get(name, values.get(name)) for name in swept if name not in varying}
    fixed = {**_the_same(recipe, [one.end.trial for one in trials], values), **settled}
    return Comparison(
        job=job,
        attempt=attempt,
        recipe=recipe,
        rows=tuple(best_first(rows, measure)),
        varying=varying,
        fixed={name: masked(recipe, name, value) for name, value in fixed.items() if name not in varying},
        metrics=tuple(dict.fromkeys([*first, *sorted(names, key=preference)])),
        measure=measure,
    )


def read_curves(comparison: Comparison) -> list[Curves]:
    """Read the curves worth a picture: of what is ranked by, then of losses, for the best trials that have any."""
    rows = [row for row in comparison.rows if row.curve_files][:CURVES_DRAWN]
    names = _curve_names(comparison, rows)
    found: dict[str, list[tuple[TrialRow, tuple[Point, ...]]]] = {name: [] for name in names}
    for row in rows if names else ():
        for name, points in curves(row.curve_files, points=_CURVE_POINTS, names=names).items():
            if len(points) > 1:
                found[name].append((row, tuple(points)))
    return [Curves(metric=name, lines=tuple(lines)) for name, lines in found.items() if lines]


def _curve_names(comparison: Comparison, rows: Sequence[TrialRow]) -> list[str]:
    """Choose by the first trials that have curves at all; a trial that died at once has none."""
    names: list[str] = []
    for row in rows:
        names = [name for name, points in curves(row.curve_files, points=4).items() if len(points) > 1]
        if names:
            break
    first = comparison.measure.metric if comparison.measure is not None else ""
    names.sort(key=lambda name: (name != first, "loss" not in name.lower(), preference(name)))
    return names[:_CURVE_METRICS]


def _the_same(recipe: str, trials: Sequence[Trial], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what every trial has with one value. What a group's option brings may be in some of them only."""
    owns = [own_values(recipe, trial) for trial in trials]
    found = {}
    for name in dict.fromkeys([*values, *(owns[0] if recipe == RECIPE and owns else ())]):
        held = [own[name] for own in owns if name in own]
        if not held and name in values:
            # What only the job says, such as a program's words, is the same for all.
            found[name] = values[name]
        elif len(held) == len(owns) and all(is_same_value(held[0], value) for value in held):
            found[name] = held[0]
    return found


def _spelt(value: Any) -> str:
    # 1, 1.0 and true are three values, which they are not to a set.
    return f"{type(value).__name__} {dumps(value)}"


def _row(one: TrialFacts, varying: Sequence[str], values: Mapping[str, Any]) -> TrialRow:
    end, trial = one.end, one.end.trial
    return TrialRow(
        n=trial.spec.number,
        label=trial.spec.label,
        state=end.state,
        is_kept=end.is_kept,
        params={name: trial.spec.point.get(name, values.get(name)) for name in varying},
        metrics=end.metrics,
        seconds=end.seconds,
        peak_bytes=end.peak_bytes,
        peak_gpu_bytes=end.peak_gpu_bytes,
        message=end.message,
        curve_files=one.curve_files,
        is_named=trial.spec.label != label_of(trial.spec.point.items()),
        measured_on=trial.measured_on,
    )
