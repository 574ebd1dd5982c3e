"""Metrics on their way to wandb, beside the run and never in its way.

The local files are the truth and the spool: a thread follows them and passes rows on to a process of its own, which
runs `stoker_wandb.py` under an interpreter that has wandb. The thread waits for that process; the run waits for
the thread at the end only, for a bounded time. Offline unless asked otherwise. Whatever fails is reported once, and is
never a failure of the training. No `WANDB_*` variables are touched, and a program's own use of wandb is its own.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import IO, Any

from stoker.core.errors import StokerError
from stoker.core.frozen import fresh, frozen
from stoker.core.jsontext import dumps, loads
from stoker.engine.metrics.metrics_file import MetricFrame, read_frames
from stoker.host.processes import Child, start

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
