"""How much of a core does the cockpit take with 10,000 jobs and 100 events a second, and how soon does it draw?

The real program on a terminal of 80×24 and of 200×50 (list and curves side by side), fed by a monitor in its own
process: every quarter of a second it decodes the JSON of 25 changed jobs, as from a coordinator. Processor time is that
of the whole process over the time after its start. A redraw is from a key that opens the help page to the last line of
that page on the terminal, and back.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import random
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import harness
from harness import Figure, Row

from stoker.api.monitor import JobQuery, Monitor, SeriesQuery
from stoker.protocol.screen_messages import (
    ChangedRows,
    CodeDiff,
    ComparisonView,
    ConfigView,
    LogPage,
    LogRequest,
    Overview,
    Series,
    SeriesView,
    StageGraph,
    SweepView,
)
from stoker.protocol.view_messages import (
    DoneView,
    FileList,
    JobDetails,
    JobExplanation,
    JobPage,
    JobView,
    MachineView,
)

JOBS, QUICK_JOBS = 10_000, 200
MACHINES = 500
EVERY_S, CHANGED = 0.25, 25
MEASURED_S, QUICK_S = 20.0, 1.0
MOST_OF_A_CORE = 0.10
MOST_REDRAW_S = 0.1
SIZES = ((80, 24), (200, 50))
KEYS = 30


def main() -> int:
    parser = harness.options(__doc__.splitlines()[0])
    parser.add_argument("--show", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.show:
        return show(asked.show)
    bench = harness.begin("cockpit", __doc__.splitlines()[0], asked)
    try:
        import textual
    except ModuleNotFoundError:
        missing = "textual is not installed"
        bench.rows.append(Row(question="processor", against="a core", ours=None, theirs=None, why_missing=missing))
        return bench.finish()
    bench.versions["textual"] = textual.__version__
    for columns, rows in SIZES[:1] if bench.quick else SIZES:
        share, redraws, sent = measure(columns, rows, is_quick=bench.quick)
        size = f"{columns}×{rows}, {QUICK_JOBS if bench.quick else JOBS:,} jobs, 100 events/s"
        bench.rows.append(
            Row(
                question=f"share of a core, {size}",
                against="10 %",
                unit="of a core",
                ours=Figure.of([share]),
                theirs=Figure.of([MOST_OF_A_CORE]),
                at_most=1.0,
            )
        )
        bench.rows.append(
            Row(
                question=f"a key to the last line of its page, {size}: 95th percentile",
                against="100 ms",
                ours=Figure.of([sorted(redraws)[len(redraws) * 95 // 100]]),
                theirs=Figure.of([MOST_REDRAW_S]),
                at_most=1.0,
            )
        )
        slowest = f"slowest of {len(redraws)} keys {1000 * max(redraws):.0f} ms"
        bench.notes.append(f"{columns}×{rows}: {sent / 1000:.1f} KB/s to the terminal; {slowest}.")
    return bench.finish()


def measure(columns: int, rows: int, *, is_quick: bool) -> tuple[float, list[float], float]:
    """Return the share of a core, the time of each redraw, and the bytes per second of a cockpit that shows jobs."""
    near, far = pty.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    command = [sys.executable, str(Path(__file__).resolve()), "--show", str(QUICK_JOBS if is_quick else JOBS)]
    environment = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONIOENCODING": "utf-8"}
    program = subprocess.Popen(command, stdin=far, stdout=far, stderr=far, env=environment, start_new_session=True)
    os.close(far)
    try:
        wait_for(near, " of ", 60.0)
        wait_for(near, "", 2.0 if not is_quick else 0.1)
        begun_s, used_s = time.monotonic(), cpu_s(program.pid)
        sent = len(wait_for(near, "", QUICK_S if is_quick else MEASURED_S))
        seconds = time.monotonic() - begun_s
        share = (cpu_s(program.pid) - used_s) / seconds
        redraws = []
        for key, mark in [("?", "any key closes"), ("x", "enter open")] * (2 if is_quick else KEYS):
            wait_for(near, "", random.uniform(0.0, 0.3))
            pressed_s = time.perf_counter()
            os.write(near, key.encode())
            wait_for(near, mark, 10.0)
            redraws.append(time.perf_counter() - pressed_s)
        os.write(near, b"q")
        wait_for(near, "", 0.5)
        return share, redraws, sent / seconds
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGTERM)
        program.wait(10)
        os.close(near)


def wait_for(near: int, mark: str, limit_s: float) -> bytes:
    """Read what the program draws until a text appears; without a text, for so long."""
    seen = b""
    until_s = time.monotonic() + limit_s
    while (left_s := until_s - time.monotonic()) > 0:
        if select.select([near], [], [], left_s)[0]:
            try:
                seen += os.read(near, 65536)
            except OSError:
                return seen
            if mark and mark.encode() in seen:
                return seen
    if mark:
        raise RuntimeError(f"the cockpit did not show {mark!r} within {limit_s:.0f} s: {seen[-2000:]!r}")
    return seen


def cpu_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# The program that is measured.


def show(count: int) -> int:
    """Show the cockpit over jobs that change."""
    from stoker.core.clock import SystemClock
    from stoker.tui.cockpit import run_cockpit
    from stoker.tui.cockpit_state import CockpitState
    from stoker.tui.controls import CockpitControls
    from stoker.tui.requests import RequestThreads

    controls = CockpitControls(ChangingJobs(count), SystemClock(), CockpitState(), RequestThreads())
    return run_cockpit(controls, has_colour=True, is_ascii=False, has_mouse=False)


class ChangingJobs(Monitor):
    """Jobs of a fleet of which a hundred change every second; answers are decoded from JSON."""

    name = "lab"
    is_fleet = True

    def __init__(self, count: int) -> None:
        self._random = random.Random(1)
        self._rows = [self._row(number, count) for number in range(count)]
        self._seq = 0
        self._due_s = 0.0

    def _row(self, number: int, count: int) -> dict[str, object]:
        part = 10 * number // count
        state = "running" if part < 2 else "pending" if part < 7 else "completed"
        is_started = state != "pending"
        return {
            "id": f"{number:064x}",
            "name": f"resnet-{number // 100}/{number % 100}",
            "label": f"lr={number % 17 / 100} wd={number % 5}",
            "recipe": "tabular/gbt",
            "state": state,
            "priority": 0,
            "epoch": 1,
            "attempt": int(is_started),
            "machine": f"machine-{number % MACHINES}" if is_started else "",
            "submitter": "anna",
            "submitted_s": time.time() - 4000 + number / 100,
            "changed_s": time.time(),
            "started_s": time.time() - 3000 if is_started else None,
            "ended_s": time.time() - 100 if state == "completed" else None,
            "step": 0 if state == "running" else None,
            "of": 100_000,
            "metrics": {"loss": 1.0} if is_started else {},
            "why": "" if is_started else f"queue position {number}: needs 6.0 GiB, 4.9 GiB are free on desk",
        }

    def _counts(self) -> dict[str, int]:
        count = len(self._rows)
        return {"running": count // 5, "pending": count // 2, "completed": count - count // 5 - count // 2}

    def overview(self) -> Overview:
        return Overview(name="lab", is_fleet=True, server_s=time.time(), seq=self._seq, jobs=self._counts(), devices=64)

    def jobs(self, query: JobQuery) -> JobPage:
        start = int(query.after or 0)
        found = [row for row in self._rows if row["state"] in query.state.split(",")]
        more = str(start + query.limit) if start + query.limit < len(found) else ""
        body = json.dumps({"jobs": found[start : start + query.limit], "next": more})
        return JobPage.model_validate_json(body)

    def changes(self, after: int, wait_s: float, frame: int = 0) -> ChangedRows:
        time.sleep(max(0.0, min(self._due_s - time.monotonic(), wait_s)))
        self._due_s = time.monotonic() + EVERY_S
        self._seq = after + CHANGED
        running = len(self._rows) // 5
        # Most of them are on the screen: the first rows of the list.
        numbers = [self._random.randrange(20) for _ in range(CHANGED // 2)]
        numbers += [self._random.randrange(running) for _ in range(CHANGED - CHANGED // 2)]
        for number in set(numbers):
            row = self._rows[number]
            row["step"] = int(str(row["step"])) + 1
            row["metrics"] = {"loss": self._random.random()}
        changed = [self._rows[number] for number in set(numbers)]
        body = {"seq": self._seq, "server_s": time.time(), "jobs": changed, "counts": self._counts()}
        return ChangedRows.model_validate_json(json.dumps(body))

    def series(self, ref: str, query: SeriesQuery) -> SeriesView:
        steps = tuple(range(0, 4 * query.points, 4))
        loss = Series(name="loss", steps=steps, values=tuple(1 / (1 + step / 100) for step in steps), total=len(steps))
        return SeriesView(job=ref, names=("loss",), series=(loss,))

    def machines(self) -> tuple[MachineView, ...]:
        now_s = time.time()
        return tuple(
            MachineView(name=f"machine-{number}", state="busy", last_seen_s=now_s, slots=4, held=4)
            for number in range(MACHINES)
        )

    def job(self, ref: str) -> JobDetails:
        raise NotImplementedError

    def explain(self, ref: str) -> JobExplanation:
        return JobExplanation(job=JobView.model_validate(self._rows[0]), verdict="")

    def stages(self, ref: str) -> StageGraph:
        return StageGraph(job=ref)

    def log(self, ref: str, query: LogRequest) -> LogPage:
        return LogPage(job=ref)

    def config(self, ref: str) -> ConfigView:
        return ConfigView(job=ref)

    def code_diff(self, ref: str, parent: str = "") -> CodeDiff:
        return CodeDiff(job=ref)

    def files(self, ref: str) -> FileList:
        return FileList(attempt=1)

    def sweep(self, name: str, metric: str = "") -> SweepView:
        return SweepView(name=name)

    def compare(self, refs: object) -> ComparisonView:
        return ComparisonView()

    def cancel(self, ref: str) -> DoneView:
        return DoneView()

    def requeue(self, ref: str) -> DoneView:
        return DoneView()

    def set_priority(self, ref: str, priority: int) -> DoneView:
        return DoneView()

    def set_machine(self, name: str, verb: str, *, why: str = "", for_s: float | None = None) -> DoneView:
        return DoneView()


if __name__ == "__main__":
    sys.exit(main())
