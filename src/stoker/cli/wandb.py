"""`stoker run --wandb`: send the metrics of each trial to wandb."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence

import stoker
from stoker.cli.context import CommandContext
from stoker.core.events import Event, Kinds
from stoker.engine.metrics.wandb import SinkEnd, WandbRun, WandbSink
from stoker.engine.runners.stage_runner import RunFolders
from stoker.host.interpreter import find_python
from stoker.jobs.builder import JobBuild
from stoker.jobs.execution import folders_of
from stoker.jobs.job_folder import Attempt, JobFolder
from stoker.jobs.trials import Trial, shared_nodes

_SCRIPT = os.path.join(os.path.dirname(stoker.__file__), "trainer", "stoker_wandb.py")


def tracking_of(call: CommandContext, build: JobBuild, attempt: Attempt, project: str) -> TrialTracker:
    """Return a tracker that sends a job's metrics to a wandb project."""
    settings, spec = call.parts.settings, build.spec
    wanted = str(build.trials[0].spec.args.get("python", "")) if build.program is not None and build.trials else ""
    python = find_python(wanted, folder=settings.folder, environment=settings.environment, own_prefix=sys.prefix)

    def run_of(trial: Trial) -> WandbRun:
        return WandbRun(
            python=python.path,
            folder=settings.folder,
            env=settings.environment,
            project=project,
            name=f"{spec.name}/{trial.spec.label}" if trial.spec.label else spec.name,
            group=spec.name,
            mode=settings.environment.get("WANDB_MODE", "offline"),
            config=dict(trial.spec.point),
        )

    folder = JobFolder(os.path.join(settings.runs, attempt.id))
    return TrialTracker(build.trials, folders_of(folder, call.parts.tools), run_of=run_of, script=_SCRIPT)


# Metrics of a running job, sent to wandb trial by trial. A failure is an event of the journal and nothing else.


_ENDS = frozenset({Kinds.STAGE_END, Kinds.STAGE_FAILED, Kinds.STAGE_CANCELLED, Kinds.STAGE_PRUNED})


class TrialTracker:
    """Follows the trials of one job."""

    def __init__(
        self, trials: Sequence[Trial], folders: RunFolders, *, run_of: Callable[[Trial], WandbRun], script: str
    ) -> None:
        self._folders = folders
        self._run_of = run_of
        self._script = script
        shared = shared_nodes(trials)
        self._own = {node: trial for trial in trials for node in trial.nodes.nodes if node not in shared}
        self._sinks: dict[int, WandbSink] = {}
        self._closing: list[threading.Thread] = []
        self._emit: Callable[[Event], None] = lambda _event: None
        self._queue: queue.SimpleQueue[tuple[str, Trial] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="stoker-tracking", daemon=True)
        self.ends: list[SinkEnd] = []

    def begin(self, emit: Callable[[Event], None]) -> None:
        """Start working; what goes wrong goes to `emit`."""
        self._emit = emit
        self._thread.start()

    def hear(self, event: Event, _at_s: float, _seq: int) -> None:
        """Take in an event of the journal. Called while the journal is being written, so it only takes notes."""
        trial = self._own.get(str(event.fields.get("node", "")).partition("[")[0])
        if trial is None:
            return
        if event.kind == Kinds.STAGE_BEGIN:
            self._queue.put(("begin", trial))
        elif event.kind in _ENDS and event.fields.get("node") == trial.nodes.final:
            self._queue.put(("end", trial))

    def finish(self) -> None:
        """Let every run that is still open end; each has its own time limit."""
        self._queue.put(None)
        self._thread.join()
        for number in list(self._sinks):
            self._close(number)
        for thread in self._closing:
            thread.join()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            what, trial = item
            if what == "end":
                self._close(trial.spec.number)
            elif trial.spec.number not in self._sinks:
                paths = [path for node in trial.nodes.nodes for path in self._files(node)]
                sink = WandbSink(self._run_of(trial), paths, script=self._script, on_fault=self._tell)
                self._sinks[trial.spec.number] = sink
                sink.begin()

    def _files(self, node: str) -> tuple[str, str]:
        return self._folders.curves_of(node), self._folders.metrics_of(node)

    def _close(self, number: int) -> None:
        """End a trial's run in a thread of its own: wandb takes its time, and the next trial does not wait for it."""
        sink = self._sinks.pop(number, None)
        if sink is not None:
            thread = threading.Thread(
                target=lambda: self.ends.append(sink.finish()), name="stoker-wandb-end", daemon=True
            )
            self._closing.append(thread)
            thread.start()

    def _tell(self, fault: str) -> None:
        self._emit(Event(Kinds.WARNING, {"message": f"metrics were not passed on: {fault}"}))
