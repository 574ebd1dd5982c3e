"""`stoker run --wandb`: send the metrics of each trial to wandb."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import IO, Any

import stoker
from stoker.cli.context import CommandContext
from stoker.core.errors import StokerError
from stoker.core.events import Event, Kinds
from stoker.core.frozen import fresh, frozen
from stoker.core.jsontext import dumps, loads
from stoker.engine.metrics.metrics_file import MetricFrame, read_frames
from stoker.engine.runners.stage_runner import RunFolders
from stoker.host.interpreter import find_python
from stoker.host.processes import Child, start
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


# Metrics on their way to wandb, beside the run and never in its way.
#
# The local files are the truth and the spool: a thread follows them and passes rows on to a process of its own, which
# runs `stoker_wandb.py` under an interpreter that has wandb. The thread waits for that process; the run waits for the
# thread at the end only, for a bounded time. Offline unless asked otherwise. Whatever fails is reported once, and is
# never a failure of the training. No `WANDB_*` variables are touched, and a program's own use of wandb is its own.


FOLLOW_S = 1.0
FINISH_S = 60.0
MOST_BYTES = 1 << 30
"""What one run may send: a bound for wandb's own spool, which lies on the user's disk."""
_ANSWER_BYTES = 65536
_LAST_GRACE_S = 2.0


@frozen
class WandbRun:
    """A run as wandb shows it."""

    python: str
    """The interpreter that has wandb."""
    folder: str
    """Where wandb keeps its runs; made if it is not there."""
    env: Mapping[str, str]
    """The user's environment, as it is."""
    project: str = "stoker"
    name: str = ""
    group: str = ""
    id: str = ""
    mode: str = "offline"
    config: Mapping[str, Any] = fresh(factory=dict)


@frozen
class SinkEnd:
    """What became of it."""

    rows: int
    """Values that wandb took, as it said itself; 0 if it said nothing."""
    where: str = ""
    """The folder of wandb's run: `wandb sync` takes it."""
    fault: str = ""


class WandbSink:
    """Follows files of metrics for one run. `script` is where `stoker_wandb.py` lies."""

    def __init__(
        self,
        run: WandbRun,
        paths: Sequence[str],
        *,
        script: str,
        on_fault: Callable[[str], None],
        most_bytes: int = MOST_BYTES,
        follow_s: float = FOLLOW_S,
    ) -> None:
        self._run = run
        self._script = script
        self._on_fault = on_fault
        self._read_to = dict.fromkeys(paths, 0)
        self._left_bytes = most_bytes
        self._follow_s = follow_s
        self._is_over = threading.Event()
        self._child: Child | None = None
        self._fault = ""
        self._rows = 0
        self._where = ""
        self._thread = threading.Thread(target=self._follow, name="stoker-wandb", daemon=True)

    def begin(self) -> None:
        """Start the process and follow the files; what fails is reported, not raised."""
        try:
            os.makedirs(self._run.folder, exist_ok=True)
            self._child = start(
                [self._run.python, self._script],
                cwd=self._run.folder,
                env=self._run.env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        except (OSError, StokerError) as error:
            self._tell(str(error))
            return
        self._thread.start()

    def finish(self, timeout_s: float = FINISH_S) -> SinkEnd:
        """Pass on what is left and let wandb finish; after `timeout_s` it is stopped."""
        child = self._child
        if child is None:
            return SinkEnd(rows=0, fault=self._fault)
        self._is_over.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._tell(f"it did not finish within {timeout_s:g} s")
        try:
            child.stop(grace_s=_LAST_GRACE_S)
        except (StokerError, TimeoutError) as error:
            self._tell(str(error))
        self._thread.join(_LAST_GRACE_S)
        return SinkEnd(rows=self._rows, where=self._where, fault=self._fault)

    def _tell(self, fault: str) -> None:
        if not self._fault:
            self._fault = fault
            self._on_fault(f"wandb: {fault}")

    def _follow(self) -> None:
        child = self._child
        if child is None or child.stdin is None or child.stdout is None:
            return
        try:
            self._send(child.stdin, _begin_line(self._run))
            while not self._is_over.wait(self._follow_s):
                self._pass_on(child.stdin)
            self._pass_on(child.stdin)
            self._send(child.stdin, {"kind": "end"})
        except BrokenPipeError:
            pass  # it has ended already, and its answer says why
        except (OSError, StokerError) as error:
            self._tell(str(error))
        with suppress(BrokenPipeError):
            child.stdin.close()
        self._hear(child.stdout.read(_ANSWER_BYTES))
        child.stdout.close()

    def _pass_on(self, pipe: IO[bytes]) -> None:
        for path in self._read_to:
            for frame in read_frames(path, start_bytes=self._read_to[path]):
                for line in _log_lines(frame):
                    self._send(pipe, line)
                self._read_to[path] = frame.end_bytes
        pipe.flush()

    def _send(self, pipe: IO[bytes], line: dict[str, Any]) -> None:
        data = dumps(line).encode() + b"\n"
        self._left_bytes -= len(data)
        if self._left_bytes >= 0 or line["kind"] == "end":
            pipe.write(data)
        else:
            self._tell("it was sent as much as one run may send; the rest is in the local files only")

    def _hear(self, answer: bytes) -> None:
        try:
            said = loads(answer)
            if said["kind"] == "ended":
                self._rows, self._where = int(said["rows"]), str(said["where"])
            else:
                self._tell(str(said["message"]))
        except (ValueError, KeyError, TypeError):
            self._tell("it ended without an answer")


def _begin_line(run: WandbRun) -> dict[str, Any]:
    return {
        "kind": "begin",
        "project": run.project,
        "name": run.name,
        "group": run.group,
        "id": run.id,
        "mode": run.mode,
        "folder": run.folder,
        "config": dict(run.config),
    }


def _log_lines(frame: MetricFrame) -> Iterator[dict[str, Any]]:
    """Return a frame's rows, those of one step together."""
    for step, rows in groupby(frame.rows(), key=lambda row: row.step):
        yield {"kind": "log", "step": step, "values": {row.name: row.value for row in rows}}
