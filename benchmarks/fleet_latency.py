"""How soon does a submitted job run on a worker that waits, and how soon does a dead worker's job run elsewhere?

A coordinator on SQLite and `stoker work`, as a person starts them. A job is submitted by one request, as
`stoker.Client` does it; its program writes down the time of its first line, and that is when the trainer runs. What the
command `stoker submit` takes beside that (an interpreter's start, mostly) stands in its own row. Then a worker that
runs a job is killed with -9, keeper and job alike, while a second one waits: the job has to run there within the lease
and five seconds. The lease is a short one here, so that it does not take a day; what is added to it is not.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fleet
import harness
from fleet import Coordinator
from harness import Benchmark, Figure, Row
from peers import Installed

LEASE_S = 9.0
GOAL_S = 0.15
STAMP = "import sys, time; open(sys.argv[1], 'w').write(repr(time.time()))"
"""Time of the day: another process reads it, on the same clock."""
STAY = STAMP + "; time.sleep(600)"
WAIT_S = 120.0
ASKING_PAUSE_S = 0.2
"""Between two requests that wait for something that is not measured: asking more often loads what is measured."""
_NOBODY = subprocess.DEVNULL


def main() -> int:
    bench = harness.start("fleet_latency", __doc__.splitlines()[0])
    peer = bench.peer("stoker")
    if not isinstance(peer, Installed):
        bench.rows.append(
            Row(
                question="submit → running",
                against="150 ms",
                ours=None,
                theirs=None,
                at_most=1.0,
                why_missing=peer.reason,
            )
        )
        return bench.finish()
    starts(bench, peer)
    if not bench.quick:
        deaths(bench, peer)
    return bench.finish()


def starts(bench: Benchmark, peer: Installed) -> None:
    home = bench.home("starts")
    count = 1 if bench.quick else 20
    with fleet.serving(peer, home) as coordinator, working(peer, coordinator, "waits"):
        _wait_for_machines(coordinator, 1, quick=bench.quick)
        asked, commanded = [], []
        side = str(harness.SIDES / "fleet_submit.py")
        command = [str(peer.python), side, coordinator.url, str(coordinator.token), str(home), str(count)]
        done = subprocess.run(
            command, env=harness.environment_with(coordinator.environment), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"fleet_submit.py failed:\n{done.stderr[-2000:]}")
        asked = [float(line) for line in done.stdout.split()]
        project = home / "project"
        for number in range(1 if bench.quick else 10):
            mark = home / f"commanded{number}"
            program = [str(peer.program("stoker")), "submit", "--yes", "--quiet", "--name", f"c{number}", "--"]
            started_s = time.time()
            subprocess.run([*program, sys.executable, "-c", STAMP, str(mark)], check=True, cwd=project,
                           stdout=_NOBODY, env=harness.environment_with(coordinator.environment))  # fmt: skip
            commanded.append(_read(mark) - started_s)
            _wait_for_idle(coordinator, quick=bench.quick)
    goal = Figure(best=GOAL_S, median=GOAL_S, runs=1)
    for words, value, most in (
        ("median", _at(asked, 0.5), 1.0),
        ("p95", _at(asked, 0.95), None),
        ("best", min(asked), None),
    ):
        bench.rows.append(
            Row(
                question=f"submit → trainer running on a waiting worker, {words} of {count}",
                against="150 ms",
                ours=Figure.of([value]),
                theirs=goal,
                at_most=most,
            )
        )
    bench.rows.append(
        Row(
            question="the same from the start of the command `stoker submit`, median",
            against="150 ms",
            ours=Figure.of([_at(commanded, 0.5)]),
            theirs=goal,
        )
    )


def deaths(bench: Benchmark, peer: Installed) -> None:
    home, project = bench.home("deaths"), bench.home("project")
    with fleet.serving(peer, home, "--lease", f"{LEASE_S:g}s") as coordinator:
        took = []
        for number in range(3):
            with working(peer, coordinator, f"dies{number}") as dying:
                _wait_for_machines(coordinator, 1, quick=bench.quick)
                mark = home / f"mark{number}"
                program = [str(peer.program("stoker")), "submit", "--yes", "--quiet", "--name", f"long{number}", "--"]
                subprocess.run([*program, sys.executable, "-c", STAY, str(mark)], check=True, cwd=project,
                               stdout=_NOBODY, env=harness.environment_with(coordinator.environment))  # fmt: skip
                _read(mark)
                with working(peer, coordinator, f"lives{number}"):
                    _wait_for_machines(coordinator, 2, quick=bench.quick)
                    mark.unlink()
                    killed_s = time.time()
                    _kill_family(dying.pid)
                    took.append(_read(mark) - killed_s)
                    coordinator_cancel(peer, coordinator, f"long{number}")
            _wait_for_idle(coordinator, quick=bench.quick)
    goal = Figure(best=LEASE_S + 5, median=LEASE_S + 5, runs=1)
    bench.rows.append(
        Row(
            question=f"kill -9 of a worker → its job runs elsewhere (lease {LEASE_S:g} s)",
            against="lease + 5 s",
            ours=Figure(best=max(took), median=_at(took, 0.5), runs=len(took)),
            theirs=goal,
            at_most=1.0,
        )
    )


def coordinator_cancel(peer: Installed, coordinator: Coordinator, name: str) -> None:
    subprocess.run([str(peer.program("stoker")), "cancel", name, "--quiet"], check=False, capture_output=True,
                   env=harness.environment_with(coordinator.environment))  # fmt: skip


@contextmanager
def working(peer: Installed, coordinator: Coordinator, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker of its own home, as on another machine."""
    home = coordinator.home / f"worker-{name}"
    home.mkdir()
    command = [str(peer.program("stoker")), "work", "--join", coordinator.url, "--name", name, "--slots", "1"]
    with (home / "work.log").open("wb") as log:
        program = subprocess.Popen(
            command, env=harness.environment_with({"STOKER_HOME": str(home)}), stdout=log, stderr=log, cwd=home
        )
        try:
            yield program
        finally:
            program.send_signal(signal.SIGTERM)
            try:
                program.wait(30)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()


def _kill_family(pid: int) -> None:
    """Kill a process and everything below it at once, as a power cut would."""
    found, family = [pid], []
    while found:
        one = found.pop()
        family.append(one)
        try:
            found += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
        except OSError:
            continue
    for one in family:
        try:
            os.kill(one, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _wait_for_machines(coordinator: Coordinator, count: int, *, quick: bool) -> None:
    _until(
        lambda: sum(one["state"] in ("ready", "busy") for one in coordinator.get("/v1/machines")["machines"]) >= count,
        ASKING_PAUSE_S,
    )
    # A worker keeps a process warm for its next job; one that has waited a moment has it.
    if not quick:
        time.sleep(2)


def _wait_for_idle(coordinator: Coordinator, *, quick: bool) -> None:
    def is_idle() -> bool:
        jobs = coordinator.get("/v1/status")["jobs"]
        return not any(jobs.get(state) for state in ("pending", "claimed", "running"))

    _until(is_idle, ASKING_PAUSE_S)
    if not quick:
        time.sleep(1)


def _read(mark: Path) -> float:
    _until(lambda: mark.exists() and bool(mark.read_text()))
    return float(mark.read_text())


def _until(is_so: object, pause_s: float = 0.02) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():  # type: ignore[operator]
        if time.monotonic() > deadline_s:
            raise RuntimeError("waited in vain")
        time.sleep(pause_s)


def _at(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


if __name__ == "__main__":
    sys.exit(main())
