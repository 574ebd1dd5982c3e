"""What does a coordinator cost when the queue is long, the history is old and the fleet is large?

On SQLite, the embedded default. A cycle (claim, finish) with a million jobs waiting beside one with a thousand; a
manifest of 10,000 jobs through `stoker submit`, from its start to its exit; every list of jobs, its first, a middle
and its last page, with a million ended jobs; the renewals of 5,000 workers, each with a running job, at the interval
that the coordinator asks of them; and the most memory that the coordinator held in all of that. Then another one that
knows 10,000 machines, all at work: what a claim takes when a job of one of them has ended (`sides/fleet_machines.py`).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path
from typing import Any

import fleet
import harness
from fleet import Coordinator
from harness import Benchmark, Figure, Row, Run, Side
from peers import Installed

from stoker.coordinator.queue.job_pages import write_cursor

FILTERS: dict[str, dict[str, str]] = {
    "all jobs": {},
    "completed": {"state": "completed"},
    "failed": {"state": "failed"},
    "pending": {"state": "pending"},
    "claimed or running": {"state": "claimed,running"},
    "a name": {"name": "old77"},
    "a recipe": {"recipe": "old/recipe7"},
    "a machine": {"machine": "w7"},
    "a recipe that failed": {"recipe": "old/recipe10", "state": "failed"},
    "a recipe on a machine": {"recipe": "old/recipe7", "machine": "w7"},
    "a name that failed on a machine": {"name": "old70", "state": "failed", "machine": "w20"},
}


def main() -> int:
    bench = harness.start("fleet_scale", __doc__.splitlines()[0])
    peer = bench.peer("stoker")
    if not isinstance(peer, Installed):
        bench.rows.append(
            Row(question="a claim", against="itself", ours=None, theirs=None, at_most=1.3, why_missing=peer.reason)
        )
        return bench.finish()
    old, new = bench.home("old"), bench.home("new")
    fill(bench, peer, old)
    # filling has shown already that claims can be measured
    peaks = [*([] if bench.quick else [claims(bench, peer, old, new)]), on_the_old(bench, peer, old)]
    bench.rows.append(
        Row(
            question="most memory of the coordinator, with all of that",
            against="300 MB",
            unit="bytes",
            ours=Figure.of([max(peaks)]),
            theirs=_one(300e6),
            at_most=1.0,
        )
    )
    machines(bench, peer)
    return bench.finish()


def fill(bench: Benchmark, peer: Installed, home: Path) -> None:
    """Make the history and the queue of one coordinator long."""
    count = 500 if bench.quick else 1_000_000
    bench.say(f"{count:,} ended jobs and {count:,} that wait")
    with fleet.serving(peer, home) as coordinator:
        _load(peer, coordinator, jobs=100, cycles=50)
    database = home / "fleet" / "queue.db"
    _said([str(peer.python), str(harness.SIDES / "fleet_fill.py"), str(database), "--history", str(count),
           "--pending", str(count)])  # fmt: skip


def claims(bench: Benchmark, peer: Installed, old: Path, new: Path) -> int:
    """Cycles with very many waiting and with a thousand, in turns; gives the most memory of the first."""
    cycles = 2000
    told: dict[str, list[dict[str, Any]]] = {"many": [], "few": []}
    peaks: list[int] = []

    def many() -> Run:
        with fleet.serving(peer, old) as coordinator:
            said = _load(peer, coordinator, jobs=0, cycles=cycles)
            peaks.append(coordinator.rss_bytes("VmHWM"))
        return _run(said, told["many"])

    def few() -> Run:
        shutil.rmtree(new)
        new.mkdir()
        with fleet.serving(peer, new) as coordinator:
            return _run(_load(peer, coordinator, jobs=cycles + 1000, cycles=cycles), told["few"])

    runs = bench.in_turns([Side(name="many", once=many), Side(name="few", once=few)], rounds=3)
    times = {side: harness.seconds_of(some, per=cycles) for side, some in runs.items()}
    cpu = {side: Figure.of([one["server_cpu_s"] / one["executed"] for one in some]) for side, some in told.items()}
    p50 = {side: Figure.of([one["claim_p50_s"] for one in some]) for side, some in told.items()}
    for question, figures, goal in (
        ("CPU time of a cycle, 1,000,000 waiting", cpu, 1.3),
        ("a cycle, 1,000,000 waiting", times, None),
        ("p50 of a claim, 1,000,000 waiting", p50, None),
    ):
        bench.rows.append(
            Row(
                question=question,
                against="1,000 waiting",
                ours=figures["many"],
                theirs=figures["few"],
                at_most=goal,
            )
        )
    return max(peaks)


def on_the_old(bench: Benchmark, peer: Installed, home: Path) -> int:
    """Everything else, on one coordinator; gives the most memory it held."""
    with fleet.serving(peer, home) as coordinator:
        submit(bench, peer, coordinator)
        lists(bench, coordinator)
        renewals(bench, peer, coordinator)
        return coordinator.rss_bytes("VmHWM")


def submit(bench: Benchmark, peer: Installed, coordinator: Coordinator) -> None:
    """10,000 jobs that nobody knows yet, three times: as tables of a file, and as a sweep of one."""
    count = 100 if bench.quick else 10_000
    two = _one(2.0)
    for words, make in ((f"{count:,} tables", _tables), (f"a sweep of {count:,}", _sweep)):
        runs = []
        # Others than those of any run before.
        first = int(time.time()) % 100_000
        for turn in range(first, first + (1 if bench.quick else 3)):
            manifest = coordinator.home / f"{make.__name__}{turn}.toml"
            manifest.write_text(make(turn, count))
            before = coordinator.get("/v1/status")["jobs"]["pending"]
            command = [peer.program("stoker"), "submit", str(manifest), "--yes", "--quiet"]
            runs.append(harness.run_command(command, folder=coordinator.home, environment=coordinator.environment))
            new = coordinator.get("/v1/status")["jobs"]["pending"] - before
            if new < count:
                raise RuntimeError(f"{new} new jobs, not {count}")
        question = f"stoker submit of a manifest: {words}"
        bench.rows.append(Row(question=question, against="2 s", ours=harness.seconds_of(runs), theirs=two, at_most=1.0))
        bench.rows.append(
            Row(question=f"{question}: CPU time of the command", against="2 s", ours=harness.cpu_of(runs), theirs=two)
        )


def _tables(turn: int, count: int) -> str:
    table = (
        '[[jobs]]\nname = "t{0}-{1}"\nrecipe = "tabular/gbt"\nhyper = {{ lr = {2}, seed = {1} }}\nmin_ram_gib = 2\n\n'
    )
    return "".join(table.format(turn, number, 0.01 + turn / 1e7) for number in range(count))


def _sweep(turn: int, count: int) -> str:
    rates = [round(0.001 * (number + 1) + turn / 1e9, 10) for number in range(count // 100)]
    job = f'name = "s{turn}"\ncommand = "python train.py --lr {{lr}} --seed {{seed}}"\n'
    return f"[[jobs]]\n{job}sweep = {{ lr = {rates}, seed = {list(range(100))} }}\n"


def lists(bench: Benchmark, coordinator: Coordinator) -> None:
    """Each filter's first, middle and last page: the slowest of them, and of each the best of some."""
    newest = coordinator.get("/v1/jobs?limit=1")["jobs"]
    total = sum(coordinator.get("/v1/status")["jobs"].values())
    worst: tuple[float, str] = (0.0, "")
    took: list[float] = []
    assert newest
    for name, filters in FILTERS.items():
        for place, seq in (("first", 0), ("middle", total // 2), ("middle of the history", total // 4), ("last", 60)):
            after = {"after": _cursor(seq, filters)} if seq else {}
            path = "/v1/jobs?" + urllib.parse.urlencode({**filters, **after, "limit": 100})
            best = min(_timed(coordinator, path) for _ in range(1 if bench.quick else 3))
            took.append(best)
            worst = max(worst, (best, f"{name}, {place}"))
    bench.say(f"slowest list page: {worst[1]}")
    goal = _one(0.1)
    bench.rows.append(
        Row(
            question=f"slowest of {len(took)} list pages of 100 jobs ({worst[1]})",
            against="100 ms",
            ours=_one(worst[0]),
            theirs=goal,
            at_most=1.0,
        )
    )
    middle = sorted(took)[len(took) // 2]
    bench.rows.append(Row(question="median of all list pages", against="100 ms", ours=_one(middle), theirs=goal))


def renewals(bench: Benchmark, peer: Installed, coordinator: Coordinator) -> None:
    workers = 20 if bench.quick else 5000
    bench.say(f"{workers:,} workers")
    side = str(harness.SIDES / "fleet_renewals.py")
    said = _said([str(peer.python), side, coordinator.url, "--server", str(coordinator.pid), "--workers", str(workers),
                  "--seconds", "1" if bench.quick else "20"])  # fmt: skip
    often = f"each every {said['heartbeat_s']:g} s"
    rate = _one(said["server_cpu_s"] / said["seconds"])
    bench.rows.append(
        Row(
            question=f"renewals of {workers:,} workers, {often}: CPU time in a second",
            against="one core",
            ours=rate,
            theirs=_one(1.0),
            at_most=1.0,
        )
    )
    bench.rows.append(
        Row(
            question="CPU time of one renewal, its share of all chores included",
            against="10 ms",
            ours=_one(said["server_cpu_s"] / max(1, said["renewals"])),
            theirs=_one(0.01),
        )
    )
    for part in ("p50", "p99"):
        bench.rows.append(
            Row(
                question=f"{part} of a renewal among them",
                against="1 s",
                ours=_one(said[f"{part}_s"]),
                theirs=_one(1.0),
            )
        )


def machines(bench: Benchmark, peer: Installed) -> None:
    """Claims of a large fleet that is at work, by a coordinator that knows nothing else."""
    known, cycles = (20, 20) if bench.quick else (10_000, 5_000)
    bench.say(f"{known:,} machines")
    # Nobody renews: leases last longer than all of it.
    with fleet.serving(peer, bench.home("machines"), "--lease", "1h") as coordinator:
        side = str(harness.SIDES / "fleet_machines.py")
        said = _said([str(peer.python), side, coordinator.url, "--token", str(coordinator.token), "--machines",
                      str(known), "--cycles", str(cycles), "--server", str(coordinator.pid)])  # fmt: skip
    for part, at_most in (("p50", None), ("p99", 1.0)):
        question = f"{part} of a claim, {known:,} machines known, 50 asking"
        bench.rows.append(
            Row(
                question=question,
                against="50 ms",
                ours=_one(said[f"claim_{part}_s"]),
                theirs=_one(0.05),
                at_most=at_most,
            )
        )
    bench.rows.append(
        Row(
            question=f"CPU time of a cycle (claim, start, finish), {known:,} machines known",
            against="1 ms",
            ours=_one(said["server_cpu_s"] / said["claims"]),
            theirs=_one(0.001),
        )
    )


def _load(peer: Installed, coordinator: Coordinator, *, jobs: int, cycles: int) -> dict[str, Any]:
    side = str(harness.SIDES / "fleet_load.py")
    return _said([str(peer.python), side, coordinator.url, "--token", str(coordinator.token), "--jobs", str(jobs),
                  "--cycles", str(cycles), "--server", str(coordinator.pid), "--way", "direct"])  # fmt: skip


def _timed(coordinator: Coordinator, path: str) -> float:
    started_s = time.perf_counter()
    coordinator.get(path)
    return time.perf_counter() - started_s


def _cursor(seq: int, filters: dict[str, str]) -> str:
    """Return the cursor of the page after a job, in the order of submission."""
    return write_cursor((0, None, seq), filters)


def _run(said: dict[str, Any], told: list[dict[str, Any]]) -> Run:
    told.append(said)
    return Run(seconds=said["seconds"], executed=said["executed"], cpu_seconds=said["server_cpu_s"])


def _said(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        command, env=harness.environment_with(), capture_output=True, text=True, timeout=1800, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{Path(command[1]).name} failed:\n{done.stderr[-2000:]}")
    said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1]) if done.stdout.strip() else {}
    return said


def _one(value: float) -> Figure:
    return Figure(best=value, median=value, runs=1)


if __name__ == "__main__":
    sys.exit(main())
