"""The jobs of this machine as rows, kept in memory and brought up to date by looking at their folders.

A job that has ended is read once. Of one that runs, a look costs some calls of `stat`; its journal is read on from
where the last look ended. Each change of a row has a number, so that screens ask for what changed after one.
"""

from __future__ import annotations

import math
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from stoker.api.job import LocalJobView
from stoker.api.monitor import JobQuery
from stoker.core.errors import BadInput
from stoker.core.frozen import frozen
from stoker.core.job import JobState
from stoker.core.text import counted, did_you_mean
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.job_history import HistoryCache, NodeHistory, RunHistory
from stoker.jobs.trials import is_sweep, read_trials
from stoker.protocol.view_messages import JobPage, JobView

_MOST_GONE = 4096
MOST_CHANGED = 4096
"""Rows in one answer: their journals are read."""
_MOST_METRICS = 50
_LONGEST_WHY = 2000
_UNFINISHED = frozenset({"running", "waiting"})
_STATES = [str(state) for state in JobState]
_Stamp = tuple[int, int, bool]
"""Size and time of the journal, and whether the job has ended."""


@frozen
class LocalRow:
    """One job of this machine."""

    view: JobView
    seq: int
    """Number of its last change."""
    order: tuple[str, int]
    """When it began: the second, and within it the time of its file."""
    stamp: _Stamp
    is_detailed: bool = False
    """Its steps and metrics were read."""


@frozen
class LocalChanges:
    """What changed after a number."""

    seq: int
    rows: tuple[JobView, ...] = ()
    gone: tuple[str, ...] = ()
    is_lost: bool = False
    """It is too long ago to be known."""


