"""Follows the trials of a running sweep: lays out results, cancels trials, gives a sweep up, and ranks its trials.

It reads the journal and does its work in a thread of its own, so the run never waits for a copy. Order for each trial:
its result has its name in the store (that is what the journal says), then the index, then its plain folder, then the
event. Several times a second it looks for requests to cancel single trials.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoker.core.errors import StokerError, SweepGivenUp
from stoker.core.events import Event, Kinds
from stoker.core.frozen import changed, frozen
from stoker.engine.ranking import Measure, best_first, measure_for
from stoker.jobs.job_history import RunHistory
from stoker.jobs.program import flat
from stoker.jobs.trials import (
    ComparableTrials,
    KnownMetrics,
    Trial,
    TrialEnd,
    decide_give_up,
    end_of,
    nodes_to_cancel,
    on_grounds,
    shared_nodes,
)

_GOOD = frozenset({Kinds.STAGE_END, Kinds.STAGE_SKIPPED, Kinds.STAGE_EXPANDED})
_ENDS = _GOOD | {Kinds.STAGE_FAILED, Kinds.STAGE_PRUNED, Kinds.STAGE_CANCELLED}
_OVER = frozenset({"completed", "failed", "cancelled"})
_LOOK_S = 0.25

Settle = Callable[[TrialEnd], str | None]
"""Writes a trial down and lays it out; gives where its result lies as plain files, if it does."""


class TrialWatch:
    """Watches one sweep."""

    def __init__(
        self,
        trials: Sequence[Trial],
        *,
        settle: Settle,
        give_up: Callable[[StokerError], None],
        cancel_nodes: Callable[[frozenset[str]], None],
        requests: Callable[[], frozenset[int]],
        metrics: KnownMetrics,
    ) -> None:
        """`requests` returns the numbers of all trials with a cancel request."""
        self._trials = trials
        self._metrics = metrics
        self._settle = settle
        self._give_up = give_up
        self._cancel_nodes = cancel_nodes
        self._requests = requests
        self._requested: frozenset[int] = frozenset()
        self._story = RunHistory()
        self._shared = shared_nodes(trials)
        self._of_node: dict[str, list[Trial]] = {}
        self._of_end: dict[str, list[Trial]] = {}
        for trial in trials:
            for node in trial.nodes.nodes:
                self._of_node.setdefault(node, []).append(trial)
            for node in (trial.nodes.final, *trial.nodes.keep):
                self._of_end.setdefault(node, []).append(trial)
        self._emit: Callable[[Event], None] = lambda _event: None
        self._over: set[int] = set()
        self._ends: list[TrialEnd] = []
        self._queue: queue.SimpleQueue[TrialEnd | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="stoker-trials", daemon=True)
        self.trouble: StokerError | None = None
        """The first thing that went wrong with laying out or writing down."""

    @property
    def ends(self) -> tuple[TrialEnd, ...]:
        """The trials that have ended, in that order."""
        return tuple(self._ends)

    def begin(self, emit: Callable[[Event], None]) -> None:
        """Start working; news go to `emit`."""
        self._emit = emit
        self._thread.start()

    def hear(self, event: Event, at_s: float, _seq: int) -> None:
        """Take in an event of the journal. Called while the journal is being written, so it only takes notes."""
        node = self._story.take({"kind": event.kind, "ts": at_s, **event.fields})
        if node is None or event.kind not in _ENDS:
            return
        # Whatever goes wrong may end a trial; what goes well ends it only if it is what the trial is for.
        concerned = self._of_end if event.kind in _GOOD else self._of_node
        ends = [
            end
            for trial in concerned.get(node.node.partition("[")[0], ())
            if trial.spec.number not in self._over and (end := end_of(trial, self._story, self._shared)).state in _OVER
        ]
        self._over.update(end.trial.spec.number for end in ends)
        for end in ends:
            self._queue.put(end)

    def finish(self) -> None:
        """Wait until everything that was heard is done."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while True:
            self._take_requests()
            try:
                end = self._queue.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            if end is None:
                return
            out: str | None = None
            try:
                end = self._metrics.added_to(end)
                out = self._settle(end)
            except StokerError as error:
                self.trouble = self.trouble or error
            self._ends.append(changed(end, out=out))
            self._tell(self._ends[-1])
            lost = decide_give_up(self._ends, len(self._trials) - len(self._over))
            if lost is not None:
                hint = "mend it, then give the same line again; --keep-going runs them all whatever happens"
                self._give_up(SweepGivenUp(lost.why, hint=hint))

    def _take_requests(self) -> None:
        """Stop the trials that were newly requested to be cancelled, but not what others of the sweep need."""
        requested = self._requests()
        if requested != self._requested:
            self._requested = requested
            self._cancel_nodes(nodes_to_cancel(self._trials, requested))

    def _tell(self, end: TrialEnd) -> None:
        try:
            self._emit(
                Event(
                    Kinds.TRIAL_END,
                    {
                        "trial": end.trial.spec.number,
                        "label": end.trial.spec.label,
                        "state": end.state,
                        "is_kept": end.is_kept,
                        "seconds": end.seconds,
                        "digest": end.digest,
                        "metrics": dict(end.metrics),
                        "peak_bytes": end.peak_bytes,
                        "peak_gpu_bytes": end.peak_gpu_bytes,
                        "cause": end.cause,
                        "message": end.message,
                        "hint": end.hint,
                        "out": end.out,
                    },
                )
            )
        except StokerError as error:
            # A journal that can't be written ends the run by itself.
            self.trouble = self.trouble or error


# How the trials of a sweep rank among each other, by what `engine.ranking` chooses.


@frozen
class TrialScore:
    """A trial that ended well, as ranking sees it."""

    n: int
    end: TrialEnd
    is_done: bool = True
    is_failed: bool = False

    @property
    def metrics(self) -> Mapping[str, float]:
        return {name: float(value) for name, value in self.end.metrics.items() if type(value) in (int, float)}

    @property
    def measured_on(self) -> Mapping[str, Any]:
        return self.end.trial.measured_on


@frozen
class TrialRanking:
    """Trials that ended well, best first."""

    standings: tuple[TrialScore, ...]
    measure: Measure

    @property
    def grounds(self) -> list[ComparableTrials[TrialScore]]:
        """Those that may be compared with each other, best first."""
        return on_grounds(self.standings, [one for one in self.standings if self.measure.metric in one.metrics])

    @property
    def best(self) -> TrialScore | None:
        """The best one, if what it is ranked by is a number and all that have it were measured on the same."""
        if len(self.grounds) > 1:
            return None
        value = self.standings[0].metrics.get(self.measure.metric)
        return None if value is None or not math.isfinite(value) else self.standings[0]


def rank_trials(ends: Sequence[TrialEnd], args: Mapping[str, Any]) -> TrialRanking | None:
    """Rank the trials that ended well, `args` being those of one of them; nothing if there is nothing to compare."""
    done = [TrialScore(n=end.trial.spec.number, end=end) for end in ends if end.state == "completed"]
    # A program's own parameters stand among its recipe's arguments.
    params = args.get("params")
    settings = {**flat(args), **(flat(params) if isinstance(params, Mapping) else {})}
    measure = measure_for(done, settings) if len(done) > 1 else None
    return None if measure is None else TrialRanking(standings=tuple(best_first(done, measure)), measure=measure)
