"""How many jobs a second go from a claim to a recorded result, through HTTP, with 50 workers?

A cycle of Stoker's is three requests of a worker: claim, start, finish; or two, where the worker leaves out the start,
as the queue allows. Each is answered once it is durable. The workers are one process (`sides/fleet_load.py`) that costs
little; coordinator, database and workers share this machine's cores. Beside it, called in process without HTTP:
procrastinate on the same PostgreSQL server, fetch and finish; huey on SQLite, take, run and keep the result. All are
equally durable: SQLite with its write-ahead log and full synchronisation, PostgreSQL with fsync and synchronous
commits.

Rates are shown as the time of one cycle: 1,000 a second is 1 ms. CPU time says what a cycle costs on a machine where
others are at work, too: the coordinator's and its database's, without the workers'; a peer's and its database's.

    python benchmarks/fleet_cycles.py --against TREE     # this checkout beside another one, in pairs, on SQLite

Two runs here differ by more than a change costs, so both checkouts run in turns, each by its own benchmark, and medians
are compared: claims a second may fall by 5 % at most.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fleet
import harness
from harness import Benchmark, Figure, Row, Run, Side
from peers import CHECKOUT, Installed, Peer

WORKERS = 50
GOAL_S = 0.001
BETTER_S = 1 / 3000
CLAIM_GOAL_S = 0.05
MOST_SLOWER = 1 / 0.95
"""Of the time of a cycle, when its rate may fall by 5 %."""
WAYS = {"started": "claim, start, finish", "direct": "claim, finish"}


@dataclass(slots=True, kw_only=True)
class Told:
    """What one side said of each of its runs, beyond its time."""

    said: list[dict[str, Any]] = field(default_factory=list)

    def figure(self, *names: str, per: str = "") -> Figure | None:
        values = [sum(one.get(name, 0.0) for name in names) / (one[per] if per else 1) for one in self.said]
        return Figure.of(values) if values else None


def main() -> int:
    parser = harness.options(__doc__)
    parser.add_argument("--against", type=Path, metavar="TREE", help="compare with another checkout instead")
    parser.add_argument("--pairs", type=int, default=9, help="with --against: how often; default: %(default)s")
    asked = parser.parse_args()
    bench = harness.begin("fleet_cycles", __doc__.splitlines()[0], asked)
    if asked.against is not None:
        compare_trees(bench, asked.against.resolve(), pairs=1 if bench.quick else asked.pairs)
        return bench.finish()
    ours = bench.peer("stoker")
    huey, procrastinate = bench.peer("huey"), bench.peer("procrastinate")
    measure(bench, ours, huey, "SQLite", database=None)
    from tests.servers.postgres import postgres, why_not

    if why := "skipped by --quick" if bench.quick else why_not():
        bench.rows.append(
            Row(question="on PostgreSQL", against="1 ms", ours=None, theirs=None, at_most=1, why_missing=why)
        )
        return bench.finish()
    with postgres(is_durable=True) as server:
        import psycopg

        with psycopg.connect(server.url()) as connection:
            bench.versions["PostgreSQL"] = connection.execute("SHOW server_version").fetchone()[0].split()[0]  # type: ignore[index]
        measure(bench, ours, procrastinate, "PostgreSQL", database=server)
    return bench.finish()


def compare_trees(bench: Benchmark, other: Path, *, pairs: int) -> None:
    """This checkout and another one in pairs, the order of each pair reversed; medians decide."""
    jobs = 50 if bench.quick else 2000
    for way, words in WAYS.items():
        said: dict[str, list[dict[str, Any]]] = {"this": [], "other": []}
        for pair in range(pairs):
            trees = {"this": CHECKOUT, "other": other}
            for name in sorted(trees, reverse=pair % 2 == 0):
                bench.say(f"{words}: {name} checkout, pair {pair + 1} of {pairs}")
                said[name].append(_cycles_of(bench, trees[name], name, way, jobs))
        for question, spent in ((f"a cycle: {words}", "seconds"), (f"CPU time of a cycle: {words}", "server_cpu_s")):
            each = {name: [one[spent] / one["executed"] for one in some] for name, some in said.items()}
            ours, theirs = (_one(statistics.median(each[name])) for name in ("this", "other"))
            at_most = MOST_SLOWER if spent == "seconds" else None
            add = _adder(bench, question, ours, "")
            add("the other checkout, medians", theirs, at_most=at_most)
            ratios = [mine / theirs_s for mine, theirs_s in zip(each["this"], each["other"], strict=True)]
            bench.rows.append(
                Row(
                    question=f"{question}: median of the {pairs} pairs' ratios",
                    against="one",
                    unit="",
                    ours=_one(round(statistics.median(ratios), 4)),
                    theirs=_one(1.0),
                )
            )


def _cycles_of(bench: Benchmark, tree: Path, name: str, way: str, jobs: int) -> dict[str, Any]:
    place = bench.bench / "trees" / (name if tree == CHECKOUT else hashlib.sha256(str(tree).encode()).hexdigest()[:12])
    side = str(harness.SIDES / "cycles_of.py")
    quick = ["--quick"] if bench.quick else []
    return _said([sys.executable, side, str(tree), "--bench", str(place), "--jobs", str(jobs), "--way", way, *quick])


def measure(bench: Benchmark, ours: Peer, peer: Peer, where: str, *, database: Any) -> None:
    """Ours in both ways and the peer, in turns."""
    jobs = 50 if bench.quick else 2000
    name = "huey" if database is None else "procrastinate"
    sides, told = [], {key: Told() for key in (*WAYS, name)}
    if isinstance(ours, Installed):
        ways = ("started",) if bench.quick else WAYS
        sides += [Side(name=way, once=_cycles(bench, ours, way, jobs, database, told[way])) for way in ways]
    if isinstance(peer, Installed):
        once = _huey(bench, peer, jobs, told[name]) if database is None else _calls(peer, jobs, database, told[name])
        sides.append(Side(name=name, once=once))
    bench.say(f"{where}: {', '.join(side.name for side in sides)}, {jobs:,} jobs")
    runs = bench.in_turns(sides, rounds=3)
    _judge(bench, runs, told, where, name)


def _judge(bench: Benchmark, runs: harness.Runs, told: dict[str, Told], where: str, name: str) -> None:
    missing = bench.missing("stoker", name)
    times = {
        side: Figure.of([run.seconds / run.executed for run in some if run.executed]) for side, some in runs.items()
    }
    most = 2.0 if name == "huey" else 1 / 1.5
    for way, words in WAYS.items():
        question = f"a cycle on {where}: {words}"
        add = _adder(bench, question, times.get(way), missing)
        is_whole = way == "started"
        add("1,000 a second", _one(GOAL_S), at_most=1.0 if is_whole else None)
        add("3,000 a second", _one(BETTER_S), at_most=None)
        add(f"{name}, in process", times.get(name), at_most=most if is_whole else None)
        question = f"CPU time of a cycle on {where}: {words}"
        add = _adder(bench, question, told[way].figure("server_cpu_s", "database_cpu_s", per="executed"), missing)
        add(f"{name}, in process", told[name].figure("cpu_seconds", "database_cpu_s", per="executed"), at_most=None)
        for part, goal in (("p50", None), ("p99", 1.0)):
            add = _adder(bench, f"{part} of a claim on {where}: {words}", told[way].figure(f"claim_{part}_s"), missing)
            add("50 ms", _one(CLAIM_GOAL_S), at_most=goal)
    load = _adder(
        bench, f"CPU time of the {WORKERS} workers, a cycle", told["started"].figure("cpu_seconds", per="executed"), ""
    )
    load("1 ms", _one(GOAL_S), at_most=None)


def _adder(bench: Benchmark, question: str, ours: Figure | None, missing: str) -> Callable[..., None]:
    def add(against: str, theirs: Figure | None, *, at_most: float | None) -> None:
        bench.rows.append(
            Row(question=question, against=against, ours=ours, theirs=theirs, at_most=at_most, why_missing=missing)
        )

    return add


def _cycles(bench: Benchmark, peer: Installed, way: str, jobs: int, database: Any, told: Told) -> Callable[[], Run]:
    def once() -> Run:
        home = bench.home(way)
        url = database.create() if database else ""
        with fleet.serving(peer, home, *(["--db", url] if url else [])) as coordinator:
            side = str(harness.SIDES / "fleet_load.py")
            asked = [coordinator.url, "--token", str(coordinator.token), "--jobs", str(jobs), "--workers", str(WORKERS)]
            watched = ["--server", str(coordinator.pid), *(["--database", str(database.pid)] if database else [])]
            said = _said([str(peer.python), side, *asked, "--way", way, *watched])
            done = coordinator.get("/v1/status")["jobs"].get("completed")
            if done != jobs:
                raise RuntimeError(f"{done} of {jobs} jobs are completed")
        if url:
            database.drop(url)
        return _run(said, told)

    return once


def _huey(bench: Benchmark, peer: Installed, jobs: int, told: Told) -> Callable[[], Run]:
    side = str(harness.SIDES / "huey_cycles.py")
    return lambda: _run(_said([str(peer.python), side, "--home", str(bench.home("huey")), "--jobs", str(jobs)]), told)


def _calls(peer: Installed, jobs: int, database: Any, told: Told) -> Callable[[], Run]:
    def once() -> Run:
        url = database.create()
        side = str(harness.SIDES / "procrastinate_cycles.py")
        watched = ["--database", str(database.pid)]
        said = _said([str(peer.python), side, url, "--jobs", str(jobs), "--workers", str(WORKERS), *watched])
        database.drop(url)
        return _run(said, told)

    return once


def _run(said: dict[str, Any], told: Told) -> Run:
    told.said.append(said)
    return Run(seconds=said["seconds"], executed=said["executed"], cpu_seconds=said["cpu_seconds"])


def _said(command: Sequence[str]) -> dict[str, Any]:
    done = subprocess.run(
        command, env=harness.environment_with(), capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{Path(command[1]).name} failed:\n{done.stderr[-2000:]}")
    said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return said


def _one(value: float) -> Figure:
    return Figure(best=value, median=value, runs=1)


if __name__ == "__main__":
    sys.exit(main())