class LocalJobTable:
    """All job folders below one folder. Thread-safe."""

    def __init__(self, runs: str, *, machine: str, histories: HistoryCache) -> None:
        self._runs = runs
        self._machine = machine
        self._histories = histories
        self._guard = threading.RLock()
        self._rows: dict[str, LocalRow] = {}
        self._live: set[str] = set()
        self._finals: dict[str, tuple[str, ...]] = {}
        """Of jobs that run: see `_finals_of`."""
        self._unread: set[str] = set()
        """Folders that hold no job, or not yet."""
        self._gone: deque[tuple[int, str]] = deque(maxlen=_MOST_GONE)
        self._gone_before = 0
        self._seq = 0

    @property
    def seq(self) -> int:
        """Number of the last change."""
        return self._seq

    def look(self) -> None:
        """Bring the rows up to date."""
        with self._guard:
            try:
                names = set(os.listdir(self._runs))
            except OSError:
                names = set()
            for name in self._rows.keys() - names:
                self._drop(name)
            self._unread &= names
            for name in sorted(names - self._rows.keys() - self._unread):
                self._read(name)
            for name in list(self._unread):
                if os.path.exists(os.path.join(self._runs, name, "job.json")):
                    self._read(name)
            for name in list(self._live):
                self._read_again(name)

    def rows(self) -> list[JobView]:
        """Return all rows, newest first."""
        with self._guard:
            return [row.view for row in sorted(self._rows.values(), key=attrgetter("order"), reverse=True)]

    def detailed(self, views: Iterable[JobView]) -> tuple[JobView, ...]:
        """Return rows with their steps and metrics."""
        with self._guard:
            return tuple(self._detailed(view) for view in views)

    def counts(self) -> dict[str, int]:
        """Return the number of jobs by state."""
        with self._guard:
            return dict(Counter(row.view.state for row in self._rows.values()))

    def folder(self, ref: str) -> JobFolder | None:
        """Return the folder of a job by its id, or of the newest of a name; None if there is neither."""
        with self._guard:
            if ref in self._rows:
                return JobFolder(os.path.join(self._runs, ref))
            named = [row for row in self._rows.values() if row.view.name == ref]
        newest = max(named, key=attrgetter("order"), default=None)
        return None if newest is None else JobFolder(os.path.join(self._runs, newest.view.id))

    def earlier(self, folder: JobFolder) -> JobFolder | None:
        """Return the run of the same name before one."""
        with self._guard:
            row = self._rows.get(folder.attempt)
            if row is None:
                return None
            named = [one for one in self._rows.values() if one.view.name == row.view.name and one.order < row.order]
        newest = max(named, key=attrgetter("order"), default=None)
        return None if newest is None else JobFolder(os.path.join(self._runs, newest.view.id))

    def changes(self, after: int) -> LocalChanges:
        """Return what changed after a number."""
        with self._guard:
            if after > self._seq or after < self._gone_before:
                return LocalChanges(seq=self._seq, is_lost=True)
            if after == self._seq:
                return LocalChanges(seq=self._seq)
            changed = [row.view for row in self._rows.values() if row.seq > after]
            if len(changed) > MOST_CHANGED:
                return LocalChanges(seq=self._seq, is_lost=True)
            gone = tuple(name for seq, name in self._gone if seq > after and name not in self._rows)
            return LocalChanges(seq=self._seq, rows=self.detailed(changed), gone=gone)

    def page(self, query: JobQuery) -> JobPage:
        """Return a page of the jobs that match, in an order. Raises `BadInput` for an unknown one."""
        matching = [view for view in self.rows() if _matches(view, query)]
        states = set(filter(None, query.state.split(",")))
        found = in_order([view for view in matching if not states or view.state in states], query.sort)
        start = _start(found, query.after)
        shown = found[start : start + max(1, query.limit)]
        end = start + len(shown)
        return JobPage(
            jobs=self.detailed(shown),
            next=f"{end}:{shown[-1].id}" if shown and end < len(found) else "",
            total=len(found),
            counts=dict(Counter(view.state for view in matching)),
        )

    def _read(self, name: str) -> None:
        folder = JobFolder(os.path.join(self._runs, name))
        try:
            written_ns = os.stat(os.path.join(folder.path, "job.json")).st_mtime_ns
        except OSError:
            self._unread.add(name)
            return
        self._unread.discard(name)
        stamp = _stamp(folder)
        view = self._view(folder)
        self._put(name, LocalRow(view=view, seq=0, order=(name[:_SECOND], written_ns), stamp=stamp))

    def _read_again(self, name: str) -> None:
        row, folder = self._rows[name], JobFolder(os.path.join(self._runs, name))
        stamp = _stamp(folder)
        # A process that was killed changes nothing in its folder.
        if stamp == row.stamp and folder.may_be_running():
            return
        self._put(name, LocalRow(view=self._view(folder), seq=0, order=row.order, stamp=stamp))

    def _put(self, name: str, row: LocalRow) -> None:
        self._seq += 1
        self._rows[name] = LocalRow(view=row.view, seq=self._seq, order=row.order, stamp=row.stamp)
        if row.view.state == JobState.RUNNING:
            self._live.add(name)
        else:
            self._forget_live(name)

    def _forget_live(self, name: str) -> None:
        self._live.discard(name)
        self._finals.pop(name, None)

    def _drop(self, name: str) -> None:
        self._seq += 1
        del self._rows[name]
        self._forget_live(name)
        if len(self._gone) == _MOST_GONE:
            self._gone_before = self._gone[0][0]
        self._gone.append((self._seq, name))

    def _view(self, folder: JobFolder) -> JobView:
        return job_view(LocalJobView.of_any(folder), self._machine)

    def _detailed(self, view: JobView) -> JobView:
        row = self._rows.get(view.id)
        if row is None or row.is_detailed:
            return view if row is None else row.view
        path = JobFolder(os.path.join(self._runs, view.id)).status_path
        finals = self._finals_of(view)
        found = view.model_copy(update=self._histories.read(path, lambda story: _progress(story, finals)))
        self._rows[view.id] = LocalRow(view=found, seq=row.seq, order=row.order, stamp=row.stamp, is_detailed=True)
        return found

    def _finals_of(self, view: JobView) -> tuple[str, ...]:
        """Return the last stage of each trial of a sweep; nothing for other jobs."""
        finals = self._finals.get(view.id)
        if finals is None:
            trials = read_trials(JobFolder(os.path.join(self._runs, view.id)))
            finals = tuple(trial.nodes.final for trial in trials) if is_sweep(trials) else ()
            if view.state == JobState.RUNNING:
                self._finals[view.id] = finals
        return finals


_SECOND = len("20261115-031502")


def job_view(local: LocalJobView, machine: str) -> JobView:
    """Return a job of this machine as a fleet's is shown; its id is the name of its folder."""
    state = local.state if local.state in _STATES else str(JobState.FAILED)
    started_s = local.started_s or 0.0
    return JobView(
        id=local.attempt,
        name=local.name,
        recipe=local.recipe,
        state=state,
        priority=0,
        epoch=1,
        attempt=1,
        machine=machine,
        submitted_s=started_s,
        changed_s=local.ended_s or started_s,
        started_s=local.started_s,
        ended_s=local.ended_s,
        why=local.why[:_LONGEST_WHY],
    )


def _progress(story: RunHistory, finals: Sequence[str]) -> dict[str, Any]:
    """Return the step and the metrics of the stage that runs, or that reported last.

    The steps of a sweep are its trials, `finals` their last stages.
    """
    reporting = [node for node in story.nodes.values() if node.step is not None or node.metrics]
    running = [node for node in reporting if node.ending == "running"]
    metrics: dict[str, float] = {}
    for node in reporting:
        metrics |= {
            name: float(value)
            for name, value in node.metrics.items()
            if type(value) in (int, float) and len(metrics) < _MOST_METRICS
        }
    speaker: NodeHistory | None = next(iter((running or reporting)[-1:]), None)
    says = next((node.status_text for node in reversed(list(story.nodes.values())) if node.status_text), "")
    is_counted = speaker is not None and type(speaker.step) is int and not math.isnan(speaker.step)
    step = speaker.step if speaker is not None and is_counted else None
    of = speaker.of if speaker is not None and type(speaker.of) is int else None
    label = ""
    if finals:
        ended = (name for name in finals if name in story.nodes and story.nodes[name].ending not in _UNFINISHED)
        step, of = sum(1 for _ in ended), len(finals)
        label = f"{step:,} of {counted(of, 'trial')}"
    return {
        "label": label,
        "step": step,
        "of": of,
        "metrics": metrics,
        "says": says[:_LONGEST_WHY],
    }


def _stamp(folder: JobFolder) -> _Stamp:
    try:
        info = os.stat(folder.status_path)
    except OSError:
        return 0, 0, os.path.exists(os.path.join(folder.path, "end.json"))
    return info.st_size, info.st_mtime_ns, os.path.exists(os.path.join(folder.path, "end.json"))


def _matches(view: JobView, query: JobQuery) -> bool:
    text = query.name.lower()
    return (
        (not text or text in view.name.lower() or text in view.label.lower())
        and (not query.recipe or view.recipe == query.recipe)
        and (not query.machine or view.machine == query.machine)
        and (not query.submitter or view.submitter == query.submitter)
        and (not query.sweep or view.name.partition("/")[0] == query.sweep)
    )


_KEYS: dict[str, tuple[Callable[[JobView], Any], bool]] = {
    "submitted": (attrgetter("submitted_s"), True),
    "started": (attrgetter("started_s"), True),
    "ended": (attrgetter("ended_s"), True),
    "name": (attrgetter("name"), False),
    "priority": (attrgetter("priority"), True),
    "state": (lambda view: _STATES.index(view.state), False),
}
"""What jobs are sorted by, and whether the largest comes first."""


def in_order(views: Sequence[JobView], sort: str) -> list[JobView]:
    """Return jobs, which are newest first, in an order. Raises `BadInput` for an unknown one."""
    name = sort.removeprefix("-") or "submitted"
    if name not in _KEYS:
        hint = did_you_mean(name, _KEYS) or f"by {', '.join(_KEYS)}"
        raise BadInput(f"jobs can't be sorted by {name[:40]!r}", hint=hint)
    if name == "submitted":
        return list(reversed(views)) if sort.startswith("-") else list(views)
    key, is_descending = _KEYS[name]
    known = [view for view in views if key(view) is not None]
    unknown = [view for view in views if key(view) is None]
    return [*sorted(known, key=key, reverse=is_descending is not sort.startswith("-")), *unknown]


def _start(found: Sequence[JobView], after: str) -> int:
    """Return where the page after a cursor begins: behind its job, or if that is gone at its place."""
    if not after:
        return 0
    place, _, id = after.partition(":")
    if not place.isascii() or not place.isdigit() or len(place) > 12:
        raise BadInput(f"not a cursor of a page of jobs: {after[:40]!r}")
    return next((at for at, view in enumerate(found, 1) if view.id == id), int(place))
